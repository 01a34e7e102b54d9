"""A retry budget: retries as a share of calls, so that a failing server is not buried by retries.

The scheme is that of Finagle and Tower: a call deposits `share` of a retry, a retry withdraws one,
and what was deposited or withdrawn is forgotten after `ttl` seconds. A reserve of `floor` retries a
second is free, so that a program with few calls may retry at all. State: ten slots of counts;
counts are whole, because ten deposits of 0.1 must pay for one retry. Pure; time is an argument.
"""

from __future__ import annotations

from collections import deque

from throttle.checks import non_negative, positive

__all__ = ["Budget"]

_SLOTS = 10


class Budget:
    """`share` – retries earned by one call; `floor` – free retries a second; `ttl` – in seconds."""

    __slots__ = ("_reserve", "_share", "_slots", "_width")

    def __init__(self, share: float = 0.2, floor: float = 10.0, ttl: float = 10.0) -> None:
        self._share = non_negative("share", share)
        self._reserve = non_negative("floor", floor) * positive("ttl", ttl)
        self._width = ttl / _SLOTS
        self._slots: deque[list[int]] = deque()  # [slot number, deposits, withdrawals]

    def deposit(self, now: float) -> None:
        """A call was made. `now` – a monotonic instant, in seconds."""
        self._slot(now)[1] += 1

    def withdraw(self, now: float) -> bool:
        """Whether a retry may be made now; if so, it is paid for."""
        slot = self._slot(now)
        earned = self._share * sum(deposits for _, deposits, _ in self._slots)
        spent = sum(withdrawals for _, _, withdrawals in self._slots)
        if self._reserve + earned - spent < 1.0 - 1e-9:
            return False
        slot[2] += 1
        return True

    def _slot(self, now: float) -> list[int]:
        number = int(now // self._width)
        slots = self._slots
        while slots and slots[0][0] <= number - _SLOTS:
            slots.popleft()
        # A clock that went back stays in the newest slot.
        if not slots or slots[-1][0] < number:
            slots.append([number, 0, 0])
        return slots[-1]
