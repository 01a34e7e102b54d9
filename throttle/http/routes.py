"""Which limiter a URL falls under, and the origins that are kept.

An origin is (scheme, host, port), normalised, or whatever `key=` answers. `limits=` names hosts, or
hosts with a path prefix; the longest that fits replaces `rate`, and a bare host means every port.
One entry of `limits` is one limiter, shared by all URLs that fall under it.

State: the origins, those that were looked at longest ago first. Invariant: one is forgotten only
when nothing would be lost, and looking for those costs a bounded time at each new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any

from yarl import URL

from throttle import checks, clock
from throttle.choice import limiter_for
from throttle.http.origin import Origin
from throttle.limiter import SupportsAcquire, is_limiter
from throttle.rate import Rate, RateLike

__all__ = [
    "WEB_SOCKETS",
    "Limit",
    "Routes",
    "check_limit",
    "check_limits",
    "host_of",
    "made_limiter",
]

_MOST_FOUND = 1000
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: A handshake is a request to the same server.
WEB_SOCKETS = {"ws": "http", "wss": "https"}

#: What `rate=`, `total=` and the values of `limits=` may be: a rate in any spelling, several that
#: all hold, a limiter (shared by all it serves), or a function of an origin's name that makes one.
Limit = RateLike | Iterable[RateLike] | SupportsAcquire | Callable[[str], SupportsAcquire]


class Routes:
    """Finds, for each request, the origin it goes to."""

    def __init__(
        self,
        rate: Limit | None = None,
        *,
        burst: float | None = None,
        limits: Mapping[str, Limit] | None = None,
        key: Callable[[URL, str], Hashable] | None = None,
        total: Limit | None = None,
        concurrency: int | None = None,
        settle: float | None = None,
    ) -> None:
        if burst is not None and rate is None:
            raise ValueError(f"burst={burst!r} needs a rate")
        self._rate = None if rate is None else check_limit("rate", rate, burst)
        self._burst = burst
        self._key = key
        self._concurrency = (
            None if concurrency is None else checks.whole("concurrency", concurrency, least=1)
        )
        self._settle = (
            None if settle is None else checks.non_negative("settle", settle, infinite=True)
        )
        self._origins: OrderedDict[tuple[Hashable, str | None], Origin] = OrderedDict()
        self._total = (
            None if total is None else made_limiter(check_limit("total", total), None, "total")
        )
        self._limits: dict[str, list[tuple[int | None, str, str, Limit]]] = {}
        self._shared: dict[str, SupportsAcquire] = {}
        for place, limit in check_limits(limits).items():
            host, port, prefix = _place(place)
            self._limits.setdefault(host, []).append((port, prefix, place, limit))
        # Where nothing but the origin counts, it is found by the way it is written, for speed.
        self._plain = key is None and not self._limits
        self._found: dict[tuple[str, str | None, int | None], Origin] = {}
        for entries in self._limits.values():
            entries.sort(key=lambda entry: (len(entry[1]), entry[0] is not None), reverse=True)

    def origin(self, url: URL, method: str) -> Origin:
        """The origin that a request goes to; made at the first one."""
        written = None
        if self._plain:
            written = (url.scheme, url.raw_host, url.port)
            origin = self._found.get(written)
            if origin is not None:
                return origin
        place, limit = self._entry(url)
        slot = (self._key_of(url, method), place)
        origin = self._origins.get(slot)
        if origin is None:
            self._forget_idle()
            origin = self._new(slot[0], place, limit)
            for sibling in self.siblings(url, method):
                origin.inherit(sibling)
            self._origins[slot] = origin
        if written is not None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[written] = origin
        return origin

    def siblings(self, url: URL, method: str) -> list[Origin]:
        """All that are kept for the same server: a pause it asks for is a pause of them all."""
        key = self._key_of(url, method)
        places = {None, *(entry[2] for entry in self._limits.get(host_of(url), ()))}
        found = (self._origins.get((key, place)) for place in places)
        return [origin for origin in found if origin is not None]

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[Origin]:
        return iter(list(self._origins.values()))

    def _key_of(self, url: URL, method: str) -> Hashable:
        if self._key is not None:
            return self._key(url, method)
        scheme = url.scheme
        return (WEB_SOCKETS.get(scheme, scheme), host_of(url), url.port)

    def _entry(self, url: URL) -> tuple[str | None, Limit | None]:
        if self._limits:
            path = url.path
            for port, prefix, place, limit in self._limits.get(host_of(url), ()):
                if port in (None, url.port) and _is_below(path, prefix):
                    return place, limit
        return None, self._rate

    def _new(self, key: Hashable, place: str | None, limit: Limit | None) -> Origin:
        name = _name(key)
        if place is None:
            limiter = made_limiter(inf if limit is None else limit, self._burst, name)
        else:
            if place not in self._shared:
                self._shared[place] = made_limiter(inf if limit is None else limit, None, name)
            limiter = self._shared[place]
        return Origin(
            name,
            limiter,
            total=self._total,
            concurrency=self._concurrency,
            settle=self._settle,
            own=limit is None or not (callable(limit) or isinstance(limit, SupportsAcquire)),
        )

    def _forget_idle(self) -> None:
        """Look at the two oldest: at each new one, that keeps their number near those in use."""
        now = clock.now()
        for slot in list(islice(self._origins, 2)):
            if self._origins[slot].is_idle(now):
                del self._origins[slot]
                self._found.clear()
            else:
                self._origins.move_to_end(slot)


def check_limits(limits: Any) -> dict[str, Limit]:
    """`limits=` as a dictionary of what can be limits; None: an empty one."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a mapping from host to limit, not {limits!r}")
    return {place: check_limit(f"limits[{place!r}]", limit) for place, limit in limits.items()}


def check_limit(name: str, given: Any, burst: float | None = None) -> Limit:
    """Refuse at once what cannot be a limit; a function is called only when an origin needs it."""
    limit: Limit = given
    if callable(limit) or hasattr(limit, "acquire"):
        if not callable(limit) and not is_limiter(limit):
            raise TypeError(f"{name} must be a rate or a limiter, not {limit!r}")
        if burst is not None:
            raise ValueError(f"burst={burst!r} is for a rate, not for {limit!r}")
        return limit
    if isinstance(limit, Iterable) and not isinstance(limit, (str, Rate)):
        limit = list(limit)
    try:
        limiter_for(limit, burst)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={limit!r}: {error}") from None
    return limit


def made_limiter(limit: Limit, burst: float | None, origin: str) -> SupportsAcquire:
    """The limiter of an origin. TypeError if a factory makes something else."""
    if callable(limit):  # first: a class has an `acquire` too
        made: Any = limit(origin)
        if isinstance(made, type) or not isinstance(made, SupportsAcquire):
            raise TypeError(f"the factory must make a limiter for {origin}, but made {made!r}")
        return made
    if isinstance(limit, SupportsAcquire):
        return limit
    return limiter_for(limit, burst)


def _place(place: Any) -> tuple[str, int | None, str]:
    """Host, port or None, and path prefix of a key of `limits`."""
    if not place or not isinstance(place, str):
        raise TypeError(f"limits must be keyed by host or host/path, not {place!r}")
    try:
        url = URL(place if "://" in place else f"//{place}")
        # Written with a scheme, it means that scheme's port; a bare host means every port.
        host, port = host_of(url), url.port if "://" in place else url.explicit_port
    except ValueError:
        host, port = "", None
    if not host:
        raise ValueError(f"limits: {place!r} names no host")
    return host, port, url.path.rstrip("/")


def _is_below(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/")


def host_of(url: URL) -> str:
    """Without what makes no difference: case, a trailing dot, the spelling of other alphabets."""
    return (url.raw_host or "").lower().rstrip(".")


def _name(key: Hashable) -> str:
    if not (isinstance(key, tuple) and len(key) == 3 and key[0] in _DEFAULT_PORTS):
        return str(key)
    scheme, host, port = key
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" + ("" if port == _DEFAULT_PORTS[scheme] else f":{port}")
