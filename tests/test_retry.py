"""Retries: which answers are worth another try, of which methods, when, and when it is over."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from throttle.errors import ServerThrottled
from throttle.http.budget import Budget
from throttle.http.retry import Attempts, Decision, Retry
from throttle.http.signals import Signal, read_signal

NOW = 1_767_225_600.0
REFUSED = Signal(throttled=True, evidence="status")
NOTHING = Signal()


def never() -> float:
    return 0.0


def almost_always() -> float:
    return 1.0 - 2.0**-53


def asks(seconds: float, **others: Any) -> Signal:
    return Signal(
        retry_after_s=seconds, wait_s=seconds, throttled=True, evidence="status", **others
    )


def respond(
    call: Attempts,
    status: int = 503,
    signal: Signal = REFUSED,
    method: str = "GET",
    *,
    headers: Any = (),
    now: float = 0.0,
    random: Callable[[], float] = never,
) -> Decision:
    return call.after_response(status, signal, method, headers, now, random)


def first(policy: Retry, *args: Any, **others: Any) -> Decision:
    return respond(policy.start(0.0), *args, **others)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, 529])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "get"])
def test_an_idempotent_method_is_tried_again_on_transient_statuses(
    status: int, method: str
) -> None:
    assert first(Retry(), status, NOTHING, method).retry


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 403, 404, 409, 418, 500, 501])
def test_any_other_status_is_final_without_evidence(status: int) -> None:
    decision = first(Retry(), status, NOTHING)
    assert (decision.retry, decision.reason) == (False, "not a failure")


@pytest.mark.parametrize("status", [200, 400, 403, 409, 418])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_evidence_of_a_throttle_makes_any_status_a_refusal(status: int, method: str) -> None:
    signal = Signal(throttled=True, evidence="github")
    decision = first(Retry(), status, signal, method)
    assert (decision.retry, decision.reason) == (True, "throttled")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_post_is_repeated_only_when_it_was_refused(method: str) -> None:
    assert first(Retry(), 429, REFUSED, method).retry
    for status in (408, 502, 503, 504, 529):
        decision = first(Retry(), status, REFUSED, method)
        assert (decision.retry, decision.reason) == (False, "not idempotent")


def test_a_503_that_says_it_is_a_throttle_was_a_refusal() -> None:
    body = "<Error><Code>SlowDown</Code></Error>"
    signal = read_signal(503, [], body=body, now=NOW)
    assert first(Retry(), 503, signal, "POST").retry


@pytest.mark.parametrize(
    "header",
    [
        "Idempotency-Key",
        "idempotency-key",
        "X-Idempotency-Key",
        "PayPal-Request-Id",
        b"Idempotency-Key",
    ],
)
def test_an_idempotency_key_opens_every_method(header: str | bytes) -> None:
    pairs: Any = [("Accept", "*/*"), (header, "d2f1")]
    call = Retry().start(0)
    assert respond(call, 503, REFUSED, "POST", headers=pairs).retry
    assert call.after_error("POST", pairs, 0, never).retry
    assert respond(call, 503, REFUSED, "POST", headers={"Idempotency-Key": "d2f1"}).retry
    assert not respond(call, 503, REFUSED, "POST", headers={"Idempotency-Key": ""}).retry


def test_methods_opens_those_named_and_closes_the_others() -> None:
    policy = Retry(methods=["post"])
    assert first(policy, 503, REFUSED, "POST").retry
    assert not first(policy, 503, REFUSED, "GET").retry
    assert first(policy, 429, REFUSED, "GET").retry, "a refusal was not carried out"


def test_statuses_replaces_the_default() -> None:
    policy = Retry(statuses={500})
    assert first(policy, 500, NOTHING).reason == "status"
    assert not first(policy, 502, NOTHING).retry
    assert first(policy, 429, REFUSED).retry, "the evidence remains"


def test_a_failed_connection_is_tried_again_where_repeating_is_harmless() -> None:
    for method, again in {"GET": True, "DELETE": True, "POST": False, "PATCH": False}.items():
        decision = Retry().start(0).after_error(method, (), 0, never)
        assert decision.retry is again
        assert decision.reason == ("connection" if again else "not idempotent")


def test_a_request_that_never_left_may_follow_whatever_its_method() -> None:
    assert Retry().start(0).after_error("POST", (), 0, never, sent=False).retry


def test_the_servers_own_word_closes_a_retry() -> None:
    refused = Signal(throttled=True, evidence="status", should_retry=False)
    decision = first(Retry(), 429, refused)
    assert (decision.retry, decision.reason) == (False, "server said no")


def test_the_servers_own_word_opens_a_retry_of_an_error_but_not_of_a_post() -> None:
    signal = Signal(should_retry=True)
    assert first(Retry(), 409, signal).retry
    assert first(Retry(), 409, signal, "POST").reason == "not idempotent"
    assert first(Retry(), 200, signal).reason == "not a failure"


def test_own_backoff_doubles_and_is_capped() -> None:
    call = Retry(attempts=9, base=0.5, cap=4).start(0)
    waits = [respond(call, 502, NOTHING, random=almost_always).wait for _ in range(6)]
    assert waits == pytest.approx([0.5, 1, 2, 4, 4, 4])


def test_the_longer_of_what_was_asked_and_own_backoff_is_waited() -> None:
    policy = Retry(base=8, jitter=0)
    assert first(policy, 503, asks(2), random=almost_always).wait == pytest.approx(8)
    assert first(policy, 503, asks(20), random=almost_always).wait == 20


def test_a_wait_asked_for_in_whole_seconds_of_the_wall_clock_gets_a_second_more() -> None:
    pairs = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(int(NOW) + 30))]
    signal = read_signal(429, pairs, now=NOW)
    assert first(Retry(), 429, signal).wait == 31
    assert first(Retry(), 429, asks(30)).wait == 30


def test_a_reset_is_waited_for_like_a_retry_after() -> None:
    signal = Signal(wait_s=40, reset_after_s=40, remaining=0, throttled=True, evidence="status")
    assert first(Retry(), 429, signal).wait == 40


def test_a_delay_for_one_operation_is_honoured_too() -> None:
    signal = read_signal(502, [("Retry-After", "7")], now=NOW)
    assert not signal.throttled
    assert first(Retry(), 502, signal).wait == 7


def test_attempts_counts_the_first_try() -> None:
    call = Retry(attempts=3).start(0)
    assert [respond(call).reason for _ in range(3)] == ["throttled", "throttled", "attempts"]
    assert call.left == 0
    assert first(Retry(attempts=1)).reason == "attempts"


def test_errors_and_answers_share_the_tries_of_the_call() -> None:
    call = Retry(attempts=3).start(0)
    assert call.after_error("GET", (), 0, never).retry
    assert respond(call).retry
    assert call.after_error("GET", (), 0, never).reason == "attempts"


def test_a_wait_above_max_wait_fails_with_what_the_server_asked() -> None:
    decision = first(Retry(max_wait=120), 429, asks(600))
    assert (decision.retry, decision.reason, decision.raises) == (False, "max_wait", True)
    error = decision.error(wall=NOW, origin="https://api.example")
    assert isinstance(error, ServerThrottled)
    assert (error.retry_after, error.retry_at, error.status) == (600, NOW + 600, 429)
    assert error.origin == "https://api.example"
    assert "600" in str(error)
    assert pickle.loads(pickle.dumps(error)).retry_after == 600


def test_a_wait_of_exactly_max_wait_is_waited() -> None:
    assert first(Retry(max_wait=120), 429, asks(120)).retry
    assert first(Retry(max_wait=None), 429, asks(2.0**31)).wait == 2**31


def test_an_ordinary_end_hands_the_last_response_to_the_caller() -> None:
    for decision in (first(Retry(attempts=1), 429, asks(1)), first(Retry(), 404, NOTHING)):
        assert not decision.raises
        assert decision.wait == 0


def test_a_wait_that_reaches_the_deadline_is_not_begun() -> None:
    policy = Retry(deadline=10, jitter=0)
    assert first(policy, 429, asks(9.9)).retry
    assert first(policy, 429, asks(10)).reason == "deadline"
    call = policy.start(100.0)
    assert respond(call, 429, asks(2), now=107.0).retry
    assert respond(call, 429, asks(2), now=108.0).reason == "deadline"


def test_a_deadline_passed_by_a_servers_wait_raises_and_by_a_backoff_does_not() -> None:
    asked = first(Retry(deadline=10), 429, asks(60))
    assert (asked.reason, asked.raises, asked.retry_after) == ("deadline", True, 60)
    own = first(Retry(deadline=10, base=30), 503, REFUSED, random=almost_always)
    assert (own.reason, own.raises) == ("deadline", False)


def test_a_budget_stops_a_storm_of_retries() -> None:
    policy = Retry(budget=0.1, budget_floor=0)
    budget = policy.new_budget()
    calls = [policy.start(0.0, budget) for _ in range(100)]
    decisions = [respond(call) for call in calls]
    assert [one.retry for one in decisions].count(True) == 10
    assert {one.reason for one in decisions if not one.retry} == {"budget"}


def test_a_retry_that_is_not_made_costs_no_budget() -> None:
    policy = Retry(attempts=1, budget=1, budget_floor=0)
    budget = policy.new_budget()
    assert budget is not None
    assert respond(policy.start(0.0, budget)).reason == "attempts"
    assert budget.withdraw(0.0)


def test_without_a_budget_there_is_none() -> None:
    assert Retry(budget=None).new_budget() is None


# tower-rs/tower, retry/budget/tps_budget.rs, tests at 8358ee7; read as tables, ratio = share.
TOWER: dict[str, Any] = {
    "empty": ((1.0, 0, 1), [(0, "withdraw", False)]),
    "slots": (
        (0.5, 0, 1),
        [
            (0, "deposit", None),
            (0, "deposit", None),
            (0.901, "withdraw", True),
            (2.902, "deposit", None),
            (3.203, "deposit", None),
            (4.004, "deposit", None),
            (4.004, "withdraw", True),
        ],
    ),
    "reserve": ((1.0, 5, 1), [(0, "withdraw", True)] * 5 + [(0, "withdraw", False)]),
}


@pytest.mark.parametrize("name", TOWER)
def test_the_budget_answers_as_towers_does(name: str) -> None:
    (share, floor, ttl), steps = TOWER[name]
    budget = Budget(share, floor, ttl)
    assert [getattr(budget, verb)(at) for at, verb, _ in steps] == [want for _, _, want in steps]


def test_ten_deposits_of_a_tenth_pay_for_one_retry() -> None:
    budget = Budget(0.1, 0, 10)
    for _ in range(10):
        budget.deposit(0.0)
    assert [budget.withdraw(0.0), budget.withdraw(0.0)] == [True, False]


def test_the_budget_forgets_after_its_time_and_survives_a_clock_that_goes_back() -> None:
    budget = Budget(1.0, 0, 10)
    budget.deposit(100.0)
    budget.deposit(50.0)
    assert budget.withdraw(60.0)
    assert not budget.withdraw(111.0)


def test_a_retry_cannot_be_changed_and_can_be_shared_and_copied() -> None:
    policy = Retry(methods=["GET"])
    with pytest.raises(FrozenInstanceError):
        policy.attempts = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(Retry(methods={"get"}))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attempts": 0}, ValueError),
        ({"attempts": 1.5}, ValueError),
        ({"attempts": "5"}, TypeError),
        ({"attempts": True}, TypeError),
        ({"base": -1}, ValueError),
        ({"base": float("nan")}, ValueError),
        ({"cap": 0}, ValueError),
        ({"cap": float("inf")}, ValueError),
        ({"minimum": -0.1}, ValueError),
        ({"minimum": 61}, ValueError),
        ({"jitter": -0.1}, ValueError),
        ({"max_wait": -1}, ValueError),
        ({"max_wait": "60"}, TypeError),
        ({"deadline": -1}, ValueError),
        ({"budget": -0.1}, ValueError),
        ({"budget_floor": None}, TypeError),
        ({"methods": "GET"}, TypeError),
        ({"methods": [1]}, TypeError),
        ({"statuses": 503}, TypeError),
        ({"statuses": ["503"]}, TypeError),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it_and_its_value(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(error, match=name) as caught:
        Retry(**arguments)
    shown = value[0] if isinstance(value, list) else value
    assert repr(shown) in str(caught.value)
