"""The robots.txt of many sites: fetched once, kept for a day, within a bounded memory.

State: the answers, in order of use, and the fetches under way. Invariants: for one site no two
fetches run at a time; who fetches may be cancelled, and one of those who waited takes over; what is
kept is bounded both in sites and in characters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
from yarl import URL

from throttle import clock
from throttle.checks import positive, whole
from throttle.http.robots import Robots

__all__ = ["Known", "RobotsCache"]

#: Seconds that an answer is used at most (RFC 9309, 2.4).
_DAY = 86400.0
#: Seconds that an old answer is used while no new one can be had (RFC 9309, 2.3.1.4 and 2.4).
_MONTH = 30 * _DAY
#: Seconds before a site that could not be reached is asked again: doubled each time, up to an hour.
_AGAIN, _SELDOM = 60.0, 3600.0
_LARGEST_TOTAL = 2**25


class Known(NamedTuple):
    """What is known of one site. Instants are of the monotonic clock."""

    robots: Robots
    until: float
    """When to ask again."""
    fetched: float
    """When `robots` was fetched; of an old answer that is still in use, the old instant."""
    failures: int
    """How often in a row it could not be reached."""


class RobotsCache:
    """`fetch` – asks a site, given its origin; `max_age` – seconds, at most a day; `max_sites`."""

    def __init__(
        self,
        fetch: Callable[[URL], Awaitable[Robots]],
        *,
        max_age: float = _DAY,
        max_sites: int = 10_000,
    ) -> None:
        if positive("max_age", max_age) > _DAY:
            raise ValueError(f"max_age must be at most a day ({_DAY:.0f} s), not {max_age!r}")
        self._fetch = fetch
        self._max_age = max_age
        self._max_sites = whole("max_sites", max_sites, least=1)
        self._known: OrderedDict[URL, Known] = OrderedDict()
        self._size = 0
        self._fetches: dict[URL, anyio.Event] = {}

    def __len__(self) -> int:
        return len(self._known)

    def fresh(self, origin: URL) -> Known | None:
        """What the site says, if that is known and not too old."""
        known = self._known.get(origin)
        if known is None or clock.now() >= known.until:
            return None
        self._known.move_to_end(origin)
        return known

    def is_fetching(self, origin: URL) -> bool:
        """Whether somebody is asking the site now."""
        return origin in self._fetches

    async def get(self, origin: URL) -> Known:
        """What the site says; waits for it to be fetched if it is not known or too old."""
        while True:
            known = self.fresh(origin)
            if known is not None:
                return known
            fetch = self._fetches.get(origin)
            if fetch is None:
                break
            await fetch.wait()
        done = self._fetches[origin] = anyio.Event()
        try:
            return self._keep(origin, await self._fetch(origin))
        finally:
            del self._fetches[origin]
            done.set()

    def _keep(self, origin: URL, robots: Robots) -> Known:
        now = clock.now()
        old = self._known.pop(origin, None)
        if old is not None:
            self._size -= len(old.robots.rules)
        if robots.is_unreachable:
            failures = 0 if old is None else old.failures
            again = now + min(_AGAIN * 2.0 ** min(failures, 10), _SELDOM)
            fetched = now
            if old is not None and not old.robots.is_unreachable and now - old.fetched < _MONTH:
                robots, fetched = old.robots, old.fetched
            known = Known(robots, again, fetched, failures + 1)
        else:
            known = Known(robots, now + self._max_age, now, 0)
        self._known[origin] = known
        self._size += len(robots.rules)
        while len(self._known) > self._max_sites or self._size > _LARGEST_TOTAL:
            _, dropped = self._known.popitem(last=False)
            self._size -= len(dropped.robots.rules)
        return known
