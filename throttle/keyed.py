"""A limiter for each key, and no more of them than needed.

A key is remembered from the first permit it takes until it could not be told from a new one, and
nobody waits on it. Each limiter can tell that instant (`fresh_at`), so every key is put down for
it: in a calendar of days, each day a list of keys, the days in a heap. A key that was used since is
put down again when its day comes. The further off the instant, the longer the day (a sixteenth of
the way), so that there are few days and a key is looked at about three times in its life.

No background task sweeps: whoever spends also looks at some keys whose day has come.

Limiters that `factory` puts into more than one key's composite (a limit for each user and one for
all) are common: what they owe keeps no key alive. Those of other engines, whose state lies in a
file or on a server, are in a table of their own: see `elsewhere`.

State: the limiters by key; the calendar; who was taken out before his day; how many callers are
inside `acquire` for a key. Invariant, under LOCK: each key of `_limiters` and `_gone` stands in the
calendar exactly once; a key with a caller inside is not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from heapq import heappop, heappush
from math import floor, frexp, inf, ldexp
from typing import Any, TypeVar, final

from throttle import checks, waiting
from throttle.clock import or_now
from throttle.elsewhere import Elsewhere
from throttle.entering import Entering
from throttle.errors import KeysFull
from throttle.limiter import Cost, Limiter, Stats, SupportsAcquire, is_limiter
from throttle.lock import LOCK

__all__ = ["Key", "Keyed"]

#: Keys looked at in one call, at most: some hundred microseconds.
_AT_ONCE = 256
#: Seconds until another look at a key of which nobody can tell when it will be as new.
_UNSURE = 1.0
#: Days are no shorter than this many seconds.
_SHORTEST = 2.0**-10


#: Names of the slots of each kind of limiter.
_SLOTS: dict[type, tuple[str, ...]] = {}

_T = TypeVar("_T")


@final
class Keyed:
    """`factory()` or `factory(key)` makes the limiter of a key when it is first needed.

    >>> from throttle import TokenBucket
    >>> users = Keyed(lambda: TokenBucket(rate=1, capacity=2))
    >>> [users.allow("ann", now=0.0) for _ in range(3)], users.allow("bob", now=0.0)
    ([True, True, False], True)
    >>> len(users), users.available("eve", now=0.0), len(users)
    (2, 2.0, 2)

    Every verb of a limiter is here with the key in front; `users["ann"]` is a handle with the verbs
    as they are. Keys are hashable values, falsy ones too. Looking at an unknown key stores nothing.
    A key is forgotten once it is as new; then `factory` makes it anew when it comes again, with
    its `initial`, if it has one. No more than `max_keys` are remembered: beyond that a new key that
    takes something is refused with KeysFull, since to forget a debt would be to forgive it.

    `factory` may also make a `FileLimiter`, a `RedisLimiter`, or whatever has an async `acquire`:
    then the verbs are that limiter's own (coroutines, if they are there; AttributeError for one it
    has not), and a key may be forgotten as soon as no call is inside.
    """

    __slots__ = (
        "_calendar",
        "_common",
        "_days",
        "_elsewhere",
        "_factory",
        "_gone",
        "_inside",
        "_latest",
        "_limiters",
        "_max_keys",
        "_seen",
        "_takes_key",
    )

    def __init__(
        self,
        factory: Callable[[], SupportsAcquire] | Callable[[Any], SupportsAcquire],
        *,
        max_keys: int = 100_000,
    ) -> None:
        self._takes_key = _takes_key(factory)
        self._factory: Callable[..., SupportsAcquire] = factory
        self._max_keys = checks.whole("max_keys", max_keys, least=1)
        self._limiters: dict[Hashable, Limiter] = {}
        self._gone: set[Hashable] = set()
        self._inside: dict[Hashable, int] = {}
        self._calendar: dict[float, list[Hashable]] = {}
        self._days: list[float] = []
        self._seen = -inf  # the latest instant at which a key was put down
        self._latest: frozenset[Limiter] = frozenset()
        self._common: frozenset[Limiter] = frozenset()
        self._elsewhere = Elsewhere()

    # ---------------------------------------------------------------- verbs that spend

    def allow(self, key: Hashable, now: float | None = None, cost: Cost = 1) -> bool:
        """`Limiter.allow` for `key`. KeysFull if the key is unknown and there is no room for it."""
        return self._spend(key, now, Limiter.allow, now=now, cost=cost)

    async def acquire(
        self, key: Hashable, cost: Cost = 1, *, timeout: float | None = None
    ) -> float:
        """`Limiter.acquire` for `key`: seconds waited. KeysFull at once if there is no room."""
        limiter = self._enter(key, self._found(key))
        try:
            waited: float = await limiter.acquire(cost, timeout=timeout)
            return waited
        finally:
            self._leave(key, limiter)

    def acquire_sync(self, key: Hashable, cost: Cost = 1, *, timeout: float | None = None) -> float:
        """`Limiter.acquire_sync` for `key`: seconds waited. KeysFull if there is no room."""
        limiter = self._enter(key, self._found(key))
        try:
            waited: float = limiter.acquire_sync(cost, timeout=timeout)
            return waited
        finally:
            self._leave(key, limiter)

    def charge(self, key: Hashable, cost: Cost, now: float | None = None) -> None:
        """`Limiter.charge` for `key`. KeysFull if it is unknown and there is no room for it."""
        return self._spend(key, now, Limiter.charge, cost=cost, now=now)

    def pause(self, key: Hashable, seconds: float, now: float | None = None) -> None:
        """`Limiter.pause` for `key` alone. KeysFull if it is new and there is no room for it."""
        return self._spend(key, now, Limiter.pause, seconds=seconds, now=now)

    # ---------------------------------------------------------------- verbs that store nothing

    def refund(self, key: Hashable, cost: Cost, now: float | None = None) -> None:
        """`Limiter.refund` for `key`."""
        return self._look(key, Limiter.refund, cost=cost, now=now)

    def resume(self, key: Hashable) -> None:
        """`Limiter.resume` for `key`."""
        return self._look(key, Limiter.resume)

    def ready_at(self, key: Hashable, now: float | None = None, cost: Cost = 1) -> float:
        """`Limiter.ready_at` for `key`: an instant, inf: never."""
        return self._look(key, Limiter.ready_at, now=now, cost=cost)

    def delay(self, key: Hashable, now: float | None = None, cost: Cost = 1) -> float:
        """`Limiter.delay` for `key`: seconds, inf: never."""
        return self._look(key, Limiter.delay, now=now, cost=cost)

    def available(self, key: Hashable, now: float | None = None) -> float:
        """`Limiter.available` for `key`: permits."""
        return self._look(key, Limiter.available, now=now)

    def fresh_at(self, key: Hashable, now: float | None = None) -> float:
        """`Limiter.fresh_at` for `key`: the instant from which it could not be told from a new one.

        A key is forgotten then, or soon after.
        """
        return self._look(key, Limiter.fresh_at, now=now)

    def reset(self, key: Hashable) -> None:
        """`Limiter.reset` for `key`: its state, pause and statistics. Who waits is served anew."""
        return self._look(key, Limiter.reset)

    def stats(self, key: Hashable) -> Stats:
        """`Limiter.stats` for `key`, since it was last forgotten."""
        return self._look(key, Limiter.stats)

    # ---------------------------------------------------------------- the table

    def __getitem__(self, key: Hashable) -> Key:
        """A handle bound to the key, whether it is known or not. It stores nothing by itself."""
        return Key(self, key)

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._limiters) + len(self._elsewhere)

    def __contains__(self, key: Hashable) -> bool:
        """Whether anything is remembered of `key`."""
        return key in self._limiters or key in self._elsewhere

    def __iter__(self) -> Iterator[Hashable]:
        """The keys that are remembered now."""
        return iter([*self._limiters, *self._elsewhere])

    def discard(self, key: Hashable) -> bool:
        """Forget `key` now, its debts and pauses too; answers whether it was known.

        Who waits for it still has a turn in the line that is left; newcomers start anew.
        """
        with LOCK:
            if key not in self._limiters:
                return self._elsewhere.discard(key)
            self._drop(key)
            return True

    def __repr__(self) -> str:
        return f"<Keyed: {len(self)} keys of at most {self._max_keys}>"

    # ---------------------------------------------------------------- finding and making

    def _found(self, key: Hashable) -> SupportsAcquire:
        """The limiter of the key, or one made for it. Not under LOCK: the factory is the user's."""
        limiter = self._limiters.get(key)
        if limiter is not None:
            return limiter
        other = self._elsewhere.get(key)
        return self._made(key) if other is None else other

    def _made(self, key: Hashable) -> SupportsAcquire:
        limiter = self._factory(key) if self._takes_key else self._factory()
        if not isinstance(limiter, Limiter):
            if not is_limiter(limiter):
                raise TypeError(f"factory must make a limiter, not {limiter!r} for {key!r}")
            return limiter
        leaves = frozenset(leaf for leaf, _ in limiter._needs(limiter._checked(1)))
        with LOCK:
            common, self._latest, before = leaves & self._latest, leaves, self._latest
            self._common |= common
        twins = {type(leaf): leaf for leaf in before}
        for leaf in leaves - self._common:
            _share(leaf, twins.get(type(leaf)))
        return limiter

    def _look(
        self,
        key: Hashable,
        verb: Callable[..., _T],
        /,
        **given: Any,
    ) -> _T:
        """Call the verb of this name, with arguments given by name."""
        found = self._found(key)
        if not isinstance(found, Limiter):
            return _passed_on(found, verb, given)
        with LOCK:
            answer: _T = getattr(self._limiters.get(key, found), verb.__name__)(**given)
            return answer

    def _spend(
        self,
        key: Hashable,
        now: float | None,
        verb: Callable[..., _T],
        /,
        **given: Any,
    ) -> _T:
        # The user's factory runs outside the lock; who was quicker by then, counts.
        found = self._found(key)
        if not isinstance(found, Limiter):
            other = self._enter(key, found)
            try:
                return _passed_on(other, verb, given)
            finally:
                self._leave(key, other)
        with LOCK:
            at = found._given(now)
            limiter = self._known(key, found, at)
            answer: _T = getattr(limiter, verb.__name__)(**given)
            if key not in self._limiters:
                fresh = self._fresh_at(limiter, at)
                if fresh > at:
                    self._store(key, limiter, fresh, at)
            return answer

    def _enter(self, key: Hashable, found: SupportsAcquire) -> Any:
        """A call goes in; the limiter it goes to. `_leave` must follow."""
        with LOCK:
            if not isinstance(found, Limiter):
                other = self._elsewhere.enter(key, found, self._max_keys - len(self._limiters))
                if other is None:
                    raise KeysFull(self._max_keys)
                return other
            at = found._now()
            limiter = self._known(key, found, at)
            if key not in self._limiters:
                self._store(key, limiter, at, at)
            self._inside[key] = self._inside.get(key, 0) + 1
            return limiter

    def _leave(self, key: Hashable, limiter: SupportsAcquire) -> None:
        if LOCK._is_owned():  # type: ignore[attr-defined]
            # The garbage collector closed an abandoned `acquire` in the middle of a decision.
            waiting.postpone(partial(self._count_out, key, limiter), ())
            return
        with LOCK:
            self._count_out(key, limiter)
            if (
                isinstance(limiter, Limiter)
                and key not in self._inside
                and self._limiters.get(key) is limiter
            ):
                at = limiter._now()
                if self._fresh_at(limiter, at) <= at:  # refused, or it cost nothing
                    self._drop(key)

    def _count_out(self, key: Hashable, limiter: SupportsAcquire) -> None:
        if not isinstance(limiter, Limiter):
            self._elsewhere.leave(key, limiter)
            return
        others = self._inside.pop(key) - 1
        if others:
            self._inside[key] = others

    def _known(self, key: Hashable, found: Limiter, at: float) -> Limiter:
        """The limiter of the key; `found` if it has none, and then there is room for it."""
        if self._days and self._days[0] <= at:
            self._sweep(at, at)
        limiter = self._limiters.get(key)
        if limiter is not None:
            return limiter
        # All that may be forgotten at this instant is forgotten before anybody is refused.
        looks = len(self._limiters)
        while len(self) >= self._max_keys:
            if self._elsewhere.forget(self._max_keys):
                continue
            if at < self._seen - _UNSURE:  # the clock was set back, and no day will come in time
                self._write_anew(at)
                self._seen = at
            if looks <= 0 or not self._days or self._days[0] > at + _SHORTEST:
                raise KeysFull(self._max_keys)
            looks -= self._sweep(at, at + _SHORTEST)
        return found

    # ---------------------------------------------------------------- remembering and forgetting

    def _fresh_at(self, limiter: Limiter, at: float) -> float:
        """From when on the key may be forgotten, as far as one can tell; `at` if that is now."""
        nodes = (limiter, *getattr(limiter, "_nested", ()))
        fresh = at + max(node._pause_left(at) for node in nodes)
        for leaf, _ in limiter._needs(limiter._checked(1)):
            if leaf not in self._common:
                leaf._settle(at)
                fresh = max(fresh, leaf._fresh_at(), at + leaf._pause_left(at))
        return or_now(fresh, at)

    def _store(self, key: Hashable, limiter: Limiter, fresh: float, at: float) -> None:
        self._limiters[key] = limiter
        if key in self._gone:
            self._gone.remove(key)  # it is still in the calendar
        else:
            self._put_down(key, fresh, at)

    def _drop(self, key: Hashable) -> None:
        del self._limiters[key]
        self._gone.add(key)
        if len(self._gone) > len(self._limiters) + _AT_ONCE:
            self._write_anew(self._days[0])  # worth the work by now

    def _write_anew(self, day: float) -> None:
        """Put all keys down for one day, and forget who was taken out."""
        self._gone.clear()
        self._calendar = {day: list(self._limiters)}
        self._days = [day]

    def _put_down(self, key: Hashable, fresh: float, at: float) -> None:
        self._seen = max(self._seen, at)
        left = fresh - at
        if left == inf:
            fresh, left = at + _UNSURE, _UNSURE
        length = max(_SHORTEST, ldexp(0.5, frexp(left / 16)[1]))
        day = floor(fresh / length) * length
        if day <= at < fresh:
            day += length
        keys = self._calendar.get(day)
        if keys is None:
            self._calendar[day] = [key]
            heappush(self._days, day)
        else:
            keys.append(key)

    def _sweep(self, at: float, upto: float) -> int:
        """Look at some keys whose day has come by `upto`; how many."""
        looks = 0
        while self._days and self._days[0] <= upto and looks < _AT_ONCE:
            keys = self._calendar[self._days[0]]
            later = []
            while keys and looks < _AT_ONCE:
                looks += 1
                key = keys.pop()
                limiter = self._limiters.get(key)
                if limiter is None:
                    self._gone.discard(key)  # it was dropped, or hashes otherwise by now
                    continue
                fresh = self._fresh_at(limiter, at)
                if fresh > at:
                    later.append((key, fresh))
                elif key in self._inside:
                    later.append((key, at + _UNSURE))
                else:
                    del self._limiters[key]
            if not keys:
                del self._calendar[heappop(self._days)]
            for key, fresh in later:
                self._put_down(key, fresh, at)
        return looks


@final
class Key(Entering):
    """One key of a `Keyed`: every verb of a limiter, bound to the key.

    It may be kept: it names the key, not the limiter that the key has at the moment.
    """

    __slots__ = ("_key", "_keyed")

    def __init__(self, keyed: Keyed, key: Hashable) -> None:
        self._keyed = keyed
        self._key = key

    def allow(self, now: float | None = None, cost: Cost = 1) -> bool:
        """`Keyed.allow`."""
        return self._keyed.allow(self._key, now, cost)

    async def acquire(self, cost: Cost = 1, *, timeout: float | None = None) -> float:
        """`Keyed.acquire`."""
        return await self._keyed.acquire(self._key, cost, timeout=timeout)

    def acquire_sync(self, cost: Cost = 1, *, timeout: float | None = None) -> float:
        """`Keyed.acquire_sync`."""
        return self._keyed.acquire_sync(self._key, cost, timeout=timeout)

    def charge(self, cost: Cost, now: float | None = None) -> None:
        """`Keyed.charge`."""
        return self._keyed.charge(self._key, cost, now)

    def refund(self, cost: Cost, now: float | None = None) -> None:
        """`Keyed.refund`."""
        return self._keyed.refund(self._key, cost, now)

    def pause(self, seconds: float, now: float | None = None) -> None:
        """`Keyed.pause`."""
        return self._keyed.pause(self._key, seconds, now)

    def resume(self) -> None:
        """`Keyed.resume`."""
        return self._keyed.resume(self._key)

    def ready_at(self, now: float | None = None, cost: Cost = 1) -> float:
        """`Keyed.ready_at`."""
        return self._keyed.ready_at(self._key, now, cost)

    def delay(self, now: float | None = None, cost: Cost = 1) -> float:
        """`Keyed.delay`."""
        return self._keyed.delay(self._key, now, cost)

    def available(self, now: float | None = None) -> float:
        """`Keyed.available`."""
        return self._keyed.available(self._key, now)

    def fresh_at(self, now: float | None = None) -> float:
        """`Keyed.fresh_at`."""
        return self._keyed.fresh_at(self._key, now)

    def reset(self) -> None:
        """`Keyed.reset`."""
        return self._keyed.reset(self._key)

    def stats(self) -> Stats:
        """`Keyed.stats`."""
        return self._keyed.stats(self._key)

    def __repr__(self) -> str:
        return f"{self._keyed!r}[{self._key!r}]"


def _passed_on(limiter: SupportsAcquire, verb: Callable[..., _T], given: dict[str, Any]) -> _T:
    """Call the verb of this name of another engine, which may know no `now`."""
    told = {name: value for name, value in given.items() if value is not None}
    answer: _T = getattr(limiter, verb.__name__)(**told)
    return answer


def _share(limiter: Limiter, twin: Limiter | None) -> None:
    """Let a limiter use the numbers of its twin where they are the same: parameters, mostly."""
    if twin is not None:
        kind = type(limiter)
        if kind not in _SLOTS:
            _SLOTS[kind] = tuple(
                name for base in kind.__mro__ for name in getattr(base, "__slots__", ())
            )
        for name in _SLOTS[kind]:
            own, other = getattr(limiter, name, None), getattr(twin, name, None)
            if type(own) is float and type(other) is float and own == other:
                setattr(limiter, name, other)


def _takes_key(factory: object) -> bool:
    """Whether a factory has a parameter that needs the key: one without a default."""
    from inspect import Parameter, signature

    if not callable(factory):
        raise TypeError(f"factory must be a function that makes a limiter, not {factory!r}")
    try:
        parameters = signature(factory).parameters.values()
    except ValueError:  # a builtin that does not tell
        return False
    needed = [
        p
        for p in parameters
        if p.default is Parameter.empty
        and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    if len(needed) > 1 or any(p.kind is Parameter.KEYWORD_ONLY for p in needed):
        raise TypeError(f"factory must take nothing or the key, not {', '.join(map(str, needed))}")
    return bool(needed)
