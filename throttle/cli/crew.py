"""Who works at which host: a lane for each, with a few workers, over the list on disk.

A list is often sorted by host, and the hosts are slow on purpose; so each host is worked at beside
the others, however far apart their URLs lie in the list. State: the lanes that are at work, and the
hosts that wait for one. Invariants: a host that has anything left to do has a lane, or waits for
one; no more than `lanes` are at work, with up to `width` workers each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from throttle.cli.target import Target
from throttle.cli.todo import Todo

__all__ = ["Crew"]


class Crew:
    """`work` – what to do with each; `group` – where the workers run. What `work` raises ends all.

    `width` – workers for each host; `lanes` – hosts at once.
    """

    def __init__(
        self,
        todo: Todo,
        work: Callable[[Target], Awaitable[None]],
        group: asyncio.TaskGroup,
        *,
        width: int,
        lanes: int,
    ) -> None:
        self._todo = todo
        self._work = work
        self._group = group
        self._width = width
        self._most = lanes
        self._queue: dict[str, None] = {}
        self.lanes: dict[str, int] = {}
        """Hosts at work, those that began first before the others: their number of workers."""

    def add(self, target: Target) -> bool:
        """Have it done, unless it has been; whether it was new."""
        if not self._todo.add(target):
            return False
        host = target.host
        if host in self.lanes or len(self.lanes) < self._most:
            self._hire(host)
        else:
            self._queue[host] = None
        return True

    def _hire(self, host: str) -> None:
        workers = self.lanes.get(host, 0)
        if workers < self._width:
            self.lanes[host] = workers + 1
            self._group.create_task(self._labour(host))

    async def _labour(self, host: str) -> None:
        while (target := self._todo.take(host)) is not None:
            await self._work(target)
            await asyncio.sleep(0)  # what is refused without waiting must not starve the others
        self.lanes[host] -= 1
        if not self.lanes[host]:
            del self.lanes[host]
            if self._queue:
                host = next(iter(self._queue))
                del self._queue[host]
                for _ in range(self._width):
                    self._hire(host)
