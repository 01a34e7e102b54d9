"""Parking of plain threads.

All threads together are one place. The head of a line sleeps with a timeout of its own and then
lets in whoever's turn has come, itself first; the others sleep until they are woken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from throttle.parking import LONGEST_SLEEP
from throttle.waiting import Ticket, expire

__all__ = ["PLACE", "ThreadPlace", "ThreadWaiter"]


class ThreadWaiter(Ticket):
    """A thread that stands in line."""

    __slots__ = (*Ticket.FIELDS, "at", "error", "gate", "limit", "nap", "timed")

    def __init__(self) -> None:
        self.at: tuple[float, ...] | None = None
        self.error: BaseException | None = None
        self.gate = threading.Semaphore(0)
        self.limit = inf
        self.nap = inf
        self.timed: Any = None

    @property
    def gone(self) -> bool:
        """Granted, failed or left."""
        return self.at is not None or self.error is not None or self.order < 0

    def wake(self, at: tuple[float, ...]) -> None:
        self.at = at
        self.gate.release()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.gate.release()

    def cancel(self) -> None:
        self.limit = inf

    def block(self) -> None:
        """Sleep until granted; raises what the waiter was failed with."""
        while self.at is None and self.error is None:
            wait = min(self.nap, self.limit) - time.monotonic()
            if wait > 0:
                self.gate.acquire(timeout=min(wait, LONGEST_SLEEP))
            now = time.monotonic()
            line = self.timed
            if line is not None and self.nap <= now:
                self.nap = inf
                line.due_now()
            if self.limit <= now:
                self.limit = inf
                expire(self)
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

    def time(self, line: Any, delay: float) -> None:
        self.stop(line)
        head = line.head()
        if delay < inf and head is not None:
            line.timer, head.timed = head, line
            head.nap = time.monotonic() + min(delay, LONGEST_SLEEP)
            head.gate.release()  # it may be asleep, for longer

    def stop(self, line: Any) -> None:
        sleeper = line.timer
        if sleeper is not None:
            line.timer = None
            if sleeper.timed is line:
                sleeper.timed, sleeper.nap = None, inf

    def guard(self, waiter: ThreadWaiter, delay: float) -> ThreadWaiter:
        waiter.limit = time.monotonic() + delay
        return waiter

    def poke(self, call: Callable[[], None]) -> None:
        call()


PLACE = ThreadPlace()
