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
from typing import Any, final

from throttle.algorithms.window import Window
from throttle.checks import row
from throttle.clock import EDGE, FAR, or_now, tolerance

__all__ = ["FixedWindow"]


@final
class FixedWindow(Window):
    """At most `limit` permits in each window of `window` seconds, opened by its first call."""

    __slots__ = ("_opened", "_spent")

    def _restart(self) -> None:
        self._opened = -inf
        self._spent: float = 0

    def _rolled(self, now: float) -> tuple[float, float]:
        """When the window of `now` opened, and what counts in it; (-inf, 0): none is open."""
        opened, spent = self._opened, self._spent
        near = now + tolerance(now)  # who is let in at an edge belongs to the window behind it
        if near < opened + self._window:
            return opened, spent
        if self._over(spent) <= 0:
            return -inf, 0
        passed = (near - opened) / self._window
        if passed > 1 + spent / self._limit:  # also where a float cannot tell how many they are
            return -inf, 0
        over = max(1, floor(passed))
        if near < opened + over * self._window:
            over -= 1
        owed = spent - over * self._limit
        return (opened + over * self._window, owed) if owed > 0 else (-inf, 0)

    def _ready_at(self, now: float, cost: float) -> float:
        if cost > self._limit:
            return inf
        opened, spent = self._rolled(now)
        over = self._over(spent + cost)
        if over <= 0:
            return now
        return or_now(opened + ceil(over / self._limit) * self._window, now)

    def _take(self, at: float, cost: float) -> None:
        opened, spent = self._rolled(at)
        self._opened, self._spent = (opened if spent else at), spent + cost

    def _try(self, now: float, cost: float) -> bool:
        """The two fused for a window that is open and far from its edge."""
        spent = self._spent
        if spent and 0.0 <= now < FAR and now < self._opened + self._window - EDGE:
            total = spent + cost
            if total <= self._limit:
                self._spent = total
                self._last = now
                return True
            if self._over(total) > 0:
                return False
        return super()._try(now, cost)

    def _available(self, now: float) -> float:
        return self._limit - self._rolled(now)[1]

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        opened, spent = self._rolled(now)
        if spent and (at is None or at >= opened):
            self._opened, self._spent = opened, max(0, spent - cost)

    def _fresh_at(self) -> float:
        if not self._spent:
            return -inf
        return self._opened + (1 + ceil(self._over(self._spent) / self._limit)) * self._window

    def _shift(self, delta: float) -> None:
        self._opened += delta

    def _state(self, now: float) -> tuple[float, ...]:
        """The age of the open window (inf: none is open), and what was spent in it."""
        opened, spent = self._rolled(now)
        return max(0.0, now - opened), spent

    def _restore(self, now: float, numbers: tuple[float, ...]) -> None:
        age, spent = row(numbers, counts=1)
        self._opened, self._spent, self._last = now - age, spent, now

    def _retune(self, now: float, **new: Any) -> None:
        self._opened, self._spent = self._rolled(now)
        # A debt stays one, and what was granted never becomes one.
        owed = max(0, self._over(self._spent))
        super()._retune(now, **new)
        self._spent = min(self._spent - owed, self._limit) + owed
