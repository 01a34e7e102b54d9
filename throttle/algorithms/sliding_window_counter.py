"""Sliding window counter: two numbers in place of a log.

Time is cut into windows, counted from the first use. The load of the sliding window is estimated as
if the calls of the previous window had been spread over it evenly:

    estimate(t) = previous * (share of the previous window still in sight at t) + current

A cost fits while estimate + cost <= limit. Solved for t, that gives the instant at which it fits:
within this window while the current count leaves room, otherwise in the next one, where the current
count has become the previous one.

Promise: the estimate never exceeds `limit`. An exact window may hold up to twice that: all of the
limit at the very end of one window, and again as the estimate of them fades. Invariant: the counts
are those of the windows number `_index - 1` and `_index`, and no later window holds any.

>>> counter = SlidingWindowCounter(limit=1, window=10)
>>> counter.allow(now=0.0), counter.ready_at(now=1.0)
(True, 20.0)
"""

from __future__ import annotations

from math import inf, ulp
from typing import Any, final

from throttle.algorithms.window import Window
from throttle.checks import row
from throttle.clock import EDGE, FAR, or_now

__all__ = ["SlidingWindowCounter"]


@final
class SlidingWindowCounter(Window):
    """About `limit` permits in any `window` seconds, in O(1) memory. Fractional costs work.

    Source: the lab; the formula is Cloudflare's (2017), without rounding.
    """

    __slots__ = ("_current", "_index", "_origin", "_previous")

    def _restart(self) -> None:
        self._origin, self._index = -inf, 0
        self._previous: float = 0
        self._current: float = 0

    def _rolled(self, now: float) -> tuple[int, float, float]:
        """The number of the window of `now`, and the counts of the one before and of itself."""
        index, previous, current = self._index, self._previous, self._current
        if now < self._origin + (index + 1) * self._window or not (previous or current):
            return index, previous, current
        if now < self._origin + (index + 2) * self._window:
            return index + 1, current, 0
        return index + 2, 0, 0  # or any later one: the next call starts windows of its own

    def _ready_at(self, now: float, cost: float) -> float:
        if cost > self._limit:
            return inf
        index, previous, current = self._rolled(now)
        over = self._over(current + cost)
        if over > 0:  # not in this window: it must fade as the previous one
            ready = self._origin + (index + 2) * self._window
            ready -= (self._limit - cost) * self._window / current
        elif previous > -over:
            ready = self._origin + (index + 1) * self._window + over * self._window / previous
        else:
            return now
        return or_now(ready, now)

    def _take(self, at: float, cost: float) -> None:
        index, previous, current = self._rolled(at)
        if not (previous or current):
            self._origin, index = at, 0
        self._index, self._previous, self._current = index, previous, current + cost

    def _try(self, now: float, cost: float) -> bool:
        """The two fused for a load that is far from the limit, and an instant far from an edge."""
        current, previous = self._current, self._previous
        left = self._origin + (self._index + 1) * self._window - now
        if current and left > EDGE and 0.0 <= now < FAR:
            total = current + cost
            room = self._limit - total
            load = previous * left / self._window
            doubt = self._limit * 1e-9
            if room >= previous or room > load + doubt:
                self._current = total
                self._last = now
                return True
            if room < load - doubt - previous * EDGE / self._window:
                return False
        return super()._try(now, cost)

    def _available(self, now: float) -> float:
        index, previous, current = self._rolled(now)
        if not previous:
            return self._limit - current
        left = self._origin + (index + 1) * self._window - now
        level = self._limit - current - previous * min(1.0, left / self._window)
        return self._shown(now, level, ulp(self._limit))

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        self._index, self._previous, self._current = self._rolled(now)
        if at is None or at >= self._origin + self._index * self._window:
            given = min(cost, self._current)
            self._current -= given
            cost -= given
        self._previous = max(0, self._previous - cost)

    def _fresh_at(self) -> float:
        if not (self._previous or self._current):
            return -inf
        return self._origin + (self._index + (2 if self._current else 1)) * self._window

    def _shift(self, delta: float) -> None:
        self._origin += delta

    def _state(self, now: float) -> tuple[float, ...]:
        """The age of the current window (inf: nothing counts), the previous count and its own."""
        index, previous, current = self._rolled(now)
        if not (previous or current):
            return inf, 0, 0
        return max(0.0, now - (self._origin + index * self._window)), previous, current

    def _restore(self, now: float, numbers: tuple[float, ...]) -> None:
        age, self._previous, self._current = row(numbers, counts=2)
        self._origin, self._index, self._last = now - age, 0, now

    def _retune(self, now: float, **new: Any) -> None:
        if self._previous or self._current:
            # The counts stay, and so does the share of the window that has passed.
            index, self._previous, self._current = self._rolled(now)
            passed = (now - self._origin) / self._window - index
            self._origin = now - passed * new.get("window", self._window)
            self._index = 0
        super()._retune(now, **new)
