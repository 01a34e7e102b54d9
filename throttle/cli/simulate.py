"""`throttle simulate`: the same arrivals against any limiters, side by side.

Each limiter is run twice on virtual time: once by callers who take no for an answer (`allow`), once
by callers who wait in line (`acquire`). What is shown of the first is how many were granted and the
most in any window; of the second, how long they waited.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from throttle.cli import options as types
from throttle.cli.arrivals import PATTERNS, from_log
from throttle.cli.options import UsageError, missing
from throttle.cli.specs import factory
from throttle.clock import tolerance
from throttle.errors import CostTooLarge
from throttle.limiter import Limiter
from throttle.testing import virtual_time

__all__ = ["DESCRIPTION", "EXAMPLES", "Outcome", "declare", "run", "simulate"]

DEFAULTS = (
    "token-bucket:5/s,burst=5",
    "leaky-bucket:5/s,burst=5",
    "sliding-log:5/s",
    "sliding-counter:5/s",
    "fixed-window:5/s",
)

DESCRIPTION = """Run a pattern of arrivals, or the times in an access log, against limiters side by
side, on virtual time."""

EXAMPLES = """examples:
  throttle simulate burst
  throttle simulate steady --rate 4
  throttle simulate poisson --rate 20 --count 200 token-bucket:10/s,burst=10 sliding-log:10/s
  throttle simulate access.log sliding-log:100/minute 'sliding-log:5/s&sliding-log:100/minute'
  throttle simulate bursts --plot bursts.svg
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one limiter did with the arrivals. All instants in seconds from the first arrival."""

    name: str
    arrivals: tuple[float, ...]
    granted: tuple[float, ...]
    """Those that `allow` let in."""
    left: tuple[float, ...]
    """When each caller of `acquire` was let in, in order of arrival."""

    @property
    def waits(self) -> list[float]:
        """Seconds that each caller of `acquire` waited."""
        return [out - came for came, out in zip(self.arrivals, self.left, strict=True)]

    def most_in(self, window: float) -> int:
        """The most that `allow` let in within any window of that many seconds."""
        return max(
            (
                number + 1 - bisect_right(self.granted, instant - window + tolerance(instant))
                for number, instant in enumerate(self.granted)
            ),
            default=0,
        )


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "arrivals", metavar="PATTERN|LOG", help=f"{', '.join(PATTERNS)}, a log file, or - (stdin)"
    )
    parser.add_argument(
        "limiters",
        nargs="*",
        metavar="SPEC",
        help="NAME:RATE[,OPTION=VALUE…], a bare rate, or SPEC&SPEC (default: all at 5/s)",
    )
    parser.add_argument(
        "--count", type=types.count, metavar="N", help="arrivals of a pattern (burst 10, else 30)"
    )
    parser.add_argument(
        "--rate", type=types.rate, default=types.rate("10/s"), help="of a pattern (default: 10/s)"
    )
    parser.add_argument(
        "--window",
        type=types.seconds,
        default=1.0,
        metavar="SECONDS",
        help="the window that `most` is counted in (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of random arrivals (default: 1)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw what came in and went out: .png, .svg, .pdf"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    try:
        arrivals = _arrivals(options)
        makers = {spec: factory(spec) for spec in options.limiters or DEFAULTS}
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    outcomes = [simulate(name, make, arrivals) for name, make in makers.items()]
    _show(options, arrivals, outcomes)
    if options.plot is not None:
        try:
            from throttle.cli.picture import draw
        except ImportError:
            raise missing("matplotlib", "plot") from None
        try:
            draw(outcomes, options.plot, title=f"{len(arrivals)} arrivals: {options.arrivals}")
        except (OSError, ValueError) as error:
            raise UsageError(f"--plot {options.plot}: {error}") from error
    return 0


def _arrivals(options: argparse.Namespace) -> list[float]:
    if options.arrivals in PATTERNS:
        count = options.count or (10 if options.arrivals == "burst" else 30)
        return PATTERNS[options.arrivals](count, options.rate.per_second, options.seed)
    if options.arrivals == "-":
        return from_log(sys.stdin, "standard input")
    path = Path(options.arrivals)
    if not path.is_file():
        raise ValueError(f"{options.arrivals!r} is neither a file nor one of {', '.join(PATTERNS)}")
    with path.open(encoding="utf-8", errors="replace") as file:
        return from_log(file, options.arrivals)


def simulate(name: str, make: Callable[[], Limiter], arrivals: Sequence[float]) -> Outcome:
    """Run one limiter, made anew for each of the two kinds of callers."""
    asked = make()
    granted = tuple(instant for instant in arrivals if asked.allow(instant))
    return Outcome(name, tuple(arrivals), granted, tuple(_queue(make, arrivals)))


def _queue(make: Callable[[], Limiter], arrivals: Sequence[float]) -> list[float]:
    left = [float("inf")] * len(arrivals)

    async def caller(limiter: Limiter, number: int, came: float) -> None:
        with suppress(CostTooLarge):
            left[number] = came + await limiter.acquire()

    async def all_of() -> None:
        limiter = make()
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for number, came in enumerate(arrivals):
                if came > loop.time():
                    # One timer an instant: timers of the same instant fire in no certain order.
                    arrived = loop.create_future()
                    loop.call_at(came, arrived.set_result, None)
                    await arrived
                group.create_task(caller(limiter, number, came))

    with virtual_time() as time:
        time.run(all_of)
    return left


def _show(
    options: argparse.Namespace, arrivals: Sequence[float], outcomes: Sequence[Outcome]
) -> None:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        raise missing("rich", "cli") from None
    span = arrivals[-1] - arrivals[0]
    console = Console()
    console.print(f"{len(arrivals)} arrivals in {span:.6g} s ({options.arrivals})")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("limiter", overflow="fold")
    most = f"most/{options.window:g}s"
    for title in ("granted", "denied", most, "p50", "p99", "max"):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        waits = sorted(outcome.waits)
        table.add_row(
            outcome.name,
            str(len(outcome.granted)),
            str(len(arrivals) - len(outcome.granted)),
            str(outcome.most_in(options.window)),
            *(f"{_quantile(waits, share):.2f}" for share in (0.5, 0.99, 1.0)),
        )
    console.print(table)
    console.print("granted, denied, most: callers of allow(); waits (s): callers of acquire()")


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))]
