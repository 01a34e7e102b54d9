"""Faults reported against other clients, over real sockets: what reaches a server, and when.

Each test has the number of the report; the scenario and the right value are the report's. What is
decided without a socket is in test_field_reports_signals.py.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from helpers.site import Site, answer, drop, now, read

from throttle.errors import ServerThrottled
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession
from throttle.testing import RateLimitedServer
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def intervals(instants: list[float]) -> list[float]:
    return [round(b - a, 6) for a, b in pairwise(instants)]


@pytest.mark.parametrize("value", ["0", "Mon, 01 Jan 2024 00:00:00 GMT"])
async def test_b056_a_wait_of_zero_does_not_switch_the_backoff_off(value: str) -> None:
    refuse = answer(429, Retry_After=value)
    policy = Retry(attempts=4, base=0.5, minimum=0.5)
    async with Site(refuse) as site, ThrottledSession(retry=policy) as http:
        assert await read(http.get(site.url)) == 429
        assert len(site.got) == 4
        assert min(intervals(site.instants)) >= 0.5


async def test_b057_each_wait_is_that_of_the_answer_before_it() -> None:
    answers = [answer(429, Retry_After=value) for value in ("1", "5", "30", "200")]
    async with Site(*answers) as site, ThrottledSession(retry=Retry(attempts=4, jitter=0)) as http:
        assert await read(http.get(site.url)) == 429
        assert [round(one) for one in intervals(site.instants)] == [1, 5, 30]
        assert min(intervals(site.instants)) >= 1


async def test_b058_a_request_that_finishes_lifts_no_halt() -> None:
    halts = {"/x": 2.0, "/v": 1.0, "/u": 5.0}

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/y":
            await asyncio.sleep(0.3)
        elif request.path in halts:
            await asyncio.sleep(float(request.query.get("after", 0)))
            wait = halts.pop(request.path)
            return web.Response(status=429, headers={"Retry-After": f"{wait:g}"})
        return web.Response()

    async def later(delay: float, url: str) -> int:
        await asyncio.sleep(delay)
        return await read(http.get(url))

    async with Site(handler) as site, ThrottledSession(retry=Retry(jitter=0)) as http:
        await asyncio.gather(
            later(0, f"{site.url}/y"),
            later(0, f"{site.url}/x"),
            later(0.35, f"{site.url}/w"),
        )
        sent = {one.path: one.instant for one in site.got}
        assert sent["/w"] >= 2

    async with Site(handler) as site, ThrottledSession(retry=Retry(jitter=0)) as http:
        halts.update({"/x": 2.0, "/v": 1.0, "/u": 5.0})
        begun = now()
        await asyncio.gather(
            later(0, f"{site.url}/x"),
            later(0, f"{site.url}/v?after=1.5"),
            later(0, f"{site.url}/u?after=1.6"),
            later(0.35, f"{site.url}/w"),
        )
        sent = {one.path: one.instant - begun for one in site.got}
        assert sent["/w"] >= 6.6 - 1e-9


async def test_b059_one_layer_decides_and_a_cap_shortens_nothing() -> None:
    refuse = answer(429, Retry_After="171")
    async with Site(refuse, 200) as site, ThrottledSession() as http:
        assert await read(http.get(site.url)) == 200
        assert intervals(site.instants)[0] >= 171
    async with Site(refuse) as site, ThrottledSession(retry=Retry(max_wait=120)) as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(site.url)
        assert caught.value.retry_after == 171
        assert len(site.got) == 1


@pytest.mark.parametrize("field", ["Retry_After", "retry_after_ms"])
async def test_b060_a_long_wait_is_waited_or_reported(field: str) -> None:
    unit = 1000 if field.endswith("ms") else 1
    policy = Retry(max_wait=120, jitter=0)
    async with Site(answer(429, **{field: str(90 * unit)}), 200) as site:
        async with ThrottledSession(retry=policy) as http:
            assert await read(http.get(site.url)) == 200
        assert intervals(site.instants) == [pytest.approx(90)]
    async with Site(answer(429, **{field: str(600 * unit)})) as site:
        async with ThrottledSession(retry=policy) as http:
            with pytest.raises(ServerThrottled, match="600"):
                await http.get(site.url)
        assert len(site.got) == 1


async def test_b061_a_wait_beyond_the_budget_fails_at_once_and_any_wait_can_be_cancelled() -> None:
    refuse = answer(429, Retry_After="3600")
    policy = Retry(max_wait=None, deadline=30)
    async with Site(refuse) as site, ThrottledSession(retry=policy) as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(site.url)
        assert (now(), len(site.got), caught.value.retry_after) == (0, 1, 3600)
    days = answer(429, Retry_After="277403")
    async with Site(days) as site, ThrottledSession(retry=Retry(max_wait=None)) as http:
        call = asyncio.create_task(read(http.get(site.url)))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert now() == 1


async def test_b062_nothing_is_sent_before_the_time_asked_for() -> None:
    policy = Retry(base=2, jitter=0.2)
    for _ in range(5):
        async with Site(answer(429, Retry_After="10"), 200) as site:
            async with ThrottledSession(retry=policy) as http:
                await read(http.get(site.url))
            assert 10 <= intervals(site.instants)[0] <= 12


@pytest.mark.parametrize("rate", ["5/s", None])
async def test_b063_a_wait_is_everybodys_and_they_do_not_return_together(rate: Any) -> None:
    async with RateLimitedServer("5/s") as server, ThrottledSession(rate=rate) as http:
        assert await asyncio.gather(*(read(http.get(server.url)) for _ in range(60))) == [200] * 60
        sends = [one.instant for one in server.requests]
        if rate is None:
            assert server.refused < 55 + 15, "a second wave would be 50 more"
        else:
            assert server.refused == 0
        assert not [instant for instant in sends if 0.1 < instant < 1]
        waves = Counter(int(instant * 10) for instant in sends if instant >= 1)
        assert max(waves.values()) <= 5


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH"])
async def test_b064_what_may_have_been_carried_out_is_not_sent_again(method: str) -> None:
    again = method not in ("POST", "PATCH")
    keyed = {"Idempotency-Key": "one"}
    for headers, expected in (({}, again), (keyed, True)):
        async with Site(drop, 200) as site, ThrottledSession() as http:
            call = http.request(method, site.url, data=b"body", headers=headers)
            if expected:
                assert await read(call) == 200
            else:
                with pytest.raises(aiohttp.ClientConnectionError):
                    await call
            assert len(site.got) == 1 + expected
        async with Site(answer(503, Retry_After="2"), 200) as site, ThrottledSession() as http:
            status = await read(http.request(method, site.url, headers=headers))
            assert status == (200 if expected else 503)
        async with Site(answer(429, Retry_After="2"), 200) as site, ThrottledSession() as http:
            assert await read(http.request(method, site.url, headers=headers)) == 200


async def test_b065_no_sleep_runs_past_the_overall_limit() -> None:
    policy = Retry(deadline=10, jitter=0, attempts=50)
    async with Site(answer(429, Retry_After="3.5")) as site, ThrottledSession(retry=policy) as http:
        with pytest.raises(ServerThrottled):
            await http.get(site.url)
        assert now() <= 10
        assert len(site.got) == 3


async def test_b066_a_forbidden_call_is_not_repeated_and_a_throttled_one_is() -> None:
    limited = {"message": "API rate limit exceeded for user ID 1."}
    async with Site(answer(403, limited, Retry_After="1465")) as site, ThrottledSession() as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(site.url)
        assert caught.value.retry_after == 1465
    async with Site(answer(403, {"message": "not allowed"})) as site, ThrottledSession() as http:
        assert await read(http.get(site.url)) == 403
        assert len(site.got) == 1
    secondary = {"message": "You have exceeded a secondary rate limit."}
    async with Site(answer(403, secondary), 200) as site, ThrottledSession() as http:
        assert await read(http.get(site.url)) == 200
        assert intervals(site.instants)[0] >= 60


async def test_b067_a_file_is_sent_again_from_where_it_began() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        return await drop(request)

    file = io.BytesIO(bytes(1000))
    async with Site(cut, 200) as site, ThrottledSession() as http:
        assert await read(http.put(site.url, data=file)) == 200
        assert [len(one.body) for one in site.got] == [1000, 1000]


async def test_b068_a_one_shot_body_is_never_sent_empty() -> None:
    async def once() -> Any:
        yield b"only once"

    async with Site(answer(429, Retry_After="1"), 200) as site, ThrottledSession() as http:
        assert await read(http.post(site.url, data=once())) == 429
        assert [one.body for one in site.got] == [b"only once"]


async def test_b069_five_attempts_hold_one_connection_of_two() -> None:
    connector = aiohttp.TCPConnector(limit=2)
    held: list[int] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        held.append(len(connector._acquired))
        response = web.StreamResponse(status=429)
        await response.prepare(request)
        for _ in range(20):
            await response.write(b"x" * 50_000)
        return response

    policy = Retry(attempts=5, base=0.1)
    async with Site(refuse) as site, ThrottledSession(connector=connector, retry=policy) as http:
        assert await read(http.get(site.url)) == 429
        assert (held, len(connector._acquired)) == ([1] * 5, 0)


async def test_b070_a_pool_of_one_does_not_deadlock() -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with Site(answer(503, "x" * 1000), 200) as site:
        async with ThrottledSession(connector=connector) as http:
            assert await read(http.get(site.url)) == 200
        assert len(site.got) == 2


async def test_b087_one_sites_pause_is_its_own() -> None:
    async with Site(answer(429, Retry_After="30"), 200) as a, Site() as b:
        async with ThrottledSession(rate="5/s") as http:
            urls = [f"{site.url}/{n}" for n in range(10) for site in (a, b)]
            first = asyncio.create_task(read(http.get(urls[0])))
            await asyncio.sleep(0.01)
            await asyncio.gather(first, *(read(http.get(url)) for url in urls[1:]))
        assert min(a.instants[1:]) >= 30
        assert len(a.got) == 11
        assert max(b.instants) < 2.1
