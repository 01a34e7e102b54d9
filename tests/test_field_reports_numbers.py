"""Faults that users of other libraries reported, as numbers: the right value of each, by its id.

Those that wait run in virtual time on asyncio and trio; the others pass `now`.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from helpers.callers import callers

from throttle import (
    AllOf,
    CostTooLarge,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
    limiter_for,
)

EACH = [
    lambda: TokenBucket(100 / 60, 100),
    lambda: LeakyBucket(100 / 60, 100),
    lambda: SlidingWindowLog(100, 60),
    lambda: SlidingWindowCounter(100, 60),
    lambda: FixedWindow(100, 60),
    lambda: TokenBucket(100 / 60, 100) & SlidingWindowLog(100, 60),
]


async def instants(limiter: Limiter, count: int, cost: float = 1) -> list[float]:
    """When so many callers who come at once are let in, in the order in which they came."""
    async with callers() as crowd:
        for name in range(count):
            await crowd.join(name, limiter, cost)
    when = dict(crowd.log)
    return [when[name] for name in range(count)]


def granted(limiter: Limiter, times: list[float]) -> list[float]:
    return [now for now in times if limiter.allow(now)]


@pytest.mark.anyio
async def test_b001_two_per_ten_seconds() -> None:
    assert await instants(TokenBucket(0.2, 2), 5) == [0, 0, 5, 10, 15]


@pytest.mark.anyio
async def test_b001_two_in_any_ten_seconds() -> None:
    assert await instants(limiter_for("2/10s"), 5) == [0, 0, 10, 10, 20]


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
def test_b002_the_first_call_of_a_repeating_decimal(kind: type[TokenBucket]) -> None:
    bucket = kind(10 / 13, 1)
    assert bucket.allow(0.0)
    assert bucket.available(0.0) == 0


def test_b003_idle_for_a_day_is_exactly_full() -> None:
    bucket = TokenBucket(1 / 3600, 1, initial=0.54990492004805558)
    assert bucket.available(0.0) == 0.54990492004805558
    assert bucket.available(86400.0) == 1
    assert bucket.allow(86400.0)


def test_b004_a_tiny_rate_does_not_open_for_ever() -> None:
    bucket = TokenBucket(1e-10, 1)
    assert bucket.allow(0.0)
    assert not bucket.allow(0.0)
    assert bucket.delay(0.0) == 1e10


@pytest.mark.anyio
async def test_b004_a_wait_of_317_years_fails_at_once() -> None:
    bucket = TokenBucket(1e-10, 1)
    await bucket.acquire()
    with pytest.raises(WaitTimeout) as caught:
        await bucket.acquire(timeout=60)
    assert caught.value.delay == 1e10
    assert clock.now() == 0


def test_b005_a_failed_reservation_moves_nothing() -> None:
    bucket = TokenBucket(10, 2)
    assert bucket.allow(0.0, 2)
    assert not bucket.allow(0.0, 3)
    assert bucket.delay(0.0, 2) == 0.2  # more than 0.1: not asked for
    assert bucket.allow(0.2, 2)


@pytest.mark.anyio
async def test_b005_a_failed_acquire_moves_nothing() -> None:
    bucket = TokenBucket(10, 2, slack=0)
    await bucket.acquire(2)
    with pytest.raises(CostTooLarge):
        await bucket.acquire(3)
    with pytest.raises(WaitTimeout):
        await bucket.acquire(2, timeout=0.1)
    assert await bucket.acquire(2) == 0.2


def test_b006_no_limit_checks_no_burst() -> None:
    bucket = TokenBucket(inf, 0)
    assert all(bucket.allow(0.0, 3) for _ in range(100))
    assert bucket.fresh_at(0.0) == 0


def test_b007_the_wait_counts_what_has_dripped_already() -> None:
    bucket = TokenBucket(1, 1)
    assert bucket.allow(0.0)
    assert not bucket.allow(0.2)
    assert bucket.delay(0.2) == 0.8


def test_b008_the_wait_is_for_the_oldest() -> None:
    log = SlidingWindowLog(2, 60)
    assert granted(log, [0, 10, 20]) == [0, 10]
    assert log.delay(20) == 40
    assert log.allow(60)


@pytest.mark.parametrize(
    "make", [lambda: TokenBucket(10, 1), lambda: SlidingWindowLog(1, 0.1), lambda: limiter_for(10)]
)
@pytest.mark.parametrize("adding", [False, True])
def test_b009_pacing_oneself_exactly(make: Any, adding: bool) -> None:
    limiter, now = make(), 0.0
    for index in range(10):
        assert limiter.allow(now if adding else index / 10)
        now += 0.1


def test_b010_the_first_try_after_the_wait_succeeds() -> None:
    log = SlidingWindowLog(1, 0.1)
    assert log.allow(0.0)
    wait = log.delay(0.0)
    assert wait == 0.1
    assert not log.allow(0.0999999)
    assert log.delay(0.0999999) > 0
    assert log.allow(wait)


@pytest.mark.anyio
async def test_b010_the_waiter_does_not_time_out() -> None:
    log = SlidingWindowLog(1, 0.1)
    await log.acquire()
    assert await log.acquire(timeout=1) == 0.1


B011 = [0, 7, 14, 21, 28, 60, 67, 74, 81, 88, 120, 127]


def test_b011_the_wait_is_the_longest_of_all() -> None:
    both, now, seen = SlidingWindowLog(1, 7) & SlidingWindowLog(5, 60), 0.0, []
    while len(seen) < 12:
        now = both.ready_at(now)
        assert both.allow(now)
        seen.append(now)
    assert seen == B011
    both.reset()
    assert granted(both, [0, 7, 14, 21, 28]) == [0, 7, 14, 21, 28]
    assert both.delay(28) == 32


@pytest.mark.anyio
async def test_b011_in_line() -> None:
    both = AllOf(SlidingWindowLog(1, 7), SlidingWindowLog(5, 60))
    assert await instants(both, 12) == B011


def test_b012_polling_starves_nobody() -> None:
    bucket = TokenBucket(5, 5)
    assert bucket.allow(0.0, 5)
    times = granted(bucket, [tick / 100 for tick in range(1, 301)])
    assert times == [tick / 5 for tick in range(1, 16)]


@pytest.mark.anyio
async def test_b013_a_cycle_gives_out_its_permits_once() -> None:
    fixed = FixedWindow(3, 10)
    async with callers() as crowd:
        for name in range(7):
            await crowd.join(name, fixed, timeout=12)
        assert isinstance(crowd.errors[6], WaitTimeout)
        assert crowd.errors[6].delay == 20
        assert clock.now() == 0
    assert [instant for _, instant in crowd.log] == [0, 0, 0, 10, 10, 10]


def test_b014_remaining_is_what_would_be_granted() -> None:
    counter = SlidingWindowCounter(100, 10)
    assert counter.allow(0.0, 50)
    assert counter.allow(11.0, 10)  # 10 % of the window gone
    assert counter.available(11.0) == pytest.approx(45)
    assert sum(counter.allow(11.0) for _ in range(50)) == 45


def test_b015_a_counter_of_one_grants() -> None:
    counter = SlidingWindowCounter(1, 10)
    assert granted(counter, [float(second) for second in range(45)]) == [0, 20, 40]


@pytest.mark.anyio
async def test_b016_a_crowd_is_let_in_five_by_five() -> None:
    times = await instants(SlidingWindowLog(5, 1), 60)
    assert times == [float(index // 5) for index in range(60)]


@pytest.mark.parametrize("make", EACH)
def test_b017_above_the_capacity_is_never(make: Any) -> None:
    limiter = make()
    before = limiter.state(0.0)
    assert not limiter.allow(0.0, 200)
    assert limiter.delay(0.0, 200) == inf
    with pytest.raises(CostTooLarge):
        limiter.acquire_sync(200)
    assert limiter.state(0.0) == before


@pytest.mark.anyio
@pytest.mark.parametrize("make", EACH)
async def test_b017_above_the_capacity_fails_at_once(make: Any) -> None:
    limiter = make()
    with pytest.raises(CostTooLarge, match="cost=200 can never fit: at most 100"):
        await limiter.acquire(200)
    assert limiter.available() == 100
    assert clock.now() == 0


@pytest.mark.parametrize("make", [FixedWindow, SlidingWindowLog])
def test_b018_a_fresh_window_holds_nobody_back(make: type[FixedWindow]) -> None:
    assert granted(make(2, 1), [0, 0.6, 1.1]) == [0, 0.6, 1.1]


def test_b019_a_window_does_not_expire_as_a_whole() -> None:
    log = SlidingWindowLog(10, 3600)
    assert log.allow(0.0)
    assert log.allow(59 * 60, 8)
    assert [log.allow(61 * 60) for _ in range(3)] == [True, True, False]


def test_b020_refused_tries_do_not_count() -> None:
    log = SlidingWindowLog(10, 600)
    times = [30.0 * index for index in range(60)]
    assert granted(log, times) == times[:10] + times[20:30] + times[40:50]


def test_b021_the_wait_is_to_the_end_of_the_window() -> None:
    fixed = FixedWindow(2, 20)
    assert fixed.allow(0.0, 2)
    assert not fixed.allow(19.0)
    assert fixed.delay(19.0) == 1


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
def test_b022_no_burst_is_refused_when_it_is_configured(kind: type[TokenBucket]) -> None:
    with pytest.raises(ValueError, match=r"capacity must be above 0 .*, not 0"):
        kind("60/minute", 0)
    assert granted(kind("60/minute", 1), [0, 30, 60]) == [0, 30, 60]


@pytest.mark.anyio
async def test_b023_nobody_passes_without_paying() -> None:
    times = await instants(limiter_for("2/s"), 20)
    assert times == [float(index // 2) for index in range(20)]


def test_b024_a_late_wake_costs_no_rate() -> None:
    """Sleeps that overshoot to a millisecond, at 0.2 ms a call: charged on plan, as waiters are."""
    bucket, grants = TokenBucket(5000, 1), 0
    for millisecond in range(1001):
        now = millisecond / 1000
        while (plan := bucket._ready_at(max(bucket._last, now - bucket._slack), 1)) <= now:
            bucket._spend(max(plan, now - bucket._slack), 1)
            grants += 1
    assert 5000 <= grants <= 5000 + 1 + 5000 * bucket._slack


@pytest.mark.anyio
async def test_b042_the_wall_clock_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = TokenBucket(10, 1)
    await limiter.acquire()
    monkeypatch.setattr("time.time", lambda: -3600.0)
    assert await limiter.acquire() == 0.1


@pytest.mark.parametrize(
    "make", [lambda c: TokenBucket(10, 10, clock=c), lambda c: SlidingWindowLog(10, 1, clock=c)]
)
def test_b042_a_clock_set_back_an_hour_does_not_block(make: Any) -> None:
    now = 1.7e9
    limiter = make(lambda: now)
    assert limiter.allow(cost=10)
    assert not limiter.allow()
    now -= 3600
    assert not limiter.allow()
    assert limiter.delay() <= 1
    now += 1.0
    assert limiter.allow()


def test_b043_no_span_is_earned_twice() -> None:
    bucket = TokenBucket(10, 3)
    assert bucket.allow(0.1, 3)
    assert not bucket.allow(0.0)
    assert not bucket.allow(0.1)
    assert bucket.allow(0.2)


def test_b045_a_stamp_from_another_clock_does_not_block_for_decades() -> None:
    log = SlidingWindowLog(2, 60)
    assert log.allow(1.7e12, 2)
    assert log.delay(1e7) <= 60
    assert log.allow(1e7 + 60)


def test_b046_the_wait_never_passes_its_maximum() -> None:
    bucket = TokenBucket(2000, 5000)
    assert bucket.allow(3600.0, 5000)
    now = 3600.0 - 1800
    assert not bucket.allow(now)
    assert bucket.delay(now) <= 2.5
    assert bucket.delay(now, 5000) <= 2.5
    assert bucket.allow(now + bucket.delay(now, 5000), 5000)


@pytest.mark.anyio
async def test_b089_a_timeout_of_0_tries() -> None:
    limiter = limiter_for("1/s")
    assert await limiter.acquire(timeout=0) == 0
    before = limiter.state()
    with pytest.raises(WaitTimeout):
        await limiter.acquire(timeout=0)
    assert limiter.state() == before
    assert clock.now() == 0


@pytest.mark.anyio
async def test_b090_a_wait_that_is_too_long_fails_at_once() -> None:
    limiter = TokenBucket(0.1, 1)
    await limiter.acquire()
    with pytest.raises(WaitTimeout) as caught:
        await limiter.acquire(timeout=4)
    assert (caught.value.delay, caught.value.timeout) == (10, 4)
    assert clock.now() == 0
    assert limiter.available() == 0
    assert not limiter.allow()
    assert limiter.delay() == 10


@pytest.mark.parametrize("turned", [False, True])
def test_b091_all_or_nothing(turned: bool) -> None:
    a, b = TokenBucket(0, 5), TokenBucket(0, 1)
    both = AllOf(b, a) if turned else AllOf(a, b)
    assert [both.allow(0.0) for _ in range(5)] == [True, False, False, False, False]
    assert (a.available(0.0), b.available(0.0)) == (4, 0)
