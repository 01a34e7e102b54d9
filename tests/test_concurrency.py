"""Concurrency: slots that are lent, on the line that rates have."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import subprocess
import sys
import threading
from math import inf
from typing import Any

import anyio
import pytest
from helpers.callers import settle

from throttle import AllOf, Concurrency, QueueFull, TokenBucket, WaitTimeout, clock
from throttle.concurrency import holder
from throttle.testing import virtual_time


class Crowd:
    """Callers that hold a slot for a while: who came in when, and how many were in at most."""

    def __init__(self, slots: Concurrency) -> None:
        self.slots = slots
        self.entered: list[tuple[Any, float]] = []
        self.errors: list[tuple[Any, type[Exception]]] = []
        self.inside = self.most = 0

    async def hold(self, name: Any, seconds: float, timeout: float | None = None) -> None:
        try:
            await self.slots.acquire(timeout=timeout)
        except Exception as error:
            self.errors.append((name, type(error)))
            return
        self.enter(name)
        try:
            await anyio.sleep(seconds)
        finally:
            self.inside -= 1
            self.slots.release()

    def enter(self, name: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.append((name, clock.now()))


@pytest.mark.anyio
async def test_no_more_than_n_are_in_and_the_others_come_in_turn() -> None:
    crowd = Crowd(Concurrency(2))
    async with anyio.create_task_group() as group:
        for name in range(5):
            group.start_soon(crowd.hold, name, 3)
            await settle()
    assert sorted(crowd.entered) == [(0, 0), (1, 0), (2, 3), (3, 3), (4, 6)]
    assert crowd.most == 2
    assert crowd.slots.stats() == (5, 0, 0, 12.0)


@pytest.mark.anyio
async def test_nobody_is_overtaken_while_somebody_waits() -> None:
    slots = Concurrency(1)
    crowd = Crowd(slots)
    async with anyio.create_task_group() as group:
        group.start_soon(crowd.hold, "first", 1)
        await settle()
        group.start_soon(crowd.hold, "second", 1)
        await settle()
        assert not slots.allow()
        slots.n = 5
        assert slots.available == 3, "the waiter came in, and nobody waits any more"
        assert slots.allow()
        slots.release()
    assert slots.taken == 0


@pytest.mark.anyio
async def test_raising_n_lets_waiters_in_and_lowering_it_throws_nobody_out() -> None:
    crowd = Crowd(Concurrency(1))
    async with anyio.create_task_group() as group:
        for name in range(6):
            group.start_soon(crowd.hold, name, 10)
            await settle()
        await anyio.sleep(1)
        crowd.slots.n = 3
        await anyio.sleep(1)
        crowd.slots.n = 1
        assert crowd.slots.taken == 3
    # trio runs those whose turn came at one instant in an order of its own.
    assert sorted(crowd.entered) == [(0, 0), (1, 1), (2, 1), (3, 11), (4, 21), (5, 31)]


@pytest.mark.anyio
async def test_a_timeout_is_waited_for_since_nobody_can_tell() -> None:
    crowd = Crowd(Concurrency(1))
    async with anyio.create_task_group() as group:
        group.start_soon(crowd.hold, "in", 10)
        await settle()
        group.start_soon(crowd.hold, "patient", 1, 11)
        await settle()
        group.start_soon(crowd.hold, "forever", 1, inf)
        with pytest.raises(WaitTimeout) as caught:
            await crowd.slots.acquire(timeout=4)
        assert (clock.now(), caught.value.delay, caught.value.timeout) == (4, inf, 4)
        with pytest.raises(WaitTimeout):
            await crowd.slots.acquire(timeout=0)
        assert clock.now() == 4
    assert sorted(name for name, _ in crowd.entered) == ["forever", "in", "patient"]
    assert crowd.slots.stats().denied == 2
    assert crowd.slots.stats().waiting == 0


@pytest.mark.anyio
async def test_max_waiting_bounds_the_line() -> None:
    crowd = Crowd(Concurrency(1, max_waiting=1))
    async with anyio.create_task_group() as group:
        for name in range(3):
            group.start_soon(crowd.hold, name, 1)
            await settle()
    assert crowd.errors == [(2, QueueFull)]


@pytest.mark.anyio
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.5])
async def test_cancelling_at_any_point_loses_no_slot(after: float) -> None:
    slots = Concurrency(1)
    crowd = Crowd(slots)
    async with anyio.create_task_group() as group:
        group.start_soon(crowd.hold, "in", 1)
        await settle()
        doomed = await group.start(cancellable, crowd, "doomed")
        group.start_soon(crowd.hold, "behind", 1)
        await anyio.sleep(after)
        doomed.cancel()
    assert slots.taken == 0
    assert slots.stats().waiting == 0
    assert crowd.entered[0] == ("in", 0)
    assert ("behind", max(1.0, after)) in crowd.entered


async def cancellable(crowd: Crowd, name: str, *, task_status: Any) -> None:
    with anyio.CancelScope() as scope:
        task_status.started(scope)
        await crowd.hold(name, 10)


def test_a_slot_granted_in_the_very_turn_of_a_cancellation_goes_to_the_next() -> None:
    slots = Concurrency(1)

    async def main(order: str) -> list[str]:
        log = []

        async def caller(name: str) -> None:
            async with slots:
                log.append(name)

        await slots.acquire()
        tasks = [asyncio.create_task(caller(name)) for name in ("doomed", "next")]
        await asyncio.sleep(0)
        if order == "release first":
            slots.release()
            tasks[0].cancel()
        else:
            tasks[0].cancel()
            slots.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        return log

    with virtual_time() as time:
        for order in ("release first", "cancel first"):
            assert time.run(main, order) == ["next"]
            assert slots.taken == 0


@pytest.mark.anyio
async def test_random_comings_and_goings_keep_the_count() -> None:
    dice = random.Random(7)
    crowd = Crowd(Concurrency(3))
    async with anyio.create_task_group() as group:
        for name in range(300):
            if dice.random() < 0.3:
                scope = await group.start(cancellable, crowd, name)
                await anyio.sleep(dice.random() / 10)
                if dice.random() < 0.7:
                    scope.cancel()
            else:
                group.start_soon(crowd.hold, name, dice.random(), dice.choice([None, 0, 1.0]))
            if dice.random() < 0.1:
                crowd.slots.n = dice.randint(1, 3)
            assert crowd.slots.taken <= 3
            await anyio.sleep(dice.random() / 10)
        crowd.slots.n = 3
    assert crowd.most <= 3
    assert (crowd.slots.taken, crowd.slots.available) == (0, 3)
    assert crowd.slots.stats().waiting == 0


@pytest.mark.anyio
async def test_whoever_holds_every_slot_would_wait_for_himself() -> None:
    slots = Concurrency(2)
    async with slots:
        async with slots:
            with pytest.raises(RuntimeError, match="itself"):
                await slots.acquire()
            with pytest.raises(RuntimeError, match="itself"):
                await slots.acquire(timeout=5)
            with pytest.raises(WaitTimeout):
                await slots.acquire(timeout=0)
            assert not slots.allow()
        async with slots:
            assert slots.taken == 2
    assert slots.taken == 0
    assert clock.now() == 0


def test_a_thread_that_holds_every_slot_too() -> None:
    slots = Concurrency(1)
    with slots, pytest.raises(RuntimeError, match="itself"), slots:
        pass
    assert slots.taken == 0


@pytest.mark.anyio
async def test_another_holder_is_waited_for() -> None:
    slots = Concurrency(2)
    crowd = Crowd(slots)
    async with anyio.create_task_group() as group:
        group.start_soon(crowd.hold, "other", 3)
        await settle()
        async with slots, slots:
            assert clock.now() == 3
    assert slots.taken == 0


@pytest.mark.anyio
async def test_a_slot_may_be_given_back_by_somebody_else() -> None:
    slots = Concurrency(1)
    await slots.acquire()
    mine = holder()

    async def release(of: object) -> None:
        slots.release(of)

    async with anyio.create_task_group() as group:
        group.start_soon(release, mine)
    async with slots:  # and the one who had it holds nothing any more
        pass
    await slots.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(release, None)
    assert slots.taken == 0
    async with slots:
        with pytest.raises(RuntimeError, match="does not hold"):
            slots.release(of="nobody")


def test_releasing_what_nobody_holds_is_an_error() -> None:
    slots = Concurrency(1)
    with pytest.raises(RuntimeError, match="nobody holds"):
        slots.release()
    assert slots.taken == 0


def test_threads_stand_in_the_same_kind_of_line() -> None:
    slots = Concurrency(2)
    log: list[tuple[int, float]] = []
    with virtual_time() as time:

        def work(name: int) -> None:
            with slots:
                log.append((name, time.now()))
                time.sleep(5)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(instant for _, instant in log) == [0, 0, 5, 5, 10]
    assert slots.taken == 0


def test_tasks_of_several_loops_and_threads_share_the_slots() -> None:
    slots = Concurrency(2)
    inside = most = 0
    count = threading.Lock()

    def step(by: int) -> None:
        nonlocal inside, most
        with count:
            inside += by
            most = max(most, inside)

    async def task() -> None:
        for _ in range(20):
            async with slots:
                step(1)
                await asyncio.sleep(0)
                step(-1)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(3)))

    def thread() -> None:
        for _ in range(20):
            with slots:
                step(1)
                step(-1)

    crew = [threading.Thread(target=asyncio.run, args=(tasks(),)) for _ in range(2)]
    crew += [threading.Thread(target=thread) for _ in range(2)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    assert most == 2
    assert (slots.taken, slots.stats().granted, slots.stats().waiting) == (0, 160, 0)


def test_a_loop_that_ended_with_waiters_blocks_nobody() -> None:
    slots = Concurrency(1)

    async def leaves_waiters() -> None:
        waiting = [asyncio.ensure_future(slots.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        assert slots.stats().waiting == 3
        for task in waiting:
            task.cancel()

    async def comes_later() -> float:
        return await slots.acquire()

    with virtual_time() as time:
        assert slots.allow()
        time.run(leaves_waiters)
        assert slots.stats().waiting == 0
        slots.release()
        assert time.run(comes_later) == 0


FORKED = """
import json, os, threading
from throttle import Concurrency

slots = Concurrency(2)
held, over = threading.Event(), threading.Event()

def other():
    with slots:
        held.set()
        over.wait()

thread = threading.Thread(target=other)
thread.start()
held.wait()
slots.acquire_sync()
reader, writer = os.pipe()
if not os.fork():
    seen = [slots.taken, slots.available, slots.allow(), slots.allow(), slots.taken]
    slots.release()
    slots.release()
    os.write(writer, json.dumps([*seen, slots.taken]).encode())
    os._exit(0)
os.close(writer)
print(os.read(reader, 1000).decode())
os.wait()
over.set()
thread.join()
"""


def test_in_a_forked_child_the_slots_of_threads_that_are_not_there_are_free() -> None:
    program = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=True
    )
    # The thread that forked still holds its own: one more is free, and then none.
    assert json.loads(program.stdout) == [1, 1, True, False, 2, 0]


@pytest.mark.parametrize("n", [0, -1, 1.5, inf, float("nan"), True, "2", None])
def test_a_bad_n_is_an_error_that_names_it_and_changes_nothing(n: Any) -> None:
    slots = Concurrency(2)
    with pytest.raises((ValueError, TypeError), match="n must"):
        slots.n = n
    assert slots.n == 2
    with pytest.raises((ValueError, TypeError), match="n must"):
        Concurrency(n)


def test_it_is_no_member_of_a_composite_since_it_is_given_back() -> None:
    with pytest.raises(TypeError):
        AllOf(TokenBucket(1), Concurrency(1))


def test_it_says_what_it_is() -> None:
    slots = Concurrency(3)
    with slots:
        assert repr(slots) == "Concurrency(3, taken=1)"
    with pytest.raises(WaitTimeout) as caught, Concurrency(1) as one:
        one.acquire_sync(timeout=0)
    assert pickle.loads(pickle.dumps(caught.value)).delay == inf
