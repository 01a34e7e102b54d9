"""Which address a host has: for those who keep a limit for each server, not for each name.

The address is looked up before a request stands in line, never while it does: a key that changes
once it is known lets the first requests escape. State: one address a host, the least of those the
first lookup gave; it stays, so that the key never changes. Bounded; a host without an address is
its own key.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

import anyio

__all__ = ["Addresses", "Resolve"]

Resolve = Callable[[str], Awaitable[Iterable[str]]]
"""A function from a host name to its addresses, as texts. OSError: it has none."""

_MANY = 100_000


class Addresses:
    """`resolve` – how to look up; the system's resolver by default."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = _system if resolve is None else resolve
        self._known: OrderedDict[str, str] = OrderedDict()

    async def learn(self, host: str) -> None:
        """Look a host up, unless it is known."""
        if host in self._known:
            self._known.move_to_end(host)
            return
        try:
            address = min(await self._resolve(host), default=host)
        except OSError:
            return
        self._known.setdefault(host, address)
        if len(self._known) > _MANY:
            self._known.popitem(last=False)

    def of(self, host: str) -> str:
        """The address, as far as it is known; else the host."""
        return self._known.get(host, host)


async def _system(host: str) -> Iterable[str]:
    found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
