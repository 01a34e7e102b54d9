"""Cancellation at every point: nothing is lost, nothing is granted or given back twice."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle

from throttle import (
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
)
from throttle.testing.virtual import VirtualTime, virtual_time

ALGORITHMS: dict[str, Callable[[], Limiter]] = {
    "token bucket": lambda: TokenBucket(rate=1, capacity=1),
    "leaky bucket": lambda: LeakyBucket(rate=1, capacity=1),
    "sliding log": lambda: SlidingWindowLog(limit=1, window=1),
    "sliding counter": lambda: SlidingWindowCounter(limit=1, window=0.5),
    "fixed window": lambda: FixedWindow(limit=1, window=1),
    "composite": lambda: TokenBucket(rate=1, capacity=1) & SlidingWindowLog(limit=9, window=9),
}


# -------------------------------------------------------------------- before the grant


@pytest.mark.anyio
async def test_who_is_cancelled_in_line_costs_nothing_and_those_behind_move_up() -> None:
    limiter = TokenBucket(rate=1, capacity=3, initial=0)
    async with callers() as crowd:
        for name, cost in enumerate([1, 3, 1]):
            await crowd.join(name, limiter, cost)
        await anyio.sleep(0.5)
        crowd.cancel(1)
    assert crowd.log == [(0, 1.0), (2, 2.0)]
    assert crowd.cancelled == [1]
    assert limiter.stats() == (2, 0, 0, 3.0)


@pytest.mark.anyio
async def test_a_cancelled_head_re_times_the_line() -> None:
    limiter = TokenBucket(rate=1, capacity=5, initial=0)
    async with callers() as crowd:
        await crowd.join("head", limiter, 5)
        await crowd.join("next", limiter, 2)
        await anyio.sleep(0.5)
        crowd.cancel("head")
    assert crowd.log == [("next", 2.0)]


@pytest.mark.anyio
async def test_who_is_behind_a_cancelled_head_goes_at_once_if_it_fits() -> None:
    limiter = TokenBucket(rate=1, capacity=5, initial=0)
    async with callers() as crowd:
        await crowd.join("head", limiter, 5)
        await crowd.join("next", limiter, 2)
        await anyio.sleep(3)
        crowd.cancel("head")
    assert crowd.log == [("next", 3.0)]


@pytest.mark.anyio
async def test_a_cancelled_scope_is_not_charged_where_it_has_to_wait() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)
    async with callers() as crowd:
        await crowd.join("first", limiter)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await limiter.acquire()
        assert scope.cancelled_caught
        await crowd.join("second", limiter)
    assert crowd.log == [("first", 1.0), ("second", 2.0)]


@pytest.mark.anyio
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_cancelled_place_is_free_in_the_same_turn(algorithm: str) -> None:
    limiter = ALGORITHMS[algorithm]()
    limiter._max_waiting = 1
    await limiter.acquire()
    async with callers() as crowd:
        await crowd.join("first", limiter)
        crowd.cancel("first")
        if sys.modules["sniffio"].current_async_library() == "trio":
            assert limiter.stats().waiting == 0
        await settle()
        assert limiter.stats().waiting == 0
        await crowd.join("second", limiter)
        assert limiter.stats().waiting == 1
    assert crowd.order == ["second"]
    assert not crowd.errors


@pytest.mark.anyio
async def test_a_whole_line_cancelled_at_once_leaves_nothing() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    limiter.allow()
    async with callers() as crowd:
        for name in range(200):
            await crowd.join(name, limiter, timeout=None if name % 2 else 1e6)
        crowd.cancel(*range(200))
        await settle()
        assert limiter._side is None
        assert limiter.delay() == 1.0
    assert sorted(crowd.cancelled) == list(range(200))


# -------------------------------------------------------------------- around the grant (asyncio)
#
# Within one turn of the loop both orders happen: the grant, then the cancellation, before the task
# could run; or the cancellation first, and then the timer finds a head that is not there any more.


def run(main: Callable[[VirtualTime], Any]) -> Any:
    with virtual_time() as time:
        return time.run(main, time)


async def start(limiter: Limiter, count: int, log: list[Any]) -> list[asyncio.Task[None]]:
    async def caller(name: int) -> None:
        await limiter.acquire()
        log.append((name, round(clock.now(), 6)))

    tasks = []
    for name in range(count):
        tasks.append(asyncio.create_task(caller(name)))
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("order", ["cancel, then timer", "timer, then cancel"])
def test_cancel_and_timer_in_one_turn_lose_nothing(order: str, algorithm: str) -> None:
    limiter = ALGORITHMS[algorithm]()

    async def main(time: VirtualTime) -> None:
        await limiter.acquire()
        log: list[Any] = []
        head, *others = await start(limiter, 3, log)
        due = limiter._needs(1)[0][0]._ready_at(time.now(), 1)
        # The loop takes what lies within its resolution, 1 ns, in one turn.
        when = due + (-0.4e-9 if order == "cancel, then timer" else 0.4e-9)
        asyncio.get_running_loop().call_at(when, head.cancel)
        await asyncio.wait([head, *others])
        assert head.cancelled()
        # The next in line got the very permit that the head did not want.
        assert [name for name, _ in log] == [1, 2]
        assert log[0][1] == round(due, 6)
        assert limiter.stats().granted == 3
        assert limiter.stats().seconds_waited == pytest.approx(log[0][1] + log[1][1])

    run(main)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_grant_that_nobody_takes_goes_back_if_nobody_waits(algorithm: str) -> None:
    limiter, untouched = ALGORITHMS[algorithm](), ALGORITHMS[algorithm]()

    async def main(time: VirtualTime) -> None:
        await limiter.acquire()
        untouched.allow()
        (task,) = await start(limiter, 1, [])
        due = limiter._needs(1)[0][0]._ready_at(time.now(), 1)
        asyncio.get_running_loop().call_at(due + 0.4e-9, task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()
        assert limiter.stats() == (1, 0, 0, 0.0)
        for cost in (0, 1):
            assert limiter.ready_at(cost=cost) == untouched.ready_at(cost=cost)
        assert limiter.allow()

    run(main)


@pytest.mark.parametrize("first", ["grant", "cancel"])
def test_a_refund_and_a_cancellation_in_one_turn(first: str) -> None:
    limiter = TokenBucket(rate=1, capacity=2, initial=0)

    async def main(time: VirtualTime) -> None:
        log: list[Any] = []
        head, other = await start(limiter, 2, log)
        if first == "grant":
            limiter.refund(1)
            head.cancel()
        else:
            head.cancel()
            limiter.refund(1)
        await asyncio.wait([head, other])
        assert log == [(1, 0.0)]
        assert limiter.ready_at() == 1.0

    run(main)


def test_each_of_a_row_of_grants_may_be_cancelled_before_it_runs() -> None:
    limiter = SlidingWindowLog(limit=5, window=1)

    async def main(time: VirtualTime) -> None:
        for _ in range(5):
            await limiter.acquire()
        log: list[Any] = []
        tasks = await start(limiter, 12, log)
        doomed = [0, 2, 3]
        for name in doomed:
            asyncio.get_running_loop().call_at(1.0 + 0.4e-9, tasks[name].cancel)
        await asyncio.wait(tasks)
        assert [name for name, _ in log] == [name for name in range(12) if name not in doomed]
        assert [instant for _, instant in log] == [1.0] * 5 + [2.0] * 4
        assert limiter.stats().granted == 5 + 9

    run(main)


def test_a_cancellation_that_is_swallowed_still_gives_the_permit_back() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)

    async def main(time: VirtualTime) -> None:
        async def stubborn() -> str:
            try:
                await limiter.acquire()
            except asyncio.CancelledError:
                return "swallowed"
            return "granted"

        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0.5)
        task.cancel()
        assert await task == "swallowed"
        assert limiter.stats() == (0, 0, 0, 0.0)

    run(main)


# -------------------------------------------------------------------- whoever cancels


@pytest.mark.parametrize("how", ["wait_for", "timeout", "fail_after", "move_on_after"])
def test_timeouts_of_others_leave_no_trace(how: str) -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)

    async def main(time: VirtualTime) -> None:
        try:
            if how == "wait_for":
                await asyncio.wait_for(limiter.acquire(), 0.5)
            elif how == "timeout":
                async with asyncio.timeout(0.5):
                    await limiter.acquire()
            elif how == "fail_after":
                with anyio.fail_after(0.5):
                    await limiter.acquire()
            else:
                with anyio.move_on_after(0.5) as scope:
                    await limiter.acquire()
                assert scope.cancelled_caught
                raise TimeoutError
        except TimeoutError:
            pass
        else:
            pytest.fail("was granted before its time")
        assert time.now() == 0.5
        assert limiter._side is None
        assert limiter.ready_at() == 1.0
        assert limiter.stats() == (0, 0, 0, 0.0)

    run(main)


@pytest.mark.parametrize("how", ["wait_for", "timeout"])
def test_a_timeout_of_others_at_the_very_instant_of_the_grant(how: str) -> None:
    """Whoever wins, the sum is right: granted and spent, or neither."""
    limiter = TokenBucket(rate=1, capacity=1, initial=0)

    async def main(time: VirtualTime) -> None:
        async def once(seconds: float) -> bool:
            try:
                if how == "wait_for":
                    await asyncio.wait_for(limiter.acquire(), seconds)
                else:
                    async with asyncio.timeout(seconds):
                        await limiter.acquire()
            except TimeoutError:
                return False
            return True

        for slip in (-0.4e-9, 0.0, 0.4e-9):
            limiter.reset()
            limiter._shift(time.now())  # `initial` counts from the first instant it is used
            granted = await once(limiter.delay() + slip)
            assert limiter.stats().granted == granted
            assert limiter.available() == (0 if granted else 1)

    run(main)


def test_a_cancelled_task_group_takes_all_its_waiters_with_it() -> None:
    limiter = TokenBucket(rate=1, capacity=1, initial=0)

    async def main(time: VirtualTime) -> None:
        async def fails() -> None:
            await asyncio.sleep(2.5)
            raise OSError

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(limiter.acquire())
                group.create_task(fails())

        with pytest.raises(ExceptionGroup):
            await together()
        assert limiter._side is None
        assert limiter.stats().granted == 2
        assert limiter.ready_at() == 3.0

    run(main)


def test_eager_tasks_stand_in_line_like_others() -> None:
    limiter = TokenBucket(rate=1, capacity=1)

    async def main(time: VirtualTime) -> None:
        if sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(4)]
        assert tasks[0].done() == (sys.version_info >= (3, 12))
        tasks[1].cancel()
        assert await tasks[3] == 2.0

    run(main)


# -------------------------------------------------------------------- coroutines that are dropped


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_coroutine_closed_outside_its_loop_leaves_no_trace(algorithm: str) -> None:
    limiter = ALGORITHMS[algorithm]()

    async def main(time: VirtualTime) -> Any:
        await limiter.acquire()
        call = limiter.acquire()
        call.send(None)
        assert limiter.stats().waiting == 1
        return call

    with virtual_time() as time:
        call = time.run(main, time)
        call.close()
        assert limiter.stats().waiting == 0
        assert limiter._side is None
        assert time.run(once, limiter) > 0


async def once(limiter: Limiter) -> float:
    return await limiter.acquire()


def test_a_dropped_coroutine_gives_its_place_to_the_next() -> None:
    limiter = TokenBucket(rate=1, capacity=2, initial=0)

    async def main(time: VirtualTime) -> None:
        call = limiter.acquire(2)
        call.send(None)
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.25)
        del call
        gc.collect()
        assert await task == 1.0

    run(main)


def test_a_granted_coroutine_that_is_dropped_gives_the_permit_to_the_next() -> None:
    limiter = TokenBucket(rate=1, capacity=2, initial=0)

    async def main(time: VirtualTime) -> None:
        call = limiter.acquire()
        call.send(None)
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        limiter.refund(1)  # granted to the first, which never runs
        call.close()
        assert await task == 0.0

    run(main)


class Collector(TokenBucket.__mro__[1]):
    """A bucket in whose decisions the garbage collector strikes."""

    garbage: Any = None

    def _ready_at(self, now: float, cost: float) -> float:
        ready = super()._ready_at(now, cost)
        garbage, self.garbage = self.garbage, None
        if garbage is not None:
            garbage.close()
        return float(ready)


@pytest.mark.parametrize("granted", [False, True])
def test_the_collector_may_strike_in_the_middle_of_a_decision(granted: bool) -> None:
    limiter: Any = Collector(1, 3, initial=0)

    async def main(time: VirtualTime) -> None:
        garbage = limiter.acquire()
        garbage.send(None)
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        if granted:
            limiter.refund(1)
        limiter.garbage = garbage
        waited = await asyncio.gather(*tasks)
        # It strikes when the first timer fires; what it held goes to the next then.
        assert waited == ([1.0, 1.0, 2.0] if granted else [1.0, 2.0, 3.0])
        assert limiter.stats().granted == 3
        assert limiter.ready_at() == time.now() + 1

    run(main)


# -------------------------------------------------------------------- what is told afterwards


@pytest.mark.anyio
@pytest.mark.parametrize("victim", [0, 5, 9])
async def test_what_a_newcomer_is_told_forgets_who_left(victim: int) -> None:
    limiter = TokenBucket(rate=1, capacity=3, initial=0)
    async with callers() as crowd:
        for name in range(10):
            await crowd.join(name, limiter, 1 + name % 2)
        assert limiter.delay() == 16.0
        crowd.cancel(victim)
        await settle()
        left = 15 - (1 + victim % 2)
        with pytest.raises(WaitTimeout) as failure:
            await limiter.acquire(timeout=3)
        assert failure.value.delay == left + 1
        await crowd.join("fits", limiter, timeout=left + 1)
        limiter.refund(2)
        await settle()
        assert limiter.delay() == left
    assert not crowd.errors


@pytest.mark.anyio
async def test_those_who_left_are_not_kept_in_a_line_that_does_not_move() -> None:
    limiter = TokenBucket(rate=0.001, capacity=1, initial=0)
    async with callers() as crowd:
        for name in range(500):
            await crowd.join(name, limiter)
        crowd.cancel(*range(1, 499))
        await settle()
        (line,) = limiter._side.lines.values()
        assert len(line) == 2
        assert len(line.waiters) < 50
    assert crowd.order == [0, 499]
