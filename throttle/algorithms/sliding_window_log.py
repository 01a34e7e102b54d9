"""Sliding window log: remember each call of the last `window` seconds, and count.

State: a ring of (instant, running sum), one entry a call, oldest first, where the running sum is
all that was ever granted up to and with that call. What lies in the window (now - window, now] is
then a difference of two sums, and the instant at which a cost fits is found by bisection: when the
first entry whose sum is at least `total + cost - limit` leaves the window.

Promise: never more than `limit` in any window, exactly. The price is memory, an entry a call, taken
as it fills. Invariant: instants and sums in the ring never decrease.

>>> log = SlidingWindowLog(limit=2, window=10)
>>> [log.allow(now=t) for t in (0.0, 4.0, 9.0)], log.delay(now=9.0)
([True, True, False], 1.0)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from operator import itemgetter
from typing import Any, final

from throttle.algorithms.ring_buffer import RingBuffer
from throttle.algorithms.window import Window
from throttle.checks import non_negative, whole
from throttle.clock import EDGE, FAR, or_now, tolerance

__all__ = ["SlidingWindowLog"]

_INSTANT, _SUM = itemgetter(0), itemgetter(1)
_FIRST = 8  # cells of a new ring: a limit of a million costs nothing until it is used


@final
class SlidingWindowLog(Window):
    """At most `limit` permits in any `window` seconds. Whole costs only.

    A call at t counts until t + window and not at that instant. Source: the lab; a debt made by
    `charge` lapses with its window.
    """

    __slots__ = ("_gone", "_log", "_total")

    def _checked_limit(self, limit: object) -> float:
        return whole("limit", limit, least=1)

    def _checked(self, cost: Any) -> int:
        return whole("cost", cost)

    def _restart(self) -> None:
        self._log: RingBuffer[tuple[float, float]] = RingBuffer(_FIRST)
        self._total: float = 0  # granted ever
        self._gone: float = 0  # the part of it that has left the ring

    def _ready_at(self, now: float, cost: float) -> float:
        if cost > self._limit:
            return inf
        must_leave = self._total + cost - self._limit
        if must_leave <= self._gone:
            return now
        last = bisect_left(self._log, must_leave, key=_SUM)
        return or_now(self._log[last][0] + self._window, now)

    def _take(self, at: float, cost: float) -> None:
        self._forget(at)
        log = self._log
        if log.is_full:
            # Twice as much, but no more than the limit needs as long as there is no debt.
            double, limit = 2 * log.capacity, int(self._limit)
            self._log = log = log.resized(limit if log.capacity < limit < double else double)
        # Later entries there are for a plan kept late, and for a permit moved by `settle`.
        in_order = not log or log.peek_newest()[0] <= at
        later = [] if in_order else log._cut(len(log) - bisect_right(log, at, key=_INSTANT))
        before = log.peek_newest()[1] if log else self._gone
        permits = int(cost)
        log.push((at, before + permits))
        self._total += permits  # at once: an interrupt comes only with a call
        log._extend([(instant, total + permits) for instant, total in later])

    def _forget(self, now: float) -> None:
        """Take out of the ring what has left the window."""
        log = self._log
        while log and (oldest := log.peek_oldest())[0] + self._window <= now:
            self._gone = oldest[1]  # first: who is interrupted now forgets the entry next time
            log.pop()
        if not log and log.capacity > _FIRST:
            self._log = RingBuffer(_FIRST)

    def _try(self, now: float, cost: float) -> bool:
        """The two fused where the oldest entry alone decides, and nothing is near its instant."""
        before, gone = self._total, self._gone
        if before > gone and self._last + self._window > now:
            log, total = self._log, before + cost
            over = total - self._limit
            instant, first = log.peek_oldest()
            left = instant + self._window - now
            if left <= 0.0:
                if over <= first:
                    log.rotate((now, total))
                    self._gone, self._total = first, total
                    self._last = now
                    return True
            elif over <= gone:
                if log.offer((now, total)):
                    self._total = total
                    self._last = now
                    return True
            elif left > EDGE and 0.0 <= now < FAR:
                return False
        return super()._try(now, cost)

    def _available(self, now: float) -> float:
        left = bisect_right(self._log, now + tolerance(now) - self._window, key=_INSTANT)
        gone = self._log[left - 1][1] if left else self._gone
        return self._limit - (self._total - gone)

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        """Takes out the newest permits spent at or before `at`, and counts the later ones down."""
        log = self._log
        later = [] if at is None else log._cut(len(log) - bisect_right(log, at, key=_INSTANT))
        left: float = int(cost)
        while left and log:
            instant, total = log.pop_newest()
            before = log.peek_newest()[1] if log else self._gone
            given = min(left, total - before)
            left -= given
            if total - given > before:
                log.push((instant, total - given))
        given = int(cost) - left
        self._total -= given
        log._extend([(instant, total - given) for instant, total in later])

    def _fresh_at(self) -> float:
        return self._log.peek_newest()[0] + self._window if self._log else -inf

    def _retune(self, now: float, **new: Any) -> None:
        self._forget(now)  # a longer window does not call back what has left the shorter one
        super()._retune(now, **new)

    def _shift(self, delta: float) -> None:
        moved: RingBuffer[tuple[float, float]] = RingBuffer(self._log.capacity)
        for instant, total in self._log.to_list():
            moved.push((instant + delta, total))
        self._log = moved

    def _state(self, now: float) -> tuple[float, ...]:
        """Age and cost of each entry still in the window, oldest first, in one row."""
        numbers: list[float] = []
        before = self._gone
        for instant, total in self._log.to_list():
            if instant + self._window > now:
                numbers += (max(0.0, now - instant), total - before)
            before = total
        return tuple(numbers)

    def _restore(self, now: float, numbers: tuple[float, ...]) -> None:
        ages = [non_negative("numbers", age) for age in numbers[::2]]
        costs = [whole("numbers", cost, least=1) for cost in numbers[1::2]]
        if len(ages) != len(costs) or ages != sorted(ages, reverse=True):
            raise ValueError("numbers must be pairs of an age and a cost, the oldest first")
        self._restart()
        self._last = now
        for age, cost in zip(ages, costs, strict=True):
            self._take(now - age, cost)

    def __getstate__(self) -> Any:
        own, slots = super().__getstate__()
        return own, {**slots, "_log": self._log.resized(self._log.capacity)}
