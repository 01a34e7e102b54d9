"""Slots of an origin, and cancellation at any moment: nothing is ever left held."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientRequest, ClientResponse, ClientSession, web
from helpers.site import Site, answer, drop, now, read

from throttle.errors import ServerThrottled
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def taken(http: Any) -> int:
    engine = http.throttle.engine if isinstance(http, ThrottledSession) else http
    return sum(origin.slots.taken for origin in engine.routes)


def in_flight(http: ThrottledSession) -> list[tuple[int, int]]:
    return [(origin.waiting, origin.in_flight) for origin in http.throttle.engine.routes]


def connections(http: Any) -> int:
    return len(http.connector._acquired)


async def slow(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1)
    return web.Response(body=b"x" * 5_000_000)


async def test_at_most_so_many_are_in_flight_until_their_bodies_are_read() -> None:
    most = 0

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal most
        most = max(most, taken(http))
        return await slow(request)

    async with Site(count) as site, ThrottledSession(concurrency=3) as http:
        await asyncio.gather(*(read(http.get(site.url)) for _ in range(9)))
        assert (most, taken(http)) == (3, 0)
        assert [round(instant) for instant in site.instants] == [0] * 3 + [1] * 3 + [2] * 3


async def test_each_origin_has_its_own_slots() -> None:
    async with Site(slow) as a, Site(slow) as b, ThrottledSession(concurrency=1) as http:
        await asyncio.gather(*(read(http.get(one.url)) for one in (a, b)))
        assert now() < 1.5


@pytest.mark.parametrize("end", ["read", "release", "close", "context", "forgotten"])
async def test_a_slot_ends_with_its_response(end: str) -> None:
    async with Site(slow) as site, ThrottledSession(concurrency=1) as http:
        response: Any = await asyncio.create_task(http.get(site.url))
        assert taken(http) == 1
        if end == "read":
            await response.read()
        elif end == "context":
            async with response:
                pass
        elif end == "forgotten":
            response = None  # its connection holds what is unread until the timeout is over
            await asyncio.sleep(http.timeout.total or 0)
        else:
            getattr(response, end)()
        assert taken(http) == 0
        assert await read(http.get(site.url)) == 200


async def test_a_response_may_be_released_by_another_task() -> None:
    async with Site(slow) as site, ThrottledSession(concurrency=1) as http:
        response = await asyncio.create_task(http.get(site.url))
        other = asyncio.create_task(read(http.get(site.url)))
        await asyncio.sleep(5)
        assert len(site.got) == 1
        response.release()
        assert await other == 200
        assert taken(http) == 0


async def test_who_holds_the_only_slot_and_asks_again_gets_an_error() -> None:
    async with Site(slow) as site, ThrottledSession(concurrency=1) as http:
        async with http.get(site.url):
            with pytest.raises(RuntimeError, match="would wait for itself") as caught:
                await http.get(site.url)
            assert "release a response" in caught.value.__notes__[0]
            assert taken(http) == 1
        assert await read(http.get(site.url)) == 200


async def test_a_refused_call_holds_no_slot_while_it_waits() -> None:
    policy = Retry(jitter=0, minimum=5)
    async with Site(503, 503, 200) as site, ThrottledSession(concurrency=1, retry=policy) as http:
        first = asyncio.create_task(read(http.get(site.url)))
        await asyncio.sleep(1)
        assert (taken(http), connections(http)) == (0, 0)
        assert await first == 200


async def test_a_redirect_takes_the_slot_of_where_it_goes() -> None:
    async with Site() as second:
        away = answer(302, Location=f"{second.url}/x")
        async with Site(away) as first, ThrottledSession(concurrency=1) as http:
            assert await read(http.get(first.url)) == 200
            assert taken(http) == 0
        loop = answer(302, Location="/there")
        async with Site(loop, 200) as one, ThrottledSession(concurrency=1) as http:
            assert await read(http.get(one.url)) == 200
            assert taken(http) == 0


async def test_a_slot_is_freed_whatever_goes_wrong() -> None:
    async def break_down(request: ClientRequest, handler: Handler) -> ClientResponse:
        response = await handler(request)
        response.release()
        raise LookupError

    async with Site() as site:
        dead = site.url
    once = Retry(attempts=1)
    async with (
        Site(routes={"/drop": drop, "/long": answer(429, Retry_After="999"), "/ok": answer()})
        as site,
        ThrottledSession(concurrency=1, retry=once) as http,
    ):  # fmt: skip
        failures: list[tuple[type[BaseException], str, dict[str, Any]]] = [
            (aiohttp.ClientConnectorError, dead, {}),
            (aiohttp.ClientConnectionError, f"{site.url}/drop", {}),
            (LookupError, f"{site.url}/ok", {"middlewares": [break_down]}),
            (aiohttp.ClientResponseError, f"{site.url}/nowhere", {"raise_for_status": _refuse}),
            (aiohttp.TooManyRedirects, f"{site.url}/hop", {"max_redirects": 1}),
        ]
        site._routes["/hop"] = answer(302, Location="/hop")
        for kind, url, options in failures:
            with pytest.raises(kind):
                await http.get(url, **options)
            gc.collect()
            assert (taken(http), connections(http)) == (0, 0), kind
        impatient = http.using(retry=Retry(attempts=2))
        for _ in range(2):
            with pytest.raises(ServerThrottled):
                await impatient.get(f"{site.url}/long")
            assert (taken(http), connections(http)) == (0, 0)
        assert set(in_flight(http)) == {(0, 0)}


async def _refuse(response: ClientResponse) -> None:
    raise aiohttp.ClientResponseError(response.request_info, response.history)


# -------------------------------------------------------------------- cancellation, step by step


async def _cancelled_after(steps: int, pending: Any) -> bool:
    """Let a call take so many turns of the loop, then cancel it; whether it was still under way."""
    task = asyncio.ensure_future(pending)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    results = await asyncio.gather(task, return_exceptions=True)
    return isinstance(results[0], asyncio.CancelledError)


SCENES: dict[str, Any] = {
    "plain": ((200,), {}),
    "refused": ((429, 200), {}),
    "evidence": ((answer(403, {"message": "no"}),), {}),
    "redirected": ((answer(302, Location="/x"), 200), {}),
    "dropped": ((drop, 200), {}),
    "buffered": ((503, 200), {"buffer_bodies": True}),
}


async def _generated() -> Any:
    yield b"some"
    await asyncio.sleep(0)
    yield b"thing"


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("which", ["session", "middleware"])
async def test_cancelled_at_any_step_a_call_leaves_nothing_held(scene: str, which: str) -> None:
    script, options = SCENES[scene]
    steps, under_way = 1, True
    while under_way:
        throttle = ThrottleMiddleware(
            concurrency=1, rate="2/s", retry=Retry(jitter=0, base=0.0), **options
        )
        async with Site(*script) as site:
            if which == "session":
                http: Any = ThrottledSession(
                    concurrency=1, rate="2/s", retry=Retry(jitter=0, base=0.0), **options
                )
                engine = http.throttle.engine
            else:
                http, engine = ClientSession(middlewares=[throttle]), throttle.engine
            async with http:
                body = {"data": _generated()} if "buffered" in scene else {}
                under_way = await _cancelled_after(steps, read(http.put(site.url, **body)))
                for _ in range(5):
                    await asyncio.sleep(0)
                origins = list(engine.routes)
                assert sum(one.slots.taken for one in origins) == 0, steps
                assert [(one.waiting, one.in_flight) for one in origins] in ([], [(0, 0)]), steps
                assert connections(http) == 0, steps
        steps += 1
    assert steps > 5


async def test_who_is_cancelled_in_line_costs_nobody_a_permit() -> None:
    async with Site() as site, ThrottledSession(rate="1/s", settle=0) as http:
        assert await read(http.get(site.url)) == 200
        line = [asyncio.create_task(read(http.get(site.url))) for _ in range(5)]
        await asyncio.sleep(0.5)
        for task in line[:3]:
            task.cancel()
        await asyncio.gather(*line, return_exceptions=True)
        assert site.instants == [0, 1, 2]
        assert in_flight(http) == [(0, 0)]


async def test_who_is_cancelled_in_a_pause_goes_at_once_and_the_others_stay() -> None:
    async with Site(answer(429, Retry_After="50"), 200) as site, ThrottledSession() as http:
        tasks = [asyncio.create_task(read(http.get(site.url))) for _ in range(2)]
        await asyncio.sleep(1)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert now() == 1
        assert await tasks[1] == 200


async def test_a_timeout_that_fires_while_its_caller_cancels_is_a_cancellation() -> None:
    async with Site(slow) as site, ThrottledSession() as http:
        task = asyncio.create_task(read(http.get(site.url, timeout=0.5)))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await task
        assert connections(http) == 0
        task = asyncio.create_task(_patient(http, site.url))
        assert await task == "timed out and went on"


async def _patient(http: ThrottledSession, url: str) -> str:
    try:
        await http.get(url, timeout=0.5)
    except TimeoutError:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the timeout must not be left as a cancellation"
        await asyncio.sleep(1)
        return "timed out and went on"
    return "not timed out"
