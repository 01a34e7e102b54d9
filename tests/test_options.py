"""A wrong setting of a client is refused where it is made, by an error that names it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import pytest
from yarl import URL

from throttle import Concurrency, Keyed, PoliteSession, ThrottledSession, TokenBucket
from throttle.http.dialects import Dialect
from throttle.http.middleware import ThrottleMiddleware
from throttle.http.options import Options, new_engine
from throttle.http.signals import Overrides, read_signal
from throttle.http.transport import ThrottledTransport

CLIENTS: dict[str, Callable[..., Any]] = {
    "session": ThrottledSession,
    "middleware": ThrottleMiddleware,
    "transport": ThrottledTransport,
    "polite": partial(PoliteSession, user_agent="bot (bot@example.org)"),
}
#: Settings, and what the error must name.
WRONG: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"signals": 4}, TypeError, ["signals", "4"]),
    ({"signals": "host"}, TypeError, ["signals", "'host'"]),
    ({"signals": [("host", {})]}, TypeError, ["signals", "host"]),
    ({"signals": {3: {}}}, TypeError, ["signals", "3"]),
    ({"signals": {"": {}}}, ValueError, ["signals", "''"]),
    ({"signals": {"a.example:8080": {}}}, ValueError, ["signals", "'a.example:8080'"]),
    ({"signals": {"http://a.example": {}}}, ValueError, ["signals", "'http://a.example'"]),
    ({"signals": {"a.example": 3}}, TypeError, ["signals['a.example']", "3"]),
    ({"signals": {"a.example": None}}, TypeError, ["signals['a.example']", "None"]),
    ({"signals": {"ok": {}, "a": {"reset": "foo"}}}, ValueError, ["signals['a']['reset']", "foo"]),
    ({"signals": {"a": {"reset": None}}}, ValueError, ["signals['a']['reset']", "None"]),
    ({"signals": {"a": {"reset": []}}}, ValueError, ["signals['a']['reset']", "[]"]),
    ({"signals": {"a": {"rest": "auto"}}}, ValueError, ["signals['a']", "'rest'"]),
    ({"signals": {"a": {"dialects": 3}}}, TypeError, ["signals['a']['dialects']", "3"]),
    ({"signals": {"a": {"dialects": ["x"]}}}, TypeError, ["signals['a']['dialects']", "x"]),
    ({"signals": {"a": {"dialects": "x"}}}, TypeError, ["signals['a']['dialects']", "x"]),
    ({"key": "x"}, TypeError, ["key", "'x'"]),
    ({"on_retry": 3}, TypeError, ["on_retry", "3"]),
    ({"on_wait": "x"}, TypeError, ["on_wait", "'x'"]),
    ({"on_signal": []}, TypeError, ["on_signal", "[]"]),
    ({"retry": 3}, TypeError, ["retry", "3"]),
    ({"limits": 3}, TypeError, ["limits", "3"]),
    ({"limits": {"a": "soon"}}, ValueError, ["limits['a']", "soon"]),
    ({"limits": {"a": Concurrency(2)}}, TypeError, ["limits['a']", "Concurrency(2"]),
    ({"limits": {"a": asyncio.Semaphore()}}, TypeError, ["limits['a']", "Semaphore"]),
    ({"total": "soon"}, ValueError, ["total", "soon"]),
    ({"total": Keyed(lambda: TokenBucket(1))}, TypeError, ["total", "Keyed"]),
    ({"rate": "soon"}, ValueError, ["rate", "soon"]),
    ({"rate": Concurrency(2)}, TypeError, ["rate", "Concurrency(2"]),
    ({"rate": 5, "burst": 0}, ValueError, ["rate", "burst"]),
    ({"concurrency": 0}, ValueError, ["concurrency", "0"]),
    ({"settle": -1}, ValueError, ["settle", "-1"]),
]
LIMITERS: list[Any] = [3, "10/s", ["1/s"], Concurrency(2), Keyed(lambda: TokenBucket(1))]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("options", "kind", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_refused_at_once_and_named(
    client: str, options: dict[str, Any], kind: type[Exception], named: list[str]
) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        CLIENTS[client](**options)
    assert error.type is kind
    assert all(name in str(error.value) for name in named), str(error.value)


@pytest.mark.parametrize("client", ["session", "middleware", "transport"])
@pytest.mark.parametrize("limiter", LIMITERS, ids=str)
def test_a_limiter_that_is_none_is_refused(client: str, limiter: Any) -> None:
    with pytest.raises(TypeError, match="limiter must be a limiter"):
        CLIENTS[client](limiter=limiter)


def test_every_setting_has_a_wrong_value_above() -> None:
    named = {name for options, *_ in WRONG for name in options} | {"limiter"}
    assert {*get_type_hints(Options), "rate"} <= named
    assert set(inspect.signature(new_engine).parameters) <= named


@pytest.mark.parametrize(
    "signals",
    [
        None,
        {},
        lambda url: None,
        {"A.example": {"reset": "ms-delta"}},
        {"a.example": {"dialects": [Dialect(name="mine", limit="x-mine")], "reset": "auto"}},
        {"::1": {"dialects": ()}},
    ],
    ids=str,
)
def test_good_settings_for_signals_are_taken(signals: Any) -> None:
    assert ThrottleMiddleware(signals=signals).engine is not None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("api.example.com", "https://API.example.com./v1"),
        ("api.example.com.", "https://api.example.com/"),
        ("Bücher.example", "https://xn--bcher-kva.example:8080/"),
        ("xn--bcher-kva.example", "https://bücher.example/"),
        ("[::1]", "http://[0:0:0:0:0:0:0:1]:8080/"),
        ("::1", "http://[::1]/"),
    ],
)
def test_settings_for_signals_are_found_however_the_host_is_spelled(host: str, url: str) -> None:
    mine: Overrides = {"reset": "ms-delta"}
    find = new_engine(signals={host: mine, "other.example": {}}).signals
    assert find is not None
    assert find(URL(url)) is mine
    assert find(URL("https://example.com/")) is None


@pytest.mark.parametrize("overrides", [{"rest": 1}, {"reset": "foo"}, {"dialects": [1]}, 3])
def test_what_a_function_answers_is_checked_when_it_is_used(overrides: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="overrides"):
        read_signal(200, {}, now=0.0, overrides=overrides)
