"""Politeness: what a crawler owes a site it was not invited to. The guard of a polite client.

Before each try it has the site's robots.txt fetched (itself a request under the site's limit),
refuses what that forbids, and tells the site's pacer what it asks for; after the wait, which may be
long, it looks again whether the rules are of age, and ask for no more than was kept; and it lets
the pacer know how each answer came. The same for every HTTP library: how to fetch is an argument.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from yarl import URL

from throttle import clock
from throttle.errors import RobotsDisallowed
from throttle.http.addresses import Addresses
from throttle.http.call import Verdict
from throttle.http.events import shown
from throttle.http.pacer import Pacer
from throttle.http.robots import Robots
from throttle.http.robots_cache import RobotsCache
from throttle.http.routes import WEB_SOCKETS, Routes

__all__ = ["Politeness", "checked_user_agent", "fetching_rules"]

log = logging.getLogger("throttle")

#: Seconds between requests above which a site's wish is worth a line in the log.
_LONG = 60.0
_CONTACT = re.compile(r"[^\s@;()<>]+@[^\s@;()<>]+\.[^\s@;()<>]+|https?://[^\s/;()<>]+", re.I)

_fetching: ContextVar[bool] = ContextVar("throttle_fetching_rules", default=False)


@contextmanager
def fetching_rules() -> Iterator[None]:
    """Requests made inside are for a robots.txt, wherever it redirects to: no rules apply."""
    token = _fetching.set(True)
    try:
        yield
    finally:
        _fetching.reset(token)


def checked_user_agent(user_agent: object) -> str:
    """A User-Agent that names the crawler and a contact. (TypeError, ValueError)"""
    if not isinstance(user_agent, str):
        raise TypeError(f"user_agent must be a text, not {user_agent!r}")
    if not user_agent.isprintable() or not user_agent.isascii():
        raise ValueError(f"user_agent must be printable ASCII, not {user_agent!r}")
    if not _CONTACT.search(user_agent):
        raise ValueError(
            "user_agent must name a contact, a mail address or a URL, as in "
            f"'examplebot/1.0 (+https://example.org/bot; bot@example.org)', not {user_agent!r}"
        )
    return user_agent


class Politeness:
    """`routes` – where the pacers are; `product` – the token by which robots.txt addresses us.

    `robots` – None where robots.txt plays no part; `addresses` – None where hosts are told apart by
    name; `wall` – the clock by which the hours of a Request-rate are meant, epoch seconds.
    """

    def __init__(
        self,
        routes: Routes,
        product: str,
        *,
        robots: RobotsCache | None,
        addresses: Addresses | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._routes = routes
        self._product = product
        self._robots = robots
        self._addresses = addresses
        self._wall = wall

    async def before(self, method: str, url: URL) -> Callable[[], Verdict]:
        if self._addresses is not None:
            await self._addresses.learn(url.host or "")
        if self._robots is None or _fetching.get():
            return _always
        robots = (await self._robots.get(_site(url))).robots
        # First: the host is not forgotten before its delay is over, even if this goes no further.
        self._ask(method, url, robots.interval(self._wall()))
        if not robots.allows(url):
            raise RobotsDisallowed(shown(url), self._product, robots.reason)
        return partial(self._look_again, self._robots, robots, method, url)

    def _look_again(self, cache: RobotsCache, robots: Robots, method: str, url: URL) -> Verdict:
        """After a wait, in which the rules may have grown old, or an hour may have struck."""
        origin = _site(url)
        known = cache.fresh(origin)
        if known is None:
            # Those who wait behind would find the same: the turn is well spent on asking.
            return False if cache.is_fetching(origin) else partial(cache.get, origin)
        if known.robots is not robots and not known.robots.allows(url):
            return False
        pacer = self._pacer(method, url)
        return pacer is None or known.robots.interval(self._wall()) <= pacer.pace.asked

    def after(self, method: str, url: URL, status: int, seconds: float, throttled: bool) -> None:
        pacer = self._pacer(method, url)
        if pacer is not None:
            pacer.pace.answered(status, seconds, throttled, clock.now())
            pacer.update()

    def delay(self, method: str, url: URL) -> float:
        """Seconds from one request to the next that hold now, whoever named them."""
        pacer = self._pacer(method, url)
        return 0.0 if pacer is None else pacer.pace.delay

    def _ask(self, method: str, url: URL, seconds: float) -> None:
        pacer = self._pacer(method, url)
        if pacer is None:
            return
        if seconds > max(_LONG, pacer.pace.asked):
            log.warning("%s asks for %.6g s between requests", _site(url), seconds)
        pacer.pace.ask(_site(url), seconds)
        pacer.update()

    def _pacer(self, method: str, url: URL) -> Pacer | None:
        return _pacer_in(self._routes.origin(url, method).limiter)


def _pacer_in(limiter: object) -> Pacer | None:
    if isinstance(limiter, Pacer):
        return limiter
    members = getattr(limiter, "members", ())
    return next(filter(None, map(_pacer_in, members)), None)


def _site(url: URL) -> URL:
    """The origin whose robots.txt speaks of a URL; a web socket begins with a request to it."""
    origin = url.origin()
    return origin.with_scheme(WEB_SOCKETS.get(origin.scheme, origin.scheme))


def _always() -> bool:
    return True
