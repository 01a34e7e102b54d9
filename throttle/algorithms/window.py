"""What the three window limiters share: `limit` permits in `window` seconds, and changing both.

Fractional costs are sums of floats, so a sum that passes the limit by a rounding still counts as
the limit (`_over`). Whole costs are exact, and for them this changes nothing.
"""

from __future__ import annotations

from typing import Any, Self

from throttle.checks import non_negative, positive
from throttle.limiter import Limiter
from throttle.rate import Rate, RateLike

__all__ = ["Window"]

_ROUNDING = 2.0**-44


class Window(Limiter):
    """The parameters of a window limiter: `limit` in permits, `window` in seconds."""

    __slots__ = ("_limit", "_window")

    def __init__(self, limit: float, window: float = 1.0, **common: Any) -> None:
        super().__init__(**common)
        self._limit = self._checked_limit(limit)
        self._window = positive("window", window)
        self._restart()

    @classmethod
    def from_rate(cls, rate: RateLike, **options: Any) -> Self:
        """The window that a rate names: "100/minute" is 100 in 60 seconds.

        A count that is not whole becomes 1 in 1/rate seconds.
        """
        parsed = Rate.parse(rate)
        count = positive("rate", parsed.count)
        if count == int(count):
            return cls(int(count), parsed.per, **options)
        return cls(1, parsed.per / count, **options)

    def settle(self, cost: float, at: float, most: float) -> None:
        """Move `cost` permits spent at the instant `at` to now, but by no more than `most` seconds.

        For whoever learns only afterwards when a call was counted elsewhere: a server counts its
        arrival, which lies between the sending and the answer.
        """
        self._postpone(cost, at, non_negative("most", most, infinite=True))

    def _checked_limit(self, limit: object) -> float:
        return positive("limit", limit)

    def _over(self, total: float) -> float:
        """By how much a sum of costs passes the limit; at most 0 if it fits."""
        over = total - self._limit
        return over if over > self._limit * _ROUNDING else min(0.0, over)

    def _span(self) -> float:
        return self._window

    def _ceiling(self) -> float:
        return self._limit

    def _parameters(self) -> dict[str, Any]:
        return {"limit": self._limit, "window": self._window}

    def _retune(self, now: float, **new: Any) -> None:
        self._limit = new.get("limit", self._limit)
        self._window = new.get("window", self._window)

    @property
    def limit(self) -> float:
        """Permits in a window. What was granted so far still counts when it changes."""
        return self._limit

    @limit.setter
    def limit(self, limit: float) -> None:
        self._change(limit=self._checked_limit(limit))

    @property
    def window(self) -> float:
        """Seconds."""
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        self._change(window=positive("window", window))

    @property
    def rate(self) -> float:
        """Permits per second on average. Setting it (any spelling) sets limit and window."""
        return self._limit / self._window

    @rate.setter
    def rate(self, rate: RateLike) -> None:
        model = type(self).from_rate(rate)
        self._change(limit=model._limit, window=model._window)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(limit={self._limit:g}, window={self._window:g})"
