"""`throttle demo`: the same work by a bare session and by a throttled one, side by side.

Starts a server on this machine that allows so many requests in any second, exactly, and asks it for
the same pages twice: with aiohttp alone, which tries again at once when it is refused, and with
`ThrottledSession`. Shows what each cost, and draws what the server saw of each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from throttle.cli import options as types
from throttle.cli.options import UsageError, missing
from throttle.cli.terminal import clean, console, table
from throttle.http.session import ThrottledSession
from throttle.testing import RateLimitedServer

__all__ = ["DESCRIPTION", "EXAMPLES", "Result", "declare", "run"]

#: Seconds of one bar of the picture.
_INTERVAL = 0.1
#: Seconds after which the bare session tries again: what programs do that know no better.
_AGAIN = 0.05

DESCRIPTION = """Start a server on this machine that allows so many requests in any second, and ask
it for the same pages twice: by a bare session that tries again at once, and by a throttled one."""

EXAMPLES = """examples:
  throttle demo
  throttle demo --requests 500 --rate 100/s
  throttle demo --plot what-the-server-saw.svg

exit codes:
  0    both have got all their pages
  2    the command line was wrong, or a part is not installed
  130  interrupted
"""


class Result(NamedTuple):
    """What one client did; instants in seconds from its start."""

    name: str
    done: int
    seconds: float
    served: list[float]
    refused: list[float]


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--requests", type=types.count, default=150, metavar="N", help="how many (default: 150)"
    )
    parser.add_argument(
        "--rate", type=types.rate, default=types.rate("50/s"), help="the server's (default: 50/s)"
    )
    picture = parser.add_mutually_exclusive_group()
    picture.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="where to draw what the server saw: .png, .svg, .pdf (default: a temporary file)",
    )
    picture.add_argument("--no-plot", action="store_true", help="draw nothing")


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    draw = None if options.no_plot else _drawing(options)
    screen = console()
    screen.print(
        f"{options.requests} pages from a server that allows {options.rate}, in any window:"
    )
    results = asyncio.run(_both(options, screen))
    rows = table("", "done", "sent", "429s", "wasted", "time")
    for result in results:
        refused = len(result.refused)
        sent = len(result.served) + refused
        rows.add_row(
            result.name,
            str(result.done),
            str(sent),
            str(refused),
            f"{refused / max(sent, 1):.0%}",
            f"{result.seconds:.2f} s",
        )
    screen.print(rows)
    if draw is not None:
        path = options.plot or _temporary()
        try:
            draw(results, path)
        except OSError as error:
            raise UsageError(f"--plot {path}: {error}") from error
        screen.print(clean(f"what the server saw of each: {path}"), soft_wrap=True)
    elif not options.no_plot:
        hint = "pip install 'throttle-asyncio[plot]' for a picture of what the server saw"
        screen.print(clean(hint), soft_wrap=True)
    return 0 if all(result.done == options.requests for result in results) else 1


# -------------------------------------------------------------------- the two clients


async def _both(options: argparse.Namespace, screen: Any) -> list[Result]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn())
    # In a pipe there is nobody to watch.
    bars = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    with bars:
        return [await _client(name, options, bars) for name in ("bare", "throttled")]


async def _client(name: str, options: argparse.Namespace, bars: Any) -> Result:
    async with RateLimitedServer(options.rate) as server:
        if name == "bare":
            session: Any = aiohttp.ClientSession()
        else:
            session = ThrottledSession(rate=options.rate, settle=inf)
        bar = bars.add_task(name, total=options.requests)
        async with session:
            began = time.monotonic()
            tasks = (
                _page(session, server.url_for(f"/{number}"), lambda: bars.advance(bar))
                for number in range(options.requests)
            )
            done = sum(await asyncio.gather(*tasks))
            seconds = time.monotonic() - began
        served, refused = [
            [one.instant - began for one in server.requests if one.admitted == admitted]
            for admitted in (True, False)
        ]
        return Result(name, done, seconds, served, refused)


async def _page(session: Any, url: str, got: Callable[[], None]) -> bool:
    """One page; refused, it is asked for again a moment later, as programs do."""
    while True:
        async with session.get(url) as response:
            if response.status != 429:
                await response.read()
                got()
                return bool(response.status == 200)
        await asyncio.sleep(_AGAIN)


# -------------------------------------------------------------------- the picture


def _drawing(options: argparse.Namespace) -> Callable[[list[Result], Path], None] | None:
    """What draws; None if it is not installed, which is an error only if it was asked for."""
    try:
        from throttle.cli.picture import Seen, check, draw_requests
    except ImportError:
        if options.plot is not None:
            raise missing("matplotlib", "plot") from None
        return None
    if options.plot is not None:
        try:
            check(options.plot)
        except ValueError as error:
            raise UsageError(f"--plot {options.plot}: {error}") from error

    def draw(results: list[Result], path: Path) -> None:
        draw_requests(
            [Seen(_caption(one), one.served, one.refused) for one in results],
            path,
            width=_INTERVAL,
            title=f"{options.requests} pages from a server that allows {options.rate}: "
            "what it saw of each client",
        )

    return draw


def _caption(result: Result) -> str:
    return f"{result.name}: {len(result.refused)} × 429"


def _temporary() -> Path:
    with tempfile.NamedTemporaryFile(
        prefix="throttle-demo-", suffix=".png", delete=False
    ) as picture:
        return Path(picture.name)
