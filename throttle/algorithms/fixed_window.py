"""Fixed window: so many calls, then nothing until the window is over.

For servers that count that way. A window opens at the first call after the last one was over, as a
counter with an expiry does. State: when the window opened and what was spent in it. What was
charged beyond the limit is a debt, and spills over into as many following windows as it takes.

Promise: at most `limit` in each window; an interval that straddles an edge may hold twice that.

>>> fixed = FixedWindow(limit=2, window=20)
>>> [fixed.allow(now=t) for t in (0.0, 18.0, 19.0)], fixed.delay(now=19.0)
([True, True, False], 1.0)
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import final

from throttle.algorithms.window import Window
from throttle.checks import row
from throttle.clock import tolerance

__all__ = ["FixedWindow"]


@final
class FixedWindow(Window):
    """At most `limit` permits in each window of `window` seconds, opened by its first call."""

    __slots__ = ("_opened", "_spent")

    def _restart(self) -> None:
        self._opened = -inf
        self._spent: float = 0

    def _rolled(self, now: float) -> tuple[float, float]:
        """When the window that `now` lies in opened, and what counts in it. (-inf, 0): none is open."""
        opened, spent = self._opened, self._spent
        if now < opened + self._window:
            return opened, spent
        if spent <= self._limit:
            return -inf, 0
        over = max(1, floor((now - opened) / self._window))
        if now < opened + over * self._window:
            over -= 1
        owed = spent - over * self._limit
        return (opened + over * self._window, owed) if owed > 0 else (-inf, 0)

    def _ready_at(self, now: float, cost: float) -> float:
        if cost > self._limit:
            return inf
        opened, spent = self._rolled(now)
        if spent + cost <= self._limit:
            return now
        ready = opened + (ceil((spent + cost) / self._limit) - 1) * self._window
        return now if ready <= now + tolerance(now) else ready

    def _take(self, at: float, cost: float) -> None:
        opened, spent = self._rolled(at)
        self._opened, self._spent = (opened if spent else at), spent + cost

    def _available(self, now: float) -> float:
        return self._limit - self._rolled(now + tolerance(now))[1]

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        opened, spent = self._rolled(now)
        if spent and (at is None or at >= opened):
            self._opened, self._spent = opened, max(0, spent - cost)

    def _fresh_at(self) -> float:
        if not self._spent:
            return -inf
        return self._opened + ceil(self._spent / self._limit) * self._window

    def _shift(self, delta: float) -> None:
        self._opened += delta

    def _state(self, now: float) -> tuple[float, ...]:
        """The age of the open window (inf: none is open), and what was spent in it."""
        opened, spent = self._rolled(now)
        return max(0.0, now - opened), spent

    def _restore(self, now: float, numbers: tuple[float, ...]) -> None:
        age, spent = row(numbers, counts=1)
        self._opened, self._spent, self._last = now - age, spent, now

    def _retune(
        self, now: float, *, limit: float | None = None, window: float | None = None
    ) -> None:
        self._opened, self._spent = self._rolled(now)
        if limit is not None:
            owed = max(
                0, self._spent - self._limit
            )  # a debt stays; what was granted never becomes one
            self._spent = min(self._spent - owed, limit) + owed
        super()._retune(now, limit=limit, window=window)
