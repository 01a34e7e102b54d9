"""What a response says about limits: the vectors, the rules behind them, and the table.

tests/vectors/headers.json holds responses of real vendors and of specifications, with what must be
read in them; "accept_also" there names readings that are as good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from throttle.http.delays import read_delay
from throttle.http.dialects import DIALECTS, Dialect, Index, Sign
from throttle.http.httpdate import parse_date
from throttle.http.signals import Overrides, Signal, read_signal

NOW = 1_767_225_600.0  # Thu, 01 Jan 2026 00:00:00 GMT
VECTORS = json.loads((Path(__file__).parent / "vectors" / "headers.json").read_text())["vectors"]
FIELDS = (
    *("retry_after_s", "limit", "remaining", "reset_after_s", "window_s", "scope"),
    *("throttled", "wait_s", "should_retry"),
)
# Where we read one of the other accepted ways, and why.
OTHERWISE = {
    "trip-zendesk": "the endpoint has the smaller share left, so by D11 it binds",
    "stripe-lock-timeout": "an object lock is no limit: the request is retried, no host slowed",
}


def pairs(headers: Mapping[str, str | list[str]]) -> list[tuple[str, str]]:
    return [
        (name, one)
        for name, value in headers.items()
        for one in ([value] if isinstance(value, str) else value)
    ]


def read(vector: dict[str, Any]) -> Signal:
    overrides: Overrides = {}
    if "hint" in vector:
        overrides["reset"] = vector["hint"]["reset_unit"]
    return read_signal(
        vector["status"],
        pairs(vector["headers"]),
        body=vector.get("body"),
        now=vector["now"],
        overrides=overrides,
    )


def same(signal: Signal, expected: Mapping[str, Any]) -> bool:
    def agree(got: Any, want: Any) -> bool:
        if type(want) in (int, float) and type(got) in (int, float):
            return isclose(got, want, rel_tol=0, abs_tol=1e-6)
        return got is want if want is None or isinstance(want, bool) else bool(got == want)

    return all(agree(getattr(signal, field), expected.get(field)) for field in FIELDS)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_a_response_is_read_as_the_vectors_say(vector: dict[str, Any]) -> None:
    signal = read(vector)
    if vector["id"] in OTHERWISE:
        assert any(same(signal, vector["expect"] | other) for other in vector["accept_also"])
    else:
        assert same(signal, vector["expect"]), signal


def headers_of(**fields: str) -> list[tuple[str, str]]:
    return [(name.replace("_", "-"), value) for name, value in fields.items()]


def ask(status: int = 429, body: Any = None, now: float = NOW, **fields: str) -> Signal:
    return read_signal(status, headers_of(**fields), body=body, now=now)


# How headers may be handed in.


@pytest.mark.parametrize(
    "headers",
    [
        [("Retry-After", "5"), ("retry-after", "7")],
        [(b"Retry-After", b" 7\t")],
        (pair for pair in [("RETRY-AFTER", "7")]),
        {"Retry-After": "7"},
        CIMultiDict([("Retry-After", "5"), ("retry-after", "7")]),
        CIMultiDictProxy(CIMultiDict([("retry-after", "7"), ("Retry-After", "5")])),
    ],
    ids=["pairs", "bytes", "generator", "mapping", "multidict", "proxy"],
)
def test_headers_come_in_any_shape_and_keep_their_repeats(headers: Any) -> None:
    assert read_signal(429, headers, now=NOW).retry_after_s == 7


def test_a_signal_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ask().throttled = False  # type: ignore[misc]


def test_a_plain_answer_says_nothing_and_a_bare_refusal_only_that() -> None:
    assert ask(200, Date="Thu, 01 Jan 2026 00:00:00 GMT", Content_Type="text/html") == Signal()
    for status in (429, 503, 529):
        assert ask(status) == Signal(throttled=True, evidence="status")


# Rows of the table that the vectors do not show.


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        # 4.1
        (429, {"X_RateLimit_Retry_After": "9"}, {"retry_after_s": 9, "wait_s": 9}),
        (529, {"Retry_After": "4"}, {"retry_after_s": 4, "throttled": True}),
        (418, {"Retry_After": "120", "X_MBX_USED_WEIGHT_1M": "1201"}, {"scope": "ip"}),
        (418, {"X_MBX_ORDER_COUNT_10S": "51"}, {"throttled": True, "evidence": "binance"}),
        (429, {"Retry_After": "3", "X_MBX_USED_WEIGHT": "1"}, {"scope": "ip", "wait_s": 3}),
        (200, {"X_MBX_USED_WEIGHT_1M": "12"}, {"scope": None, "throttled": False}),
        # 4.2
        (429, {"x_ms_retry_after_ms": "2500"}, {"retry_after_s": 2.5}),
        (503, {"x_amz_retry_after": "1500"}, {"retry_after_s": 1.5}),
        (429, {"retry_after_ms": "500", "Retry_After": "30"}, {"retry_after_s": 30}),
        (
            429,
            {"X_HubSpot_RateLimit_Daily": "250000", "X_HubSpot_RateLimit_Daily_Remaining": "0"},
            {"limit": 250000, "remaining": 0, "window_s": 86400, "dialect": "hubspot-daily"},
        ),
        # 4.3
        (200, {"X_RateLimit_Requests_Reset": "1767225660000"}, {"reset_after_s": 60}),
        (429, {"X_RateLimit_Reset": "1767225660000000000"}, {"reset_after_s": 60}),
        (
            429,
            {"X_RateLimit_Global": "true", "X_RateLimit_Scope": "global", "Retry_After": "65"},
            {"scope": "global"},
        ),
        (
            429,
            {"X_RateLimit_Scope": "user", "X_RateLimit_Bucket": "ab", "X_RateLimit_Remaining": "0"},
            {"scope": "bucket:ab"},
        ),
        (
            200,
            {"X_Post_Rate_Limit_Limit": "1250", "X_Post_Rate_Limit_Remaining": "1249"},
            {"limit": 1250, "remaining": 1249, "scope": "unit:post", "unit": "requests"},
        ),
        (
            200,
            {"X_RateLimit_Complexity_Limit": "9", "X_RateLimit_Complexity_Remaining": "1"},
            {"limit": 9, "unit": "complexity", "scope": "unit:complexity"},
        ),
        # 4.4
        (
            200,
            {
                "x_sib_ratelimit_limit": "400",
                "x_sib_ratelimit_remaining": "0",
                "x_sib_ratelimit_reset": "25",
            },
            {"limit": 400, "remaining": 0, "wait_s": 25, "dialect": "brevo"},
        ),
        (
            200,
            {"ratelimit_limit": "100;w=21600", "ratelimit_remaining": "20;w=21600"},
            {"limit": 100, "remaining": 20, "window_s": 21600, "wait_s": None},
        ),
        (
            200,
            {"zendesk_ratelimit_search_index": "total=100; remaining=0; resets=41"},
            {"remaining": 0, "wait_s": 41, "scope": "policy:search-index"},
        ),
        # 4.5
        (
            429,
            {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "2m59.56s"},
            {"wait_s": 179.56},
        ),
        # 4.6
        (
            200,
            {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "Thu, 01 Jan 2026 00:01:00 GMT"},
            {"wait_s": 60, "pad_s": 1},
        ),
        (
            429,
            {"X_RateLimit_Remaining": "0", "X_RateLimit_Next": "2026-01-01T00:00:30.000Z"},
            {"wait_s": 30},
        ),
        # 4.7
        (
            200,
            {"Sforce_Limit_Info": "api-usage=18/5000; per-app-api-usage=250/250(appName=x)"},
            {"limit": 250, "remaining": 0, "policy": "per-app-api-usage"},
        ),
        (400, {"x_amzn_errortype": "ThrottlingException:http://x/"}, {"throttled": True}),
        (400, {"x_amzn_errortype": "ValidationException"}, {"throttled": False}),
        (429, {"Stripe_Rate_Limited_Reason": "global-rate"}, {"scope": "reason:global-rate"}),
        (429, {"x_should_retry": "FALSE"}, {"should_retry": False}),
        (409, {"Stripe_Should_Retry": "true"}, {"should_retry": True, "throttled": False}),
    ],
)
def test_a_row_of_the_table_is_read(
    status: int, fields: dict[str, str], expected: dict[str, Any]
) -> None:
    signal = read_signal(status, headers_of(**fields), now=NOW)
    assert {name: getattr(signal, name) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, {"error": {"code": "maxlag"}}, {"throttled": True}),
        (200, {"errors": [{"extensions": {"code": "THROTTLED"}}]}, {"throttled": True}),
        (400, {"errors": [{"extensions": {"code": "RATELIMITED"}}]}, {"throttled": True}),
        (403, [{"errorCode": "REQUEST_LIMIT_EXCEEDED"}], {"evidence": "salesforce"}),
        (403, {"error": {"errors": [{"reason": "forbidden"}]}}, {"throttled": False}),
        (
            403,
            {"error": {"errors": [{"reason": "dailyLimitExceeded"}]}},
            {"throttled": True, "should_retry": False},
        ),
        (400, "<Error><Code>ThrottlingException</Code></Error>", {"evidence": "aws"}),
        (400, b'{"code": "Throttling"}', {"evidence": "aws"}),
        (200, {"ok": False, "error": "ratelimited"}, {"evidence": "slack"}),
        (429, {"parameters": {"retry_after": 35}}, {"retry_after_s": 35}),
        (429, {"retry_after": 1.5, "global": True}, {"scope": "global", "wait_s": 1.5}),
        (403, {"global": True}, {"throttled": False, "scope": None}),
        (403, {"type": "https://x/http-problem-types#quota-exceeded"}, {"throttled": True}),
        (200, {"retry_after": 5}, {"retry_after_s": None, "throttled": False}),
        (429, {"retry_after": float("nan")}, {"retry_after_s": None}),
        (429, {"retry_after": float("inf")}, {"retry_after_s": None}),
        (429, {"retry_after": 10**400}, {"retry_after_s": 2**31}),
        (429, {"retry_after": -1}, {"retry_after_s": None}),
        (429, {"retry_after_ms": [2000]}, {"retry_after_s": 2}),
        (429, "[" * 50_000, {"throttled": True}),
        (429, '{"retry_after": 5}' + " " * 70_000, {"retry_after_s": None}),
    ],
)
def test_a_body_is_read(status: int, body: Any, expected: dict[str, Any]) -> None:
    signal = ask(status, body)
    assert {name: getattr(signal, name) for name in expected} == expected


def test_a_graphql_query_waits_until_its_own_cost_fits() -> None:
    status = {"maximumAvailable": 1000.0, "currentlyAvailable": 52.0, "restoreRate": 50.0}
    body = {
        "errors": [{"extensions": {"code": "THROTTLED"}}],
        "extensions": {"cost": {"requestedQueryCost": 252, "throttleStatus": status}},
    }
    signal = ask(200, body)
    assert (signal.wait_s, signal.remaining, signal.unit) == (4, 52, "cost")
    status["restoreRate"] = 0
    assert ask(200, body).wait_s is None


# Rules.


def test_a_delay_for_one_operation_is_not_one_for_the_host() -> None:
    for status in (202, 301, 413, 500, 502, 504):
        signal = ask(status, Retry_After="5")
        assert (signal.throttled, signal.scope, signal.wait_s) == (False, "request", 5)
    informational = ask(200, Retry_After="5")
    assert (informational.retry_after_s, informational.wait_s) == (5, None)


def test_a_forbidden_answer_needs_evidence() -> None:
    assert not ask(403).throttled
    assert not ask(403, X_RateLimit_Remaining="3").throttled
    assert ask(403, X_RateLimit_Remaining="0").throttled
    assert ask(403, Retry_After="60").throttled
    assert not ask(403, Retry_After="soon").throttled


def test_a_refusal_with_quota_left_was_another_limiters() -> None:
    signal = ask(429, X_RateLimit_Remaining="9", X_RateLimit_Reset="60")
    assert (signal.reset_after_s, signal.wait_s) == (60, None)


def test_an_answer_from_a_cache_tells_no_quota() -> None:
    quota = '"a";r=0;t=5'
    assert ask(200, Age="30", RateLimit=quota, X_RateLimit_Remaining="0") == Signal()
    date = "Thu, 01 Jan 2026 00:00:00 GMT"
    later = "Thu, 01 Jan 2026 00:02:00 GMT"
    assert ask(503, Age="30", Date=date, Retry_After=later).retry_after_s == 90
    assert ask(200, RateLimit='"a";r=0;t=5', Age="-1").wait_s == 5


def test_a_quota_of_something_else_than_requests_says_so() -> None:
    policy = '"a";q=9;w=1;qu="content-bytes"'
    assert ask(200, RateLimit='"a";r=1', RateLimit_Policy=policy).unit == "content-bytes"
    assert ask(200, x_ratelimit_remaining_tokens="1").unit == "tokens"
    assert ask(200, x_ratelimit_remaining_requests="1").unit == "requests"
    assert ask(200, X_RateLimit_Limit="1").unit == "requests"


@pytest.mark.parametrize(
    ("reset", "pad"),
    [("1767225660", 1), ("2026-01-01T00:01:00Z", 1), ("60", 0), ("1m", 0), ("1767225660000", 0)],
)
def test_only_an_instant_in_whole_seconds_asks_for_a_pad(reset: str, pad: float) -> None:
    signal = ask(429, X_RateLimit_Remaining="0", X_RateLimit_Reset=reset)
    assert (signal.wait_s, signal.pad_s) == (60, pad)


def test_all_quotas_are_reported_the_binding_one_decides() -> None:
    signal = ask(200, RateLimit='"burst";r=3;t=1, "day";r=0;t=9, "month";r=0;t=7')
    assert [quota.policy for quota in signal.quotas] == ["burst", "day", "month"]
    assert (signal.policy, signal.wait_s, signal.dialect) == ("day", 9, "ietf")


@pytest.mark.parametrize(
    "field",
    [
        '"a";r',
        '"a";r=1.0',
        '"a";r=0;t=-1',
        '"a";r=0;pk="text"',
        "5;r=0",
        "?1;r=0",
        '%"a";r=0',
        '"ä";r=0',
        "limit=-1, remaining=0, reset=5",
        "limit=1, remaining=0, reset=",
        "other=1",
    ],
)
def test_a_malformed_structured_field_is_ignored_whole(field: str) -> None:
    assert ask(200, RateLimit=field) == Signal()


@pytest.mark.parametrize("policy", ['"a";w=9', '"a";q=1;w=0', '"a";q=1;qu=5', "(1 2);q=1"])
def test_a_malformed_policy_is_ignored_whole(policy: str) -> None:
    signal = ask(200, RateLimit='"a";r=1', RateLimit_Policy=policy)
    assert (signal.limit, signal.window_s, signal.remaining) == (None, None, 1)


# Numbers and dates.


@pytest.mark.parametrize(
    ("text", "form", "seconds"),
    [
        ("0.503", "retry-after", 0.503),
        ("9" * 5000, "retry-after", 2**31),
        ("9" * 5000, "epoch", 2**31),
        ("9" * 5000, "auto", None),
        ("9" * 5000 + "s", "duration", 2**31),
        ("1h2m3.5s", "duration", 3723.5),
        ("76ms", "auto", 0.076),
        ("1m0s", "retry-after", None),
        ("60", "duration", None),
        ("60", "date", None),
        ("1500", "ms-delta", 1.5),
        ("1767225660500", "ms-epoch", 60.5),
        ("EService: Throttled: 1767225660", "tail", 60),
        ("error: 42", "tail", None),
        ("²", "retry-after", None),
        ("", "auto", None),
    ],
)
def test_a_delay_is_read_by_its_form(text: str, form: Any, seconds: float | None) -> None:
    delay = read_delay(text, NOW, form)
    assert (delay and delay.seconds) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120),
        ("thu, 1 jan 2026 00:02:00 gmt", 120),
        ("Thu,01 Jan 2026 00:02:00 GMT", 120),
        ("Thursday, 01-Jan-26 00:02:00 GMT", 120),
        ("Thu, 01 Jan 2026 00:02:00 +0000", 120),
        ("Thu, 01 Jan 2026 01:02:00 +0100", 120),
        ("Wed, 31 Dec 2025 16:02:00 PST", 120),
        ("Wed, 31 Dec 2025 17:02:00 PDT", 120),
        ("2026-01-01 00:02:00 UTC", 120),
        ("2026-01-01 00:02:00", 120),
        ("2026-01-01T05:32:00+05:30", 120),
        ("2026-01-01T00:02Z", 120),
        ("Thu Jan 01 2026 01:02:00 GMT+0100 (Central European Standard Time)", 120),
        ("Wed, 31 Dec 2025 23:59:60 GMT", 0),
        ("Saturday, 29-Feb-00 00:00:00 GMT", -815443200),
        ("Thu, 01 Jan 2026 00:02:00 XYZ", None),
        ("Thu, 01 Jan 2026 00:02:00 EST-0500", None),
        ("Thu, 01 Jan 2026 00:02:00 +2500", None),
        ("Thu, 01 Jan 2026 00:02:00 GMT now", None),
        ("Thu, 01 Foo 2026 00:02:00 GMT", None),
        ("Thu, 01 Jan 2026 00:60:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:60 GMT", None),
        ("Thu, 31 Apr 2026 00:00:00 GMT", None),
        ("Thu, 01 Jan 0000 00:00:00 GMT", None),
        ("2026-01-01", None),
        ("Thu, 01 Jan 2026 " + " " * 10_000 + "00:02:00 GMT", None),
    ],
)
def test_a_date_is_read_or_refused(text: str, seconds: float | None) -> None:
    instant = parse_date(text, NOW)
    assert (None if instant is None else instant - NOW) == seconds


def test_a_date_survives_any_clock() -> None:
    for now in (float("inf"), float("nan"), -1e300, 2.5e11):
        assert parse_date("Saturday, 29-Feb-00 00:00:00 GMT", now) in (None, 951782400.0)


# The table.


def test_a_new_vendor_is_one_row() -> None:
    row = Dialect(
        name="acme",
        limit="x-acme-max",
        remaining="x-acme-left",
        reset="x-acme-in-ms",
        reset_form="ms-delta",
        body_waits=(("acme.pause", "delta"),),
        signs=(Sign(path="acme.code", words=frozenset({"SLOW_DOWN"})),),
    )
    fields = headers_of(X_Acme_Max="10", X_Acme_Left="0", X_Acme_In_Ms="1500")
    own: Overrides = {"dialects": [row]}
    signal = read_signal(200, fields, now=NOW, overrides=own)
    assert (signal.limit, signal.remaining, signal.wait_s) == (10, 0, 1.5)
    body = {"acme": {"code": "SLOW_DOWN", "pause": 7}}
    refused = read_signal(400, [], body=body, now=NOW, overrides=own)
    assert (refused.throttled, refused.wait_s, refused.evidence) == (True, 7, "acme")
    assert read_signal(200, fields, now=NOW) == Signal()


def test_a_row_of_the_user_comes_before_the_built_in_ones() -> None:
    row = Dialect.family("x-ratelimit", name="mine", reset_form="ms-delta")
    fields = headers_of(X_RateLimit_Remaining="0", X_RateLimit_Reset="1500")
    assert read_signal(200, fields, now=NOW).wait_s == 1500
    assert read_signal(200, fields, now=NOW, overrides={"dialects": (row,)}).wait_s == 1.5


def test_a_wrong_override_is_an_error_that_names_it() -> None:
    wrong: Any = {"reset": "weeks"}
    with pytest.raises(ValueError, match=r"reset.*'weeks'"):
        read_signal(200, [], now=NOW, overrides=wrong)
    wrong = {"dialects": ["acme"]}
    with pytest.raises(TypeError, match=r"dialects.*'acme'"):
        read_signal(200, [], now=NOW, overrides=wrong)


def test_a_sign_stands_in_one_place() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Sign(words=frozenset({"x"}))


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in DIALECTS]
    assert len(names) == len(set(names))


def test_invented_names_do_not_fill_memory() -> None:
    index = Index(DIALECTS)

    def invented() -> Iterator[str]:
        yield "x" * 1_000_000
        yield from (f"x-{number}" for number in range(10_000))

    assert all(index[name] is None for name in invented())
    assert len(index) <= 4096
