"""Limits that all hold at one origin, of which some are not of this process.

`AllOf` is all or nothing, and for that its members must be local. Here each is asked in turn: those
elsewhere first, then the local ones, which `Origin` puts into its line. State: the members.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from throttle.limiter import SupportsAcquire

__all__ = ["Together"]


class Together:
    """`members` – limiters, at least one of them not of this process."""

    def __init__(self, *members: SupportsAcquire) -> None:
        self.members = members

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """Each member in turn; the seconds waited. `timeout` is for each."""
        return sum([await one.acquire(cost, timeout=timeout) for one in self.members])

    async def pause(self, seconds: float) -> None:
        """Tell those that can be told, so that all who share them hear of it."""
        for one in self.members:
            pause: Any = getattr(one, "pause", None)
            done = None if pause is None else pause(seconds)
            if isinstance(done, Awaitable):
                await done

    def __repr__(self) -> str:
        return f"Together({', '.join(map(repr, self.members))})"
