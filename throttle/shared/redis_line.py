"""The callers of one event loop who share a limit on a server: who asks when, and who goes when.

Asking. While a script call is under way, newcomers gather; the next call asks for all of them at
once (one flight at a time; the first leaves at once). A task of the line owns the flight, so a
cancelled caller breaks no connection.

Going. The server reserves: it answers with the instant of each grant. A grant is a slot, and a
slot has no name on it: when its instant comes, the first who waits for that cost goes. So a caller
who leaves moves everybody behind him up, and what is left over is the last slot; it goes to a
newcomer, or back to the server while it is still the last one reserved there, or lapses.

State: `_queue` (not asked for yet), `_lanes` (by cost: who waits, and the slots), `_slots` (a heap
of all slots to come), `_waiting` (who waits, for an answer or for an instant). Invariants: a slot
serves at most one caller; a lane never holds more slots than callers; nobody goes before a slot's
instant, nor on word from the server older than a second (a pause may have been called meanwhile).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from copy import copy
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any

from redis.exceptions import RedisError

from throttle.errors import WaitTimeout
from throttle.parking import LONGEST_SLEEP
from throttle.shared.redis_scripts import Said, number

__all__ = ["Caller", "Line", "UnreachableError"]

#: Callers in one script call, so that it stays short.
_FLIGHT = 1000
#: Seconds for which word from the server is good enough to go.
_FRESH = 1.0
#: How much two honest clocks may differ in their speed (NTP corrects by half of that at most).
_DRIFT = 0.001

_ASKS = attrgetter("asks")


class UnreachableError(Exception):
    """The server could not be asked. `__cause__` is redis-py's error."""


class Caller(asyncio.Future[Any]):
    """Somebody who asks: one who `waits`, or one who takes no for an answer. Await it."""

    __slots__ = ("asks", "cost", "deadline", "lane", "timeout", "waits")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, waits: bool, cost: float, timeout: float | None
    ) -> None:
        super().__init__(loop=loop)
        self.cost = cost
        self.waits = waits
        self.timeout = timeout
        self.deadline = inf if timeout is None else loop.time() + timeout
        self.asks = waits, cost, self.deadline  # who ask the same, one after another, are a run
        self.lane: _Lane | None = None

    def fail(self, error: Exception) -> None:
        if not self.done():
            self.set_exception(error)
            self.exception()  # seen: a caller cancelled in this very turn would leave it unread


class _Slot:
    """A grant: at `due` somebody may go. Spare: nobody waits for it. Void: not ours any more."""

    __slots__ = ("asked", "before", "cost", "due", "moved", "number", "serial", "spare", "void")

    def __init__(
        self,
        asked: float,
        due: float,
        serial: int,
        cost: float,
        number: int,
        before: float,
        moved: float,
    ) -> None:
        self.asked = asked  # the loop's time
        self.due = due
        self.serial = serial
        self.cost = cost
        self.number = number  # its place among the grants of its script call
        self.before = before  # the end of the line before it, and what `moved` was then
        self.moved = moved
        self.spare = self.void = False

    def __lt__(self, other: _Slot) -> bool:
        return (self.due, self.serial) < (other.due, other.serial)


class _Lane:
    """The callers who wait for one cost, and the slots they will take, both in order."""

    __slots__ = ("live", "slots", "spares", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Caller] = deque()
        self.live = 0  # of the waiters: who left is dropped when his turn comes
        self.slots: deque[_Slot] = deque()
        self.spares: deque[_Slot] = deque()

    def enter(self, caller: Caller) -> None:
        self.waiters.append(caller)
        caller.lane = self
        self.live += 1

    def leave(self, caller: Caller) -> None:
        caller.lane = None
        self.live -= 1
        if len(self.waiters) > 2 * self.live + 16:
            self.waiters = deque(c for c in self.waiters if c.lane is self)

    def next(self) -> Caller:
        while True:
            caller = self.waiters.popleft()
            if caller.lane is self and not caller.done():
                self.leave(caller)
                return caller

    def is_over(self) -> bool:
        return not (self.live or self.slots or self.spares)


Run = Callable[..., Coroutine[Any, Any, tuple[Said, tuple[float, ...]]]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Line:
    """The line of one limiter in one loop. `run(verb, *words)` calls its script; `spawn` starts a
    task that ends with the loop."""

    def __init__(self, run: Run, spawn: Spawn, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._spawn = spawn
        self._loop = loop
        self._queue: deque[Caller] = deque()
        self._batch: list[Caller] = []  # those in flight
        self._waiting: set[Caller] = set()
        self._lanes: dict[float, _Lane] = {}
        self._slots: list[_Slot] = []
        self._flight: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serial = 0
        self._looking = False
        # What the server said last, and when: its own time, the state it spoke of, and the moves.
        self._heard = -inf
        self._trip = 0.0
        self._own = self._born = self._moved = 0.0
        # The last script call of ours that granted: its number, grants still standing, our slots.
        self._seq = self._standing = 0
        self._latest: list[_Slot] = []

    # ---------------------------------------------------------------- asking

    def ask(self, waits: bool, cost: float, timeout: float | None = None) -> Caller:
        """Stand in line. Awaiting it tells whether the cost was granted, or raises WaitTimeout
        (delay inf: it never fits) or UnreachableError. Who is cancelled must `leave`."""
        caller = Caller(self._loop, waits, cost, timeout)
        self._queue.append(caller)
        if waits:
            self._waiting.add(caller)
        if self._flight is None:
            self._depart()
        return caller

    @property
    def waiting(self) -> int:
        """Callers who wait, for an answer or for their instant."""
        return len(self._waiting)

    def _depart(self) -> None:
        if self._flight is None:
            self._flight = self._spawn(self._fly())

    async def _fly(self) -> None:
        try:
            while True:
                batch = self._batch = self._board()
                back = self._going_back()
                if not (batch or back or self._looking):
                    return
                sent = self._loop.time()
                runs = [(*asks, list(group)) for asks, group in groupby(batch, _ASKS)]
                try:
                    said, answer = await self._run("go", *self._words(sent, back, runs))
                except (RedisError, OSError) as error:
                    self._lost(batch, error)
                else:
                    self._trip = self._loop.time() - sent
                    self.heed(said)
                    if back and not said.undone:
                        self._kept(back)
                    self._land(said, answer, runs)
                self._looking = False
                self._go()
        except BaseException as error:
            for caller in (*self._batch, *self._queue):
                self._waiting.discard(caller)
                if isinstance(error, Exception):
                    caller.fail(error)
                else:
                    caller.cancel()
            raise
        finally:
            self._flight, self._batch = None, []

    def _board(self) -> list[Caller]:
        """Who flies now: those in the queue whom no spare slot serves."""
        batch: list[Caller] = []
        now = self._loop.time()
        while self._queue and len(batch) < _FLIGHT:
            caller = self._queue.popleft()
            if not caller.done() and not (caller.waits and self._reuse(caller, now)):
                batch.append(caller)
        return batch

    def _words(
        self, now: float, back: list[_Slot], runs: list[tuple[bool, float, float, list[Caller]]]
    ) -> list[str]:
        """The arguments of a flight, in the order in which `limiter.lua` reads them."""
        ahead, held = 0.0, 0.0
        for lane in self._lanes.values():
            if lane.slots:
                last = lane.slots[-1]
                ahead = max(ahead, last.due - now - _DRIFT * (now - last.asked))
                held += last.cost * len(lane.slots)
        words = [number(ahead), number(held), number(self._born), number(self._moved)]
        end = back[-1].before + self._moved - back[-1].moved if back else 0
        standing = self._standing + len(back)
        words += [str(len(back)), str(self._seq), str(standing), number(end)]
        words += [number(slot.cost) for slot in back]
        for waits, cost, deadline, callers in runs:
            longest = max(0.0, deadline - now)
            words += ["w" if waits else "a", number(cost), number(longest), str(len(callers))]
        return words

    def _land(
        self,
        said: Said,
        answer: tuple[float, ...],
        runs: list[tuple[bool, float, float, list[Caller]]],
    ) -> None:
        """Hand out what the server answered, a part of the answer for each run."""
        own, moved, end = said.now, said.moved, said.tail
        now = self._loop.time()
        latest: list[_Slot] = []
        granted = place = 0
        for waits, cost, _, callers in runs:
            let = int(answer[place])
            place += 1
            if not waits:
                granted += let
                for i, caller in enumerate(callers):
                    if not caller.done():
                        caller.set_result(i < let)
                continue
            lane = self._lanes.setdefault(cost, _Lane())
            for i, caller in enumerate(callers):
                if i < let:
                    at = answer[place + i]
                    granted += 1
                    self._serial += 1
                    due = now + max(0.0, at - own)
                    slot = _Slot(now, due, self._serial, cost, granted, end, moved)
                    end = at
                    latest.append(slot)
                    if at <= own and not lane.live and not caller.done():
                        self._waiting.discard(caller)
                        caller.set_result(slot)
                        continue
                    lane.slots.append(slot)
                    heappush(self._slots, slot)
                    if not caller.done():
                        lane.enter(caller)
                else:
                    self._waiting.discard(caller)
                    caller.fail(WaitTimeout(answer[place + let] - own, caller.timeout or 0.0))
            place += min(let + 1, len(callers))
            self._spare(lane)
            if lane.is_over():
                del self._lanes[cost]
        if granted:
            self._seq, self._standing, self._latest = int(said.seq), granted, latest

    def _lost(self, batch: list[Caller], error: Exception) -> None:
        """Nobody answers: tell all who ask, those also who came meanwhile, so that none hangs."""
        for caller in (*batch, *self._queue):
            unreachable = UnreachableError()
            unreachable.__cause__ = error
            self._waiting.discard(caller)
            caller.fail(unreachable)
        self._queue.clear()
        self._latest = []
        self._heard = self._loop.time()  # who holds a slot goes: there is nobody to ask

    # ---------------------------------------------------------------- slots left over

    def leave(self, caller: Caller) -> None:
        """A cancelled caller: its slot, if it had one, is the next one's."""
        self._waiting.discard(caller)
        if caller.lane is not None:
            lane = caller.lane
            lane.leave(caller)
            self._spare(lane)
        elif caller.done() and not caller.cancelled() and caller.exception() is None:
            # Its instant came in the very turn in which it was cancelled.
            slot: _Slot = caller.result()
            lane = self._lanes.setdefault(slot.cost, _Lane())
            lane.slots.appendleft(slot)
            heappush(self._slots, slot)
            self._spare(lane)
            self._go()
        if self._latest and self._latest[-1].spare:
            self._depart()

    def _spare(self, lane: _Lane) -> None:
        while len(lane.slots) > lane.live:
            slot = lane.slots.pop()
            slot.spare = True
            lane.spares.appendleft(slot)

    def _reuse(self, caller: Caller, now: float) -> bool:
        """Give a newcomer the earliest spare slot of its cost, if it will wait for it."""
        lane = self._lanes.get(caller.cost)
        if lane is None or not lane.spares or lane.spares[0].due > caller.deadline:
            return False
        slot = lane.spares.popleft()
        slot.spare = False
        lane.slots = deque(sorted((*lane.slots, slot)))
        lane.enter(caller)
        self._time()
        return True

    def _going_back(self) -> list[_Slot]:
        """The spare slots that are the last ones reserved, as far as is known here; last first."""
        back: list[_Slot] = []
        while self._latest and self._latest[-1].spare:
            if self._latest[-1].number != self._standing:
                break
            slot = self._latest.pop()
            self._standing -= 1
            self._void(slot)
            back.append(slot)
        return back

    def _kept(self, back: list[_Slot]) -> None:
        """Others stand behind them, so the server did not take them: ours, until they lapse."""
        now = self._loop.time()
        for slot in back:
            if slot.due > now:
                again = copy(slot)
                again.spare, again.void = True, False
                heappush(self._slots, again)
                lane = self._lanes.setdefault(slot.cost, _Lane())
                lane.spares = deque(sorted((*lane.spares, again)))

    def _void(self, slot: _Slot) -> None:
        """A spare slot that went back or lapsed. The heap forgets it when it comes to it."""
        if not slot.void:
            slot.void = True
            lane = self._lanes[slot.cost]
            lane.spares.remove(slot)
            if lane.is_over():
                del self._lanes[slot.cost]

    # ---------------------------------------------------------------- going

    def heed(self, said: Said) -> None:
        """Take in what any answer of the server tells: how far reservations moved, and a pause."""
        now = self._heard = self._loop.time()
        if said.born != self._born:  # a new state: the old one, and its moves, are gone
            self._born, self._own, self._moved = said.born, said.now, said.moved
        elif said.now >= self._own:
            self._own = said.now
            self._move(said.moved - self._moved)
            self._moved = said.moved
        if said.seq != self._seq:  # others were served since: nothing of ours is the last one
            self._latest = []
        if said.pause > 0 and self._slots:
            first = min((slot.due for slot in self._slots if not slot.spare), default=inf)
            self._move(max(0.0, now + said.pause - first))
        self._time()

    def _move(self, delta: float) -> None:
        if delta:
            for slot in self._slots:  # all of them, so the heap stays one
                slot.due += delta

    def _time(self) -> None:
        """Set the one timer for the next slot, or for looking again before it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._slots and self._slots[0].void:
            heappop(self._slots)
        if self._slots:
            slot = self._slots[0]
            at = self._look_at(slot) if self._is_old(slot) else slot.due
            self._timer = self._loop.call_at(min(at, self._loop.time() + LONGEST_SLEEP), self._go)

    def _is_old(self, slot: _Slot) -> bool:
        """Whether the last word of the server is too old for this slot to go on."""
        return not slot.spare and slot.due - self._heard > _FRESH

    def _look_at(self, slot: _Slot) -> float:
        return slot.due - 2 * self._trip

    def _go(self) -> None:
        """Let go whoever's instant has come; look again first where the last word is old."""
        now = self._loop.time()
        while self._slots:
            slot = self._slots[0]
            if slot.void:
                heappop(self._slots)
            elif self._is_old(slot) and self._look_at(slot) <= now:
                self._looking = True
                self._depart()
                return
            elif slot.due > now:
                break
            else:
                heappop(self._slots)
                if slot.spare:
                    self._void(slot)
                    continue
                lane = self._lanes[slot.cost]
                lane.slots.popleft()
                caller = lane.next()
                self._waiting.discard(caller)
                caller.set_result(slot)
                if lane.is_over():
                    del self._lanes[slot.cost]
        self._time()
