"""Callers of `acquire` in tasks of their own, and what became of each, on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from throttle import clock

__all__ = ["Callers", "callers", "settle"]


async def settle() -> None:
    """Let everybody run who can run at this instant."""
    for _ in range(6):
        await anyio.lowlevel.checkpoint()


class Callers:
    """`log` holds (name, instant) of those let in, in the order in which they were; `errors` what
    others got instead; `cancelled` the names of those."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._scopes: dict[Any, anyio.CancelScope] = {}
        self.log: list[tuple[Any, float]] = []
        self.errors: dict[Any, Exception] = {}
        self.cancelled: list[Any] = []

    async def join(
        self, name: Any, limiter: Any, cost: Any = 1, *, timeout: float | None = None
    ) -> None:
        """Start a caller; returns when it stands in line, or has gone through."""
        await self._group.start(self._call, name, limiter, cost, timeout)

    async def _call(
        self,
        name: Any,
        limiter: Any,
        cost: Any,
        timeout: float | None,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        with anyio.CancelScope() as scope:
            self._scopes[name] = scope
            task_status.started()
            try:
                await limiter.acquire(cost, timeout=timeout)
                self.log.append((name, clock.now()))
            except Exception as error:
                self.errors[name] = error
        if scope.cancelled_caught:
            self.cancelled.append(name)

    def cancel(self, *names: Any) -> None:
        for name in names:
            self._scopes[name].cancel()

    @property
    def order(self) -> list[Any]:
        return [name for name, _ in self.log]

    def instants(self) -> dict[Any, float]:
        """When each was let in, rounded to the microsecond."""
        return {name: round(instant, 6) for name, instant in self.log}


@asynccontextmanager
async def callers() -> AsyncIterator[Callers]:
    """Leaving waits until all of them are done."""
    async with anyio.create_task_group() as group:
        yield Callers(group)
