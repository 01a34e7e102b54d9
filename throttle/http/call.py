"""One call: all its tries, and what goes on between them. The same for every HTTP library.

A library's own file (`session`, `transport`) sends a request and hands over what came back; this
file waits for the turn, reads what the response says, decides on another try, and tells the hooks.
State: the tries left and the deadline (`Attempts`), the origin and the permit of the try under way.

Invariant: each try holds at most one slot of its origin and one permit; a wait between tries holds
neither.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio
from yarl import URL

from throttle import clock
from throttle.concurrency import holder
from throttle.errors import ServerThrottled
from throttle.http.budget import Budget
from throttle.http.events import Hooks, Retried, Signalled, Waited, shown
from throttle.http.origin import Origin
from throttle.http.retry import Decision, Retry
from throttle.http.routes import Routes
from throttle.http.signals import Headers, Overrides, Signal, read_signal

__all__ = ["Call", "Engine", "Guard"]


class Guard(Protocol):
    """Who decides whether a request may go at all, and watches what becomes of it."""

    async def before(self, method: str, url: URL) -> Callable[[], bool]:
        """Before the wait for a turn, of each try. Raises to forbid; may send requests itself.

        The answer is called after the wait: whether what was found is still so. If it is not, the
        turn is let go and all begins anew.
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
        "_origin",
        "_policy",
        "_sent",
        "_slot",
        "waited",
    )

    def __init__(self, engine: Engine, policy: Retry) -> None:
        self._engine = engine
        self._policy = policy
        self._attempts = policy.start(clock.now(), engine.budget)
        self._origin: Origin | None = None
        self._sent = 0.0  # on the limiter's clock
        self._began = 0.0
        self._slot: Callable[[], None] | None = None
        self.waited = 0.0  # seconds, over all tries

    @property
    def is_over(self) -> bool:
        """Whether no try is left."""
        return self._attempts.left == 0

    async def turn(self, method: str, url: URL) -> None:
        """Wait until a request may be sent. ServerThrottled, WaitTimeout; then nothing is held."""
        guard = self._engine.guard
        if guard is None:
            await self._wait(method, url)
            return
        while True:
            still_holds = await guard.before(method, url)
            await self._wait(method, url)
            if still_holds():
                return
            self.free_slot()
            self.ended()

    async def _wait(self, method: str, url: URL) -> None:
        origin = self._engine.routes.origin(url, method)
        began = clock.now()
        ends_at = self._attempts.ends_at
        if origin.slots is not None:
            await origin.slots.acquire(timeout=None if ends_at is None else ends_at - began)
            # Whoever closes the response later may be another task.
            self._slot = partial(origin.slots.release, holder())
        try:
            timeout = None if ends_at is None else max(0.0, ends_at - clock.now())
            self._sent = await origin.admit(max_wait=self._policy.max_wait, timeout=timeout)
        except BaseException:
            self.free_slot()
            raise
        self._origin = origin
        self._began = clock.now()
        waited = self._began - began
        if waited > 0:
            self.waited += waited
            self._engine.hooks.waited(Waited(origin.name, method, shown(url), waited))

    def take_slot(self) -> Callable[[], None] | None:
        """The function that ends the slot; from now on the caller's to call, once."""
        slot, self._slot = self._slot, None
        return slot

    def free_slot(self) -> None:
        """Nothing is in flight any more."""
        slot = self.take_slot()
        if slot is not None:
            slot()

    def ended(self) -> None:
        """The try is over without anything learned: cancelled, or an error of the caller's own."""
        if self._origin is not None:
            self._origin.settle(self._sent)
            self._origin = None

    async def answered(
        self, method: str, url: URL, sent: Headers, status: int, headers: Headers, body: Any
    ) -> Decision:
        """A response came. `sent` – the request's headers; `body` – what was read of the answer."""
        origin = self._origin
        self.ended()
        engine = self._engine
        overrides = None if engine.signals is None else engine.signals(url)
        signal = read_signal(status, headers, body=body, now=engine.wall(), overrides=overrides)
        decision = self._attempts.after_response(
            status, signal, method, sent, clock.now(), engine.random
        )
        if engine.guard is not None:
            seconds = clock.now() - self._began
            engine.guard.after(method, url, status, seconds, signal.throttled)
        if signal.throttled or signal.quotas or signal.wait_s is not None:
            await self._learn(origin, method, url, status, signal, decision)
        return decision

    async def _learn(
        self,
        origin: Origin | None,
        method: str,
        url: URL,
        status: int,
        signal: Signal,
        decision: Decision,
    ) -> None:
        backoff = decision.wait or self._policy.base
        if signal.throttled or signal.remaining == 0:
            for sibling in self._engine.routes.siblings(url, method):
                await sibling.learn(signal, backoff)
        elif origin is not None:
            await origin.learn(signal)
        name = origin.name if origin is not None else ""
        self._engine.hooks.signalled(Signalled(name, method, shown(url), status, signal))

    def failed(self, method: str, sent: Headers, *, left: bool) -> Decision:
        """The connection failed; `left` – whether anything of the request may have left."""
        self.ended()
        return self._attempts.after_error(method, sent, clock.now(), self._engine.random, sent=left)

    def tell(
        self,
        method: str,
        url: URL,
        decision: Decision,
        error: BaseException | None = None,
        *,
        instead: str | None = None,
    ) -> None:
        """Tell the hooks of a failed try; `instead` – why there is no other although it was due."""
        if decision.reason == "not a failure":
            return
        retry = decision.retry and instead is None
        self._engine.hooks.retried(
            Retried(
                origin=self._engine.routes.origin(url, method).name,
                method=method,
                url=shown(url),
                attempt=self._attempts.made,
                status=decision.status,
                error=error,
                wait=decision.wait if retry else None,
                reason=instead or decision.reason,
            )
        )

    def refusal(self, url: URL, method: str, decision: Decision) -> ServerThrottled:
        """The error for a pause longer than the caller would wait."""
        name = self._engine.routes.origin(url, method).name
        return decision.error(wall=self._engine.wall(), origin=name)

    async def rest(self, decision: Decision) -> None:
        """Wait for the next try; holds nothing meanwhile."""
        if decision.wait > 0:
            await anyio.sleep(decision.wait)
            self.waited += decision.wait
