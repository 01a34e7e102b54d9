"""What time it is, how a thread lets it pass, and how exactly a float can tell.

Every limiter without a `clock=` of its own asks `now` here, at each call, and every thread that has
to wait sleeps on a `gate` made here, so that two assignments (`throttle.testing` makes them) move a
whole program to virtual time. Instants are seconds of a
clock that only goes forward; their zero means nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf, ulp
from typing import Protocol

__all__ = ["Gate", "gate", "now", "tolerance"]


class Gate(Protocol):
    """What a thread sleeps on: a semaphore that starts at 0."""

    def acquire(self, *, timeout: float) -> bool:
        """Sleep until released, or for `timeout` seconds of `now`; whether it was released."""

    def release(self) -> None:
        """Let one sleep end, or the next not begin."""


def _gate() -> Gate:
    return threading.Semaphore(0)


#: The hooks. Looked up per call, never copied.
now: Callable[[], float] = time.monotonic
gate: Callable[[], Gate] = _gate

_HALF_NANOSECOND = 0.5e-9
#: Below it two ulp are less than half a nanosecond.
_FINE = 2.0**20


def tolerance(instant: float) -> float:
    """How far apart two instants may lie and still count as one, in seconds.

    Half a nanosecond; where a float is coarser than that, two of its steps. Whoever grants within
    it still charges the exact instant, so that it never adds up.
    """
    if -_FINE < instant < _FINE:
        return _HALF_NANOSECOND
    return 2.0 * ulp(instant) if abs(instant) < inf else 0.0
