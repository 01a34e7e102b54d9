"""aiohttp: `ThrottledSession`, a `ClientSession` that keeps within limits.

It delegates to a `ClientSession` (which is not to be subclassed) and hands the middleware that
throttles to every call as the innermost one, so that nothing bypasses it. What only a session can
do is here: time that is spent waiting does not count against the request's own timeout, and the
settings of single calls (`using`).

State: that session, and the engine behind the middleware. Invariant: aiohttp is never given a total
timeout; it is kept here, around the call and then over the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout, hdrs
from aiohttp.abc import AbstractCookieJar
from aiohttp.client import DEFAULT_TIMEOUT
from aiohttp.typedefs import JSONEncoder, LooseCookies, LooseHeaders, StrOrURL
from yarl import URL

from throttle.http.middleware import Sender, Stopwatch, ThrottleMiddleware
from throttle.http.options import Options
from throttle.http.retry import Retry
from throttle.http.routes import Limit

__all__ = ["SessionOptions", "ThrottleMiddleware", "ThrottledSession"]

P = ParamSpec("P")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

#: What aiohttp itself passes for "as the session has it".
_SENTINEL = aiohttp.helpers.sentinel


class SessionOptions(Options, total=False):
    """The settings of every client, and the arguments of `ClientSession`."""

    connector: aiohttp.BaseConnector | None
    loop: asyncio.AbstractEventLoop | None
    cookies: LooseCookies | None
    headers: LooseHeaders | None
    proxy: StrOrURL | None
    proxy_auth: aiohttp.BasicAuth | None
    skip_auto_headers: Sequence[str] | None
    auth: aiohttp.BasicAuth | None
    json_serialize: JSONEncoder
    json_serialize_bytes: Callable[[Any], bytes] | None
    request_class: type[aiohttp.ClientRequest]
    response_class: type[ClientResponse]
    ws_response_class: Any
    version: aiohttp.HttpVersion
    cookie_jar: AbstractCookieJar | None
    connector_owner: bool
    raise_for_status: bool | Callable[[ClientResponse], Awaitable[None]]
    read_timeout: float
    conn_timeout: float | None
    timeout: ClientTimeout | None
    auto_decompress: bool
    trust_env: bool
    requote_redirect_url: bool
    trace_configs: list[aiohttp.TraceConfig] | None
    read_bufsize: int
    max_line_size: int
    max_field_size: int
    max_headers: int
    fallback_charset_resolver: Callable[[ClientResponse, bytes], str]
    ssl_shutdown_timeout: float | None


class _Pending(Generic[T_co]):
    """What `session.get(…)` answers: to be awaited, or entered; a coroutine too, for those who
    make tasks of it."""

    __slots__ = ("_coroutine", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
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
        buffer_bodies: bool = False,
        middlewares: Sequence[Any] = (),
        **options: Unpack[SessionOptions],
    ) -> None:
        theirs: dict[str, Any] = dict(options)
        ours: Any = {name: theirs.pop(name) for name in Options.__annotations__ if name in theirs}
        throttle = ThrottleMiddleware(rate, buffer_bodies=buffer_bodies, **ours)
        self._throttle = throttle
        self._users = tuple(middlewares)
        self._retry: Retry | None = None
        self._buffer: bool | None = None
        limit: Any = theirs.get("timeout") or DEFAULT_TIMEOUT
        old_style = "read_timeout" in theirs or "conn_timeout" in theirs
        if isinstance(limit, ClientTimeout) and not old_style:
            theirs["timeout"] = _untimed(limit)
        # Web socket handshakes take no middlewares of their own: they go through the session's.
        self._session = ClientSession(base_url, middlewares=(*middlewares, throttle), **theirs)
        self._timeout: ClientTimeout = self._session.timeout if old_style else limit
        self._untimed = _untimed(self._timeout)
        # Whoever runs before the request is sent, and is to be timed.
        self._outsiders = bool(self._users or self._session.trace_configs)

    def using(self, *, retry: Retry | None = None, buffer_body: bool | None = None) -> Self:
        """The same session, with other settings for the calls made through the answer."""
        view = copy(self)
        if retry is not None:
            if not isinstance(retry, Retry):
                raise TypeError(f"retry must be a Retry, not {retry!r}")
            view._retry = retry
        if buffer_body is not None:
            view._buffer = buffer_body
        return view

    # ---------------------------------------------------------------- requests

    async def _send(
        self,
        method: str,
        url: StrOrURL,
        *,
        timeout: Any = ...,
        middlewares: Sequence[Any] | None = None,
        **options: Any,
    ) -> ClientResponse:
        limit = self._timeout
        if timeout is not ... and timeout is not _SENTINEL:
            limit = timeout if isinstance(timeout, ClientTimeout) else ClientTimeout(total=timeout)
        options["timeout"] = self._untimed if limit is self._timeout else _untimed(limit)
        sender = self._sender()
        users = self._users if middlewares is None else middlewares
        options["middlewares"] = (*users, sender)
        sending = self._session.request(method, url, **options)
        if not limit.total or limit.total < 0:
            return await sending
        watch = sender.clock = Stopwatch(limit.total)
        if self._outsiders or middlewares:
            watch.start()
        try:
            response = await sending
        except asyncio.CancelledError as error:
            if watch.ran_out():
                raise TimeoutError from error
            raise
        finally:
            watch.stop()
        if response.connection is not None:
            _time_body(response, response.connection, watch.left)
        return response

    async def _connect(self, url: StrOrURL, options: dict[str, Any]) -> Any:
        sender, total = self._sender(), self._timeout.total
        connecting = sender.through_session(self._session.ws_connect(url, **options))
        if not total or total < 0:
            return await connecting
        sender.clock = Stopwatch(total)
        sender.clock.start()
        try:
            return await connecting
        except asyncio.CancelledError as error:
            if sender.clock.ran_out():
                raise TimeoutError from error
            raise
        finally:
            sender.clock.stop()

    def _sender(self) -> Sender:
        return self._throttle.sender(self._retry, buffer=self._buffer)

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
        return _Pending(self._connect(url, options))

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

    @property
    def timeout(self) -> ClientTimeout:
        """The timeouts of the session."""
        return self._timeout

    @property
    def requote_redirect_url(self) -> bool:
        """As `ClientSession.requote_redirect_url`."""
        return self._session.requote_redirect_url

    @requote_redirect_url.setter
    def requote_redirect_url(self, value: bool) -> None:
        self._session.requote_redirect_url = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_session" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._session, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._session!r}>"


def _untimed(limit: ClientTimeout) -> ClientTimeout:
    """The same without the total, which is kept here."""
    if limit.total is None:
        return limit
    return ClientTimeout(
        connect=limit.connect,
        sock_read=limit.sock_read,
        sock_connect=limit.sock_connect,
        ceil_threshold=limit.ceil_threshold,
    )


def _time_body(response: ClientResponse, connection: Any, left: float) -> None:
    """Let the request's own timeout go on over the body, as aiohttp does."""

    def expire() -> None:
        response.content.set_exception(TimeoutError())
        response.close()

    handle = asyncio.get_running_loop().call_later(left, expire)
    connection.add_callback(handle.cancel)
