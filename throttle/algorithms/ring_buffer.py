"""Ring buffer: a fixed array written in a circle.

State: the cells, `_head` (where the oldest value lies) and `_count`. The next write goes to
`(_head + _count) % capacity`; a count of its own tells empty from full. Pushing into a full ring
overwrites the oldest value: what a sliding window wants of its oldest mark.

Invariant: 0 <= count <= capacity, and the values lie in the order they came, from `_head` on.

>>> ring = RingBuffer(2)
>>> for value in "abc":
...     ring.push(value)
>>> ring.to_list(), ring.peek_oldest(), ring.is_full
(['b', 'c'], 'b', True)
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from throttle.checks import whole

__all__ = ["RingBuffer"]

T = TypeVar("T")


class RingBuffer(Generic[T]):
    """The last `capacity` values pushed. Every method is O(1), but `to_list`."""

    __slots__ = ("_cells", "_count", "_head")

    def __init__(self, capacity: int) -> None:
        self._cells: list[Any] = [None] * whole("capacity", capacity, least=1)
        self._head = 0
        self._count = 0

    @property
    def capacity(self) -> int:
        """How many values fit."""
        return len(self._cells)

    @property
    def is_full(self) -> bool:
        """Whether the next push overwrites the oldest value."""
        return self._count == len(self._cells)

    def __len__(self) -> int:
        return self._count

    def push(self, value: T) -> None:
        """Add the newest value; in a full ring it takes the place of the oldest."""
        if not self.offer(value):
            self.rotate(value)

    def offer(self, value: T) -> bool:
        """`push`, unless the ring is full; whether it did."""
        cells, count = self._cells, self._count
        if count == len(cells):
            return False
        cells[(self._head + count) % len(cells)] = value
        self._count = count + 1
        return True

    def rotate(self, value: T) -> None:
        """`pop` and `push` in one step, full or not. IndexError when empty."""
        cells, head, count = self._cells, self._head, self._count
        if not count:
            raise IndexError("the ring buffer is empty")
        size = len(cells)
        cells[head] = None  # the ring must not keep alive what it gave away
        cells[(head + count) % size] = value
        self._head = (head + 1) % size

    def pop(self) -> T:
        """Take the oldest value out. IndexError when empty."""
        value = self.peek_oldest()
        after = (self._head + 1) % len(self._cells)
        # No call from here on: between calls nobody is interrupted, and it is all or nothing.
        self._cells[self._head] = None
        self._head = after
        self._count -= 1
        return value

    def pop_newest(self) -> T:
        """Take the newest value out. IndexError when empty."""
        value = self.peek_newest()
        self._count -= 1
        self._cells[(self._head + self._count) % len(self._cells)] = None
        return value

    def _cut(self, count: int) -> list[T]:
        """Take the newest `count` values out, and answer them, oldest first. O(count)."""
        cells, start = self._cells, (self._head + self._count - count) % len(self._cells)
        straight = min(count, len(cells) - start)  # the rest lies round the end of the array
        taken = cells[start : start + straight] + cells[: count - straight]
        cells[start : start + straight] = [None] * straight
        cells[: count - straight] = [None] * (count - straight)
        self._count -= count
        return taken

    def _extend(self, values: list[T]) -> None:
        """Push values for which there is room, the oldest first. O(len(values))."""
        cells, start = self._cells, (self._head + self._count) % len(self._cells)
        straight = min(len(values), len(cells) - start)
        cells[start : start + straight] = values[:straight]
        cells[: len(values) - straight] = values[straight:]
        self._count += len(values)

    def peek_oldest(self) -> T:
        """The oldest value. IndexError when empty."""
        if not self._count:
            raise IndexError("the ring buffer is empty")
        value: T = self._cells[self._head]
        return value

    def peek_newest(self) -> T:
        """The newest value. IndexError when empty."""
        return self[self._count - 1]

    def __getitem__(self, index: int) -> T:
        """The value that came `index` after the oldest. IndexError outside."""
        if not 0 <= index < self._count:
            raise IndexError("the ring buffer is empty" if not self._count else "out of range")
        value: T = self._cells[(self._head + index) % len(self._cells)]
        return value

    def to_list(self) -> list[T]:
        """All values, oldest first. O(len)."""
        beyond = max(0, self._head + self._count - len(self._cells))  # round the end of the array
        return self._cells[self._head : self._head + self._count] + self._cells[:beyond]

    def resized(self, capacity: int) -> RingBuffer[T]:
        """A ring of another capacity with the same values (the newest, if not all fit). O(len)."""
        new: RingBuffer[T] = RingBuffer(capacity)
        kept = self.to_list()[-capacity:]
        new._cells[: len(kept)] = kept
        new._count = len(kept)
        return new

    def __repr__(self) -> str:
        return f"RingBuffer({self.to_list()!r}, capacity={self.capacity})"
