"""The state kept for one origin: its limiter, the pause it asked for, and what it has told.

Three things hold a request back, and they are one composite, so that the line is one:

* the limiter that was configured;
* a gate of its own, closed while the server has asked for a pause, and after it a pacer, so that
  the line drains evenly and not in one stampede (`recovery`);
* a limit over all origins together, if there is one.

Most servers never ask for a pause: as long as nobody has, a limiter of its own is its line, and the
gate is built when it is needed. A limiter that is not of this process (it only has an `acquire`) is
asked first, by itself.

What a server tells can close the gate earlier (`remaining: 0`), never open it: a remainder that
was learned only falls within a window, in whatever order the answers come in.

A server counts arrivals, and a client knows only when it sent and when the answer came. So a
permit of a window is counted at the send and moved to the receipt of the answer (`settle`): then
whatever the server counts in one of its windows, this side counts in one of its own.

Invariants: the latest deadline asked for wins, and nothing lifts a pause early; nobody stands in
line for longer a pause than it would wait for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from math import inf
from typing import Any

from throttle import clock
from throttle.algorithms import AllOf, SlidingWindowLog, TokenBucket
from throttle.algorithms.window import Window
from throttle.concurrency import Concurrency
from throttle.errors import ServerThrottled
from throttle.http.recovery import Recovery
from throttle.http.signals import Signal
from throttle.http.together import Together
from throttle.limiter import Limiter, SupportsAcquire
from throttle.lock import LOCK
from throttle.waiting import dismiss

__all__ = ["Origin"]

log = logging.getLogger("throttle")

#: Resets that differ by less are the same reset told in whole seconds.
_SAME_WINDOW = 1.5


class _PauseCameError(Exception):
    """A pause came that somebody in line may not want to wait for."""


class Origin:
    """One server, or whatever `key=` groups together."""

    __slots__ = (
        "_allowance",
        "_gate",
        "_impatience",
        "_limiter",
        "_limitless",
        "_line",
        "_local",
        "_recovery",
        "_remote",
        "_reset_at",
        "_retry_at",
        "_status",
        "_told",
        "_windows",
        "held_until",
        "in_flight",
        "name",
        "slots",
        "waiting",
    )

    def __init__(
        self,
        name: str,
        limiter: SupportsAcquire,
        *,
        total: SupportsAcquire | None = None,
        concurrency: int | None = None,
        settle: float | None = None,
        own: bool = False,
    ) -> None:
        """`own`: nobody but origins uses the limiter."""
        self.name = name
        self.slots = None if concurrency is None else Concurrency(concurrency)
        self.waiting = 0  # requests that wait for their turn
        self.in_flight = 0
        self.held_until = -inf  # the instant until which the server asked to be left alone
        self._status: int | None = None  # of the answer that asked for it
        self._retry_at: float | None = None  # the same instant, on the wall clock
        self._impatience = inf  # the least that anybody who came by would wait
        self._allowance = inf  # requests left until `_reset_at`, as far as the server has told
        self._reset_at = -inf
        self._told: float | None = None  # the rate of that window, in requests per second
        self._recovery = Recovery()
        self._limiter = limiter
        limits = [*limiter.members] if isinstance(limiter, Together) else [limiter]
        if total is not None:
            limits.append(total)
        self._remote = [one for one in limits if not isinstance(one, Limiter)]
        self._local = tuple(one for one in limits if isinstance(one, Limiter))
        self._windows = [
            (leaf, share, leaf.window / 10 if settle is None else settle)
            for local in self._local
            for leaf, share in local._needs(local._checked(1))
            if isinstance(leaf, Window)
        ]
        self._limitless = isinstance(limiter, TokenBucket) and limiter.rate == inf and own
        self._gate: TokenBucket | None = None
        self._line: Limiter = self._local[0] if own and len(limits) == 1 else self._gated()

    def __repr__(self) -> str:
        return f"Origin({self.name!r}, {self._limiter!r})"

    def _gated(self) -> AllOf:
        self._gate = TokenBucket(inf, 1, clock=self._local[0]._clock if self._local else None)
        return AllOf(self._gate, *self._local)

    @property
    def limiter(self) -> SupportsAcquire:
        """The limiter that was configured for it."""
        return self._limiter

    def next_in(self) -> float:
        """Seconds until the first in line may go, as far as is known here; inf: never."""
        with LOCK:
            now = self._line._now()
            ready = self._line._ready_at(now, self._line._checked(1))
        return max(0.0, ready - now, self.held_until - clock.now())

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return (
            not self.waiting
            and not self.in_flight
            and now >= max(self.held_until, self._reset_at)
            and (self.slots is None or not self.slots.taken)
            and self._line.fresh_at() <= self._line._now()
        )

    # ---------------------------------------------------------------- before a request

    def enter(self) -> bool:
        """Let one request in if it need not wait, and that is plain to see; else ask `admit`."""
        if self._gate is not None or not (self._limitless or self._line.allow()):
            return False
        self.in_flight += 1
        if self._allowance < inf:
            self._count(clock.now())
        return True

    async def admit(self, *, max_wait: float | None = None, timeout: float | None = None) -> float:
        """Wait for the turn of one request; answers the seconds waited.

        ServerThrottled at once while the server asks for a longer pause than `max_wait` seconds,
        also in the middle of the wait; WaitTimeout if the turn comes later than `timeout` seconds.
        `settle` must follow.
        """
        if max_wait is not None and max_wait < self._impatience:
            self._impatience = max_wait
        if self.held_until > -inf:
            self._look(max_wait)
        began = None
        for shared in self._remote:
            began = clock.now() if began is None else began
            await shared.acquire(timeout=_left(timeout, began))
        while True:
            try:
                waited = await self._line.acquire(timeout=_left(timeout, began))
                break
            except _PauseCameError:
                self._look(max_wait)
        if began is not None:
            waited = clock.now() - began
        self.in_flight += 1
        if self.held_until > -inf or self._allowance < inf:
            self._count(clock.now())
        return waited

    def now(self) -> float:
        """The instant, on the clock of its limiter: what `settle` wants to know."""
        return self._line._now() if self._windows else 0.0

    def _look(self, max_wait: float | None) -> None:
        """Fail a caller who would not wait for the pause that is on."""
        now = clock.now()
        if now >= self._recovery.until:
            self._step(now)
        left = self.held_until - now
        if max_wait is not None and left > max_wait:
            raise ServerThrottled(
                f"{self.name} asked for a pause (status {self._status}), {left:.6g} s of it are "
                f"left; max_wait={max_wait:.6g}",
                retry_after=left,
                retry_at=self._retry_at,
                status=self._status,
                origin=self.name,
            )

    def _step(self, now: float) -> None:
        if now >= self._recovery.until:
            self._recovery.step(now, crowd=self.waiting)
        if self._gate is not None:
            rate = self._recovery.pace(now)
            if self._gate.rate != rate:
                self._gate.rate = rate

    def _count(self, now: float) -> None:
        """One more was let in."""
        self._step(now)
        if now >= self._reset_at:
            self._allowance = inf
        elif self._allowance < inf:
            self._allowance -= 1
            self._close_when_spent(now)

    def _close_when_spent(self, now: float) -> None:
        if self._allowance <= 0 and now < self._reset_at:
            self._close(self._reset_at - now, self._told)

    # ---------------------------------------------------------------- after a request

    def settle(self, sent: float) -> None:
        """The answer to a request let in at `sent` has come, or never will: move its permit."""
        self.in_flight -= 1
        for leaf, share, most in self._windows:
            leaf.settle(share, sent, most)

    def served(self) -> None:
        """A request was answered, and not refused."""
        self._recovery.served(clock.now())

    async def learn(
        self,
        signal: Signal,
        wait: float | None = None,
        *,
        status: int | None = None,
        wall: float | None = None,
    ) -> None:
        """Take to heart what a response said.

        `wait` – the caller's own backoff, in seconds, for a refusal that names no time; `status` –
        of the response; `wall` – the wall clock at its receipt.
        """
        if signal.scope == "request":
            return
        counts = signal.unit == "requests"
        if not signal.throttled and counts and self._knows_better(signal):
            return
        if signal.throttled or (counts and signal.remaining == 0):
            asked = wait if signal.wait_s is None else signal.wait_s + signal.pad_s
            if asked:
                # A refusal with quota left was another limiter's: its rate is not known.
                told = None if signal.remaining else _told(signal)
                await self.hold(asked, told=told, status=status, wall=wall)
        elif signal.remaining is not None and signal.reset_after_s and counts:
            self._told = _told(signal)
            self._remember(signal.remaining, clock.now() + signal.reset_after_s + signal.pad_s)

    def _knows_better(self, signal: Signal) -> bool:
        """Whether the server's window is kept here too: exactly, or because all go at its pace.

        Its reset comes in whole seconds, and to obey would halve the rate of a short window.
        """
        if signal.limit is None or signal.remaining is None or signal.reset_after_s is None:
            return False
        told, own = _told(signal), self._limiter
        if told is not None and self._recovery.rate <= told:
            return True
        return (
            isinstance(own, SlidingWindowLog)
            and own.limit <= signal.limit
            and signal.reset_after_s <= own.window + 1.0
            and own.available() <= signal.remaining
        )

    def _remember(self, remaining: float, reset_at: float) -> None:
        # Requests in flight may not be in the server's count yet: take them as not.
        remaining = max(0, remaining - self.in_flight)
        now = clock.now()
        if now >= self._reset_at or reset_at > self._reset_at + _SAME_WINDOW:
            self._allowance, self._reset_at = remaining, reset_at
        elif reset_at >= self._reset_at - _SAME_WINDOW:
            self._allowance = min(self._allowance, remaining)
        # Else it is of a window before this one, or of another limit that is renewed earlier.
        self._close_when_spent(now)

    def inherit(self, other: Origin) -> None:
        """The pause of one that stands for the same server."""
        left = other.held_until - clock.now()
        if left > 0:
            self._close(left, None, other._status, other._retry_at)

    async def hold(
        self,
        seconds: float,
        *,
        told: float | None = None,
        status: int | None = None,
        wall: float | None = None,
    ) -> None:
        """The server asked to be left alone: nobody goes for `seconds`, in any process that shares
        the limiter. The latest deadline of all wins. `told` – its own rate, if it said."""
        self._close(seconds, told, status, None if wall is None else wall + seconds)
        pause = getattr(self._limiter, "pause", None)
        if pause is None or isinstance(self._limiter, Limiter):  # the gate holds all that is local
            return
        try:
            done = pause(seconds)
            if isinstance(done, Awaitable):
                await done
        except Exception:
            # The answer that asked for it is the caller's all the same.
            log.exception("the pause that %s asked for could not be shared", self.name)

    def _close(
        self,
        seconds: float,
        told: float | None = None,
        status: int | None = None,
        retry_at: float | None = None,
    ) -> None:
        now = clock.now()
        if now + seconds <= self.held_until:
            return
        self.held_until = now + seconds
        self._status, self._retry_at = status, retry_at
        rate, window = _sustained(self._limiter)
        crowd = self.waiting + self.in_flight
        self._recovery.pause(now, seconds, rate=rate, window=window, told=told, crowd=crowd)
        line = self._line
        with LOCK:
            if self._gate is None:
                self._line = self._gated()
            gate: Any = self._gate
            gate.rate = self._recovery.pace(now)
            gate.pause(seconds)
            if line is not self._line or seconds > self._impatience:
                dismiss(line, _PauseCameError)  # to stand in the other line, or to go


def _left(timeout: float | None, began: float | None) -> float | None:
    if timeout is None or began is None:
        return timeout
    return max(0.0, timeout - (clock.now() - began))


def _told(signal: Signal) -> float | None:
    """The server's own rate, in requests per second, if it said."""
    if signal.unit != "requests" or not signal.limit or not signal.window_s:
        return None
    return signal.limit / signal.window_s


def _sustained(limiter: Any) -> tuple[float, float]:
    """The sustained rate of a limiter (permits per second) and the seconds of one window of it."""
    members = getattr(limiter, "members", None)
    if members:
        return min(_sustained(member) for member in members)
    rate = getattr(limiter, "rate", None)
    if not isinstance(rate, (int, float)) or not 0 < rate < inf:
        return inf, inf
    window = getattr(limiter, "window", None)
    return rate, getattr(limiter, "capacity", 1) / rate if window is None else window
