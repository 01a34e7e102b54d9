"""All of: several limits at once, all or nothing.

A cost fits when it fits every member, so the wait is the longest of theirs; when one refuses, none
is charged. Such a limiter has no state but a pause of its own: what it spends, its members hold,
and members may stand alone or belong to other composites at the same time.

>>> from throttle import TokenBucket
>>> both = TokenBucket(rate=1, capacity=5) & TokenBucket(rate=1, capacity=1)
>>> [both.allow(now=0.0) for _ in range(2)], both.members[0].available(now=0.0)
([True, False], 4.0)
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Any, final

from throttle.checks import non_negative
from throttle.limiter import Cost, Limiter
from throttle.snapshot import describe

__all__ = ["AllOf"]


@final
class AllOf(Limiter):
    """`AllOf(a, b, …)` or `a & b`. `cost` is one number for all, or a tuple with one a member.

    Members must be local limiters that share a clock (TypeError, ValueError). `reset` resets them.
    """

    __slots__ = ("_members", "_nested")

    def __init__(self, *members: Limiter, **common: Any) -> None:
        if not members:
            raise ValueError("members: at least one limiter is needed")
        for member in members:
            if not isinstance(member, Limiter):
                raise TypeError(f"members must be local limiters, not {member!r}")
            if member._clock != members[0]._clock:
                raise ValueError(
                    f"members must share a clock: {members[0]!r} and {member!r} do not"
                )
        if "clock" in common:
            raise TypeError("clock is that of the members")
        super().__init__(clock=members[0]._clock, **common)
        self._members = members
        composites = [member for member in members if isinstance(member, AllOf)]
        self._nested: tuple[AllOf, ...] = tuple(
            node for member in composites for node in (member, *member._nested)
        )
        self._last = inf  # no time of its own: `now` goes on to the members as it is (`_back`)

    @property
    def members(self) -> tuple[Limiter, ...]:
        """The limiters as they were given."""
        return self._members

    def _checked(self, cost: Any) -> Any:
        if not isinstance(cost, tuple):
            return [member._checked(cost) for member in self._members][-1]
        if len(cost) != len(self._members):
            raise ValueError(
                f"cost must have one entry a member ({len(self._members)}), not {cost!r}"
            )
        parts = tuple(m._checked(part) for m, part in zip(self._members, cost, strict=True))
        return parts if any(parts) else 0

    def _needs(self, cost: Any) -> tuple[tuple[Limiter, float], ...]:
        parts = cost if isinstance(cost, tuple) else (cost,) * len(self._members)
        needs: dict[Limiter, float] = {}
        for member, part in zip(self._members, parts, strict=True):
            for leaf, share in member._needs(part):
                needs[leaf] = needs.get(leaf, 0) + share
        return tuple((leaf, share) for leaf, share in needs.items() if share)

    def _ready_at(self, now: float, cost: Any) -> float:
        return max(leaf._ready_at(now, share) for leaf, share in self._needs(cost))

    def _departs_at(self, now: float, cost: Any) -> float:
        return max(leaf._departs_at(now, share) for leaf, share in self._needs(cost))

    def _take(self, at: float, cost: Any) -> None:
        for leaf, share in self._needs(cost):
            leaf._spend(leaf._settle(at), share)

    def _try(self, now: float, cost: Any) -> bool:
        return self._enter_if(now, cost, departing=False)

    def _enter_by_departure(self, now: float, cost: Any) -> bool:
        return self._enter_if(now, cost, departing=True)

    def _enter_if(self, now: float, cost: Any, *, departing: bool) -> bool:
        if any(node._shut(now) for node in self._nested):
            return False
        needs = self._needs(cost)
        for leaf, share in needs:
            at = leaf._settle(now)
            ready = leaf._departs_at if departing else leaf._ready_at
            if leaf._shut(now) or ready(at, share) > at:
                return False
        self._take(now, cost)
        for leaf, _ in needs:
            leaf._granted += 1
        return True

    def _back(self, now: float) -> float:
        return now

    def _spend(self, at: float, cost: Any) -> None:
        self._take(at, cost)

    def _available(self, now: float) -> float:
        level = min(
            leaf.available(now) / share if share != 1 else leaf.available(now)
            for leaf, share in self._needs(1)
        )
        if any(node._side is not None and node._side.is_shut(now) for node in self._nested):
            return 0
        try:
            self._checked(level)
        except ValueError:  # a member takes whole costs only
            return floor(level)
        return level

    def _refund(self, now: float, cost: Any, at: float | None = None) -> None:
        for leaf, share in self._needs(cost):
            leaf._refund(leaf._settle(now), share, at)

    def _as_new_at(self, now: float) -> float:
        """The latest of its own and its members': their pauses and lines count too."""
        return max(super()._as_new_at(now), *(m._as_new_at(now) for m in self._members))

    def _fresh_at(self) -> float:
        return max(member._fresh_at() for member in self._members)

    def _restart(self) -> None:
        for member in self._members:
            member.reset()
        self._last = inf

    def _ceiling(self) -> float:
        return min(leaf._ceiling() / share for leaf, share in self._needs(1))

    def _parameters(self) -> dict[str, Any]:
        return {"members": [describe(member) for member in self._members]}

    def _state(self, now: float) -> tuple[Any, ...]:
        """For each member a row: the seconds of pause it has left, then its own numbers."""
        moments = [(member, member._settle(now)) for member in self._members]
        return tuple((m._pause_left(at), *m._state(at)) for m, at in moments)

    def _restore(self, now: float, numbers: tuple[Any, ...]) -> None:
        if len(numbers) != len(self._members) or not all(isinstance(n, tuple) for n in numbers):
            raise ValueError(f"numbers must have a row for each member, not {numbers!r}")
        for member, (pause, *rest) in zip(self._members, numbers, strict=True):
            member._restore(now, tuple(rest))
            member._pause_for(now, non_negative("pause", pause, infinite=True))

    def _clone(self) -> AllOf:
        return AllOf(*(member._clone() for member in self._members))

    if TYPE_CHECKING:  # the verbs are those of every limiter, and take a tuple as well

        def allow(self, now: float | None = None, cost: Cost = 1) -> bool: ...

        async def acquire(self, cost: Cost = 1, *, timeout: float | None = None) -> float: ...

        def acquire_sync(self, cost: Cost = 1, *, timeout: float | None = None) -> float: ...

        def ready_at(self, now: float | None = None, cost: Cost = 1) -> float: ...

        def delay(self, now: float | None = None, cost: Cost = 1) -> float: ...

        def charge(self, cost: Cost, now: float | None = None) -> None: ...

        def refund(self, cost: Cost, now: float | None = None) -> None: ...

    def __repr__(self) -> str:
        return f"AllOf({', '.join(map(repr, self._members))})"
