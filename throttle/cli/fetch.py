"""`throttle fetch`: download a list of URLs, each host at its own pace.

Here the parts are put together: the list (`sources`, `todo`), who works at which host (`crew`), one
URL (`download`), the files (`store`), how fast (`plan`, `sharing`), and what is shown (`display`).
State: a tally for each host. Invariant: what the manifest says was fetched is whole, whenever the
program ends, and however.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from yarl import URL

from throttle.cli import options as types
from throttle.cli import sources
from throttle.cli.client import new_session
from throttle.cli.crew import Crew
from throttle.cli.display import Display
from throttle.cli.download import Download, on_retry, on_wait
from throttle.cli.options import UsageError
from throttle.cli.plan import Plan, plan
from throttle.cli.plan import declare as declare_plan
from throttle.cli.sharing import Sharing, in_folder, in_redis
from throttle.cli.store import Store
from throttle.cli.tally import Tally
from throttle.cli.target import Target, is_here, target
from throttle.cli.todo import Todo
from throttle.http.events import Signalled
from throttle.http.polite import PoliteSession
from throttle.http.retry import Retry
from throttle.http.routes import host_of

__all__ = ["DESCRIPTION", "EXAMPLES", "declare", "run"]

#: Workers in all: most of them wait, for their host's limit.
_WORKERS = 2048
#: Seconds between two looks at the progress.
_REFRESH = 0.2

DESCRIPTION = """Download a list of URLs politely: each host at its own pace, and as its robots.txt
asks. What servers say of their limits is honoured, and a second run goes on where the first one
stopped."""

EXAMPLES = """examples:
  throttle fetch urls.txt --out pages --contact you@example.org
  throttle fetch urls.txt --rate 5/s --rate 5000/hour --contact https://example.org/bot
  throttle fetch urls.txt --rate 2/s --limit api.example.org=10/s --contact you@example.org
  grep -o 'https://[^ ]*' notes.md | throttle fetch - --limits limits.toml --out saved
  throttle fetch part1.txt --out one --shared /tmp/pace &
  throttle fetch part2.txt --out two --shared /tmp/pace

exit codes:
  0    every URL was fetched
  1    some were not; the manifest says which, and why
  2    the command line was wrong, a part is not installed, or DIR cannot be written to
  130  interrupted (143: terminated); run the same command again to go on
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL|FILE|-",
        help="URLs, files with one URL a line, or - (stdin)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("fetched"), metavar="DIR", help="folder (default: fetched)"
    )
    declare_plan(parser)
    parser.add_argument(
        "--no-robots", action="store_true", help="do not ask for robots.txt, nor do what it says"
    )
    together = parser.add_mutually_exclusive_group()
    together.add_argument(
        "--shared",
        type=Path,
        metavar="DIR",
        help="share the limits with other runs on this machine, through a folder of small files",
    )
    together.add_argument(
        "--redis", metavar="URL", help="share the limits with runs anywhere, through a Redis"
    )
    parser.add_argument(
        "--tries", type=types.count, default=5, metavar="N", help="tries for each URL (default: 5)"
    )
    parser.add_argument(
        "--max-bytes",
        type=types.size,
        default=types.size("1G"),
        metavar="SIZE",
        help="give up on larger bodies: 10M, 500k (default: 1G)",
    )
    parser.add_argument(
        "--timeout",
        type=types.seconds,
        default=60.0,
        metavar="SECONDS",
        help="the longest that a server may be silent (default: 60)",
    )
    parser.add_argument(
        "--max-time",
        type=types.seconds,
        default=3600.0,
        metavar="SECONDS",
        help="the longest that one try may take, waiting not counted (default: 3600)",
    )
    parser.add_argument(
        "--max-wait",
        type=types.seconds,
        default=300.0,
        metavar="SECONDS",
        help="the longest pause that a server may ask for; a URL that it asks more for has failed "
        "(default: 300)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    sources.check(options.urls)
    chosen = plan(options)
    sharing = None
    if options.shared is not None:
        sharing = in_folder(options.shared)
    elif options.redis is not None:
        sharing = in_redis(options.redis)
    fetch = _Fetch(options, chosen, sharing)
    _allow_many_files()
    try:
        return asyncio.run(fetch.all_of(sources.pieces(options.urls)))
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


class _Fetch:
    """One run of the command."""

    def __init__(
        self,
        options: argparse.Namespace,
        plan: Plan,
        sharing: Sharing | None,
    ) -> None:
        self._options = options
        self._plan = plan
        self._sharing = sharing
        self._total = Tally()
        self._tallies: dict[str, Tally] = defaultdict(lambda: Tally(together=self._total))
        self._display = Display(plan, self._tallies, self._total)
        self._complete = False
        self._caught: signal.Signals | None = None

    async def all_of(self, source: Iterator[list[str]]) -> int:
        """Fetch everything; Ctrl-C stops at once, and nothing that was finished is lost."""
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._stop, number, task)
        todo = Todo()
        try:
            if self._sharing is not None:
                await self._sharing.check()
            with Store(self._options.out, lambda url: _is_new(todo, url)) as store:
                return await self._until_the_end(source, todo, store)
        except Exception as error:
            first = _first(error)
            if isinstance(first, self._fatal) or isinstance(first.__cause__, self._fatal):
                raise UsageError(f"the shared limits cannot be used: {first}") from first
            raise first from None
        finally:
            todo.close()
            if self._sharing is not None:
                await self._sharing.close()

    @property
    def _fatal(self) -> tuple[type[BaseException], ...]:
        return () if self._sharing is None else self._sharing.failures

    def _stop(self, number: signal.Signals, task: asyncio.Task[Any]) -> None:
        self._caught = number
        task.cancel()

    async def _until_the_end(self, source: Iterator[list[str]], todo: Todo, store: Store) -> int:
        try:
            await self._work(source, todo, store)
        except asyncio.CancelledError:
            number = self._caught or signal.SIGINT
            self._display.stop()
            self._tell(store)
            word = "interrupted" if number == signal.SIGINT else "terminated"
            self._display.say(f"{word}; run the same command again to go on")
            return 128 + number
        finally:
            self._display.stop()
        self._tell(store)
        return 1 if self._total.failed else 0

    def _tell(self, store: Store) -> None:
        self._display.summary(store.finished)
        for trouble in store.troubles:
            self._display.say(trouble)
        if self._total.failed:
            self._display.say(f"why each failed: {store.manifest}")

    async def _work(self, source: Iterator[list[str]], todo: Todo, store: Store) -> None:
        options = self._options
        retry = Retry(attempts=options.tries, max_wait=options.max_wait)
        session = new_session(
            self._plan,
            self._sharing,
            retry=retry,
            robots=not options.no_robots,
            silence=options.timeout,
            longest=options.max_time,
            on_wait=on_wait,
            on_retry=on_retry,
            on_signal=self._on_signal,
        )
        download = Download(session, store, retry, most=options.max_bytes, fatal=self._fatal)

        async def work(target: Target) -> None:
            tally = self._tallies[target.host]
            await download(target, tally)
            tally.delay = session.delay(target.key)

        progress = None
        async with session, asyncio.TaskGroup() as group:
            async with asyncio.TaskGroup() as workers:
                crew = Crew(todo, work, workers, width=self._plan.width, most=_WORKERS)
                if self._display.start():
                    progress = group.create_task(self._progress(session, crew))
                async for piece in sources.read_ahead(source):
                    for url in piece:
                        self._list(url, crew, todo, store)
                    await asyncio.sleep(0)
                self._complete = True
            if progress is not None:
                progress.cancel()

    def _list(self, url: str, crew: Crew, todo: Todo, store: Store) -> None:
        """Take a URL of the list."""
        try:
            wanted = target(url)
        except ValueError as error:
            if todo.is_new(url):
                self._tallies["(no host)"].count(listed=1, failed=1)
                store.write({"url": url, "status": None, "error": str(error), "tries": 0})
            return
        if self._plan.contact is None and not is_here(wanted.host):
            raise UsageError(
                f"{wanted.host} is not this machine: say who you are, with --contact MAIL-OR-URL, "
                "so that its owner can write to you before blocking you"
            )
        if crew.add(wanted):
            self._tallies[wanted.host].count(listed=1)

    def _on_signal(self, event: Signalled) -> None:
        if event.status == 429:
            self._tallies[host_of(URL(event.url))].count(refused=1)

    async def _progress(self, session: PoliteSession, crew: Crew) -> None:
        def known(host: str) -> tuple[int, float]:
            origins = [one for one in session.throttle.engine.routes if one.name == host]
            waiting = sum(origin.waiting for origin in origins)
            return waiting, min((origin.next_in() for origin in origins), default=0.0)

        while True:
            self._display.update(crew.lanes, known, complete=self._complete)
            await asyncio.sleep(_REFRESH)


def _is_new(todo: Todo, url: str) -> bool:
    try:
        return todo.is_new(target(url).key)
    except ValueError:
        return todo.is_new(url)


def _first(error: Exception) -> Exception:
    """Workers fail together; the first tells as much as all."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _allow_many_files() -> None:
    """As many sockets and files as the system lets this process have."""
    try:
        import resource
    except ImportError:
        return
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
