"""`throttle fetch`: download a list of URLs, each host at its own pace.

A reader takes URLs off the list as long as fewer than `--ahead` are pending; each is a task that
waits for its turn in the session and streams its body to disk. State: the store, and a tally for
each host. Invariant: what the manifest says was fetched is whole, whenever the program ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import aiohttp

from throttle.cli import options as types
from throttle.cli.options import UsageError
from throttle.cli.sources import urls
from throttle.cli.store import Store
from throttle.errors import ThrottleError
from throttle.http.events import Retried, Signalled, Waited
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession

__all__ = ["DESCRIPTION", "EXAMPLES", "declare", "run"]

_CHUNK = 65536

DESCRIPTION = """Download a list of URLs politely: each host at its own pace. What servers ask for
is honoured, and a second run goes on where the first one stopped."""

EXAMPLES = """examples:
  throttle fetch urls.txt --rate 5/s --out pages
  throttle fetch https://example.org/a https://example.org/b --rate 1/s
  grep -o 'https://[^ ]*' notes.md | throttle fetch - --rate 30/minute --out saved

exit codes:
  0    every URL was fetched
  1    some were not; the manifest says which, and why
  2    the command line was wrong
  130  interrupted; run the same command again to go on
"""


@dataclass(slots=True)
class Job:
    """One URL: what has happened to it so far."""

    url: str
    tries: int = 1
    waited: float = 0.0


@dataclass(slots=True)
class Tally:
    """What happened at one host."""

    fetched: int = 0
    failed: int = 0
    refused: int = 0
    waited: float = 0.0
    size: int = 0


_job: ContextVar[Job] = ContextVar("job")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL|FILE|-",
        help="URLs, files with one URL a line, or - (stdin)",
    )
    parser.add_argument(
        "--rate",
        type=types.rate,
        default=types.rate("1/s"),
        help="requests to each host: 5/s, 100/minute (default: 1/s)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("fetched"), metavar="DIR", help="folder (default: fetched)"
    )
    parser.add_argument(
        "--concurrency",
        type=types.count,
        metavar="N",
        help="requests in flight to each host (default: no limit but the rate)",
    )
    parser.add_argument(
        "--tries", type=types.count, default=5, metavar="N", help="tries for each URL (default: 5)"
    )
    parser.add_argument(
        "--max-bytes", type=types.size, metavar="SIZE", help="give up on larger bodies: 10M, 500k"
    )
    parser.add_argument(
        "--timeout",
        type=types.seconds,
        default=60.0,
        metavar="SECONDS",
        help="for each try, waiting not counted (default: 60)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    source = urls(options.urls)
    try:
        with Store(options.out) as store:
            return asyncio.run(_Fetch(store, options).all_of(source))
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


class _Fetch:
    """One run of the command."""

    def __init__(self, store: Store, options: argparse.Namespace) -> None:
        self._store = store
        self._options = options
        self._hosts: dict[str, Tally] = defaultdict(Tally)
        self._began = time.monotonic()

    async def all_of(self, source: Iterator[str]) -> int:
        """Fetch everything; Ctrl-C stops at once, and nothing that was finished is lost."""
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            await self._work(source)
        except asyncio.CancelledError:
            self._summary()
            print("interrupted; run the same command again to go on", file=sys.stderr)
            return 130
        self._summary()
        return 1 if any(tally.failed for tally in self._hosts.values()) else 0

    async def _work(self, source: Iterator[str]) -> None:
        ahead = asyncio.Semaphore(1000)
        session = ThrottledSession(
            rate=self._options.rate,
            concurrency=self._options.concurrency,
            settle=inf,  # a strict server refuses nothing, however late a request arrives
            retry=Retry(attempts=self._options.tries),
            timeout=aiohttp.ClientTimeout(total=self._options.timeout),
            on_wait=_on_wait,
            on_retry=_on_retry,
            on_signal=self._on_signal,
        )
        async with session, asyncio.TaskGroup() as group:
            for url in source:
                if self._store.is_new(url):
                    await ahead.acquire()
                    job = group.create_task(self._one(session, Job(url)))
                    job.add_done_callback(lambda _: ahead.release())

    async def _one(self, session: ThrottledSession, job: Job) -> None:
        _job.set(job)
        tally = self._hosts[_host(job.url)]
        line: dict[str, Any] = {"url": job.url, "status": None}
        try:
            async with session.get(job.url) as response:
                line["status"] = response.status
                if response.status >= 400:
                    raise ThrottleError(f"status {response.status}")
                line.update(await self._save(response, job.url))
        except (aiohttp.ClientError, ThrottleError, TimeoutError, OSError, ValueError) as error:
            tally.failed += 1
            line["error"] = f"{error}" or type(error).__name__
        else:
            tally.fetched += 1
            tally.size += line["bytes"]
        tally.waited += job.waited
        line["tries"], line["waited"] = job.tries, round(job.waited, 3)
        self._store.write(line)

    async def _save(self, response: aiohttp.ClientResponse, url: str) -> dict[str, Any]:
        """Stream the body to disk; it gets its name when it is whole."""
        most, size, digest = self._options.max_bytes, 0, hashlib.sha256()
        part = self._store.part(url)
        try:
            with part.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    size += len(chunk)
                    if most is not None and size > most:
                        raise ValueError(f"the body is larger than --max-bytes {most}")
                    digest.update(chunk)
                    file.write(chunk)
            name = self._store.keep(part, url)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return {"bytes": size, "sha256": digest.hexdigest(), "file": name}

    def _on_signal(self, event: Signalled) -> None:
        if event.status == 429:
            self._hosts[_host(event.url)].refused += 1

    def _summary(self) -> None:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        before = f", {self._store.finished} by earlier runs" if self._store.finished else ""
        fetched = sum(tally.fetched for tally in self._hosts.values())
        print(f"{fetched} fetched in {elapsed:.1f} s{before}", file=sys.stderr)
        for host, tally in sorted(self._hosts.items()):
            print(
                f"  {host}: {tally.fetched} fetched, {tally.failed} failed, "
                f"{tally.refused} × 429, {tally.size} bytes, waited {tally.waited:.1f} s, "
                f"{tally.fetched / elapsed:.2f}/s of {self._options.rate}",
                file=sys.stderr,
            )


def _on_wait(event: Waited) -> None:
    job = _job.get(None)
    if job is not None:
        job.waited += event.seconds


def _on_retry(event: Retried) -> None:
    job = _job.get(None)
    if job is not None and event.wait is not None:
        job.tries += 1
        job.waited += event.wait


def _host(url: str) -> str:
    return url.split("/", 3)[2].rpartition("@")[2].lower()
