"""How a caller stands still: in an asyncio loop, under trio, or as a thread.

`throttle.waiting` decides who goes when; a place to park only knows how to sleep and to be woken.
Each kind has one module with two classes:

    a Place   one event loop (or "the threads"): see `Place`
    a Waiter  one parked caller: `at`, `gone`, `wake(at)`, `fail(error)`, and `await waiter` or
              `waiter.block()`

A module is imported when somebody first has to wait there, so that `import throttle` imports no
event loop.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONGEST_SLEEP", "Place", "this_loop", "this_thread"]

#: Seconds a timer is asked for at most; a longer wait is taken in slices. Every loop can hold this.
LONGEST_SLEEP = 86400.0


class Place(Protocol):
    """Where callers park. One for each event loop, one for all threads together."""

    key: Any
    """What it is the place of: equal for two places of one loop."""

    def alive(self) -> bool:
        """Whether anybody parked here can still come back."""

    def over(self) -> bool:
        """Whether nobody can ever come back: its loop is closed."""

    def here(self) -> bool:
        """Whether the running code belongs to this place, so that it may wake callers directly."""

    def waiter(self) -> Any:
        """A new parked caller."""

    def time(self, line: Any, delay: float) -> None:
        """See to it that `line.due_now()` is called in `delay` seconds (inf: not at all)."""

    def stop(self, line: Any) -> None:
        """Forget the timer of `line`."""

    def guard(self, waiter: Any, delay: float) -> Any:
        """Call `waiting.expire(waiter)` in `delay` seconds; answers something to `cancel()`."""

    def poke(self, call: Callable[[], None]) -> None:
        """Run `call` here soon. From any thread."""


def this_loop() -> Place:
    """The place of the running event loop. RuntimeError when there is none."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        from throttle.parking import on_trio

        return on_trio.place()
    from throttle.parking import on_asyncio

    return on_asyncio.place()


def this_thread() -> Place:
    """The place of plain threads. RuntimeError inside a running event loop, which must not block."""
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    if (trio is not None and trio.lowlevel.in_trio_run()) or (
        asyncio is not None and asyncio._get_running_loop() is not None
    ):
        raise RuntimeError(
            "this would block a running event loop: use `await limiter.acquire()` there"
        )
    from throttle.parking import on_threads

    return on_threads.PLACE
