"""The line: order, instants, timeouts, and what changes under way. Virtual time, both backends."""

from __future__ import annotations

from math import inf
from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle

from throttle import (
    CostTooLarge,
    LeakyBucket,
    Limiter,
    QueueFull,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
)

pytestmark = pytest.mark.anyio


# -------------------------------------------------------------------- order and instants


async def test_first_come_first_served_whatever_the_cost() -> None:
    limiter = TokenBucket(rate=1, capacity=4, initial=0)
    async with callers() as crowd:
        for name, cost in (("dear", 4), ("cheap", 1), ("middling", 2), ("last", 1)):
            await crowd.join(name, limiter, cost)
    assert crowd.log == [("dear", 4.0), ("cheap", 5.0), ("middling", 7.0), ("last", 8.0)]


async def test_acquire_answers_the_seconds_waited() -> None:
    limiter = TokenBucket(rate=0.5, capacity=1)
    assert await limiter.acquire() == 0.0
    assert await limiter.acquire() == 2.0
    assert limiter.stats() == (2, 0, 0, 2.0)


async def test_everybody_whose_turn_has_come_is_let_in_at_one_wake() -> None:
    limiter = SlidingWindowLog(limit=3, window=10)
    async with callers() as crowd:
        for name in range(7):
            await crowd.join(name, limiter)
    assert [instant for _, instant in crowd.log] == [0, 0, 0, 10, 10, 10, 20]


async def test_a_leaky_bucket_lets_its_line_out_evenly() -> None:
    limiter = LeakyBucket(rate=4, capacity=3)
    async with callers() as crowd:
        for name in range(5):
            await crowd.join(name, limiter)
    assert [instant for _, instant in crowd.log] == [0, 0.25, 0.5, 0.75, 1.0]


async def test_nobody_barges_past_the_line() -> None:
    limiter = TokenBucket(rate=1, capacity=3)
    assert limiter.allow(cost=2)
    async with callers() as crowd:
        await crowd.join("first", limiter, 3)
        # One permit is free, but it belongs to the line.
        assert not limiter.allow()
        assert limiter.available() == 0
        await crowd.join("second", limiter, 1)
        assert limiter.stats().waiting == 2
    assert crowd.log == [("first", 2.0), ("second", 3.0)]


async def test_a_cost_of_nothing_is_granted_in_line_and_in_a_pause() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    limiter.pause(5)
    async with callers() as crowd:
        await crowd.join("line", limiter)
        assert limiter.allow(cost=0)
        assert await limiter.acquire(0) == 0.0
        assert clock.now() == 0.0
    assert limiter.stats().granted == 1


async def test_the_fast_path_is_no_checkpoint() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    call = limiter.acquire()
    with pytest.raises(StopIteration) as answer:
        call.send(None)
    assert answer.value.value == 0.0


async def test_nothing_is_left_behind_when_the_line_is_gone() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter, timeout=9)
        assert limiter._side is not None
    assert limiter._side is None


# -------------------------------------------------------------------- timeouts


async def test_a_wait_longer_than_the_timeout_fails_at_once_with_the_wait() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    assert limiter.allow()
    with pytest.raises(WaitTimeout) as failure:
        await limiter.acquire(timeout=0.5)
    assert clock.now() == 0.0
    assert (failure.value.delay, failure.value.timeout) == (1.0, 0.5)
    assert limiter.delay() == 1.0
    assert limiter.stats() == (1, 1, 0, 0.0)


async def test_a_timeout_of_just_the_wait_is_enough() -> None:
    limiter = TokenBucket(rate=3, capacity=1)
    assert limiter.allow()
    assert await limiter.acquire(timeout=limiter.delay()) == pytest.approx(1 / 3)


async def test_a_timeout_of_0_tries() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    assert await limiter.acquire(timeout=0) == 0.0
    with pytest.raises(WaitTimeout):
        await limiter.acquire(timeout=0)
    assert clock.now() == 0.0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_a_wrong_timeout_names_itself(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        await TokenBucket(1).acquire(timeout=timeout)


async def test_behind_a_line_the_error_tells_the_wait_behind_it() -> None:
    limiter = SlidingWindowLog(limit=2, window=10)
    async with callers() as crowd:
        for name in range(5):  # 0, 0, 10, 10, 20
            await crowd.join(name, limiter)
        await crowd.join("hurried", limiter, timeout=19)
        error = crowd.errors["hurried"]
        assert isinstance(error, WaitTimeout)
        assert error.delay == 20.0
        assert limiter.delay() == 20.0
        await crowd.join("dear", limiter, 2, timeout=29)
        assert crowd.errors["dear"].delay == 30.0
        await crowd.join("patient", limiter, timeout=20)
        assert limiter.delay() == 30.0
    assert crowd.instants()["patient"] == 20.0


async def test_the_outlook_stays_exact_as_the_line_moves_and_time_passes() -> None:
    limiter = TokenBucket(rate=2, capacity=2)
    async with callers() as crowd:
        for name in range(12):
            await crowd.join(name, limiter)
        for turn in range(8):
            assert limiter.ready_at() == 5.5 + turn / 2
            await crowd.join(f"late {turn}", limiter, timeout=limiter.delay())
            await anyio.sleep(0.25)
    assert crowd.instants()["late 7"] == 9.0
    assert not crowd.errors


async def test_a_waiter_overtaken_by_a_charge_fails_at_once_when_it_is_hopeless() -> None:
    limiter = TokenBucket(rate=1, capacity=5, initial=0)
    async with callers() as crowd:
        await crowd.join("first", limiter, timeout=2)
        await crowd.join("second", limiter, timeout=2)
        await crowd.join("patient", limiter)
        await anyio.sleep(0.5)
        limiter.charge(1)
        await settle()
        error = crowd.errors["second"]
        assert isinstance(error, WaitTimeout)
        assert error.delay == pytest.approx(2.5)
        assert clock.now() == 0.5
    assert crowd.instants() == {"first": 2.0, "patient": 3.0}


async def test_a_long_line_gives_up_nobody_later_than_its_timeout() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    async with callers() as crowd:
        await crowd.join("now", limiter)
        for name in range(40):
            await crowd.join(name, limiter, timeout=40)
        limiter.pause(30)
        await anyio.sleep(40.01)
        assert len(crowd.errors) + len(crowd.log) == 41
    assert all(isinstance(error, WaitTimeout) for error in crowd.errors.values())
    assert [name for name, _ in crowd.log] == ["now", *range(11)]


async def test_a_timeout_of_many_days_is_not_over_after_one() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    async with callers() as crowd:
        await crowd.join("now", limiter)
        await crowd.join("waits", limiter, timeout=400_000)
        limiter.charge(1)  # no longer on plan: the timeout is watched by itself
        limiter.pause(300_000)
    assert crowd.instants() == {"now": 0.0, "waits": 300_000.0}


# -------------------------------------------------------------------- bounds of the line


async def test_a_full_line_refuses() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0, max_waiting=2)
    async with callers() as crowd:
        for name in range(4):
            await crowd.join(name, limiter)
        error = crowd.errors[3]
        assert isinstance(error, QueueFull)
        assert error.max_waiting == 2
        assert clock.now() == 0.0
    assert crowd.order == [0, 1]
    assert limiter.stats() == (2, 2, 0, 3.0)


async def test_a_cost_that_can_never_fit_is_refused_at_once() -> None:
    limiter = TokenBucket(rate=1, capacity=2)
    with pytest.raises(CostTooLarge) as failure:
        await limiter.acquire(3)
    assert (failure.value.cost, failure.value.capacity) == (3, 2)
    assert not limiter.allow(cost=3)
    assert limiter.available() == 2


# -------------------------------------------------------------------- changes while they wait


async def test_a_pause_holds_the_line_and_resume_lets_it_go() -> None:
    limiter = TokenBucket(rate=1, capacity=2)
    limiter.pause(10)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
        await anyio.sleep(4)
        limiter.pause(3)  # ends before the other one
        await anyio.sleep(4)
        assert crowd.log == []
        limiter.resume()
        await settle()
        assert crowd.instants() == {0: 8.0, 1: 8.0}
    # Those let in by `resume` count as if they had gone a slack (5 ms) ago, as after a late timer.
    assert crowd.instants()[2] == 8.995


async def test_after_a_pause_each_goes_in_its_turn() -> None:
    limiter = LeakyBucket(rate=1, capacity=1)
    limiter.pause(10)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
    assert [instant for _, instant in crowd.log] == [10, 11, 12]


async def test_an_endless_pause_ends_only_by_resume() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    limiter.pause(inf)
    async with callers() as crowd:
        await crowd.join("waits", limiter)
        await crowd.join("hurried", limiter, timeout=1e9)
        assert crowd.errors["hurried"].delay == inf
        assert limiter.delay() == inf
        await anyio.sleep(80_000)
        assert crowd.log == []
        limiter.resume()
    assert crowd.log == [("waits", 80_000)]


async def test_who_has_a_timeout_fails_at_once_when_an_endless_pause_begins() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    async with callers() as crowd:
        await crowd.join("hurried", limiter, timeout=5)
        limiter.pause(inf)
        await settle()
        assert crowd.errors["hurried"].delay == inf


async def test_a_charge_delays_the_line_and_a_refund_hastens_it() -> None:
    limiter = TokenBucket(rate=1, capacity=5, initial=0)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
        await anyio.sleep(0.5)
        limiter.charge(2)
        await anyio.sleep(2)
        assert crowd.log == []
        limiter.refund(1)
    assert crowd.log == [(0, 2.5), (1, 3.0), (2, 4.0)]


async def test_a_new_rate_re_times_the_head_and_the_rest() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    async with callers() as crowd:
        for name in range(4):
            await crowd.join(name, limiter)
        await anyio.sleep(0.5)
        limiter.rate = 10
    assert crowd.instants() == {0: 0.0, 1: 0.55, 2: 0.65, 3: 0.75}


async def test_who_no_longer_fits_is_told_at_once_wherever_it_stands() -> None:
    limiter = SlidingWindowLog(limit=5, window=10)
    async with callers() as crowd:
        for name, cost in enumerate([5, 1, 4, 1, 5]):
            await crowd.join(name, limiter, cost)
        limiter.limit = 3
        await settle()
        assert {name: type(error) for name, error in crowd.errors.items()} == {
            2: CostTooLarge,
            4: CostTooLarge,
        }
        assert crowd.errors[4].capacity == 3
    assert crowd.instants() == {0: 0.0, 1: 10.0, 3: 10.0}


async def test_a_bucket_that_stops_refilling_tells_who_waits() -> None:
    limiter = TokenBucket(rate=1, capacity=2, initial=0)
    async with callers() as crowd:
        await crowd.join("head", limiter)
        limiter.rate = 0
    assert isinstance(crowd.errors["head"], CostTooLarge)


async def test_reset_serves_the_line_anew() -> None:
    limiter = SlidingWindowLog(limit=2, window=100)
    async with callers() as crowd:
        for name in range(5):
            await crowd.join(name, limiter)
        await anyio.sleep(1)
        limiter.reset()
        await settle()
        assert sorted(crowd.order) == [0, 1, 2, 3]
        assert limiter.stats().waiting == 1
    assert crowd.instants()[4] == 101.0


# -------------------------------------------------------------------- lateness, and clocks


def freeze(seconds: float) -> None:
    """Nothing runs for so long: a blocking call in the loop."""
    from throttle.testing.virtual import active

    time = active()
    assert time is not None
    time.advance(seconds)


async def test_a_late_wake_is_charged_on_plan_so_that_no_rate_is_lost() -> None:
    limiter = TokenBucket(rate=1000, capacity=1)
    async with callers() as crowd:
        for name in range(1000):
            await crowd.join(name, limiter)
        while len(crowd.log) < 1000:
            await anyio.sleep(0.0007)
            freeze(0.0003)  # wherever the timers fall, the loop is often late
    assert crowd.log[-1][1] == pytest.approx(0.999, abs=0.0021)


async def test_strict_means_that_a_late_wake_costs_the_rate() -> None:
    limiter = TokenBucket(rate=1000, capacity=1, slack=0)
    async with callers() as crowd:
        for name in range(4):
            await crowd.join(name, limiter)
        freeze(0.0105)
    assert [round(instant, 6) for _, instant in crowd.log] == [0, 0.0105, 0.0115, 0.0125]


@pytest.mark.parametrize("frozen", [1.0, 60.0])
async def test_a_frozen_loop_does_not_release_what_it_slept_through(frozen: float) -> None:
    limiter = TokenBucket(rate=100, capacity=1)
    async with callers() as crowd:
        for name in range(50):
            await crowd.join(name, limiter)
        await anyio.sleep(0.0905)
        freeze(frozen)
        await settle()
        thaw = clock.now()
        burst = sum(instant >= thaw for _, instant in crowd.log)
        assert burst <= 2  # the capacity, and what 5 ms of slack earn
    last = crowd.log[-1][1]
    assert last == pytest.approx(thaw - 0.005 + 0.39)


async def test_windows_are_strict_however_late_the_wake() -> None:
    limiter = SlidingWindowLog(limit=1, window=1)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
        await anyio.sleep(0.5)
        freeze(0.503)
    assert [round(instant, 6) for _, instant in crowd.log] == [0, 1.003, 2.003]


async def test_a_clock_of_its_own_is_believed_not_the_loop_s() -> None:
    class Slow:
        """Runs at half the speed of the loop's clock."""

        def __call__(self) -> float:
            return clock.now() / 2

    limiter = TokenBucket(rate=1, capacity=1, clock=Slow())
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
    assert [instant for _, instant in crowd.log] == pytest.approx([0, 2, 4], abs=0.002)
    assert all(b - a >= 2 - 1e-9 for (_, a), (_, b) in zip(crowd.log, crowd.log[1:], strict=False))


async def test_a_wait_longer_than_a_timer_holds_is_taken_in_slices() -> None:
    limiter = TokenBucket(rate="1 per 400d", capacity=1)
    async with callers() as crowd:
        for name in range(2):
            await crowd.join(name, limiter)
    assert crowd.log[-1][1] == pytest.approx(400 * 86400)


# -------------------------------------------------------------------- the user's own faults


class Broken(TokenBucket.__mro__[1]):
    """A bucket whose algorithm fails when told to."""

    broken = False

    def _ready_at(self, now: float, cost: float) -> float:
        if self.broken:
            raise ZeroDivisionError("the user's own")
        return float(super()._ready_at(now, cost))


def broken_bucket(**options: Any) -> Any:
    return Broken(1, 1, **options)


async def test_who_waits_is_told_when_the_algorithm_fails_and_nobody_hangs() -> None:
    limiter = broken_bucket(initial=0)
    async with callers() as crowd:
        await crowd.join("first", limiter)
        await crowd.join("second", limiter)
        await anyio.sleep(0.5)
        limiter.broken = True
        await anyio.sleep(1)
        limiter.broken = False
    assert {name: type(error) for name, error in crowd.errors.items()} == {
        "first": ZeroDivisionError,
        "second": ZeroDivisionError,
    }
    assert limiter._side is None
    assert await limiter.acquire() == 0.0


async def test_who_waits_is_told_when_the_clock_fails_and_nobody_hangs() -> None:
    fails = False

    def told() -> float:
        if fails:
            raise OSError("no clock")
        return clock.now()

    limiter: Limiter = TokenBucket(1, 1, initial=0, clock=told)
    async with callers() as crowd:
        await crowd.join("first", limiter)
        await crowd.join("second", limiter, timeout=9)
        await anyio.sleep(0.5)
        fails = True
        await anyio.sleep(1)
        fails = False
    assert {name: type(error) for name, error in crowd.errors.items()} == {
        "first": OSError,
        "second": OSError,
    }
    assert await limiter.acquire() == 0.0


async def test_a_waiter_on_a_composite_is_told_too() -> None:
    member = broken_bucket(initial=0)
    both = member & TokenBucket(1, 5)
    async with callers() as crowd:
        await crowd.join("first", both)
        await crowd.join("second", both)
        await anyio.sleep(0.5)
        member.broken = True
        await anyio.sleep(1)
        member.broken = False
    assert {type(error) for error in crowd.errors.values()} == {ZeroDivisionError}
    assert len(crowd.errors) == 2
    assert await both.acquire() == 0.0


@pytest.mark.parametrize("rate", [3, 7, 10 / 13])
@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
async def test_who_waits_wakes_at_the_very_instant_that_was_told(kind: Any, rate: float) -> None:
    limiter = kind(rate, 1)
    for _ in range(1000):
        due = limiter.ready_at()
        await limiter.acquire()
        assert clock.now() == due
