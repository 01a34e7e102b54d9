"""What servers say of their limits, over real sockets: pauses, remainders, retries, events."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import FrozenInstanceError
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, CookieJar, web
from helpers.site import Site, answer, now, read

from throttle.errors import ServerThrottled
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware
from throttle.testing import RateLimitedServer
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio

STEADY = Retry(jitter=0, base=0.001)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


async def soon(pending: Any, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return await read(pending)


# -------------------------------------------------------------------- a pause is everybody's


@pytest.mark.parametrize("which", ["session", "middleware"])
async def test_a_refusal_pauses_all_requests_to_the_origin_and_no_others(which: str) -> None:
    options = {"retry": STEADY}
    async with (
        Site(answer(429, Retry_After="30"), 200) as a,
        Site() as b,
        ThrottledSession(**options)
        if which == "session"
        else ClientSession(middlewares=[ThrottleMiddleware(**options)]) as http,
    ):
        calls = [soon(http.get(a.url), 0.1 * n) for n in range(10)]
        calls += [soon(http.get(b.url), 0.1 * n) for n in range(10)]
        assert set(await asyncio.gather(*calls)) == {200}
        assert a.instants[0] == 0
        assert min(a.instants[1:]) >= 30
        assert max(b.instants) < 1


async def test_path_prefixes_of_a_host_are_paused_with_it() -> None:
    refuse = answer(429, Retry_After="7")
    async with Site(refuse, 200) as site:
        host = site.url.removeprefix("http://")
        limits = {f"{host}/a": "100/s", f"{host}/b": "100/s"}
        async with ThrottledSession(limits=limits, retry=STEADY) as http:
            calls = [soon(http.get(f"{site.url}/{p}"), 0.1 * n) for n, p in enumerate("aabbc")]
            await asyncio.gather(*calls)
        assert min(site.instants[1:]) >= 7


async def test_the_latest_deadline_wins_and_nothing_lifts_it_early() -> None:
    waits = {"/x": "2", "/v": "1", "/u": "5"}
    begun: dict[str, float] = {}

    async def refuse_once(request: web.Request) -> web.StreamResponse:
        if begun.setdefault(request.path, now()) == now() and request.path in waits:
            return web.Response(status=429, headers={"Retry-After": waits[request.path]})
        if request.path == "/y":
            await asyncio.sleep(0.3)
        return web.Response()

    async with Site(refuse_once) as site, ThrottledSession(retry=STEADY) as http:
        y = asyncio.create_task(read(http.get(f"{site.url}/y")))
        x = asyncio.create_task(soon(http.get(f"{site.url}/x"), 0.001))
        await asyncio.gather(y, soon(http.get(f"{site.url}/w"), 0.35), x)
        sent = {one.path: one.instant for one in site.got}
        assert sent["/w"] >= 2
        assert sent["/x"] >= 2


async def test_a_pause_that_is_asked_for_later_makes_those_who_wait_wait_longer() -> None:
    """Answers that were under way bring a longer pause while others wait for a short one."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        if now() < 5:
            await asyncio.sleep(float(request.query["after"]))
            return web.Response(status=429, headers={"Retry-After": request.query["wait"]})
        return web.Response()

    async with Site(refuse) as site, ThrottledSession(retry=STEADY) as http:
        calls = [
            read(http.get(site.url, params={"after": after, "wait": wait}))
            for after, wait in (("0.1", "2"), ("1.5", "1"), ("1.6", "5"))
        ]
        waiting = soon(http.get(site.url, params={"after": "0", "wait": "0"}), 0.2)
        await asyncio.gather(*calls, waiting)
        assert min(site.instants[3:]) == pytest.approx(6.6)


async def test_remaining_zero_closes_the_gate_before_the_first_refusal() -> None:
    spent = answer(200, RateLimit='"default";r=0;t=12')
    async with Site(spent, 200) as site, ThrottledSession() as http:
        for _ in range(2):
            await read(http.get(site.url))
        assert site.instants[0] == 0
        assert site.instants[1] >= 12


@pytest.mark.parametrize(
    "fields",
    [
        {"RateLimit": '"default";r=3;t=20'},
        {"X_RateLimit_Remaining": "3", "X_RateLimit_Reset": "20"},
    ],
)
async def test_no_more_are_sent_than_the_server_says_are_left(fields: dict[str, str]) -> None:
    async with Site(answer(200, **fields), 200) as site, ThrottledSession() as http:
        await read(http.get(site.url))
        await asyncio.gather(*(read(http.get(site.url)) for _ in range(10)))
        assert Counter(instant >= 20 for instant in site.instants) == {False: 4, True: 7}


async def test_good_news_never_raises_the_configured_rate() -> None:
    rich = answer(200, RateLimit='"default";r=1000;t=1', RateLimit_Policy='"default";q=1000;w=1')
    async with Site(rich) as site, ThrottledSession(rate="1/s", settle=0) as http:
        for _ in range(4):
            await read(http.get(site.url))
        assert site.instants == [0, 1, 2, 3]


async def test_quotas_of_tokens_say_nothing_of_requests() -> None:
    fields = {"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "60s"}
    async with Site(answer(200, **fields)) as site, ThrottledSession() as http:
        await read(http.get(site.url))
        await read(http.get(site.url))
        assert site.instants == [0, 0]


async def test_what_a_cache_kept_says_nothing_of_now() -> None:
    old = answer(200, RateLimit='"default";r=0;t=60', Age="30")
    async with Site(old) as site, ThrottledSession() as http:
        await read(http.get(site.url))
        await read(http.get(site.url))
        assert site.instants == [0, 0]


async def test_an_epoch_in_whole_seconds_is_padded() -> None:
    async with RateLimitedServer("1/10s", dialect="github") as server, ThrottledSession() as http:
        for _ in range(2):
            await read(http.get(server.url))
        assert server.refused == 0
        assert 11 <= server.requests[1].instant <= 12.1


# -------------------------------------------------------------------- of one request only (D10)


@pytest.mark.parametrize("status", [200, 202, 413])
async def test_a_wait_on_an_answer_that_is_no_refusal_pauses_nobody(status: int) -> None:
    async with Site(answer(status, Retry_After="60")) as site, ThrottledSession() as http:
        assert await read(http.get(site.url)) == status
        assert await read(http.get(site.url)) == status
        assert site.instants == [0, 0]


@pytest.mark.parametrize("which", ["session", "middleware"])
async def test_a_wait_on_a_redirect_delays_that_redirect_only(which: str) -> None:
    hop = answer(302, Location="/there", Retry_After="4")
    throttle = ThrottleMiddleware()
    async with (
        Site(routes={"/hop": hop}) as site,
        ThrottledSession() if which == "session" else ClientSession(middlewares=[throttle]) as http,
    ):
        calls = (read(http.get(f"{site.url}/hop")), soon(http.get(f"{site.url}/else"), 0.5))
        assert await asyncio.gather(*calls) == [200, 200]
        sent = {one.path: one.instant for one in site.got}
        assert sent == {"/hop": 0, "/else": 0.5, "/there": pytest.approx(4)}


async def test_a_redirect_that_asks_for_too_long_is_an_error_with_the_value() -> None:
    hop = answer(302, Location="/there", Retry_After="400")
    async with Site(routes={"/hop": hop}) as site, ThrottledSession() as http:
        with pytest.raises(ServerThrottled) as caught:
            await http.get(f"{site.url}/hop")
        assert caught.value.retry_after == pytest.approx(400)
        assert caught.value.status == 302
        async with http.get(f"{site.url}/hop", allow_redirects=False) as response:
            assert response.status == 302
        assert now() < 1


async def test_a_pause_above_max_wait_fails_whoever_asks_waits_or_comes_later() -> None:
    told: list[ServerThrottled] = []

    async def call(http: Any, url: str, delay: float) -> None:
        await asyncio.sleep(delay)
        with pytest.raises(ServerThrottled) as caught:
            await http.get(url)
        told.append(caught.value)
        assert now() == pytest.approx(max(delay, 0.5))

    async def refuse(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return web.Response(status=429, headers={"Retry-After": "600"})

    async with Site(refuse) as site, ThrottledSession(rate="1/10s", settle=0) as http:
        # The first is refused; the next two stand in line for their turn meanwhile.
        await asyncio.gather(*(call(http, site.url, delay) for delay in (0, 0.1, 0.2, 3, 4)))
        assert len(site.got) == 1
        assert [round(one.retry_after or 0, 3) for one in told] == [600, 600, 600, 597.5, 596.5]
        assert {one.status for one in told} == {429}
        assert {one.origin for one in told} == {site.url}
        instants = [one.retry_at for one in told]
        assert None not in instants
        assert max(instants) - min(instants) < 5  # type: ignore[type-var, operator]
        patient = http.using(retry=Retry(max_wait=None))
        site._script = [answer(200)]
        assert await read(patient.get(site.url)) == 200
        assert site.instants[1] >= 600


async def test_who_would_wait_keeps_his_place_when_the_impatient_are_sent_away() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        if not now():
            await asyncio.sleep(0.5)
            return web.Response(status=429, headers={"Retry-After": "600"})
        return web.Response()

    async with Site(refuse) as site, ThrottledSession(rate="1/s", settle=0) as http:
        patient = http.using(retry=Retry(max_wait=None, jitter=0))
        order: list[str] = []

        async def call(session: Any, name: str, delay: float) -> None:
            await asyncio.sleep(delay)
            await read(session.get(site.url))
            order.append(name)

        results = await asyncio.gather(
            call(patient, "first", 0),
            call(patient, "a", 0.1),
            call(http, "impatient", 0.2),
            call(patient, "b", 0.3),
            return_exceptions=True,
        )
        assert [type(one) for one in results] == [type(None)] * 2 + [ServerThrottled, type(None)]
        assert order.index("a") < order.index("b")
        assert min(site.instants[1:]) >= 600


# -------------------------------------------------------------------- after a pause


@pytest.mark.parametrize("rate", ["20/s", None])
async def test_the_line_drains_evenly_after_a_pause(rate: str | None) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        if now() < 1:
            await asyncio.sleep(0.1)
            return web.Response(status=429, headers={"Retry-After": "2"})
        return web.Response()

    async with Site(refuse) as site, ThrottledSession(rate=rate, retry=Retry(jitter=0)) as http:
        await asyncio.gather(*(read(http.get(site.url)) for _ in range(40)))
        after = [instant for instant in site.instants if instant > 1]
        per_slice = Counter(int((instant - 2.1 + 1e-6) * 10) for instant in after)
        assert min(per_slice) >= 0
        assert max(per_slice.values()) <= 3
        assert len(after) >= 40


async def test_a_client_that_believes_in_too_much_soon_learns_better() -> None:
    async with RateLimitedServer("20/s") as server, ThrottledSession(rate="50/s") as http:
        statuses = await asyncio.gather(*(read(http.get(server.url)) for _ in range(300)))
        assert set(statuses) == {200}
        assert server.refused <= 45  # 30 of them are sent before the first answer
        sends = [one.instant for one in server.requests]
        assert sends[-1] < 1.6 * 14
        late = Counter(int(instant * 10) for instant in sends if instant > 1)
        assert max(late.values()) <= 5


@pytest.mark.parametrize("dialect", ["retry-after", "ietf", "github", "none"])
async def test_the_same_window_on_both_sides_refuses_nothing(dialect: str) -> None:
    async with (
        RateLimitedServer("50/s", dialect=dialect, latency=0.003) as server,
        ThrottledSession(rate="50/s") as http,
    ):
        await asyncio.gather(*(read(http.get(server.url)) for _ in range(200)))
        assert server.refused == 0
        assert now() < 3 * 1.1 + 0.01


# -------------------------------------------------------------------- connections, cookies


@pytest.mark.parametrize("which", ["session", "middleware"])
@pytest.mark.parametrize("size", [0, 1000, 2_000_000])
async def test_a_refused_response_gives_its_connection_back(which: str, size: int) -> None:
    policy = Retry(attempts=5, base=0.01)
    connector = aiohttp.TCPConnector(limit=1)
    held: list[int] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        held.append(len(connector._acquired))
        return web.Response(status=429, body=b"x" * size)

    async with (
        Site(refuse) as site,
        ThrottledSession(connector=connector, retry=policy)
        if which == "session"
        else ClientSession(
            connector=connector, middlewares=[ThrottleMiddleware(retry=policy)]
        ) as http,
    ):
        async with http.get(site.url) as response:
            assert response.status == 429
            assert len(await response.read()) == size
        assert held == [1] * 5
        assert not connector._acquired


async def test_a_small_refusal_keeps_the_connection_for_reuse() -> None:
    ports: set[Any] = set()

    async def refuse(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.json_response({"message": "slow down"}, status=429)

    async with Site(refuse) as site, ThrottledSession(retry=Retry(base=0.01)) as http:
        await read(http.get(site.url))
        assert (len(site.got), len(ports)) == (5, 1)


@pytest.mark.parametrize("how", ["garbage", "cut off"])
async def test_a_refused_body_that_is_broken_is_not_waited_for(how: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=429, headers={"Content-Type": "application/json"})
        if how == "garbage":
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b"garbage" * 20)
        if how == "cut off":
            assert request.transport is not None
            request.transport.close()
        await asyncio.sleep(60)
        return response

    policy = Retry(attempts=3, base=0)
    async with Site(refuse) as site, ThrottledSession(retry=policy, concurrency=1) as http:
        async with http.get(site.url) as response:
            assert response.status == 429
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert len(site.got) == 3
        assert now() < 0.5


async def test_cookies_of_a_refused_response_are_kept_and_sent() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.Response(status=429)
        response.set_cookie("seen", "yes")
        response.del_cookie("old")
        return response

    jar = CookieJar(unsafe=True)
    async with Site(refuse, 200) as site, ThrottledSession(cookie_jar=jar, retry=STEADY) as http:
        own = {"Cookie": "mine=1; old=2; odd={a}"}
        await read(http.get(site.url, headers=own))
        assert site.got[1].headers["Cookie"] == "mine=1; odd={a}; seen=yes"
        await read(http.get(site.url))
        assert site.got[2].headers["Cookie"] == "seen=yes"


# -------------------------------------------------------------------- evidence in bodies


async def test_a_body_that_was_read_for_evidence_can_still_be_read() -> None:
    told = {"message": "You have exceeded a secondary rate limit"}
    async with (
        Site(answer(403, told), 200) as site,
        ThrottledSession(retry=Retry(jitter=0)) as http,
    ):
        assert await read(http.get(site.url)) == 200
        assert site.instants[1] >= 60
    async with Site(answer(403, {"message": "Forbidden"})) as site, ThrottledSession() as http:
        async with http.get(site.url) as response:
            assert (response.status, await response.json()) == (403, {"message": "Forbidden"})
        assert len(site.got) == 1


async def test_a_body_that_comes_slowly_is_not_spoiled_by_looking_for_evidence() -> None:
    async def dawdle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        response.content_type = "application/json"
        await response.prepare(request)
        await response.write(b'{"a":')
        await asyncio.sleep(10)
        await response.write(b" 1}")
        return response

    async with Site(dawdle) as site, ThrottledSession() as http, http.get(site.url) as response:
        assert await response.json() == {"a": 1}


async def test_a_success_is_read_for_evidence_only_where_the_host_opted_in() -> None:
    told = {"errors": [{"extensions": {"code": "THROTTLED"}}]}
    async with Site(answer(200, told), answer(200, {})) as site, ThrottledSession() as http:
        assert await read(http.post(site.url)) == 200
        assert len(site.got) == 1
    opted_in = ThrottledSession(signals={"127.0.0.1": {}})
    async with Site(answer(200, told), answer(200, {})) as site, opted_in as http:
        async with http.post(site.url) as response:
            assert await response.json() == {}
        assert len(site.got) == 2


# -------------------------------------------------------------------- hooks and the log


async def test_hooks_get_frozen_events_and_one_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[Any] = []

    def hook(event: Any) -> None:
        events.append(event)
        raise LookupError("a hook of the user's own")

    async with (
        Site(answer(429, Retry_After="2"), 200) as site,
        ThrottledSession(
            rate=1, burst=1, retry=Retry(jitter=0),
            on_wait=hook, on_retry=hook, on_signal=hook,
        ) as http,
    ):  # fmt: skip
        url = site.url.replace("http://", "http://user:password@") + "/path?token=secret#part"
        assert await read(http.get(url, headers={"X-Api-Key": "hidden"})) == 200
        assert await read(http.get(site.url)) == 200
        signalled, retried, *waited = events
        assert (signalled.status, signalled.signal.retry_after_s) == (429, 2)
        assert (retried.attempt, retried.wait, retried.reason) == (1, 2, "throttled")
        assert [type(one).__name__ for one in waited][-1] == "Waited"
        for event in events:
            assert event.origin == site.url
            assert event.url in (f"{site.url}/path", f"{site.url}/")
            with pytest.raises(FrozenInstanceError):
                event.url = ""
    assert caplog.text.count("a hook failed") == len(events)
    for secret in ("token", "secret", "password", "user:", "hidden", "dXNlcjpw"):
        assert secret not in caplog.text


async def test_a_request_that_need_not_wait_tells_nobody() -> None:
    events: list[Any] = []
    async with Site() as site, ThrottledSession(rate="5/s", on_wait=events.append) as http:
        await asyncio.gather(*(read(http.get(site.url)) for _ in range(5)))
        assert events == []
        await read(http.get(site.url))
        assert [round(one.seconds, 3) for one in events] == [1]


async def test_what_is_logged_of_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "throttle")
    async with Site() as site:
        dead = site.url
    async with ThrottledSession(retry=Retry(attempts=2)) as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{dead}/path?token=secret")
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "throttle"]
    assert [level for level, _ in lines] == ["INFO", "WARNING"]
    assert all(f"GET {dead}/path: ClientConnectorError, try" in text for _, text in lines)


# -------------------------------------------------------------------- a storm


async def test_a_budget_stops_a_storm_of_retries() -> None:
    policy = Retry(attempts=10, base=0.001, cap=0.002, budget=0.1, budget_floor=1)
    async with Site(503) as site, ThrottledSession(retry=policy) as http:
        await asyncio.gather(*(read(http.get(f"{site.url}/{n}")) for n in range(50)))
        assert len(site.got) <= 50 + 10 + 5
