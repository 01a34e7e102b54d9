"""PoliteSession: robots.txt, the slowest delay, a contact, and one request at a time."""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from helpers.origins import nothing_is_held
from helpers.websites import AGENT, crawler, get, get_all

from throttle import RobotsDisallowed, ThrottleError, TokenBucket, WaitTimeout, clock
from throttle.http.polite import PoliteSession
from throttle.http.presets import presets
from throttle.http.retry import Retry
from throttle.testing.on_asyncio import VirtualLoop


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}  # aiohttp knows no other


def robots(*lines: str) -> str:
    return "\n".join(["User-agent: *", *lines])


# -------------------------------------------------------------------- robots.txt


@pytest.mark.anyio
async def test_what_robots_txt_forbids_is_not_sent() -> None:
    async with crawler({"a.test/robots.txt": robots("Disallow: /no")}) as (http, sites):
        assert await get(http, "http://a.test/yes") == 200
        with pytest.raises(RobotsDisallowed) as caught:
            await get(http, "http://a.test/no?token=secret")
        assert [one.path for one in sites.visits] == ["/robots.txt", "/yes"]
        assert sites.agents == {AGENT}
    error = caught.value
    assert isinstance(error, PermissionError)
    assert isinstance(error, ThrottleError)
    assert (error.url, error.user_agent, error.reason) == ("http://a.test/no", "examplebot", None)
    assert "secret" not in str(error)


@pytest.mark.anyio
async def test_robots_txt_is_fetched_once_for_all_and_pays_for_its_turn() -> None:
    async with crawler() as (http, sites):
        sites.latency = 0.25
        await get_all(http, *[f"http://a.test/{number}" for number in range(4)])
        assert sites.fetches == [("a.test", 0)]
        assert sites.instants() == [1, 2, 3, 4]


@pytest.mark.anyio
async def test_robots_txt_may_be_asked_for_by_the_user_too() -> None:
    async with crawler({"a.test/robots.txt": robots("Disallow: /")}) as (http, _):
        assert await get(http, "http://a.test/robots.txt") == 200


@pytest.mark.anyio
async def test_each_authority_has_its_own_rules() -> None:
    pages = {"a.test/robots.txt": robots("Disallow: /"), "b.test/robots.txt": robots()}
    async with crawler(pages) as (http, sites):
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test/")
        assert await get(http, "http://b.test/") == 200
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test:81/")
        assert [host for host, _ in sites.fetches] == ["a.test", "b.test", "a.test"]


def redirect(to: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": to})

    return handler


@pytest.mark.anyio
async def test_five_redirects_are_followed_and_the_rules_are_the_first_authoritys() -> None:
    hops = ["http://a.test/robots.txt"] + [f"http://{name}.test/r" for name in "bcde"]
    pages: dict[str, Any] = {
        here.removeprefix("http://"): redirect(there)
        for here, there in pairwise([*hops, "http://f.test/r"])
    }
    pages["f.test/r"] = robots("Disallow: /no")
    async with crawler(pages) as (http, sites):
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test/no")
        # No rules apply on the way, so none were fetched.
        assert [host for host, _ in sites.fetches] == ["a.test"]
        assert len(sites.visits) == 6


@pytest.mark.anyio
async def test_a_sixth_redirect_means_there_is_no_file() -> None:
    pages = {"a.test/robots.txt": redirect("http://a.test/robots.txt")}
    async with crawler(pages) as (http, sites):
        assert await get(http, "http://a.test/") == 200
        assert len(sites.fetches) == 6


@pytest.mark.anyio
async def test_the_target_of_a_redirect_is_checked_too() -> None:
    pages: dict[str, Any] = {
        "a.test/go": redirect("http://b.test/no"),
        "b.test/robots.txt": robots("Disallow: /no"),
    }
    async with crawler(pages) as (http, sites):
        with pytest.raises(RobotsDisallowed, match=r"b\.test/no"):
            await get(http, "http://a.test/go")
        assert "/no" not in [one.path for one in sites.visits]


@pytest.mark.anyio
@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_no_file_means_no_rules(status: int) -> None:
    async with crawler({"a.test/robots.txt": status}) as (http, _):
        assert await get(http, "http://a.test/") == 200


@pytest.mark.anyio
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_file_that_cannot_be_had_forbids_everything_until_it_can(status: int) -> None:
    async with crawler({"a.test/robots.txt": status}, adaptive=False) as (http, sites):
        for _ in range(3):
            with pytest.raises(RobotsDisallowed, match=f"unreachable: status {status}"):
                await get(http, "http://a.test/")
        asked = len(sites.fetches)
        assert asked in (1, 3)  # tried again at once where that may help
        del sites.pages["a.test/robots.txt"]
        await asyncio.sleep(61)
        assert await get(http, "http://a.test/") == 200
        assert len(sites.fetches) == asked + 1


@pytest.mark.anyio
async def test_a_host_that_is_not_there_forbids_everything() -> None:
    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with crawler({"a.test/robots.txt": drop}) as (http, _):
        with pytest.raises(RobotsDisallowed, match="unreachable: ServerDisconnected"):
            await get(http, "http://a.test/")


@pytest.mark.anyio
async def test_a_large_file_is_read_as_far_as_it_must_be() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"User-agent: *\nDisallow: /no\n")
        for _ in range(300):
            sent += 1
            await response.write(b"#" + b"x" * 65534 + b"\n")
        return response

    async with crawler({"a.test/robots.txt": endless}) as (http, _):
        assert await get(http, "http://a.test/yes") == 200
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test/no")
    assert sent < 300


@pytest.mark.anyio
async def test_a_packed_file_in_utf_8_is_read() -> None:
    async def packed(request: web.Request) -> web.Response:
        body = gzip.compress(("\ufeff" + robots("Disallow: /ü")).encode())
        return web.Response(body=body, headers={"content-encoding": "gzip"})

    async with crawler({"a.test/robots.txt": packed}) as (http, _):
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test/ü")


@pytest.mark.anyio
async def test_rules_that_grew_old_during_the_wait_are_fetched_again() -> None:
    """The age is looked at after the wait."""
    async with crawler(delay=50, robots_max_age=120) as (http, sites):
        pages = asyncio.gather(
            *(get(http, f"http://a.test/{number}") for number in range(4)),
            return_exceptions=True,
        )
        await asyncio.sleep(1)
        sites.pages["a.test/robots.txt"] = robots("Disallow: /2")
        *_, third, _ = await pages
        assert isinstance(third, RobotsDisallowed)
        assert [one.path for one in sites.visits] == [
            "/robots.txt", "/0", "/1", "/robots.txt", "/3",
        ]  # fmt: skip
        assert [one.instant for one in sites.visits] == [0, 50, 100, 150, 200]


@pytest.mark.anyio
async def test_a_long_line_loses_no_turn_when_the_rules_grow_old() -> None:
    async with crawler(delay=50, robots_max_age=225) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(12)])
        assert [instant for _, instant in sites.fetches] == [0, 250, 500]
        assert [one.instant for one in sites.visits] == [50 * turn for turn in range(15)]
        assert nothing_is_held(http.throttle.engine)


@pytest.mark.anyio
@pytest.mark.parametrize("moment", [150.5, 155.0])
async def test_a_fetch_on_a_lent_turn_can_be_cancelled(moment: float) -> None:
    async with crawler(delay=50, robots_max_age=120) as (http, sites):
        await get(http, "http://a.test/0")
        sites.latency = 4
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(moment):
                await get_all(http, *[f"http://a.test/{number}" for number in range(1, 4)])
        await asyncio.sleep(10)
        assert nothing_is_held(http.throttle.engine)
        assert await get(http, "http://a.test/4") == 200


@pytest.mark.anyio
async def test_a_fetch_on_a_lent_turn_may_need_more_turns() -> None:
    """A redirect, or a second try, of the fetch stands in line like any other request; who has a
    turn meanwhile lets it go, because nobody knows yet what is allowed."""
    async with crawler(delay=50, robots_max_age=120) as (http, sites):
        pages = asyncio.gather(*(get(http, f"http://a.test/{number}") for number in range(4)))
        await asyncio.sleep(1)
        sites.pages["a.test/robots.txt"] = redirect("/rules")
        sites.pages["a.test/rules"] = 404
        await pages
        assert [(one.instant, one.path) for one in sites.visits[3:5]] == [
            (150, "/robots.txt"),
            (250, "/rules"),
        ]
        assert [one.instant for one in sites.visits[5:]] == [300, 350]


@pytest.mark.anyio
async def test_the_deadline_of_a_call_holds_for_the_rules_too() -> None:
    async with crawler(retry=Retry(deadline=5)) as (http, sites):
        sites.latency = 100
        with pytest.raises(WaitTimeout):
            await get(http, "http://a.test/")
        assert clock.now() == 5
        sites.latency = 0
        assert await get(http, "http://a.test/") == 200


@pytest.mark.anyio
async def test_a_web_socket_is_asked_for_at_its_site() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket

    rules = robots("Disallow: /no", "Crawl-delay: 3")
    async with crawler({"a.test/robots.txt": rules, "a.test/live": echo}) as (http, sites):
        async with http.ws_connect("ws://a.test/live") as socket:
            assert await socket.receive()
        with pytest.raises(RobotsDisallowed):
            await http.ws_connect("ws://a.test/no")
        assert [(one.path, one.instant) for one in sites.visits] == [
            ("/robots.txt", 0),
            ("/live", 3),
        ]


@pytest.mark.anyio
async def test_robots_can_be_switched_off() -> None:
    pages = {"a.test/robots.txt": robots("Disallow: /", "Crawl-delay: 100")}
    async with crawler(pages, robots=False) as (http, sites):
        await get_all(http, "http://a.test/1", "http://a.test/2")
        assert sites.fetches == []
        assert sites.instants() == [0, 1]


@pytest.mark.anyio
async def test_the_product_token_can_be_given() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-agent: research\nDisallow: /no"
    async with crawler({"a.test/robots.txt": text}, product="research") as (http, _):
        assert await get(http, "http://a.test/yes") == 200


@pytest.mark.anyio
async def test_a_cancelled_fetch_leaves_the_session_whole() -> None:
    async with crawler() as (http, sites):
        sites.latency = 10
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await get(http, "http://a.test/")
        sites.latency = 0
        assert await get(http, "http://a.test/") == 200
        assert nothing_is_held(http.throttle.engine)


# -------------------------------------------------------------------- delays


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("lines", "delay", "gap"),
    [
        (["Crawl-delay: 0.2"], 5, 5),
        (["Crawl-delay: 10"], 1, 10),
        (["Request-rate: 1/10", "Crawl-delay: 1"], 1, 10),
        (["Crawl-delay: nan"], 2, 2),
        ([], 3, 3),
    ],
)
async def test_the_delay_that_holds_is_the_slowest(
    lines: list[str], delay: float, gap: float
) -> None:
    async with crawler({"a.test/robots.txt": robots(*lines)}, delay=delay) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(4)])
        assert sites.instants() == [gap, 2 * gap, 3 * gap, 4 * gap]


@pytest.mark.anyio
async def test_jitter_only_adds() -> None:
    pages = {"a.test/robots.txt": robots("Crawl-delay: 4")}
    async with crawler(pages, jitter=0.5) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(12)])
        gaps = [later - earlier for earlier, later in pairwise(sites.instants())]
        assert all(4 <= gap <= 6 for gap in gaps)
        assert len(set(gaps)) == len(gaps)


@pytest.mark.anyio
async def test_the_hours_of_a_request_rate_are_looked_at_after_the_wait() -> None:
    pages = {"a.test/robots.txt": robots("Request-rate: 1/100 0100-0159")}
    async with crawler(pages, delay=20, adaptive=False) as (http, sites):
        guard = http.throttle.engine.guard
        assert guard is not None
        guard._wall = lambda: 3570 + clock.now()  # type: ignore[attr-defined]
        await get_all(http, *[f"http://a.test/{number}" for number in range(4)])
        # At 40 it would have been its turn, but 01:00 had struck at 30.
        assert sites.instants() == [20, 140, 240, 340]


@pytest.mark.anyio
async def test_one_request_in_flight_for_each_host() -> None:
    async with crawler(delay=1) as (http, sites):
        sites.latency = 3
        await get_all(http, *[f"http://{host}.test/{n}" for host in "ab" for n in range(3)])
        assert sites.most_flying == 1
        for host in ("a.test", "b.test"):
            gaps = [later - earlier for earlier, later in pairwise(sites.instants(host=host))]
            assert min(gaps) >= 3


@pytest.mark.anyio
async def test_a_host_is_a_name_whatever_the_scheme_and_port() -> None:
    async with crawler(robots=False) as (http, sites):
        await get_all(http, "http://a.test/", "http://A.test:81/", "http://b.test/")
        assert sites.instants(host="b.test") == [0]
        assert sorted(set(sites.instants())) == [0, 1]


@pytest.mark.anyio
async def test_limits_replace_the_delay_but_not_what_the_site_asks() -> None:
    pages = {"slow.test/robots.txt": robots("Crawl-delay: 7")}
    limits = {"quick.test": "10/s", "slow.test": "10/s", "own.test": TokenBucket(1, 1, slack=0)}
    async with crawler(pages, limits=limits, delay=30, concurrency=None) as (http, sites):
        await get_all(http, *(f"http://{name}.test/" for name in ("quick", "slow", "own") * 2))
        assert sites.instants(host="quick.test") == [0, 0]
        assert sites.instants(host="slow.test") == [7, 14]
        assert sites.instants(host="own.test") == [1, 2]


@pytest.mark.anyio
async def test_a_rate_stands_in_place_of_the_delay() -> None:
    async with crawler(rate="2/10s", concurrency=None) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(4)])
        assert sites.instants() == [0, 10, 10, 20]


@pytest.mark.anyio
async def test_presets_serve_as_limits() -> None:
    async with crawler(limits=presets("nominatim"), robots=False) as (http, sites):
        await get_all(http, *["http://nominatim.openstreetmap.org/search"] * 3)
        assert sites.instants() == [0, 1, 2]


@pytest.mark.anyio
async def test_a_refusal_slows_the_host_down_and_the_others_not() -> None:
    async def busy_once(request: web.Request) -> web.Response:
        sites.pages.pop("a.test/0")
        return web.Response(status=429, headers={"retry-after": "5"})

    async with crawler({"a.test/0": busy_once}, robots=False) as (http, sites):
        await get(http, "http://a.test/0")
        await get_all(http, "http://a.test/1", "http://b.test/1", "http://b.test/2")
        first, again, after = sites.instants(host="a.test")
        assert again - first >= 5
        assert after - again >= 1
        assert sites.instants(host="b.test")[1] - sites.instants(host="b.test")[0] == 1


@pytest.mark.anyio
async def test_a_long_wish_is_honoured_and_worth_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages = {"a.test/robots.txt": robots("Crawl-delay: 600")}
    async with crawler(pages) as (http, sites):
        with caplog.at_level(logging.WARNING, "throttle"):
            await get_all(http, "http://a.test/1", "http://a.test/2")
        assert sites.instants() == [600, 1200]
    assert [record.getMessage() for record in caplog.records] == [
        "http://a.test asks for 600 s between requests"
    ]


@pytest.mark.anyio
async def test_waiting_counts_against_no_timeout() -> None:
    pages = {"a.test/robots.txt": robots("Crawl-delay: 90")}
    timeout = aiohttp.ClientTimeout(total=10)
    async with crawler(pages, timeout=timeout) as (http, sites):
        await get_all(http, "http://a.test/1", "http://a.test/2")
        assert sites.instants() == [90, 180]


@pytest.mark.anyio
async def test_a_base_url_and_other_settings_of_a_session_hold() -> None:
    async with crawler(
        base_url="http://a.test/deep/", headers={"x-own": "1"}, raise_for_status=True
    ) as (http, sites):
        assert await get(http, "page") == 200
        assert [one.path for one in sites.visits] == ["/robots.txt", "/deep/page"]


@pytest.mark.anyio
async def test_a_host_is_not_forgotten_before_its_delay_is_over() -> None:
    """Even if all that was ever sent to it was the question for its rules."""
    rules = robots("Crawl-delay: 10", "Disallow: /no")
    async with crawler({"a.test/robots.txt": rules}) as (http, sites):
        with pytest.raises(RobotsDisallowed):
            await get(http, "http://a.test/no")
        await asyncio.sleep(2)
        await get_all(http, *[f"http://h{number}.test/" for number in range(5)])
        await get(http, "http://a.test/yes")
        assert sites.instants(host="a.test") == [10]


@pytest.mark.anyio
async def test_a_million_hosts_would_not_fill_the_memory() -> None:
    """Hosts that were visited are forgotten at the rate at which new ones come."""
    async with crawler(max_sites=50) as (http, _):
        for number in range(400):
            await get(http, f"http://h{number}.test/")
        guard: Any = http.throttle.engine.guard
        assert len(guard._robots) == 50
        assert len(http.throttle.engine.routes) < 20


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_the_promises_hold(seed: int) -> None:
    """Refusals, errors, broken connections, redirects, cancelled callers, rules that grow old."""
    dice = random.Random(seed)

    async def moody(request: web.Request) -> web.Response:
        mood = dice.random()
        if mood < 0.1 and request.transport is not None:
            request.transport.abort()
        if mood < 0.3:
            wait = str(dice.randrange(20))
            return web.Response(status=429 if mood < 0.2 else 503, headers={"retry-after": wait})
        if mood < 0.4 and request.path != "/robots.txt":
            host = dice.choice("abc")
            return web.Response(status=302, headers={"location": f"http://{host}.test/x"})
        return web.Response(status=404 if mood < 0.5 else 200)

    pages: dict[str, Any] = {f"{host}.test/{path}": moody for host in "abc" for path in "xyz"}
    pages["b.test/robots.txt"] = robots("Crawl-delay: 3", "Disallow: /y")
    pages["c.test/robots.txt"] = moody
    forbidden = 0

    async def visit(number: int) -> None:
        nonlocal forbidden
        url = f"http://{dice.choice('abc')}.test/{dice.choice('xyz')}"
        patience = dice.choice([5, 50, None])
        await asyncio.sleep(dice.random() * 100)
        try:
            async with asyncio.timeout(patience), http.get(url) as response:
                await asyncio.sleep(dice.random())
                await response.read()
        except RobotsDisallowed:
            forbidden += 1
        except (TimeoutError, aiohttp.ClientError):
            pass

    retry = Retry(attempts=3, budget=None)
    async with crawler(pages, jitter=0.5, robots_max_age=60, retry=retry) as (http, sites):
        sites.latency = 0.3
        await asyncio.gather(*(visit(number) for number in range(120)))
        assert nothing_is_held(http.throttle.engine)
    assert sites.most_flying == 1
    assert forbidden
    for host, delay in (("a.test", 1), ("b.test", 3), ("c.test", 1)):
        visits = [one.instant for one in sites.visits if one.host == host]
        assert all(later - earlier >= delay for earlier, later in pairwise(visits))
        assert len([name for name, _ in sites.fetches if name == host]) >= 2
    assert "/y" not in {one.path for one in sites.visits if one.host == "b.test"}


# -------------------------------------------------------------------- arguments


@pytest.mark.anyio
@pytest.mark.parametrize(
    "agent",
    ["examplebot", "examplebot/1.0", "bot (see us)", "", "a@b", "ftp://example.org", "x http://"],
)
async def test_a_user_agent_must_name_a_contact(agent: str) -> None:
    with pytest.raises(ValueError, match="user_agent must name a contact") as caught:
        PoliteSession(user_agent=agent)
    assert repr(agent) in str(caught.value)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "agent",
    [
        "examplebot/1.0 (bot@example.org)",
        "examplebot (+https://example.org/bot)",
        "Mozilla/5.0 (compatible; examplebot/1.0; mailto:bot@example.org)",
    ],
)
async def test_user_agents_that_name_one(agent: str) -> None:
    async with crawler(user_agent=agent) as (http, sites):
        await get(http, "http://a.test/")
        assert sites.agents == {agent}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"user_agent": 3}, TypeError, "user_agent must be a text, not 3"),
        ({"user_agent": "a\r\nb a@b.org"}, ValueError, "user_agent must be printable"),
        ({"user_agent": "(a@b.org)"}, ValueError, "product"),
        ({"headers": {"user-agent": "x"}}, ValueError, "headers must not name a User-Agent"),
        ({"delay": -1}, ValueError, "delay must be at least 0, not -1"),
        ({"jitter": "x"}, TypeError, "jitter must be a number, not 'x'"),
        ({"max_delay": 0}, ValueError, "max_delay must be above 0"),
        ({"per": "site"}, ValueError, "per must be one of"),
        ({"resolve": print}, ValueError, "resolve=.* is only for per='address'"),
        ({"rate": "fast"}, ValueError, "rate must look like"),
        ({"limits": {"a.test": "fast"}}, ValueError, "limits.*must look like"),
        ({"limits": ["a.test"]}, TypeError, "limits must be a mapping"),
        ({"robots_max_age": 100_000}, ValueError, "max_age must be at most a day"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"limiter": TokenBucket(1)}, TypeError, "limiter"),
    ],
)
async def test_wrong_arguments_are_named(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        PoliteSession(**{"user_agent": AGENT, **options})


@pytest.mark.anyio
async def test_a_limit_shared_with_other_processes_is_asked_besides_the_pace() -> None:
    class Elsewhere:
        def __init__(self) -> None:
            self.asked = 0
            self.paused = 0.0

        async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
            self.asked += 1
            await asyncio.sleep(0.25)
            return 0.25

        async def pause(self, seconds: float) -> None:
            self.paused = seconds

    shared = Elsewhere()
    pages = {"a.test/robots.txt": robots("Crawl-delay: 2")}
    async with crawler(pages, limits={"a.test": shared}) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(3)])
        instants = sites.instants()
        assert [later - earlier for earlier, later in pairwise(instants)] == [2.0, 2.0]
        assert shared.asked == 4  # robots.txt too
        assert (http.delay("http://a.test/"), http.delay("http://b.test/")) == (2.0, 1.0)
        answers = [web.Response(status=429, headers={"Retry-After": "7"}), web.Response()]

        async def busy(request: web.Request) -> web.Response:
            return answers.pop(0)

        sites.pages["a.test/busy"] = busy
        assert await get(http, "http://a.test/busy") == 200
        assert shared.paused == 7


@pytest.mark.anyio
async def test_settings_for_some_calls() -> None:
    async with crawler({"a.test/busy": 503}) as (http, sites):
        once = http.using(retry=Retry(attempts=1))
        assert await get(once, "http://a.test/busy") == 503
        assert len(sites.instants()) == 1
        sites.pages["b.test/robots.txt"] = robots("Disallow: /")
        with pytest.raises(RobotsDisallowed):
            await get(once, "http://b.test/")
