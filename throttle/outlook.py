"""What will be: when a waiter may go, and what is left for a newcomer at the end of the line.

A newcomer is answered from a shadow: a copy of the limiter with the costs of the line applied. It
is made when first asked for and kept as long as all goes to plan, so that a caller with a timeout
costs the same however long the line is.

The answer for one limiter is exact. A composite is played through with the callers of the same
needs only: who else will come to stand in the lines of its members is not known yet, so its answer
is the earliest instant and not a promise. Nothing here changes what a decision could see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from throttle.clock import or_now, tolerance
from throttle.lines import OUT, Line, Queue, Shadow

if TYPE_CHECKING:
    from throttle.limiter import Limiter

__all__ = ["end_of_line", "plan", "replay"]

#: A limiter as it will be (to be seen, not changed), and the instant from which it is so.
_Model = tuple["Limiter", float]


def plan(leaf: Limiter, cost: float, arrived: float, moment: float) -> float:
    """The instant at which `cost` may go, for the first in line, who has waited since `arrived`.

    `moment` is now, on the limiter's own axis of time.
    """
    side = leaf._side
    start = arrived if arrived < moment else moment
    if side is not None and side.paused_until > start:
        start = side.paused_until
        if start == inf:
            return inf
    return leaf._departs_at(start, cost)


def end_of_line(
    asker: Limiter, cost: Any, now: float, *, departing: bool = False, enough: float = -inf
) -> float:
    """When `cost` would be let in after all who wait now; inf: never. Under LOCK.

    For a caller of `allow`, or with `departing` of `acquire`. An answer of at most `enough` may be
    later than the truth, which is then cheaper to tell.
    """
    shares = asker._needs(cost)
    if shares[0][0] is asker:
        models = {asker: _model(asker, now)}
    else:
        models = _after_group(frozenset(leaf for leaf, _ in shares), now)
    due = now
    for node in (asker, *getattr(asker, "_nested", ())):
        if node._side is not None:
            due = max(due, node._side.paused_until)
    for leaf, share in shares:
        model, start = models[leaf]
        at = (model._departs_at if departing else model._ready_at)(max(start, due), share)
        moment = leaf._settle(now)
        if at > moment + tolerance(moment):
            due = max(due, at)
    if due > enough:
        late = [leaf._side for leaf, _ in shares if leaf._side is not None and leaf._side.eased]
        if late:
            for side in late:
                side.spoil()
            return end_of_line(asker, cost, now, departing=departing)
    return or_now(due, now)


def replay(line: Line, now: float) -> Iterator[tuple[Any, float]]:
    """Who stands in `line` in order, each with the instant at which it will be let in.

    Who is taken out of the line by the caller does not delay those behind it.
    """
    leaf, side = line.leaf, line.leaf._side
    moment = leaf._settle(now)
    model = leaf._clone()
    for waiter in list(line):
        at = inf
        if side is not None and side.paused_until < inf:
            start = max(model._last, side.paused_until, min(waiter.arrived, moment))
            at = model._departs_at(start, waiter.cost)
        yield waiter, at
        if at < inf and waiter.order != OUT:
            model._spend(at, waiter.cost)


def _model(leaf: Limiter, now: float, besides: frozenset[Limiter] | None = None) -> _Model:
    """A limiter when its lines are gone, but for the guests that need exactly `besides`."""
    moment = leaf._settle(now)
    side = leaf._side
    if side is None:
        return leaf, moment
    start = max(moment, side.paused_until)
    lines = [line for line in side.lines.values() if line.counts()]
    if not lines:
        return leaf, start
    heads = dict.fromkeys(guest for line in lines for guest in line.guest_heads())
    guests = [guest for guest in heads if guest.line.leaves != besides]
    shadow = side.shadow
    if guests or shadow is None or shadow.basis != lines:
        shadow, side.eased = Shadow(leaf._clone(), lines), False
    coming = guests + [waiter for line in lines for waiter in _since(line, shadow.upto)]
    coming.sort(key=_order)
    model = shadow.model
    for waiter in coming:
        share = dict(waiter.cost.shares)[leaf] if waiter in heads else waiter.cost
        at = max(model._last, side.paused_until, min(waiter.arrived, moment))
        if at < inf:
            at = model._departs_at(at, share)
        if at < inf:
            model._spend(at, share)
        shadow.upto = waiter.order
    if not guests:  # they come and go between lines: not worth keeping
        side.shadow = shadow
    return model, max(start, model._last)


def _after_group(leaves: frozenset[Limiter], now: float) -> dict[Limiter, _Model]:
    """Several limiters when those have gone who need exactly them, and their own lines too."""
    near = min((leaf._side for leaf in leaves), key=lambda s: 0 if s is None else len(s.groups))
    groups = [] if near is None else [g for g in near.groups.values() if g.leaves == leaves]
    groups = [group for group in groups if group.counts()]
    if len(groups) != 1:
        models = {leaf: _model(leaf, now, leaves) for leaf in leaves}
        callers = sorted((waiter for group in groups for waiter in group), key=_order)
        return _played(models, callers) if callers else models
    (group,) = groups
    versions = [0 if leaf._side is None else leaf._side.version for leaf in leaves]
    kept: _Forecast | None = group.forecast
    if kept is None or kept.versions != versions:
        models = {leaf: _model(leaf, now, leaves) for leaf in leaves}
        kept = group.forecast = _Forecast(versions, _played(models, ()))
    callers = _since(group, kept.upto)
    if callers:
        kept.upto = callers[0].order
        kept.models = _played(kept.models, reversed(callers), copy=False)
    return kept.models


class _Forecast:
    """What `_after_group` said last: good while the sides of its limiters have these versions."""

    __slots__ = ("_lag", "models", "upto", "versions")

    def __init__(self, versions: list[int], models: dict[Limiter, _Model]) -> None:
        self.versions = versions
        self.models = models
        self.upto = OUT
        self._lag = 0.0

    def went(self, late: float, grace: float) -> None:
        """One of the group was let in, so many seconds after its time: as foreseen, or nearly."""
        self._lag += late
        if self._lag <= grace:
            self.versions = [version + 1 for version in self.versions]


def _played(
    models: dict[Limiter, _Model], callers: Iterable[Any], *, copy: bool = True
) -> dict[Limiter, _Model]:
    """What the models become when these callers of a composite have gone, in this order."""
    if copy:
        models = {leaf: (model._clone(), start) for leaf, (model, start) in models.items()}
    for waiter in callers:
        shares = waiter.cost.shares
        at = max(models[leaf][0]._departs_at(models[leaf][1], share) for leaf, share in shares)
        if at < inf:
            for leaf, share in shares:
                model, start = models[leaf]
                model._spend(at, share)
                models[leaf] = (model, max(start, at))
    return models


def _since(queue: Queue, upto: int) -> list[Any]:
    """Who came to a queue after number `upto`, newest first."""
    found = []
    for waiter in reversed(queue.waiters):
        if waiter.order != OUT:
            if waiter.order <= upto:
                break
            found.append(waiter)
    return found


def _order(waiter: Any) -> int:
    return int(waiter.order)
