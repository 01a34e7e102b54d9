"""Parking under trio."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import trio

from throttle.parking.sleeper import Sleeper, SleeperPlace

__all__ = ["TrioPlace", "TrioWaiter", "place"]


class TrioWaiter(Sleeper):
    """A task that stands in line."""

    __slots__ = ("parked", "scope", "task")

    def __init__(self) -> None:
        super().__init__()
        self.parked = False
        self.scope: trio.CancelScope | None = None
        self.task: Any = None

    def rouse(self) -> None:
        if self.parked:
            self.parked = False
            trio.lowlevel.reschedule(self.task)

    def retime(self) -> None:
        if self.scope is not None:
            self.scope.deadline = self.next_chore()

    def __await__(self) -> Generator[Any, None, None]:
        return self._stand().__await__()

    async def _stand(self) -> None:
        self.task = trio.lowlevel.current_task()
        while self.grant is None and self.error is None:
            with trio.CancelScope(deadline=self.next_chore()) as self.scope:
                self.parked = True
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            self.scope = None
            self.do_chores(trio.current_time())
        if self.error is not None:
            raise self.error

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.parked = False
        if self.scope is not None and self.scope.deadline > trio.current_time():
            self.withdraw()  # cancelled: it was not woken for a chore
        return trio.lowlevel.Abort.SUCCEEDED


class TrioPlace(SleeperPlace):
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

    def now(self) -> float:
        return trio.current_time()

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        with suppress(trio.RunFinishedError):  # over meanwhile: nobody is left to be woken
            self.key.run_sync_soon(call, argument)


def _nothing() -> None:
    pass


def place() -> TrioPlace:
    """The place of the running trio."""
    return TrioPlace(trio.lowlevel.current_trio_token())
