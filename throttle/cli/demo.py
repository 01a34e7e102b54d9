"""`throttle demo`: the same work by a bare session and by a throttled one, side by side.

Starts a server on this machine that allows so many requests in any second, exactly, and asks it for
the same pages twice: with aiohttp alone, which tries again at once when it is refused, and with
`ThrottledSession`. Shows what each cost.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from math import inf
from typing import Any, NamedTuple

import aiohttp

from throttle.cli import options as types
from throttle.http.session import ThrottledSession
from throttle.testing import RateLimitedServer

__all__ = ["DESCRIPTION", "EXAMPLES", "Result", "declare", "run"]

DESCRIPTION = """Start a server on this machine that allows so many requests in any second, and ask
it for the same pages twice: by a bare session that tries again at once, and by a throttled one."""

EXAMPLES = """examples:
  throttle demo
  throttle demo --requests 500 --rate 100/s
"""


class Result(NamedTuple):
    """What one client did."""

    name: str
    done: int
    sent: int
    refused: int
    seconds: float


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--requests", type=types.count, default=150, metavar="N", help="how many (default: 150)"
    )
    parser.add_argument(
        "--rate", type=types.rate, default=types.rate("50/s"), help="the server's (default: 50/s)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    results = asyncio.run(_both(options))
    print(f"{options.requests} pages from a server that allows {options.rate}, in any window:\n")
    print(f"{'':10} {'done':>6} {'sent':>7} {'429s':>7} {'wasted':>7} {'time':>9}")
    for result in results:
        wasted = f"{result.refused / max(result.sent, 1):.0%}"
        print(
            f"{result.name:10} {result.done:>6} {result.sent:>7} {result.refused:>7} "
            f"{wasted:>7} {result.seconds:>7.2f} s"
        )
    return 0 if all(result.done == options.requests for result in results) else 1


async def _both(options: argparse.Namespace) -> list[Result]:
    results = []
    for name in ("bare", "throttled"):
        async with RateLimitedServer(options.rate) as server:
            if name == "bare":
                session: Any = aiohttp.ClientSession()
            else:
                session = ThrottledSession(rate=options.rate, settle=inf)
            async with session:
                began = time.monotonic()
                tasks = (_page(session, server.url_for(f"/{n}")) for n in range(options.requests))
                done = sum(await asyncio.gather(*tasks))
                seconds = time.monotonic() - began
            sent = server.admitted + server.refused
            results.append(Result(name, done, sent, server.refused, seconds))
    return results


async def _page(session: Any, url: str) -> bool:
    """One page; refused, it is asked for again a moment later, as programs do."""
    while True:
        async with session.get(url) as response:
            if response.status != 429:
                await response.read()
                return bool(response.status == 200)
        await asyncio.sleep(0.05)
