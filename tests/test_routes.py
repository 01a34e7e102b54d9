"""Which limiter a URL falls under, and which origins are kept."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from yarl import URL

from throttle import SlidingWindowLog, TokenBucket
from throttle.http.routes import Routes
from throttle.http.signals import Signal
from throttle.testing import virtual_time


def origin(routes: Routes, url: str, method: str = "GET") -> Any:
    return routes.origin(URL(url), method)


SAME = [
    ("http://example.com/a", "http://example.com/b?x=1#y"),
    ("http://example.com/", "http://EXAMPLE.com/"),
    ("http://example.com/", "http://example.com./"),
    ("http://example.com/", "http://example.com:80/"),
    ("https://example.com/", "https://example.com:443/"),
    ("https://bücher.example/", "https://xn--bcher-kva.example/"),
    ("https://BÜCHER.example/", "https://bücher.example/"),
    ("http://[::1]/", "http://[0:0:0:0:0:0:0:1]:80/"),
    ("http://user:password@example.com/", "http://example.com/"),
    ("ws://example.com/", "http://example.com/"),
    ("wss://example.com/", "https://example.com/"),
]
OTHER = [
    ("http://example.com/", "https://example.com/"),
    ("http://example.com/", "http://example.com:8080/"),
    ("http://example.com/", "http://www.example.com/"),
    ("http://[::1]/", "http://[::2]/"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same_server_is_one_origin_however_it_is_written(a: str, b: str) -> None:
    for limits in (None, {"elsewhere": 1}):
        routes = Routes("1/s", limits=limits)
        assert origin(routes, a) is origin(routes, b)
        assert len(routes) == 1


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_another_server_is_another_origin(a: str, b: str) -> None:
    routes = Routes("1/s")
    assert origin(routes, a) is not origin(routes, b)
    assert origin(routes, a).limiter is not origin(routes, b).limiter


def test_the_name_of_an_origin_is_how_one_would_write_it() -> None:
    routes = Routes()
    names = {
        "https://Example.com:443/x": "https://example.com",
        "http://example.com:8080/": "http://example.com:8080",
        "http://[::1]:8080/": "http://[::1]:8080",
        "ws://example.com/": "http://example.com",
        "https://bücher.example/": "https://xn--bcher-kva.example",
    }
    assert {url: origin(routes, url).name for url in names} == names


LIMITS: dict[str, Any] = {
    "example.com": 1,
    "example.com:8080": 2,
    "example.com/api": 3,
    "example.com/api/v2/": 4,
    "example.com:8080/api": 5,
    "https://secure.example": 6,
    "BÜCHER.example.": 7,
    "[::1]": 8,
}
CHOSEN = {
    "http://example.com/": 1,
    "https://example.com:9999/x": 1,
    "http://example.com:8080/x": 2,
    "http://example.com/api": 3,
    "http://example.com/api/x": 3,
    "http://example.com/apix": 1,
    "http://example.com/API": 1,
    "http://example.com/x/../api/y": 3,
    "http://example.com/%61pi": 3,
    "http://example.com/api/v2": 4,
    "http://example.com/api/v2/x?y": 4,
    "http://example.com/api/v22": 3,
    "http://example.com:8080/api/v2": 4,
    "http://example.com:8080/api/x": 5,
    "https://secure.example/": 6,
    "http://secure.example/": 100,
    "http://xn--bcher-kva.example/": 7,
    "http://[0::1]:5/": 8,
    "http://www.example.com/": 100,
}


@pytest.mark.parametrize("url", CHOSEN)
def test_the_longest_prefix_wins_and_a_bare_host_is_every_port(url: str) -> None:
    routes = Routes(100, limits=LIMITS)
    assert origin(routes, url).limiter.rate == CHOSEN[url]


def test_an_entry_is_one_limiter_and_a_rate_is_one_for_each_origin() -> None:
    routes = Routes(100, limits={"example.com": 1})
    ports = [origin(routes, f"http://example.com:{port}/") for port in (1, 2)]
    assert ports[0] is not ports[1]
    assert ports[0].limiter is ports[1].limiter
    others = [origin(routes, f"http://other.example:{port}/") for port in (1, 2)]
    assert others[0].limiter is not others[1].limiter


def test_a_key_groups_otherwise() -> None:
    def key(url: URL, method: str) -> Any:
        return method, url.query.get("tenant")

    routes = Routes(1, key=key)
    a = origin(routes, "http://a.example/?tenant=x")
    assert origin(routes, "http://b.example/?tenant=x") is a
    assert origin(routes, "http://a.example/?tenant=y") is not a
    assert origin(routes, "http://a.example/?tenant=x", "POST") is not a
    assert a.name == "('GET', 'x')"


def test_a_limiter_is_shared_and_a_function_makes_one_for_each() -> None:
    one = TokenBucket(5)
    routes = Routes(one)
    assert origin(routes, "http://a.example/").limiter is one
    assert origin(routes, "http://b.example/").limiter is one
    made: list[str] = []

    def make(name: str) -> TokenBucket:
        made.append(name)
        return TokenBucket(len(made))

    routes = Routes(make, limits={"c.example": make})
    limiters = [origin(routes, "http://a.example/").limiter]
    limiters[0].charge(1)  # else it would be forgotten: nothing would be lost
    limiters += [origin(routes, f"http://{name}.example/").limiter for name in "bca"]
    assert [limiter.rate for limiter in limiters] == [1, 2, 3, 1]
    assert made == ["http://a.example", "http://b.example", "http://c.example"]


@pytest.mark.parametrize("rates", [["10/s", "100/min"], iter(["10/s", "100/min"])])
def test_several_rates_hold_for_each_origin_also_from_an_iterator(rates: Any) -> None:
    routes = Routes(rates)
    for name in "ab":
        limiter = origin(routes, f"http://{name}.example/").limiter
        assert [member.rate for member in limiter.members] == [10, pytest.approx(100 / 60)]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rate": "soon"}, "rate="),
    ({"rate": 0}, "rate="),
    ({"rate": -1}, "rate="),
    ({"rate": []}, "rate="),
    ({"rate": 5, "burst": 0}, "rate="),
    ({"burst": 5}, "burst=5"),
    ({"rate": TokenBucket(1), "burst": 5}, "burst=5"),
    ({"total": "soon"}, "total="),
    ({"limits": {"a.example": None}}, r"limits\['a.example'\]"),
    ({"limits": {"a.example": "soon"}}, r"limits\['a.example'\]"),
    ({"limits": ["a.example"]}, "limits must be a mapping"),
    ({"limits": {"": 1}}, "limits must be keyed by host"),
    ({"limits": {"/path": 1}}, "names no host"),
    ({"limits": {5: 1}}, "limits must be keyed by host"),
    ({"limits": {"a:b:c": 1}}, "names no host"),
    ({"concurrency": 0}, "concurrency"),
    ({"concurrency": 1.5}, "concurrency"),
    ({"settle": -1}, "settle"),
    ({"settle": "x"}, "settle"),
]


@pytest.mark.parametrize(("options", "named"), WRONG)
def test_a_wrong_setting_is_refused_at_once_and_named(options: Any, named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        Routes(**options)


@pytest.mark.parametrize("made", [None, 5, TokenBucket])
def test_a_function_that_makes_no_limiter_is_named_with_what_it_made(made: Any) -> None:
    with pytest.raises(TypeError, match=r"the factory must make a limiter for http://a\.example"):
        origin(Routes(lambda name: made), "http://a.example/")


# -------------------------------------------------------------------- which are kept


def test_memory_is_bounded_by_the_origins_in_use() -> None:
    with virtual_time() as time:
        routes = Routes("10/s", concurrency=2)
        most = 0
        for number in range(100_000):
            one = origin(routes, f"http://h{number}.example/")
            assert one.limiter.allow()
            time.advance(0.01)
            most = max(most, len(routes))
        assert most < 500


def test_an_origin_is_kept_as_long_as_anything_would_be_lost() -> None:
    refused = Signal(throttled=True, wait_s=50.0)

    def lease(one: Any) -> None:
        assert one.slots.allow()

    def wait(one: Any) -> None:
        one.waiting += 1

    def send(one: Any) -> None:
        assert one.enter()

    reasons = {
        "debt": lambda one: one.limiter.charge(1),
        "slot": lease,
        "waiting": wait,
        "in flight": send,
        "pause": lambda one: run(one.learn(refused, 1.0)),
        "remainder": lambda one: run(one.learn(Signal(remaining=5, reset_after_s=50.0))),
    }
    for why, use in reasons.items():
        with virtual_time():
            routes = Routes("1/min", concurrency=2)
            kept = origin(routes, "http://kept.example/")
            use(kept)
            for number in range(50):
                origin(routes, f"http://h{number}.example/")
            assert origin(routes, "http://kept.example/") is kept, why
            assert len(routes) < 10, why


def run(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_what_is_made_during_a_pause_is_paused_too() -> None:
    with virtual_time() as time:
        routes = Routes(limits={"a.example/x": 5})
        run(origin(routes, "http://a.example/").learn(Signal(throttled=True, wait_s=9.0), 1.0))
        assert origin(routes, "http://a.example/x").held_until == 9
        assert origin(routes, "http://b.example/").held_until == -inf
        time.advance(10)
        assert origin(routes, "https://a.example/").held_until == -inf


def test_siblings_are_those_of_the_same_server() -> None:
    routes = Routes(limits={"a.example/x": 5, "a.example/y": 5, "b.example": 5})
    all_of_a = set()
    for path in ("", "x", "y"):
        one = origin(routes, f"http://a.example/{path}")
        assert one.enter()
        all_of_a.add(one)
    origin(routes, "http://b.example/")
    origin(routes, "https://a.example/x")
    assert set(routes.siblings(URL("http://a.example/y/z"), "GET")) == all_of_a


def test_a_rate_without_burst_is_exact() -> None:
    assert isinstance(origin(Routes("5/s"), "http://a.example/").limiter, SlidingWindowLog)
    assert isinstance(origin(Routes("5/s", burst=2), "http://a.example/").limiter, TokenBucket)
