"""A limiter whose state goes to and from a row of floats, and a log that lies elsewhere.

The limiter handed in is a template: `Model` makes one of its own with the same parameters, as new.
Its state is read and written as it is kept, in instants, so that a decision made here is the same
to the last bit as the one the plain class makes. A sliding log keeps its entries in `cells`, a row
of floats in the file; the row of numbers only says which of them count.

Invariant: what `load` was given last stays readable in the cells until more than `SPARE` entries
have been pushed after it, so whatever was tried can be undone by loading the numbers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

__all__ = ["SPARE", "Cells", "Model", "rebuilt"]

#: Entries that may be pushed on trial without harm to those that count.
SPARE = 64

_BUCKET = ("_anchor", "_spent", "_carry")
#: What an algorithm knows, in instants and permits, besides the instant of the last spending.
_FIELDS: dict[type[Limiter], tuple[str, ...]] = {
    TokenBucket: _BUCKET,
    LeakyBucket: _BUCKET,
    SlidingWindowCounter: ("_origin", "_index", "_previous", "_current"),
    FixedWindow: ("_opened", "_spent"),
    SlidingWindowLog: ("_total", "_gone", "_log._head", "_log._count", "_log._cells.base"),
}
_NAMES: dict[type[Limiter], str] = {kind: name for name, kind in ALGORITHMS.items()}


class Cells(Protocol):
    """A row of floats, such as a memoryview over a file."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


class _Entries:
    """The cells of a ring, two floats for each. Instants count from `base`: all move with it."""

    __slots__ = ("base", "floats", "offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.floats: Cells = ()  # type: ignore[assignment]  # until a file is opened
        self.offset, self.size, self.base = offset, size, 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[float, float]:
        cell = self.offset + 2 * index
        return self.floats[cell] + self.base, self.floats[cell + 1]

    def __setitem__(self, index: int, entry: tuple[float, float] | None) -> None:
        if entry is not None:  # what was given away stays readable
            cell = self.offset + 2 * index
            self.floats[cell], self.floats[cell + 1] = entry[0] - self.base, entry[1]


class _Ring(RingBuffer[tuple[float, float]]):
    """A ring in the file. It never grows: when it is full, the oldest entry makes room."""

    __slots__ = ()

    is_full = False
    capacity = 0

    def __init__(self, offset: int, size: int) -> None:
        super().__init__(1)
        self._cells = _Entries(offset, size)  # type: ignore[assignment]

    def offer(self, value: tuple[float, float]) -> bool:
        return len(self) < len(self._cells) - SPARE and super().offer(value)

    def to_list(self) -> list[tuple[float, float]]:
        return [self[index] for index in range(len(self))]

    def _cut(self, count: int) -> list[tuple[float, float]]:
        return [self.pop_newest() for _ in range(count)][::-1]

    def _extend(self, values: list[tuple[float, float]]) -> None:
        for value in values:
            self.push(value)

    def resized(self, capacity: int) -> RingBuffer[tuple[float, float]]:
        """A copy that shares no cell with this one."""
        return super().resized(max(capacity, len(self), 8))


class _Log(SlidingWindowLog):  # type: ignore[misc]  # final to users: only its ring is another one
    __slots__ = ()

    _log: Any

    def _shift(self, delta: float) -> None:
        self._log._cells.base += delta

    def _clone(self) -> SlidingWindowLog:  # type: ignore[override]
        copy = SlidingWindowLog(self._limit, self._window, clock=self._clock)
        copy._last, copy._total, copy._gone = self._last, self._total, self._gone
        copy._log = self._log.resized(0)
        return copy


class Model:
    """The algorithm of a template, as new, with its state as a tuple of floats.

    TypeError for a template that is not made of this package's algorithms.
    """

    __slots__ = ("_get", "_paths", "cells", "leaves", "limiter", "meaning", "width")

    def __init__(self, template: Limiter) -> None:
        if not isinstance(template, Limiter):
            raise TypeError(f"limiter must be a limiter of this process, not {template!r}")
        made: dict[Limiter, Limiter] = {}
        self.limiter = rebuilt(template, made, _as_new)
        self.leaves = tuple(made.values())
        self.meaning = " & ".join(map(_described, made))
        #: For each number: the object it is kept in, and the attribute.
        self._paths: list[tuple[Any, str]] = []
        self.cells = 0
        for leaf in self.leaves:
            if isinstance(leaf, _Log):
                # Twice the limit: a debt in single permits is remembered as far as that.
                size = 2 * int(leaf._limit) + SPARE
                leaf._log = _Ring(self.cells, size)
                self.cells += 2 * size
            self._paths.append((leaf, "_last"))
            for field in _fields(leaf):
                owner, dot, name = field.rpartition(".")
                self._paths.append((attrgetter(owner)(leaf) if dot else leaf, name))
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
        for leaf in self._logs():
            ring = leaf._log
            ring._cells.floats = cells
            ring._head, ring._count = int(ring._head), int(ring._count)
            size = len(ring._cells)
            if not (0 <= ring._head < size and 0 <= ring._count <= size):
                raise ValueError("its log is out of range")
            leaf._total = ring.peek_newest()[1] if ring._count else leaf._gone

    def check(self) -> None:
        """Look at every entry of every log. ValueError when they are in no order."""
        for leaf in self._logs():
            before = (-inf, 0.0)
            for entry in leaf._log.to_list():
                if not (entry[0] >= before[0] and entry[1] > before[1]):
                    raise ValueError("its log is in no order")
                before = entry

    def _logs(self) -> list[_Log]:
        return [leaf for leaf in self.leaves if isinstance(leaf, _Log)]

    def shift(self, delta: float) -> None:
        """Move the whole state along the axis of time by `delta` seconds."""
        for leaf in self.leaves:
            leaf._shift(delta)
            if abs(leaf._last) < inf:
                leaf._last += delta

    def restart(self) -> None:
        """As new. The cells keep their values, and none of them counts."""
        rings = [leaf._log for leaf in self._logs()]
        for leaf in self.leaves:
            leaf._last = -inf
            leaf._restart()
        for log, ring in zip(self._logs(), rings, strict=True):
            log._log, ring._count = ring, 0


def rebuilt(
    limiter: Limiter, made: dict[Limiter, Limiter], new: Callable[[Limiter], Limiter]
) -> Limiter:
    """A composite like this one (or a limiter) of new leaves; `made` tells which stands for which.

    A leaf that is a member twice stays one leaf.
    """
    if isinstance(limiter, AllOf):
        return AllOf(*(rebuilt(member, made, new) for member in limiter.members))
    if limiter not in made:
        made[limiter] = new(limiter)
    return made[limiter]


def _as_new(template: Limiter) -> Limiter:
    kind = type(template)
    if kind not in _FIELDS:
        raise TypeError(
            f"limiter must be one of {', '.join(k.__name__ for k in _FIELDS)} or an AllOf of them, "
            f"not {template!r}"
        )
    if isinstance(template, SlidingWindowLog):
        return _Log(template._limit, template._window, clock=template._clock)
    new = template._clone()
    new._last = -inf
    new._restart()
    return new


def _described(template: Limiter) -> str:
    values = ", ".join(f"{name}={float(v)!r}" for name, v in template._parameters().items())
    return f"{_NAMES[type(template)]}({values})"


def _fields(leaf: Limiter) -> tuple[str, ...]:
    return _FIELDS[SlidingWindowLog if isinstance(leaf, _Log) else type(leaf)]
