"""What time it is, and how exactly a float can tell.

Every limiter without a `clock=` of its own asks `now` here, at each call, so that one assignment
(`throttle.testing` makes it) moves a whole program to virtual time. Instants are seconds of a
clock that only goes forward; their zero means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf, ulp

__all__ = ["now", "tolerance"]

#: The hook. Looked up per call, never copied.
now: Callable[[], float] = time.monotonic

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
