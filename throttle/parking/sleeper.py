"""What callers have in common who have to keep time by themselves: threads, and trio's tasks.

There is no timer apart from them, so the head of a line sleeps until it has to look after the line,
and then lets in whoever's turn has come, itself first. Such a chore is `call(line)` at an instant;
its own timeout is one too. A head may have to look after several lines, if it is a guest in them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from throttle.lock import LOCK
from throttle.parking import LONGEST_SLEEP, Ticket

__all__ = ["Sleeper", "SleeperPlace"]


class Sleeper(Ticket):
    """A caller that wakes for its chores. Instants are of its own clock, which may be virtual."""

    __slots__ = (*Ticket.FIELDS, "chores", "error", "grant")

    def __init__(self) -> None:
        self.grant: tuple[float, ...] | None = None
        self.error: BaseException | None = None
        self.chores: dict[Any, tuple[float, Callable[[Any], None]]] = {}

    def wake(self, grant: tuple[float, ...]) -> None:
        self.grant = grant
        self.rouse()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.rouse()

    def rouse(self) -> None:
        """End its sleep."""
        raise NotImplementedError

    def retime(self) -> None:
        """Its next chore has changed while it sleeps."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Its own timeout does not matter any more."""
        if self.chores.pop(self, None) is not None:
            self.retime()

    def next_chore(self) -> float:
        """When it has to wake by itself; inf: not at all."""
        with LOCK:
            return min((instant for instant, _ in self.chores.values()), default=inf)

    def do_chores(self, now: float) -> None:
        """Do those whose instant has come."""
        with LOCK:
            for about, (instant, call) in list(self.chores.items()):
                if instant <= now and self.chores.pop(about, None) is not None:
                    call(about)


class SleeperPlace:
    """The part of a `Place` that gives out chores. Under LOCK."""

    __slots__ = ()

    def now(self) -> float:
        """The clock of its sleepers."""
        raise NotImplementedError

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        self.stop(line)
        head = line.head()
        if delay < inf and head is not None:
            line.timer = head
            head.chores[line] = self.now() + min(delay, LONGEST_SLEEP), call
            head.retime()

    def stop(self, line: Any) -> None:
        head = line.timer
        if head is not None:
            line.timer = None
            if head.chores.pop(line, None) is not None:
                head.retime()

    def guard(self, waiter: Any, delay: float, call: Callable[[Any], None]) -> Any:
        waiter.chores[waiter] = self.now() + min(delay, LONGEST_SLEEP), call
        waiter.retime()
        return waiter
