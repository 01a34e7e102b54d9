"""One call: all its tries, and what goes on between them. The same for every HTTP library.

A library's own file (`middleware`, `transport`) sends a request and hands over what came back; this
file waits for the turn, reads what the response says, decides on another try, and tells the hooks.
State: the tries left and the deadline (`Attempts`), the origin and the permit of the try under way,
and the slot that is in use.

Invariant: each call holds at most one slot of an origin, and each try one permit; a wait between
tries holds neither.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol, TypeVar

import anyio
from yarl import URL

from throttle import clock
from throttle.concurrency import Concurrency, holder
from throttle.errors import ServerThrottled, WaitTimeout
from throttle.http.budget import Budget
from throttle.http.events import Hooks, Retried, Signalled, Waited, shown
from throttle.http.evidence import UNREPLAYABLE
from throttle.http.origin import Origin
from throttle.http.retry import Attempts, Decision, Retry
from throttle.http.routes import Routes
from throttle.http.signals import SILENT, Headers, Overrides, Signal, read_signal

__all__ = ["Call", "Engine", "Guard"]

#: What a guard says after the wait.
Verdict = bool | Callable[[], Awaitable[object]]

_T = TypeVar("_T")
_lender: ContextVar[Call | None] = ContextVar("throttle_lender", default=None)
_FINE = Decision(False, 0.0, "not a failure")


class Guard(Protocol):
    """Who decides whether a request may go at all, and watches what becomes of it."""

    async def before(self, method: str, url: URL) -> Callable[[], Verdict]:
        """Before the wait for a turn, of each try. Raises to forbid; may send requests itself.

        The answer is called after the wait: whether what was found is still so. If it is not, the
        turn is let go and all begins anew; a function instead of False is called first, and the
        first request it sends to the same origin has that turn.
        """

    def after(self, method: str, url: URL, status: int, seconds: float, throttled: bool) -> None:
        """A response came, `seconds` after its request was let go."""


@dataclass(slots=True)
class Engine:
    """What all calls of one client share."""

    routes: Routes
    retry: Retry
    hooks: Hooks = field(default_factory=Hooks)
    signals: Callable[[URL], Overrides | None] | None = None
    """Settings for reading a server's signals, by URL."""
    budget: Budget | None = None
    guard: Guard | None = None
    random: Callable[[], float] = random.random
    wall: Callable[[], float] = time.time

    def call(self, retry: Retry | None = None) -> Call:
        """A call begins."""
        return Call(self, self.retry if retry is None else retry)


class Call:
    """One call of the user's, from its first try to what it gets back."""

    __slots__ = (
        "_attempts",
        "_began",
        "_engine",
        "_heard",
        "_lease",
        "_not_before",
        "_origin",
        "_policy",
        "_sent",
        "_started",
        "_under_way",
        "waited",
    )

    def __init__(self, engine: Engine, policy: Retry) -> None:
        self._engine = engine
        self._policy = policy
        self._started = clock.now()
        self._attempts: Attempts | None = None  # most calls need but one
        if engine.budget is not None:
            engine.budget.deposit(self._started)
        self._origin: Origin | None = None
        self._under_way = False
        self._heard: Signal | None = None  # what `went_well` has read already
        self._sent = 0.0  # on the limiter's clock
        self._began = 0.0
        self._lease: _Lease | None = None
        self._not_before: tuple[float, int] | None = None  # an instant, and the status that said so
        self.waited = 0.0  # seconds, over all tries

    @property
    def ends_at(self) -> float | None:
        """The instant at which the call must be over; None: there is none."""
        deadline = self._policy.deadline
        return None if deadline is None else self._started + deadline

    # ---------------------------------------------------------------- before a try

    def enter(self, method: str, url: URL) -> bool:
        """`turn` where it need not wait, and that is plain to see; if False, ask `turn`."""
        engine = self._engine
        if engine.guard is not None or self._not_before is not None:
            return False
        origin = engine.routes.origin(url, method)
        if origin.slots is not None or not origin.enter():
            return False
        self._origin = origin
        self._under_way = True
        self._sent = origin.now()
        return True

    async def turn(self, method: str, url: URL) -> None:
        """Wait until a request may be sent. ServerThrottled, WaitTimeout; then nothing is held."""
        guard, lender = self._engine.guard, _lender.get()
        if self._not_before is not None:
            await self._be_patient(url, *self._not_before)
        if guard is None:
            await self._wait(method, url)
            return
        while True:
            look = await self._in_time(guard.before(method, url))
            if lender is not None and self._take_over(lender, method, url):
                return
            await self._wait(method, url)
            verdict = look()
            if verdict is True:
                return
            try:
                if verdict is not False:
                    await self._in_time(self._lend(verdict))
            finally:
                self.free_slot()
                self.ended()

    async def _in_time(self, asking: Awaitable[_T]) -> _T:
        """What a guard answers, if it does before the end of the call."""
        left = inf if self.ends_at is None else max(0.0, self.ends_at - clock.now())
        with anyio.move_on_after(left):
            return await asking
        raise WaitTimeout(inf, left)

    async def _lend(self, to: Callable[[], Awaitable[object]]) -> None:
        token = _lender.set(self)
        try:
            await to()
        finally:
            _lender.reset(token)

    def _take_over(self, lender: Call, method: str, url: URL) -> bool:
        """Whether another call's turn is there to be used; then it is ours, with its slot."""
        origin = self._engine.routes.origin(url, method)
        if not lender._under_way or lender._origin is not origin:
            return False
        self._origin, self._sent, self._began = origin, lender._sent, clock.now()
        self._lease, lender._lease = lender._lease, None
        self._under_way, lender._under_way = True, False
        return True

    async def _wait(self, method: str, url: URL) -> None:
        engine, ends_at = self._engine, self.ends_at
        origin = self._origin = engine.routes.origin(url, method)
        waited, timeout = 0.0, None
        origin.waiting += 1
        try:
            if origin.slots is not None:
                waited = await self._take_slot(origin, origin.slots)
            if ends_at is not None:
                timeout = max(0.0, ends_at - clock.now())
            waited += await origin.admit(max_wait=self._policy.max_wait, timeout=timeout)
        except BaseException:
            self.free_slot()
            raise
        finally:
            origin.waiting -= 1
        self._under_way = True
        self._sent = origin.now()
        if engine.guard is not None:
            self._began = clock.now()
        if waited > 0:
            self.waited += waited
            engine.hooks.waited(Waited(origin.name, method, shown(url), waited))

    async def _take_slot(self, origin: Origin, slots: Concurrency) -> float:
        lease, ends_at = self._lease, self.ends_at
        if lease is not None and lease.renew(slots):
            return 0.0  # a re-send with credentials, say, before the first response is let go
        timeout = None if ends_at is None else max(0.0, ends_at - clock.now())
        try:
            waited = await slots.acquire(timeout=timeout)
        except RuntimeError as error:
            error.add_note(f"{origin.name}: release a response before sending the next request")
            raise
        self._lease = _Lease(slots)
        return waited

    async def _be_patient(self, url: URL, instant: float, status: int) -> None:
        """A redirect asked not to be followed before an instant (RFC 9110, 10.2.3)."""
        self._not_before = None
        left = instant - clock.now()
        if left <= 0:
            return
        longest, ends_at = self._policy.max_wait, self.ends_at
        if (longest is not None and left > longest) or (ends_at is not None and instant >= ends_at):
            raise ServerThrottled(
                f"a redirect (status {status}) to {shown(url)} asks to be followed in {left:.6g} s",
                retry_after=left,
                retry_at=self._engine.wall() + left,
                status=status,
                origin=None if self._origin is None else self._origin.name,
            )
        await anyio.sleep(left)
        self.waited += left

    # ---------------------------------------------------------------- after a try

    @property
    def has_slot(self) -> bool:
        """Whether there may be one to take."""
        return self._lease is not None

    def take_slot(self) -> Callable[[], None] | None:
        """The function that ends the slot; from now on the caller's to call, at least once."""
        return None if self._lease is None else self._lease.hand_over()

    def free_slot(self) -> None:
        """Nothing is in flight any more."""
        end = self.take_slot()
        if end is not None:
            end()

    def ended(self) -> None:
        """The head of the answer is here, or the try is over without one."""
        if self._under_way and self._origin is not None:
            self._under_way = False
            self._origin.settle(self._sent)

    def went_well(self, status: int, headers: Headers) -> bool:
        """`answered` for a response that is no failure and says nothing of limits; if False, ask
        `answered`."""
        engine = self._engine
        if status >= 400 or engine.guard is not None or engine.signals is not None:
            return False
        signal = read_signal(status, headers, now=engine.wall())
        if signal is not SILENT:
            self._heard = signal
            return False
        origin = self._origin
        if origin is not None:
            self._under_way = False
            origin.settle(self._sent)
            origin.served()
        return True

    async def answered(
        self, method: str, url: URL, sent: Headers, status: int, headers: Headers, body: Any
    ) -> Decision:
        """A response came. `sent` – the request's headers; `body` – what was read of the answer."""
        self.ended()
        engine = self._engine
        overrides = None if engine.signals is None else engine.signals(url)
        signal, self._heard = self._heard, None
        if signal is None or body is not None:
            signal = read_signal(status, headers, body=body, now=engine.wall(), overrides=overrides)
        if status < 400 and not signal.throttled:
            # What was done is no try that failed: a redirect leaves as many for where it leads.
            decision = _FINE
            if signal.scope == "request" and signal.wait_s and 300 <= status < 400:
                asked = signal.wait_s + signal.pad_s
                self._not_before = (clock.now() + asked, status)
        else:
            decision = self._tries().after_response(
                status, signal, method, sent, clock.now(), engine.random
            )
        if engine.guard is not None:
            seconds = clock.now() - self._began
            engine.guard.after(method, url, status, seconds, signal.throttled)
        if not signal.throttled and self._origin is not None:
            self._origin.served()
        if signal.throttled or signal.quotas or signal.wait_s is not None:
            await self._learn(method, url, status, signal, decision)
        return decision

    async def _learn(
        self, method: str, url: URL, status: int, signal: Signal, decision: Decision
    ) -> None:
        engine, origin = self._engine, self._origin
        if signal.throttled or signal.remaining == 0:
            backoff, wall = decision.wait or self._policy.base, engine.wall()
            for sibling in engine.routes.siblings(url, method):
                await sibling.learn(signal, backoff, status=status, wall=wall)
        elif origin is not None:
            await origin.learn(signal)
        name = "" if origin is None else origin.name
        engine.hooks.signalled(Signalled(name, method, shown(url), status, signal))

    def failed(self, method: str, sent: Headers, *, left: bool) -> Decision:
        """The connection failed; `left` – whether anything of the request may have left."""
        self.ended()
        return self._tries().after_error(method, sent, clock.now(), self._engine.random, sent=left)

    def _tries(self) -> Attempts:
        if self._attempts is None:
            self._attempts = Attempts(self._policy, self._started, self._engine.budget)
        return self._attempts

    def goes_on(
        self,
        method: str,
        url: URL,
        decision: Decision,
        error: BaseException | None = None,
        *,
        instead: str | None = None,
    ) -> bool:
        """Whether there is another try; a failed one is told to the hooks.

        `error` – what broke the connection; `instead` – why there is no other try although one was
        due. ServerThrottled where the server asks for a longer pause than the caller would wait.
        """
        if decision.reason == "not a failure":
            return False
        retry = decision.retry and instead is None
        name = self._engine.routes.origin(url, method).name
        self._engine.hooks.retried(
            Retried(
                origin=name,
                method=method,
                url=shown(url),
                attempt=self._tries().made,
                status=decision.status,
                error=error,
                wait=decision.wait if retry else None,
                reason=instead or decision.reason,
            )
        )
        if error is not None and instead == UNREPLAYABLE:
            error.add_note(f"not tried again: {UNREPLAYABLE}")
        if decision.raises:
            raise decision.error(wall=self._engine.wall(), origin=name)
        return retry

    async def rest(self, decision: Decision) -> None:
        """Wait for the next try; holds nothing meanwhile."""
        if decision.wait > 0:
            await anyio.sleep(decision.wait)
            self.waited += decision.wait


class _Lease:
    """A slot in use, handed over from one response of a call to its next: only the last ends it."""

    __slots__ = ("_of", "_slots", "_turn")

    def __init__(self, slots: Concurrency) -> None:
        self._slots: Concurrency | None = slots
        self._of = holder()
        self._turn = 0

    def renew(self, slots: Concurrency) -> bool:
        """Whether it is still in use, and one of these; then it belongs to the next try."""
        self._turn += self._slots is slots
        return self._slots is slots

    def hand_over(self) -> Callable[[], None]:
        """What ends it, as long as it belongs to this try; harmless if called again."""
        turn = self._turn

        def end() -> None:
            slots = self._slots
            if slots is not None and turn == self._turn:
                self._slots = None
                slots.release(self._of)

        return end
