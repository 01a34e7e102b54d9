"""Limiter: the contract of every limiter, and every verb, built on two pure methods.

An algorithm says when a cost fits (`_ready_at`) and spends it (`_take`). Both take the instant as
an argument and know no clock, no lock and no waiting, so a refusal and the wait it names cannot
disagree. Everything a user calls is written here, once, on top of them.

State kept here: the instant of the last spending (time never runs backwards below it), the
statistics, and `_side`, which is None unless the limiter is paused or somebody waits in line.

Invariant: a decision and its spending happen under one lock, and no wait ever does.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from throttle import checks, clock, snapshot, waiting
from throttle.entering import Entering
from throttle.errors import CostTooLarge
from throttle.lock import LOCK

if TYPE_CHECKING:
    from throttle.algorithms.all_of import AllOf

__all__ = ["Cost", "Limiter", "Stats", "SupportsAcquire", "Waited", "is_limiter"]

# `with` costs as much again as the lock itself. `_acquire` stands inside its `try`, so that an
# interrupt right after it cannot leave the lock held for ever.
_acquire, _release = LOCK.acquire, LOCK.release

#: Permits; of a composite also one number for each member.
Cost = float | tuple[float, ...]

_ONE = 1
#: Permits that may be charged at once. A few of those are the most that floats add up exactly.
_MOST_CHARGED = 2**50
_T = TypeVar("_T", bound="Limiter")


class Stats(NamedTuple):
    """What a limiter has done since it was made (or reset): a snapshot that does not change."""

    granted: int
    """Calls let in, by `allow` and by `acquire`."""
    denied: int
    """Calls refused: `allow` that said False, `acquire` that failed."""
    waiting: int
    """Callers in line now."""
    seconds_waited: float
    """Seconds that all granted callers of `acquire` have waited, added up."""


class Waited(NamedTuple):
    """Somebody had to wait, and was let in: what `on_wait` is called with."""

    limiter: Limiter
    cost: Any
    """What was acquired, in permits."""
    seconds: float
    """How long it took."""


@runtime_checkable
class SupportsAcquire(Protocol):
    """What the decorator, the session and `Keyed` ask of a limiter: an async `acquire`."""

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float: ...


def is_limiter(candidate: Any) -> bool:
    """Whether it can be used as a `SupportsAcquire`, which no isinstance can tell: a semaphore has
    an `acquire` too, and that of a `Keyed` takes a key."""
    import inspect

    acquire: Any = getattr(candidate, "acquire", None)
    code = acquire if inspect.isroutine(acquire) else getattr(acquire, "__call__", None)  # noqa: B004
    if isinstance(candidate, type) or not any(map(inspect.iscoroutinefunction, (acquire, code))):
        return False
    try:
        bound = inspect.signature(acquire).bind(1, timeout=None)
    except (TypeError, ValueError):
        return False
    return "key" not in bound.arguments


class Limiter(Entering):
    """What every limiter can do. Not used itself: see `throttle.algorithms`.

    A new limiter is full since for ever; the first `now` it sees starts it. `now` is in seconds and
    `None` means the limiter's own clock. Costs are in permits, at least 0; a cost of 0 is always
    granted. Wrong arguments raise ValueError or TypeError naming the argument and the value, and
    change nothing.

    Every limiter takes, by keyword, `clock` (a function that tells seconds), `max_waiting` (callers
    in line at most; QueueFull) and `on_wait` (called with a `Waited` by each caller that had to
    wait, after its wait; calls that do not wait pay nothing for it; one that raises is logged).

    A subclass writes `_ready_at` and `_take`; what else it may write, docs/limiters.md says.
    """

    __slots__ = (
        "_clock",
        "_denied",
        "_granted",
        "_last",
        "_max_waiting",
        "_on_wait",
        "_side",
        "_waited",
    )

    _clock: Callable[[], float] | None
    _max_waiting: int | None
    _on_wait: Callable[[Waited], object] | None
    _side: waiting.Side | None
    _last: float
    _granted: int
    _denied: int
    _waited: float

    #: Seconds by which a late timer may still be charged as if it had been on time. Buckets only.
    _slack: float = 0.0
    #: Whether `_ready_at` can tell. False where permits are lent: inf is then "nobody knows when".
    _foreseen: bool = True

    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        # Here and not in `__init__`: a subclass that forgets to call that works all the same.
        # (A `__getattr__` that tells of it would make each read of a slot three times as dear.)
        self = super().__new__(cls)
        self._clock = self._max_waiting = self._on_wait = self._side = None
        self._last = -inf
        self._granted = self._denied = 0
        self._waited = 0.0
        return self

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        max_waiting: int | None = None,
        on_wait: Callable[[Waited], object] | None = None,
    ) -> None:
        if clock is not None and not callable(clock):
            raise TypeError(f"clock must be a function that tells seconds, not {clock!r}")
        if on_wait is not None and not callable(on_wait):
            raise TypeError(f"on_wait must be a function of an event, not {on_wait!r}")
        if max_waiting is not None:
            max_waiting = checks.whole("max_waiting", max_waiting, least=1)
        self._clock, self._max_waiting, self._on_wait = clock, max_waiting, on_wait

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A caller of `acquire` enters when it may depart; where that is the same as fitting, the
        # fused form serves both.
        same = cls._departs_at is Limiter._departs_at
        cls._enter = cls._try if same else cls._enter_by_departure  # type: ignore[method-assign]

    # ---------------------------------------------------------------- the two that decide

    def _ready_at(self, now: float, cost: float) -> float:
        """The earliest instant at which `cost` fits if nothing else is taken.

        `now` if it fits now, inf if it never does. Changes nothing.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define _ready_at(self, now, cost): the instant at which "
            "cost fits (now, if it does; inf, if it never does)"
        )

    def _take(self, at: float, cost: float) -> None:
        """Spend `cost` at the instant `at`, which may lie a little before the last one."""
        raise NotImplementedError(
            f"{type(self).__name__} must define _take(self, at, cost), which spends cost at the "
            "instant at"
        )

    # ---------------------------------------------------------------- what an algorithm may add

    def _try(self, now: float, cost: float) -> bool:
        """Spend `cost` if it fits at `now`. An algorithm may fuse it, to the same effect."""
        if self._ready_at(now, cost) > now:
            return False
        self._spend(now, cost)
        return True

    def _enter(self, now: float, cost: float) -> bool:
        """`_try` for a caller of `acquire`; set for each class, see `__init_subclass__`."""
        return self._try(now, cost)

    def _enter_by_departure(self, now: float, cost: float) -> bool:
        if self._departs_at(now, cost) > now:
            return False
        self._spend(now, cost)
        return True

    def _departs_at(self, now: float, cost: float) -> float:
        """When a caller of `acquire` may leave. A queue that evens its output says later."""
        return self._ready_at(now, cost)

    def _available(self, now: float) -> float:
        """What fits at `now`, in permits; below 0 in debt. Here: found by asking."""
        low, high = 0, 1
        while high < 2**53 and self._ready_at(now, high) <= now:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._ready_at(now, middle) <= now else (low, middle)
        return low

    def _shown(self, now: float, level: float, grain: float) -> float:
        """`level`, computed with a rounding of `grain` permits, as `available` may show it.

        A whole permit that fits within the tolerance is shown as one, and nothing that does not.
        """
        whole = float(round(level))
        if level < whole and self._ready_at(now, whole) <= now:
            return whole
        fits = level <= 0 or self._ready_at(now, level) <= now
        return level if fits else level - 4 * grain

    def _refund(self, now: float, cost: float, at: float | None = None) -> None:
        """Give `cost` back, never above full; `at` names the instant it was spent, if known."""
        raise NotImplementedError(f"{type(self).__name__} cannot give permits back")

    def _fresh_at(self) -> float:
        """The instant from which the state is that of a new limiter."""
        return inf

    def _span(self) -> float:
        """Seconds in which all is forgotten: a clock set back by more is another clock."""
        return inf

    def _shift(self, delta: float) -> None:
        """Move the state along the axis of time by `delta` seconds."""

    def _restart(self) -> None:
        """Become as new; set `_last` to inf if the first `now` has to be waited for."""
        raise NotImplementedError(f"{type(self).__name__} cannot be reset")

    def _ceiling(self) -> float:
        """The largest cost that can ever fit."""
        return inf

    def _retune(self, now: float, **parameters: Any) -> None:
        """Take new (checked) parameters at `now`, keeping what was earned so far."""
        raise NotImplementedError(f"{type(self).__name__} cannot take new parameters")

    def _parameters(self) -> dict[str, Any]:
        """The parameters by name, as plain values: a state fits only a limiter with the same."""
        raise NotImplementedError(f"{type(self).__name__} cannot write its state down")

    def _state(self, now: float) -> tuple[Any, ...]:
        """The state at `now` (settled) as numbers of at least 0: ages in seconds, and counts."""
        raise NotImplementedError(f"{type(self).__name__} cannot write its state down")

    def _restore(self, now: float, numbers: tuple[Any, ...]) -> None:
        """Take over numbers written by `_state` as if that had been at `now`, which becomes the
        last instant of the state. What does not fit raises (ValueError) before anything changes."""
        raise NotImplementedError(f"{type(self).__name__} cannot read a state")

    def _checked(self, cost: Any) -> Any:
        """`cost`, if it is one this limiter can take. (ValueError, TypeError)"""
        return checks.non_negative("cost", cost)

    def _chargeable(self, cost: Any) -> Any:
        """`cost`, if it can be charged. (ValueError, TypeError)"""
        cost = self._checked(cost)
        if any(share > _MOST_CHARGED for _, share in self._needs(cost)):
            raise ValueError(f"cost must be at most 2**50 to be charged, not {cost!r}")
        return cost

    def _needs(self, cost: Any) -> tuple[tuple[Limiter, float], ...]:
        """The limiters that `cost` is spent on, each with its share. More than one: a composite."""
        return ((self, cost),)

    def _pause_for(self, now: float, seconds: float) -> None:
        """Be paused from `now` for as long as this, whatever was asked before (0: not at all)."""
        if seconds and self._side is None:
            self._side = waiting.Side()
        if self._side is not None:
            self._side.paused_until = now + seconds if seconds else -inf

    def _pause_left(self, now: float) -> float:
        """Seconds of pause that are left at `now`."""
        return 0.0 if self._side is None else max(0.0, self._side.paused_until - now)

    def __getstate__(self) -> Any:
        """What `copy`, `deepcopy` and pickle take along: all, its pause too, but nobody in line."""
        with LOCK:
            state: Any = object.__getstate__(self)
            own, slots = state
            pause = None
            if self._side is not None and self._side.paused_until > -inf:
                pause = waiting.Side()
                pause.paused_until = self._side.paused_until
            return own, {**slots, "_side": pause}

    def _clone(self: _T) -> _T:
        """A limiter with the same parameters and state, nobody in line, and no pause."""
        new = copy(self)
        new._side = None
        return new

    # ---------------------------------------------------------------- time

    def _now(self) -> float:
        return clock.now() if self._clock is None else self._clock()

    def _given(self, now: float | None) -> float:
        return self._now() if now is None else checks.finite("now", now)

    def _settle(self, now: float) -> float:
        """`now` on the state's own axis of time: never before the last spending.

        A small step back is waited out: nothing is earned in it, and no span is earned twice. A
        step of more than the state's whole memory is another clock: the state moves there as it is.
        """
        return now if now >= self._last else self._back(now)

    def _back(self, now: float) -> float:
        last = self._last
        if now != now:
            raise ValueError(f"clock must tell seconds, not {now!r}")
        if last == inf:  # made with `initial=`: written down at instant 0 of no clock yet
            self._shift(now)
        elif last - now <= self._span() + clock.tolerance(last):
            return last
        else:
            self._shift(now - last)
            if self._side is not None:
                self._side.paused_until += now - last
        self._last = now
        return now

    def _spend(self, at: float, cost: Any) -> None:
        self._take(at, cost)
        if at > self._last:
            self._last = at

    def _shut(self, now: float) -> bool:
        """Whether newcomers must wait, however much is free: a pause, or somebody in line."""
        side = self._side
        if side is None:
            return False
        if side.is_shut(now):
            return True
        if side.is_idle(now):
            self._side = None
        return False

    # ---------------------------------------------------------------- the verbs

    def allow(self, now: float | None = None, cost: float = 1) -> bool:
        """Take `cost` permits if they are free at `now`; never waits. Thread-safe.

        False leaves no trace. False too while the limiter is paused or anybody waits in line, so
        that nobody is overtaken, and for a cost that can never fit.
        """
        if cost is not _ONE:
            cost = self._checked(cost)
            if not cost:
                return True
        try:
            _acquire()
            if now is None:
                now = clock.now() if self._clock is None else self._clock()
            elif type(now) is not float or not -inf < now < inf:
                now = checks.finite("now", now)
            if not now >= self._last:
                now = self._back(now)
            if (self._side is None or not self._shut(now)) and self._try(now, cost):
                self._granted += 1
                return True
            self._denied += 1
            return False
        finally:
            _release()

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """Wait in line for `cost` permits; answer the seconds waited. asyncio and trio.

        First come, first served, whatever the cost; one sleep, exactly until the computed instant.
        `timeout` is in seconds: None waits for ever, 0 tries; where the wait would be longer it
        fails at once with WaitTimeout, which carries the wait. Raises CostTooLarge at once for a
        cost that can never fit, QueueFull beyond `max_waiting`. A failed or cancelled acquire
        leaves no trace. Where nobody waits and the cost fits it returns without touching the event
        loop: that is not a checkpoint.
        """
        if cost is not _ONE:
            cost = self._checked(cost)
            if not cost:
                return 0.0
        if timeout is not None:
            timeout = checks.non_negative("timeout", timeout, infinite=True)
        try:
            _acquire()
            now = clock.now() if self._clock is None else self._clock()
            at = now if now >= self._last else self._back(now)
            if (self._side is None or not self._shut(at)) and self._enter(at, cost):
                self._granted += 1
                return 0.0
            waiter = waiting.join(self, cost, now, timeout, waiting.this_loop())
        finally:
            _release()
        try:
            await waiter
        except BaseException:
            waiting.abandon(waiter)
            raise
        return self._told(cost, waiting.stood(waiter, self._now()))

    def acquire_sync(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """`acquire` for a thread: blocks it until its turn; answers the seconds waited.

        Having to wait inside a running event loop is a RuntimeError: the loop would stand still.
        """
        if cost is not _ONE:
            cost = self._checked(cost)
            if not cost:
                return 0.0
        if timeout is not None:
            timeout = checks.non_negative("timeout", timeout, infinite=True)
        waiter = None
        try:
            with LOCK:
                now = self._now()
                at = self._settle(now)
                if not self._shut(at) and self._enter(at, cost):
                    self._granted += 1
                    return 0.0
                place = waiting.this_thread(blocks=timeout != 0)
                waiter = waiting.join(self, cost, now, timeout, place)
            waiter.block()
        except BaseException:
            if waiter is not None:
                waiting.abandon(waiter)
            raise
        return self._told(cost, waiting.stood(waiter, self._now()))

    def ready_at(self, now: float | None = None, cost: float = 1) -> float:
        """The instant at which `cost` fits for a newcomer at the end of the line; inf: never."""
        cost = self._checked(cost)
        with LOCK:
            now = self._given(now)
            return waiting.end_of_line(self, cost, now) if cost else now

    def delay(self, now: float | None = None, cost: float = 1) -> float:
        """Seconds until `ready_at`: what goes into a Retry-After header. inf: never."""
        cost = self._checked(cost)
        with LOCK:
            now = self._given(now)
            return waiting.end_of_line(self, cost, now) - now if cost else 0.0

    def available(self, now: float | None = None) -> float:
        """Permits that could be taken at `now`: 0 in debt, while paused, or behind a line."""
        with LOCK:
            now = self._settle(self._given(now))
            shut = self._side is not None and self._side.is_shut(now)
            return 0 if shut else max(0, self._available(now))

    def charge(self, cost: float, now: float | None = None) -> None:
        """Spend without asking, into debt if need be: for a cost known only afterwards.

        At most 2**50 at once (ValueError): a float could not count much beyond.
        """
        cost = self._chargeable(cost)
        if not cost:
            return
        with LOCK:
            self._spend(self._settle(self._given(now)), cost)
            waiting.changed(self)

    def refund(self, cost: float, now: float | None = None) -> None:
        """Give permits back, never above full: for a call that cost less than was taken."""
        cost = self._checked(cost)
        if not cost:
            return
        with LOCK:
            self._refund(self._settle(self._given(now)), cost)
            waiting.changed(self, eased=True)

    def pause(self, seconds: float, now: float | None = None) -> None:
        """Let nobody in for `seconds` (inf: until `resume`). The latest deadline of all wins."""
        seconds = checks.non_negative("seconds", seconds, infinite=True)
        with LOCK:
            until = self._settle(self._given(now)) + seconds
            if self._side is None:
                self._side = waiting.Side()
            self._side.paused_until = max(self._side.paused_until, until)
            waiting.changed(self)

    def resume(self) -> None:
        """Lift a pause early. Who waits is served at once, as far as the permits go."""
        with LOCK:
            if self._side is not None:
                self._side.paused_until = -inf
                waiting.changed(self, eased=True)

    def _told(self, cost: Any, seconds: float) -> float:
        """`seconds`, and whoever watches is told. Only who has waited comes here."""
        if self._on_wait is not None:
            try:
                self._on_wait(Waited(self, cost, seconds))
            except Exception:  # the permit is spent: the caller must not lose it to a watcher
                import logging

                logging.getLogger("throttle").exception("on_wait of %r failed", self)
        return seconds

    def stats(self) -> Stats:
        """A snapshot of what was granted, denied and waited."""
        with LOCK:
            return Stats(self._granted, self._denied, waiting.count(self), self._waited)

    def fresh_at(self, now: float | None = None) -> float:
        """The instant from which it cannot be told from a new one: when it may be forgotten.

        `now` if that is already so; inf while anybody waits, or if it never will be.
        """
        with LOCK:
            return self._as_new_at(self._given(now))

    def reset(self) -> None:
        """Become as new: state, pause and statistics. Who waits is served anew."""
        with LOCK:
            last, self._last = self._last, -inf
            try:
                self._restart()
            except NotImplementedError:
                self._last = last
                raise
            self._granted = self._denied = 0
            self._waited = 0.0
            self.resume()

    def state(self, now: float | None = None) -> dict[str, Any]:
        """What it knows, in plain values that JSON can hold; see `throttle.snapshot`.

        Times are ages in seconds, so that it can be restored in another process, by another clock.
        Waiters and statistics are no part of it.
        """
        with LOCK:
            return snapshot.write(self, self._settle(self._given(now)))

    def restore(self, state: dict[str, Any], now: float | None = None) -> None:
        """Take over a state written by a limiter of the same algorithm and parameters.

        `now` is the instant, on this limiter's clock, that the state speaks of: left out, no time
        has passed since; `time.monotonic() - 60` for a state that is a minute old. Who waits is
        timed anew. What does not fit is a ValueError or TypeError that says why, and changes
        nothing.
        """
        with LOCK:
            numbers, pause = snapshot.read(self, state)
            now = self._given(now)
            self._clone()._restore(now, numbers)  # raises while nothing has changed yet
            self._restore(now, numbers)
            self._pause_for(now, pause)
            waiting.changed(self)

    # ---------------------------------------------------------------- for the verbs of a subclass

    def _as_new_at(self, now: float) -> float:
        """`fresh_at`, under LOCK: a composite asks its members too."""
        self._settle(now)
        paused = -inf
        if self._side is not None:
            paused = self._side.paused_until
            if self._side.is_wanted():
                return inf
        return clock.or_now(max(paused, self._fresh_at()), now)

    def _level(self, now: float | None) -> float:
        """What fits, in permits: below 0 in debt; whoever waits, and paused or not."""
        with LOCK:
            return self._available(self._settle(self._given(now)))

    def _postpone(self, cost: float, at: float, most: float) -> None:
        """Count `cost` permits spent at `at` from now on, but from `at + most` at the latest."""
        with LOCK:
            now = self._settle(self._now())
            to = min(now, at + most)
            if to > at:
                self._refund(now, cost, at)
                self._spend(to, cost)
                if self._side is not None:
                    waiting.changed(self)

    def _change(self, **parameters: Any) -> None:
        """Set checked parameters while running; waiters are timed anew."""
        with LOCK:
            # A state made with `initial=` and not used yet is written down at instant 0.
            now = 0.0 if self._last == inf else self._settle(self._now())
            self._retune(now, **parameters)
            if self._fresh_at() > -inf:  # it is written down at `now`
                self._last = max(self._last, now)
            waiting.retuned(self)

    # ---------------------------------------------------------------- the shorter forms

    def __and__(self, other: Limiter) -> AllOf:
        """`a & b`: both, all or nothing."""
        if not isinstance(other, Limiter):
            return NotImplemented
        from throttle.algorithms.all_of import AllOf

        return AllOf(self, other)

    def _too_large(self, cost: object) -> CostTooLarge:
        return CostTooLarge(cost, self._ceiling())
