"""An httpx transport without a network: it plays a script and writes down what was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import anyio
import httpx

from throttle import clock

__all__ = ["FakeStream", "FakeTransport", "Sent", "answer"]


class Sent(NamedTuple):
    instant: float
    method: str
    url: str
    headers: httpx.Headers
    body: bytes | None


class FakeStream(httpx.AsyncByteStream):
    """A response body in chunks; an exception among them is raised, a number waited for."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        self.chunks = list(chunks)
        self.closed = False
        self.given = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, float):
                await anyio.sleep(chunk)
                continue
            self.given += 1
            yield chunk

    async def aclose(self) -> None:
        self.closed = True


def answer(
    status: int = 200, headers: Any = (), chunks: Iterable[Any] = (b"ok",)
) -> httpx.Response:
    """A response over a `FakeStream`."""
    return httpx.Response(status, headers=headers, stream=FakeStream(chunks))


class FakeTransport(httpx.AsyncBaseTransport):
    """Plays `script` – responses, exceptions, functions of the request – and then 200 for ever.

    `latency` – seconds until the head of an answer. What the body of a request was is read as a
    network transport would read it: by iterating over its stream.
    """

    def __init__(self, *script: Any, latency: float = 0.0, read: bool = True) -> None:
        self.script = list(script)
        self.latency = latency
        self.read = read
        self.sent: list[Sent] = []
        self.requests: list[httpx.Request] = []
        self.answers: list[httpx.Response] = []
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        step: Any = self.script.pop(0) if self.script else answer()
        if isinstance(step, Callable):  # type: ignore[arg-type]
            step = step(request)
        early = isinstance(step, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        body: bytes | None = None
        if self.read and not early:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            body = b"".join([chunk async for chunk in request.stream])
        self.requests.append(request)
        self.sent.append(
            Sent(clock.now(), request.method, str(request.url), request.headers.copy(), body)
        )
        if self.latency:
            await anyio.sleep(self.latency)
        if isinstance(step, Exception):
            raise step
        self.answers.append(step)
        return step  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        self.closed = True

    @property
    def instants(self) -> list[float]:
        return [sent.instant for sent in self.sent]

    @property
    def refused_are_closed(self) -> bool:
        """Whether the stream of every answer but the last has been closed."""
        streams = [one.stream for one in self.answers[:-1]]
        return all(isinstance(stream, FakeStream) and stream.closed for stream in streams)
