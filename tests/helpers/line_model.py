"""What the place that waits ought to do, written as slowly and plainly as possible.

One line, a list. At each instant: while the first in it may go, it goes. Nothing is remembered
between two questions; the only thing borrowed from the library are the pure methods of the
algorithm itself, which have laws and tests of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from throttle import Limiter

GRACE = 0.005  # a waiter is given up when its turn lies this much behind its timeout


@dataclass
class Caller:
    name: int
    cost: float
    arrived: float
    timeout: float | None

    @property
    def deadline(self) -> float:
        return inf if self.timeout is None else self.arrived + self.timeout


class LineModel:
    """A limiter and its line. `log` is what happened: (name, what, instant or seconds)."""

    def __init__(self, limiter: Limiter) -> None:
        self.state = limiter
        self.now = 0.0
        self.paused = -inf
        self.line: list[Caller] = []
        self.log: list[tuple[Any, ...]] = []

    # -------------------------------------------------- what happens by itself

    def _plan(self, caller: Caller, state: Limiter) -> float:
        start = max(min(caller.arrived, self.now), self.paused)
        return inf if start == inf else state._departs_at(start, caller.cost)

    def _grant_instant(self, caller: Caller, state: Limiter, now: float) -> float:
        return max(self._plan(caller, state), now)

    def run_until(self, instant: float) -> None:
        while self.line:
            head = self.line[0]
            when = self._grant_instant(head, self.state, self.now)
            if when > instant + 1e-9 or when == inf:
                break
            self.now = when
            at = max(self._plan(head, self.state), when - self.state._slack)
            self.state._spend(at, head.cost)
            self.line.pop(0)
            self.log.append((head.name, "granted", when))
        self.now = max(self.now, instant)

    def _forecast(self, newcomer: Caller | None = None) -> dict[int, float]:
        """When each in line will go, if nothing else happens."""
        state, now = self.state._clone(), self.now
        told = {}
        for caller in [*self.line, *([newcomer] if newcomer else [])]:
            when = self._grant_instant(caller, state, now)
            told[caller.name] = when
            if when < inf:
                state._spend(max(self._plan(caller, state), when - state._slack), caller.cost)
                now = when
        return told

    def _give_up(self) -> None:
        """Those who can no longer go in time; one who goes does not hold the others back."""
        for caller in list(self.line):
            when = self._forecast()[caller.name]
            if when > caller.deadline + GRACE:
                self.line.remove(caller)
                self.log.append((caller.name, "timeout", when - self.now))

    # -------------------------------------------------- what is done to it

    def arrive(self, name: int, cost: float, timeout: float | None) -> None:
        newcomer = Caller(name, cost, self.now, timeout)
        if cost > self.state._ceiling():
            self.log.append((name, "too large", None))
            return
        when = self._forecast(newcomer)[name]
        if timeout is not None and when > newcomer.deadline + 1e-9:
            self.log.append((name, "timeout", when - self.now))
            return
        self.line.append(newcomer)
        self.run_until(self.now)

    def cancel(self, name: int) -> None:
        for caller in self.line:
            if caller.name == name:
                self.line.remove(caller)
                self.log.append((name, "cancelled", None))
                break
        self.run_until(self.now)

    def charge(self, cost: float) -> None:
        self.state._spend(self.state._settle(self.now), cost)
        self._moved()

    def refund(self, cost: float) -> None:
        self.state._refund(self.state._settle(self.now), cost)
        self._moved()

    def pause(self, seconds: float) -> None:
        self.paused = max(self.paused, self.now + seconds)
        self._moved()

    def resume(self) -> None:
        self.paused = -inf
        self._moved()

    def retune(self, **parameters: Any) -> None:
        self.state._retune(self.state._settle(self.now), **parameters)
        for caller in list(self.line):
            if caller.cost > self.state._ceiling():
                self.line.remove(caller)
                self.log.append((caller.name, "too large", None))
        self._moved()

    def _moved(self) -> None:
        self.run_until(self.now)
        self._give_up()
        self.run_until(self.now)
