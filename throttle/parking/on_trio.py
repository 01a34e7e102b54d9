"""Parking under trio.

Trio has no timers apart from its tasks, so the head of a line sleeps with a deadline of its own and
then lets in whoever's turn has come, itself first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from math import inf
from typing import Any

import trio

from throttle.parking import LONGEST_SLEEP, Ticket

__all__ = ["TrioPlace", "TrioWaiter", "place"]

_clock = trio.current_time


class TrioWaiter(Ticket):
    """A task that stands in line."""

    __slots__ = (
        *Ticket.FIELDS,
        "error", "grant", "limit", "nap", "over", "parked", "scope", "task", "timed", "wakes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.grant: tuple[float, ...] | None = None
        self.error: BaseException | None = None
        self.nap = inf  # trio's time at which it has to look after `timed`, by `wakes`
        self.timed: Any = None
        self.wakes: Callable[[Any], None] | None = None
        self.limit = inf  # trio's time at which its own timeout is over, and `over` is called
        self.over: Callable[[Any], None] | None = None
        self.scope: trio.CancelScope | None = None
        self.task: Any = None
        self.parked = False

    def wake(self, grant: tuple[float, ...]) -> None:
        self.grant = grant
        self._rouse()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._rouse()

    def cancel(self) -> None:
        self.limit = inf
        self.retime()

    def retime(self) -> None:
        """A nap that runs is cut short or made longer."""
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
        while self.grant is None and self.error is None:
            with trio.CancelScope(deadline=min(self.nap, self.limit)) as self.scope:
                self.parked = True
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            self.scope = None
            now = _clock()
            if self.nap <= now:
                self.nap = inf
                line, wakes = self.timed, self.wakes
                if line is not None and wakes is not None:
                    wakes(line)
            if self.limit <= now:
                self.limit = inf
                if self.over is not None:
                    self.over(self)
        if self.error is not None:
            raise self.error

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.parked = False
        if self.scope is not None and self.scope.deadline > _clock():
            self.withdraw()  # not the end of a nap
        return trio.lowlevel.Abort.SUCCEEDED


class TrioPlace:
    """One run of trio."""

    __slots__ = ("key",)

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.key = token

    def alive(self) -> bool:
        return not self.over()

    def over(self) -> bool:
        if self.here():
            return False
        try:
            self.key.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

    def here(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.key

    def waiter(self) -> TrioWaiter:
        return TrioWaiter()

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        self.stop(line)
        head = line.head()
        if delay < inf and head is not None:
            line.timer, head.timed, head.wakes = head, line, call
            head.nap = _clock() + min(delay, LONGEST_SLEEP)
            head.retime()

    def stop(self, line: Any) -> None:
        sleeper = line.timer
        if sleeper is not None:
            line.timer = None
            if sleeper.timed is line:
                sleeper.timed, sleeper.nap = None, inf
                sleeper.retime()

    def guard(self, waiter: TrioWaiter, delay: float, call: Callable[[Any], None]) -> TrioWaiter:
        waiter.limit, waiter.over = _clock() + min(delay, LONGEST_SLEEP), call
        waiter.retime()
        return waiter

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        with suppress(trio.RunFinishedError):  # over meanwhile: nobody is left to be woken
            self.key.run_sync_soon(call, argument)


def _nothing() -> None:
    pass


def place() -> TrioPlace:
    """The place of the running trio."""
    return TrioPlace(trio.lowlevel.current_trio_token())
