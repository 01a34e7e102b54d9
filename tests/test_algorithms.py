"""Each algorithm by tables of exact instants, beginning with what the lab promises of it."""

from __future__ import annotations

import sys
import tracemalloc
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from math import inf, nan
from typing import Any

import pytest
from helpers.subjects import NOT_COMPOSITE, STARTS, STEPS, Subject, cost_of, slip
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    Rate,
    RingBuffer,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    algorithms,
)

FOUR: dict[str, Callable[..., Any]] = {
    "token": lambda **o: TokenBucket(1, 5, **o),
    "leaky": lambda **o: LeakyBucket(1, 5, **o),
    "log": lambda **o: SlidingWindowLog(5, 10, **o),
    "counter": lambda **o: SlidingWindowCounter(5, 10, **o),
    "fixed": lambda **o: FixedWindow(5, 10, **o),
}
EACH = pytest.mark.parametrize("make", FOUR.values(), ids=FOUR.keys())


def answers(limiter: Limiter, times: list[float]) -> str:
    return "".join("+" if limiter.allow(now) else "-" for now in times)


class Clock:
    """Time for the verbs that have no `now`: setting a parameter."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# ------------------------------------------------------------------ the lab


@EACH
def test_demo_burst_ten_at_once_let_five_in(make: Any) -> None:
    assert answers(make(), [0.0] * 10) == "+++++-----"


@EACH
def test_demo_steady_within_the_rate_lets_all_in(make: Any) -> None:
    # Four in ten seconds: the rate of the windows is five, that of the buckets ten.
    assert answers(make(), [2.5 * tick for tick in range(50)]) == "+" * 50


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (
            FOUR["token"],
            "0+ 0+ 0+ 0+ 0+ 0- 0.5- 1+ 1- 3.5+ 3.5+ 3.5- 100+ 100+ 100+ 100+ 100+ 100-",
        ),
        (
            FOUR["leaky"],
            "0+ 0+ 0+ 0+ 0+ 0- 0.5- 1+ 1- 3.5+ 3.5+ 3.5- 100+ 100+ 100+ 100+ 100+ 100-",
        ),
        (FOUR["log"], "0+ 1+ 2+ 3+ 4+ 5- 9.5- 10+ 10.5- 11+ 12+ 13+ 14+ 14- 19- 20+ 100+"),
        (FOUR["counter"], "0+ 0+ 0+ 0+ 0+ 9- 10- 11.5- 12+ 12- 14+ 15.5- 16+ 18+ 19- 20+ 22-"),
        (
            FOUR["fixed"],
            "3+ 3+ 3+ 3+ 12+ 12- 13+ 13+ 22+ 22+ 22+ 22.9- 23+ 50+ 59+ 60+ 60+ 60+ 60+",
        ),
    ],
    ids=["token", "leaky", "log", "counter", "fixed"],
)
def test_instants(make: Any, steps: str) -> None:
    limiter = make()
    for step in steps.split():
        now, expected = float(step[:-1]), step[-1] == "+"
        wait = limiter.delay(now)
        assert limiter.allow(now) == expected == (wait == 0), step


def test_now_may_start_anywhere_and_be_whole() -> None:
    for start in (0, -5, 10**6, 1_700_000_000):
        for make in FOUR.values():
            assert answers(make(), [start] * 6) == "+++++-"


@EACH
def test_a_clock_serves_where_now_is_left_out(make: Any) -> None:
    clock = Clock(100.0)
    limiter = make(clock=clock)
    assert [limiter.allow() for _ in range(6)] == [True] * 5 + [False]
    assert limiter.ready_at() > 100
    clock.now = 1000.0
    assert limiter.available() == 5
    with limiter:
        assert limiter.available() == 4


# ------------------------------------------------------------------ the ring buffer


def test_a_ring_overwrites_its_oldest() -> None:
    ring = RingBuffer[int](3)
    assert (len(ring), ring.is_full, ring.to_list(), ring.capacity) == (0, False, [], 3)
    for value in range(5):
        ring.push(value)
    assert (len(ring), ring.is_full, ring.to_list()) == (3, True, [2, 3, 4])
    assert (ring.peek_oldest(), ring.peek_newest()) == (2, 4)
    assert (ring.pop(), ring.pop(), ring.to_list()) == (2, 3, [4])
    assert repr(ring) == "RingBuffer([4], capacity=3)"


def test_an_empty_ring_has_nothing_to_give() -> None:
    ring = RingBuffer[str](2)
    ring.push("gone")
    ring.pop()
    for ask in (
        ring.pop,
        ring.peek_oldest,
        ring.peek_newest,
        ring.pop_newest,
        lambda: ring.rotate("x"),
    ):
        with pytest.raises(IndexError, match="empty"):
            ask()
    with pytest.raises(IndexError):
        ring[0]
    ring.push("here")
    for outside in (-1, 1):
        with pytest.raises(IndexError):
            ring[outside]
    assert ring.to_list() == ["here"]


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "3", nan, inf])
def test_a_ring_has_room(capacity: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^capacity must be"):
        RingBuffer(capacity)


@given(
    capacity=st.integers(1, 5),
    calls=st.lists(
        st.sampled_from(["push", "push", "offer", "pop", "pop_newest", "rotate", "resized"])
    ),
)
def test_a_ring_is_a_bounded_deque(capacity: int, calls: list[str]) -> None:
    ring, model = RingBuffer[int](capacity), deque[int](maxlen=capacity)
    for value, call in enumerate(calls):
        if call == "push":
            ring.push(value)
            model.append(value)
        elif call == "offer":
            assert ring.offer(value) == (len(model) < ring.capacity)
            if len(model) < ring.capacity:
                model.append(value)
        elif call == "resized":
            ring = ring.resized(value % 5 + 1)
            model = deque(model, maxlen=value % 5 + 1)
        elif model:
            if call == "rotate":
                ring.rotate(value)
                model.popleft()
                model.append(value)
            else:
                assert getattr(ring, call)() == (model.popleft if call == "pop" else model.pop)()
        assert ring.to_list() == list(model) == [ring[index] for index in range(len(ring))]
        assert (len(ring), ring.is_full) == (len(model), len(model) == model.maxlen)
        if model:
            assert (ring.peek_oldest(), ring.peek_newest()) == (model[0], model[-1])


def test_a_ring_keeps_nothing_alive_that_it_gave_away() -> None:
    ring, value = RingBuffer[object](2), object()
    for take in (ring.pop, ring.pop_newest, lambda: ring.rotate(None)):
        ring.push(value)
        take()
        while len(ring):
            ring.pop()
        assert sys.getrefcount(value) == 2


# ------------------------------------------------------------------ debt and change


def test_debt_of_a_bucket_is_paid_back() -> None:
    bucket = TokenBucket(2, 5)
    bucket.charge(9, 0.0)
    assert bucket.available(0.0) == 0
    assert [bucket.delay(0.0, cost) for cost in (1, 5)] == [2.5, 4.5]
    bucket.refund(3, 1.0)
    assert bucket.available(1.0) == 1
    bucket.refund(100, 1.0)
    assert bucket.available(1.0) == 5


def test_debt_of_a_fixed_window_spills_over() -> None:
    fixed = FixedWindow(3, 10)
    fixed.charge(7, 0.0)
    assert [fixed.delay(0.0, cost) for cost in (1, 2, 3)] == [20, 20, 30]
    assert [fixed.available(now) for now in (0.0, 10.0, 20.0, 30.0)] == [0, 0, 2, 3]
    assert fixed.fresh_at(0.0) == 30


def test_debt_of_a_log_lapses_with_its_window() -> None:
    log = SlidingWindowLog(3, 10)
    log.charge(7, 0.0)
    log.charge(1, 4.0)
    assert [log.delay(4.0, cost) for cost in (1, 2, 3)] == [6, 6, 10]
    assert [log.available(now) for now in (9.0, 10.0, 14.0)] == [0, 2, 3]


def test_debt_of_a_counter_fades() -> None:
    counter = SlidingWindowCounter(4, 10)
    counter.charge(10, 0.0)
    assert counter.ready_at(0.0, 1) == 17  # 10 * share <= 3
    assert counter.available(18.0) == 2
    assert counter.fresh_at(0.0) == 20


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
def test_change_of_a_bucket_keeps_what_was_earned(kind: type[TokenBucket]) -> None:
    clock = Clock()
    bucket = kind(1, 10, clock=clock)
    assert bucket.allow(cost=10)
    clock.now = 4.0
    bucket.rate = "3/s"  # type: ignore[assignment]
    assert (bucket.rate, bucket.available()) == (3, 4)
    clock.now = 5.0
    assert bucket.available() == 7
    bucket.capacity = 5  # clips
    assert (bucket.capacity, bucket.available()) == (5, 5)
    bucket.capacity = 20  # grants nothing
    assert bucket.available() == 5
    clock.now = 6.0
    assert bucket.available() == 8
    bucket.rate = 0
    clock.now = 1e6
    assert bucket.available() == 8
    bucket.charge(9)
    bucket.rate = 1
    assert bucket.delay() == 2
    assert bucket.delay(cost=21) == inf


def test_raising_the_capacity_of_a_new_bucket_grants_nothing() -> None:
    clock = Clock(50.0)
    bucket = TokenBucket(1, 2, clock=clock)
    bucket.rate = 2
    assert bucket.fresh_at() == 50
    bucket.capacity = 6
    assert (bucket.available(), bucket.fresh_at()) == (2, 52)
    assert bucket.allow(-1e6)  # on another clock it is what it was
    assert bucket.available(-1e6) == 1


def test_changing_what_has_not_started_does_not_start_it() -> None:
    bucket = TokenBucket(1, 10, initial=1, clock=Clock(1e6))
    bucket.rate = 2
    assert bucket.available(0.0) == 1
    assert bucket.available(2.0) == 5


def test_an_unlimited_bucket_can_be_limited() -> None:
    clock = Clock()
    bucket = TokenBucket(inf, 3, clock=clock)
    assert bucket.allow(cost=50)
    assert bucket.allow(cost=50)
    bucket.rate = 10
    assert (bucket.available(), bucket.delay(cost=4)) == (3, inf)
    with pytest.raises(ValueError, match="rate must stay inf while capacity is inf, not 5"):
        TokenBucket(inf).rate = 5


@pytest.mark.parametrize("kind", [SlidingWindowLog, FixedWindow, SlidingWindowCounter])
def test_change_of_a_limit_counts_what_was_granted(kind: type[FixedWindow]) -> None:
    clock = Clock()
    limiter = kind(5, 10, clock=clock)
    assert limiter.allow(cost=4)
    limiter.limit = 6
    assert limiter.available() == 2
    limiter.limit = 2
    assert limiter.available() == 0
    clock.now = 20.0
    assert limiter.available() == 2  # what was granted has not become a debt
    limiter.rate = "7/minute"  # type: ignore[assignment]
    assert (limiter.limit, limiter.window, limiter.rate) == (7, 60, 7 / 60)


def test_change_of_a_window() -> None:
    clock = Clock()
    log = SlidingWindowLog(2, 10, clock=clock)
    assert [log.allow(), log.allow(), log.allow()] == [True, True, False]
    clock.now = 4.0
    log.window = 5
    assert log.delay() == 1
    clock.now = 6.0
    log.window = 100  # does not call back what has left
    assert log.available() == 2
    fixed = FixedWindow(1, 10, clock=clock)
    assert fixed.allow()
    fixed.window = 4
    assert fixed.delay() == 4
    counter = SlidingWindowCounter(10, 10, clock=Clock())
    assert counter.allow(0.0, 10)
    counter._clock = clock
    clock.now = 15.0
    assert counter.available() == 5
    counter.window = 100  # half of it has passed, as before
    assert counter.available() == pytest.approx(5)
    clock.now = 15.0 + 50
    assert counter.available() == pytest.approx(10)


@pytest.mark.parametrize(
    ("make", "attribute", "value"),
    [
        (FOUR["token"], "rate", -1),
        (FOUR["token"], "rate", "soon"),
        (FOUR["token"], "capacity", 0),
        (FOUR["leaky"], "capacity", inf),
        (FOUR["leaky"], "capacity", nan),
        (FOUR["log"], "limit", 0),
        (FOUR["log"], "limit", 2.5),
        (FOUR["log"], "window", inf),
        (FOUR["counter"], "limit", -1),
        (FOUR["counter"], "window", 0),
        (FOUR["fixed"], "rate", 0),
        (FOUR["fixed"], "window", "1s"),
    ],
)
def test_a_bad_change_is_named_and_changes_nothing(make: Any, attribute: str, value: Any) -> None:
    limiter = make(clock=Clock())
    limiter.allow(cost=2)
    before = limiter.state()
    with pytest.raises((ValueError, TypeError), match=rf"^{attribute} must") as caught:
        setattr(limiter, attribute, value)
    assert repr(value) in str(caught.value)
    assert limiter.state() == before


# ------------------------------------------------------------------ how they are made


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
def test_initial_starts_lower(kind: type[TokenBucket]) -> None:
    for start in (0.0, -7.0, 1.7e9):
        bucket = kind(2, 10, initial=3)
        assert bucket.available(start) == 3
        assert bucket.available(start + 1) == 5
        assert bucket.fresh_at(start) == pytest.approx(start + 3.5)
    assert kind(2, 10, initial=0).delay(5.0) == 0.5
    assert kind(2, 10, initial=99).available(5.0) == 10
    again = kind(2, 10, initial=3)
    assert again.allow(0.0, 3)
    again.reset()
    assert again.available(1000.0) == 3


@pytest.mark.parametrize(
    ("rate", "capacity"),
    [(10, 10), (0.5, 1), ("100/minute", 100), (Rate(3, per=7), 3), ("0.2/s", 1), (0, 1)],
)
def test_the_capacity_is_the_count_of_the_rate(rate: Any, capacity: float) -> None:
    assert TokenBucket(rate).capacity == LeakyBucket(rate).capacity == capacity
    assert TokenBucket.from_rate(rate).rate == Rate.parse(rate).per_second


@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter, FixedWindow])
def test_windows_from_a_rate(kind: type[FixedWindow]) -> None:
    for rate, limit, window in (("100/minute", 100, 60), (0.5, 1, 2), ("1/3s", 1, 3)):
        limiter = kind.from_rate(rate, max_waiting=3)
        assert (limiter.limit, limiter.window) == (limit, window)
    with pytest.raises(ValueError, match=r"^rate must be above 0, not 0"):
        kind.from_rate(0)
    with pytest.raises(ValueError, match=r"^rate must be finite, not inf"):
        kind.from_rate(inf)


BAD = [
    (TokenBucket, {"rate": -1}, "rate"),
    (TokenBucket, {"rate": nan}, "rate"),
    (TokenBucket, {"rate": True}, "rate"),
    (TokenBucket, {"rate": None}, "rate"),
    (TokenBucket, {"rate": 1, "capacity": 0}, "capacity"),
    (TokenBucket, {"rate": 1, "capacity": inf}, "capacity"),
    (TokenBucket, {"rate": inf, "capacity": -1}, "capacity"),
    (TokenBucket, {"rate": 1, "initial": -1}, "initial"),
    (TokenBucket, {"rate": 1, "slack": -1}, "slack"),
    (LeakyBucket, {"rate": 1, "slack": nan}, "slack"),
    (LeakyBucket, {"rate": 1, "capacity": "2"}, "capacity"),
    (SlidingWindowLog, {"limit": 0}, "limit"),
    (SlidingWindowLog, {"limit": 1.5}, "limit"),
    (SlidingWindowLog, {"limit": 1, "window": 0}, "window"),
    (SlidingWindowCounter, {"limit": inf}, "limit"),
    (SlidingWindowCounter, {"limit": 1, "window": nan}, "window"),
    (FixedWindow, {"limit": -1}, "limit"),
    (FixedWindow, {"limit": 1, "window": "1"}, "window"),
    (FixedWindow, {"limit": 1, "clock": 3}, "clock"),
    (FixedWindow, {"limit": 1, "max_waiting": 0.5}, "max_waiting"),
    (FixedWindow, {"limit": 10**400}, "limit"),
]


@pytest.mark.parametrize(("kind", "arguments", "named"), BAD)
def test_a_bad_argument_is_named(kind: Any, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^{named} ") as caught:
        kind(**arguments)
    assert repr(arguments[named])[:40] in str(caught.value)


@EACH
@pytest.mark.parametrize("bad", [-1, nan, inf, "1", True, None, 10**400, 1j])
def test_a_bad_cost_is_named_and_changes_nothing(make: Any, bad: Any) -> None:
    limiter = make()
    assert limiter.allow(3.0, 2)
    before = limiter.state(4.0)
    for ask in (
        lambda: limiter.allow(4.0, bad),
        lambda: limiter.ready_at(4.0, bad),
        lambda: limiter.delay(4.0, bad),
        lambda: limiter.charge(bad, 4.0),
        lambda: limiter.refund(bad, 4.0),
        lambda: limiter.acquire_sync(bad),
    ):
        with pytest.raises((ValueError, TypeError), match=r"^cost "):
            ask()
    assert limiter.state(4.0) == before
    assert limiter.stats() == (1, 0, 0, 0)


@EACH
@pytest.mark.parametrize("bad", [nan, inf, -inf, "1", True, 10**400])
def test_a_bad_now_is_named_and_changes_nothing(make: Any, bad: Any) -> None:
    limiter = make()
    assert limiter.allow(3.0, 2)
    before = limiter.state(4.0)
    for ask in (
        limiter.allow,
        limiter.ready_at,
        limiter.delay,
        limiter.available,
        limiter.fresh_at,
    ):
        with pytest.raises((ValueError, TypeError), match=r"^now "):
            ask(bad)
    assert limiter.state(4.0) == before


@EACH
def test_numbers_of_other_kinds_are_numbers(make: Any) -> None:
    limiter = make()
    assert limiter.allow(Fraction(1, 2), Fraction(2))
    assert limiter.available(1) == pytest.approx(3 if limiter._span() == 10 else 3.5)
    assert limiter.allow(now=1, cost=2.0)


class Own(float):
    """A number that has its own idea of order, and takes over what it is added to."""

    def __lt__(self, other: object) -> bool:
        return False

    def __add__(self, other: float) -> Own:
        return Own(float(self) + other)

    __radd__ = __add__


class Count(int):
    def __lt__(self, other: object) -> bool:
        return False


@EACH
@pytest.mark.parametrize("kind", [Own, Count])
def test_kinds_of_numbers_are_taken_for_what_they_are(make: Any, kind: type[Any]) -> None:
    limiter, plain = make(), make()
    for now, cost in ((kind(1), kind(2)), (kind(2), kind(3)), (kind(2), kind(1))):
        assert limiter.allow(now, cost) == plain.allow(float(now), int(cost))
        assert limiter.state(kind(3)) == plain.state(3.0)
    numbers = limiter.state(kind(3))["numbers"]
    assert {type(number) for number in numbers} <= {int, float}
    assert type(limiter.available(kind(3))) in (int, float)
    with pytest.raises(ValueError, match=r"^cost "):
        limiter.allow(1.0, kind(-1))


def test_a_log_takes_whole_costs_only() -> None:
    log = SlidingWindowLog(5, 1)
    assert log.allow(0.0, 2.0)
    with pytest.raises(ValueError, match=r"^cost must be a whole number, not 0.5"):
        log.allow(0.0, 0.5)


@EACH
def test_they_say_what_they_are(make: Any) -> None:
    limiter = make()
    same = eval(repr(limiter))
    assert repr(same) == repr(limiter)
    assert type(same) is type(limiter)


@EACH
def test_a_clone_goes_its_own_way(make: Any) -> None:
    limiter = make()
    assert limiter.allow(0.0, 3)
    clone = limiter._clone()
    assert clone.allow(0.0, 2)
    assert (limiter.available(0.0), clone.available(0.0)) == (2, 0)
    assert limiter.allow(0.0)
    assert (limiter.available(0.0), clone.available(0.0)) == (1, 0)
    assert clone.stats().granted == limiter.stats().granted == 2


def test_reset_is_as_new() -> None:
    for make in FOUR.values():
        limiter = make()
        limiter.charge(20, 100.0)
        limiter.pause(1000, 100.0)
        assert not limiter.allow(100.0)
        limiter.reset()
        assert limiter.stats() == (0, 0, 0, 0)
        assert answers(limiter, [3.0] * 6) == "+++++-"


def test_a_log_of_a_million_costs_nothing_at_birth() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        logs = [SlidingWindowLog(10**6, 60) for _ in range(10)]
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 10 * 1000
        for call in range(5000):
            assert logs[0].allow(call / 1000)
        filled, _ = tracemalloc.get_traced_memory()
        assert filled - after > 5000 * 8
        assert logs[0].allow(1000.0)  # all of it has left the window
        again, _ = tracemalloc.get_traced_memory()
        assert again - after < (filled - after) / 4  # the interpreter keeps some for reuse
    finally:
        tracemalloc.stop()


def test_a_log_keeps_no_more_cells_than_its_limit_needs() -> None:
    log = SlidingWindowLog(100, 100 / 64)
    assert all(log.allow(call / 64) for call in range(1000))
    assert log._log.capacity == 100


# ------------------------------------------------------------------ the leaky bucket as a queue


def test_a_leaky_bucket_is_a_meter_to_allow_and_a_queue_to_acquire() -> None:
    bucket = LeakyBucket(2, 4)
    departures = []
    for _ in range(4):
        departures.append(bucket._departs_at(0.0, 1))
        bucket._spend(departures[-1], 1)
    assert departures == [0, 0.5, 1.0, 1.5]
    bucket.reset()
    assert [bucket.allow(0.0) for _ in range(5)] == [True] * 4 + [False]
    assert (bucket.water(0.0), bucket.water(1.0), bucket.water(9.0)) == (4, 2, 0)
    bucket.charge(4, 9.0)
    assert bucket._departs_at(9.0, 1) == 11
    assert bucket._departs_at(9.0, 5) == inf


# ------------------------------------------------------------------ all of


def test_a_cost_per_member() -> None:
    requests, tokens = TokenBucket(1, 2), TokenBucket(100, 1000)
    both = requests & tokens
    assert both.allow(0.0, (1, 800))
    assert not both.allow(0.0, (1, 300))
    assert (requests.available(0.0), tokens.available(0.0)) == (1, 200)
    assert both.delay(0.0, (1, 300)) == 1
    assert both.delay(0.0, (2, 300)) == 1
    assert both.delay(0.0, (3, 0)) == inf
    assert both.allow(0.0, (0, 0))
    assert both.allow(0.0, (0, 200))
    both.refund((1, 500), 0.0)
    assert (requests.available(0.0), tokens.available(0.0)) == (2, 500)
    both.charge((2, 600), 0.0)
    assert both.delay(0.0, (1, 0)) == 1
    assert both.delay(0.0, (0, 1)) == pytest.approx(1.01)


@pytest.mark.parametrize("cost", [(1,), (1, 2, 3), (), (1, -1), (nan, 1), (1, "1"), (1, 0.5)])
def test_a_bad_cost_per_member_is_named(cost: Any) -> None:
    both = TokenBucket(1, 2) & SlidingWindowLog(5, 1)
    with pytest.raises((ValueError, TypeError), match=r"^cost must"):
        both.allow(0.0, cost)
    assert both.available(0.0) == 2


def test_nested_composites_are_all_of_all() -> None:
    a, b, c = TokenBucket(1, 5), TokenBucket(2, 4), FixedWindow(3, 10)
    every = AllOf(a, b & c)
    assert every.available(0.0) == 3
    assert every.allow(0.0, 2)
    assert [one.available(0.0) for one in (a, b, c)] == [3, 2, 1]
    assert every.ready_at(0.0, 2) == 10
    assert every.allow(10.0, (1, (2, 3)))
    assert [one.available(10.0) for one in (a, b, c)] == [4, 2, 0]
    assert [one.stats().granted for one in (a, b, c, every)] == [2, 2, 2, 2]
    every.members[1].pause(5, 10.0)
    assert (every.available(20.0), every.available(14.0)) == (3, 0)
    assert not every.allow(14.0, (1, (0, 0)))
    assert a.allow(14.0)


def test_members_are_shared() -> None:
    common, mine, yours = TokenBucket(0, 3), TokenBucket(0, 2), TokenBucket(0, 2)
    one, other = common & mine, common & yours
    assert [one.allow(0.0), one.allow(0.0), one.allow(0.0)] == [True, True, False]
    assert [other.allow(0.0), other.allow(0.0)] == [True, False]
    assert (common.available(0.0), mine.available(0.0), yours.available(0.0)) == (0, 0, 1)


def test_a_member_that_counts_twice() -> None:
    bucket = TokenBucket(1, 5)
    twice = AllOf(bucket, bucket & TokenBucket(1, 100))
    assert twice.available(0.0) == 2.5
    assert twice.allow(0.0, 2)
    assert bucket.available(0.0) == 1
    assert twice.delay(0.0) == 1
    assert twice.delay(0.0, 2.5) == 4
    assert twice.delay(0.0, 3) == inf


def test_what_is_available_together_can_be_taken() -> None:
    mixed = TokenBucket(1, 2.5) & SlidingWindowLog(5, 1)
    assert mixed.available(0.0) == 2
    assert mixed.allow(0.0, 2)


def test_pauses_of_members_hold_the_whole_back() -> None:
    a, b = TokenBucket(1, 5), TokenBucket(1, 5)
    both = a & b
    a.pause(10, 0.0)
    assert not both.allow(5.0)
    assert (both.ready_at(5.0), both.fresh_at(5.0)) == (10, 10)
    assert b.allow(5.0)
    both.pause(20, 0.0)
    assert (both.ready_at(5.0), both.available(15.0), both.fresh_at(5.0)) == (20, 0, 20)
    assert a.allow(15.0)
    both.reset()
    assert both.allow(0.0, 5)


@pytest.mark.parametrize("members", [(), (TokenBucket(1), 3), (TokenBucket(1), "1/s"), (AllOf,)])
def test_bad_members_are_named(members: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^members"):
        AllOf(*members)


def test_members_share_a_clock() -> None:
    clock = Clock()
    assert AllOf(TokenBucket(1, clock=clock), TokenBucket(1, clock=clock)).allow()
    with pytest.raises(ValueError, match=r"^members must share a clock"):
        AllOf(TokenBucket(1, clock=clock), TokenBucket(1))
    with pytest.raises(TypeError):
        TokenBucket(1) & 3  # type: ignore[operator]


# ------------------------------------------------------------------ the fused forms


@NOT_COMPOSITE
@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=40),
    start=st.one_of(STARTS, st.sampled_from([-1e6, 2.0**31 - 0.5, -(2.0**40), 1e15])),
    nudges=st.lists(st.sampled_from([0, 0, 1e-10, -1e-10, 6e-10, -6e-10, 1e-7, -1e-7, 1e-5])),
)
def test_a_fused_form_is_the_default(
    subject: Subject, steps: list[Any], start: float, nudges: list[float]
) -> None:
    fused, plain, now = subject.make(), subject.make(), start
    for index, (verb, gap, share) in enumerate(steps):
        cost = cost_of(subject, share)
        now += gap * subject.span
        if verb in ("charge", "refund"):
            getattr(fused, verb)(cost, now)
            getattr(plain, verb)(cost, now)
        else:
            if verb == "ready":
                earlier, now = now, fused.ready_at(now, cost)
                assert abs(plain.ready_at(earlier, cost) - now) <= slip(now)
            at = fused._settle(now + (nudges[index % len(nudges)] if nudges else 0))
            assert plain._settle(at) == at
            assert fused._try(at, cost) == Limiter._try(plain, at, cost)
        assert fused._last == plain._last
        for probe in (1, subject.most):
            ready, same = fused._ready_at(now, probe), plain._ready_at(now, probe)
            assert ready == same or abs(ready - same) <= slip(now)
        assert fused._available(now) == pytest.approx(plain._available(now), abs=1e-9)
        # Not before `now`: what has left the window may still lie in the ring of one of them.
        fresh, same = (max(now, one._fresh_at()) for one in (fused, plain))
        assert fresh == same or abs(fresh - same) <= slip(now)


@pytest.mark.parametrize("rate", [0, 1e-10, 1e9, inf])
@pytest.mark.parametrize("capacity", [0.1, 1, 1e9])
def test_a_fused_bucket_is_the_default_at_the_extremes(rate: float, capacity: float) -> None:
    fused, plain, now = TokenBucket(rate, capacity), TokenBucket(rate, capacity), 0.0
    for step in range(200):
        now += (0, 1e-9, 1e-3, 1, 1e7)[step % 5]
        cost = (capacity, capacity / 3, capacity * 1.5, 0.1)[step % 4]
        assert fused._try(now, cost) == Limiter._try(plain, now, cost)
        assert fused._ready_at(now, capacity) == plain._ready_at(now, capacity)


def test_every_fused_form_is_tried_on_both_ways() -> None:
    """The comparison would be empty if nothing were fused."""
    for make in FOUR.values():
        assert type(make())._try is not Limiter._try


@pytest.mark.parametrize("capacity", [1, 2, 3, 7])
def test_the_newest_values_of_a_ring_are_cut_and_put_back(capacity: int) -> None:
    for pushed in range(3 * capacity):
        for count in range(min(pushed, capacity) + 1):
            ring: RingBuffer[int] = RingBuffer(capacity)
            for value in range(pushed):
                ring.push(value)
            before = ring.to_list()
            kept = before[: len(before) - count]
            assert ring._cut(count) == before[len(before) - count :]
            assert ring.to_list() == kept
            assert [cell for cell in ring._cells if cell is not None] != [] or not kept
            ring._extend([-1] * count)
            assert ring.to_list() == kept + [-1] * count


@pytest.mark.parametrize("kind", [*algorithms.ALGORITHMS.values(), AllOf])
def test_nothing_stands_between_a_limiter_and_its_slots(kind: type[Limiter]) -> None:
    """A `__getattr__` anywhere above it keeps the interpreter from reading slots directly."""
    for above in kind.__mro__[:-1]:
        assert not {"__getattr__", "__getattribute__", "__setattr__"} & vars(above).keys()
