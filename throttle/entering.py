"""`async with limiter:` and `with limiter:`: the shortest forms of acquiring one permit."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

__all__ = ["Entering"]


class _Acquires(Protocol):
    async def acquire(self) -> float: ...

    def acquire_sync(self) -> float: ...


_T = TypeVar("_T", bound=_Acquires)


class Entering:
    """Enter by acquiring one; leave as one came, since a permit is spent, not lent."""

    __slots__ = ()

    async def __aenter__(self: _T) -> _T:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Nothing to release."""

    def __enter__(self: _T) -> _T:
        self.acquire_sync()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Nothing to release."""
