"""Thousands in line: the work grows with their number, not with its square.

No time is measured. What is counted are the questions put to the algorithm and the timers asked
for, which is where the work is.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle

from throttle import QueueFull, SlidingWindowLog, TokenBucket, WaitTimeout
from throttle.algorithms import bucket
from throttle.parking import sleeper
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio

MANY = 2000


class Work:
    """How many questions were put to buckets, and how many timers were set, since `reset`."""

    questions = 0
    timers = 0

    def reset(self) -> None:
        self.questions = self.timers = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted = Work()
    ready, call_at, nap = bucket.Bucket._ready_at, VirtualLoop.call_at, sleeper.SleeperPlace.time

    def asked(self: Any, now: float, cost: float) -> float:
        counted.questions += 1
        return ready(self, now, cost)

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        counted.timers += 1
        return call_at(self, *args, **kwargs)

    def napped(self: Any, *args: Any) -> None:
        counted.timers += 1
        nap(self, *args)

    monkeypatch.setattr(bucket.Bucket, "_ready_at", asked)
    monkeypatch.setattr(VirtualLoop, "call_at", timed)
    monkeypatch.setattr(sleeper.SleeperPlace, "time", napped)
    return counted


@pytest.mark.parametrize("timeout", [None, 1e6])
async def test_each_arrival_and_each_grant_costs_the_same(
    work: Work, timeout: float | None
) -> None:
    limiter = TokenBucket(rate=100, capacity=1)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter, timeout=timeout)
        assert work.questions <= 6 * MANY
        assert work.timers <= 5
        work.reset()
    assert len(crowd.log) == MANY
    assert work.questions <= 6 * MANY
    assert work.timers <= 2 * MANY


async def test_a_composite_with_timeouts_costs_the_same_for_each(work: Work) -> None:
    both = TokenBucket(rate=100, capacity=1) & TokenBucket(rate=200, capacity=5)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, both, timeout=1e6)
        assert work.questions <= 12 * MANY
        work.reset()
    assert len(crowd.log) == MANY
    assert work.questions <= 20 * MANY


@pytest.mark.parametrize("timeout", [None, 1e6])
async def test_all_cancelled_in_one_turn(work: Work, timeout: float | None) -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter, timeout=timeout)
        work.reset()
        crowd.cancel(*range(MANY))
        await settle()
        assert limiter._side is None
    assert work.questions <= 2 * MANY
    assert work.timers <= 2 * MANY


async def test_a_storm_of_refunds_and_charges_with_all_in_line(work: Work) -> None:
    limiter = TokenBucket(rate=1, capacity=MANY, initial=0)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter, MANY, timeout=1e9)
        work.reset()
        for _ in range(MANY):
            limiter.refund(0.001)
        assert work.questions <= 3 * MANY
        work.reset()
        for _ in range(MANY):
            limiter.charge(0.001)
        # A look at all timeouts after each eighth of the line, so 8 looks and the guards.
        assert work.questions <= 20 * MANY
        crowd.cancel(*range(MANY))


async def test_a_full_line_refuses_at_the_same_cost_however_long_it_is(work: Work) -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0, max_waiting=MANY)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter)
        work.reset()
        for _ in range(MANY):
            with pytest.raises(QueueFull):
                await limiter.acquire()
        assert work.questions <= 2 * MANY
        crowd.cancel(*range(MANY))


async def test_refusals_by_timeout_behind_a_long_line(work: Work) -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter)
        work.reset()
        for _ in range(MANY):
            with pytest.raises(WaitTimeout) as failure:
                await limiter.acquire(timeout=5)
        assert failure.value.delay == MANY + 1
        assert work.questions <= 6 * MANY
        crowd.cancel(*range(MANY))


async def test_arrivals_with_timeouts_between_cancellations(work: Work) -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    async with callers() as crowd:
        for name in range(MANY):
            await crowd.join(name, limiter)
        work.reset()
        for name in range(500):
            crowd.cancel(name)
            await crowd.join(MANY + name, limiter, timeout=1e6)
        assert work.questions <= 5 * (MANY + 500)
        crowd.cancel(*range(500, MANY + 500))


async def test_one_long_wait_is_one_timer(work: Work) -> None:
    """B039 (a): 60 s are one wake-up or two, not 6,000."""
    limiter = SlidingWindowLog(limit=1, window=60)
    await limiter.acquire()
    work.reset()
    assert await limiter.acquire() == 60.0
    assert work.timers <= 2


async def test_each_wake_lets_in_all_whose_turn_has_come(work: Work) -> None:
    limiter = SlidingWindowLog(limit=100, window=1)
    async with callers() as crowd:
        for name in range(1000):
            await crowd.join(name, limiter)
        work.reset()
        await anyio.sleep(20)
        assert len(crowd.log) == 1000
    assert work.timers <= 2 * 10 + 2
