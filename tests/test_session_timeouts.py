"""A request's own timeout counts what the request takes, and not what it waits for its turn."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, ClientTimeout, web
from helpers.site import Site, answer, now

from throttle.errors import ServerThrottled, WaitTimeout
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def slow(seconds: float, body: float = 0.0) -> Any:
    """An answer whose head takes so long, and whose body so much longer."""

    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin ")
        await asyncio.sleep(body)
        await response.write(b"end")
        return response

    return handler


async def text(pending: Any) -> str:
    async with pending as response:
        return str(await response.text())


LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "session": ({"timeout": ClientTimeout(total=0.5)}, {}),
    "request": ({}, {"timeout": ClientTimeout(total=0.5)}),
    "number": ({}, {"timeout": 0.5}),
    "request over session": ({"timeout": ClientTimeout(total=90)}, {"timeout": 0.5}),
}


@pytest.mark.parametrize("where", LIMITS)
async def test_a_wait_longer_than_the_timeout_does_no_harm(where: str) -> None:
    session, request = LIMITS[where]
    async with (
        Site(slow(0.2, 0.2)) as site,
        ThrottledSession(rate="1/10s", settle=0, **session) as http,
    ):
        for turn in range(3):
            assert await text(http.get(site.url, **request)) == "begin end"
            assert now() == pytest.approx(turn * 10 + 0.4)


@pytest.mark.parametrize("where", LIMITS)
async def test_the_head_is_timed_from_the_send(where: str) -> None:
    session, request = LIMITS[where]
    async with (
        Site(200, slow(9)) as site,
        ThrottledSession(rate="1/10s", settle=0, **session) as http,
    ):
        await text(http.get(site.url, **request))
        with pytest.raises(TimeoutError) as caught:
            await http.get(site.url, **request)
        assert now() == pytest.approx(10.5)
        assert not isinstance(caught.value, WaitTimeout)
        assert len(site.got) == 2


@pytest.mark.parametrize("where", LIMITS)
async def test_the_body_is_timed_from_the_send_too(where: str) -> None:
    session, request = LIMITS[where]
    async with (
        Site(200, slow(0.3, 9)) as site,
        ThrottledSession(rate="1/10s", settle=0, **session) as http,
    ):
        await text(http.get(site.url, **request))
        response = await http.get(site.url, **request)
        with pytest.raises(TimeoutError):
            await response.read()
        assert now() == pytest.approx(10.5)
        assert http.connector is not None
        assert not http.connector._acquired


async def test_tries_are_timed_together_and_the_waits_between_them_are_not() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.Response(status=429, headers={"Retry-After": "5"})

    policy = Retry(jitter=0)
    async with Site(refuse) as site, ThrottledSession(retry=policy) as http:
        with pytest.raises(TimeoutError):
            await http.get(site.url, timeout=ClientTimeout(total=0.7))
        assert now() == pytest.approx(0.3 + 5 + 0.3 + 5 + 0.1)
        assert len(site.got) == 3


async def test_redirects_are_timed_together() -> None:
    async def onwards(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        raise web.HTTPFound("/next")

    async with Site(onwards) as site, ThrottledSession(rate="1/10s", settle=0) as http:
        with pytest.raises(TimeoutError):
            await http.get(site.url, timeout=0.8)
        assert now() == pytest.approx(20.2)


@pytest.mark.parametrize("timeout", [None, 0, ClientTimeout(), ClientTimeout(total=0)])
async def test_no_timeout_is_none(timeout: Any) -> None:
    async with Site(slow(1000, 1000)) as site, ThrottledSession() as http:
        assert await text(http.get(site.url, timeout=timeout)) == "begin end"


async def test_the_other_timeouts_are_aiohttps() -> None:
    limits = {
        "session": ThrottledSession(timeout=ClientTimeout(total=50, sock_read=1)),
        "request": ThrottledSession(),
    }
    for where, session in limits.items():
        begun = now()
        async with Site(slow(9)) as site, session as http:
            options: dict[str, Any] = {}
            if where == "request":
                options["timeout"] = ClientTimeout(total=50, sock_read=1)
            with pytest.raises(aiohttp.SocketTimeoutError):
                await http.using(retry=Retry(attempts=1)).get(site.url, **options)
            assert now() - begun == pytest.approx(1)


async def test_a_timeout_in_a_middleware_of_the_users_own_is_kept() -> None:
    async def dawdle(request: Any, handler: Any) -> Any:
        await asyncio.sleep(3)
        return await handler(request)

    async with Site() as site, ThrottledSession(middlewares=[dawdle]) as http:
        with pytest.raises(TimeoutError):
            await http.get(site.url, timeout=1)
        with pytest.raises(TimeoutError):
            await http.get(site.url, timeout=1, middlewares=[dawdle])
        assert (now(), site.got) == (2, [])


async def test_under_a_bare_middleware_the_timeout_counts_the_waits_as_the_docs_say() -> None:
    throttle = ThrottleMiddleware(rate="1/10s")
    async with Site() as site, ClientSession(middlewares=[throttle]) as http:
        await text(http.get(site.url, timeout=ClientTimeout(total=1)))
        with pytest.raises(TimeoutError):
            await http.get(site.url, timeout=ClientTimeout(total=1))
        assert len(site.got) == 1


async def _within(seconds: float, pending: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await pending


@pytest.mark.parametrize("limit", [lambda s, p: asyncio.wait_for(p, s), _within])
async def test_a_timeout_around_the_call_counts_all(limit: Any) -> None:
    async with Site() as site, ThrottledSession(rate="1/10s", settle=0) as http:
        await text(http.get(site.url))
        with pytest.raises(TimeoutError):
            await limit(3, http.get(site.url))
        assert now() == 3
        await text(http.get(site.url))
        assert site.instants == [0, 10], "the permit of the one who gave up was not spent"


# -------------------------------------------------------------------- the deadline of a call


async def test_the_deadline_counts_the_wait_for_a_turn_and_fails_at_once() -> None:
    policy = Retry(deadline=5)
    async with Site() as site, ThrottledSession(rate="1/10s", settle=0, retry=policy) as http:
        await text(http.get(site.url))
        with pytest.raises(WaitTimeout) as caught:
            await http.get(site.url)
        assert (now(), caught.value.delay) == (0, pytest.approx(10))


async def test_the_deadline_counts_the_wait_for_a_slot() -> None:
    policy = Retry(deadline=5)
    async with Site() as site, ThrottledSession(concurrency=1, retry=policy) as http:
        response = await asyncio.create_task(http.get(f"{site.url}/?bytes=10", timeout=None))
        assert response.status == 200
    async with Site(slow(0, 100)) as site, ThrottledSession(concurrency=1, retry=policy) as http:
        response = await asyncio.create_task(http.get(site.url))
        with pytest.raises(WaitTimeout):
            await http.get(site.url)
        assert now() == pytest.approx(5)
        response.close()


async def test_the_deadline_cuts_short_a_try_that_hangs() -> None:
    async with Site(slow(100)) as site, ThrottledSession(retry=Retry(deadline=5)) as http:
        with pytest.raises(TimeoutError):
            await http.get(site.url)
        assert (now(), len(site.got)) == (5, 1)


async def test_the_deadline_is_that_of_all_tries() -> None:
    policy = Retry(deadline=25, jitter=0)
    async with Site(answer(429, Retry_After="10")) as site, ThrottledSession(retry=policy) as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(site.url)
        assert (now(), len(site.got)) == (20, 3)
        assert (caught.value.status, caught.value.retry_after) == (429, 10)
