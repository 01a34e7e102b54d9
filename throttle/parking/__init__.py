"""How a caller stands still: in an asyncio loop, under trio, or as a thread.

`throttle.waiting` decides who goes when; a place to park only knows how to sleep and to be woken.
Each kind has one module with two classes:

    a Place   one event loop (or all the threads): see `Place`
    a Waiter  one parked caller: a `Ticket` with `wake(grant)`, `fail(error)`, and `await waiter`
              or `waiter.block()`

A module is imported when somebody first has to wait there, so that `import throttle` imports no
event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from throttle.lock import LOCK

__all__ = ["LONGEST_SLEEP", "Place", "Ticket", "this_loop", "this_thread"]

#: Seconds a timer is asked for at most; a longer wait is taken in slices. Every loop can hold this.
LONGEST_SLEEP = 86400.0


class Ticket:
    """What every waiter carries. A subclass makes slots of FIELDS and knows how to sleep.

    It also has `grant`: None, or the instant at which it was let in and then those at which it was
    charged, one for each limiter.
    """

    __slots__ = ()
    FIELDS = ("arrived", "cost", "line", "order")

    arrived: float
    """The instant of its arrival, on the limiter's clock."""
    cost: Any
    """Permits; for a caller of a composite the `throttle.lines.Needs` it has."""
    line: Any
    """The queue it stands in (Line or Group); kept when granted, None when gone."""
    order: int
    """Its number among all who ever waited; below 0 when it is in no queue any more."""

    def withdraw(self) -> None:
        """Its caller was cancelled: give up the place now. When it runs, it does the rest."""
        with LOCK:
            if self.line is not None:
                self.line.remove(self)


class Place(Protocol):
    """Where callers park. One for each event loop, one for all threads together."""

    @property
    def key(self) -> Any:
        """What it is the place of: equal for two places of one loop."""

    def alive(self) -> bool:
        """Whether anybody parked here can still come back."""

    def over(self) -> bool:
        """Whether nobody can ever come back: its loop is closed."""

    def here(self) -> bool:
        """Whether the running code belongs to this place, so that it may wake callers directly."""

    def waiter(self) -> Any:
        """A new parked caller."""

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        """See to it that `call(line)` is made in `delay` seconds, and at no other time.

        A place may come back early: after LONGEST_SLEEP at the latest. inf: after that, or never.
        """

    def stop(self, line: Any) -> None:
        """Forget the timer of `line`."""

    def guard(self, waiter: Any, delay: float, call: Callable[[Any], None]) -> Any:
        """Call `call(waiter)` in `delay` seconds, or early; answers something to `cancel()`."""

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        """Run `call(argument)` here soon. From any thread."""


def this_loop() -> Place:
    """The place of the running event loop. RuntimeError when there is none."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        from throttle.parking import on_trio

        return on_trio.place()
    from throttle.parking import on_asyncio

    return on_asyncio.place()


def this_thread(*, blocks: bool = True) -> Place:
    """The place of plain threads. RuntimeError in a running event loop, which must not block."""
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    if blocks and (
        (trio is not None and trio.lowlevel.in_trio_run())
        or (asyncio is not None and asyncio._get_running_loop() is not None)
    ):
        raise RuntimeError(
            "acquire_sync would block a running event loop: use `await limiter.acquire()` there"
        )
    from throttle.parking import on_threads

    return on_threads.PLACE
