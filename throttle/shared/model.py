"""A limiter whose state goes to and from a row of floats, and a log that lies elsewhere.

The limiter handed in is a template: `Model` makes one of its own with the same parameters, as new.
Its state is read and written as it is kept, in instants, so that a decision made here is the same
to the last bit as the one the plain class makes. A sliding log keeps its entries in `cells`, a row
of floats in the file; the row of numbers only says which of them count.

Invariant: what `load` was given last stays readable in the cells until more than `SPARE` entries
have been pushed after it, so whatever was tried can be undone by loading the numbers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any, Protocol, cast

from throttle.algorithms import (
    ALGORITHMS,
    AllOf,
    FixedWindow,
    LeakyBucket,
    RingBuffer,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from throttle.limiter import Limiter

__all__ = ["SPARE", "Cells", "Model"]

#: Entries that may be pushed on trial without harm to those that count.
SPARE = 64

_BUCKET = ("_anchor", "_spent", "_carry")
#: What an algorithm knows, in instants and permits, besides the instant of the last spending.
_FIELDS: dict[type[Limiter], tuple[str, ...]] = {
    TokenBucket: _BUCKET,
    LeakyBucket: _BUCKET,
    SlidingWindowCounter: ("_origin", "_index", "_previous", "_current"),
    FixedWindow: ("_opened", "_spent"),
    SlidingWindowLog: ("_total", "_gone", "_log.head", "_log.count", "_log.base"),
}
_NAMES: dict[type[Limiter], str] = {kind: name for name, kind in ALGORITHMS.items()}


class Cells(Protocol):
    """A row of floats, such as a memoryview over a file."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


class _Ring:
    """The ring of a log, two cells an entry. Instants count from `base`, so that all can be moved.

    Popping moves `head`, and the cells stay as they are.
    """

    __slots__ = ("base", "cells", "count", "head", "offset", "size")

    #: A ring that is overwritten never has to grow, nor to be exchanged for a smaller one.
    is_full = False
    capacity = 0

    def __init__(self, cells: Cells, offset: int, size: int) -> None:
        self.cells, self.offset, self.size = cells, offset, size
        self.clear()

    def clear(self) -> None:
        self.head, self.count, self.base = 0, 0, 0.0

    def _cell(self, index: int) -> int:
        return self.offset + 2 * ((self.head + index) % self.size)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[float, float]:
        if not 0 <= index < self.count:
            raise IndexError("out of range")
        cell = self._cell(index)
        return self.cells[cell] + self.base, self.cells[cell + 1]

    def push(self, entry: tuple[float, float]) -> None:
        if self.count >= self.size - SPARE:
            self.pop()
        cell = self._cell(self.count)
        self.cells[cell], self.cells[cell + 1] = entry[0] - self.base, entry[1]
        self.count += 1

    def pop(self) -> tuple[float, float]:
        entry = self[0]
        self.head = (self.head + 1) % self.size
        self.count -= 1
        return entry

    def offer(self, entry: tuple[float, float]) -> bool:
        self.push(entry)
        return True

    def rotate(self, entry: tuple[float, float]) -> None:
        self.pop()
        self.push(entry)

    def peek_oldest(self) -> tuple[float, float]:
        return self[0]

    def pop_newest(self) -> tuple[float, float]:
        self.count -= 1
        cell = self._cell(self.count)
        return self.cells[cell] + self.base, self.cells[cell + 1]

    def to_list(self) -> list[tuple[float, float]]:
        return [self[index] for index in range(self.count)]

    def resized(self, capacity: int) -> RingBuffer[tuple[float, float]]:
        """A copy that shares no cell with this one."""
        copy: RingBuffer[tuple[float, float]] = RingBuffer(max(capacity, self.count, 8))
        for entry in self.to_list():
            copy.push(entry)
        return copy


class _Log(SlidingWindowLog):  # type: ignore[misc]  # final to users: only its ring is another one
    __slots__ = ()

    def _restart(self) -> None:
        super()._restart()
        self._log = cast("Any", _Ring([], 0, 1))

    def _shift(self, delta: float) -> None:
        cast("_Ring", self._log).base += delta

    def _clone(self) -> SlidingWindowLog:  # type: ignore[override]
        copy = SlidingWindowLog(self._limit, self._window, clock=self._clock)
        copy._last, copy._total, copy._gone = self._last, self._total, self._gone
        copy._log = self._log.resized(0)
        return copy


class Model:
    """The algorithm of a template, as new, with its state as a tuple of floats.

    TypeError for a template that is not made of this package's algorithms.
    """

    __slots__ = ("_get", "_paths", "_rings", "cells", "leaves", "limiter", "meaning", "width")

    def __init__(self, template: Limiter) -> None:
        if not isinstance(template, Limiter):
            raise TypeError(f"limiter must be a limiter of this process, not {template!r}")
        words: dict[Limiter, str] = {}
        made: dict[Limiter, Limiter] = {}
        self.limiter = _made(template, made, words)
        self.leaves = tuple(made.values())
        self.meaning = " & ".join(words.values())
        #: For each number: the object it is kept in, and the attribute.
        self._paths: list[tuple[Any, str]] = []
        self._rings: list[_Ring] = []
        self.cells = 0
        for leaf in self.leaves:
            if isinstance(leaf, _Log):
                # Twice the limit: a debt in single permits is remembered as far as that.
                ring = _Ring([], self.cells, 2 * int(leaf._limit) + SPARE)
                leaf._log = cast("Any", ring)
                self._rings.append(ring)
                self.cells += 2 * ring.size
            self._paths.append((leaf, "_last"))
            for field in _fields(leaf):
                owner, dot, name = field.rpartition(".")
                self._paths.append((getattr(leaf, owner) if dot else leaf, name))
        self._get = [attrgetter("_last", *_fields(leaf)) for leaf in self.leaves]
        self.width = len(self._paths)

    def numbers(self) -> tuple[float, ...]:
        """The whole state; instants are on the clock of those who call the limiter."""
        if len(self._get) == 1:
            return cast("tuple[float, ...]", self._get[0](self.leaves[0]))
        return tuple(
            number for get, leaf in zip(self._get, self.leaves, strict=True) for number in get(leaf)
        )

    def load(self, numbers: Sequence[float]) -> None:
        """Take over what `numbers` told."""
        for (owner, name), number in zip(self._paths, numbers, strict=True):
            setattr(owner, name, number)

    def adopt(self, cells: Cells) -> None:
        """The logs lie in these cells, and have been loaded. ValueError when they make no sense.

        A writer that was killed while it gave permits back may have left a newest entry smaller
        than the sum it belongs to; the entries are what counts.
        """
        for leaf in self.leaves:
            if isinstance(leaf, _Log):
                ring = cast("Any", leaf._log)
                ring.cells = cells
                ring.head, ring.count = int(ring.head), int(ring.count)
                if not (0 <= ring.head < ring.size and 0 <= ring.count <= ring.size):
                    raise ValueError("its log is out of range")
                leaf._total = ring[ring.count - 1][1] if ring.count else leaf._gone

    def check(self) -> None:
        """Look at every entry of every log. ValueError when they are in no order."""
        for ring in self._rings:
            before = (-inf, 0.0)
            for entry in ring.to_list():
                if not (entry[0] >= before[0] and entry[1] > before[1]):
                    raise ValueError("its log is in no order")
                before = entry

    def shift(self, delta: float) -> None:
        """Move the whole state along the axis of time by `delta` seconds."""
        for leaf in self.leaves:
            leaf._shift(delta)
            if abs(leaf._last) < inf:
                leaf._last += delta

    def restart(self) -> None:
        """As new. The cells keep their values, and none of them counts."""
        for leaf in self.leaves:
            leaf._last = -inf
            ring = leaf._log if isinstance(leaf, _Log) else None
            leaf._restart()
            if ring is not None:
                cast("Any", ring).clear()
                cast("Any", leaf)._log = ring


def _made(template: Limiter, made: dict[Limiter, Limiter], words: dict[Limiter, str]) -> Limiter:
    """A new limiter like `template`; its leaves go into `made`, what they are into `words`."""
    if isinstance(template, AllOf):
        return AllOf(*(_made(member, made, words) for member in template.members))
    if template in made:
        return made[template]
    kind = type(template)
    if kind not in _FIELDS:
        raise TypeError(
            f"limiter must be one of {', '.join(k.__name__ for k in _FIELDS)} or an AllOf of them, "
            f"not {template!r}"
        )
    new: Limiter
    if isinstance(template, SlidingWindowLog):
        new = _Log(template._limit, template._window, clock=template._clock)
    else:
        new = template._clone()
        new._last = -inf
        new._restart()
    new._max_waiting = None
    new._granted = new._denied = 0
    new._waited = 0.0
    made[template] = new
    values = ", ".join(f"{name}={float(v)!r}" for name, v in template._parameters().items())
    words[template] = f"{_NAMES[kind]}({values})"
    return new


def _fields(leaf: Limiter) -> tuple[str, ...]:
    return _FIELDS[SlidingWindowLog if isinstance(leaf, _Log) else type(leaf)]
