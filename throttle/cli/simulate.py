"""`throttle simulate`: the same arrivals against any limiters, side by side.

Each limiter is run twice, time handed in: once by callers who take no for an answer (`allow`), once
by callers who wait in line (`acquire`). What is shown of the first is how many were granted and the
most in any window; of the second, how long they waited.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from throttle.cli import options as types
from throttle.cli.arrivals import PATTERNS, from_log
from throttle.cli.options import UsageError, missing
from throttle.cli.specs import factory
from throttle.cli.terminal import clean, console, table
from throttle.clock import tolerance
from throttle.limiter import Limiter

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

exit codes:
  0    done
  2    the command line was wrong, a file cannot be used, or a part is not installed
  130  interrupted
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
    screen = console()
    if options.plot is not None:
        try:
            from throttle.cli.picture import Row, check, draw
        except ImportError:
            raise missing("matplotlib", "plot") from None
        try:
            check(options.plot)
        except ValueError as error:
            raise UsageError(f"--plot {options.plot}: {error}") from error
    outcomes = [simulate(name, make, arrivals) for name, make in makers.items()]
    _show(screen, options, arrivals, outcomes)
    if options.plot is not None:
        try:
            rows = [Row(one.name, one.arrivals, one.granted, one.left) for one in outcomes]
            draw(rows, options.plot, title=f"{len(arrivals)} arrivals: {options.arrivals}")
        except OSError as error:
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
    return Outcome(name, tuple(arrivals), granted, tuple(_queue(make(), arrivals)))


def _queue(limiter: Limiter, arrivals: Sequence[float]) -> Iterator[float]:
    """When each is let out of a line, first come, first served: what `acquire` does, as a plan."""
    last, cost = -inf, limiter._checked(1)
    for came in arrivals:
        ready = limiter._departs_at(limiter._settle(max(came, last)), cost)
        if ready < inf:
            limiter._spend(ready, cost)
            last = ready
        yield ready


def _show(
    screen: Any, options: argparse.Namespace, arrivals: Sequence[float], outcomes: Sequence[Outcome]
) -> None:
    span = arrivals[-1] - arrivals[0]
    screen.print(clean(f"{len(arrivals)} arrivals in {span:.6g} s ({options.arrivals})"))
    most = f"most/{options.window:g}s"
    rows = table("limiter", "granted", "denied", most, "p50", "p99", "max")
    for outcome in outcomes:
        waits = sorted(outcome.waits)
        rows.add_row(
            clean(outcome.name),
            str(len(outcome.granted)),
            str(len(arrivals) - len(outcome.granted)),
            str(outcome.most_in(options.window)),
            *(f"{_quantile(waits, share):.2f}" for share in (0.5, 0.99, 1.0)),
        )
    screen.print(rows)
    screen.print("granted, denied, most: callers of allow(); waits (s): callers of acquire()")


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))]
