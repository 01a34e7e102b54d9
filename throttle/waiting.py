"""The place that waits: who stands in line, and who goes when.

The state of a limiter is one; each event loop, and all threads together, have a line of their own
on it (`Line`). Within a line it is first come, first served, whatever the cost. Only the head of a
line has a timer; the others hold nothing but a place. When the head's instant comes, everybody
whose turn has come is let in, in order, each charged; then the next head is timed. Nothing polls,
and nothing runs while nobody waits.

A caller of a composite needs several limiters at once. Callers with the same needs form a `Group`,
first come, first served, and only its head stands anywhere: as a guest in the line of the member
that holds it back longest, placed there by its time of arrival. It moves when another member comes
to hold it back longer, so that a user who waits for himself delays nobody. Who had to move often
stands in all of its lines at once, which ends any chase.

Instants are charged on plan: `max(plan, now - slack)`, see `Limiter._slack`. What a newcomer at the
end of the line would get is answered from a shadow: a copy of the limiter with the costs of the
line applied, made when first asked for and kept as long as all goes to plan.

Invariants, under LOCK: a waiter is either in one queue, granted, or gone; a granted waiter has been
charged exactly once; a line with a live head that can go has a timer for it; no line is empty.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count as _counter
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, NamedTuple

from throttle.clock import tolerance
from throttle.errors import CostTooLarge, QueueFull, WaitTimeout
from throttle.parking import Place, this_loop, this_thread

if TYPE_CHECKING:
    from throttle.limiter import Limiter

__all__ = ["Side", "Ticket", "changed", "count", "end_of_line", "expire", "join", "leave"]
__all__ += ["this_loop", "this_thread"]

#: The lock of all decisions; `throttle.limiter` makes it.
LOCK: Any

#: A promise of "within `timeout`" is not broken because earlier timers fired late by this much (s).
_GRACE = 0.005
#: Moves between lines after which a guest stands in all of them.
_PATIENCE = 3

#: The order of a waiter that is in no queue any more.
_OUT = -1

_arrival = _counter()
_generation = 0


def _forget_lines() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lines)


class Ticket:
    """What every waiter carries. Its subclasses, in `throttle.parking`, know how to sleep."""

    __slots__ = ()
    FIELDS = ("arrived", "cost", "line", "order")

    arrived: float
    """The instant of its arrival, on the limiter's clock."""
    cost: Any
    """Permits; for a caller of a composite the `_Needs` it has."""
    line: Any
    """The queue it stands in (Line or Group); kept when granted, None when gone."""
    order: int
    """Its number among all who ever waited."""


class _Deadline(NamedTuple):
    """How long a waiter is willing to stand."""

    instant: float
    timeout: float
    guard: Any
    """A timer of its own: for those who stand in no line that would come to look at them."""


class _Needs:
    """What a caller of a composite waits for."""

    __slots__ = ("asker", "cost", "shares")

    def __init__(
        self, asker: Limiter, cost: Any, shares: tuple[tuple[Limiter, float], ...]
    ) -> None:
        self.asker = asker
        self.cost = cost
        self.shares = shares


class _Queue:
    """First in, first out, with O(1) leaving from the middle: who left is swept up later."""

    __slots__ = ("born", "dead", "deadlines", "place", "waiters")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.born = _generation
        self.waiters: deque[Any] = deque()
        self.dead = 0  # how many of `waiters` have left
        self.deadlines: dict[Any, _Deadline] = {}

    def __len__(self) -> int:
        return len(self.waiters) - self.dead

    def __iter__(self) -> Iterator[Any]:
        return (waiter for waiter in self.waiters if not waiter.gone)

    def first(self) -> Any:
        """The first who has not gone, or None."""
        waiters = self.waiters
        while waiters:
            waiter = waiters[0]
            if not waiter.gone:
                return waiter
            self.drop_first()
        return None

    def drop_first(self) -> None:
        """Take out the first: granted, failed or gone."""
        waiter = self.waiters.popleft()
        if waiter.order == _OUT:
            self.dead -= 1
        self._forget(waiter)

    def remove(self, waiter: Any) -> None:
        """Take out one that may stand anywhere here, or not any more."""
        if waiter.order == _OUT:
            return
        if self.waiters[0] is waiter:
            self.drop_first()
            return
        self._forget(waiter)
        self.dead += 1
        if self.dead > 16 and self.dead > len(self.waiters) // 2:
            self.waiters = deque(w for w in self.waiters if w.order != _OUT)
            self.dead = 0

    def _forget(self, waiter: Any) -> None:
        waiter.order = _OUT
        if self.deadlines:
            deadline = self.deadlines.pop(waiter, None)
            if deadline is not None and deadline.guard is not None:
                deadline.guard.cancel()


class Line(_Queue):
    """Who waits for one limiter in one place: its own callers, and the heads of groups as guests."""

    __slots__ = ("due", "early", "guests", "leaf", "timed", "timer")

    def __init__(self, leaf: Limiter, place: Place) -> None:
        super().__init__(place)
        self.leaf = leaf
        self.guests: list[
            tuple[int, int, Any]
        ] = []  # a heap: order, a tie-break, the head of a group
        self.timer: Any = None
        self.timed: Any = None  # the head that the timer is for
        self.due = inf
        self.early = 0

    def head(self) -> Any:
        """The senior of the first caller and the first guest, or None."""
        first, guests = self.first(), self.guests
        while guests:
            order, _, guest = guests[0]
            group = guest.line
            if (
                group is not None
                and not guest.gone
                and group.shown is guest
                and self in group.bound
            ):
                return guest if first is None or order < first.order else first
            heappop(guests)
        return first

    def counts(self) -> bool:
        """Whether somebody waits here who can still come back."""
        return self.born == _generation and self.place.alive() and self.head() is not None

    def due_now(self) -> None:
        """The timer fired; timers may fire early."""
        with LOCK:
            self.timer = None
            now = self.leaf._now()
            self.early = self.early + 1 if self.due > now + tolerance(now) else 0
            self.due = inf
            _serve(self)


class Group(_Queue):
    """Callers with the same needs in one place. Only the first stands in lines: those in `bound`."""

    __slots__ = ("bound", "holder", "home", "key", "moves", "shown")

    def __init__(self, place: Place, home: Limiter, key: Any) -> None:
        super().__init__(place)
        self.home = home  # the limiter whose side keeps it
        self.key = key
        self.shown: Any = None  # the head, once it has been placed
        self.bound: tuple[Line, ...] = ()
        self.holder: Limiter | None = None
        self.moves = 0

    def counts(self) -> bool:
        """Whether somebody waits here who can still come back."""
        return self.born == _generation and self.place.alive() and self.first() is not None


class Side:
    """What a limiter has only while it is paused or waited for."""

    __slots__ = ("delayed", "groups", "late", "lines", "paused_until", "shadow", "upto")

    def __init__(self) -> None:
        self.paused_until = -inf
        self.lines: dict[Any, Line] = {}
        self.groups: dict[Any, Group] = {}
        self.shadow: Limiter | None = None
        self.upto = -1  # number of the last waiter whose cost the shadow holds
        self.late = 0
        self.delayed = False  # somebody in line may have to wait longer than it was told

    def is_shut(self, now: float) -> bool:
        """Whether a newcomer has to wait behind a pause or a line."""
        if self.paused_until > now + tolerance(now):
            return True
        return bool(self.lines) and any(line.counts() for line in self.lines.values())

    def is_idle(self, now: float) -> bool:
        """Whether it may be dropped: no pause, and no line that could ever move again."""
        for key, line in list(self.lines.items()):
            if line.born != _generation or line.place.over():
                line.place.stop(line)
                del self.lines[key]
                self.shadow = None
        for key, group in list(self.groups.items()):
            if group.born != _generation or group.place.over():
                del self.groups[key]
        return not self.lines and not self.groups and self.paused_until <= now


# -------------------------------------------------------------------- coming and going


def join(asker: Limiter, cost: Any, now: float, timeout: float | None, place: Place) -> Any:
    """Stand in line; the waiter to sleep on. Under LOCK. CostTooLarge, QueueFull, WaitTimeout."""
    try:
        shares = asker._needs(cost)
        for leaf, share in shares:
            if leaf._ready_at(leaf._settle(now), share) == inf:
                raise asker._too_large(cost)
        most = asker._max_waiting
        if most is not None and count(asker) >= most and count(asker, exact=True) >= most:
            raise QueueFull(most)
        if timeout is not None:
            delay = end_of_line(asker, cost, now, departing=True) - now
            if delay > timeout + tolerance(now):
                raise WaitTimeout(delay, timeout)
    except (CostTooLarge, QueueFull, WaitTimeout):
        asker._denied += 1
        raise
    waiter = place.waiter()
    waiter.arrived, waiter.order = now, next(_arrival)
    queue: Line | Group
    if shares[0][0] is asker:
        waiter.cost = cost
        queue = _line(asker, place)
    else:
        waiter.cost = _Needs(asker, cost, shares)
        queue = _group(shares, place)
    waiter.line = queue
    queue.waiters.append(waiter)
    if timeout is not None and timeout < inf:
        alone = isinstance(queue, Group) or queue.guests
        guard = place.guard(waiter, timeout + _GRACE) if alone else None
        queue.deadlines[waiter] = _Deadline(now + timeout, timeout, guard)
    if queue.first() is waiter:
        _serve(queue)
    return waiter


def leave(waiter: Any) -> None:
    """A waiter's call was cancelled or failed: undo whatever it holds. Its grant goes to the next."""
    with LOCK:
        queue, at = waiter.line, waiter.at
        if queue is None:
            return
        waiter.line = None
        asker, shares = _wanted(waiter, queue)
        if at is None:
            queue.remove(waiter)
            for leaf, _ in shares:
                _spoil(leaf)
            _visit(queue)
            return
        asker._granted -= 1
        for (leaf, share), instant in zip(shares, at, strict=True):
            leaf._refund(leaf._settle(leaf._now()), share, instant)
            if leaf is not asker:
                leaf._granted -= 1
        for leaf, _ in shares:
            changed(leaf)


def expire(waiter: Any) -> None:
    """The waiter's own timeout is over and nobody came to look at it."""
    with LOCK:
        queue = waiter.line
        if queue is not None and not waiter.gone:
            deadline = queue.deadlines.get(waiter)
            if deadline is not None:
                _fail(waiter, queue, WaitTimeout(_outlook(waiter, queue), deadline.timeout))
                _serve(queue)


def changed(limiter: Limiter) -> None:
    """Something else than a grant moved the state: time every head anew. Under LOCK."""
    for target in {limiter, *(leaf for leaf, _ in limiter._needs(limiter._checked(1)))}:
        side = target._side
        if side is None:
            continue
        side.shadow, side.delayed = None, True
        for line in list(side.lines.values()):
            _visit(line)
        _tidy(target)


def count(asker: Limiter, *, exact: bool = False) -> int:
    """How many callers of this limiter stand in line. Under LOCK.

    `exact` leaves out those who were cancelled but have not run yet to say so.
    """
    leaves = [leaf for leaf, _ in asker._needs(asker._checked(1))]
    side = min(leaves, key=id)._side
    if side is None:
        return 0
    if leaves[0] is asker:
        lines = [line for line in side.lines.values() if line.counts()]
        return sum(sum(1 for _ in line) if exact else len(line) for line in lines)
    groups = [group for group in side.groups.values() if group.counts()]
    return sum(waiter.cost.asker is asker for group in groups for waiter in group)


# -------------------------------------------------------------------- who goes when


def _visit(queue: _Queue) -> None:
    """Serve a queue from wherever the running code happens to be."""
    if queue.born != _generation or queue.place.over():
        return
    if queue.place.here():
        _serve(queue)
    else:
        queue.place.poke(lambda: _serve_locked(queue))


def _serve_locked(queue: _Queue) -> None:
    with LOCK:
        _serve(queue)


def _serve(queue: _Queue) -> None:
    """Let in all whose turn has come, starting with this queue; time the heads that remain."""
    todo = [queue]
    while todo:
        queue = todo.pop()
        if isinstance(queue, Line):
            _advance(queue, todo)
        elif isinstance(queue, Group):
            _expose(queue, todo)


def _advance(line: Line, todo: list[_Queue]) -> None:
    """Let in from the head of a line as far as it goes, and time the next head."""
    leaf = line.leaf
    now = leaf._now()
    while (waiter := line.head()) is not None:
        queue = waiter.line
        try:
            if queue is line:
                due = _let_in(waiter, line, now)
            else:
                due = _let_in_guest(waiter, line, now, todo)
        except Exception as error:  # a clock or an algorithm of the user's own: its caller is told
            _fail(waiter, queue, error)
            if queue is not line:
                todo.append(queue)
            continue
        if due is not None:
            _arm(line, waiter, due, now)
            if line.deadlines and leaf._side is not None and leaf._side.delayed:
                _sweep(line, now)
            return
    line.place.stop(line)
    line.due, line.timed = inf, None
    if leaf._side is not None and leaf._side.lines.get(line.place.key) is line:
        del leaf._side.lines[line.place.key]
    _tidy(leaf)


def _let_in(waiter: Any, line: Line, now: float) -> float | None:
    """Grant or fail the head of its own line; or the instant at which to look again."""
    leaf, cost = line.leaf, waiter.cost
    moment = leaf._settle(now)
    plan = _plan(leaf, cost, waiter.arrived, moment)
    if plan <= moment + tolerance(moment):
        at = max(plan, moment - leaf._slack)
        leaf._spend(at, cost)
        if at > plan or len(leaf._side.lines) > 1:  # type: ignore[union-attr]
            _late(leaf, line)
        leaf._granted += 1
        leaf._waited += now - waiter.arrived
        line.drop_first()
        waiter.wake((at,))
        return None
    error = _hopeless(waiter, line, plan, now)
    if error is None:
        return plan
    _fail(waiter, line, error)
    return None


def _let_in_guest(waiter: Any, line: Line, now: float, todo: list[_Queue]) -> float | None:
    """The same for the head of a group, which may also move to another line."""
    group: Group = waiter.line
    needs: _Needs = waiter.cost
    due, hold, instants = _weigh(waiter, group, now)
    if hold is None:
        for (leaf, share), at in zip(needs.shares, instants, strict=True):
            leaf._spend(at, share)
            leaf._granted += 1
            _spoil(leaf)
        needs.asker._granted += 1
        needs.asker._waited += now - waiter.arrived
        _release(group, todo)
        group.drop_first()
        waiter.wake(tuple(instants))
        return None
    error = _hopeless(waiter, group, due, now)
    if error is not None:
        _release(group, todo)
        _fail(waiter, group, error)
        return None
    if hold is line.leaf:
        return due
    if group.moves < _PATIENCE:
        group.moves += 1
        _bind(group, waiter, [hold], todo)
        return None
    if len(group.bound) == 1:
        _bind(group, waiter, [hold, *(leaf for leaf, _ in needs.shares)], todo)
    # It stands in every line; here it is the head, and the line that holds it will time it.
    return due if all(bound.head() is waiter for bound in group.bound) else inf


def _expose(group: Group, todo: list[_Queue]) -> None:
    """Put the head of a group where it has to wait, or let it in if it has not."""
    waiter = group.first()
    if waiter is None:
        _release(group, todo)
        side = group.home._side
        if side is not None and side.groups.get(group.key) is group:
            del side.groups[group.key]
        return
    if group.shown is waiter:
        return
    if group.shown is not None:  # it left; the lines it stood in move on
        todo.extend(group.bound)
        group.bound, group.holder, group.moves = (), None, 0
    group.shown = waiter
    now = waiter.cost.asker._now()
    _, hold, _ = _weigh(waiter, group, now)
    _bind(group, waiter, [hold or waiter.cost.shares[0][0]], todo)


def _weigh(waiter: Any, group: Group, now: float) -> tuple[float, Limiter | None, list[float]]:
    """Which member holds a caller back longest, until when; None when nothing does, and then the
    instants at which each member is to be charged."""
    needs: _Needs = waiter.cost
    due, hold, instants = -inf, None, []
    for leaf, share in needs.shares:
        moment = leaf._settle(now)
        plan = _plan(leaf, share, waiter.arrived, moment)
        instants.append(max(plan, moment - leaf._slack))
        held = plan if plan > moment + tolerance(moment) else -inf
        line = leaf._side.lines.get(group.place.key) if leaf._side is not None else None
        if line is not None:
            head = line.head()
            if head is not None and head is not waiter and head.order < waiter.order:
                held = max(held, line.due if line.due < inf else now, nextafter(now, inf))
        if held > due or (held == due and hold is not None and leaf is group.holder):
            due, hold = held, leaf
    for node in (needs.asker, *getattr(needs.asker, "_nested", ())):
        if node._side is not None and node._side.paused_until > max(due, now + tolerance(now)):
            due, hold = node._side.paused_until, node
    return due, hold, instants


def _plan(leaf: Limiter, cost: float, arrived: float, moment: float) -> float:
    """The instant at which `cost` may go, for one who has waited since `arrived`."""
    side = leaf._side
    start = arrived if arrived < moment else moment
    if side is not None and side.paused_until > start:
        start = side.paused_until
        if start == inf:
            return inf
    return leaf._departs_at(start, cost)


def _hopeless(waiter: Any, queue: _Queue, due: float, now: float) -> Exception | None:
    """The error for one who can never go, or not within its timeout."""
    if due == inf:
        asker, shares = _wanted(waiter, queue)
        if any(leaf._departs_at(leaf._settle(now), share) == inf for leaf, share in shares):
            return asker._too_large(waiter.cost if asker is shares[0][0] else waiter.cost.cost)
    if queue.deadlines:
        deadline = queue.deadlines.get(waiter)
        if deadline is not None and due > deadline.instant + _GRACE:
            return WaitTimeout(due - now, deadline.timeout)
    return None


def _fail(waiter: Any, queue: _Queue, error: Exception) -> None:
    _wanted(waiter, queue)[0]._denied += 1
    queue.remove(waiter)
    waiter.line = None
    waiter.fail(error)


def _wanted(waiter: Any, queue: _Queue) -> tuple[Limiter, tuple[tuple[Limiter, float], ...]]:
    if isinstance(queue, Line):
        return queue.leaf, ((queue.leaf, waiter.cost),)
    return waiter.cost.asker, waiter.cost.shares


# -------------------------------------------------------------------- lines and their timers


def _line(leaf: Limiter, place: Place) -> Line:
    if leaf._side is None:
        leaf._side = Side()
    line = leaf._side.lines.get(place.key)
    if line is None or line.born != _generation or line.place.over():
        line = leaf._side.lines[place.key] = Line(leaf, place)
    return line


def _group(shares: tuple[tuple[Limiter, float], ...], place: Place) -> Group:
    leaves = frozenset(leaf for leaf, _ in shares)
    home = min(leaves, key=id)
    if home._side is None:
        home._side = Side()
    key = (place.key, leaves)
    group = home._side.groups.get(key)
    if group is None or not group.counts():
        group = home._side.groups[key] = Group(place, home, key)
    return group


def _bind(group: Group, waiter: Any, holders: list[Limiter], todo: list[_Queue]) -> None:
    """Let the head of a group stand in the lines of these limiters, and in no other."""
    before = group.bound
    group.holder = holders[0]
    group.bound = tuple(dict.fromkeys(_line(leaf, group.place) for leaf in holders))
    for line in group.bound:
        if line not in before:
            heappush(line.guests, (waiter.order, next(_arrival), waiter))
            _guard(line)
            if line.head() is waiter:
                todo.append(line)
    todo.extend(line for line in before if line not in group.bound)


def _release(group: Group, todo: list[_Queue]) -> None:
    """The head of a group has gone: its lines move on, and the next one has to be placed."""
    todo.extend(group.bound)
    if group.shown is not None:
        todo.append(group)
    group.shown, group.bound, group.holder, group.moves = None, (), None, 0


def _arm(line: Line, head: Any, due: float, now: float) -> None:
    if line.timer is not None and due == line.due and head is line.timed:
        return
    line.due, line.timed = due, head
    delay = due - now
    if line.early > 1:
        # This loop rounds its timers down; asking for less than it can tell would spin.
        delay = max(delay, 0.001)
    line.place.time(line, delay)


def _guard(line: Line) -> None:
    """Behind a guest nobody can tell when its turn comes: who has a timeout gets a timer of its own."""
    for waiter, deadline in line.deadlines.items():
        if deadline.guard is None:
            delay = deadline.instant + _GRACE - line.leaf._now()
            guard = line.place.guard(waiter, max(0.0, delay))
            line.deadlines[waiter] = deadline._replace(guard=guard)


def _tidy(limiter: Limiter) -> None:
    """Drop the side of a limiter that is neither paused nor waited for."""
    # Not by the limiter's clock: a pause may have been asked for with a `now` of the caller's own.
    if limiter._side is not None and limiter._side.is_idle(-inf):
        limiter._side = None


# -------------------------------------------------------------------- the end of the line


def end_of_line(asker: Limiter, cost: Any, now: float, *, departing: bool = False) -> float:
    """When `cost` would be let in after all who wait now; inf: never. Under LOCK.

    For a caller of `allow`, or with `departing` of `acquire`.
    """
    shares = asker._needs(cost)
    models = {leaf: _model(leaf, now) for leaf, _ in shares}
    if shares[0][0] is not asker:
        _apply_group(shares, models)
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
    return due if due > now + tolerance(now) else now


def _apply_group(
    shares: tuple[tuple[Limiter, float], ...], models: dict[Limiter, tuple[Limiter, float]]
) -> None:
    """Let those with the same needs go first, as far as one can tell: each member's line is looked
    at by itself, so the answer is the earliest instant, not a promise."""
    leaves = frozenset(models)
    side = min(leaves, key=id)._side
    groups = [] if side is None else [g for g in side.groups.values() if g.key[1] == leaves]
    queue = sorted((waiter for group in groups if group.counts() for waiter in group), key=_order)
    if not queue:
        return
    for leaf, (model, start) in models.items():
        models[leaf] = (model._clone(), start)
    for waiter in queue:
        at = max(models[leaf][0]._departs_at(models[leaf][1], c) for leaf, c in waiter.cost.shares)
        if at < inf:
            for leaf, share in waiter.cost.shares:
                models[leaf][0]._spend(at, share)
            for leaf, (model, start) in models.items():
                models[leaf] = (model, max(start, at))


def _order(waiter: Any) -> int:
    return int(waiter.order)


def _model(leaf: Limiter, now: float) -> tuple[Limiter, float]:
    """A limiter as it will be when its line is gone, and the instant of that. Not to be changed."""
    moment = leaf._settle(now)
    side = leaf._side
    if side is None:
        return leaf, moment
    start = max(moment, side.paused_until)
    lines = [line for line in side.lines.values() if line.counts()]
    guests = [guest for line in lines for _, _, guest in line.guests if line in _bound(guest)]
    if not guests and not any(len(line) for line in lines):
        return leaf, start
    if guests:  # they come and go between lines: not worth keeping
        shadow, upto = leaf._clone(), _OUT
    elif side.shadow is None:
        shadow, upto, side.late = leaf._clone(), _OUT, 0
    else:
        shadow, upto = side.shadow, side.upto
    fresh = list(guests)
    for line in lines:
        for waiter in reversed(line.waiters):
            if waiter.order <= upto and waiter.order != _OUT:
                break
            if not waiter.gone:
                fresh.append(waiter)
    for waiter in sorted(fresh, key=_order):
        share = dict(waiter.cost.shares)[leaf] if isinstance(waiter.cost, _Needs) else waiter.cost
        at = max(shadow._last, side.paused_until, min(waiter.arrived, moment))
        at = shadow._departs_at(at, share)
        if at < inf:
            shadow._spend(at, share)
        upto = waiter.order
    if not guests:
        side.shadow, side.upto = shadow, upto
    return shadow, max(start, shadow._last)


def _bound(guest: Any) -> tuple[Line, ...]:
    group = guest.line
    return group.bound if group is not None and group.shown is guest and not guest.gone else ()


def _sweep(line: Line, now: float) -> None:
    """Things went otherwise than planned: fail at once all who can no longer go within their timeout."""
    leaf, side = line.leaf, line.leaf._side
    if side is None:
        return
    moment = leaf._settle(now)
    shadow = leaf._clone()
    upto = _OUT
    for waiter in list(line):
        start = max(shadow._last, side.paused_until, min(waiter.arrived, moment))
        at = shadow._departs_at(start, waiter.cost) if start < inf else inf
        error = _hopeless(waiter, line, at, now)
        if error is not None:
            _fail(waiter, line, error)
            continue
        if at < inf:
            shadow._spend(at, waiter.cost)
        upto = waiter.order
    side.shadow, side.upto, side.late, side.delayed = shadow, upto, 0, False


def _outlook(waiter: Any, queue: _Queue) -> float:
    """Seconds that a waiter whose timeout is over would still have had to wait, at the least."""
    asker, shares = _wanted(waiter, queue)
    now = asker._now()
    plans = (_plan(leaf, share, now, leaf._settle(now)) for leaf, share in shares)
    return max(0.0, max(plans) - now)


def _spoil(leaf: Limiter) -> None:
    if leaf._side is not None:
        leaf._side.shadow = None


def _late(leaf: Limiter, line: Line) -> None:
    """A grant was charged later than planned, so the shadow runs ahead by that much. It is made
    anew only after a share of the line has gone, so that the work per grant stays bounded."""
    side = leaf._side
    if side is not None:
        side.late += 1
        if side.late * 8 > len(line):
            side.shadow, side.delayed = None, True
