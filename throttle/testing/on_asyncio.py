"""An asyncio loop whose time jumps: it polls its sockets, and where others block time goes on.

State: the instants of its timers, since the loop tells its selector only a difference, and a sum of
it may miss the instant by a rounding; and the jobs that it gave to threads.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import inf, ulp
from typing import Any

import anyio.from_thread
import anyio.to_thread

from throttle.clock import tolerance
from throttle.testing.virtual import VirtualTime, active
from throttle.testing.workers import work

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio.Runner(loop_factory=VirtualLoop)`, or anyio's `{"loop_factory": VirtualLoop}`.

    It runs in the `time` it is given, else in the one that is active when it starts to run, else in
    one of its own; that is active while it runs. Real sockets work: what is on its way on this
    machine arrives before time jumps; a server elsewhere does not share the time.
    """

    def __init__(self, time: VirtualTime | None = None) -> None:
        self._given = time
        self._virtual = time or active() or VirtualTime()
        self._whens: list[float] = []
        self._jobs = 0
        self._pool: Any = None
        self.idle = False
        self.deadline = inf
        self.thread = threading.current_thread()
        self._sockets = selectors.DefaultSelector()
        super().__init__(_JumpingSelector(self._sockets, self._stand_still))

    # ---------------------------------------------------------------- as an event loop

    def time(self) -> float:
        return self._virtual.now()

    @property
    def _clock_resolution(self) -> float:
        # The loop runs a timer that is due before `time() + resolution`. Where a float is coarser
        # than a nanosecond (from 97 days on) that would never be.
        return max(1e-9, ulp(self._virtual.now()))

    @_clock_resolution.setter
    def _clock_resolution(self, _real: float) -> None:
        """That of the real clock does not matter."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> asyncio.TimerHandle:
        heappush(self._whens, when)
        return super().call_at(when, callback, *args, **kwargs)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> asyncio.Handle:
        # First: afterwards it may have come to rest again already.
        self._virtual.stir(self)
        return super().call_soon_threadsafe(callback, *args, **kwargs)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, partial(work, func), *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def run_forever(self) -> None:
        self.thread = threading.current_thread()
        self._virtual = self._given or active() or self._virtual
        if self._pool is None:
            self._finding = self.create_task(self._find_pool())
        with self._virtual.active(), self._virtual.housing(self):
            super().run_forever()

    # ---------------------------------------------------------------- as one who lives in the time

    def jobs(self) -> int:
        """Jobs of its executors, and of anyio's worker threads."""
        return self._jobs + (self._pool.borrowed_tokens if self._pool is not None else 0)

    def rouse(self) -> None:
        """Make it look again."""
        if not self.is_closed():
            super().call_soon_threadsafe(_nothing)

    async def _find_pool(self) -> None:
        self._pool = anyio.to_thread.current_default_thread_limiter()

    def _job_done(self, _future: asyncio.Future[Any]) -> None:
        self._jobs -= 1

    def _stand_still(self, timeout: float | None) -> list[Any]:
        """Nothing is ready: wait for the sockets, for other threads, or let time jump."""
        virtual, poll = self._virtual, self._sockets.select
        deadline = inf if timeout is None else self._instant(virtual.now() + timeout)
        virtual.rest(self, deadline)
        try:
            while True:
                left: float | None = virtual.unrest()
                if not left:
                    # Whoever has finished meanwhile may have left something here.
                    if events := poll(0):
                        return events
                    jumped = virtual.jump()
                    if virtual.now() >= deadline:
                        return []
                    left = 0 if jumped else None
                if events := poll(left):
                    return events
        finally:
            virtual.stir(self)

    def _instant(self, about: float) -> float:
        """The instant of the timer that the loop means; those before it were cancelled."""
        whens, slip = self._whens, tolerance(about)
        while whens and whens[0] < about - slip:
            heappop(whens)
        return whens[0] if whens and whens[0] <= about + slip else about


class _JumpingSelector(selectors.BaseSelector):
    """A selector that asks what to do instead of blocking."""

    def __init__(
        self, real: selectors.BaseSelector, idle: Callable[[float | None], list[Any]]
    ) -> None:
        self._real = real
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[Any]:
        events = self._real.select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        return self._idle(timeout)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def _nothing() -> None:
    pass
