"""Parking under trio.

Trio has no timers apart from its tasks, so the head of a line sleeps with a deadline of its own and
then lets in whoever's turn has come, itself first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf
from typing import Any

import trio

from throttle.parking import LONGEST_SLEEP
from throttle.waiting import Ticket, expire

__all__ = ["TrioPlace", "TrioWaiter", "place"]

_clock = trio.current_time


class TrioWaiter(Ticket):
    """A task that stands in line."""

    __slots__ = (*Ticket.FIELDS, "at", "error", "limit", "nap", "parked", "scope", "task", "timed")

    def __init__(self) -> None:
        self.at: tuple[float, ...] | None = None
        self.error: BaseException | None = None
        self.limit = inf  # trio's time at which its own timeout is over
        self.nap = inf  # trio's time at which it has to look after its line
        self.timed: Any = None  # the line it looks after
        self.scope: trio.CancelScope | None = None
        self.task: Any = None
        self.parked = False

    @property
    def gone(self) -> bool:
        """Granted or failed; who was cancelled leaves before anybody else can look."""
        return self.at is not None or self.error is not None or self.order < 0

    def wake(self, at: tuple[float, ...]) -> None:
        self.at = at
        self._rouse()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._rouse()

    def cancel(self) -> None:
        self.limit = inf

    def sleep_until(self, instant: float) -> None:
        """Wake at this instant of trio's time (a running nap is cut short or made longer)."""
        self.nap = instant
        if self.scope is not None:
            self.scope.deadline = min(self.nap, self.limit)

    def _rouse(self) -> None:
        if self.parked:
            self.parked = False
            trio.lowlevel.reschedule(self.task)

    def __await__(self) -> Generator[Any, None, None]:
        return self._stand().__await__()

    async def _stand(self) -> None:
        self.task = trio.lowlevel.current_task()
        while self.at is None and self.error is None:
            with trio.CancelScope(deadline=min(self.nap, self.limit)) as self.scope:
                self.parked = True
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            self.scope = None
            now = _clock()
            if self.timed is not None and self.nap <= now:
                self.nap = inf
                self.timed.due_now()
            if self.limit <= now:
                self.limit = inf
                expire(self)
        if self.error is not None:
            raise self.error

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.parked = False
        return trio.lowlevel.Abort.SUCCEEDED


class TrioPlace:
    """One run of trio."""

    __slots__ = ("key",)

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.key = token

    def alive(self) -> bool:
        return not self.over()

    def over(self) -> bool:
        try:
            self.key.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

    def here(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.key

    def waiter(self) -> TrioWaiter:
        return TrioWaiter()

    def time(self, line: Any, delay: float) -> None:
        self.stop(line)
        head = line.head()
        if delay < inf and head is not None:
            head.timed = line.timer = line
            line.timer = head
            head.timed = line
            head.sleep_until(_clock() + min(delay, LONGEST_SLEEP))

    def stop(self, line: Any) -> None:
        sleeper = line.timer
        if sleeper is not None:
            line.timer = None
            if sleeper.timed is line:
                sleeper.timed = None
                sleeper.sleep_until(inf)

    def guard(self, waiter: TrioWaiter, delay: float) -> TrioWaiter:
        waiter.limit = _clock() + delay
        return waiter

    def poke(self, call: Callable[[], None]) -> None:
        try:
            self.key.run_sync_soon(call)
        except trio.RunFinishedError:  # over meanwhile: nobody is left to be woken
            pass


def _nothing() -> None:
    pass


def place() -> TrioPlace:
    """The place of the running trio."""
    return TrioPlace(trio.lowlevel.current_trio_token())
