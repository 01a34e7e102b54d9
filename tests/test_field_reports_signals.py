"""Faults reported against other clients, about reading a server's signals and about retrying.

Each test has the number of the report; the scenario and the right value are the report's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from throttle.http.backoff import ceiling, full_jitter
from throttle.http.dialects import Dialect
from throttle.http.retry import Decision, Retry
from throttle.http.signals import Signal, read_signal

NOW = 1_767_225_600.0


def never() -> float:
    return 0.0


def almost_always() -> float:
    return 1.0 - 2.0**-53


def retry_after(value: str, now: float = NOW) -> float | None:
    return read_signal(429, [("Retry-After", value)], now=now).retry_after_s


def decide(
    policy: Retry, signal: Signal, status: int = 429, method: str = "GET", *, random: Any = never
) -> Decision:
    return policy.start(0.0).after_response(status, signal, method, (), 0.0, random)


@pytest.fixture
def jerusalem() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Jerusalem"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_b044_a_reset_is_measured_by_the_servers_clock_and_padded() -> None:
    def wait(reset: int) -> float:
        fields = [
            ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", str(int(NOW) + reset)),
        ]
        return decide(Retry(), read_signal(429, fields, now=NOW + 5)).wait

    assert wait(30) == 31, "the local clock is 5 s fast, which is nobody's business"
    assert wait(0) == 1, "a reset equal to Date is the pad, not 0"


@pytest.mark.parametrize("value", ["0.503", "1.5", " 2.5 "])
def test_b047_a_fraction_is_never_cut_off(value: str) -> None:
    assert retry_after(value) == float(value)


def test_b048_a_duration_in_retry_after_is_malformed_and_never_a_short_wait() -> None:
    signal = read_signal(429, [("Retry-After", "1m0s")], now=NOW)
    assert (signal.throttled, signal.retry_after_s, signal.wait_s) == (True, None, None)


@pytest.mark.usefixtures("jerusalem")
@pytest.mark.parametrize(
    "value",
    [
        "Mon, 03 Jun 2019 11:30:12 GMT",
        "Monday, 03-Jun-19 11:30:12 GMT",
        "Mon Jun  3 11:30:12 2019",
    ],
)
def test_b049_a_date_is_utc_in_any_time_zone(value: str) -> None:
    eleven = 1_559_559_600.0
    assert retry_after(value, eleven) == 1812
    assert retry_after(value, eleven + 1812) == 0
    assert retry_after(value, eleven + 9999) == 0


def test_b050_huge_values_saturate_and_impossible_ones_are_malformed() -> None:
    assert retry_after("9999999999") == 2**31
    assert retry_after("7" * 5000) == 2**31
    assert retry_after("Mon, 03 Jun 99999 11:30:12 GMT") is None
    decision = decide(Retry(), read_signal(429, [("Retry-After", "9999999999")], now=NOW))
    assert (decision.reason, decision.retry_after) == ("max_wait", 2**31)


@pytest.mark.parametrize("value", ["nan", "inf", "Infinity", "-5", "+1", "²"])
def test_b051_what_float_would_accept_is_malformed(value: str) -> None:
    assert retry_after(value) is None
    assert retry_after(value + ", 3") == 3


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("6m0s", 360), ("7.66s", 7.66), ("76ms", 0.076), ("500ms", 0.5), ("1h2m3s", 3723)],
)
def test_b052_a_duration_is_read_to_its_end(value: str, seconds: float) -> None:
    fields = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", value)]
    assert read_signal(429, fields, now=NOW).wait_s == pytest.approx(seconds)


def test_b052_with_both_budgets_used_up_the_later_reset_counts() -> None:
    fields = [
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "2s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ]
    assert read_signal(429, fields, now=NOW).wait_s == 360


def test_b053_an_epoch_and_a_delta_are_told_apart_and_a_setting_wins() -> None:
    def reset(value: str, overrides: Any = None) -> float | None:
        fields = [("Date", "Mon, 01 Jul 2013 17:27:06 GMT"), ("X-RateLimit-Reset", value)]
        return read_signal(200, fields, now=NOW, overrides=overrides).reset_after_s

    assert reset("1372700873") == 1247
    assert reset("2513") == 2513
    assert reset("2513", {"reset": "ms-delta"}) == 2.513
    assert reset("1372700873", {"reset": "delta"}) == 1372700873


def test_b054_a_secondary_limit_is_a_throttle_and_waits_long_enough() -> None:
    fields = [
        ("Date", "Mon, 13 Jun 2022 11:48:53 GMT"),
        ("X-RateLimit-Remaining", "14"),
        ("X-RateLimit-Reset", "1655120964"),
    ]
    body = {"message": "You have exceeded a secondary rate limit"}
    signal = read_signal(403, fields, body=body, now=NOW)
    # The report waits for the reset, 31 s; the vendor asks for a minute, which covers it.
    assert (signal.throttled, signal.reset_after_s, signal.wait_s) == (True, 31, 60)
    plain = read_signal(403, fields, body={"message": "Forbidden"}, now=NOW)
    assert not decide(Retry(), plain, 403).retry


def test_b055_the_unit_of_a_wait_in_a_body_is_a_setting_and_not_a_guess() -> None:
    body = {"message": "You are being rate limited.", "retry_after": 0.657}
    assert read_signal(429, [], body=body, now=NOW).wait_s == 0.657
    older = Dialect(name="discord-6", body_waits=(("retry_after", "ms-delta"),))
    body["retry_after"] = 657
    own: Any = {"dialects": [older]}
    assert read_signal(429, [], body=body, now=NOW, overrides=own).wait_s == 0.657


@pytest.mark.parametrize("value", ["0", "Wed, 31 Dec 2025 23:59:58 GMT"])
def test_b056_zero_is_retried_but_never_faster_than_own_backoff(value: str) -> None:
    signal = read_signal(429, [("Retry-After", value)], now=NOW)
    assert signal.wait_s == 0
    call = Retry(attempts=4, base=0.5).start(0.0)
    decisions = [call.after_response(429, signal, "GET", (), 0.0, almost_always) for _ in range(4)]
    assert [one.wait for one in decisions] == pytest.approx([0.5, 1, 2, 0])
    assert decisions[-1].reason == "attempts"


def test_b057_each_wait_is_that_of_its_own_response() -> None:
    call = Retry(attempts=4).start(0.0)
    answers = [read_signal(429, [("Retry-After", n)], now=NOW) for n in ("1", "5", "30", "200")]
    decisions = [call.after_response(429, one, "GET", (), 0.0, never) for one in answers]
    assert [one.wait for one in decisions] == [1, 5, 30, 0]
    assert decisions[-1].retry_after == 200


def test_b058_a_later_answer_says_nothing_that_could_lift_a_halt() -> None:
    assert read_signal(200, [("Content-Type", "text/html")], now=NOW).wait_s is None


def test_b059_a_wait_is_not_shortened_it_is_waited_or_reported() -> None:
    signal = read_signal(429, [("Retry-After", "171")], now=NOW)
    assert decide(Retry(max_wait=300), signal).wait == 171
    decision = decide(Retry(max_wait=120), signal)
    assert (decision.retry, decision.raises) == (False, True)
    assert decision.error().retry_after == 171


@pytest.mark.parametrize(
    "fields",
    [
        {"90": ("Retry-After", "90"), "600": ("Retry-After", "600")},
        {"90": ("retry-after-ms", "90000"), "600": ("retry-after-ms", "600000")},
        {
            "90": ("Retry-After", "Thu, 01 Jan 2026 00:01:30 GMT"),
            "600": ("Retry-After", "Thu, 01 Jan 2026 00:10:00 GMT"),
        },
    ],
    ids=["seconds", "milliseconds", "date"],
)
def test_b060_a_wait_above_a_minute_is_no_reason_for_a_short_backoff(
    fields: dict[str, tuple[str, str]],
) -> None:
    policy = Retry(max_wait=120)
    assert decide(policy, read_signal(429, [fields["90"]], now=NOW)).wait == 90
    long = decide(policy, read_signal(429, [fields["600"]], now=NOW))
    assert (long.retry, long.error().retry_after) == (False, 600)


def test_b061_an_hour_asked_of_a_call_of_thirty_seconds_fails_at_once() -> None:
    signal = read_signal(429, [("Retry-After", "3600")], now=NOW)
    decision = decide(Retry(max_wait=None, deadline=30), signal)
    assert (decision.retry, decision.raises, decision.wait) == (False, True, 0)
    assert decision.error().retry_after == 3600


def test_b062_jitter_only_adds() -> None:
    signal = read_signal(429, [("Retry-After", "10")], now=NOW)
    policy = Retry(base=2, jitter=0.2)
    assert decide(policy, signal, random=never).wait == 10
    assert decide(policy, signal, random=almost_always).wait == pytest.approx(12)


@pytest.mark.parametrize("method", ["POST", "PATCH", "GET", "PUT", "DELETE"])
def test_b064_what_may_have_been_carried_out_is_not_sent_again(method: str) -> None:
    harmless = method not in ("POST", "PATCH")
    busy = read_signal(503, [("Retry-After", "2")], now=NOW)
    refused = read_signal(429, [], now=NOW)
    assert Retry().start(0.0).after_error(method, (), 0.0, never).retry is harmless
    assert decide(Retry(), busy, 503, method).retry is harmless
    assert decide(Retry(), refused, 429, method).retry
    assert decide(Retry(methods=[method]), busy, 503, method).retry


def test_b065_the_last_wait_does_not_run_past_the_limit() -> None:
    call = Retry(deadline=10, jitter=0).start(0.0)
    signal = read_signal(429, [("Retry-After", "5")], now=NOW)
    decision = call.after_response(429, signal, "GET", (), 7.0, never)
    assert (decision.retry, decision.reason, decision.wait) == (False, "deadline", 0)


def test_b065_the_lower_bound_holds_and_the_exponent_does_not_overflow() -> None:
    waits = [full_jitter(n, 0.5, 60, never, minimum=1) for n in range(20)]
    assert set(waits) == {1}
    assert ceiling(5000, 0.5, 60) == 60
    assert full_jitter(5000, 0.5, 60, almost_always) == pytest.approx(60)


def test_b066_a_403_is_retried_exactly_when_it_names_a_rate_limit() -> None:
    fields = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(int(NOW) + 1465))]
    body = {"message": "API rate limit exceeded for user ID 1."}
    primary = read_signal(403, fields, body=body, now=NOW)
    assert primary.wait_s == 1465
    assert decide(Retry(max_wait=None), primary, 403).wait == 1466
    assert decide(Retry(), primary, 403).error().retry_after == 1465

    forbidden = read_signal(403, [], body={"message": "Must have admin rights"}, now=NOW)
    assert not decide(Retry(), forbidden, 403).retry

    body = {"message": "You have exceeded a secondary rate limit."}
    secondary = read_signal(403, [], body=body, now=NOW)
    assert decide(Retry(), secondary, 403).wait == 60
