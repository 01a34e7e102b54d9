"""Parking in an asyncio event loop (any that speaks its interface, uvloop too).

The waiter is the future itself, with a few slots more, so that a place in line costs little beyond
what awaiting anything costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from throttle.parking import LONGEST_SLEEP, Ticket

__all__ = ["AsyncioPlace", "AsyncioWaiter", "place"]


class AsyncioWaiter(asyncio.Future[tuple[float, ...]], Ticket):
    """A future that stands in line."""

    __slots__ = Ticket.FIELDS

    @property
    def grant(self) -> tuple[float, ...] | None:
        """See `Ticket`."""
        return None if not self.done() or self.cancelled() or self.exception() else self.result()

    def wake(self, grant: tuple[float, ...]) -> None:
        self.set_result(grant)

    def fail(self, error: BaseException) -> None:
        self.set_exception(error)
        self.exception()  # seen: a caller cancelled in this very turn would leave it unread

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        self.withdraw()
        return True


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

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        self.stop(line)
        if delay < inf:
            line.timer = self.key.call_later(min(delay, LONGEST_SLEEP), call, line)

    def stop(self, line: Any) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None

    def guard(
        self, waiter: AsyncioWaiter, delay: float, call: Callable[[Any], None]
    ) -> asyncio.TimerHandle:
        return self.key.call_later(min(delay, LONGEST_SLEEP), call, waiter)

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        with suppress(RuntimeError):  # closed meanwhile: nobody is left to be woken
            self.key.call_soon_threadsafe(call, argument)


def place() -> AsyncioPlace:
    """The place of the running loop."""
    return AsyncioPlace(asyncio.get_running_loop())
