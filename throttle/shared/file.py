"""One limit for all processes of a machine, without a server: the state lies in a file.

    limiter = FileLimiter("/run/lock/api.limit", TokenBucket("10/s", capacity=20))
    await limiter.acquire()

Each verb locks the file, decides on what it says as the plain class would, and unlocks it: some
microseconds. Who has to wait sleeps without the lock. How the file is laid out says `statefile`,
how numbers become a limiter `model`, and who goes when, over all processes, `crowd`; here are the
verbs, and what a caller does while another process has the lock.

The state outlives the program, and the machine's boots too: ages are then told by the wall clock,
and never below zero.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from throttle import checks, waiting
from throttle.entering import Entering
from throttle.errors import ThrottleError
from throttle.limiter import Limiter, Stats
from throttle.lock import LOCK
from throttle.parking import Place, this_loop, this_thread
from throttle.shared.crowd import Door, Shared, naps

__all__ = ["FileLimiter"]

P = ParamSpec("P")
R = TypeVar("R")


class FileLimiter(Entering):
    """`limiter`, shared by every process of this machine that names the same `path`.

    `limiter` is a template: any algorithm or an `AllOf` of them, copied with its clock and its
    `max_waiting`, and fixed from then on. The first process makes the file, whole or not at all;
    the others must hand in a limiter with the same parameters. `patience` – seconds after which a
    lock that another process keeps (it was stopped, or is swapped out) is an error.

    The verbs are those of `Limiter`. Costs are permits, times are seconds, and instants (`now`) are
    those of `time.monotonic()`, which processes of one boot share. Any number of objects, threads,
    event loops and forked children may use one file; in a child the lines are empty.

    Raises FileRefused (a ValueError: another configuration, a foreign or a torn file; it is left as
    it is), FileLocked (a TimeoutError), and the OSError of the system (a full disk, a directory
    that cannot be written to, a platform without flock and mmap). None of them takes a permit.
    """

    __slots__ = ("_shared", "_template")

    def __init__(
        self, path: str | os.PathLike[str], limiter: Limiter, *, patience: float = 2.0
    ) -> None:
        patience = checks.positive("patience", patience)
        self._template = limiter
        self._shared = Shared(path, limiter, patience)
        with LOCK:
            self._shared.run(int)  # who has the lock meanwhile has read the file, and found it good

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._shared.path

    def _do(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call on the state of the file. Sleeps only while another process has the lock."""
        shared = self._shared
        wait = None
        while True:
            with LOCK:
                done = shared.run(verb, *args, **kwargs)
            if done is not None:
                return done[0]
            if wait is None:
                wait = naps(shared.path, shared.patience)
            time.sleep(next(wait))

    # ---------------------------------------------------------------- the verbs

    def allow(self, now: float | None = None, cost: float = 1) -> bool:
        """Take `cost` permits if they are free at `now`; False leaves no trace.

        False too while anybody waits in line, in any process.
        """
        return self._do(self._shared.allow, now, cost)

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """Wait in line for `cost` permits; answer the seconds waited. asyncio and trio.

        First come, first served in this process; processes that wait go in turn. Otherwise as
        `Limiter.acquire`: WaitTimeout at once where the wait would be longer than `timeout`
        (seconds), CostTooLarge, QueueFull; a cancelled one leaves no trace. The loop is not
        blocked, even while another process has the lock of the file.
        """
        call = _Call(self._shared, cost, timeout, this_loop)
        if not call.cost:
            return 0.0
        try:
            while not call.arrive():
                import anyio

                await anyio.sleep(call.nap())
        finally:
            call.step_back()
        if call.waiter is None:
            return call.waited()
        try:
            await call.waiter
        except BaseException:
            call.leave()
            raise
        return call.waited()

    def acquire_sync(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """`acquire` for a thread: blocks it until its turn; answers the seconds waited."""
        call = _Call(self._shared, cost, timeout, partial(this_thread, blocks=timeout != 0))
        if not call.cost:
            return 0.0
        try:
            while not call.arrive():
                time.sleep(call.nap())
        finally:
            call.step_back()
        if call.waiter is None:
            return call.waited()
        try:
            call.waiter.block()
        except BaseException:
            call.leave()
            raise
        return call.waited()

    def ready_at(self, now: float | None = None, cost: float = 1) -> float:
        """The instant at which `cost` fits for a newcomer at the end of the line; inf: never."""
        return self._do(self._shared.ready_at, now, cost)

    def delay(self, now: float | None = None, cost: float = 1) -> float:
        """Seconds until `ready_at`. inf: never."""
        return self._do(self._shared.delay, now, cost)

    def available(self, now: float | None = None) -> float:
        """Permits that could be taken at `now`: 0 in debt, while paused, or behind a line."""
        return self._do(self._shared.available, now)

    def charge(self, cost: float, now: float | None = None) -> None:
        """Spend without asking, into debt if need be."""
        self._do(self._shared.charge, cost, now)

    def refund(self, cost: float, now: float | None = None) -> None:
        """Give permits back, never above full."""
        self._do(self._shared.refund, cost, now)

    def pause(self, seconds: float, now: float | None = None) -> None:
        """Let nobody in, in any process, for `seconds` (inf: until `resume`)."""
        self._do(self._shared.pause, seconds, now)

    def resume(self) -> None:
        """Lift a pause early. Those who sleep in other processes see it within a second."""
        self._do(self._shared.resume)

    def fresh_at(self, now: float | None = None) -> float:
        """The instant from which it cannot be told from a new one; inf while anybody waits."""
        return self._do(self._shared.fresh_at, now)

    def reset(self) -> None:
        """Make the state as new, for all processes, and the statistics of this object."""
        self._do(self._shared.reset)

    def stats(self) -> Stats:
        """What this object (one share of the limit) has granted, denied and waited."""
        return self._shared.stats()

    def close(self) -> None:
        """Let go of the file; the state stays in it. Any later use is a ValueError."""
        with LOCK:
            self._shared.close()

    def __del__(self) -> None:
        # The rest may be a circle that lives for a while; the file is let go of at once.
        if hasattr(self, "_shared"):
            self._shared.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A process that gets it by pickle opens the file anew."""
        return (_opened, (self.path, self._template, self._shared.patience))

    def __repr__(self) -> str:
        return f"FileLimiter({self.path!r}, {self._template!r})"


def _opened(path: str, limiter: Limiter, patience: float) -> FileLimiter:
    return FileLimiter(path, limiter, patience=patience)


class _Call:
    """One call of `acquire`, on its way into the line.

    While the lock is not to be had nobody can say whether it has to wait; until then it knocks, and
    those who knock at one door go in by turn.
    """

    __slots__ = ("_begun", "_door", "_naps", "_place", "_shared", "_timeout", "cost", "waiter")

    def __init__(
        self, shared: Shared, cost: Any, timeout: float | None, place: Callable[[], Place]
    ) -> None:
        self.cost = shared._checked(cost)
        if timeout is not None:
            timeout = checks.non_negative("timeout", timeout, infinite=True)
        self._timeout = timeout
        self._shared = shared
        self._place = place
        self._door: Door | None = None
        self._naps: Any = None
        self._begun: float | None = None
        self.waiter: Any = None

    def arrive(self) -> bool:
        """Go in, or stand in line (`waiter`). False while another process has the lock."""
        shared = self._shared
        with LOCK:
            if self._naps is None:
                busy = any(door.knocking for door in shared._doors.values())
                door = shared.door(self._place()) if busy else None
                first = door is None or not door.knocking
            else:
                door = self._door
                first = door is not None and door.knocking[0] is self
            if first and shared.run(self._enter, shared):
                return True
            if self._naps is None:
                self._naps = naps(shared.path, shared.patience)
                self._door = shared.door(self._place())
                self._door.knocking.append(self)
                self._begun = shared._now()
            return False

    def _enter(self, shared: Shared) -> None:
        now = shared._now()
        if self._begun is None:
            self._begun = now
        at = shared._settle(now)
        if not shared._shut(at) and shared._enter(at, self.cost):
            shared._granted += 1
            return
        self._door = shared.door(self._place())
        self.waiter = shared.at(
            self._door, waiting.join, shared, self.cost, now, self._timeout, self._door
        )

    def nap(self) -> float:
        """Seconds to sleep before the next try; FileLocked when that was long enough."""
        return next(self._naps)  # type: ignore[no-any-return]

    def step_back(self) -> None:
        """Knock no more."""
        if self._naps is not None and self._door is not None:
            with LOCK:
                if self in self._door.knocking:
                    self._door.knocking.remove(self)

    def waited(self) -> float:
        """Seconds since it came."""
        if self.waiter is None and self._naps is None:
            return 0.0
        return self._shared._now() - (self._begun or 0.0)

    def leave(self) -> None:
        """Its caller was cancelled: it leaves the line, or gives back what it was granted."""
        shared = self._shared
        if LOCK._is_owned():  # type: ignore[attr-defined]
            waiting.abandon(self.waiter)  # by the garbage collector, in the middle of a decision
            return
        with LOCK:
            try:
                if self._door is not None and shared.run(
                    shared.at, self._door, waiting.leave, self.waiter
                ):
                    return
            except (OSError, ThrottleError):
                pass  # of the file; the reason for leaving is what the caller has to see
            waiting.leave(self.waiter)
