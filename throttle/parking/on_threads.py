"""Parking of plain threads.

All threads together are one place. The head of a line sleeps with a timeout of its own and then
lets in whoever's turn has come, itself first; the others sleep until they are woken.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from throttle import clock
from throttle.parking import LONGEST_SLEEP, Ticket

__all__ = ["PLACE", "ThreadPlace", "ThreadWaiter"]


class ThreadWaiter(Ticket):
    """A thread that stands in line."""

    __slots__ = (*Ticket.FIELDS, "grant", "error", "gate", "limit", "nap", "over", "timed", "wakes")

    def __init__(self) -> None:
        self.grant: tuple[float, ...] | None = None
        self.error: BaseException | None = None
        self.gate = clock.gate()
        self.nap = inf  # the thread's time at which it has to look after `timed`, by `wakes`
        self.timed: Any = None
        self.wakes: Callable[[Any], None] | None = None
        self.limit = inf  # the thread's time at which its own timeout is over, and `over` is called
        self.over: Callable[[Any], None] | None = None

    def wake(self, grant: tuple[float, ...]) -> None:
        self.grant = grant
        self.gate.release()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.gate.release()

    def cancel(self) -> None:
        self.limit = inf

    def block(self) -> None:
        """Sleep until granted; raises what the waiter was failed with."""
        while self.grant is None and self.error is None:
            wait = min(self.nap, self.limit) - clock.now()
            if wait > 0:
                self.gate.acquire(timeout=wait if wait < inf else None)
            now = clock.now()
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


class ThreadPlace:
    """All threads of the process."""

    key: Final = "threads"

    def alive(self) -> bool:
        return True

    def over(self) -> bool:
        return False

    def here(self) -> bool:
        return True

    def waiter(self) -> ThreadWaiter:
        return ThreadWaiter()

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        self.stop(line)
        head = line.head()
        if delay < inf and head is not None:
            line.timer, head.timed, head.wakes = head, line, call
            head.nap = clock.now() + min(delay, LONGEST_SLEEP)
            head.gate.release()  # it may be asleep, for longer

    def stop(self, line: Any) -> None:
        sleeper = line.timer
        if sleeper is not None:
            line.timer = None
            if sleeper.timed is line:
                sleeper.timed, sleeper.nap = None, inf

    def guard(
        self, waiter: ThreadWaiter, delay: float, call: Callable[[Any], None]
    ) -> ThreadWaiter:
        waiter.limit, waiter.over = clock.now() + min(delay, LONGEST_SLEEP), call
        waiter.gate.release()  # it may be asleep, for longer
        return waiter

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        call(argument)


PLACE = ThreadPlace()
