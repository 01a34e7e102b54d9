"""A limiter whose state lies in a file, and the one line that all its processes stand in.

Callers of one process wait where all callers wait (`throttle.waiting`): first come, first served,
in a line for each event loop and one for the threads. Only the head of such a line stands in the
line of the file: a row of `Head`s beside the state, in the order they came, each with the permits
it wants and the instant planned for it. A head is planned behind its seniors and sleeps until its
instant; then it is charged what it really takes, when it really goes, and the next head of its
line stands at the end. So processes go in turn, a bound is never broken by somebody who was late,
and a process that is killed leaves nothing behind but a plan that is forgotten.

    Shared   the limiter that `throttle.waiting` sees. Inside `run` the lock of the file is held,
             and the state is what the file says
    Door     a place to wait in, whose timers run inside. Where another process has the lock they
             come back a little later, so that no event loop ever waits for a lock

Invariants, inside `run`: the model holds the state of the file; a head is in the row
only while it stands in a line here. A head that did not look after its plan for `_SILENCE` seconds
belongs to a process that is gone: it is dropped by whoever looks.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from time import time as wall_clock
from typing import Any, NamedTuple, ParamSpec, TypeVar

from throttle import waiting
from throttle.errors import FileLocked, FileRefused
from throttle.limiter import Limiter
from throttle.lock import LOCK
from throttle.parking import Place
from throttle.shared.model import Model, rebuilt
from throttle.shared.statefile import Record, StateFile, boot_id

__all__ = ["Door", "Shared", "naps"]

P = ParamSpec("P")
R = TypeVar("R")

#: Heads that have room in the file; one of more comes in when another has gone, out of turn.
_HEADS = 32
#: Seconds after which a sleeper looks again: a pause may be over, or a senior may have gone.
_LOOK = 1.0
#: Seconds of silence after which a head counts as gone. A living one looks every `_LOOK` seconds.
_SILENCE = 2.5
#: Seconds after which one who has had its part looks whether the others have left something.
_AFTER_YOU = 0.002
#: Seconds by which a head may be late before nobody stands back for it. It goes when it comes.
_LATE = 0.01


def naps(path: str, limit: float) -> Iterator[float]:
    """Seconds to sleep between tries for a file's lock; FileLocked when they add up to `limit`."""
    nap, spent = 50e-6, 0.0
    while spent < limit:
        yield nap
        spent += nap
        nap = min(2 * nap, 0.01)
    raise FileLocked(path, spent)


class Head(NamedTuple):
    """Who is first in a line of some process."""

    token: int
    seen: float
    """When its process last looked after it."""
    plan: float
    """The instant planned for it."""
    shares: tuple[float, ...]
    """The permits it wants from each leaf of the model."""


class _Plain(Limiter):
    """One limiter with an instant of its last spending, whatever the algorithm is made of."""

    __slots__ = ("_of",)

    def __init__(self, of: Limiter) -> None:
        super().__init__()
        self._of = of

    def _ready_at(self, now: float, cost: Any) -> float:
        return self._of._ready_at(now, cost)

    def _departs_at(self, now: float, cost: Any) -> float:
        return self._of._departs_at(now, cost)

    def _take(self, at: float, cost: Any) -> None:
        self._of._spend(at, cost)

    def _clone(self) -> _Plain:
        return self._copy()[0]

    def _copy(self) -> tuple[_Plain, tuple[Limiter, ...]]:
        """A copy that may be changed, and the leaves it is made of."""
        made: dict[Limiter, Limiter] = {}
        copy = _Plain(rebuilt(self._of, made, lambda leaf: leaf._clone()))
        copy._last = self._last
        return copy, tuple(made.values())


class Shared(_Plain):
    """The limiter of a file. All under LOCK, and inside `run`."""

    __slots__ = (
        "_alone", "_born", "_depth", "_door", "_doors", "_failure", "_file", "_head", "_heads",
        "_interrupted", "_model", "_row", "_single", "_slack", "_written", "patience",
    )  # fmt: skip

    def __init__(self, path: str | os.PathLike[str], template: Limiter, patience: float) -> None:
        self._model = model = Model(template)
        super().__init__(model.limiter)
        self._clock = template._clock
        self._max_waiting = template._max_waiting
        self._slack = min(leaf._slack for leaf in model.leaves)
        self._single = len(model.leaves) == 1
        self.patience = patience
        self._row = struct.Struct(f"<{1 + model.width}d")
        self._head = struct.Struct(f"<Q{2 + len(model.leaves)}d")
        self._heads: list[Head] = []
        self._door: Door | None = None
        self._doors: dict[Any, Door] = {}
        self._failure: Exception | None = None
        self._alone = -inf  # the plan for the head at the door, were there no seniors
        self._depth = 0
        self._interrupted = False
        self._born = waiting.generation()
        self._written = self._row.pack(-inf, *model.numbers())
        self._file = StateFile(
            path,
            model.meaning,
            self._row.size + _HEADS * self._head.size,
            model.cells,
            Record(boot_id(), wall_clock(), self._now(), self._written),
        )

    # ---------------------------------------------------------------- the file

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R] | None:
        """Make a call on the state of the file; None while another process has its lock.

        Whatever the call did is written down, unless it was interrupted: then nothing was done.
        """
        depth = self._depth
        try:
            if not self._go_in():
                return None
            return (call(*args, **kwargs),)
        except Exception:
            raise
        except BaseException:
            self._interrupted = True
            raise
        finally:
            self._go_out(depth)

    def _go_in(self) -> bool:
        if self._depth:
            self._depth += 1
            return True
        if self._born != waiting.generation():
            self._born = waiting.generation()
            self._door = None
            self._doors = {}
            self._file.reopen()
        if not self._file.try_lock():
            return False
        try:
            record = self._file.read()
            if record is not None:
                self._read(record)
        except BaseException:
            self._file.forget()
            raise
        if self._heads and self._side is None:
            self._side = waiting.Side()
        self._depth = 1
        return True

    def _go_out(self, depth: int) -> None:
        """Back to `depth`; from the outermost call, write the state down and unlock the file."""
        if depth:
            self._depth = depth
            return
        try:
            if self._interrupted:
                self._interrupted = False
                self._file.forget()
            elif self._depth:
                self._write()
        finally:
            self._depth = 0
            self._file.unlock()

    def _write(self) -> None:
        side = self._side
        body = self._row.pack(-inf if side is None else side.paused_until, *self._model.numbers())
        if self._heads:
            body += b"".join(
                self._head.pack(head.token, head.seen, head.plan, *head.shares)
                for head in self._heads
            )
        if body != self._written:
            try:
                self._file.write(wall_clock(), self._now(), body)
            except BaseException:
                self._file.forget()
                raise
            self._written = body

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, record: Record) -> None:
        model, body = self._model, record.body
        try:
            paused, *numbers = self._row.unpack_from(body)
            model.load(numbers)
            model.adopt(self._file.cells)
            rows = self._head.iter_unpack(body[self._row.size :])
            heads = [Head(token, seen, plan, tuple(shares)) for token, seen, plan, *shares in rows]
            if record.boot != self._file.boot:
                model.check()
                delta = self._now() - record.stamp - max(0.0, wall_clock() - record.wall)
                model.shift(delta)
                paused += delta
                heads = []
        except (ValueError, struct.error) as error:
            raise FileRefused(self.path, f"is torn: {error}") from None
        self._heads, self._written = heads, body
        self._last = self._of._last if self._single else inf
        if self._side is None and paused > -inf:
            self._side = waiting.Side()
        if self._side is not None:
            self._side.paused_until = paused
            self._side.spoil()
            for line in self._side.lines.values():
                line.unrest += 1

    # ---------------------------------------------------------------- the line of all processes

    def door(self, place: Place) -> Door:
        """The door to this place; the same one as long as it is in use."""
        door = self._doors.get(place.key)
        if door is None:
            for other in [d for d in self._doors.values() if d.over() or not d.in_use()]:
                del self._doors[other.key]
            door = self._doors[place.key] = Door(self, place)
        return door

    def at(self, door: Door, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that serves the line at this door, whose head stands in the file's line."""
        before, self._door = self._door, door
        try:
            return call(*arguments)
        finally:
            self._door = before
            if not self._stands(door):
                self._remove(door.token)

    def _stands(self, door: Door) -> bool:
        line = None if self._side is None else self._side.lines.get(door.key)
        return line is not None and line.head() is not None

    def _remove(self, token: int) -> None:
        self._heads = [head for head in self._heads if head.token != token]

    def _seniors(self, door: Door | None) -> list[Head]:
        """The heads that go before the one at this door, or before a newcomer."""
        now = self._now()
        # Who left its line while another process had the lock could not take its head along.
        left = {door.token for door in self._doors.values() if not self._stands(door)}
        if any(now - head.seen > _SILENCE or head.token in left for head in self._heads):
            self._heads = [
                head
                for head in self._heads
                if now - head.seen <= _SILENCE and head.token not in left
            ]
        seniors = []
        for head in self._heads:
            if door is not None and head.token == door.token:
                break
            if head.plan + _LATE > now:
                seniors.append(head)
        return seniors

    def _behind(
        self,
        seniors: list[Head],
        start: float,
        decide: Callable[[float, Any], float],
        cost: Any,
        *,
        parts: int = 1,
        now: float = inf,
    ) -> float:
        """What `decide` says when these have gone as planned. It is tried, and undone.

        Those who are due at `now` take `parts` times what they want.
        """
        if not seniors:
            return decide(start, cost)
        numbers = self._model.numbers()
        try:
            for head in seniors:
                times = parts if head.plan <= now else 1
                start = max(start, self._play(head, self._model.leaves, times))
            return decide(start, cost)
        finally:
            self._model.load(numbers)

    def _play(self, head: Head, leaves: tuple[Limiter, ...], times: int = 1) -> float:
        """Let a head go as planned, with so many times what it wants; the instant of that."""
        at = head.plan
        if self._side is not None and self._side.paused_until < inf:
            at = max(at, self._side.paused_until)  # a pause that its process has not seen yet
        for leaf, share in zip(leaves, head.shares, strict=True):
            if share:
                leaf._spend(at if leaf._last == inf else max(at, leaf._last), share * times)
        return at

    def _shut(self, now: float) -> bool:
        return bool(self._heads and self._seniors(None)) or super()._shut(now)

    # ---------------------------------------------------------------- the algorithm

    def _ready_at(self, now: float, cost: Any) -> float:
        return self._behind(self._seniors(None), now, self._of._ready_at, cost)

    def _departs_at(self, now: float, cost: Any) -> float:
        if self._failure is not None:
            raise self._failure
        door = self._door
        seniors = self._seniors(door)
        due = self._behind(seniors, now, self._of._departs_at, cost)
        if door is None:
            return due
        moment = self._now()
        if moment >= door.turn_ends:
            door.turn = 0
        if door.turn and not self._slack and due <= moment:
            # A window opens for all at once. Whoever wakes first must not take it all.
            parts = door.turn + 1
            fair = self._behind(seniors, now, self._of._departs_at, cost, parts=parts, now=moment)
            if fair > moment:
                self._remove(door.token)  # nobody is to stand back for who stands back
                return min(fair, moment + _AFTER_YOU)
        self._alone = self._of._departs_at(now, cost) if seniors else due
        shares = dict(self._of._needs(cost))
        wants = tuple(shares.get(leaf, 0.0) for leaf in self._model.leaves)
        if due < inf:  # who can never go is about to be told
            self._put(Head(door.token, moment, due, wants))
        return due

    def _put(self, head: Head) -> None:
        for index, other in enumerate(self._heads):
            if other.token == head.token:
                self._heads = [*self._heads[:index], head, *self._heads[index + 1 :]]
                return
        if len(self._heads) < _HEADS:
            self._heads = [*self._heads, head]

    def _try(self, now: float, cost: Any) -> bool:
        if not self._of._try(now, cost):
            return False
        if now > self._last:
            self._last = now
        return True

    def _spend(self, at: float, cost: Any) -> None:
        if self._door is not None:
            # Who goes before a senior that is late takes its instant and leaves it the later one:
            # else what drips in between would be lost to a bucket that is full.
            now = self._now()
            at = min(at, max(self._alone, now - self._slack))
            if not self._door.turn:
                self._door.turn_ends = now + _AFTER_YOU
            self._door.turn += 1
            self._remove(self._door.token)
        super()._spend(at, cost)

    def _back(self, now: float) -> float:
        if not self._single:
            for leaf in self._model.leaves:
                leaf._settle(now)
            return now
        last = self._last
        self._last = self._of._back(now)
        if self._side is not None and self._last < last < inf:  # another clock
            self._side.paused_until += self._last - last
        return self._last

    def _refund(self, now: float, cost: Any, at: float | None = None) -> None:
        if self._depth:  # else somebody was cancelled while another process had the lock: it lapses
            self._of._refund(now, cost, at)

    def _restart(self) -> None:
        self._model.restart()
        self._last = self._of._last if self._single else inf

    def _available(self, now: float) -> float:
        return self._of._available(now)

    def _fresh_at(self) -> float:
        return inf if self._heads else self._of._fresh_at()

    def _ceiling(self) -> float:
        return self._of._ceiling()

    def _checked(self, cost: Any) -> Any:
        return self._of._checked(cost)

    def _chargeable(self, cost: Any) -> Any:
        return self._of._chargeable(cost)

    def _clone(self) -> _Plain:  # type: ignore[override]
        """This limiter when those of other processes have gone; who waits here is not in it."""
        copy, leaves = self._copy()
        own = {door.token for door in self._doors.values()}
        for head in self._seniors(None):
            if head.token not in own:
                at = self._play(head, leaves)
                copy._last = max(copy._last, at) if copy._last < inf else at
        if copy._last == inf and not self._single:
            copy._last = -inf
        return copy


class Door:
    """A place to wait in, for callers of a file's limiter: see `throttle.parking.Place`."""

    __slots__ = ("_naps", "_place", "_shared", "key", "knocking", "token", "turn", "turn_ends")

    def __init__(self, shared: Shared, place: Place) -> None:
        self._shared = shared
        self._place = place
        self._naps: Iterator[float] | None = None
        self.key = place.key
        self.token = secrets.randbits(64)
        self.turn = 0  # how many have gone in at one stretch
        self.turn_ends = -inf
        #: Callers who could not even look yet, since another process had the lock.
        self.knocking: deque[object] = deque()

    def in_use(self) -> bool:
        side = self._shared._side
        return bool(self.knocking) or (side is not None and self.key in side.lines)

    def alive(self) -> bool:
        return self._place.alive()

    def over(self) -> bool:
        return self._place.over()

    def here(self) -> bool:
        """Never: who is not called by this door may not be inside."""
        return False

    def waiter(self) -> Any:
        return self._place.waiter()

    def time(self, line: Any, delay: float, call: Callable[[Any], None]) -> None:
        self._place.time(line, min(delay, _LOOK), partial(self._through, call, self._place.time))

    def stop(self, line: Any) -> None:
        self._place.stop(line)

    def guard(self, waiter: Any, delay: float, call: Callable[[Any], None]) -> Any:
        again = partial(self._through, call, self._place.guard)
        return self._place.guard(waiter, delay, again)

    def poke(self, call: Callable[[Any], None], argument: Any) -> None:
        self._place.poke(partial(self._through, call, self._place.time), argument)

    def _through(
        self, call: Callable[[Any], None], again: Callable[..., Any], argument: Any
    ) -> None:
        """Enter and make the call; come back later while the lock is not to be had. Who waits is
        told when it is not to be had at all, or when something is wrong with the file."""
        shared = self._shared
        with LOCK:
            try:
                if shared.run(shared.at, self, call, argument):
                    self._naps = None
                    return
                if argument is None:  # of no line in particular: the next one to enter does it
                    return
                if self._naps is None:
                    self._naps = naps(shared.path, shared.patience)
                again(argument, next(self._naps), partial(self._through, call, again))
            except Exception as error:
                self._naps, shared._failure = None, error
                try:
                    call(argument)
                finally:
                    shared._failure = None
