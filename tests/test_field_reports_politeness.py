"""Faults of other crawlers, by the id of the report, and what is right instead."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from helpers.websites import crawler, get, get_all

from throttle import clock
from throttle.http.addresses import Addresses
from throttle.http.pace import Pace
from throttle.http.retry import Retry
from throttle.testing.on_asyncio import VirtualLoop


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}  # aiohttp knows no other


@pytest.mark.anyio
@pytest.mark.parametrize(("configured", "asked", "right"), [(5, "0.2", 5), (1, "10", 10)])
async def test_b085_a_crawl_delay_never_speeds_up(
    configured: float, asked: str, right: float
) -> None:
    pages = {"a.test/robots.txt": f"User-agent: *\nCrawl-delay: {asked}"}
    async with crawler(pages, delay=configured) as (http, sites):
        await get_all(http, *[f"http://a.test/{number}" for number in range(4)])
        gaps = [later - earlier for earlier, later in pairwise(sites.instants())]
    assert gaps == [right] * 3


def test_b086_quick_refusals_do_not_speed_up() -> None:
    pace, now, delays = Pace(2.762, most=60), 0.0, []
    for _ in range(10):
        pace.answered(503, 0.080, True, now)
        delays.append(pace.delay)
        now += pace.delay
    assert delays[0] == 2 * 2.762
    assert delays == sorted(delays)
    assert delays[-1] == 60


@pytest.mark.parametrize("status", [301, 404, 500, 502])
def test_b086_quick_errors_of_any_kind_do_not_speed_up(status: int) -> None:
    pace = Pace(1, most=60)
    pace.answered(200, 2.762, False, now=0)
    for number in range(10):
        pace.answered(status, 0.080, False, now=number)
    assert pace.delay == 2.762


@pytest.mark.anyio
async def test_b086_in_a_session() -> None:
    once = Retry(attempts=1)
    async with crawler(delay=2.762, robots=False, retry=once) as (http, sites):
        sites.latency = 0.080
        for number in range(10):
            sites.pages[f"a.test/{number}"] = 503
            assert await get(http, f"http://a.test/{number}") == 503
        gaps = [later - earlier for earlier, later in pairwise(sites.instants())]
    assert gaps[0] >= 2 * 2.762
    assert all(later >= earlier - 0.2 for earlier, later in pairwise(gaps))


@pytest.mark.anyio
async def test_b087_a_refusal_pauses_its_site_and_no_other() -> None:
    async def busy(request: web.Request) -> web.Response:
        if clock.now() < 30:
            return web.Response(status=429, headers={"retry-after": "30"})
        return web.Response()

    pages = {f"a.test/{number}": busy for number in range(10)}
    urls = [f"http://{host}.test/{number}" for number in range(10) for host in "ab"]
    async with crawler(pages, robots=False, adaptive=False) as (http, sites):
        await get_all(http, *urls)  # with somebody spinning, virtual time would not move
        of_a, of_b = sites.instants(host="a.test"), sites.instants(host="b.test")
    assert of_a[0] == 0
    assert of_a[1] >= 30
    assert len(of_a) == 11
    assert of_b == list(range(10))
    assert all(later - earlier >= 1 for earlier, later in pairwise(of_a))


@pytest.mark.anyio
@pytest.mark.parametrize("lookups", [(0.0, 0.0), (0.3, 0.7), (5.0, 0.1)])
async def test_b088_two_names_on_one_address_share_their_pace_from_the_first_request(
    lookups: tuple[float, float],
) -> None:
    seconds = dict(zip(["a.test", "b.test"], lookups, strict=True))

    async def cold(host: str) -> list[str]:
        await asyncio.sleep(seconds.pop(host, 0))
        return ["192.0.2.7"]

    async with crawler(per="address", resolve=cold, delay=1, robots=False) as (http, sites):
        await get_all(http, *[f"http://{host}.test/{n}" for n in range(3) for host in "ab"])
        instants = sites.instants()
    assert len(instants) == 6
    assert all(later - earlier >= 1 for earlier, later in pairwise(instants))


@pytest.mark.anyio
async def test_b088_names_on_one_address_keep_their_own_rules() -> None:
    async def one(host: str) -> list[str]:
        return ["192.0.2.7"]

    pages = {"a.test/robots.txt": "User-agent: *\nCrawl-delay: 5"}
    async with crawler(pages, per="address", resolve=one, delay=1) as (http, sites):
        await get_all(http, *[f"http://{host}.test/{n}" for n in range(3) for host in "ab"])
        assert len(sites.fetches) == 2
        of_a, visits = sites.instants(host="a.test"), [one.instant for one in sites.visits]
    assert all(later - earlier >= 5 for earlier, later in pairwise(of_a))
    assert all(later - earlier >= 1 for earlier, later in pairwise(visits))


@pytest.mark.anyio
async def test_b088_a_key_never_changes_once_it_was_used() -> None:
    answers = [["192.0.2.9", "192.0.2.7"], ["192.0.2.8"]]

    async def round_robin(host: str) -> list[str]:
        answer = answers.pop(0)
        await asyncio.sleep(len(answers))
        return answer

    addresses = Addresses(round_robin)
    await asyncio.gather(addresses.learn("a.test"), addresses.learn("a.test"))
    first = addresses.of("a.test")
    await addresses.learn("a.test")
    assert addresses.of("a.test") == first


@pytest.mark.anyio
async def test_b088_a_name_without_an_address_is_its_own_key() -> None:
    async def nowhere(host: str) -> list[str]:
        if host == "empty.test":
            return []
        raise OSError(host)

    addresses = Addresses(nowhere)
    for host in ("empty.test", "gone.test"):
        await addresses.learn(host)
        assert addresses.of(host) == host


@pytest.mark.anyio
async def test_b088_the_systems_resolver_is_the_default() -> None:
    addresses = Addresses()
    await addresses.learn("127.0.0.1")
    assert addresses.of("127.0.0.1") == "127.0.0.1"
