"""The limiters of a `Keyed` whose state lies elsewhere: in a file, on a server.

Nothing is forgotten with such an object, so it is needed only while a call is inside. Those used
last are kept a little longer, since making one has its price (a file is opened, say), and no more
of them, since keeping one has too (a file stays open). One that says by `_owes` that it holds a
state of its own after all (a stand-in for a server that is away) is kept until it does not.

State, by key: those with calls inside and how many, and the idle ones, idle for longest first.
Invariant, under LOCK: no key is in both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice

from throttle.limiter import SupportsAcquire

__all__ = ["Elsewhere"]

#: Idle ones that are kept. Each may hold a file open, and a process may have some hundred.
_SPARE = 64


class Elsewhere:
    """A table of them. Methods that change it: under LOCK."""

    __slots__ = ("_busy", "_idle")

    def __init__(self) -> None:
        self._busy: dict[Hashable, tuple[SupportsAcquire, int]] = {}
        self._idle: dict[Hashable, SupportsAcquire] = {}

    def get(self, key: Hashable) -> SupportsAcquire | None:
        """The limiter of a key."""
        busy = self._busy.get(key)
        return self._idle.get(key) if busy is None else busy[0]

    def enter(self, key: Hashable, found: SupportsAcquire, most: int) -> SupportsAcquire | None:
        """A call goes in: to the limiter of the key, or to `found`. None: no room in `most`."""
        limiter, inside = self._busy.get(key, (None, 0))
        if limiter is None:
            limiter = self._idle.pop(key, None)
        if limiter is None:
            if len(self) >= most and not self.forget(len(self._idle)):
                return None
            limiter = found
        self._busy[key] = limiter, inside + 1
        return limiter

    def leave(self, key: Hashable, limiter: SupportsAcquire) -> None:
        """A call is over."""
        known, inside = self._busy.get(key, (None, 0))
        if known is not limiter:  # discarded meanwhile
            return
        if inside > 1:
            self._busy[key] = limiter, inside - 1
            return
        del self._busy[key]
        self._idle[key] = limiter
        if len(self._idle) > _SPARE:
            self.forget(2)  # of which one may have to be kept

    def forget(self, looks: int) -> bool:
        """Forget one that is idle, if there is one among so many; whether there was."""
        for key in list(islice(self._idle, looks)):
            limiter = self._idle.pop(key)
            owes = getattr(limiter, "_owes", None)
            if owes is None or not owes():
                return True
            self._idle[key] = limiter
        return False

    def discard(self, key: Hashable) -> bool:
        """Forget a key; whether it was known."""
        known = key in self
        self._busy.pop(key, None)
        self._idle.pop(key, None)
        return known

    def __contains__(self, key: Hashable) -> bool:
        return key in self._busy or key in self._idle

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._busy, *self._idle])
