"""Pacer: one request, then a rest, its length drawn anew each time.

The rest is at least the delay that holds when it ends, not when it began: a delay that is learned
meanwhile counts at once. Jitter only adds, so no delay that a site or a user named is ever cut:
rest = delay · (1 + jitter · random).

State: the instant of the last request and how many there were. The random numbers are a function of
that count (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014),
so that looking ahead tells exactly what will be drawn, and looking changes nothing.
"""

from __future__ import annotations

import random
from math import inf
from typing import Any, final

from throttle.checks import non_negative
from throttle.clock import or_now
from throttle.http.pace import Pace
from throttle.limiter import Limiter

__all__ = ["Pacer"]

_MASK = 2**64 - 1


@final
class Pacer(Limiter):
    """`pace` – says the delay, in seconds; `jitter` – the largest share added to it at random.

    After `pace` has changed, call `update`. Costs are at most 1.
    """

    __slots__ = ("_at", "_count", "_delay", "_jitter", "_seed", "_share", "pace")

    def __init__(
        self, pace: Pace, *, jitter: float = 0.5, seed: int | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.pace = pace
        self._jitter = non_negative("jitter", jitter)
        self._seed = random.getrandbits(64) if seed is None else seed
        self._delay = pace.delay
        self._restart()

    def __repr__(self) -> str:
        return f"Pacer(delay={self._delay:g}, jitter={self._jitter:g})"

    @property
    def rate(self) -> float:
        """The most it lets through, in permits per second."""
        return 1 / self._delay if self._delay else inf

    def update(self) -> None:
        """Take over the delay of `pace`; who waits is timed anew."""
        if self.pace.delay != self._delay:
            self._change(delay=self.pace.delay)

    # ---------------------------------------------------------------- the contract of a limiter

    def _ready_at(self, now: float, cost: float) -> float:
        if cost > 1:
            return inf
        return or_now(self._rested_at(), now)

    def _take(self, at: float, cost: float) -> None:
        self._at = max(at, self._rested_at())
        self._share = cost
        self._count += 1

    def _rested_at(self) -> float:
        stretch = 1 + self._jitter * _unit(self._seed + self._count)
        return self._at + self._delay * stretch * self._share

    def _available(self, now: float) -> float:
        return 1.0 if self._ready_at(now, 1) <= now else 0.0

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        # It was let in when the rest before it was over, so without it everybody may go.
        self._share = max(0.0, self._share - cost)

    def _fresh_at(self) -> float:
        return max(self._rested_at(), self.pace.until)

    def _span(self) -> float:
        return self._delay * (1 + self._jitter)

    def _shift(self, delta: float) -> None:
        self._at += delta

    def _restart(self) -> None:
        self._at, self._share, self._count = -inf, 0.0, 0

    def _ceiling(self) -> float:
        return 1.0

    def _retune(self, now: float, **parameters: Any) -> None:
        self._delay = parameters["delay"]


def _unit(number: int) -> float:
    """A number in [0, 1) made of another."""
    mixed = number * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return (mixed ^ mixed >> 31) / 2**64
