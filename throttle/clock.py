"""What time it is, how a thread lets it pass, and how exactly a float can tell.

Every limiter without a `clock=` of its own asks `now` here, at each call, and every thread that has
to wait sleeps on a `gate` made here, so that two assignments (`throttle.testing` makes them) move a
whole program to virtual time. Instants are seconds of a clock that only goes forward; their zero
means nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf, ulp
from typing import Protocol

__all__ = ["EDGE", "FAR", "FINE", "Gate", "gate", "now", "or_now", "tolerance"]


class Gate(Protocol):
    """What a thread sleeps on: a semaphore that starts at 0."""

    def acquire(self, *, timeout: float | None) -> bool:
        """Sleep until released, or `timeout` seconds of `now` (None: for ever); was it released?"""

    def release(self) -> None:
        """Let one sleep end, or the next not begin."""


def _gate() -> Gate:
    return threading.Semaphore(0)


#: The hooks. Looked up per call, never copied.
now: Callable[[], float] = time.monotonic
gate: Callable[[], Gate] = _gate

_HALF_NANOSECOND = 0.5e-9
#: Instants below it are told apart by less than half a nanosecond: two ulp are less.
FINE = 2.0**20
#: Instants below it (two years of uptime) are told apart by less than a fiftieth of a microsecond.
FAR = 2.0**26
#: Seconds: two instants below FAR that lie further apart are told apart whatever was rounded.
EDGE = 1e-6


def tolerance(instant: float) -> float:
    """How far apart two instants may lie and still count as one, in seconds.

    Half a nanosecond; where a float is coarser than that, two of its steps. Whoever grants within
    it still charges the exact instant, so that it never adds up.
    """
    if -FINE < instant < FINE:
        return _HALF_NANOSECOND
    return 2.0 * ulp(instant) if abs(instant) < inf else 0.0


def or_now(instant: float, now: float) -> float:
    """`instant`, or `now` if that has come, or comes within the tolerance."""
    return now if instant <= now + tolerance(now) else instant
