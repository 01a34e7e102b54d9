"""Whatever a server sends: nothing is raised, and every number is finite and within its bounds."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle.http.delays import FORMS, read_delay, read_json
from throttle.http.dialects import DIALECTS
from throttle.http.httpdate import parse_date
from throttle.http.signals import Signal, read_signal

VECTORS = json.loads((Path(__file__).parent / "vectors" / "headers.json").read_text())["vectors"]
NAMES = sorted({name for vector in VECTORS for name in vector["headers"]} | {"Age", "Date"})
VALUES = sorted(
    {value for vector in VECTORS for value in vector["headers"].values() if isinstance(value, str)}
)
BODIES = [vector["body"] for vector in VECTORS if "body" in vector]
KEYS = sorted(
    {key for row in DIALECTS for path, _ in row.body_waits for key in path.split(".")}
    | {key for row in DIALECTS for sign in row.signs if sign.path for key in sign.path.split(".")}
    | {"extensions", "cost", "throttleStatus", "maximumAvailable", "currentlyAvailable"}
    | {"restoreRate", "requestedQueryCost"}
)

text = st.text(max_size=40) | st.from_regex(r"[0-9eE+.,;=\"wrtms /:-]{0,30}", fullmatch=True)


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """A value that was seen, with something wrong in it."""
    value = draw(st.sampled_from(VALUES))
    start = draw(st.integers(0, len(value)))
    return value[:start] + draw(text) + value[start + draw(st.integers(0, 3)) :]


values = st.sampled_from(VALUES) | spoilt() | text | st.binary(max_size=40)
names = st.sampled_from(NAMES) | st.text(max_size=12) | st.binary(max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | text
documents = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | text, inner, max_size=4)
    ),
    max_leaves=12,
)
bodies = st.sampled_from(BODIES) | documents | documents.map(json.dumps) | st.binary(max_size=60)
clocks = st.just(1_767_225_600.25) | st.floats()
statuses = st.sampled_from([200, 202, 301, 400, 403, 409, 413, 418, 429, 502, 503, 529])


def check(signal: Signal) -> None:
    for seconds in (signal.retry_after_s, signal.reset_after_s, signal.wait_s):
        assert seconds is None or 0 <= seconds <= 2**31
    for number in (signal.limit, signal.remaining, signal.window_s):
        assert number is None or (isfinite(number) and number >= 0)
    assert hash(signal) == hash(signal)
    assert repr(signal)


@settings(max_examples=400, deadline=None)
@given(statuses, st.lists(st.tuples(names, values), max_size=8), st.none() | bodies, clocks)
def test_nothing_a_server_sends_raises(
    status: int, headers: list[tuple[Any, Any]], body: Any, now: float
) -> None:
    check(read_signal(status, headers, body=body, now=now))


@settings(max_examples=300, deadline=None)
@given(values.filter(lambda value: isinstance(value, str)), clocks, st.sampled_from(sorted(FORMS)))
def test_no_text_is_a_delay_out_of_bounds(value: str, now: float, form: Any) -> None:
    if abs(now) <= 2.5e11:
        for delay in (read_delay(value, now, form), read_json(value, now, form)):
            assert delay is None or 0 <= delay.seconds <= 2**31
    parse_date(value, now)


# Values built to make a careless pattern or loop take for ever; each is over in no time.
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([("Retry-After", "Thu, 01 Jan 2026" + " " * 8000)], None),
        ([("Retry-After", "," * 8000)], None),
        ([("Retry-After", "mon," * 2000)], None),
        ([("X-RateLimit-Remaining", "," * 8000), ("X-RateLimit-Reset", "5")], None),
        ([("X-RateLimit-Limit", ";w" * 4000)], None),
        ([("X-RateLimit-Reset", "1s" * 4000)], None),
        ([("Sforce-Limit-Info", "a" * 8000)], None),
        ([("Zendesk-RateLimit-x", "a" * 8000)], None),
        ([("X-RateLimit", "[" * 8000)], None),
        ([("RateLimit", '"a";r=0,' * 1000)], None),
        ([(f"X-RateLimit-Reset-{number}", "5") for number in range(1000)], None),
        ([("Age", "1")] * 1000, None),
        ([], "<a>" + " " * 60_000),
        ([], "<a>" * 20_000),
        ([], "[" * 60_000),
        ([], '{"a":' * 10_000),
        ([], "9" * 60_000),
        ([], "[" + "9" * 60_000 + "]"),
        ([], {"error": [["x"] * 1000] * 1000}),
    ],
)
def test_hostile_values_are_cheap(headers: list[tuple[str, str]], body: Any) -> None:
    check(read_signal(429, headers, body=body, now=1_767_225_600.0))
