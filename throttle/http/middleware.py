"""aiohttp: `ThrottleMiddleware`, which is what sends.

Each time aiohttp is about to send a request (a first try, a redirect hop, a re-send with
credentials) it waits for its turn at the origin it goes to, reads what the answer says, and sends
again where that helps. It sees the request itself, so a body is replayed as aiohttp would replay
it, or not at all.

State: one `Sender` for each call, which counts its tries. aiohttp enters the chain once more after
a broken connection, by a rule of its own; the call, and so its sender, is the same then.

Invariant: a response that is not handed out has given back its connection, its slot and its permit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import ClientRequest, ClientResponse, hdrs

from throttle import clock
from throttle.http.evidence import DRAIN, SMALL, TELLING, TEXTS, UNREPLAYABLE
from throttle.http.options import Options, new_engine
from throttle.http.retry import Retry
from throttle.http.routes import Limit

__all__ = ["Sender", "Stopwatch", "ThrottleMiddleware"]

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


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
        buffer_bodies: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.engine = new_engine(rate, **options)
        self._buffer = buffer_bodies
        self._calls: WeakKeyDictionary[asyncio.Task[Any], tuple[object, Sender]] = (
            WeakKeyDictionary()
        )

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        """One send, as aiohttp calls it."""
        sender = _handed_down.get()
        if sender is None or sender.middleware is not self:
            sender = self._sender_of(request)
        return await sender(request, handler)

    def _sender_of(self, request: ClientRequest) -> Sender:
        """The same for every send of one call."""
        task = asyncio.current_task()
        # The list of traces is made once for each call; nothing public tells calls apart.
        mark = getattr(request, "_traces", None)
        if task is None or mark is None:
            return self.sender()
        known = self._calls.get(task)
        if known is None or known[0] is not mark:
            known = self._calls[task] = (mark, self.sender())
        return known[1]

    def sender(self, retry: Retry | None = None, *, buffer: bool | None = None) -> Sender:
        """The middleware for one call, which counts its tries whatever aiohttp makes of it."""
        return Sender(self, retry, self._buffer if buffer is None else buffer)


#: The sender of a call for which aiohttp takes no middlewares: a web socket's handshake.
_handed_down: ContextVar[Sender | None] = ContextVar("throttle_sender", default=None)


class Sender:
    """One call as a middleware. `clock` – the request's own timeout, if somebody keeps it."""

    __slots__ = ("_buffer", "_call", "_engine", "_failed", "clock", "middleware")

    def __init__(self, middleware: ThrottleMiddleware, retry: Retry | None, buffer: bool) -> None:
        self.middleware = middleware
        self._engine = middleware.engine
        self._call = self._engine.call(retry)
        self._buffer = buffer
        self._failed: tuple[ClientRequest, BaseException] | None = None
        self.clock: Stopwatch | None = None

    async def through_session(self, connecting: Awaitable[Any]) -> Any:
        """Await a call that finds the middleware in the session's list, as this sender's."""
        token = _handed_down.set(self)
        try:
            return await connecting
        finally:
            _handed_down.reset(token)

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        """One send, as aiohttp calls it."""
        if self._failed is not None and self._failed[0] is not request:
            # aiohttp's own second try, with a request made anew. Tries are counted here.
            raise self._failed[1]
        call, watch = self._call, self.clock
        if self._buffer and request.body and not _rewinds(request.body):
            await request.update_body(await request.body.as_bytes())
        while True:
            if not call.enter(request.method, request.url):
                if watch is not None:
                    watch.stop()
                await call.turn(request.method, request.url)
            if watch is not None:
                watch.start()
            try:
                if request.session.closed:  # during the wait; aiohttp has looked before it
                    raise RuntimeError("Session is closed")
                if call.ends_at is None:
                    response = await handler(request)
                else:
                    async with asyncio.timeout(max(0.0, call.ends_at - clock.now())):
                        response = await handler(request)
            except aiohttp.ClientConnectionError as error:
                call.free_slot()
                await self._after_error(request, error)
                continue
            except BaseException:
                call.free_slot()
                call.ended()
                raise
            if call.went_well(response.status, response.headers):
                if call.has_slot:
                    _on_release(response, call.take_slot())
                return response
            call.ended()
            try:
                if not await self._again(request, response):
                    _on_release(response, call.take_slot())
                    return response
            except BaseException:
                response.close()
                call.free_slot()
                raise

    async def _rest(self, request: ClientRequest, wait: Awaitable[None]) -> None:
        """Wait for the next try, and make the request ready for it."""
        if self.clock is not None:
            self.clock.stop()
        await wait
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            request.update_expect_continue(True)

    async def _after_error(self, request: ClientRequest, error: BaseException) -> None:
        """Wait for the next try, or raise."""
        call = self._call
        decision = call.failed(request.method, request.headers, left=not _never_left(error))
        instead = None
        if isinstance(error, aiohttp.ClientSSLError):
            instead = "not a connection failure"
        elif decision.retry and not await _can_replay(request):
            instead = UNREPLAYABLE
        if not call.goes_on(request.method, request.url, decision, error, instead=instead):
            self._failed = (request, error)
            raise error
        await self._rest(request, call.rest(decision))

    async def _again(self, request: ClientRequest, response: ClientResponse) -> bool:
        """Learn from a response. Whether the request is to be sent again; then it has been waited
        for, and the response is closed."""
        call = self._call
        body = await self._evidence(request, response)
        decision = await call.answered(
            request.method, request.url, request.headers, response.status, response.headers, body
        )
        instead = None
        if decision.retry and not _has_rewindable_body(request):
            instead = UNREPLAYABLE
        elif decision.retry:
            _keep_cookies(request, response)
            await _drain(response)  # which stops an upload that the answer overtook
            if not await _can_replay(request):
                instead = UNREPLAYABLE
        if not call.goes_on(request.method, request.url, decision, instead=instead):
            return False
        call.free_slot()
        await self._rest(request, call.rest(decision))
        return True

    async def _evidence(self, request: ClientRequest, response: ClientResponse) -> bytes | None:
        """The body, where it may tell of a throttle and costs nothing to read."""
        signals = self._engine.signals
        if response.status not in TELLING and (
            signals is None or response.status != 200 or signals(request.url) is None
        ):
            return None
        return await _read(response) if response.content_type in TEXTS else None


# -------------------------------------------------------------------- small things about aiohttp


def _never_left(error: BaseException) -> bool:
    return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


def _has_rewindable_body(request: ClientRequest) -> bool:
    body = request.body
    return not body or (not body.consumed and _rewinds(body, buffered=True))


def _rewinds(body: Any, *, buffered: bool = False) -> bool:
    """Whether a body that was sent can be sent again. `buffered` – a stream has been, if it is
    not `consumed`."""
    if isinstance(body, aiohttp.MultipartWriter):
        return all(_rewinds(part, buffered=buffered) for part, _, _ in body)
    if isinstance(body, aiohttp.payload.AsyncIterablePayload):
        return buffered
    # aiohttp learns that a file cannot be rewound when it has sent the little that was left.
    seekable = getattr(getattr(body, "_value", None), "seekable", None)
    try:
        return seekable is None or bool(seekable())
    except ValueError:  # closed
        return False


async def _can_replay(request: ClientRequest) -> bool:
    # A body knows that it was used up only once the task that was writing it has come to rest.
    await request.close()
    return _has_rewindable_body(request)


def _keep_cookies(request: ClientRequest, response: ClientResponse) -> None:
    """A response that nobody gets to see has set cookies all the same."""
    if not response.cookies or request.session is None:
        return
    jar = request.session.cookie_jar
    jar.update_cookies(response.cookies, response.url)
    sent = request.headers.get(hdrs.COOKIE, "")
    # Pair by pair: what a user has put there may be no cookie to a parser.
    pairs = [pair for pair in map(str.strip, sent.split(";")) if pair]
    pairs = [pair for pair in pairs if pair.partition("=")[0] not in response.cookies]
    new = jar.filter_cookies(request.url)
    pairs += [f"{name}={new[name].coded_value}" for name in response.cookies if name in new]
    if pairs:
        request.headers[hdrs.COOKIE] = "; ".join(pairs)
    else:
        request.headers.popall(hdrs.COOKIE, None)


async def _read(response: ClientResponse) -> bytes | None:
    """A small body; it stays readable for whoever gets the response."""
    if (response.content_length or 0) > SMALL:
        return None
    if response.content.exception() is not None:  # no end would ever come
        return None
    try:
        async with asyncio.timeout(DRAIN):
            # Reading would close the response if it were cut short; waiting does not.
            await response.content.wait_eof()
            return await response.read()
    except (TimeoutError, aiohttp.ClientError):
        return None


async def _drain(response: ClientResponse) -> None:
    """Give the connection back: for reuse if the rest of the body is small, else closed."""
    if await _read(response) is None:
        response.close()


def _on_release(response: ClientResponse, call: Callable[[], None] | None) -> None:
    """Call back when the connection of a response is released, now if it has been."""
    if call is None:
        return
    connection = response.connection
    if connection is None:
        call()
    else:
        connection.add_callback(call)


class Stopwatch:
    """A request's own total timeout, which does not run while the request waits for its turn.

    To be made in the task that makes the request. Source: `asyncio.timeout`, without the parts that
    are of no use here, since there is one of these for each request.
    """

    __slots__ = ("_cancelling", "_expired", "_loop", "_task", "_timer", "left")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request must be made in a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = task.get_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False
        self.left = seconds

    def start(self) -> None:
        """It runs (again)."""
        if self._timer is None and not self._expired:
            self._timer = self._loop.call_at(self._loop.time() + self.left, self._expire)

    def stop(self) -> None:
        """It stands still; `left` tells the seconds that are left."""
        timer = self._timer
        if timer is not None:
            self._timer = None
            timer.cancel()
            self.left = max(0.0, timer.when() - self._loop.time())

    def _expire(self) -> None:
        self._timer = None
        self._expired = True
        self._task.cancel()

    def ran_out(self) -> bool:
        """Whether a cancellation that was caught is its own, and nobody else's too."""
        return self._expired and self._task.uncancel() <= self._cancelling
