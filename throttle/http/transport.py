"""httpx: `ThrottledTransport`, the engine as a transport for `httpx.AsyncClient`.

    httpx.AsyncClient(transport=ThrottledTransport(rate="10/s"))

A transport is where each send of an httpx client passes: first tries, redirect hops, re-sends with
credentials. So it waits for a turn there, reads what the answer says, and sends again where that
helps, under asyncio and trio. Since httpx times single operations (connect, read, write, pool) and
not calls, waiting counts against no timeout.

A response is handed out as soon as its head has come, over a stream of ours: the slot ends when
that is closed, and what was read of a body to learn from it is there to be read again.

Invariant: a response that is not handed out is closed, and has given back its slot and its permit.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self, Unpack

import anyio
from yarl import URL

from throttle import clock
from throttle.http.call import Call
from throttle.http.evidence import DRAIN, SMALL, TELLING, TEXTS, UNREPLAYABLE
from throttle.http.options import Options, new_engine
from throttle.http.routes import Limit

try:
    import httpx
except ImportError:
    raise ImportError(
        "ThrottledTransport needs httpx: pip install 'throttle-asyncio[httpx]'"
    ) from None

__all__ = ["ThrottledTransport"]

_NETWORK = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class ThrottledTransport(httpx.AsyncBaseTransport):
    """Throttles every send of an httpx client, or of an SDK that takes one.

    `transport` – what sends; an `httpx.AsyncHTTPTransport()` by default. A client that is given a
    transport ignores its own `verify=`, `http2=`, `limits=` and `proxy=`: give them to the inner
    transport. `rate` and all other settings are those of `ThrottledSession`. `buffer_bodies` – read
    streamed bodies into memory before the first try, so that they can be sent again; without it, a
    refusal of a request whose stream was begun reaches the caller.

    Raises what the inner transport raises; and ServerThrottled where a server asks for a longer
    wait than `Retry.max_wait`, WaitTimeout where a turn comes after `Retry.deadline`, TimeoutError
    where the answer does. At the end of the tries the last response is returned. It carries the
    cookies that the responses before it have set, so that the client's jar learns of them.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        rate: Limit | None = None,
        buffer_bodies: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
            raise TypeError(f"transport must be an httpx.AsyncBaseTransport, not {transport!r}")
        self.engine = new_engine(rate, **options)
        self._inner = httpx.AsyncHTTPTransport() if transport is None else transport
        self._buffer = buffer_bodies

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        tb: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, tb)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._inner!r}>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = self.engine.call()
        if self._buffer:
            await request.aread()
        cookies: list[tuple[bytes, bytes]] = []
        url = URL(str(request.url), encoded=True)
        while True:
            if not call.enter(request.method, url):
                await call.turn(request.method, url)
            body = _Body(request)
            try:
                response = await self._send(body.request, call.ends_at)
            except _NETWORK as error:
                call.free_slot()
                await _after_error(call, url, body, error)
                continue
            except BaseException:
                call.free_slot()
                call.ended()
                raise
            stream = _Stream(response)
            if call.went_well(response.status_code, response.headers.raw):
                return _handed_out(response, stream, cookies, call.take_slot())
            call.ended()  # now, however long the body takes that is read to learn from it
            try:
                if not await _again(call, url, body, response, stream):
                    return _handed_out(response, stream, cookies, call.take_slot())
                cookies += _cookies_of(response)
                _keep_cookies(request, cookies)
            except BaseException:
                call.free_slot()
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                raise

    async def _send(self, request: httpx.Request, ends_at: float | None) -> httpx.Response:
        """To the head of the answer. TimeoutError at the end of the call."""
        if ends_at is None:
            return await self._inner.handle_async_request(request)
        with anyio.fail_after(max(0.0, ends_at - clock.now())):
            return await self._inner.handle_async_request(request)


async def _after_error(call: Call, url: URL, body: _Body, error: httpx.TransportError) -> None:
    """Wait for the next try, or raise."""
    method, headers = body.request.method, body.request.headers.raw
    decision = call.failed(method, headers, left=not isinstance(error, _NEVER_LEFT))
    instead = None
    if _is_about_tls(error):
        instead = "not a connection failure"
    elif decision.retry and not body.can_replay:
        instead = UNREPLAYABLE
    if not call.goes_on(method, url, decision, error, instead=instead):
        raise error
    await call.rest(decision)


async def _again(
    call: Call, url: URL, body: _Body, response: httpx.Response, stream: _Stream
) -> bool:
    """Learn from a response. Whether the request is to be sent again, once the wait is over."""
    method = body.request.method
    decision = await call.answered(
        method,
        url,
        body.request.headers.raw,
        response.status_code,
        response.headers.raw,
        await _evidence(response, stream),
    )
    instead = UNREPLAYABLE if decision.retry and not body.can_replay else None
    if not call.goes_on(method, url, decision, instead=instead):
        return False
    await stream.drain()
    call.free_slot()
    await call.rest(decision)
    return True


def _handed_out(
    response: httpx.Response,
    stream: _Stream,
    cookies: list[tuple[bytes, bytes]],
    slot: Callable[[], None] | None,
) -> httpx.Response:
    stream.on_close = slot
    headers = response.headers
    if cookies:  # before its own: what this response sets holds
        headers = httpx.Headers([*cookies, *headers.raw])
    return httpx.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )


# -------------------------------------------------------------------- small things about httpx


def _is_about_tls(error: BaseException | None) -> bool:
    """Whether the handshake failed: no later try would find another certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _evidence(response: httpx.Response, stream: _Stream) -> bytes | None:
    """The body, decoded, where it may tell of a throttle."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code not in TELLING or media not in TEXTS:
        return None
    raw = await stream.look(SMALL)
    if raw is None:
        return None
    try:
        return httpx.Response(response.status_code, headers=response.headers, content=raw).content
    except httpx.DecodingError:
        return None


def _cookies_of(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    return [pair for pair in response.headers.raw if pair[0].lower() == b"set-cookie"]


def _keep_cookies(request: httpx.Request, cookies: list[tuple[bytes, bytes]]) -> None:
    """A response that nobody gets to see has set cookies all the same."""
    if not cookies:
        return
    jar = httpx.Cookies()
    jar.extract_cookies(httpx.Response(200, headers=cookies, request=request))
    merged = dict(
        pair.strip().partition("=")[::2]
        for pair in request.headers.get("cookie", "").split(";")
        if pair.strip()
    )
    probe = httpx.Request(request.method, request.url)
    jar.set_cookie_header(probe)
    for pair in probe.headers.get("cookie", "").split("; "):
        name, _, value = pair.partition("=")
        if name:
            merged[name] = value
    if merged:
        request.headers["cookie"] = "; ".join(f"{name}={value}" for name, value in merged.items())


class _Body:
    """The body of a request: whether the request can be sent again as it was."""

    __slots__ = ("_begun", "_sure", "request")

    def __init__(self, request: httpx.Request) -> None:
        stream = request.stream
        self._begun = False
        self._sure = isinstance(stream, httpx.ByteStream) or _rewinds(stream)
        if self._sure or not isinstance(stream, httpx.AsyncByteStream):
            self.request = request
        else:
            self.request = httpx.Request(
                request.method,
                request.url,
                headers=request.headers,
                stream=_Watched(self, stream),
                extensions=request.extensions,
            )

    @property
    def can_replay(self) -> bool:
        """A stream that nobody has begun to read is as good as new."""
        return self._sure or not self._begun

    def begin(self) -> None:
        self._begun = True


class _Watched(httpx.AsyncByteStream):
    """A stream that tells when it is begun."""

    def __init__(self, body: _Body, stream: httpx.AsyncByteStream) -> None:
        self._body = body
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._body.begin()
        async for chunk in self._stream:
            yield chunk


def _rewinds(stream: Any) -> bool:
    """Whether it is a multipart form that httpx rewinds: of text, bytes and seekable files."""
    fields = getattr(stream, "fields", None)
    if not isinstance(fields, list):
        return False
    files = (getattr(field, "file", None) for field in fields)
    return all(
        file is None
        or isinstance(file, (str, bytes))
        or (hasattr(file, "seekable") and file.seekable())
        for file in files
    )


class _Stream(httpx.AsyncByteStream):
    """The body of a response, of which something may have been read in advance."""

    def __init__(self, response: httpx.Response) -> None:
        self.on_close: Callable[[], None] | None = None
        self._stream: Any = response.stream
        self._chunks: AsyncIterator[bytes] | None = None
        self._ahead: list[bytes] = []
        self._length = _length(response)
        self._over = False
        self._error: Exception | None = None
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._ahead:
            yield chunk
        if self._error is not None:
            raise self._error
        if not self._over:
            async for chunk in self._rest():
                yield chunk

    def _rest(self) -> AsyncIterator[bytes]:
        if self._chunks is None:
            self._chunks = aiter(self._stream)
        return self._chunks

    async def look(self, most: int) -> bytes | None:
        """The whole body, if it has up to `most` bytes; it stays readable."""
        if self._length is not None and self._length > most:
            return None
        size = sum(map(len, self._ahead))
        try:
            while not self._over and size <= most:
                chunk = await anext(self._rest(), None)
                if chunk is None:
                    self._over = True
                else:
                    self._ahead.append(chunk)
                    size += len(chunk)
        except (httpx.TransportError, httpx.StreamError) as error:
            self._error = error  # for whoever reads it next
        return b"".join(self._ahead) if self._over else None

    async def drain(self) -> None:
        """Give the connection back: for reuse if the rest of the body is small, else closed."""
        with anyio.move_on_after(DRAIN):
            await self.look(SMALL)
        await self.aclose()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if isinstance(self._chunks, AsyncGenerator):  # trio complains of those left half read
                await self._chunks.aclose()
            await self._stream.aclose()
        finally:
            slot, self.on_close = self.on_close, None
            if slot is not None:
                slot()


def _length(response: httpx.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
