"""ThrottledTransport: the engine under httpx, on asyncio and trio."""

from __future__ import annotations

import gzip
import io
import json
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from math import inf
from typing import Any

import anyio
import httpx
import pytest
from helpers.fake_httpx import FakeStream, FakeTransport, answer
from helpers.origins import nothing_is_held
from hypothesis import given
from hypothesis import strategies as st

from throttle import ServerThrottled, TokenBucket, WaitTimeout, clock
from throttle.http.call import Engine
from throttle.http.retry import Retry
from throttle.http.transport import ThrottledTransport, _Stream
from throttle.testing import RateLimitedServer

A, B = "http://a.test/x", "http://b.test/y"
BUSY = {"retry-after": "3"}
EXACT = Retry(jitter=0, base=0)


def client(inner: FakeTransport, retry: Retry = EXACT, **options: Any) -> httpx.AsyncClient:
    transport = ThrottledTransport(inner, retry=retry, **options)
    return httpx.AsyncClient(transport=transport, follow_redirects=True)


def engine_of(http: httpx.AsyncClient) -> Engine:
    transport = http._transport
    assert isinstance(transport, ThrottledTransport)
    return transport.engine


# -------------------------------------------------------------------- turns


@pytest.mark.anyio
async def test_the_rate_holds_for_each_origin() -> None:
    inner = FakeTransport()
    async with client(inner, rate="2/s") as http, anyio.create_task_group() as tasks:
        for url in [A] * 5 + [B] * 2:
            tasks.start_soon(http.get, url)
    of_a = [one.instant for one in inner.sent if one.url == A]
    of_b = [one.instant for one in inner.sent if one.url == B]
    assert of_a == [0, 0, 1, 1, 2]
    assert of_b == [0, 0]
    assert inner.closed


@pytest.mark.anyio
async def test_every_keyword_of_the_session_is_taken() -> None:
    inner = FakeTransport()
    waits: list[Any] = []
    async with client(
        inner,
        limiter=lambda name: TokenBucket(1, 1),
        limits={"b.test": "1/10s"},
        key=None,
        total="100/s",
        concurrency=3,
        settle=0,
        signals={"a.test": {"reset": "delta"}},
        on_wait=waits.append,
    ) as http:
        for url in (A, A, B, B):
            assert (await http.get(url)).text == "ok"
    assert inner.instants == [0, 1, 1, 11]
    assert [event.seconds for event in waits] == [1, 10]


@pytest.mark.anyio
async def test_redirect_hops_wait_for_the_host_they_go_to() -> None:
    inner = FakeTransport(answer(), answer(302, {"location": B}))
    async with client(inner, limits={"b.test": "1/10s"}) as http:
        await http.get(B)
        response = await http.get(A)
    assert [one.url for one in inner.sent] == [B, A, B]
    assert inner.instants == [0, 0, 10]
    assert [one.status_code for one in response.history] == [302]


@pytest.mark.anyio
async def test_a_resend_with_credentials_pays_too() -> None:
    class Login(httpx.Auth):
        def auth_flow(
            self, request: httpx.Request
        ) -> Generator[httpx.Request, httpx.Response, None]:
            response = yield request
            if response.status_code == 401:
                request.headers["authorization"] = "token"
                yield request

    inner = FakeTransport(answer(401))
    async with client(inner, rate="1/s") as http:
        assert (await http.get(A, auth=Login())).status_code == 200
    assert inner.instants == [0, 1]


@pytest.mark.anyio
async def test_extensions_and_the_bare_request_reach_the_inner_transport_untouched() -> None:
    inner = FakeTransport()
    async with client(inner) as http:
        mark = object()
        request = http.build_request("POST", A, content=b"x", timeout=7, extensions={"mark": mark})
        response = await http.send(request)
    assert inner.requests == [request]
    assert inner.requests[0].extensions["mark"] is mark
    assert inner.requests[0].extensions["timeout"]["read"] == 7
    assert response.request is request


@pytest.mark.anyio
async def test_a_watched_stream_keeps_url_headers_and_extensions() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"

    inner = FakeTransport()
    async with client(inner) as http:
        mark = object()
        request = http.build_request(
            "PUT", A + "?q=%2F", content=chunks(), headers={"x": "1"}, extensions={"mark": mark}
        )
        await http.send(request)
    got = inner.requests[0]
    assert (got.method, got.url, got.headers.raw) == (
        request.method,
        request.url,
        request.headers.raw,
    )
    assert got.extensions["mark"] is mark
    assert inner.sent[0].body == b"12"


@pytest.mark.anyio
async def test_the_elapsed_time_and_the_body_are_the_callers() -> None:
    inner = FakeTransport(answer(429, chunks=[b"{}"]))
    async with client(inner) as http:
        response = await http.get(A)
        assert response.elapsed.total_seconds() >= 0
        assert response.content == b"ok"


# -------------------------------------------------------------------- listening


@pytest.mark.anyio
async def test_a_refusal_pauses_its_origin_for_everybody_and_no_other() -> None:
    inner = FakeTransport(answer(429, {"retry-after": "30"}))
    async with client(inner) as http, anyio.create_task_group() as tasks:
        tasks.start_soon(http.get, A)
        await anyio.sleep(1)
        tasks.start_soon(http.get, A)
        for _ in range(5):
            await http.get(B)
            await anyio.sleep(1)
    of_a = [one.instant for one in inner.sent if one.url == A]
    assert of_a[0] == 0
    assert len(of_a) == 3
    assert min(of_a[1:]) >= 30
    assert [one.instant for one in inner.sent if one.url == B] == [1, 2, 3, 4, 5]
    assert inner.refused_are_closed


@pytest.mark.anyio
async def test_remaining_zero_closes_the_gate_before_the_first_refusal() -> None:
    spent = {"x-ratelimit-limit": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "20"}
    inner = FakeTransport(answer(200, spent))
    async with client(inner) as http:
        await http.get(A)
        await http.get(A)
    assert inner.instants[1] >= 20


@pytest.mark.anyio
async def test_repeated_header_lines_are_all_read() -> None:
    inner = FakeTransport(answer(429, [("retry-after", "2"), ("retry-after", "9")]))
    async with client(inner) as http:
        await http.get(A)
    assert inner.instants == [0, 9]


@pytest.mark.anyio
async def test_at_the_end_of_the_tries_the_last_answer_is_handed_out() -> None:
    inner = FakeTransport(*(answer(503, chunks=[b"%d" % number]) for number in range(3)))
    told: list[Any] = []
    retry = Retry(attempts=3, base=0)
    async with client(inner, retry, on_retry=told.append) as http:
        response = await http.get(A)
    assert (response.status_code, response.content) == (503, b"2")
    assert [event.reason for event in told] == ["throttled", "throttled", "attempts"]
    assert inner.refused_are_closed


@pytest.mark.anyio
async def test_a_wait_that_is_too_long_is_an_error_and_leaves_nothing() -> None:
    inner = FakeTransport(answer(429, {"retry-after": "4000"}))
    async with client(inner, concurrency=1) as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(A)
        assert caught.value.retry_after == 4000
        assert caught.value.status == 429
        assert inner.answers[0].stream.closed  # type: ignore[union-attr]
        assert nothing_is_held(engine_of(http))


@pytest.mark.anyio
async def test_a_turn_after_the_deadline_is_refused_at_once() -> None:
    inner = FakeTransport()
    async with client(inner, Retry(deadline=5), rate="1/10s") as http:
        await http.get(A)
        with pytest.raises(WaitTimeout):
            await http.get(A)
        assert clock.now() == 0


@pytest.mark.anyio
async def test_the_deadline_ends_a_request_in_flight() -> None:
    inner = FakeTransport(latency=100)
    async with client(inner, Retry(deadline=5), concurrency=1) as http:
        with pytest.raises(TimeoutError):
            await http.get(A)
        assert clock.now() == 5
        assert nothing_is_held(engine_of(http))


# -------------------------------------------------------------------- errors


@pytest.mark.anyio
@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_never_left_is_tried_again(error: Any, method: str) -> None:
    inner = FakeTransport(error("no"))
    async with client(inner) as http:
        assert (await http.request(method, A)).status_code == 200
    assert len(inner.sent) == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [httpx.ReadError, httpx.WriteError, httpx.ReadTimeout, httpx.RemoteProtocolError]
)
async def test_what_may_have_left_is_tried_again_if_that_is_harmless(error: Any) -> None:
    inner = FakeTransport(error("broke"), answer(), error("broke"), answer(), error("broke"))
    async with client(inner, concurrency=1) as http:
        await http.get(A)
        await http.post(A, headers={"idempotency-key": "1"})
        assert len(inner.sent) == 4
        with pytest.raises(error):
            await http.post(A)
        assert len(inner.sent) == 5
        assert nothing_is_held(engine_of(http))


def _untrusted() -> httpx.ConnectError:
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = OSError()
    error.__cause__.__context__ = ssl.SSLCertVerificationError("self-signed")
    return error


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [_untrusted(), httpx.UnsupportedProtocol("x"), httpx.LocalProtocolError("x")]
)
async def test_what_no_later_try_would_mend_is_raised(error: Exception) -> None:
    inner = FakeTransport(error)
    async with client(inner, concurrency=1) as http:
        with pytest.raises(type(error)):
            await http.get(A)
        assert len(inner.sent) == 1
        assert nothing_is_held(engine_of(http))


# -------------------------------------------------------------------- bodies of requests


class Pipe(io.RawIOBase):
    """A file that cannot go back."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


async def _generated() -> AsyncIterator[bytes]:
    yield b"gene"
    yield b"rated"


REPLAYABLE: dict[str, Any] = {
    "nothing": {},
    "bytes": {"content": b"body"},
    "text": {"content": "bödy"},
    "json": {"json": {"a": [1]}},
    "form": {"data": {"a": "1", "b": ["2", "3"]}},
    "multipart of bytes": {"files": {"f": ("n", b"body")}, "data": {"a": "1"}},
    "multipart with a file": {"files": {"f": io.BytesIO(b"body" * 50_000)}},
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", REPLAYABLE)
async def test_the_second_try_sends_the_same_body(kind: str) -> None:
    inner = FakeTransport(answer(429), httpx.ConnectError("no"), answer(429))
    async with client(inner) as http:
        response = await http.post(A, **REPLAYABLE[kind])
    assert response.status_code == 200
    bodies = [one.body for one in inner.sent if one.body is not None]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert bool(bodies[0]) == (kind != "nothing")
    lengths = {one.headers.get("content-length") for one in inner.sent}
    assert lengths == {str(len(bodies[0]))}


STREAMS: dict[str, Any] = {
    "generator": lambda: {"content": _generated()},
    "multipart with a pipe": lambda: {"files": {"f": ("n", Pipe(b"generated"))}},
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_is_never_sent_again_empty(kind: str) -> None:
    """The refusal reaches the caller, and the hook is told why."""
    inner = FakeTransport(answer(429, chunks=[b"busy"]))
    told: list[Any] = []
    async with client(inner, on_retry=told.append, concurrency=1) as http:
        response = await http.post(A, **STREAMS[kind]())
        assert (response.status_code, response.content) == (429, b"busy")
        assert nothing_is_held(engine_of(http))
    assert len(inner.sent) == 1
    assert b"generated" in (inner.sent[0].body or b"")
    assert [event.reason for event in told] == ["the body cannot be sent again"]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_is_sent_again_if_it_was_buffered(kind: str) -> None:
    inner = FakeTransport(answer(429))
    async with client(inner, buffer_bodies=True) as http:
        assert (await http.post(A, **STREAMS[kind]())).status_code == 200
    first, second = (one.body for one in inner.sent)
    assert first == second
    assert b"generated" in (first or b"")


@pytest.mark.anyio
async def test_a_stream_that_was_not_begun_is_as_good_as_new() -> None:
    inner = FakeTransport(httpx.ConnectError("no"))
    async with client(inner) as http:
        assert (await http.post(A, content=_generated())).status_code == 200
    assert inner.sent[-1].body == b"generated"


@pytest.mark.anyio
async def test_a_broken_stream_says_why_it_is_not_tried_again() -> None:
    inner = FakeTransport(httpx.ReadError("broke"))
    async with client(inner) as http:
        with pytest.raises(httpx.ReadError) as caught:
            await http.put(A, content=_generated())
    assert caught.value.__notes__ == ["not tried again: the body cannot be sent again"]


# -------------------------------------------------------------------- bodies of responses


@pytest.mark.anyio
async def test_a_pool_of_one_is_enough_for_refusals_that_are_large() -> None:
    """Each refused response gives its connection back before the wait."""
    large = b"x" * 2_000_000
    inner = FakeTransport(
        answer(429, {**BUSY, "content-length": str(len(large))}, [large]),
        answer(429, BUSY, [b"y" * 40_000] * 5),
        answer(429, BUSY, [b"z"]),
    )
    async with client(inner) as http:
        assert (await http.get(A)).content == b"ok"
    given = [one.stream.given for one in inner.answers]  # type: ignore[union-attr]
    assert given[0] == 0  # known to be large: closed, not read
    assert given[1] == 2  # found to be large: given up
    assert inner.refused_are_closed


@pytest.mark.anyio
async def test_a_refusal_that_trickles_is_given_up() -> None:
    inner = FakeTransport(answer(429, {}, [b"a", 1000.0, b"b"]))
    async with client(inner) as http:
        await http.get(A)
    assert inner.instants[1] < 10
    assert inner.refused_are_closed


def _in_chunks(content: dict[str, Any], packed: bool) -> tuple[dict[str, str], list[bytes]]:
    body = json.dumps(content).encode()
    headers = {"content-type": "application/json; charset=utf-8"}
    if packed:
        headers["content-encoding"] = "gzip"
        body = gzip.compress(body, mtime=0)
    return headers, [body[:10], body[10:]]


@pytest.mark.anyio
@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_tells_of_a_throttle(packed: bool) -> None:
    inner = FakeTransport(
        answer(400, *_in_chunks({"errors": [{"extensions": {"code": "RATELIMITED"}}]}, packed))
    )
    async with client(inner) as http:
        assert (await http.get(A)).status_code == 200
    assert inner.refused_are_closed


@pytest.mark.anyio
@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_that_was_read_for_evidence_is_still_there(packed: bool) -> None:
    told = {"error": "you may not"}
    headers, chunks = _in_chunks(told, packed)
    body = b"".join(chunks)
    inner = FakeTransport(answer(403, headers, chunks), answer(403, headers, chunks))
    async with client(inner) as http:
        response = await http.get(A)
        assert response.json() == told
        assert response.elapsed.total_seconds() >= 0
        async with http.stream("GET", A) as streamed:
            assert b"".join([chunk async for chunk in streamed.aiter_raw()]) == body


@pytest.mark.anyio
async def test_a_permit_is_counted_at_the_head_however_long_the_body_takes() -> None:
    inner = FakeTransport(answer(403, {"content-type": "text/plain"}, [b"a", 5.0]), latency=2)
    async with client(inner, rate="1/10s", settle=inf) as http:
        await http.get(A)
        await http.get(A)
    assert inner.instants == [0, 12]


@pytest.mark.anyio
async def test_a_large_error_body_is_streamed_through() -> None:
    chunks = [b"x" * 30_000] * 20
    inner = FakeTransport(answer(403, {"content-type": "application/json"}, chunks))
    async with client(inner) as http, http.stream("GET", A) as response:
        assert inner.answers[0].stream.given < 5  # type: ignore[union-attr]
        assert b"".join([chunk async for chunk in response.aiter_raw()]) == b"".join(chunks)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [httpx.ReadError("broke"), httpx.ReadTimeout("slow")])
async def test_a_body_that_breaks_while_it_is_looked_at_breaks_for_the_caller(
    error: Exception,
) -> None:
    inner = FakeTransport(answer(403, {"content-type": "application/json"}, [b"{", error]))
    async with client(inner, concurrency=1) as http:
        with pytest.raises(type(error)):
            await http.get(A)
        assert nothing_is_held(engine_of(http))


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity", "no-such"])
async def test_evidence_that_cannot_be_decoded_is_none(encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    inner = FakeTransport(answer(429, {**headers, **BUSY}, [b"\x00garbage"]))
    async with client(inner) as http:
        assert (await http.get(A)).status_code == 200
    assert inner.instants == [0, 3]


@given(
    chunks=st.lists(st.binary(max_size=40), max_size=8),
    looks=st.lists(st.integers(0, 100), max_size=4),
    taken=st.integers(0, 8),
)
def test_looking_ahead_changes_nothing(chunks: list[bytes], looks: list[int], taken: int) -> None:
    async def main() -> None:
        inner = FakeStream(chunks)
        stream = _Stream(httpx.Response(200, stream=inner))
        for most in looks:
            whole = await stream.look(most)
            assert whole in (None, b"".join(chunks))
            if whole is not None:
                assert inner.given == len(chunks)
        assert b"".join([chunk async for chunk in stream]) == b"".join(chunks)
        await stream.aclose()
        assert inner.closed

    anyio.run(main)


# -------------------------------------------------------------------- cookies


@pytest.mark.anyio
async def test_cookies_of_a_retried_response_are_sent_and_kept() -> None:
    inner = FakeTransport(
        answer(429, [("set-cookie", "ticket=1; Path=/"), ("set-cookie", "old=2")]),
        answer(503, [("set-cookie", "ticket=3; Path=/")]),
        answer(200, [("set-cookie", "own=4"), ("set-cookie", "old=5")]),
    )
    async with client(inner) as http:
        http.cookies.set("mine", "0")
        response = await http.get(A)
        assert dict(http.cookies) == {"mine": "0", "ticket": "3", "own": "4", "old": "5"}
    sent = [one.headers.get("cookie") for one in inner.sent]
    assert sent == ["mine=0", "mine=0; ticket=1; old=2", "mine=0; ticket=3; old=2"]
    assert response.headers.get_list("set-cookie")[-2:] == ["own=4", "old=5"]


@pytest.mark.anyio
async def test_a_cookie_for_another_host_is_not_sent() -> None:
    inner = FakeTransport(answer(429, [("set-cookie", "a=1; Domain=other.test")]))
    async with client(inner) as http:
        await http.get(A)
    assert "cookie" not in inner.sent[1].headers


# -------------------------------------------------------------------- slots and cancellation


@pytest.mark.anyio
async def test_a_slot_ends_when_the_response_is_closed() -> None:
    inner = FakeTransport()
    async with client(inner, concurrency=1) as http, anyio.create_task_group() as tasks:
        async with http.stream("GET", A):
            tasks.start_soon(http.get, A)
            await anyio.sleep(5)
            assert inner.instants == [0]
        await anyio.sleep(0.1)
        assert inner.instants == [0, 5]
        assert nothing_is_held(engine_of(http))


@pytest.mark.anyio
async def test_a_response_that_another_task_closes_ends_its_own_slot() -> None:
    inner = FakeTransport()
    async with client(inner, concurrency=2) as http:
        responses: list[httpx.Response] = []

        async def open_one() -> None:
            responses.append(await http.send(http.build_request("GET", A), stream=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_one)
            tasks.start_soon(open_one)
        for response in responses:
            await response.aclose()
        assert nothing_is_held(engine_of(http))
        await http.get(A)


@pytest.mark.anyio
@pytest.mark.parametrize("after", [0.5, 1.5, 2.5, 3.5, 5.5])
async def test_cancelled_at_any_moment_nothing_is_held(after: float) -> None:
    """In flight; between tries; in flight again; while the body comes."""
    inner = FakeTransport(answer(429, {"retry-after": "1"}), latency=1.0)
    inner.script.append(answer(200, {}, [b"a", 100.0, b"b"]))
    async with client(inner, concurrency=1) as http:
        with anyio.move_on_after(after) as scope:
            await http.get(A)
        assert scope.cancelled_caught
        assert nothing_is_held(engine_of(http))
        assert all(one.stream.closed for one in inner.answers)  # type: ignore[union-attr]
        inner.script.clear()
        assert (await http.get(A)).status_code == 200


@pytest.mark.anyio
async def test_cancelled_in_line_it_takes_nothing() -> None:
    inner = FakeTransport()
    async with client(inner, rate="1/10s", concurrency=2) as http:
        await http.get(A)
        with anyio.move_on_after(3):
            await http.get(A)
        await http.get(A)
        assert inner.instants == [0, 10]
        assert nothing_is_held(engine_of(http))


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_nothing_leaks(seed: int) -> None:
    """Refusals, errors, bodies that break or trickle, redirects, callers that give up."""
    dice = random.Random(seed)
    flying = most = 0

    class Moody(FakeTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            self.latency = dice.random()
            self.script = [dice.choice(moods)()]
            try:
                return await super().handle_async_request(request)
            finally:
                flying -= 1

    moods: list[Any] = [
        lambda: answer(),
        lambda: answer(chunks=[b"a", dice.random() * 9, b"b"]),
        lambda: answer(chunks=[b"a", httpx.ReadError("broke")]),
        lambda: answer(429, {"retry-after": str(dice.randrange(9))}, [b"x" * 70_000, 9.0]),
        lambda: answer(503, {"content-type": "text/plain"}, [b"x", dice.random() * 9, b"y"]),
        lambda: answer(403, {"content-type": "application/json"}, [b"{", httpx.ReadError("-")]),
        lambda: answer(302, {"location": dice.choice([A, B])}),
        lambda: httpx.ConnectError("no"),
        lambda: httpx.ReadError("broke"),
    ]

    async def call(http: httpx.AsyncClient) -> None:
        await anyio.sleep(dice.random() * 20)
        content = dice.choice([b"body", None])
        with anyio.move_on_after(dice.choice([1, 10, inf])):
            try:
                async with http.stream(
                    dice.choice(["GET", "POST"]), dice.choice([A, B]), content=content
                ) as response:
                    if dice.random() < 0.8:
                        await response.aread()
            except (httpx.HTTPError, ServerThrottled):
                pass

    inner = Moody()
    retry = Retry(attempts=3, budget=None, max_wait=8)
    async with client(inner, retry, rate="5/s", concurrency=1) as http:
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(call, http)
        assert nothing_is_held(engine_of(http))
    assert 1 <= most <= 2  # one for each host
    assert all(one.stream.closed for one in inner.answers)  # type: ignore[union-attr]
    for url in (A, B):
        instants = [one.instant for one in inner.sent if one.url == url]
        assert len(instants) > 8
        sixth = zip(instants, instants[5:], strict=False)
        assert all(last - first > 1 - 1e-9 for first, last in sixth)


# -------------------------------------------------------------------- sockets


@pytest.mark.anyio
async def test_over_sockets_with_one_connection_nobody_is_refused_twice() -> None:
    async with RateLimitedServer(
        "3/s", faults=["drop", None, 503, None, None, "truncate"]
    ) as server:
        one = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        transport = ThrottledTransport(one, rate="3/s", retry=Retry(base=0.01))
        async with httpx.AsyncClient(transport=transport, timeout=60) as http:
            for number in range(3):
                response = await http.get(server.url_for(f"/{number}"))
                assert response.text == f"/{number}\n"
            with pytest.raises(httpx.RemoteProtocolError):  # the head had come: the caller's
                await http.get(server.url_for("/cut"))
            for number in range(5):
                assert (await http.get(server.url_for(f"/{number}"))).status_code == 200
        assert server.refused <= 1
        assert server.max_in_window(1) <= 3


@pytest.mark.anyio
async def test_over_sockets_a_refusal_keeps_its_connection() -> None:
    async with RateLimitedServer("1/s") as server:
        one = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
        async with httpx.AsyncClient(transport=ThrottledTransport(one), timeout=60) as http:
            ports = set()
            for _ in range(3):
                response = await http.get(server.url_for("/"))
                stream = response.extensions["network_stream"]
                ports.add(stream.get_extra_info("client_addr"))
            assert response.status_code == 200
        assert server.refused > 0
        assert len(ports) == 1


@pytest.mark.anyio
async def test_waiting_counts_against_no_timeout() -> None:
    async with RateLimitedServer("1/20s") as server:
        transport = ThrottledTransport(rate="1/20s")
        async with httpx.AsyncClient(transport=transport, timeout=10) as http:
            for _ in range(3):
                assert (await http.get(server.url)).status_code == 200
        assert server.refused == 0


# -------------------------------------------------------------------- arguments


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"transport must be an httpx\.AsyncBaseTransport"):
        ThrottledTransport(httpx.HTTPTransport())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leaves nothing for rate"):
        ThrottledTransport(rate=1, limiter=TokenBucket(1))
    with pytest.raises(TypeError, match="retry must be a Retry, not 3"):
        ThrottledTransport(retry=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limits must be a mapping from host to limit"):
        ThrottledTransport(limits=httpx.Limits())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="speed"):
        ThrottledTransport(speed=3)  # type: ignore[call-arg]


def test_without_httpx_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None; import throttle.http.transport"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: ThrottledTransport needs httpx: pip install 'throttle-asyncio[httpx]'"
    )
    assert "During handling" not in done.stderr
