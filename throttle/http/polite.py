"""`PoliteSession`: a `ThrottledSession` for sites that did not invite it.

It adds a guard to the engine (`politeness`) and a pacer to each limiter, and fetches robots.txt
through itself, so that these requests wait their turn like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp
from aiohttp import ClientResponse, hdrs
from multidict import CIMultiDict
from yarl import URL

from throttle.algorithms import AllOf
from throttle.checks import non_negative, positive
from throttle.errors import RobotsDisallowed, ThrottleError
from throttle.http.addresses import Addresses, Resolve
from throttle.http.pace import Pace
from throttle.http.pacer import Pacer
from throttle.http.politeness import Politeness, checked_user_agent, fetching_rules
from throttle.http.retry import Retry
from throttle.http.robots import LARGEST, Robots, product_of
from throttle.http.robots_cache import RobotsCache
from throttle.http.routes import Limit, check_limit, check_limits, host_of, made_limiter
from throttle.http.session import ThrottledSession
from throttle.http.together import Together
from throttle.limiter import Limiter, SupportsAcquire

__all__ = ["PoliteSession"]

#: RFC 9309, 2.3.1.2: five are followed. aiohttp counts the one at which it gives up.
_REDIRECTS = 6
_FOR_RULES = Retry(attempts=3, max_wait=60.0)
_PER = ("host", "address")


class PoliteSession(ThrottledSession):
    """A session that asks before it fetches, and never hurries a host.

    `user_agent` – must name a contact (a mail address or a URL); sent with every request.
    `delay` – seconds from one request to a host to the next; the delay that holds is the slowest of
    this, the host's Crawl-delay, its Request-rate, and what its answers teach (`adaptive`: as long
    as it takes to answer, twice as long after a 429 or 503, never less because of an error; at most
    `max_delay`). `jitter` – up to this share is added to each delay at random, nothing is ever
    taken off. `rate`, `burst` – a limit for each host besides; with `rate` the default delay is 0.
    `limits` – by host or host/path prefix; replaces `delay` and `rate` there, not the rest.
    `per` – what a host is: "host", its name, whatever the scheme or port; "address", the server
    behind it, so that names on one address share a pace (`resolve` – how to look it up); or give
    `key`. `concurrency` – requests in flight for each.
    `robots` – False ignores robots.txt, for a site that allows it. `product` – the name robots.txt
    files address you by, if it is not the first in `user_agent`. `robots_max_age` – seconds, at
    most a day; `max_sites` – robots.txt files kept.

    Every other argument is ThrottledSession's. Raises what that raises; and RobotsDisallowed, which
    is a PermissionError, where a site's robots.txt forbids a URL or cannot be had.
    """

    def __init__(
        self,
        base_url: str | URL | None = None,
        *,
        user_agent: str,
        delay: float | None = None,
        jitter: float = 0.5,
        adaptive: bool = True,
        max_delay: float = 60.0,
        rate: Limit | None = None,
        burst: float | None = None,
        limits: Mapping[str, Limit] | None = None,
        per: str = "host",
        resolve: Resolve | None = None,
        key: Callable[[URL, str], Hashable] | None = None,
        concurrency: int | None = 1,
        robots: bool = True,
        product: str | None = None,
        robots_max_age: float = 86400.0,
        max_sites: int = 10_000,
        headers: Any = None,
        **options: Any,
    ) -> None:
        agent = checked_user_agent(user_agent)
        own = CIMultiDict(headers or {})
        if hdrs.USER_AGENT in own:
            raise ValueError(f"headers must not name a User-Agent besides user_agent={agent!r}")
        own[hdrs.USER_AGENT] = agent
        token = product_of(agent) if product is None else product
        if not token:
            raise ValueError(f"product: {agent!r} does not begin with a name, so one is needed")
        if per not in _PER:
            raise ValueError(f"per must be one of {_PER}, not {per!r}")
        addresses = Addresses(resolve) if per == "address" and key is None else None
        if resolve is not None and addresses is None:
            raise ValueError(f"resolve={resolve!r} is only for per='address'")
        if rate is not None:
            check_limit("rate", rate, burst)
        elif burst is not None:
            raise ValueError(f"burst={burst!r} needs a rate")
        cache = RobotsCache(
            partial(_fetch_rules, self, token), max_age=robots_max_age, max_sites=max_sites
        )
        if delay is None:
            delay = 1.0 if rate is None else 0.0
        pacer = partial(
            _new_pacer,
            jitter=non_negative("jitter", jitter),
            most=positive("max_delay", max_delay),
            adapts=adaptive,
        )
        super().__init__(
            base_url,
            limiter=partial(_paced, rate, burst, partial(pacer, non_negative("delay", delay))),
            limits={
                place: partial(_paced, limit, None, partial(pacer, 0.0))
                for place, limit in check_limits(limits).items()
            },
            key=key or (_by_host if addresses is None else partial(_by_address, addresses)),
            concurrency=concurrency,
            headers=own,
            **options,
        )
        engine = self.throttle.engine
        self._politeness = engine.guard = Politeness(
            engine.routes, token, robots=cache if robots else None, addresses=addresses
        )

    def delay(self, url: str | URL, method: str = "GET") -> float:
        """Seconds from one request to the URL's host to the next that hold now, jitter not counted:
        the slowest of what was configured, what its robots.txt asks, and what was learned."""
        return self._politeness.delay(method, URL(url))

    async def _send(self, method: str, url: str | URL, **options: Any) -> ClientResponse:
        with _unwrapped():
            return await super()._send(method, url, **options)

    async def _connect(self, url: str | URL, options: dict[str, Any]) -> Any:
        with _unwrapped():
            return await super()._connect(url, options)


@contextmanager
def _unwrapped() -> Iterator[None]:
    """aiohttp takes every OSError for one of its own."""
    try:
        yield
    except aiohttp.ClientOSError as error:
        if isinstance(error.__cause__, RobotsDisallowed):
            raise error.__cause__ from None
        raise


async def _fetch_rules(session: ThrottledSession, product: str, origin: URL) -> Robots:
    with fetching_rules():
        try:
            response = await session.using(retry=_FOR_RULES).get(
                origin / "robots.txt", max_redirects=_REDIRECTS, raise_for_status=False
            )
            async with response:
                content = await _read(response) if response.status < 300 else b""
                return Robots.answered(response.status, content, product)
        except aiohttp.TooManyRedirects:
            return Robots()
        except (aiohttp.ClientError, ThrottleError, OSError) as error:
            return Robots.unreachable(type(error).__name__)


async def _read(response: ClientResponse) -> bytes:
    content = bytearray()
    while len(content) <= LARGEST:
        chunk = await response.content.read(65536)
        if not chunk:
            break
        content += chunk
    return bytes(content)


def _new_pacer(
    delay: float,
    *,
    jitter: float,
    most: float,
    adapts: bool,
    clock: Callable[[], float] | None = None,
) -> Pacer:
    return Pacer(Pace(delay, most=most, adapts=adapts), jitter=jitter, clock=clock)


def _paced(
    limit: Limit | None, burst: float | None, new: Callable[[], Pacer], host: str
) -> SupportsAcquire:
    """The limiter of a host: its pacer, and what was configured besides."""
    pacer = new()
    if limit is None:
        return pacer
    limiter = made_limiter(limit, burst, host)
    if isinstance(limiter, Limiter):
        return AllOf(limiter, pacer)
    return Together(limiter, pacer)


def _by_host(url: URL, method: str) -> str:
    return host_of(url)


def _by_address(addresses: Addresses, url: URL, method: str) -> str:
    return addresses.of(url.host or "")
