"""How many calls may be in flight at once.

A rate says how often a call may start, a concurrency how many may run at a time. Slots are lent,
not spent, so nobody can tell when the next one comes back; apart from that it is the same line as
for a rate: first come, first served, cancellation leaves no trace. So a private limiter, `_Slots`,
holds the count and stands in the line, and this module adds who holds what.

State: how many slots are taken, and by whom. Invariant: a slot is taken exactly as long as its
holder is between `acquire` and `release`; `taken` is more than `n` only after `n` was lowered.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from math import inf
from typing import Any, final

from throttle import checks, waiting
from throttle.entering import Entering
from throttle.limiter import Limiter, Stats
from throttle.lines import generation
from throttle.lock import LOCK

__all__ = ["Concurrency", "holder"]


def holder() -> object:
    """Who is running: a task, or else a thread. What `Concurrency.release` means by `of`."""
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return trio.lowlevel.current_task()
    if asyncio is not None:
        loop = asyncio._get_running_loop()
        task: object = None if loop is None else asyncio.current_task(loop)
        if task is not None:  # None in a callback
            return task
    return threading.current_thread()


@final
class _Slots(Limiter):
    """`n` permits that come back when they are given back."""

    __slots__ = ("n", "taken")

    _foreseen = False

    def __init__(self, n: int, **common: Any) -> None:
        super().__init__(**common)
        self.n = n
        self.taken: float = 0

    def _ready_at(self, now: float, cost: float) -> float:
        return now if self.taken + cost <= self.n else inf

    def _take(self, at: float, cost: float) -> None:
        self.taken += cost

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        self.taken -= cost

    def _retune(self, now: float, **parameters: int) -> None:
        self.n = parameters["n"]


@final
class Concurrency(Entering):
    """At most `n` calls in flight; the others wait in line.

    >>> two = Concurrency(2)
    >>> with two:
    ...     two.taken, two.available
    (1, 1)

    asyncio, trio and threads, all at the same time; bound to no event loop. `max_waiting` bounds
    the line (QueueFull). A task (or thread) that holds every slot and asks for one more would wait
    for itself: that is a RuntimeError.
    """

    __slots__ = ("_born", "_holders", "_slots")

    def __init__(self, n: int, *, max_waiting: int | None = None) -> None:
        self._slots = _Slots(checks.whole("n", n, least=1), max_waiting=max_waiting)
        self._holders: dict[object, int] = {}
        self._born = generation()

    @property
    def n(self) -> int:
        """How many may be in flight. Raising it lets waiters in; lowering it throws nobody out."""
        return self._slots.n

    @n.setter
    def n(self, n: int) -> None:
        self._slots._change(n=checks.whole("n", n, least=1))

    @property
    def taken(self) -> int:
        """Slots in use now. More than `n` for a while after `n` was lowered."""
        with LOCK:
            self._forget_the_others()
            return int(self._slots.taken)

    @property
    def available(self) -> int:
        """Slots that could be taken now: 0 while anybody stands in line."""
        with LOCK:
            self._forget_the_others()
            return int(self._slots.available())

    def stats(self) -> Stats:
        """A snapshot of what was granted, denied and waited (seconds)."""
        return self._slots.stats()

    def allow(self) -> bool:
        """Take a slot if one is free and nobody waits; never waits. `release` it afterwards."""
        if self._took(holder(), 0):
            return True
        with LOCK:
            self._slots._denied += 1
        return False

    async def acquire(self, *, timeout: float | None = None) -> float:
        """Wait in line for a slot; answers the seconds waited. asyncio and trio.

        `timeout` is in seconds: None waits for ever, 0 tries. Nobody knows beforehand when a slot
        comes back, so WaitTimeout is raised when the time is over (its `delay` is inf). A failed
        or cancelled acquire leaves no trace. RuntimeError if the caller holds every slot and does
        not just try.
        """
        owner = holder()
        if self._took(owner, timeout):
            return 0.0
        waited = await self._slots.acquire(timeout=timeout)
        self._note(owner)
        return waited

    def acquire_sync(self, *, timeout: float | None = None) -> float:
        """`acquire` for a thread. Having to wait inside a running event loop is a RuntimeError."""
        owner = holder()
        if self._took(owner, timeout):
            return 0.0
        waited = self._slots.acquire_sync(timeout=timeout)
        self._note(owner)
        return waited

    def release(self, of: object = None) -> None:
        """Give a slot back; the next in line gets it. RuntimeError if none is taken.

        `of` – whose slot, as told by `holder()` in the task or thread that took it. Left out, it
        is the caller's own, or, if the caller has none, that of whoever took one first.
        """
        if not LOCK._is_owned():  # type: ignore[attr-defined]
            with LOCK:
                self._give_back(of)
        else:  # the garbage collector closed a holder in the middle of a decision
            side = self._slots._side
            queues = () if side is None else tuple(side.lines.values())
            waiting.postpone(partial(self._give_back, of), queues)

    def _give_back(self, of: object) -> None:
        """`release`, under LOCK."""
        if not self._holders:
            raise RuntimeError("release() of a slot that nobody holds")
        owner = holder() if of is None else of
        if owner not in self._holders:
            if of is not None:
                raise RuntimeError(f"release() of a slot that {of!r} does not hold")
            owner = next(iter(self._holders))
        if self._holders[owner] == 1:
            del self._holders[owner]
        else:
            self._holders[owner] -= 1
        slots = self._slots
        slots.taken -= 1
        if slots._side is not None:
            waiting.changed(slots, eased=True)

    def _took(self, owner: object, timeout: float | None) -> bool:
        """Take a slot if one is free and nobody waits.

        If not, RuntimeError for who would wait for himself.
        """
        if timeout is not None:
            checks.non_negative("timeout", timeout, infinite=True)
        slots = self._slots
        with LOCK:
            self._forget_the_others()
            waiting.bury()
            # The same as `_slots.allow`, in one step; slots are never paused: any instant will do.
            if slots.taken < slots.n and not slots._shut(0.0):
                slots.taken += 1
                slots._granted += 1
                self._note(owner)
                return True
            if timeout != 0 and self._holders.get(owner, 0) >= slots.n:
                raise RuntimeError(
                    f"the caller holds all {slots.n} slots itself, and would wait for itself"
                )
            return False

    def _note(self, owner: object) -> None:
        with LOCK:
            self._holders[owner] = self._holders.get(owner, 0) + 1

    def _forget_the_others(self) -> None:
        """In a forked child only the thread that forked goes on; it has become the main thread."""
        if self._born == generation():
            return
        here = threading.main_thread()
        self._holders = {who: count for who, count in self._holders.items() if who is here}
        self._slots.taken = sum(self._holders.values())
        self._born = generation()

    def _leave(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Concurrency({self._slots.n}, taken={self.taken})"
