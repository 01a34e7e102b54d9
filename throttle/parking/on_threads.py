"""Parking of plain threads. All threads of the process together are one place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Any, Final

from throttle import clock
from throttle.parking.sleeper import Sleeper, SleeperPlace

__all__ = ["PLACE", "ThreadPlace", "ThreadWaiter"]


class ThreadWaiter(Sleeper):
    """A thread that stands in line."""

    __slots__ = ("gate",)

    def __init__(self) -> None:
        super().__init__()
        self.gate = clock.gate()

    def rouse(self) -> None:
        self.gate.release()

    def retime(self) -> None:
        self.gate.release()  # it may be asleep, for longer

    def block(self) -> None:
        """Sleep until granted; raises what the waiter was failed with."""
        while self.grant is None and self.error is None:
            until = self.next_chore()
            wait = until - clock.now()
            if wait > 0:
                self.gate.acquire(timeout=wait if until < inf else None)
            self.do_chores(clock.now())
        if self.error is not None:
            raise self.error


class ThreadPlace(SleeperPlace):
    """All threads of the process."""

    __slots__ = ()

    key: Final = "threads"

    def alive(self) -> bool:
        return True

    def over(self) -> bool:
        return False

    def here(self) -> bool:
        return True

    def waiter(self) -> ThreadWaiter:
        return ThreadWaiter()

    def now(self) -> float:
        return clock.now()

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        # Whoever asks is in the middle of a decision, which has to end first; here is no loop.
        threading.Thread(target=call, args=(argument,), daemon=True).start()


PLACE = ThreadPlace()
