"""The server that enforces a limit: exact, honest about the wait, clean when it stops."""

from __future__ import annotations

import asyncio
import json
import threading
from itertools import pairwise
from typing import Any

import aiohttp
import anyio
import httpx
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from throttle.http.signals import Signal, read_signal
from throttle.testing import Answer, RateLimitedServer, virtual_time
from throttle.testing.dialects import DIALECTS

WALL = 1.7e9  # a clock of ours that is far from the server's: nothing may depend on it


def new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=None, verify=False, trust_env=False)


async def get(server: RateLimitedServer, path: str = "/", **options: Any) -> httpx.Response:
    async with new_client() as client:
        return await client.get(server.url_for(path), **options)


def signal_of(response: httpx.Response) -> Signal:
    return read_signal(
        response.status_code, response.headers.multi_items(), body=response.text, now=WALL
    )


# -------------------------------------------------------------------- what it enforces


@pytest.mark.anyio
async def test_it_admits_what_the_limit_admits() -> None:
    async with RateLimitedServer("3/10s") as server:
        statuses = [(await get(server, f"/{i}?n={i}")).status_code for i in range(4)]
        await anyio.sleep(10)
        statuses.append((await get(server)).status_code)
    assert statuses == [200, 200, 200, 429, 200]
    assert (server.admitted, server.refused) == (4, 1)
    assert [(a.method, a.path, a.instant, a.status, a.admitted) for a in server.requests] == [
        ("GET", "/0?n=0", 0.0, 200, True),
        ("GET", "/1?n=1", 0.0, 200, True),
        ("GET", "/2?n=2", 0.0, 200, True),
        ("GET", "/3?n=3", 0.0, 429, False),
        ("GET", "/", 10.0, 200, True),
    ]
    assert {a.client for a in server.requests} == {"127.0.0.1"}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=20),
    st.sampled_from(
        [
            TokenBucket(1, 2),
            LeakyBucket(1, 2),
            SlidingWindowLog(2, 3),
            SlidingWindowCounter(2, 3),
            FixedWindow(2, 3),
            AllOf(SlidingWindowLog(2, 1), SlidingWindowLog(3, 4)),
        ]
    ),
)
def test_it_decides_as_the_algorithm_does(gaps: list[float], template: Limiter) -> None:
    """Whatever the algorithm, and whatever the arrivals: the same answers as a copy on paper."""

    async def main() -> None:
        async with RateLimitedServer(template) as server, aiohttp.ClientSession() as client:
            for gap in gaps:
                await asyncio.sleep(gap)
                async with client.get(server.url):
                    pass
        paper = template._clone()
        assert [a.admitted for a in server.requests] == [
            paper.allow(a.instant) for a in server.requests
        ]
        assert len(server.requests) == len(gaps)

    with virtual_time() as time:
        time.run(main)
    assert template.stats().granted == 0, "a template is copied"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("per", "first", "second"),
    [
        ("path", {"path": "/a"}, {"path": "/b"}),
        (
            "authorization",
            {"headers": {"Authorization": "a"}},
            {"headers": {"Authorization": "b"}},
        ),
        ("header:X-Key", {"headers": {"x-key": "a"}}, {"headers": {"x-key": "b"}}),
        (lambda request: request.query["u"], {"path": "/?u=a"}, {"path": "/?u=b"}),
    ],
    ids=["path", "authorization", "header", "function"],
)
async def test_each_client_has_a_limit_of_its_own(
    per: Any, first: dict[str, Any], second: dict[str, Any]
) -> None:
    async with RateLimitedServer("1/minute", per=per) as server:
        told = [(await get(server, **who)).status_code for who in (first, second, first, second)]
    assert told == [200, 200, 429, 429]
    assert len({a.client for a in server.requests}) == 2
    assert server.max_in_window(60) == 2
    assert server.max_in_window(60, client=server.requests[0].client) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("per", ["global", "address"])
async def test_all_share_one_limit(per: str) -> None:
    async with RateLimitedServer("1/minute", per=per) as server:
        told = [(await get(server, path)).status_code for path in ("/a", "/b")]
    assert told == [200, 429]


@pytest.mark.anyio
async def test_the_most_in_a_window_holds_its_start_and_not_its_end() -> None:
    async with RateLimitedServer("2/s") as server:
        for gap in (0.0, 0.0, 0.5, 0.5, 0.25):
            await anyio.sleep(gap)
            await get(server)
    assert [a.instant for a in server.requests] == [0.0, 0.0, 0.5, 1.0, 1.25]
    assert server.max_in_window(1) == 2
    assert server.max_in_window(1.25) == 3
    assert server.max_in_window(0.5, refused=True) == 2
    assert server.max_in_window(1, refused=True) == 3
    assert server.max_in_window(float("inf"), refused=True) == 5


@pytest.mark.anyio
async def test_arrivals_are_bounded_and_counts_are_not() -> None:
    async with RateLimitedServer("inf", max_requests=2) as server:
        for i in range(5):
            await get(server, f"/{i}")
    assert [a.path for a in server.requests] == ["/3", "/4"]
    assert server.admitted == 5


# -------------------------------------------------------------------- what it says

LIMITERS = [
    SlidingWindowLog(2, 30),
    SlidingWindowLog(1, 0.3),
    SlidingWindowLog(3, 7.9),
    SlidingWindowCounter(2, 10),
    FixedWindow(2, 3600),
    TokenBucket(0.7, 2),
    LeakyBucket("3/minute", 1),
    AllOf(SlidingWindowLog(5, 1), SlidingWindowLog(6, 90)),
]


@pytest.mark.anyio
@pytest.mark.parametrize("limiter", LIMITERS, ids=repr)
@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "none"])
async def test_who_waits_as_told_is_let_in(dialect: str, limiter: Limiter) -> None:
    """The promise of every dialect, read back by the reader of the client."""
    async with RateLimitedServer(limiter, dialect=dialect) as server:
        await anyio.sleep(0.37)  # off the grid of whole seconds
        for _ in range(2):
            answers = [await get(server) for _ in range(8)]
            response = next(a for a in answers if a.status_code == 429)
            signal = signal_of(response)
            assert signal.throttled
            assert signal.wait_s is not None
            left = server._limiters["127.0.0.1"].delay()
            assert left <= signal.wait_s + 1e-9
            assert signal.wait_s <= max(left + 2, signal.reset_after_s or 0)
            await anyio.sleep(signal.wait_s)
            assert (await get(server)).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("dialect", "limit"),
    [
        ("github", True),
        ("ietf", True),
        ("ietf-draft-7", True),
        ("ietf-draft-3", True),
        ("openai", True),
        ("shopify", True),
        ("retry-after", False),
        ("retry-after-date", False),
        ("none", False),
    ],
)
async def test_a_good_answer_tells_what_is_left(dialect: str, limit: bool) -> None:
    async with RateLimitedServer("5/minute", dialect=dialect) as server:
        signals = [signal_of(await get(server)) for _ in range(5)]
    assert not any(signal.throttled for signal in signals)
    if limit:
        assert [signal.remaining for signal in signals] == [4, 3, 2, 1, 0]
        assert {signal.limit for signal in signals} == {5}
        assert {signal.unit for signal in signals} == {"requests"}
    else:
        assert {signal.remaining for signal in signals} == {None}


@pytest.mark.anyio
async def test_a_server_that_says_nothing() -> None:
    async with RateLimitedServer("1/minute", dialect="none", status=503) as server:
        await get(server)
        response = await get(server)
    assert response.status_code == 503
    assert signal_of(response) == read_signal(503, (), now=WALL)


@pytest.mark.anyio
async def test_all_limits_are_told_where_the_dialect_can() -> None:
    async with RateLimitedServer(["2/s", "5/minute"], dialect="ietf") as server:
        first = await get(server)
        await get(server)
        refused = await get(server)
    assert first.headers["RateLimit-Policy"] == '"2-per-1s";q=2;w=1, "5-per-60s";q=5;w=60'
    assert first.headers["RateLimit"] == '"2-per-1s";r=1;t=1, "5-per-60s";r=4;t=60'
    assert refused.headers["RateLimit"] == '"2-per-1s";r=0;t=1, "5-per-60s";r=3;t=60'
    assert refused.headers["Retry-After"] == "1"


@pytest.mark.anyio
async def test_the_forms_are_those_of_the_vendors() -> None:
    told = {}
    for dialect in DIALECTS:
        async with RateLimitedServer("1/90s", dialect=dialect) as server:
            await get(server)
            await anyio.sleep(0.25)
            told[dialect] = await get(server)
    assert told["retry-after"].headers["Retry-After"] == "90"
    assert told["retry-after-date"].headers["Retry-After"].endswith(" GMT")
    assert told["github"].headers["X-RateLimit-Reset"].isdigit()
    assert "Retry-After" not in told["github"].headers
    assert "rate limit" in json.loads(told["github"].text)["message"]
    assert told["ietf-draft-7"].headers["RateLimit"] == "limit=1, remaining=0, reset=90"
    assert told["ietf-draft-7"].headers["RateLimit-Policy"] == "1;w=90"
    assert told["ietf-draft-3"].headers["RateLimit-Limit"] == "1, 1;w=90"
    assert told["openai"].headers["x-ratelimit-reset-requests"] == "1m29.75s"
    assert told["shopify"].headers["X-Shopify-Shop-Api-Call-Limit"] == "1/1"
    assert told["shopify"].headers["Retry-After"] == "90.0"
    assert {response.status_code for response in told.values()} == {429}


@pytest.mark.anyio
async def test_a_limit_that_is_none_can_be_told_in_every_dialect() -> None:
    for dialect in DIALECTS:
        async with RateLimitedServer("inf", dialect=dialect) as server:
            assert (await get(server)).status_code == 200
        async with RateLimitedServer(TokenBucket(0, 1), dialect=dialect) as server:
            await get(server)
            refused = await get(server)
            assert refused.status_code == 429
            assert signal_of(refused).throttled


@pytest.mark.anyio
async def test_a_dialect_of_ones_own() -> None:
    def headers(answer: Answer) -> dict[str, str]:
        return {"X-Left": f"{answer.quota.remaining}", "X-Wait": f"{answer.retry_after:g}"}

    async with RateLimitedServer("1/9s", dialect=headers) as server:
        answers = [await get(server) for _ in range(2)]
    assert [(a.headers["X-Left"], a.headers["X-Wait"]) for a in answers] == [("0", "0"), ("0", "9")]


# -------------------------------------------------------------------- what it serves


@pytest.mark.anyio
async def test_a_body_is_the_same_every_time_and_of_the_size_asked_for() -> None:
    async with RateLimitedServer("inf") as server:
        bodies = [(await get(server, "/file?bytes=10")).content for _ in range(2)]
        assert bodies == [b"/file\n/fil"] * 2
        assert (await get(server, "/file?bytes=0")).content == b""
        assert (await get(server, "/file")).content == b"/file\n"
        for wrong in ("-1", "x", "1e3", "99999999999"):
            assert (await get(server, f"/file?bytes={wrong}")).status_code == 400


@pytest.mark.anyio
async def test_pages_of_ones_own() -> None:
    pages = {"/robots.txt": "User-agent: *\nCrawl-delay: 2\n", "/a.json": b"{}", "/": "<p>"}
    async with RateLimitedServer("4/minute", handler=pages) as server:
        robots, data, home = [await get(server, path) for path in pages]
        assert (await get(server, "/other")).status_code == 404
        assert (await get(server)).status_code == 429
    assert robots.text == pages["/robots.txt"]
    assert data.headers["Content-Type"] == "application/json"
    assert home.headers["Content-Type"].startswith("text/html")
    assert [a.status for a in server.requests] == [200, 200, 200, 404, 429]


@pytest.mark.anyio
async def test_a_handler_of_ones_own_can_answer_stream_and_fail() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/stream":
            stream = web.StreamResponse()
            await stream.prepare(request)
            await stream.write(b"ab")
            return stream
        if request.path == "/gone":
            raise web.HTTPGone
        if request.path == "/broken":
            raise ValueError("on purpose")
        return web.Response(body=await request.read(), status=201)

    server = RateLimitedServer("9/s", handler=handler, dialect="shopify")
    async with server, new_client() as client:
        posted = await client.post(server.url, content=b"x" * 3_000_000)
        answers = [await client.get(server.url_for(p)) for p in ("stream", "gone", "broken")]
    assert posted.content == b"x" * 3_000_000
    assert [a.status_code for a in (posted, *answers)] == [201, 200, 410, 500]
    assert answers[0].content == b"ab"
    told = [a.headers["X-Shopify-Shop-Api-Call-Limit"] for a in (posted, *answers)]
    assert told == ["1/9", "2/9", "3/9", "4/9"], "also on streams and errors"
    assert [a.status for a in server.requests] == [201, 200, 410, 500]


def test_latency_is_virtual_in_a_loop_and_spent_on_admitted_requests_only() -> None:
    async def main() -> None:
        async with RateLimitedServer("1/minute", latency=2.5) as server:
            assert (await get(server)).status_code == 200
            assert asyncio.get_running_loop().time() == 2.5
            assert (await get(server)).status_code == 429
            assert asyncio.get_running_loop().time() == 2.5

    with virtual_time() as time:
        time.run(main)


# -------------------------------------------------------------------- what goes wrong on purpose


async def outcomes(faults: Any, count: int, seed: int = 0) -> tuple[list[str], list[int | None]]:
    async with RateLimitedServer("inf", faults=faults, seed=seed) as server:
        seen = []
        for _ in range(count):
            try:
                response = await get(server, "/x?bytes=5000")
                assert len(response.content) == 5000 or response.status_code >= 500
                seen.append(str(response.status_code))
            except httpx.RemoteProtocolError as error:
                seen.append("truncate" if "body" in str(error) else "drop")
            except httpx.ReadError:
                seen.append("drop")
    return seen, [a.status for a in server.requests]


@pytest.mark.anyio
async def test_faults_by_a_script() -> None:
    seen, statuses = await outcomes(["drop", None, "truncate", 503, 500], 7)
    assert seen == ["drop", "200", "truncate", "503", "500", "200", "200"]
    assert statuses == [None, 200, 200, 503, 500, 200, 200]


@pytest.mark.anyio
async def test_faults_by_chance_say_the_same_in_the_next_run() -> None:
    chances = {"drop": 0.3, "truncate": 0.2, 502: 0.2}
    first, again, other = [await outcomes(chances, 30, seed) for seed in (7, 7, 8)]
    assert first == again
    assert first != other
    assert set(first[0]) == {"200", "drop", "truncate", "502"}


@pytest.mark.anyio
async def test_a_refusal_uses_up_no_fault() -> None:
    async with RateLimitedServer("1/s", faults=[None, 500]) as server:
        statuses = [(await get(server)).status_code for _ in range(3)]
        await anyio.sleep(1)
        statuses.append((await get(server)).status_code)
    assert statuses == [200, 429, 429, 500]


@pytest.mark.anyio
async def test_a_stream_can_be_spoiled_too() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b"ab")
        return stream

    async with RateLimitedServer("inf", handler=handler, faults=["truncate", "drop"]) as server:
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                await get(server)
        assert (await get(server)).content == b"ab"


# -------------------------------------------------------------------- starting and stopping


def test_in_a_thread_for_plain_code() -> None:
    before = threading.active_count()
    with RateLimitedServer("2/minute") as server:
        with httpx.Client(verify=False, trust_env=False) as client:
            assert [client.get(server.url).status_code for _ in range(3)] == [200, 200, 429]
        address = server.url
    assert threading.active_count() == before
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_real_time_is_the_clock_without_a_virtual_one() -> None:
    with (
        RateLimitedServer("1/40ms") as server,
        httpx.Client(verify=False, trust_env=False) as client,
    ):
        while server.admitted < 2:
            client.get(server.url)
    instants = [a.instant for a in server.requests if a.admitted]
    assert len(instants) >= 2
    assert all(later - sooner >= 0.04 - 1e-9 for sooner, later in pairwise(instants))
    assert server.max_in_window(0.04) == 1


@pytest.mark.anyio
async def test_twice_is_an_error_and_again_is_anew() -> None:
    server = RateLimitedServer("1/minute", faults=[500])
    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.url
    for _ in range(2):
        async with server:
            with pytest.raises(RuntimeError, match="started already"):
                async with server:
                    pass
            with pytest.raises(RuntimeError, match="started already"), server:
                pass
            assert [(await get(server)).status_code for _ in range(2)] == [500, 429]
        assert (server.admitted, server.refused, len(server.requests)) == (1, 1, 2)
        with pytest.raises(RuntimeError, match="not been started"):
            _ = server.url


@pytest.mark.parametrize("latency", [0, 30])
def test_leaving_with_hundreds_of_connections_open_leaves_nothing(latency: float) -> None:
    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as client:

            async def fetch(url: str) -> int | None:
                try:
                    async with client.get(url) as response:
                        return response.status
                except aiohttp.ClientError:
                    return None

            async with RateLimitedServer("150/hour", latency=latency) as server:
                calls = [asyncio.create_task(fetch(server.url)) for _ in range(300)]
                # Virtual: it passes when all of them have been decided, and none answered.
                await asyncio.sleep(1)
                assert server.admitted + server.refused == 300
            told = await asyncio.gather(*calls)
            assert told.count(429) == 150
            assert told.count(None if latency else 200) == 150
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with virtual_time() as time:
        time.run(main)


def test_leaving_while_connections_come_in_leaves_nothing() -> None:
    async def main() -> None:
        for turns in range(12):
            async with RateLimitedServer("inf") as server:
                port = int(server.url.rpartition(":")[2])
                calls = [
                    asyncio.create_task(asyncio.open_connection("127.0.0.1", port))
                    for _ in range(20)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
            for made in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(made, BaseException):
                    assert isinstance(made, ConnectionError)
                else:
                    made[1].close()
                    try:
                        await made[1].wait_closed()
                    except ConnectionError:
                        continue
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.anyio
async def test_an_error_inside_stops_it_and_comes_through() -> None:
    addresses = []

    async def fails() -> None:
        async with RateLimitedServer("inf") as server:
            addresses.append(server.url)
            raise KeyError

    with pytest.raises(KeyError):
        await fails()
    async with new_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(addresses[0])


@pytest.mark.anyio
async def test_a_cancelled_test_stops_it() -> None:
    with anyio.move_on_after(5) as scope:
        async with RateLimitedServer("inf") as server:
            await get(server)
            address = server.url
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert server.admitted == 1
    async with new_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(address)
    assert "RateLimitedServer" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.anyio
async def test_in_virtual_time_an_hour_of_politeness_is_exact() -> None:
    """Under trio the server is a thread of real time: virtual time stands while it works."""
    async with RateLimitedServer("1/10m") as server:
        for _ in range(11):
            response = await get(server)
            await anyio.sleep(float(response.headers.get("Retry-After", 0)))
    admitted = [a.instant for a in server.requests if a.admitted]
    assert admitted == [0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0]
    assert server.refused == 5


# -------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("limiter", "a lot"),
        ("limiter", None),
        ("limiter", 0),
        ("limiter", []),
        ("limiter", lambda: 3),
        ("per", "adress"),
        ("per", "header:"),
        ("per", 3),
        ("dialect", "klingon"),
        ("dialect", None),
        ("status", 200),
        ("status", 600),
        ("status", "429"),
        ("latency", -1),
        ("latency", float("inf")),
        ("faults", "drop"),
        ("faults", 3),
        ("faults", ["explode"]),
        ("faults", [404]),
        ("faults", {"drop": 0.7, 500: 0.7}),
        ("faults", {"drop": -0.1}),
        ("faults", {"drop": "often"}),
        ("seed", 0.5),
        ("handler", 3),
        ("handler", {"robots.txt": ""}),
        ("handler", {"/": 3}),
        ("max_requests", 0),
    ],
)
def test_wrong_arguments_are_named(name: str, wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        RateLimitedServer(**{"limiter": "1/s", name: wrong})


def test_wrong_windows_are_named() -> None:
    for wrong in (0, -1, "x"):
        with pytest.raises((ValueError, TypeError), match="seconds"):
            RateLimitedServer("1/s").max_in_window(wrong)  # type: ignore[arg-type]
