"""`async with limiter:` and `with limiter:`: the shortest forms of acquiring one.

Whoever lends what it gives, and does not spend it, says in `_leave` how it comes back.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

__all__ = ["Entering", "EnteringAsync"]


class _Acquires(Protocol):
    async def acquire(self) -> float: ...


class _AcquiresSync(Protocol):
    def acquire_sync(self) -> float: ...


_Async = TypeVar("_Async", bound=_Acquires)
_Sync = TypeVar("_Sync", bound=_AcquiresSync)


class EnteringAsync:
    """Enter by acquiring one, in an event loop."""

    __slots__ = ()

    def _leave(self) -> None:
        """What is due on the way out: nothing where a permit is spent, not lent."""

    async def __aenter__(self: _Async) -> _Async:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._leave()


class Entering(EnteringAsync):
    """Enter by acquiring one, in an event loop or in a thread."""

    __slots__ = ()

    def __enter__(self: _Sync) -> _Sync:
        self.acquire_sync()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._leave()
