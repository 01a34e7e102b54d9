"""A real HTTP server on this machine that enforces a limit, for tests of clients.

It counts a request when it arrives, by a monotonic clock (the one limiters use: virtual time, if
that is on), asks the limiter of that client, and answers 200 or a refusal in some dialect. It is
meant to be exact: what it refuses, the algorithm refuses.

It runs in the asyncio loop of an `async with`, else in a thread of its own (`with`, and `async
with` under trio): there `latency` is real, and virtual time stands while it works.

State: a limiter for each client, two counters, and the last arrivals. Invariant: an arrival is
decided and written down in one step, before anything is awaited.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Hashable, Mapping
from math import inf
from mimetypes import guess_type
from types import TracebackType
from typing import NamedTuple, Self, TypeVar
from urllib.parse import urljoin

import anyio
import anyio.to_thread
from aiohttp import hdrs, web

from throttle.algorithms.bucket import Bucket
from throttle.algorithms.window import Window
from throttle.checks import non_negative, positive, whole
from throttle.choice import limiter_for
from throttle.clock import tolerance
from throttle.limiter import Limiter
from throttle.rate import RateLike
from throttle.testing.dialects import DIALECTS, Answer, Dialect, Headers, Quota, http_date
from throttle.testing.faults import Faults, apply_fault, fault_plan
from throttle.testing.hosting import HEADERS, InLoop, InThread
from throttle.testing.limits import ALLOW, DELAY

__all__ = ["Arrival", "RateLimitedServer"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Content = Mapping[str, str | bytes]
LimiterLike = RateLike | list[RateLike] | Limiter | Callable[[], Limiter]

_LARGEST_BODY = 2**26
#: The largest integer of a structured field (RFC 9651, 3.3.1).
_LARGEST_COUNT = 10**15 - 1

_Host = TypeVar("_Host", InLoop, InThread)


class Arrival(NamedTuple):
    """One request as the server saw it."""

    method: str
    path: str
    """With the query."""
    instant: float
    """Seconds, on the clock of limiters, when it arrived."""
    status: int | None
    """What it was answered; None: not yet, or the connection was dropped."""
    client: Hashable
    """The key it was counted under."""
    admitted: bool


class RateLimitedServer:
    """`with RateLimitedServer("50/s") as server:` or `async with`; then `server.url`.

    `limiter` – a rate in any spelling or a list of rates (exact: never more than N in any T), a
    limiter as a template (copied for each client), or a function that makes one.
    `per` – who shares a limit: "address", "global", "path", "authorization", "header:NAME", or a
    function of the request that answers a hashable key.
    `dialect` – how it speaks: a name in `throttle.testing.dialects.DIALECTS` ("retry-after",
    "retry-after-date", "github", "ietf", "ietf-draft-7", "ietf-draft-3", "openai", "shopify",
    "none"), or a function from an `Answer` to headers. `status` – of a refusal (400 to 599).
    `latency` – seconds between the decision and the answer of an admitted request.
    `faults` – {"drop": 0.1, "truncate": 0.05, 503: 0.1}: chances drawn from `seed`; or a script,
    ["drop", None, 502]: one an admitted request, in order of arrival, then no more.
    `handler` – the content: a mapping from path to text or bytes (404 elsewhere), or an aiohttp
    handler. Without: 200 for every path, with a body made of the path; `?bytes=N` sets its size.
    `max_requests` – how many arrivals are kept in `requests`.

    Wrong arguments raise ValueError or TypeError naming them. Each start counts anew.
    """

    def __init__(
        self,
        limiter: LimiterLike,
        *,
        per: str | Callable[[web.Request], Hashable] = "address",
        dialect: str | Callable[[Answer], Headers] = "retry-after",
        status: int = 429,
        latency: float = 0.0,
        faults: Faults = (),
        seed: int = 0,
        handler: Handler | Content | None = None,
        max_requests: int = 100_000,
    ) -> None:
        self._new_limiter = _limiter_factory(limiter)
        self._client_of = _client_key(per)
        self._dialect = _dialect(dialect)
        self._status = whole("status", status)
        if not 400 <= self._status <= 599:
            raise ValueError(f"status must be 400 to 599, not {status!r}")
        self._latency = non_negative("latency", latency)
        self._plan = fault_plan(faults, whole("seed", seed))
        self._content = _content(handler)
        self._most = whole("max_requests", max_requests, least=1)
        self._host: InLoop | InThread | None = None
        self._port = 0
        self._count_anew()

    def _count_anew(self) -> None:
        self._limiters: dict[Hashable, Limiter] = {}
        self._faults = self._plan()
        self._arrivals: dict[int, Arrival] = {}
        self._admitted = self._refused = 0
        self._zero: float | None = None  # the wall clock where the limiters' clock was at 0

    # ---------------------------------------------------------------- what a test asks

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at the end. RuntimeError unless started."""
        if not self._port:
            raise RuntimeError("the server has not been started: use `with` or `async with`")
        return f"http://127.0.0.1:{self._port}"

    def url_for(self, path: str = "/") -> str:
        """The address of a path."""
        return urljoin(self.url + "/", path.lstrip("/"))

    @property
    def admitted(self) -> int:
        """Requests that were let in since the start."""
        return self._admitted

    @property
    def refused(self) -> int:
        """Requests that were not."""
        return self._refused

    @property
    def requests(self) -> list[Arrival]:
        """The last `max_requests` arrivals, in order."""
        return list(self._arrivals.values())

    def max_in_window(
        self, seconds: float, *, client: Hashable | None = None, refused: bool = False
    ) -> int:
        """The most requests let in within any window of that many seconds, of those remembered.

        A window holds its start and not its end. `client` – of that key only; `refused=True` counts
        the refused ones too: what was sent, not what was granted.
        """
        window = positive("seconds", seconds, infinite=True)
        instants = [
            arrival.instant
            for arrival in self.requests
            if (refused or arrival.admitted) and (client is None or arrival.client == client)
        ]
        return max(
            (
                bisect_right(instants, instant) - bisect_right(instants, instant - window + slip)
                for instant, slip in ((one, tolerance(one)) for one in instants)
            ),
            default=0,
        )

    # ---------------------------------------------------------------- starting and stopping

    def __enter__(self) -> Self:
        self._port = self._begin(InThread(self._answer)).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        host = self._end()
        assert isinstance(host, InThread)
        host.stop()

    async def __aenter__(self) -> Self:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            host = self._begin(InThread(self._answer))
            with anyio.CancelScope(shield=True):  # or the thread would be left behind
                self._port = await anyio.to_thread.run_sync(host.start)
            return self
        self._port = await self._begin(InLoop(self._answer)).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        host = self._end()
        with anyio.CancelScope(shield=True):
            if isinstance(host, InLoop):
                await host.stop()
            else:
                await anyio.to_thread.run_sync(host.stop)

    def _begin(self, host: _Host) -> _Host:
        if self._host is not None:
            raise RuntimeError("the server has been started already: one `with` at a time")
        self._count_anew()
        self._host = host
        return host

    def _end(self) -> InLoop | InThread:
        host = self._host
        assert host is not None
        self._host, self._port = None, 0
        return host

    # ---------------------------------------------------------------- answering

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        client = self._client_of(request)
        limiter = self._limiters.get(client)
        if limiter is None:
            limiter = self._limiters[client] = self._new_limiter()
        now = limiter._now()
        admitted = ALLOW(limiter, now)
        wall = self._wall(now)
        # The Date of the same clock, so that it agrees with absolute instants in virtual time too.
        request[HEADERS] = {
            hdrs.DATE: http_date(wall),
            **self._dialect.headers(_said(limiter, now, admitted, wall)),
        }
        number = self._admitted + self._refused
        arrival = Arrival(request.method, request.path_qs, now, None, client, admitted)
        self._note(number, arrival)
        if not admitted:
            self._refused += 1
            self._note(number, arrival._replace(status=self._status))
            media, text = self._dialect.refusal
            return web.Response(status=self._status, text=text, content_type=media)
        self._admitted += 1
        fault = next(self._faults)
        status: int | None = None
        try:
            if self._latency:
                await asyncio.sleep(self._latency)
            response = await self._content(request)
            if fault is not None:
                response = await apply_fault(fault, request, response)
            if fault != "drop":
                status = response.status
            return response
        except web.HTTPException as answer:
            status = answer.status
            raise
        except Exception:
            status = 500
            raise
        finally:
            if number in self._arrivals:
                self._arrivals[number] = arrival._replace(status=status)

    def _note(self, number: int, arrival: Arrival) -> None:
        self._arrivals[number] = arrival
        if len(self._arrivals) > self._most:
            del self._arrivals[next(iter(self._arrivals))]

    def _wall(self, now: float) -> float:
        if self._zero is None:
            self._zero = time.time() - now
        return self._zero + now


# -------------------------------------------------------------------- what is left


def _said(limiter: Limiter, now: float, admitted: bool, wall: float) -> Answer:
    leaves = [leaf for leaf, _ in limiter._needs(limiter._checked(1))]
    quotas = [_quota(leaf, now, alone=len(leaves) == 1) for leaf in leaves]
    quotas.sort(key=lambda quota: (-quota.next_after, quota.remaining / quota.limit))
    return Answer(not admitted, tuple(quotas), 0.0 if admitted else DELAY(limiter, now), wall)


def _quota(leaf: Limiter, now: float, *, alone: bool) -> Quota:
    if isinstance(leaf, Bucket):
        limit, window = leaf.capacity, leaf.capacity / leaf.rate if leaf.rate else inf
    elif isinstance(leaf, Window):
        limit, window = leaf.limit, leaf.window
    else:  # an algorithm of the user's own
        limit, window = leaf._ceiling(), leaf._span()
    remaining = int(min(max(leaf.available(now), 0), _LARGEST_COUNT))
    return Quota(
        "default" if alone else f"{limit:g}-per-{window:g}s",
        max(1, int(min(limit, _LARGEST_COUNT))),
        window,
        remaining,
        0.0 if remaining else DELAY(leaf, now),
        max(0.0, leaf.fresh_at(now) - now),
    )


# -------------------------------------------------------------------- arguments


def _limiter_factory(limiter: LimiterLike) -> Callable[[], Limiter]:
    if isinstance(limiter, Limiter):
        return limiter._clone
    if callable(limiter):
        made = limiter()
        if not isinstance(made, Limiter):
            raise TypeError(f"limiter must make a Limiter; {limiter!r} made {made!r}")
        return limiter
    try:
        template = limiter_for(limiter)
    except (TypeError, ValueError) as error:
        raise type(error)(f"limiter: {error}") from None
    return template._clone


def _client_key(per: str | Callable[[web.Request], Hashable]) -> Callable[[web.Request], Hashable]:
    if callable(per):
        return per
    if per in _CLIENT_KEYS:
        return _CLIENT_KEYS[per]
    kind, _, name = str(per).partition(":")
    if kind != "header" or not name:
        raise ValueError(f"per must be one of {[*_CLIENT_KEYS, 'header:NAME']}, not {per!r}")
    return lambda request: request.headers.get(name, "")


_CLIENT_KEYS: dict[str, Callable[[web.Request], Hashable]] = {
    "address": lambda request: request.remote,
    "authorization": lambda request: request.headers.get(hdrs.AUTHORIZATION, ""),
    "global": lambda request: "global",
    "path": lambda request: request.path,
}


def _dialect(dialect: str | Callable[[Answer], Headers]) -> Dialect:
    if callable(dialect):
        return Dialect(dialect)
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {[*DIALECTS]}, not {dialect!r}")
    return DIALECTS[dialect]


def _content(handler: Handler | Content | None) -> Handler:
    if handler is None:
        return _sample
    if isinstance(handler, Mapping):
        return _pages({path: _page(path, body) for path, body in handler.items()})
    if not callable(handler):
        raise TypeError(f"handler must be a mapping or an aiohttp handler, not {handler!r}")
    return handler


async def _sample(request: web.Request) -> web.StreamResponse:
    """The path, over and over, for as many bytes as asked for."""
    line = request.path.encode() + b"\n"
    wanted = request.query.get("bytes", str(len(line)))
    size = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else -1
    if not 0 <= size <= _LARGEST_BODY:
        raise web.HTTPBadRequest(text=f"bytes must be 0 to {_LARGEST_BODY}, not {wanted!r}")
    body = (line * (size // len(line) + 1))[:size]
    return web.Response(body=body, content_type="text/plain", charset="utf-8")


def _page(path: object, body: object) -> tuple[bytes, str]:
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError(f"handler: a path must start with '/', not {path!r}")
    if not isinstance(body, (str, bytes)):
        raise TypeError(f"handler: the body of {path!r} must be text or bytes, not {body!r}")
    content = body.encode() if isinstance(body, str) else body
    return content, guess_type(path)[0] or ("text/html" if path.endswith("/") else "text/plain")


def _pages(pages: Mapping[str, tuple[bytes, str]]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path not in pages:
            raise web.HTTPNotFound
        body, media = pages[request.path]
        return web.Response(body=body, content_type=media)

    return handler
