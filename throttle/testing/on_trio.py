"""A trio clock whose time jumps, made of trio's public parts.

A system task waits until all tasks are blocked. That may wake others who wait for the same; if it
is so twice in a row and nobody else was scheduled, time may jump. (trio's own MockClock does not
know of our threads and loops.)
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from math import inf
from typing import Any

import trio
import trio.testing

from throttle.testing.virtual import VirtualTime, active

__all__ = ["VirtualTrioClock"]


class VirtualTrioClock(trio.abc.Clock, trio.abc.Instrument):
    """`trio.run(main, clock=VirtualTrioClock())`, or anyio's `{"clock": VirtualTrioClock()}`.

    Each run takes place in the `time` it is given, else in the one that is active when it starts,
    else in a new one; that is active until the run ends.
    """

    def __init__(self, time: VirtualTime | None = None) -> None:
        self._given = time
        self._virtual = time or VirtualTime()
        self._token: Any = None
        self._jumper: Any = None
        self._parked = False
        self._scheduled = 0
        self._next = inf
        self.idle = False
        self.deadline = inf
        self.thread = threading.current_thread()

    # ---------------------------------------------------------------- as a clock

    def start_clock(self) -> None:
        self._virtual = self._given or active() or VirtualTime()
        self._jumper, self._parked = None, False
        self.thread = threading.current_thread()
        self._active = self._virtual.active()
        self._active.__enter__()
        self._virtual.move_in(self)
        trio.lowlevel.add_instrument(self)
        self._token = trio.lowlevel.current_trio_token()
        self._token.run_sync_soon(self._begin)

    def current_time(self) -> float:
        return self._virtual.now()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # Exact, where trio's statistics tell a difference.
        self._next = deadline
        return 0 if deadline <= self._virtual.now() else inf

    # ---------------------------------------------------------------- as an instrument

    def task_scheduled(self, task: Any) -> None:
        if task is self._jumper:
            return
        self._scheduled += 1
        if self._parked:
            self._parked = False
            trio.lowlevel.reschedule(self._jumper)

    def after_run(self) -> None:
        self._virtual.move_out(self)
        self._active.__exit__(None, None, None)

    # ---------------------------------------------------------------- as one who lives in the time

    def jobs(self) -> int:
        """Jobs of trio's worker threads (and of anyio's under trio)."""
        return self._pool.borrowed_tokens if self._jumper is not None else 0

    def rouse(self) -> None:
        """Make it look again: the step that this takes unparks the jumper."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(_nothing)

    def _begin(self) -> None:
        self._pool = trio.to_thread.current_default_thread_limiter()
        self._jumper = trio.lowlevel.spawn_system_task(self._jump, name="virtual time")

    async def _jump(self) -> None:
        seen = -1
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if self._scheduled != seen:
                seen = self._scheduled
                continue
            self._virtual.rest(self, self._next)
            left = self._virtual.unrest()
            if left > 0:
                # Real, and no task of this loop has anything to do.
                time.sleep(min(left, 0.001))  # noqa: ASYNC251
            elif self._virtual.jump():
                seen = -1
            else:
                self._parked = True
                await trio.lowlevel.wait_task_rescheduled(self._abort)
                seen = -1
            self._virtual.stir(self)

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._parked = False
        return trio.lowlevel.Abort.SUCCEEDED


def _nothing() -> None:
    pass
