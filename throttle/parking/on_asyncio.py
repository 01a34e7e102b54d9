"""Parking in an asyncio event loop (any that speaks its interface, uvloop too).

The waiter is the future itself, with a few slots more, so that a place in line costs little beyond
what awaiting anything costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from throttle.parking import LONGEST_SLEEP
from throttle.waiting import Ticket, expire

__all__ = ["AsyncioPlace", "AsyncioWaiter", "place"]


class AsyncioWaiter(asyncio.Future[tuple[float, ...]], Ticket):
    """A future that stands in line."""

    __slots__ = Ticket.FIELDS

    @property
    def at(self) -> tuple[float, ...] | None:
        """The instants it was charged at, one for each limiter; None until it is granted."""
        return (
            self.result() if self.done() and not self.cancelled() and not self.exception() else None
        )

    def wake(self, at: tuple[float, ...]) -> None:
        self.set_result(at)

    def fail(self, error: BaseException) -> None:
        self.set_exception(error)
        self.exception()  # seen: a caller cancelled in this very turn would leave it unread

    @property
    def gone(self) -> bool:
        """Granted, failed, or cancelled (even if its task has not run yet to say so)."""
        return self.done()


class AsyncioPlace:
    """One event loop."""

    __slots__ = ("key",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.key = loop

    def alive(self) -> bool:
        return self.key.is_running()

    def over(self) -> bool:
        return self.key.is_closed()

    def here(self) -> bool:
        return asyncio._get_running_loop() is self.key

    def waiter(self) -> AsyncioWaiter:
        return AsyncioWaiter(loop=self.key)

    def time(self, line: Any, delay: float) -> None:
        self.stop(line)
        if delay <= LONGEST_SLEEP:
            line.timer = self.key.call_at(self.key.time() + delay, line.due_now)
        elif delay < float("inf"):
            line.timer = self.key.call_later(LONGEST_SLEEP, line.due_now)

    def stop(self, line: Any) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None

    def guard(self, waiter: AsyncioWaiter, delay: float) -> asyncio.TimerHandle:
        return self.key.call_later(min(delay, LONGEST_SLEEP), expire, waiter)

    def poke(self, call: Callable[[], None]) -> None:
        try:
            self.key.call_soon_threadsafe(call)
        except RuntimeError:  # closed meanwhile: nobody is left to be woken
            pass


def place() -> AsyncioPlace:
    """The place of the running loop."""
    return AsyncioPlace(asyncio.get_running_loop())
