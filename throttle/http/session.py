"""aiohttp: `ThrottleMiddleware`, and `ThrottledSession` on top of it.

The middleware is what sends: each time aiohttp is about to send a request (a first try, a redirect
hop, a re-send with credentials) it waits for its turn at the origin it goes to, reads what the
answer says, and sends again where that helps. It sees the request itself, so a body is replayed as
aiohttp would replay it, or not at all.

The session delegates to a `ClientSession` and hands the middleware to every call as the innermost
one, so that nothing bypasses it. What only a session can do is here too: time that is spent waiting
does not count against the request's own timeout, and the tries of one call are counted together
even where aiohttp enters the chain twice.

Invariant: a response that is not handed out has given back its connection, its slot and its permit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from http.cookies import SimpleCookie
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import ClientRequest, ClientResponse, ClientSession, ClientTimeout, hdrs
from yarl import URL

from throttle.http.call import Call
from throttle.http.events import Retried, Signalled, Waited
from throttle.http.options import new_engine
from throttle.http.retry import Retry
from throttle.http.routes import Limit
from throttle.http.signals import Overrides
from throttle.limiter import SupportsAcquire

__all__ = ["ThrottleMiddleware", "ThrottledSession"]

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]
P = ParamSpec("P")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

#: Bytes of a body that are read to learn from it, or to keep a connection for reuse.
_SMALL = 65536
#: Seconds that may be spent on reading a refused response so that its connection can be reused.
_DRAIN = 1.0
#: Statuses whose body may be evidence of a throttle (D14).
_TELLING = frozenset({400, 403, 409, 418, 429, 503, 529})
_UNREPLAYABLE = "the body cannot be sent again"


class ThrottleMiddleware:
    """The engine as a middleware for somebody else's `ClientSession(middlewares=[...])`.

    Put it last: the innermost sees every send. Under a bare middleware aiohttp's own total timeout
    counts the waiting too, and a `middlewares=` given to a single request replaces the session's
    list, this one included; `ThrottledSession` has neither limit. Parameters: see there.
    """

    def __init__(
        self,
        rate: Limit | None = None,
        *,
        burst: float | None = None,
        limiter: SupportsAcquire | Callable[[str], SupportsAcquire] | None = None,
        limits: Mapping[str, Limit] | None = None,
        key: Callable[[URL, str], Hashable] | None = None,
        total: Limit | None = None,
        concurrency: int | None = None,
        settle: float | None = None,
        retry: Retry | None = None,
        signals: Mapping[str, Overrides] | Callable[[URL], Overrides | None] | None = None,
        buffer_bodies: bool = False,
        on_wait: Callable[[Waited], object] | None = None,
        on_retry: Callable[[Retried], object] | None = None,
        on_signal: Callable[[Signalled], object] | None = None,
    ) -> None:
        self.engine = new_engine(
            rate,
            burst=burst,
            limiter=limiter,
            limits=limits,
            key=key,
            total=total,
            concurrency=concurrency,
            settle=settle,
            retry=retry,
            signals=signals,
            on_wait=on_wait,
            on_retry=on_retry,
            on_signal=on_signal,
        )
        self._buffer = buffer_bodies
        # aiohttp enters the chain again after a broken connection; the call is the same then.
        self._calls: WeakKeyDictionary[asyncio.Task[Any], tuple[object, _Sender]] = (
            WeakKeyDictionary()
        )

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        task = asyncio.current_task()
        # The list of traces is made once for each call; nothing public tells calls apart.
        mark = getattr(request, "_traces", None)
        if mark is None:
            mark = getattr(request, "traces", None)
        sender = None
        if task is not None and mark is not None:
            known = self._calls.get(task)
            if known is not None and known[0] is mark:
                sender = known[1]
        if sender is None:
            sender = self.sender()
            if task is not None and mark is not None:
                self._calls[task] = (mark, sender)
        return await sender(request, handler)

    def sender(self, retry: Retry | None = None, *, buffer: bool | None = None) -> _Sender:
        """The middleware for one call, which counts its tries whatever aiohttp makes of it."""
        return _Sender(self.engine.call(retry), self._buffer if buffer is None else buffer)


class _Sender:
    """One call as a middleware."""

    __slots__ = ("_broken", "_buffer", "_call", "clock")

    def __init__(self, call: Call, buffer: bool) -> None:
        self._call = call
        self._buffer = buffer
        self._broken: BaseException | None = None
        self.clock: _Stopwatch | None = None

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        if self._broken is not None and self._call.is_over:
            raise self._broken  # aiohttp's own second try, of a call that has none left
        call, method = self._call, request.method
        if self._buffer and request.body:
            await request.body.as_bytes()
        while True:
            await self._aside(call.turn(method, request.url))
            try:
                response = await handler(request)
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                call.free_slot()
                await self._after_error(request, error)
                continue
            except BaseException:
                call.free_slot()
                call.ended()
                raise
            try:
                if not await self._again(request, response):
                    _on_release(response, call.take_slot())
                    return response
            except BaseException:
                response.close()
                call.free_slot()
                call.ended()
                raise

    async def _aside(self, waiting: Awaitable[None]) -> None:
        """Wait, with the request's own timeout stopped."""
        if self.clock is None:
            await waiting
        else:
            with self.clock.stopped():
                await waiting

    async def _after_error(self, request: ClientRequest, error: BaseException) -> None:
        """Wait for the next try, or raise."""
        call = self._call
        decision = call.failed(request.method, request.headers, left=not _never_left(error))
        over = self.clock is not None and self.clock.expired
        instead = None
        if isinstance(error, aiohttp.ClientSSLError) or over or not _is_network(error):
            instead = "not a connection failure" if not over else "timeout"
        elif decision.retry and not _can_replay(request):
            instead = _UNREPLAYABLE
            error.add_note(f"not tried again: {_UNREPLAYABLE}")
        call.tell(request.method, request.url, decision, error, instead=instead)
        if not decision.retry or instead is not None:
            self._broken = error
            raise error
        await self._aside(call.rest(decision))
        _make_ready(request)

    async def _again(self, request: ClientRequest, response: ClientResponse) -> bool:
        """Learn from a response. Whether the request is to be sent again; then it has been waited
        for, and the response is closed."""
        call = self._call
        body = await _evidence(response)
        decision = await call.answered(
            request.method, request.url, request.headers, response.status, response.headers, body
        )
        if decision.reason == "not a failure":
            return False
        instead = None
        if decision.retry and not _can_replay(request):
            instead = _UNREPLAYABLE
        call.tell(request.method, request.url, decision, instead=instead)
        if decision.raises:
            raise call.refusal(request.url, request.method, decision)
        if not decision.retry or instead is not None:
            return False
        _keep_cookies(request, response)
        await _drain(response)
        call.free_slot()
        await self._aside(call.rest(decision))
        _make_ready(request)
        return True


# -------------------------------------------------------------------- small things about aiohttp


def _never_left(error: BaseException) -> bool:
    return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


def _is_network(error: BaseException) -> bool:
    return isinstance(error, aiohttp.ClientConnectionError)


def _can_replay(request: ClientRequest) -> bool:
    return not getattr(request.body, "consumed", False)


def _make_ready(request: ClientRequest) -> None:
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        request.update_expect_continue(True)


def _keep_cookies(request: ClientRequest, response: ClientResponse) -> None:
    """A response that nobody gets to see has set cookies all the same."""
    if not response.cookies or request.session is None:
        return
    jar = request.session.cookie_jar
    jar.update_cookies(response.cookies, response.url)
    cookies = SimpleCookie(request.headers.get(hdrs.COOKIE, ""))
    cookies.update(jar.filter_cookies(request.url))
    if cookies:
        request.headers[hdrs.COOKIE] = cookies.output(header="", sep=";").strip()


async def _evidence(response: ClientResponse) -> bytes | None:
    """The body, where it may tell of a throttle and costs nothing to read."""
    if response.status not in _TELLING or response.content_type not in _TEXTS:
        return None
    return await _read(response)


_TEXTS = frozenset(
    {"application/json", "application/problem+json", "application/xml", "text/xml", "text/plain"}
)


async def _read(response: ClientResponse) -> bytes | None:
    """A small body; it stays readable for whoever gets the response."""
    length = response.content_length
    if response.content.is_eof() or (length is not None and length <= _SMALL):
        try:
            async with asyncio.timeout(_DRAIN):
                return await response.read()
        except (TimeoutError, aiohttp.ClientError):
            return None
    return None


async def _drain(response: ClientResponse) -> None:
    """Give the connection back: for reuse if the rest of the body is small, else closed."""
    if await _read(response) is None:
        response.close()
    else:
        response.release()


def _on_release(response: ClientResponse, call: Callable[[], None] | None) -> None:
    """Call back when the connection of a response is released, now if it has been."""
    if call is None:
        return
    connection = response.connection
    if connection is None or connection.closed:
        call()
    else:
        connection.add_callback(call)


class _Stopwatch:
    """The request's own total timeout, which does not run while the request waits for its turn."""

    __slots__ = ("_left", "_timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._left: float | None = None

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    @property
    def left(self) -> float | None:
        """Seconds left; None: no timeout."""
        when = self._timeout.when()
        return None if when is None else max(0.0, when - asyncio.get_running_loop().time())

    def stopped(self) -> _Stopwatch:
        return self

    def __enter__(self) -> None:
        self._left = self.left
        if not self._timeout.expired():
            self._timeout.reschedule(None)

    def __exit__(self, *_: object) -> None:
        if self._left is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


# -------------------------------------------------------------------- the session


class _Pending(Generic[T_co]):
    """What `session.get(…)` answers: to be awaited, or entered; a coroutine too, for those who
    make tasks of it."""

    __slots__ = ("_coroutine", "_result")

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, T_co]:
        return cast("Generator[Any, None, T_co]", self._coroutine.__await__())

    __iter__ = __await__

    async def __aenter__(self) -> T_co:
        self._result = await self._coroutine
        return await self._result.__aenter__()  # type: ignore[no-any-return]

    async def __aexit__(self, *error: Any) -> None:
        await self._result.__aexit__(*error)


def _like(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], R]]:
    """Lend a method of ours the signature of aiohttp's, for type checkers and for readers."""

    def lend(ours: Callable[..., Any]) -> Callable[Concatenate[Any, P], R]:
        ours.__doc__ = ours.__doc__ or method.__doc__
        return cast("Callable[Concatenate[Any, P], R]", ours)

    return lend


class ThrottledSession:
    """A `ClientSession` that keeps within limits, and listens to what servers say of theirs.

    `rate` – a limit for each origin (scheme, host and port), in any spelling, several in a list;
    without one there is no limit but those that servers tell. `burst` – see `limiter_for`.
    `limiter` – in place of `rate`: one limiter shared by all origins, or a function of an origin's
    name that makes one for each. `limits` – by host or host/path prefix, the longest wins; replaces
    `rate` there. `key` – a function of (url, method) that groups requests otherwise than by origin.
    `total` – a limit over everything. `concurrency` – requests in flight for each origin; a slot
    ends when the response is released. `settle` – by how many seconds at most a window's permit
    moves from the sending to the receipt of the answer (default: a tenth of the window).
    `retry` – a `Retry`. `signals` – settings for reading a host's signals (see `read_signal`).
    `buffer_bodies` – read streamed bodies into memory before the first try, so that they can be
    sent again. `on_wait`, `on_retry`, `on_signal` – called with frozen events.

    Every other argument is `ClientSession`'s, and so is every attribute and method not named here.
    Raises what aiohttp raises; and ServerThrottled where a server asks for a longer wait than
    `Retry.max_wait`, WaitTimeout where a turn comes after `Retry.deadline`. At the end of the tries
    the last response is returned (or raised, with `raise_for_status`).
    """

    def __init__(
        self,
        base_url: str | URL | None = None,
        *,
        rate: Limit | None = None,
        burst: float | None = None,
        limiter: SupportsAcquire | Callable[[str], SupportsAcquire] | None = None,
        limits: Mapping[str, Limit] | None = None,
        key: Callable[[URL, str], Hashable] | None = None,
        total: Limit | None = None,
        concurrency: int | None = None,
        settle: float | None = None,
        retry: Retry | None = None,
        signals: Mapping[str, Overrides] | Callable[[URL], Overrides | None] | None = None,
        buffer_bodies: bool = False,
        on_wait: Callable[[Waited], object] | None = None,
        on_retry: Callable[[Retried], object] | None = None,
        on_signal: Callable[[Signalled], object] | None = None,
        middlewares: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        throttle = ThrottleMiddleware(
            rate,
            burst=burst,
            limiter=limiter,
            limits=limits,
            key=key,
            total=total,
            concurrency=concurrency,
            settle=settle,
            retry=retry,
            signals=signals,
            buffer_bodies=buffer_bodies,
            on_wait=on_wait,
            on_retry=on_retry,
            on_signal=on_signal,
        )
        own = object.__setattr__
        own(self, "_throttle", throttle)
        own(self, "_users", tuple(middlewares))
        # Web socket handshakes take no middlewares of their own: they go through the session's.
        own(
            self,
            "_session",
            ClientSession(base_url, middlewares=(*middlewares, throttle), **options),
        )
        own(self, "_retry", None)
        own(self, "_buffer", None)

    _throttle: ThrottleMiddleware
    _users: tuple[Any, ...]
    _session: ClientSession
    _retry: Retry | None
    _buffer: bool | None

    def using(self, *, retry: Retry | None = None, buffer_body: bool | None = None) -> Self:
        """The same session, with other settings for the calls made through the answer."""
        view = object.__new__(type(self))
        for name in ("_throttle", "_users", "_session"):
            object.__setattr__(view, name, getattr(self, name))
        object.__setattr__(view, "_retry", self._retry if retry is None else retry)
        object.__setattr__(view, "_buffer", self._buffer if buffer_body is None else buffer_body)
        return view

    # ---------------------------------------------------------------- requests

    async def _send(
        self,
        method: str,
        url: str | URL,
        *,
        timeout: Any = ...,
        middlewares: Any = None,
        **options: Any,
    ) -> ClientResponse:
        session = self._session
        if timeout is ...:
            limit = session.timeout
        else:
            limit = timeout if isinstance(timeout, ClientTimeout) else ClientTimeout(total=timeout)
        sender = self._throttle.sender(self._retry, buffer=self._buffer)
        users = self._users if middlewares is None else middlewares
        options["middlewares"] = (*users, sender)
        if not limit.total:
            if timeout is not ...:
                options["timeout"] = limit
            return await session.request(method, url, **options)
        options["timeout"] = ClientTimeout(
            connect=limit.connect,
            sock_read=limit.sock_read,
            sock_connect=limit.sock_connect,
            ceil_threshold=limit.ceil_threshold,
        )
        async with asyncio.timeout(limit.total) as scope:
            sender.clock = _Stopwatch(scope)
            response = await session.request(method, url, **options)
            left = sender.clock.left
        if left is not None:
            _time_body(response, left)
        return response

    @_like(ClientSession.request)
    def request(self, method: str, url: str | URL, **options: Any) -> Any:
        """As `ClientSession.request`."""
        return _Pending(self._send(method, url, **options))

    @_like(ClientSession.get)
    def get(self, url: str | URL, *, allow_redirects: bool = True, **options: Any) -> Any:
        """As `ClientSession.get`."""
        options["allow_redirects"] = allow_redirects
        return _Pending(self._send(hdrs.METH_GET, url, **options))

    @_like(ClientSession.options)
    def options(self, url: str | URL, *, allow_redirects: bool = True, **options: Any) -> Any:
        """As `ClientSession.options`."""
        options["allow_redirects"] = allow_redirects
        return _Pending(self._send(hdrs.METH_OPTIONS, url, **options))

    @_like(ClientSession.head)
    def head(self, url: str | URL, *, allow_redirects: bool = False, **options: Any) -> Any:
        """As `ClientSession.head`."""
        options["allow_redirects"] = allow_redirects
        return _Pending(self._send(hdrs.METH_HEAD, url, **options))

    @_like(ClientSession.post)
    def post(self, url: str | URL, *, data: Any = None, **options: Any) -> Any:
        """As `ClientSession.post`."""
        return _Pending(self._send(hdrs.METH_POST, url, data=data, **options))

    @_like(ClientSession.put)
    def put(self, url: str | URL, *, data: Any = None, **options: Any) -> Any:
        """As `ClientSession.put`."""
        return _Pending(self._send(hdrs.METH_PUT, url, data=data, **options))

    @_like(ClientSession.patch)
    def patch(self, url: str | URL, *, data: Any = None, **options: Any) -> Any:
        """As `ClientSession.patch`."""
        return _Pending(self._send(hdrs.METH_PATCH, url, data=data, **options))

    @_like(ClientSession.delete)
    def delete(self, url: str | URL, **options: Any) -> Any:
        """As `ClientSession.delete`."""
        return _Pending(self._send(hdrs.METH_DELETE, url, **options))

    @_like(ClientSession.ws_connect)
    def ws_connect(self, url: str | URL, **options: Any) -> Any:
        """As `ClientSession.ws_connect`; the handshake waits for its turn like a request."""
        return self._session.ws_connect(url, **options)

    # ---------------------------------------------------------------- the rest is the session's

    @property
    def throttle(self) -> ThrottleMiddleware:
        """The engine behind it."""
        return self._throttle

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._session.__aexit__(kind, error, tb)

    async def close(self) -> None:
        """As `ClientSession.close`."""
        await self._session.close()

    def __getattr__(self, name: str) -> Any:
        if name == "_session":  # not made yet: an argument was refused
            raise AttributeError(name)
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._session, name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._session!r}>"


def _time_body(response: ClientResponse, left: float) -> None:
    """Let the request's own timeout go on over the body, as aiohttp does."""
    connection = response.connection
    if connection is None or connection.closed:
        return

    def expire() -> None:
        response.content.set_exception(TimeoutError())
        response.close()

    handle = asyncio.get_running_loop().call_later(left, expire)
    connection.add_callback(handle.cancel)
