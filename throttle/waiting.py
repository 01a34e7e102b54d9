"""The place that waits: who goes when.

The state of a limiter is one; each event loop, and all threads together, have a line of their own
on it. Within a line it is first come, first served, whatever the cost. Only the head of a line has
a timer; the others hold nothing but a place. When the head's instant comes, everybody whose turn
has come is let in, in order, each charged; then the next head is timed. Nothing polls, and nothing
runs while nobody waits.

A caller of a composite needs several limiters at once. Callers with the same needs form a group,
first come, first served, and only its head stands anywhere: as a guest in the line of the member
that holds it back longest, placed there by its time of arrival. It moves when another member comes
to hold it back longer, so that a user who waits for himself delays nobody. Who had to move often
stands in all of its lines at once, which ends any chase.

Instants are charged on plan: `max(plan, now - slack)`, see `Limiter._slack`.

Invariants, under LOCK: a waiter is either in one queue, granted, or gone; a granted waiter has been
charged exactly once; a line with a live head that can go has a timer for it; no line is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count as _counter
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

from throttle.clock import tolerance
from throttle.errors import CostTooLarge, QueueFull, WaitTimeout
from throttle.lines import Deadline, Group, Line, Needs, Queue, Share, Side, generation, tidy
from throttle.lock import LOCK
from throttle.outlook import end_of_line, plan, replay
from throttle.parking import Place, this_loop, this_thread

if TYPE_CHECKING:
    from throttle.limiter import Limiter

__all__ = [
    "Side",
    "abandon",
    "bury",
    "changed",
    "count",
    "dismiss",
    "end_of_line",
    "generation",
    "join",
    "leave",
    "postpone",
    "retuned",
    "stood",
    "this_loop",
    "this_thread",
]

#: A promise of "within `timeout`" is not broken because earlier timers fired late by this much (s).
_GRACE = 0.005
#: Moves between lines after which a guest stands in all of them. One is what it takes when nobody
#: but its own group draws on the member that it left.
_PATIENCE = 1
#: Seconds that a timer is asked for at least where timers have come too early: less would spin.
_COARSE = 0.001

_arrival = _counter()
#: What coroutines still had to do that the garbage collector closed in the middle of a decision.
_last_wills: deque[Callable[[], None]] = deque()


# -------------------------------------------------------------------- coming and going


def join(asker: Limiter, cost: Any, now: float, timeout: float | None, place: Place) -> Any:
    """Stand in line; the waiter to sleep on. Under LOCK. CostTooLarge, QueueFull, WaitTimeout."""
    bury()
    shares = asker._needs(cost)
    try:
        for leaf, share in shares:
            if leaf._foreseen and leaf._ready_at(leaf._settle(now), share) == inf:
                raise asker._too_large(cost)
        most = asker._max_waiting
        if most is not None and count(asker) >= most:
            raise QueueFull(most)
        if timeout is not None and timeout < inf:
            enough = now + timeout + tolerance(now)
            due = end_of_line(asker, cost, now, departing=True, enough=enough)
            if due > enough and (asker._foreseen or not timeout):
                raise WaitTimeout(due - now, timeout)
    except (CostTooLarge, QueueFull, WaitTimeout):
        asker._denied += 1
        raise
    waiter = place.waiter()
    waiter.arrived, waiter.order = now, next(_arrival)
    queue: Line | Group
    if shares[0][0] is asker:
        waiter.cost = cost
        queue = _line(asker, place)
        queue.waiters.append(waiter)
        sure = asker._foreseen and not queue.guarded
    else:
        waiter.cost = Needs(asker, cost, shares)
        queue = _group(asker, shares, place)
        queue.add(waiter)
        sure = False
    waiter.line = queue
    try:
        if timeout is not None and timeout < inf:
            patience = timeout + (_GRACE if asker._foreseen else 0.0)
            guard = None if sure else place.guard(waiter, patience, _expire)
            queue.deadlines[waiter] = Deadline(now + patience, timeout, guard)
        if queue.first() is waiter:
            _serve(queue)
    except BaseException:  # an interrupt: its place in line would never be given up
        leave(waiter)
        raise
    return waiter


def abandon(waiter: Any) -> None:
    """`leave`, from wherever a coroutine may be closed. Not under LOCK."""
    if not LOCK._is_owned():  # type: ignore[attr-defined]
        with LOCK:
            leave(waiter)
    elif waiter.line is not None:
        # Only the garbage collector gets here, in the middle of a decision of this very thread.
        postpone(partial(leave, waiter), (waiter.line,))


def postpone(call: Callable[[], None], queues: Iterable[Queue]) -> None:
    """Call it under LOCK after the decision that this thread is in the middle of, and in any case
    soon, for the sake of those who stand in these queues."""
    _last_wills.append(call)
    for queue in queues:
        queue.place.poke(_bury_soon, None)


def leave(waiter: Any) -> None:
    """A waiter's call was cancelled or failed: undo what it holds, its grant goes to the next.

    Under LOCK.
    """
    queue, grant = waiter.line, waiter.grant
    if queue is None:
        return
    waiter.line = None
    asker, shares = _wanted(waiter, queue)
    if grant is None:
        queue.remove(waiter)
        for leaf, _ in shares:
            if leaf._side is not None:
                leaf._side.ease()
        lines = (queue,) if isinstance(queue, Line) else queue.bound
        if queue.first() is None or any(line.timed is waiter for line in lines):
            for line in (*lines, queue):
                _visit(line)
        return
    moment, *instants = grant
    asker._granted -= 1
    asker._waited -= stood(waiter, moment)
    for (leaf, share), at in zip(shares, instants, strict=True):
        with suppress(NotImplementedError):  # it takes nothing back: that permit is lost
            leaf._refund(leaf._settle(leaf._now()), share, at)
        if leaf is not asker:
            leaf._granted -= 1
    for leaf, _ in shares:
        changed(leaf, eased=True)


def stood(waiter: Any, until: float) -> float:
    """Seconds that a waiter has waited; not below 0 where its clock was set back meanwhile."""
    seconds: float = until - waiter.arrived
    return max(0.0, seconds)


def bury() -> None:
    """Do what was postponed. Under LOCK."""
    while _last_wills:
        _last_wills.popleft()()


def _bury_soon(_: None) -> None:
    with LOCK:
        bury()


def _expire(waiter: Any) -> None:
    """The waiter's own timeout is over, or a slice of it."""
    with LOCK:
        queue = waiter.line
        deadline = None if queue is None else queue.deadlines.get(waiter)
        if deadline is None:
            return
        asker, shares = _wanted(waiter, queue)
        try:
            now = asker._now()
            left = deadline.instant - now
            if left > tolerance(now):
                guard = queue.place.guard(waiter, left, _expire)
                queue.deadlines[waiter] = deadline._replace(guard=guard)
                return
            # What it would still have to wait, at the least.
            due = max(plan(leaf, share, now, leaf._settle(now)) for leaf, share in shares)
            error: Exception = WaitTimeout(max(0.0, due - now), deadline.timeout)
        except Exception as broken:  # a clock or an algorithm of the user's own: its caller is told
            error = broken
        _fail(waiter, queue, error)
        _serve(queue, *queue.bound)


def changed(limiter: Limiter, *, eased: bool = False) -> None:
    """Something else than a grant moved the state: time every head anew. Under LOCK.

    `eased`: nobody can have to wait longer for it.
    """
    bury()
    for target in {limiter, *(leaf for leaf, _ in limiter._needs(limiter._checked(1)))}:
        side = target._side
        if side is None:
            continue
        if eased:
            side.ease()
        else:
            side.spoil()
        for line in list(side.lines.values()):
            line.unrest += not eased
            _visit(line)
        tidy(target)


def retuned(limiter: Limiter) -> None:
    """`changed`, and some who wait may never fit any more: they are told at once."""
    side = limiter._side
    for queue in () if side is None else (*side.lines.values(), *side.groups.values()):
        if not queue.is_over():
            _call_at(queue.place, _weed, queue)
    changed(limiter)


def _weed(queue: Queue) -> None:
    with LOCK:
        for waiter in list(queue):
            asker, shares = _wanted(waiter, queue)
            if _never(shares, asker._now()):
                _fail(waiter, queue, _too_large(waiter, queue))
        _serve(queue, *queue.bound)


def dismiss(asker: Limiter, reason: Callable[[], Exception]) -> None:
    """Fail all who stand in line for this very limiter, each with an error of its own; no state
    changes. They are woken in the order in which they stood. Under LOCK."""
    for queue in _callers(asker):
        if not queue.is_over():
            _call_at(queue.place, _dismiss, (queue, asker, reason))


def _dismiss(order: tuple[Queue, Limiter, Callable[[], Exception]]) -> None:
    queue, asker, reason = order
    with LOCK:
        for waiter in list(queue):
            if _wanted(waiter, queue)[0] is asker:
                _fail(waiter, queue, reason())
        _serve(queue, *queue.bound)


def count(asker: Limiter) -> int:
    """How many callers of this limiter stand in line and can come back now. Under LOCK."""
    live = [queue for queue in _callers(asker) if queue.is_live()]
    return sum(q.askers.get(asker, 0) if isinstance(q, Group) else len(q) for q in live)


def _callers(asker: Limiter) -> list[Line] | list[Group]:
    """The queues in which the callers of this very limiter stand."""
    side = asker._side
    if side is None:
        return []
    composite = asker._needs(asker._checked(1))[0][0] is not asker
    return list(side.groups.values()) if composite else list(side.lines.values())


# -------------------------------------------------------------------- who goes when


def _visit(queue: Line | Group) -> None:
    """Serve a queue from wherever the running code happens to be."""
    if queue.is_over():
        for leaf in (queue.leaf,) if isinstance(queue, Line) else queue.leaves:
            tidy(leaf)
    elif queue.place.here():
        _serve_locked(queue)
    elif not queue.poked:  # a loop that stands still would gather a call for each change
        queue.poked = True
        queue.place.poke(_serve_locked, queue)


def _call_at(place: Place, call: Callable[[Any], None], argument: Any) -> None:
    """Make a call that may wake who is parked at a place: now, if one may from here, else soon."""
    if place.here():
        call(argument)
    else:
        place.poke(call, argument)


def _serve_locked(queue: Queue) -> None:
    with LOCK:
        queue.poked = False
        _serve(queue)


def _due(line: Line) -> None:
    """The timer of a line fired; timers may fire early."""
    with LOCK:
        line.fired()
        _serve(line)


def _serve(*queues: Queue) -> None:
    """Let in all whose turn has come, starting with these queues; time the heads that remain."""
    todo = list(queues)
    while todo:
        queue = todo.pop()
        if isinstance(queue, Line):
            _advance(queue, todo)
        elif isinstance(queue, Group):
            _expose(queue, todo)


def _advance(line: Line, todo: list[Queue]) -> None:
    """Let in from the head of a line as far as it goes, and time the next head."""
    leaf = line.leaf
    now = None
    while (waiter := line.head()) is not None:
        queue = waiter.line
        try:
            if now is None:
                now = leaf._now()
            if queue is line:
                due = _let_in(waiter, line, now)
            else:
                due = _let_in_guest(waiter, line, now, todo)
            if due is not None:
                _arm(line, waiter, due)
                if line.unrest and line.deadlines:
                    _calm(line, now)
                return
        except Exception as error:  # a clock or an algorithm of the user's own: its caller is told
            _fail(waiter, queue, error)
            if queue is not line:
                todo.extend((*queue.bound, queue))
    line.place.stop(line)
    line.due, line.timed = inf, None
    if leaf._side is not None and leaf._side.lines.get(line.place.key) is line:
        del leaf._side.lines[line.place.key]
    tidy(leaf)


def _let_in(waiter: Any, line: Line, now: float) -> float | None:
    """Grant or fail the head of its own line; or the instant at which to look again."""
    leaf, cost = line.leaf, waiter.cost
    moment = leaf._settle(now)
    due = plan(leaf, cost, waiter.arrived, moment)
    if due > moment + tolerance(moment):
        error = _hopeless(waiter, line, due, now)
        if error is None:
            return due
        _fail(waiter, line, error)
        return None
    at = max(due, moment - leaf._slack)
    leaf._spend(at, cost)
    side: Any = leaf._side
    if at > due:
        line.lag += at - due
        if line.lag > _GRACE:
            line.lag = 0.0
            line.unrest += 1
            side.spoil()
    if side.groups:
        side.version += 1
    leaf._granted += 1
    leaf._waited += stood(waiter, now)
    line.remove(waiter)
    waiter.wake((now, at))
    return None


def _let_in_guest(waiter: Any, line: Line, now: float, todo: list[Queue]) -> float | None:
    """The same for the head of a group, which may also move to another line."""
    group: Group = waiter.line
    needs: Needs = waiter.cost
    due, hold, instants = _weigh(waiter, group, now)
    if hold is None:
        for (leaf, share), at in zip(needs.shares, instants, strict=True):
            leaf._spend(at, share)
            leaf._granted += 1
            if leaf._side is not None:
                leaf._side.shadow = None
                leaf._side.version += 1
        if group.forecast is not None:
            group.forecast.went(now - due, _GRACE)
        needs.asker._granted += 1
        needs.asker._waited += stood(waiter, now)
        group.remove(waiter)
        todo.extend((*group.bound, group))
        waiter.wake((now, *instants))
        return None
    error = _hopeless(waiter, group, due, now)
    if error is not None:
        _fail(waiter, group, error)
        todo.extend((*group.bound, group))
        return None
    if hold is line.leaf:
        return due
    if group.moves < _PATIENCE:
        group.moves += 1
        _bind(group, [hold], todo)
        return None
    if len(group.bound) == 1:
        _bind(group, [hold, *(leaf for leaf, _ in needs.shares)], todo)
    # It stands in every line; here it is the head, and the line that holds it will time it.
    return due if all(bound.head() is waiter for bound in group.bound) else inf


def _weigh(waiter: Any, group: Group, now: float) -> tuple[float, Limiter | None, list[float]]:
    """Until when a caller is held back, by which member, None when by nobody; and the instants at
    which each member is to be charged."""
    needs: Needs = waiter.cost
    due, hold, instants = -inf, None, []
    planned = -inf
    for leaf, share in needs.shares:
        moment = leaf._settle(now)
        fits = plan(leaf, share, waiter.arrived, moment)
        planned = max(planned, fits)
        instants.append(max(fits, moment - leaf._slack))
        held = fits if fits > moment + tolerance(moment) else -inf
        line = leaf._side.lines.get(group.place.key) if leaf._side is not None else None
        if line is not None and line.is_live():
            head = line.head()
            if head is not None and head is not waiter and head.order < waiter.order:
                held = max(held, line.due if line.due < inf else now, nextafter(now, inf))
        if held > due or (held == due and hold is not None and leaf is group.holder):
            due, hold = held, leaf
    for node in (needs.asker, *getattr(needs.asker, "_nested", ())):
        if node._side is not None and node._side.paused_until > max(due, now + tolerance(now)):
            due, hold = node._side.paused_until, node
    return (planned if hold is None else due), hold, instants


def _hopeless(waiter: Any, queue: Queue, due: float, now: float) -> Exception | None:
    """The error for one who can never go, or not within its timeout."""
    asker, shares = _wanted(waiter, queue)
    if due == inf and _never(shares, now):
        return _too_large(waiter, queue)
    if queue.deadlines:
        deadline = queue.deadlines.get(waiter)
        if deadline is not None and due > deadline.instant and asker._foreseen:
            return WaitTimeout(due - now, deadline.timeout)
    return None


def _never(shares: tuple[Share, ...], now: float) -> bool:
    return any(
        leaf._foreseen and leaf._departs_at(leaf._settle(now), share) == inf
        for leaf, share in shares
    )


def _too_large(waiter: Any, queue: Queue) -> Exception:
    asker, _ = _wanted(waiter, queue)
    return asker._too_large(waiter.cost if isinstance(queue, Line) else waiter.cost.cost)


def _fail(waiter: Any, queue: Queue, error: Exception) -> None:
    asker, shares = _wanted(waiter, queue)
    asker._denied += 1
    queue.remove(waiter)
    for leaf, _ in shares:
        if leaf._side is not None:
            leaf._side.ease()
    waiter.line = None
    waiter.fail(error)


def _wanted(waiter: Any, queue: Queue) -> tuple[Limiter, tuple[Share, ...]]:
    if isinstance(queue, Line):
        return queue.leaf, ((queue.leaf, waiter.cost),)
    return waiter.cost.asker, waiter.cost.shares


# -------------------------------------------------------------------- lines and their timers


def _line(leaf: Limiter, place: Place) -> Line:
    if leaf._side is None:
        leaf._side = Side()
    line = leaf._side.lines.get(place.key)
    if line is None or line.is_over():
        line = leaf._side.lines[place.key] = Line(leaf, place)
    return line


def _group(asker: Limiter, shares: tuple[Share, ...], place: Place) -> Group:
    leaves = frozenset(leaf for leaf, _ in shares)
    key = (place.key, leaves)
    known = shares[0][0]._side
    group = None if known is None else known.groups.get(key)
    if group is None or group.is_over():
        group = Group(place, leaves)
    for limiter in (asker, *leaves):
        if limiter._side is None:
            limiter._side = Side()
        limiter._side.groups[key] = group
    return group


def _expose(group: Group, todo: list[Queue]) -> None:
    """Put the head of a group where it has to wait, or clear away after the last one."""
    if group.shown is not None:
        return
    # The last one may have left this very turn, and not told its lines yet.
    todo.extend(group.bound)
    group.bound = ()
    waiter = group.first()
    if waiter is None:
        for leaf in group.leaves:
            if leaf._side is not None and leaf._side.groups.get(group.key) is group:
                del leaf._side.groups[group.key]
                tidy(leaf)
        return
    group.shown, group.moves = waiter, 0
    try:
        _, hold, _ = _weigh(waiter, group, waiter.cost.asker._now())
    except Exception as error:  # see `_advance`
        _fail(waiter, group, error)
        todo.append(group)
        return
    _bind(group, [hold or waiter.cost.shares[0][0]], todo)


def _bind(group: Group, holders: list[Limiter], todo: list[Queue]) -> None:
    """Let the head of a group stand in the lines of these limiters, and in no other."""
    before = group.bound
    group.holder = holders[0]
    group.bound = tuple(dict.fromkeys(_line(leaf, group.place) for leaf in holders))
    for line in group.bound:
        if line not in before:
            group.enter(line)
            _guard(line)
            if line.head() is group.shown:
                todo.append(line)
    todo.extend(line for line in before if line not in group.bound)


def _arm(line: Line, head: Any, due: float) -> None:
    if line.timer is not None and due == line.due and head is line.timed:
        return
    if head is not line.timed:
        line.early = 0
    line.due, line.timed = due, head
    delay = max(0.0, due - line.leaf._now())
    line.place.time(line, max(delay, _COARSE) if line.early > 1 else delay, _due)


def _guard(line: Line) -> None:
    """Nobody can tell any more when the turn of those in line will come: who has a timeout gets a
    timer of its own."""
    if line.guarded:
        return
    line.guarded = True
    now = line.leaf._now()
    for waiter, deadline in line.deadlines.items():
        left = max(0.0, deadline.instant - now)
        guard = line.place.guard(waiter, left, _expire)
        line.deadlines[waiter] = deadline._replace(guard=guard)


def _calm(line: Line, now: float) -> None:
    """It went otherwise than planned: fail all who can no longer go within their timeout.

    Not each time but after a share of the line: the guards see to the rest.
    """
    _guard(line)
    if line.unrest * 8 > len(line):
        line.unrest = 0
        for waiter, due in replay(line, now):
            error = _hopeless(waiter, line, due, now)
            if error is not None:
                _fail(waiter, line, error)
