"""The queues that callers stand in, and what a limiter keeps beside itself while they do.

    Queue   first in, first out; leaving from the middle is O(1): who left is swept up later
    Line    who waits for one limiter in one place: its own callers, and the heads of groups
    Group   callers that need the same several limiters; only the first stands in lines, as a guest
    Side    what a limiter has only while it is paused or waited for

Who goes when is decided in `throttle.waiting`; here is only who stands where. Invariant, under
LOCK: `order` of a waiter is its number while it stands in a queue and OUT at all other times; the
`shown` one of a group stands in exactly the lines of `bound`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from throttle.clock import tolerance
from throttle.parking import Place

if TYPE_CHECKING:
    from throttle.limiter import Limiter

__all__ = [
    "OUT",
    "Deadline",
    "Group",
    "Line",
    "Needs",
    "Queue",
    "Shadow",
    "Share",
    "Side",
    "generation",
    "tidy",
]

#: The order of a waiter that is in no queue any more.
OUT = -1

#: A limiter, and the permits wanted from it.
Share = tuple["Limiter", float]

_tie = count()
_generation = 0


def _forget_lines() -> None:
    global _generation
    _generation += 1


def generation() -> int:
    """How many forks lie between this process and the first: what was before one does not count."""
    return _generation


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lines)


class Deadline(NamedTuple):
    """How long a waiter is willing to stand."""

    instant: float
    """The last at which it may still be let in."""
    timeout: float
    guard: Any
    """A timer of its own, for those who stand in no line that is sure to look at them in time."""


class Needs:
    """What a caller of a composite waits for."""

    __slots__ = ("asker", "cost", "shares")

    def __init__(self, asker: Limiter, cost: Any, shares: tuple[Share, ...]) -> None:
        self.asker = asker
        self.cost = cost
        self.shares = shares


class Queue:
    """First in, first out. `len` and iteration are of those who still stand."""

    __slots__ = ("_born", "_dead", "deadlines", "place", "poked", "waiters")

    #: The lines in which its first one stands as a guest.
    bound: tuple[Line, ...] = ()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.waiters: deque[Any] = deque()
        self.deadlines: dict[Any, Deadline] = {}
        self._born = _generation
        self.poked = False  # it will be served as soon as its loop runs
        self._dead = 0  # how many of `waiters` have left

    def __len__(self) -> int:
        return len(self.waiters) - self._dead

    def __iter__(self) -> Iterator[Any]:
        return (waiter for waiter in self.waiters if waiter.order != OUT)

    def first(self) -> Any:
        """The first who still stands, or None."""
        waiters = self.waiters
        while waiters:
            waiter = waiters[0]
            if waiter.order != OUT:
                return waiter
            waiters.popleft()
            self._dead -= 1
        return None

    def remove(self, waiter: Any) -> None:
        """Take out one that may stand anywhere here, or not any more."""
        if waiter.order == OUT:
            return
        waiter.order = OUT
        if self.deadlines:
            deadline = self.deadlines.pop(waiter, None)
            if deadline is not None and deadline.guard is not None:
                deadline.guard.cancel()
        if self.waiters[0] is waiter:
            self.waiters.popleft()
            return
        self._dead += 1
        if self._dead > 16 and self._dead > len(self.waiters) // 2:
            self.waiters = deque(self)
            self._dead = 0

    def is_over(self) -> bool:
        """Whether nobody who stood here can ever come back: a closed loop, or a fork."""
        return self._born != _generation or self.place.over()

    def is_live(self) -> bool:
        """Whether who stands here can come back now: its loop is running."""
        return self._born == _generation and self.place.alive()

    def counts(self) -> bool:
        """Whether somebody stands here who can come back now."""
        return self.is_live() and self.first() is not None


class Line(Queue):
    """Who waits for one limiter in one place: its own callers, and heads of groups as guests."""

    __slots__ = ("due", "early", "guarded", "guests", "lag", "leaf", "timed", "timer", "unrest")

    def __init__(self, leaf: Limiter, place: Place) -> None:
        super().__init__(place)
        self.leaf = leaf
        self.guests: list[tuple[int, int, Any]] = []  # a heap: order, a tie-break, head of a group
        self.timer: Any = None  # belongs to the place
        self.timed: Any = None  # the head that the timer is for
        self.due = inf  # the instant that it is for, on the limiter's clock
        self.early = 0  # how often in a row a timer fired too early
        self.lag = 0.0  # seconds that grants were later than planned, added up
        self.guarded = False  # it went otherwise than planned: who has a timeout has a guard
        self.unrest = 0  # how often it did since the last look at all timeouts

    def head(self) -> Any:
        """The senior of the first caller and the first guest, or None."""
        first, guests = self.first(), self.guests
        while guests:
            order, _, guest = guests[0]
            if self._holds(order, guest):
                return guest if first is None or order < first.order else first
            heappop(guests)
        return first

    def counts(self) -> bool:
        return self.is_live() and self.head() is not None

    def guest_heads(self) -> list[Any]:
        """The heads of groups that stand here, in no order."""
        return [guest for order, _, guest in self.guests if self._holds(order, guest)]

    def _holds(self, order: int, guest: Any) -> bool:
        """Whether a guest still stands here; who left, or moved, leaves its entry behind."""
        return guest.order == order and guest.line.shown is guest and self in guest.line.bound

    def fired(self) -> None:
        """Its timer went off, perhaps early: `early` counts how often in a row for one head."""
        self.timer = None
        self.due = inf
        self.early += 1


class Group(Queue):
    """Callers with the same needs in one place; only the first stands in lines: `bound`."""

    __slots__ = ("askers", "bound", "forecast", "holder", "key", "leaves", "moves", "shown")

    def __init__(self, place: Place, leaves: frozenset[Limiter]) -> None:
        super().__init__(place)
        self.leaves = leaves
        self.key = (place.key, leaves)
        self.askers: dict[Limiter, int] = {}  # how many of each composite stand here
        self.shown: Any = None  # the first, once it has been placed
        self.bound = ()
        self.holder: Limiter | None = None
        self.moves = 0
        self.forecast: Any = None  # belongs to `throttle.outlook`

    def add(self, waiter: Any) -> None:
        self.waiters.append(waiter)
        asker = waiter.cost.asker
        self.askers[asker] = self.askers.get(asker, 0) + 1

    def remove(self, waiter: Any) -> None:
        if waiter.order == OUT:
            return
        super().remove(waiter)
        asker = waiter.cost.asker
        self.askers[asker] -= 1
        if not self.askers[asker]:
            del self.askers[asker]
            if asker._side is not None and asker._side.groups.get(self.key) is self:
                del asker._side.groups[self.key]
                tidy(asker)
        if waiter is self.shown:
            # The next one takes over its places at once, so that no newcomer slips in between.
            self.shown, self.moves = self.first(), 0
            if self.shown is not None:
                for line in self.bound:
                    self.enter(line)

    def enter(self, line: Line) -> None:
        """Let the shown one stand in `line` as a guest."""
        heappush(line.guests, (self.shown.order, next(_tie), self.shown))


class Shadow:
    """A limiter as it will be when all have gone who wait for it: `model`, to be seen, not changed.

    Good for the lines of `basis`, and for all who stand there with a number of at most `upto`.
    """

    __slots__ = ("basis", "model", "upto")

    def __init__(self, model: Limiter, basis: list[Line]) -> None:
        self.model = model
        self.basis = basis
        self.upto = OUT


class Side:
    """What a limiter has only while it is paused or waited for."""

    __slots__ = ("eased", "groups", "lines", "paused_until", "shadow", "version")

    def __init__(self) -> None:
        self.paused_until = -inf
        self.lines: dict[Any, Line] = {}  # by the key of their place
        self.groups: dict[Any, Group] = {}  # that need it, or in which its callers stand
        self.shadow: Shadow | None = None
        self.version = 0  # counts what went otherwise than planned
        self.eased = False  # the shadow is no less than the truth, and may be more

    def is_shut(self, now: float) -> bool:
        """Whether a newcomer has to wait behind a pause or a line."""
        if self.paused_until > now + tolerance(now):
            return True
        return bool(self.lines) and any(line.counts() for line in self.lines.values())

    def is_wanted(self) -> bool:
        """Whether anybody waits who can come back now."""
        return any(queue.counts() for queue in (*self.lines.values(), *self.groups.values()))

    def is_idle(self, now: float) -> bool:
        """Whether it may be dropped: no pause, and no queue that could ever move again."""
        for key, line in list(self.lines.items()):
            if line.is_over():
                line.place.stop(line)
                del self.lines[key]
        for key, group in list(self.groups.items()):
            if group.is_over():
                del self.groups[key]
        return not self.lines and not self.groups and self.paused_until <= now

    def spoil(self) -> None:
        """What was foreseen does not hold any more."""
        self.shadow, self.eased = None, False
        self.version += 1

    def ease(self) -> None:
        """Nobody will have to wait longer than was foreseen, and some perhaps less."""
        self.version += 1
        self.eased = self.shadow is not None


def tidy(limiter: Limiter) -> None:
    """Drop the side of a limiter that is neither paused nor waited for."""
    # Not by the limiter's clock: a pause may have been asked for with a `now` of the caller's own.
    if limiter._side is not None and limiter._side.is_idle(-inf):
        limiter._side = None
