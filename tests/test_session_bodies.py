"""Bodies on a second try: sent again whole, or refused aloud; never an empty one in silence."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, FormData
from helpers.site import Site, answer, drop, read

from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 300


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Pipe(io.RawIOBase):
    """A file that can be read once: a pipe, a socket, standard input."""

    def __init__(self, content: bytes) -> None:
        self._left = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int | None = -1) -> bytes:
        return self._left.read(size)

    def readinto(self, buffer: Any) -> int:
        return self._left.readinto(buffer)

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")


async def generated() -> AsyncIterator[bytes]:
    for at in range(0, len(CONTENT), 10_000):
        yield CONTENT[at : at + 10_000]


def opened(path: Path, offset: int = 0) -> io.BufferedReader:
    path.write_bytes(CONTENT)
    file = path.open("rb")
    file.seek(offset)
    return file


def form(path: Path) -> FormData:
    data = FormData()
    data.add_field("name", "value")
    data.add_field("file", opened(path), filename="f.bin")
    return data


def multipart(path: Path) -> aiohttp.MultipartWriter:
    writer = aiohttp.MultipartWriter("mixed")
    writer.append("text")
    writer.append(opened(path))
    return writer


REPLAYED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "nothing": lambda path: {},
    "bytes": lambda path: {"data": CONTENT},
    "str": lambda path: {"data": "text " * 1000},
    "json": lambda path: {"json": {"a": [1, 2, 3]}},
    "dict": lambda path: {"data": {"a": "1", "b": "2"}},
    "BytesIO": lambda path: {"data": io.BytesIO(CONTENT)},
    "BytesIO at an offset": lambda path: {"data": _at(io.BytesIO(CONTENT), 7)},
    "StringIO": lambda path: {"data": io.StringIO("text " * 1000)},
    "file": lambda path: {"data": opened(path)},
    "file at an offset": lambda path: {"data": opened(path, 12_345)},
    "form with a file": lambda path: {"data": form(path)},
    "multipart": lambda path: {"data": multipart(path)},
    "expect100": lambda path: {"data": CONTENT, "expect100": True},
    "compressed": lambda path: {"data": CONTENT, "compress": "deflate"},
    "chunked": lambda path: {"data": CONTENT, "chunked": True},
}


class Counter(Pipe):
    """A pipe that knows where it is, but cannot go back."""

    def tell(self) -> int:
        return self._left.tell()


ONE_SHOT: dict[str, Callable[[Path], dict[str, Any]]] = {
    "async generator": lambda path: {"data": generated()},
    "pipe": lambda path: {"data": Pipe(CONTENT)},
    "pipe that tells": lambda path: {"data": Counter(CONTENT)},
}


def _at(file: io.BytesIO, offset: int) -> io.BytesIO:
    file.seek(offset)
    return file


def sessions(which: str, **options: Any) -> Any:
    if which == "session":
        return ThrottledSession(**options)
    return ClientSession(middlewares=[ThrottleMiddleware(**options)])


@pytest.mark.parametrize("which", ["session", "middleware"])
@pytest.mark.parametrize("body", REPLAYED)
@pytest.mark.parametrize("first", [answer(429), answer(503), drop], ids=["429", "503", "drop"])
async def test_what_can_be_sent_again_is_sent_again_whole(
    which: str, body: str, first: Any, tmp_path: Path
) -> None:
    async with Site(first, first, 200) as site, sessions(which) as http:
        options = REPLAYED[body](tmp_path / "f")
        assert await read(http.put(site.url, **options)) == 200
        bodies = [one.body for one in site.got]
        assert len(bodies) == 3
        assert bodies[1:] == bodies[:-1]
        assert bool(bodies[0]) is (body != "nothing")
        if "offset" in body:
            assert bodies[0] == CONTENT[7:] if "IO" in body else CONTENT[12_345:]


@pytest.mark.parametrize("body", ONE_SHOT)
async def test_what_cannot_be_sent_again_is_refused_aloud(body: str, tmp_path: Path) -> None:
    told: list[Any] = []
    site = Site(answer(429, "slow down"), 200)
    async with site, ThrottledSession(on_retry=told.append) as http:
        async with http.post(site.url, **ONE_SHOT[body](tmp_path)) as response:
            assert (response.status, response.reason) == (429, "Too Many Requests")
            assert await response.text() == "slow down"
        assert [one.body for one in site.got] == [CONTENT]
    assert [(one.wait, one.reason) for one in told] == [(None, "the body cannot be sent again")]


@pytest.mark.parametrize("body", ONE_SHOT)
async def test_the_error_says_why_there_is_no_second_try(body: str, tmp_path: Path) -> None:
    async with Site(drop, 200) as site, ThrottledSession() as http:
        with pytest.raises(aiohttp.ClientConnectionError) as caught:
            await http.put(site.url, **ONE_SHOT[body](tmp_path))
        assert caught.value.__notes__ == ["not tried again: the body cannot be sent again"]
        assert len(site.got) == 1


@pytest.mark.parametrize("which", ["session", "middleware", "using"])
@pytest.mark.parametrize("body", ONE_SHOT)
@pytest.mark.parametrize("first", [answer(429), answer(503), drop], ids=["429", "503", "drop"])
async def test_a_buffered_body_is_sent_again_whole(
    which: str, body: str, first: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {} if which == "using" else {"buffer_bodies": True}
    async with (
        Site(first, first, 200) as site,
        sessions(which if which != "using" else "session", **options) as http,
    ):
        client = http.using(buffer_body=True) if which == "using" else http
        assert await read(client.put(site.url, **ONE_SHOT[body](tmp_path))) == 200
        assert [one.body for one in site.got] == [CONTENT] * 3


async def test_a_session_that_buffers_can_be_told_not_to(tmp_path: Path) -> None:
    async with Site(429, 200) as site, ThrottledSession(buffer_bodies=True) as http:
        assert await read(http.using(buffer_body=False).post(site.url, data=generated())) == 429
        assert len(site.got) == 1


async def test_an_upload_that_is_answered_early_is_stopped_and_sent_again_whole(
    tmp_path: Path,
) -> None:
    """The answer overtakes the upload: the server never reads the rest of the first body."""
    big = CONTENT * 200
    seen: list[int] = []
    over = asyncio.Event()
    handlers: list[asyncio.Task[Any]] = []

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())  # type: ignore[arg-type]
        assert b"PUT" in await reader.readuntil(b"\r\n\r\n")
        if not seen:
            seen.append(0)
            writer.write(b"HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno")
        else:
            seen.append(len(await reader.readexactly(len(big))))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await over.wait()
        while await reader.read(2**20):  # or what is unread would reset the connection
            pass
        writer.transport.abort()

    path = tmp_path / "big"
    path.write_bytes(big)
    server = await asyncio.start_server(impatient, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        async with ThrottledSession() as http:
            with path.open("rb") as file:
                assert await read(http.put(url, data=file)) == 200
        assert seen == [0, len(big)]
        over.set()
        await asyncio.gather(*handlers)


async def test_a_body_that_was_begun_by_nobody_may_still_be_sent(tmp_path: Path) -> None:
    """No connection was made, so nothing of the body is gone."""
    async with Site() as site:
        url = site.url
        closed = url
    async with ThrottledSession(retry=Retry(attempts=2)) as http:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await http.post(closed, data=generated())
    assert not hasattr(caught.value, "__notes__")


async def test_a_redirect_with_a_body_keeps_it() -> None:
    async with Site(answer(307, Location="/there"), 503, 200) as site, ThrottledSession() as http:
        assert await read(http.put(site.url, data=CONTENT)) == 200
        assert [one.body for one in site.got] == [CONTENT] * 3
