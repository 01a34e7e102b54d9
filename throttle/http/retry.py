"""Whether to try again, and when: the policy, `Retry`, and the state of one call, `Attempts`.

    Retry (frozen: what is allowed)  --start-->  Attempts (one call)  --after_…-->  Decision

The wait is what this response asks for, or the call's own backoff, whichever is longer; jitter only
adds to what a server asked. A method that may have been carried out is repeated only if repeating
it is harmless; a refusal (429) was not carried out, so anything may follow it. The state of a call
lives in an object and not in somebody's locals, because aiohttp may enter a chain of middlewares
twice for one call, and the tries and the deadline are those of the call.

Pure: no clock, no wait, no I/O; `now` (monotonic seconds, always the same clock) and the random
source are arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from throttle.checks import non_negative, positive, whole
from throttle.errors import ServerThrottled
from throttle.http.backoff import RandomSource, full_jitter, stretched
from throttle.http.budget import Budget
from throttle.http.signals import Headers, Signal, header_pairs

__all__ = ["Attempts", "Decision", "Reason", "Retry"]

# RFC 9110, 9.2.2.
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"})
TRANSIENT = frozenset({408, 429, 502, 503, 504, 529})

_IDEMPOTENCY_KEYS = frozenset(
    {"idempotency-key", "x-idempotency-key", "paypal-request-id", "repeatability-request-id"}
)

_NOTHING_ASKED = Signal()

Reason = Literal[
    "throttled",
    "status",
    "connection",
    "not a failure",
    "server said no",
    "not idempotent",
    "attempts",
    "max_wait",
    "deadline",
    "budget",
]
"""Why a call is tried again (the first three), or why not."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after one try.

    `retry` – try again after `wait` seconds; `reason` – why, or why not; `raises` – the answer is
    not to be handed to the caller: the server asks for a pause longer than the caller would wait;
    `retry_after` – what the server asked for, in seconds from the receipt, unshortened.
    """

    retry: bool
    wait: float
    reason: Reason
    raises: bool = False
    retry_after: float | None = None
    status: int | None = None

    def error(self, *, wall: float | None = None, origin: str | None = None) -> ServerThrottled:
        """The error to raise. `wall` – the wall clock at the receipt, for its `retry_at`."""
        asked = self.retry_after
        told = "" if asked is None else f"; the server asks to come back in {asked:.6g} s"
        return ServerThrottled(
            f"status {self.status}{told}; not tried again: {self.reason}",
            retry_after=asked,
            retry_at=None if asked is None or wall is None else wall + asked,
            status=self.status,
            origin=origin,
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """The policy. Immutable, and shared by any number of calls.

    `attempts` – tries of a call in all, the first included; 1 never tries again.
    `methods` – those that may be sent again although the first may have been carried out; the
    idempotent ones by default. Any method is tried again when it was refused (a 429, or another
    status with evidence of a throttle), when it never left (no connection), and when it carries an
    idempotency key. `statuses` – those worth another try.
    `base`, `cap` – own backoff, in seconds: a random share of min(cap, base · 2^n) before retry n,
    never less than `minimum`. `jitter` – the share by which a wait that a server asked for is
    stretched at random, by at most `cap`.
    `max_wait` – the longest wait, in seconds, a server may ask for; a longer one is not shortened,
    the call fails with it. None = any. `deadline` – seconds for the whole call; a wait that would
    run to its end or past it is not begun.
    `budget` – retries allowed for each call made, as a share, above `budget_floor` free ones a
    second; None = no budget. A wrong argument is a ValueError or TypeError naming it.
    """

    attempts: int = 5
    methods: Collection[str] = IDEMPOTENT
    statuses: Collection[int] = TRANSIENT
    base: float = 0.5
    cap: float = 60.0
    minimum: float = 0.0
    jitter: float = 0.1
    max_wait: float | None = 300.0
    deadline: float | None = None
    budget: float | None = 0.2
    budget_floor: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", whole("attempts", self.attempts, least=1))
        for name in ("base", "minimum", "jitter", "budget_floor"):
            non_negative(name, getattr(self, name))
        positive("cap", self.cap)
        if self.minimum > self.cap:
            raise ValueError(f"minimum must be at most cap={self.cap!r}, not {self.minimum!r}")
        for name in ("max_wait", "deadline", "budget"):
            value = getattr(self, name)
            if value is not None:
                non_negative(name, value)
        for name, kind in (("methods", str), ("statuses", int)):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Collection):
                raise TypeError(f"{name} must be a collection of {kind.__name__}, not {values!r}")
            for value in values:
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise TypeError(f"{name} must hold {kind.__name__}, not {value!r}")
        object.__setattr__(self, "methods", frozenset(one.upper() for one in self.methods))
        object.__setattr__(self, "statuses", frozenset(self.statuses))

    def new_budget(self) -> Budget | None:
        """The budget to hand to every `start`, one for all calls that shall share it."""
        return None if self.budget is None else Budget(self.budget, self.budget_floor)

    def start(self, now: float, budget: Budget | None = None) -> Attempts:
        """A call begins at `now` (monotonic seconds)."""
        if budget is not None:
            budget.deposit(now)
        return Attempts(self, now, budget)


class Attempts:
    """One call: the tries it has made, and the instant at which it must end.

    Each `after_…` tells of one try that is over, and answers what to do.
    """

    __slots__ = ("_budget", "_policy", "ends_at", "made")

    def __init__(self, policy: Retry, now: float, budget: Budget | None) -> None:
        self._policy = policy
        self._budget = budget
        self.made = 0
        self.ends_at = None if policy.deadline is None else now + policy.deadline

    @property
    def left(self) -> int:
        """Tries that may still be made."""
        return max(self._policy.attempts - self.made, 0)

    def after_response(
        self,
        status: int,
        signal: Signal,
        method: str,
        headers: Headers,
        now: float,
        random: RandomSource,
    ) -> Decision:
        """A response came. `headers` – those of the request (an idempotency key may be there)."""
        self.made += 1
        refusal: Reason | None = None
        failed = status in self._policy.statuses or signal.throttled
        if not failed and not (status >= 400 and signal.should_retry):
            refusal = "not a failure"
        elif signal.should_retry is False:
            refusal = "server said no"
        elif not _was_refused(status, signal) and not self._repeatable(method, headers):
            refusal = "not idempotent"
        why: Reason = "throttled" if signal.throttled or status == 429 else "status"
        return self._decide(refusal or why, refusal is not None, signal, status, now, random)

    def after_error(
        self, method: str, headers: Headers, now: float, random: RandomSource, *, sent: bool = True
    ) -> Decision:
        """The connection failed, or timed out.

        `sent=False` – it is certain that no byte of the request left, so that any method may
        follow; when in doubt, True.
        """
        self.made += 1
        final = sent and not self._repeatable(method, headers)
        reason: Reason = "not idempotent" if final else "connection"
        return self._decide(reason, final, _NOTHING_ASKED, None, now, random)

    def _repeatable(self, method: str, headers: Headers) -> bool:
        return method.upper() in self._policy.methods or _has_idempotency_key(headers)

    def _decide(
        self,
        reason: Reason,
        final: bool,
        signal: Signal,
        status: int | None,
        now: float,
        random: RandomSource,
    ) -> Decision:
        policy, asked = self._policy, signal.wait_s
        raises = False
        wait = full_jitter(self.made - 1, policy.base, policy.cap, random, minimum=policy.minimum)
        if asked is not None:
            wait = max(wait, stretched(asked + signal.pad_s, policy.jitter, policy.cap, random))
        if not final:
            stop: Reason | None = None
            if self.left == 0:
                stop = "attempts"
            elif asked is not None and policy.max_wait is not None and asked > policy.max_wait:
                stop, raises = "max_wait", True
            elif self.ends_at is not None and now + wait >= self.ends_at:
                # An answer that asks for more than is left is an error; a mere backoff is not.
                stop, raises = "deadline", asked is not None and now + asked >= self.ends_at
            elif self._budget is not None and not self._budget.withdraw(now):
                stop = "budget"
            final, reason = stop is not None, stop or reason
        return Decision(not final, 0.0 if final else wait, reason, raises, asked, status)


def _was_refused(status: int, signal: Signal) -> bool:
    # A bare 503 may come from a proxy whose backend has done the work.
    return status == 429 or (signal.throttled and signal.evidence != "status")


def _has_idempotency_key(headers: Headers) -> bool:
    for name, value in header_pairs(headers):
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if value and text.lower() in _IDEMPOTENCY_KEYS:
            return True
    return False
