"""The state kept for one origin: its limiter, the pause it asked for, and what it has told.

Three things hold a request back, and they are one composite, so that the line is one:

* the limiter that was configured;
* a gate of its own, closed while the server has asked for a pause, and for one window after it a
  pacer at the limiter's rate, so that the line drains evenly and not in one stampede;
* a limit over all origins together, if there is one.

What a server tells can close the gate earlier (`remaining: 0`), never open it: a remainder that
was learned only falls within a window, in whatever order the answers come in.

A server counts arrivals, and a client knows only when it sent and when the answer came. So a
permit of a window is counted at the send and moved to the receipt of the answer (`settle`): then
whatever the server counts in one of its windows, this side counts in one of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable
from math import inf
from typing import Any

from throttle import clock
from throttle.algorithms import AllOf, TokenBucket
from throttle.algorithms.window import Window
from throttle.errors import ServerThrottled
from throttle.http.signals import Signal
from throttle.limiter import Limiter, SupportsAcquire

__all__ = ["Origin"]

#: Resets that differ by less are the same reset told in whole seconds.
_SAME_WINDOW = 1.5


class Origin:
    """One server, or whatever `key=` groups together."""

    __slots__ = (
        "_allowance",
        "_drained_at",
        "_gate",
        "_limiter",
        "_line",
        "_reset_at",
        "_settle",
        "_total",
        "held_until",
        "in_flight",
        "name",
        "slots",
    )

    def __init__(
        self,
        name: str,
        limiter: SupportsAcquire,
        *,
        total: SupportsAcquire | None = None,
        concurrency: int | None = None,
        settle: float | None = None,
    ) -> None:
        self.name = name
        self.slots: Any = None
        if concurrency is not None:
            from throttle.concurrency import Concurrency

            self.slots = Concurrency(concurrency)
        self.held_until = -inf  # the instant until which the server asked to be left alone
        self.in_flight = 0
        self._limiter = limiter
        self._total = total
        self._settle = settle
        self._drained_at = inf
        self._allowance = inf  # requests left until `_reset_at`, as far as the server has told
        self._reset_at = -inf
        local = [one for one in (limiter, total) if isinstance(one, Limiter)]
        self._gate = TokenBucket(inf, 1, clock=local[0]._clock if local else None)
        self._line = AllOf(self._gate, *local)

    def __repr__(self) -> str:
        return f"Origin({self.name!r}, {self._limiter!r})"

    @property
    def limiter(self) -> SupportsAcquire:
        """The limiter that was configured for it."""
        return self._limiter

    @property
    def waiting(self) -> int:
        """How many requests wait for their turn."""
        return self._line.stats().waiting

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return (
            not self.in_flight
            and now >= max(self.held_until, self._reset_at)
            and isinstance(self._limiter, Limiter)
            and self._line.fresh_at() <= self._line._now()
        )

    # ---------------------------------------------------------------- before a request

    async def admit(self, *, max_wait: float | None = None, timeout: float | None = None) -> float:
        """Wait for the turn of one request; answers the instant at which it was let in.

        ServerThrottled at once while the server has asked for a longer pause than `max_wait`;
        WaitTimeout if the turn comes later than `timeout` seconds.
        """
        now = clock.now()
        if max_wait is not None and self.held_until - now > max_wait:
            raise self._too_long(self.held_until - now, max_wait)
        self._reopen(now)
        for shared in (self._limiter, self._total):
            if shared is not None and not isinstance(shared, Limiter):
                await shared.acquire(timeout=timeout)
        await self._line.acquire(timeout=timeout)
        now = clock.now()
        self._reopen(now)
        self.in_flight += 1
        if self._allowance < inf:
            self._spend_allowance(now)
        return self._line._now()

    def _too_long(self, left: float, max_wait: float) -> ServerThrottled:
        return ServerThrottled(
            f"{self.name} asked for a pause; {left:.6g} s of it are left, max_wait={max_wait:.6g}",
            retry_after=left,
            origin=self.name,
        )

    def _reopen(self, now: float) -> None:
        """The window after a pause is over: back to the limiter alone."""
        if now >= self._drained_at:
            self._drained_at = inf
            self._gate.rate = inf
        if now >= self._reset_at:
            self._allowance = inf

    def _spend_allowance(self, now: float) -> None:
        self._allowance -= 1
        if self._allowance <= 0 and now < self._reset_at:
            self._close(self._reset_at - now)

    # ---------------------------------------------------------------- after a request

    def settle(self, sent: float) -> None:
        """The answer to a request let in at `sent` has come, or never will: move its permit."""
        self.in_flight -= 1
        for limiter in (self._limiter, self._total):
            if isinstance(limiter, Limiter):
                for leaf, share in limiter._needs(limiter._checked(1)):
                    if isinstance(leaf, Window):
                        most = leaf.window / 10 if self._settle is None else self._settle
                        leaf.settle(share, sent, most)

    async def learn(self, signal: Signal, wait: float | None = None) -> None:
        """Take to heart what a response said. `wait` – the caller's own backoff, in seconds, for a
        refusal that names no time."""
        if signal.scope == "request":
            return
        now = clock.now()
        spent = signal.remaining == 0 and signal.unit == "requests"
        if signal.throttled or spent:
            asked = wait if signal.wait_s is None else signal.wait_s + signal.pad_s
            if asked:
                await self.hold(asked)
        elif signal.remaining is not None and signal.reset_after_s and signal.unit == "requests":
            self._remember(signal.remaining, now + signal.reset_after_s + signal.pad_s)

    def _remember(self, remaining: float, reset_at: float) -> None:
        # Requests in flight may not be in the server's count yet: take them as not.
        remaining = max(0, remaining - self.in_flight)
        if abs(reset_at - self._reset_at) <= _SAME_WINDOW or reset_at < self._reset_at:
            self._allowance = min(self._allowance, remaining)
            self._reset_at = max(reset_at, self._reset_at)
        else:
            self._allowance, self._reset_at = remaining, reset_at
        now = clock.now()
        if self._allowance <= 0 and now < self._reset_at:
            self._close(self._reset_at - now)

    async def hold(self, seconds: float) -> None:
        """The server asked to be left alone: nobody goes for `seconds`, in any process that shares
        the limiter. The latest deadline of all wins."""
        self._close(seconds)
        if not isinstance(self._limiter, Limiter):
            pause = getattr(self._limiter, "pause", None)
            done = None if pause is None else pause(seconds)
            if isinstance(done, Awaitable):
                await done

    def _close(self, seconds: float) -> None:
        now = clock.now()
        if now + seconds <= self.held_until:
            return
        self.held_until = now + seconds
        rate, window = _pace(self._limiter)
        if rate == inf:
            # Nothing is known of the rate: spread those who wait over as long as the pause was.
            rate, window = max(1, self.waiting) / max(seconds, 1.0), max(seconds, 1.0)
        self._gate.rate = rate
        self._gate.pause(seconds)
        self._drained_at = self.held_until + window


def _pace(limiter: Any) -> tuple[float, float]:
    """The sustained rate of a limiter (permits per second) and the seconds of one window of it."""
    members = getattr(limiter, "members", None)
    if members:
        return min(_pace(member) for member in members)
    rate = getattr(limiter, "rate", inf)
    if not rate or rate == inf:
        return inf, 0.0
    window = getattr(limiter, "window", None)
    return rate, getattr(limiter, "capacity", 1) / rate if window is None else window
