"""The parameters of both buckets: `rate` and `capacity`, and changing them while running.

Invariant: the capacity is finite and above 0, unless the rate is inf, which never limits.
"""

from __future__ import annotations

from math import inf
from typing import Any, Self

from throttle.checks import non_negative
from throttle.limiter import Limiter
from throttle.rate import Rate, RateLike

__all__ = ["BucketParameters"]


class BucketParameters(Limiter):
    """The parameters of a bucket: `rate` in permits per second, `capacity` in permits."""

    __slots__ = ("_capacity", "_initial", "_rate", "_slack")

    def __init__(
        self,
        rate: RateLike,
        capacity: float | None = None,
        *,
        initial: float | None = None,
        slack: float = 0.005,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        parsed = Rate.parse(rate)
        self._rate = parsed.per_second
        self._capacity = self._checked_capacity(
            max(1, parsed.count) if capacity is None else capacity
        )
        self._initial = (
            None if initial is None else min(non_negative("initial", initial), self._capacity)
        )
        self._slack = non_negative("slack", slack)
        self._restart()

    def _checked_capacity(self, capacity: object) -> float:
        limitless = self._rate == inf
        result = non_negative("capacity", capacity, infinite=limitless)
        if result == 0 and not limitless:
            raise ValueError(f"capacity must be above 0 (nothing could ever fit), not {capacity!r}")
        return float(result)

    def _span(self) -> float:
        return self._capacity / self._rate if self._rate else inf

    def _ceiling(self) -> float:
        return inf if self._rate == inf else self._capacity

    def _parameters(self) -> dict[str, Any]:
        return {"rate": self._rate, "capacity": self._capacity}

    @property
    def rate(self) -> float:
        """Permits per second. Setting it (any spelling of a rate) keeps what was earned so far."""
        return self._rate

    @rate.setter
    def rate(self, rate: RateLike) -> None:
        parsed = Rate.parse(rate).per_second
        if parsed != inf and not 0 < self._capacity < inf:
            raise ValueError(
                f"rate must stay inf while capacity is {self._capacity!r}, not {rate!r}"
            )
        self._change(rate=parsed)

    @property
    def capacity(self) -> float:
        """The largest burst, in permits. Lowering it clips the level, raising it grants nothing."""
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: float) -> None:
        self._change(capacity=self._checked_capacity(capacity))

    @classmethod
    def from_rate(cls, rate: RateLike, **options: Any) -> Self:
        """The bucket for a rate in any spelling; the same as the constructor."""
        return cls(rate, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rate={self._rate:g}, capacity={self._capacity:g})"
