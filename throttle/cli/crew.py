"""Who works at which host: a lane for each, with a few workers, over the list on disk.

A list is often sorted by host, and the hosts are slow on purpose; so each host is worked at beside
the others, however far apart their URLs lie in the list. State: the lanes that are at work, and the
hosts that wait for one. Invariants: a host that has anything left to do has a lane, or waits for
one; there are no more workers than `most` (but one lane there is always), and no more at a host
than its `width`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from throttle.cli.target import Target
from throttle.cli.todo import Todo

__all__ = ["Crew"]


class Crew:
    """`work` – what to do with each; `group` – where the workers run. What `work` raises ends all.

    `width` – workers at a host, by its name; `most` – in all. A worker that waits costs some
    kilobytes, and no socket.
    """

    def __init__(
        self,
        todo: Todo,
        work: Callable[[Target], Awaitable[None]],
        group: asyncio.TaskGroup,
        *,
        width: Callable[[str], int],
        most: int,
    ) -> None:
        self._todo = todo
        self._work = work
        self._group = group
        self._width = width
        self._most = most
        self._free = most
        self._queue: dict[str, None] = {}
        self.lanes: dict[str, int] = {}
        """Hosts at work, those that began first before the others: their number of workers."""

    def add(self, target: Target) -> bool:
        """Have it done, unless it has been; whether it was new."""
        if not self._todo.add(target):
            return False
        host = target.host
        if host in self.lanes:
            self._hire(host)
        elif not self._open(host):
            self._queue[host] = None
        return True

    def _open(self, host: str) -> bool:
        """Begin a lane, if there is room for all its workers."""
        width = self._width(host)
        if self.lanes and width > self._free:
            return False
        self._free -= width
        self.lanes[host] = 0
        self._hire(host)
        return True

    def _hire(self, host: str) -> None:
        if self.lanes[host] < self._width(host):
            self.lanes[host] += 1
            self._group.create_task(self._labour(host))

    async def _labour(self, host: str) -> None:
        while (target := self._todo.take(host)) is not None:
            await self._work(target)
            await asyncio.sleep(0)  # what is refused without waiting must not starve the others
        self.lanes[host] -= 1
        if self.lanes[host]:
            return
        del self.lanes[host]
        self._free += self._width(host)
        while self._queue and self._open(first := next(iter(self._queue))):
            del self._queue[first]
            for _ in range(self._width(first)):
                self._hire(first)
