"""Virtual time: it stands while anybody works, and jumps when everybody waits for it.

Those who live in it are event loops (`VirtualLoop`, `VirtualTrioClock`) and threads that sleep in
it (`acquire_sync`, `VirtualTime.sleep`). When the last of them has come to rest, time jumps to the
earliest instant that anybody waits for, and exactly to that, so that instants compare with `==`.

While it is active, `throttle.clock` points here: limiters without a `clock=` of their own follow
it, in all threads, and so does an event loop that asyncio makes meanwhile.

State: the instant; who sleeps until when; which loops run. Invariant, under `_cond`: time moves
only when every loop is idle, no job of a loop's worker threads is in flight, and every other thread
sleeps or has done nothing with this time for a moment (`_PATIENCE`, the only real time here: a
thread that is busy elsewhere cannot be told from one that is about to sleep).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from throttle import checks, clock
from throttle.parking import this_thread
from throttle.testing.workers import is_worker

if TYPE_CHECKING:
    from throttle.testing.on_asyncio import VirtualLoop
    from throttle.testing.on_trio import VirtualTrioClock

__all__ = ["Resident", "VirtualTime", "active", "virtual_backends", "virtual_time"]

#: Real seconds for which a thread that woke, or is new, is expected to come to rest. With a shorter
#: one a busy machine may reorder what threads do; a longer one is felt where they go elsewhere.
_PATIENCE = 0.05
#: Real seconds after which to look again at work that does not tell when it ends.
_SLICE = 0.001

_T = TypeVar("_T")


class Resident(Protocol):
    """An event loop that lives in virtual time."""

    thread: threading.Thread
    idle: bool
    """Whether all it can do is wait; cleared when it is roused."""
    deadline: float
    """The instant it waits for while idle; inf: none."""

    def jobs(self) -> int:
        """Jobs given to worker threads whose results have not come back."""

    def rouse(self) -> None:
        """Make an idle loop look again. From any thread."""


class _Sleep(NamedTuple):
    until: float
    worker: bool


class VirtualTime:
    """A time of one's own, in seconds, that begins at `start`. See `virtual_time`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(checks.number("start", start))
        self._cond = threading.Condition()
        self._asleep: dict[threading.Thread, _Sleep] = {}
        self._loops: dict[Resident, bool] = {}  # and whether a worker thread runs it
        self._probes: list[Callable[[], bool]] = []
        # The real instant from which a thread no longer counts as about to do something.
        self._quiet: WeakKeyDictionary[threading.Thread, float] = WeakKeyDictionary()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                self._quiet[thread] = -inf

    # ---------------------------------------------------------------- for tests

    def now(self) -> float:
        """The instant, in seconds. Can be given to a limiter as `clock=`."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once, as if everybody had been frozen for so long."""
        seconds = checks.non_negative("seconds", seconds)
        with self._cond:
            self._move(self._now + seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep as a thread. RuntimeError in an event loop: it has a sleep of its own."""
        until = self._now + checks.non_negative("seconds", seconds)
        this_thread()
        Gate(self).wait(until)

    def run(
        self, function: Callable[..., Awaitable[_T]], *args: Any, backend: str = "asyncio"
    ) -> _T:
        """Run an async function to its end in this time, in a loop of its own; what it returns.

        `backend` – "asyncio" or "trio".
        """
        if backend == "asyncio":

            async def main() -> _T:
                return await function(*args)

            with asyncio.Runner(loop_factory=self.loop_factory) as runner:
                return runner.run(main())
        if backend != "trio":
            raise ValueError(f"backend must be 'asyncio' or 'trio', not {backend!r}")
        import trio

        return trio.run(function, *args, clock=self.trio_clock())

    def loop_factory(self) -> VirtualLoop:
        """A new asyncio loop that runs in this time."""
        from throttle.testing.on_asyncio import VirtualLoop

        return VirtualLoop(self)

    def trio_clock(self) -> VirtualTrioClock:
        """A clock for `trio.run` that tells this time."""
        from throttle.testing.on_trio import VirtualTrioClock

        return VirtualTrioClock(self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While inside, limiters without a clock of their own follow this time."""
        _switch(self, on=True)
        try:
            yield
        finally:
            _switch(self, on=False)

    # ---------------------------------------------------------------- for those who live in it

    @contextmanager
    def housing(self, loop: Resident) -> Iterator[None]:
        """A loop lives here while inside."""
        self.move_in(loop)
        try:
            yield
        finally:
            self.move_out(loop)

    def move_in(self, loop: Resident) -> None:
        """A loop begins to run."""
        worker = is_worker()
        with self._cond:
            loop.idle, loop.deadline = False, inf
            self._loops[loop] = worker

    def move_out(self, loop: Resident) -> None:
        """It ended: the others may be able to go on."""
        with self._cond:
            del self._loops[loop]
            self._rouse_all()
            self._cond.notify_all()

    @contextmanager
    def watching(self, thread: threading.Thread, busy: Callable[[], bool]) -> Iterator[None]:
        """Time stands while `busy()`: for a thread that works in real time, and can tell."""
        self._quiet[thread] = -inf
        self._probes.append(busy)
        try:
            yield
        finally:
            self._probes.remove(busy)

    def rest(self, loop: Resident, deadline: float) -> None:
        """A loop found nothing to do until `deadline`."""
        with self._cond:
            loop.idle, loop.deadline = True, deadline

    def stir(self, loop: Resident) -> None:
        """It found something, or was given something."""
        with self._cond:
            loop.idle = False

    def unrest(self) -> float:
        """Real seconds to wait before one may look again whether time can jump; 0: it can."""
        with self._cond:
            jobs = sum(loop.jobs() for loop in self._loops)
            waiting = sum(sleep.worker for sleep in self._asleep.values())
            waiting += sum(worker and loop.idle for loop, worker in self._loops.items())
            if jobs > waiting:
                return _SLICE
            if any(busy() for busy in self._probes):
                return _SLICE
            real = time.monotonic()
            resting = {*self._asleep, *(loop.thread for loop in self._loops)}
            stirring = [
                self._quiet.setdefault(thread, real + _PATIENCE) - real
                for thread in threading.enumerate()
                if thread not in resting
            ]
            return max(0.0, *stirring, 0.0)

    def jump(self) -> bool:
        """Go to the earliest instant that anybody waits for, if all are at rest; whether it did."""
        with self._cond:
            if not all(loop.idle for loop in self._loops):
                return False
            instants = [loop.deadline for loop in self._loops]
            instants += [sleep.until for sleep in self._asleep.values()]
            earliest = min(instants, default=inf)
            if earliest == inf:
                return False
            self._move(earliest)
            return True

    def stand(self, gate: Gate, until: float) -> None:
        """Let the running thread sleep until the gate opens, or until an instant."""
        me = threading.current_thread()
        worker = is_worker()
        with self._cond:
            if gate.permits or until <= self._now:
                return
            self._asleep[me] = _Sleep(until, worker)
            gate.sleeper = me
            self._rouse_all()
            try:
                while me in self._asleep:
                    if self._loops:  # they look at their sockets before they let time jump
                        self._cond.wait()
                    elif left := self.unrest():
                        self._cond.wait(left)
                    elif not self.jump():
                        self._cond.wait()
            finally:
                self._asleep.pop(me, None)
                gate.sleeper = None

    def wake(self, thread: threading.Thread) -> None:
        """A thread has to do something."""
        sleep = self._asleep.pop(thread, None)
        if sleep is not None:
            # A worker is waited for as long as its job takes.
            self._quiet[thread] = -inf if sleep.worker else time.monotonic() + _PATIENCE
            self._cond.notify_all()

    def _move(self, instant: float) -> None:
        self._now = max(self._now, instant)
        for thread, sleep in list(self._asleep.items()):
            if sleep.until <= self._now:
                self.wake(thread)
        for loop in self._loops:
            if loop.idle and loop.deadline <= self._now:
                loop.idle = False
                loop.rouse()

    def _rouse_all(self) -> None:
        for loop in self._loops:
            if loop.idle:
                loop.rouse()


class Gate:
    """What a thread sleeps on in virtual time: as much of a semaphore as `throttle.clock` asks."""

    __slots__ = ("_time", "permits", "sleeper")

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.permits = 0
        self.sleeper: threading.Thread | None = None

    def release(self) -> None:
        """Wake the sleeper, or let the next sleep end at once."""
        with self._time._cond:
            self.permits += 1
            if self.sleeper is not None:
                self._time.wake(self.sleeper)

    def acquire(self, *, timeout: float | None) -> bool:
        """Sleep until woken, or `timeout` seconds of virtual time; whether it was woken."""
        self.wait(inf if timeout is None else self._time.now() + timeout)
        with self._time._cond:
            woken = self.permits > 0
            self.permits -= woken
            return woken

    def wait(self, until: float) -> None:
        """Sleep until woken, or until an instant."""
        self._time.stand(self, until)


# -------------------------------------------------------------------- which one is active

_active: list[VirtualTime] = []
_lock = threading.Lock()
_before: tuple[Any, Any, Any] = (clock.now, clock.gate, asyncio.events.new_event_loop)


def active() -> VirtualTime | None:
    """The virtual time that holds now: of those entered, the one entered last."""
    return _active[-1] if _active else None


def _switch(time: VirtualTime, *, on: bool) -> None:
    global _before
    with _lock:
        if not _active:
            _before = (clock.now, clock.gate, asyncio.events.new_event_loop)
        if on:
            _active.append(time)
        else:  # not always the last: loops in several threads end in any order
            del _active[len(_active) - 1 - _active[::-1].index(time)]
        if _active:
            now = _active[-1]
            hooks: tuple[Any, Any, Any] = (now.now, lambda: Gate(now), now.loop_factory)
        else:
            hooks = _before
        clock.now, clock.gate = hooks[:2]
        # What asyncio.run() makes its loop with: a real loop would wait for ever for a time that
        # never comes.
        asyncio.new_event_loop = asyncio.events.new_event_loop = hooks[2]


@contextmanager
def virtual_time(start: float = 0.0) -> Iterator[VirtualTime]:
    """`with virtual_time() as time:` an hour of throttled work takes milliseconds.

    Time begins at `start` (seconds) and moves only by `time.advance`, or when all who live in it
    wait: `time.run(function)`, asyncio.run, `trio.run(…, clock=time.trio_clock())`, and threads in
    `acquire_sync` or `time.sleep`. Limiters made before follow it too, unless they have a `clock=`
    or callers in line. It holds for the whole process; leaving restores what was before.
    """
    time = VirtualTime(start)
    with time.active():
        yield time


def virtual_backends() -> list[tuple[str, dict[str, Any]]]:
    """What the `anyio_backend` fixture of anyio's pytest plugin takes, for tests in virtual time.

    asyncio, and trio if it is installed. Each test has a time of its own from 0.0, or that of the
    `virtual_time` fixture if it uses it.
    """
    from throttle.testing.on_asyncio import VirtualLoop

    backends: list[tuple[str, dict[str, Any]]] = [("asyncio", {"loop_factory": VirtualLoop})]
    if find_spec("trio") is not None:
        from throttle.testing.on_trio import VirtualTrioClock

        backends.append(("trio", {"clock": VirtualTrioClock()}))
    return backends
