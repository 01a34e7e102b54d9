"""What both buckets are: an anchor, and what was spent since.

Tokens left in a token bucket and water in a leaky one are the same number seen from two sides:
`level = capacity - water`. It is not stored. Stored are `_anchor`, the last instant at which the
bucket was full of tokens (dry of water), and `_spent`, the permits spent since. Then

    level(t) = capacity - spent + rate * (t - anchor)          as long as that is below capacity
    a cost fits from  anchor + (spent + cost - capacity) / rate

so the instant at which a cost fits is computed once from two exact numbers, and a caller who comes
at that very float is let in. A level that is refilled and compared at each call rounds each time.

Invariant: `_spent - _carry` is the exact sum of all costs since `_anchor`, to within two roundings
however many they were (Kahan 1965), and `_anchor` moves only when the bucket is full.
"""

from __future__ import annotations

from math import inf, ulp
from typing import Any

from throttle.algorithms.bucket_parameters import BucketParameters
from throttle.checks import row
from throttle.clock import FAR, FINE, or_now, tolerance

__all__ = ["Bucket"]

#: Seconds: more than all roundings of a decision come to, where a bucket fills within three years.
_BLUR, _SLOWEST = 1e-7, 1e8


class Bucket(BucketParameters):
    """The arithmetic of TokenBucket and LeakyBucket."""

    __slots__ = ("_anchor", "_carry", "_doubt", "_spent")

    def _restart(self) -> None:
        self._gauge()
        self._anchor, self._spent, self._carry = -inf, 0.0, 0.0
        if self._initial is not None and self._initial < self._capacity:
            self._anchor, self._spent, self._last = 0.0, self._capacity - self._initial, inf

    def _gauge(self) -> None:
        slow = self._capacity >= self._rate * _SLOWEST
        self._doubt = inf if slow else self._rate * _BLUR

    # ---------------------------------------------------------------- the two that decide

    def _ready_at(self, now: float, cost: float) -> float:
        if self._rate == inf:
            return now
        over = self._spent - self._carry + cost - self._capacity
        if over <= 0:
            return now
        if cost > self._capacity or self._rate == 0:
            return inf
        return or_now(self._anchor + over / self._rate, now)

    def _take(self, at: float, cost: float) -> None:
        if self._rate == inf:
            return
        # A caller who comes whenever the bucket is just full moves the anchor each time, and by a
        # rounding too far: nothing where floats are fine, a drift where they are coarse.
        slip = 0.0 if -FINE < at < FINE else tolerance(at)
        if self._full_at() <= at - slip:
            self._anchor, self._spent, self._carry = at, cost, 0.0
        else:
            self._add(cost)

    def _add(self, cost: float) -> None:
        exact = cost - self._carry
        spent = self._spent + exact
        self._carry = (spent - self._spent) - exact
        self._spent = spent

    def _try(self, now: float, cost: float) -> bool:
        """The two fused, for speed, where no rounding could change the answer."""
        if 0.0 <= now < FAR:
            spent, doubt = self._spent, self._doubt
            earned = (now - self._anchor) * self._rate
            if spent - doubt > earned:  # not full
                exact = cost + 0.0  # floats among themselves are quicker than mixed with an int
                total = spent + exact
                over = total - self._capacity
                if over + doubt < earned:
                    if total - spent == exact:
                        self._spent = total
                        self._last = now
                        return True
                elif over - doubt > earned:
                    return False
            elif spent + doubt < earned < inf and cost <= self._capacity:
                self._anchor = self._last = now
                self._spent = cost
                self._carry = 0.0
                return True
        return super()._try(now, cost)

    # ---------------------------------------------------------------- the rest of the contract

    def _full_at(self) -> float:
        spent = self._spent - self._carry
        if spent <= 0 or self._rate == inf:
            return self._anchor
        return self._anchor + spent / self._rate if self._rate else inf

    def _available(self, now: float) -> float:
        slip = tolerance(now)
        if self._full_at() <= now + slip:
            return self._capacity
        level = self._capacity - self._spent + self._carry + self._rate * (now - self._anchor)
        return self._shown(now, level, ulp(self._capacity + self._spent))

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        if self._full_at() <= now:
            return
        self._add(-cost)
        if self._spent - self._carry <= self._rate * (now - self._anchor):  # full from here on
            self._anchor, self._spent, self._carry = now, 0.0, 0.0

    def _fresh_at(self) -> float:
        return self._full_at()

    def _shift(self, delta: float) -> None:
        self._anchor += delta

    def _state(self, now: float) -> tuple[float, ...]:
        """The age of the anchor (inf: full since for ever), and what was spent since."""
        return max(0.0, now - self._anchor), max(0.0, self._spent - self._carry)

    def _restore(self, now: float, numbers: tuple[float, ...]) -> None:
        age, spent = row(numbers, counts=1)
        self._anchor, self._spent, self._carry, self._last = now - age, spent, 0.0, now

    def _retune(self, now: float, **new: Any) -> None:
        level = self._available(now)
        self._rate = new.get("rate", self._rate)
        self._capacity = new.get("capacity", self._capacity)
        self._gauge()
        missing = max(0.0, self._capacity - level)
        if missing or self._anchor > -inf:  # else it is as new, and stays so
            self._anchor, self._spent, self._carry = now, missing, 0.0
