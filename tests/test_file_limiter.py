"""One limit in a file: the same answers as the plain classes, whatever happens to its processes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers import processes
from helpers.templates import EVERY, GAPS, SIZES, VERBS
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    Concurrency,
    CostTooLarge,
    FileLocked,
    FileRefused,
    LeakyBucket,
    Limiter,
    QueueFull,
    SlidingWindowLog,
    SupportsAcquire,
    TokenBucket,
    WaitTimeout,
)
from throttle.shared import crowd, statefile
from throttle.shared.crowd import Head
from throttle.shared.file import FileLimiter
from throttle.shared.statefile import Record, StateFile

CALLS = st.lists(st.tuples(GAPS, VERBS, SIZES, st.booleans()), max_size=25)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api.limit"


# -------------------------------------------------------------------- the same answers


@EVERY
@settings(max_examples=25, deadline=None)
@given(calls=CALLS, start=st.sampled_from([0.0, 1e6]))
def test_two_objects_on_a_file_answer_as_one_plain_limiter(
    make: Callable[[], Limiter], calls: list[tuple[float, str, int, bool]], start: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = make()
        pair = [FileLimiter(f"{folder}/x", make()) for _ in range(2)]
        now = start
        for gap, verb, size, which in calls:
            now += gap
            mine = pair[which]
            if verb == "allow":
                assert mine.allow(now, size) == plain.allow(now, size)
            elif verb == "resume":
                mine.resume()
                plain.resume()
            else:
                getattr(mine, verb)(size, now)
                getattr(plain, verb)(size, now)
            for cost in (1, 3):
                assert pair[not which].ready_at(now, cost) == plain.ready_at(now, cost)
                assert pair[not which].delay(now, cost) == plain.delay(now, cost)
            assert pair[not which].available(now) == plain.available(now)
            assert pair[not which].fresh_at(now) == plain.fresh_at(now)


@EVERY
def test_small_and_large_steps_back_of_the_clock_are_taken_as_the_plain_class_takes_them(
    make: Callable[[], Limiter], path: Path
) -> None:
    plain, mine = make(), FileLimiter(path, make())
    for now in (1000.0, 1000.5, 1000.25, 3.0, 3.5, 2.9, 4.5):
        mine.charge(2, now)
        plain.charge(2, now)
        assert mine.allow(now) == plain.allow(now)
        assert FileLimiter(path, make()).ready_at(now) == plain.ready_at(now)


@EVERY
def test_a_reset_makes_it_as_new_for_everybody(make: Callable[[], Limiter], path: Path) -> None:
    one, other = FileLimiter(path, make()), FileLimiter(path, make())
    one.charge(3, 50.0)
    one.pause(9, 50.0)
    other.reset()
    assert one.available(10.0) == make().available(10.0)
    assert one.delay(10.0, 4) == make().delay(10.0, 4)


def test_a_composite_takes_a_cost_for_each_member(path: Path) -> None:
    both = TokenBucket(1, 5) & TokenBucket(1, 50)
    limiter = FileLimiter(path, both)
    assert limiter.allow(0.0, (1, 40))  # type: ignore[arg-type]
    assert not limiter.allow(0.0, (1, 40))  # type: ignore[arg-type]
    assert limiter.delay(0.0, (1, 40)) == 30.0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one entry a member"):
        limiter.allow(0.0, (1, 2, 3))  # type: ignore[arg-type]


def test_the_template_is_only_copied(path: Path) -> None:
    template = TokenBucket(1, 5)
    template.charge(5, 0.0)
    limiter = FileLimiter(path, template)
    assert limiter.available(0.0) == 5
    assert limiter.allow(0.0)
    assert template.available(0.0) == 0


def test_a_log_remembers_debts_of_single_permits(path: Path) -> None:
    plain, mine = SlidingWindowLog(3, 10), FileLimiter(path, SlidingWindowLog(3, 10))
    for step in range(400):  # round the ring several times
        now = step * 0.7
        for limiter in (plain, mine):
            for _ in range(step % 5):
                limiter.charge(1, now)
            limiter.refund(step % 3, now)
        assert mine.delay(now) == plain.delay(now)
        assert mine.available(now) == plain.available(now)


def test_calls_of_many_processes_at_one_instant_are_told_apart(path: Path) -> None:  # B077
    crowd_of = [FileLimiter(path, SlidingWindowLog(5, 60)) for _ in range(4)]
    assert sum(limiter.allow(1000.0) for _ in range(5) for limiter in crowd_of) == 5
    assert {limiter.delay(1000.0) for limiter in crowd_of} == {60.0}


@pytest.mark.parametrize(
    "make",
    [lambda: SlidingWindowLog(3, 10), lambda: SlidingWindowLog(3, 10) & SlidingWindowLog(9, 20)],
)
def test_the_largest_debts_are_counted_and_larger_ones_refused(
    make: Callable[[], Limiter], path: Path
) -> None:
    limiter = FileLimiter(path, make())
    with pytest.raises(ValueError, match="cost must be at most"):
        limiter.charge(2**50 + 1, 0.0)
    assert limiter.available(0.0) == 3
    for _ in range(4):
        limiter.charge(2**50, 0.0)
    assert [sum(limiter.allow(at) for _ in range(9)) for at in (1, 50, 100, 150)] == [0, 3, 3, 3]


def test_statistics_are_those_of_the_object(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 2)) for _ in range(2))
    assert [one.allow(0.0), one.allow(0.0), one.allow(0.0), other.allow(0.0)] == [1, 1, 0, 0]
    assert one.stats()[:2] == (2, 1)
    assert other.stats()[:2] == (0, 1)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("10/s", TypeError),
        (Concurrency, TypeError),
        (None, TypeError),
    ],
)
def test_what_is_no_limiter_is_named(template: Any, error: type[Exception], path: Path) -> None:
    with pytest.raises(error, match="limiter must be"):
        FileLimiter(path, template)
    assert not path.exists()


def test_a_patience_that_is_none_is_named(path: Path) -> None:
    with pytest.raises(ValueError, match="patience"):
        FileLimiter(path, TokenBucket(1), patience=0)


def test_it_goes_to_another_process_by_pickle(path: Path) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 5), patience=3)
    limiter.charge(4, 0.0)
    twin = pickle.loads(pickle.dumps(limiter))
    assert twin.available(0.0) == 1
    assert twin._shared.patience == 3
    assert repr(twin) == repr(limiter)
    assert isinstance(twin, SupportsAcquire)


# -------------------------------------------------------------------- the line


@pytest.mark.anyio
async def test_callers_of_a_process_go_in_order_and_processes_in_turn(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    order: list[tuple[str, float]] = []

    async def call(name: str, limiter: FileLimiter, cost: float = 1) -> None:
        await limiter.acquire(cost)
        order.append((name, anyio.current_time()))

    start = anyio.current_time()
    await one.acquire()
    async with anyio.create_task_group() as group:
        for name, limiter in (("a", one), ("b", one), ("c", one), ("x", other), ("y", other)):
            group.start_soon(call, name, limiter)
            await anyio.sleep(0.01)
        assert not other.allow()
        assert one.stats().waiting == 3
        assert other.delay() == pytest.approx(4 - 0.05, abs=1e-9)  # behind x, y and a's process
    assert [name for name, _ in order] == ["a", "x", "b", "y", "c"]
    assert [at - start for _, at in order] == pytest.approx([1, 2, 3, 4, 5], abs=1e-9)


@pytest.mark.anyio
async def test_a_window_that_opens_for_all_is_shared_in_parts(path: Path) -> None:
    crowd_of = [FileLimiter(path, SlidingWindowLog(40, 10)) for _ in range(4)]
    await crowd_of[0].acquire(40)
    async with anyio.create_task_group() as group:
        for limiter in crowd_of:
            for _ in range(30):
                group.start_soon(limiter.acquire)
        await anyio.sleep(11)
        shares = [limiter.stats().granted for limiter in crowd_of]
        group.cancel_scope.cancel()
    assert sum(shares) == 40 + 1
    assert min(shares) >= 8


@pytest.mark.anyio
async def test_what_one_process_does_not_want_the_others_get(path: Path) -> None:
    one, other = (FileLimiter(path, SlidingWindowLog(40, 10)) for _ in range(2))
    await one.acquire(40)
    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(other.acquire)
        for _ in range(39):
            group.start_soon(one.acquire)
    assert anyio.current_time() - start < 10.1


@pytest.mark.anyio
async def test_a_cancelled_caller_leaves_no_trace(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    start = anyio.current_time()
    await one.acquire()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.5):
            await one.acquire()
        assert one._shared._heads == []
        group.start_soon(other.acquire)
    assert anyio.current_time() - start == pytest.approx(1, abs=1e-9)
    assert one.stats()[:3] == (1, 0, 0)


@pytest.mark.anyio
async def test_the_next_caller_takes_the_place_of_a_cancelled_head(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    order: list[str] = []

    async def call(name: str, limiter: FileLimiter) -> None:
        await limiter.acquire()
        order.append(name)

    await one.acquire()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.4):
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(call, "gone", one)
                await anyio.sleep(0.1)
                group.start_soon(call, "heir", one)
                await anyio.sleep(0.1)
                group.start_soon(call, "other", other)
    assert order == ["heir", "other"]


@pytest.mark.anyio
async def test_a_wait_beyond_the_timeout_fails_at_once(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 2)) for _ in range(2))
    await one.acquire(2)
    before = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(one.acquire)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(WaitTimeout) as failure:
            await other.acquire(timeout=1.5)
        assert anyio.current_time() == before
        assert failure.value.delay == pytest.approx(2, abs=1e-9)
        assert await other.acquire(timeout=2.5) == pytest.approx(2, abs=1e-9)


@pytest.mark.anyio
async def test_the_errors_of_acquire(path: Path) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 2, max_waiting=1))
    assert await limiter.acquire(0) == 0
    with pytest.raises(CostTooLarge):
        await limiter.acquire(3)
    with pytest.raises(ValueError, match="timeout"):
        await limiter.acquire(1, timeout=-1)
    async with limiter, limiter:
        pass
    async with anyio.create_task_group() as group:
        group.start_soon(limiter.acquire)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(QueueFull):
            await limiter.acquire()
    assert limiter._shared._heads == []


@pytest.mark.anyio
async def test_a_pause_by_another_process_holds_those_who_sleep(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    start = anyio.current_time()
    await one.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(one.acquire)
        await anyio.sleep(0.5)
        other.pause(20)
        assert other.delay() == pytest.approx(21)
        await anyio.sleep(19.9)
        assert one.stats().granted == 1
    assert anyio.current_time() - start == pytest.approx(20.5, abs=1e-9)


@pytest.mark.anyio
async def test_a_resume_by_another_process_is_seen_within_a_second(path: Path) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    other.pause(inf)
    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(one.acquire)
        await anyio.sleep(7.3)
        other.resume()
    assert anyio.current_time() - start == pytest.approx(8, abs=1e-9)


@pytest.mark.anyio
async def test_a_debt_made_by_another_process_delays_who_waits_and_fails_who_cannot(
    path: Path,
) -> None:
    one, other = (FileLimiter(path, TokenBucket(1, 1)) for _ in range(2))
    start = anyio.current_time()
    failed: list[float] = []

    async def hurried() -> None:
        with pytest.raises(WaitTimeout):
            await one.acquire(timeout=3)
        failed.append(anyio.current_time() - start)

    await one.acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(one.acquire)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(hurried)
        await anyio.sleep(0.5)
        other.charge(5)
    assert anyio.current_time() - start == pytest.approx(6, abs=1e-9)
    assert len(failed) == 1
    assert failed[0] <= 3.01


def plant(limiter: FileLimiter, head: Head) -> None:
    """Leave a head in the line of the file, as a process does that is killed in it."""
    assert limiter._shared.run(limiter._shared._put, head)


@pytest.mark.anyio
async def test_the_head_of_a_process_that_was_killed_costs_one_slot_and_is_forgotten(
    path: Path,
) -> None:
    limiter, dead = (FileLimiter(path, TokenBucket(10, 1)) for _ in range(2))
    await limiter.acquire()
    start = anyio.current_time()
    shared = dead._shared
    plant(dead, Head(1, shared._now(), shared._now() + 0.1, (1.0,)))
    waits = [await limiter.acquire() for _ in range(40)]
    assert anyio.current_time() - start <= 4.1 + 1e-9
    assert sum(waits) == pytest.approx(anyio.current_time() - start)
    assert limiter._shared._heads == []
    assert await limiter.acquire() > 0


@pytest.mark.anyio
async def test_a_dead_head_with_a_dear_wish_is_dropped_when_it_does_not_look(path: Path) -> None:
    limiter, dead = (FileLimiter(path, TokenBucket(1, 1000)) for _ in range(2))
    limiter.charge(1000)
    shared = dead._shared
    plant(dead, Head(1, shared._now(), shared._now() + 900, (900.0,)))
    assert not limiter.allow()
    assert 2.5 <= await limiter.acquire() <= 3.5


@pytest.mark.anyio
@EVERY
async def test_every_algorithm_answers_and_serves_a_line_of_two_processes(
    make: Callable[[], Limiter], path: Path
) -> None:
    one, other = FileLimiter(path, make()), FileLimiter(path, make())
    before = anyio.current_time()
    for limiter in (one, other):
        with anyio.move_on_after(200):
            await limiter.acquire(timeout=100)
    one.charge(2)
    async with anyio.create_task_group() as group:
        for limiter in (one, other, one, other):
            group.start_soon(let_in, limiter)
        await anyio.wait_all_tasks_blocked()
        told = [limiter.delay() for limiter in (one, other)]
        assert min(told) >= 0
    assert one.stats().granted + other.stats().granted <= 2 + 4
    assert one.stats().waiting == other.stats().waiting == 0
    assert one.available() >= 0
    assert anyio.current_time() - before <= 100


async def let_in(limiter: FileLimiter) -> None:
    """`acquire`, that comes as soon as the limiter says, or not at all where nothing is earned."""
    promised = limiter.delay()
    try:
        waited = await limiter.acquire(timeout=60)
    except (CostTooLarge, WaitTimeout):
        assert promised > 60 or promised == inf
    else:
        assert waited >= promised - 1e-9


@pytest.mark.anyio
async def test_more_processes_than_the_file_has_room_for(path: Path) -> None:
    crowd_of = [FileLimiter(path, TokenBucket(10, 1)) for _ in range(crowd._HEADS + 5)]
    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        for limiter in crowd_of:
            group.start_soon(limiter.acquire)
    assert sum(limiter.stats().granted for limiter in crowd_of) == crowd._HEADS + 5
    assert anyio.current_time() - start >= (crowd._HEADS + 4) / 10 - 1e-9
    assert crowd_of[0].available() == 0


@pytest.mark.anyio
async def test_a_leaky_bucket_sends_on_evenly_whoever_asks(path: Path) -> None:
    crowd_of = [FileLimiter(path, LeakyBucket(2, 20)) for _ in range(3)]
    start = anyio.current_time()
    times: list[float] = []

    async def call(limiter: FileLimiter) -> None:
        await limiter.acquire()
        times.append(anyio.current_time() - start)

    async with anyio.create_task_group() as group:
        for limiter in crowd_of * 3:
            group.start_soon(call, limiter)
    assert times == pytest.approx([0.5 * step for step in range(9)], abs=1e-9)


async def in_a_thread(limiter: FileLimiter) -> None:
    await anyio.to_thread.run_sync(limiter.acquire_sync)


@pytest.mark.anyio
async def test_threads_and_the_loop_use_one_object(path: Path) -> None:
    limiter = FileLimiter(path, TokenBucket(1000, 1))
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(in_a_thread, limiter)
            group.start_soon(limiter.acquire)
    assert limiter.stats().granted == 8
    limiter.charge(10)
    with pytest.raises(RuntimeError, match=r"await limiter\.acquire"):
        limiter.acquire_sync()


def test_threads_never_get_more_than_there_is(path: Path) -> None:
    limiters = [FileLimiter(path, TokenBucket(0, 500)) for _ in range(2)]
    got: list[int] = []

    def work(limiter: FileLimiter) -> None:
        got.append(sum(limiter.allow() for _ in range(200)))

    threads = [threading.Thread(target=work, args=(limiters[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 500
    with pytest.raises(CostTooLarge):
        limiters[0].acquire_sync()


# -------------------------------------------------------------------- somebody else has the lock


@pytest.fixture
def held(path: Path) -> Iterator[Callable[[], None]]:
    """Takes the lock of a file that exists, as another process would; call it again to let go."""
    fds: list[int] = []

    def toggle() -> None:
        if fds:
            os.close(fds.pop())
        else:
            fds.append(os.open(path, os.O_RDWR))
            fcntl.flock(fds[0], fcntl.LOCK_EX)

    yield toggle
    for fd in fds:
        os.close(fd)


@pytest.mark.anyio
async def test_acquire_waits_for_the_lock_without_blocking_its_loop(
    path: Path, held: Callable[[], None]
) -> None:
    limiter = FileLimiter(path, TokenBucket(1000, 1000), patience=60)
    order: list[int] = []

    async def call(number: int) -> None:
        assert await limiter.acquire() > 0
        order.append(number)

    held()
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(call, number)
            await anyio.sleep(0.7)
        assert order == []
        held()
    assert order == [0, 1, 2, 3, 4]
    assert limiter.stats().granted == 5


@pytest.mark.anyio
async def test_who_gives_up_knocking_does_not_shut_the_door(
    path: Path, held: Callable[[], None]
) -> None:
    limiter = FileLimiter(path, TokenBucket(1000, 1000), patience=60)
    held()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(1):
            await limiter.acquire()
        group.start_soon(limiter.acquire)
        await anyio.sleep(1)
        held()
    assert limiter.stats()[:3] == (1, 0, 0)


@pytest.mark.anyio
async def test_a_lock_that_never_comes_free_is_an_error_for_newcomers_and_for_those_in_line(
    path: Path, held: Callable[[], None]
) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 1), patience=1.5)
    await limiter.acquire()
    start = anyio.current_time()
    errors: list[FileLocked] = []

    async def call() -> None:
        with pytest.raises(FileLocked, match="locked by another process") as failure:
            await limiter.acquire()
        errors.append(failure.value)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        group.start_soon(call)
        await anyio.sleep(0.1)
        held()
        group.start_soon(call)
    assert len(errors) == 3
    assert {error.path for error in errors} == {str(path)}
    assert min(error.seconds for error in errors) >= 1.5
    assert anyio.current_time() - start < 4
    held()
    assert await limiter.acquire() == 0


@pytest.mark.anyio
async def test_who_is_cancelled_while_the_lock_is_away_leaves_the_line(
    path: Path, held: Callable[[], None]
) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 1), patience=60)
    start = anyio.current_time()
    await limiter.acquire()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as inner:
                inner.start_soon(limiter.acquire)
                await anyio.sleep(0.1)
                group.start_soon(limiter.acquire)
                held()
        await anyio.sleep(1)
        held()
    assert limiter.stats()[:3] == (2, 0, 0)
    assert limiter.available() < 1
    assert limiter._shared._heads == []
    assert anyio.current_time() - start < 1.7


def test_allow_gives_up_on_a_lock_after_its_patience(path: Path, held: Callable[[], None]) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 1), patience=0.02)
    held()
    with pytest.raises(FileLocked, match="is it stopped"):
        limiter.allow()
    with pytest.raises(FileLocked):
        limiter.acquire_sync()
    held()
    assert limiter.allow()


def test_a_file_whose_lock_is_away_can_be_opened(path: Path, held: Callable[[], None]) -> None:
    FileLimiter(path, TokenBucket(1, 1))
    held()
    limiter = FileLimiter(path, TokenBucket(1, 1))
    held()
    assert limiter.allow()


# -------------------------------------------------------------------- processes


def test_no_window_of_four_processes_ever_holds_more_than_the_limit(path: Path) -> None:
    grants = processes.play("window", path)
    before = sorted(t for times in grants for t in times[::2])
    after = sorted(t for times in grants for t in times[1::2])
    assert len(after) > 50
    # The grant lies between the two, so if this fails some window held 51.
    assert all(late - early >= 0.05 for early, late in zip(before, after[50:], strict=False))


def test_no_window_of_four_processes_in_line_ever_holds_more_than_the_limit(path: Path) -> None:
    grants = processes.play("line", path)
    assert [len(times) for times in grants] == [40] * 4
    charged = sorted(t for times in grants for t in times)
    assert all(
        late - early >= 0.05 - 1e-9 for early, late in zip(charged, charged[16:], strict=False)
    )


def test_a_holder_that_is_killed_anywhere_leaves_the_file_whole(path: Path) -> None:
    seen = processes.play("kills", path)
    assert len(seen) == 240
    assert sum(told for _, told in seen) > 240
    # What was spent is what was told, but for the one permit whose telling was cut off.
    assert {spent - told for spent, told in seen} <= {0, 1}


def test_a_user_of_every_verb_that_is_killed_anywhere_leaves_the_file_whole(path: Path) -> None:
    levels = processes.play("kills_of_all_verbs", path)
    assert len(levels) == 150
    assert all(0 <= level <= 40 for level in levels)


def test_a_holder_that_is_stopped_is_a_clear_error(path: Path) -> None:
    report = processes.play("stopped", path)
    assert report["child"] == "held, free"
    for text in report["seen"].values():
        assert "has been locked by another process for 0.1" in text
        assert "(is it stopped?)" in text
    assert len(report["seen"]) == 4
    assert report["left"] == 5


def test_a_forked_child_has_a_lock_and_a_line_of_its_own(path: Path) -> None:
    text, parent_got_it, waiting, left = processes.play("forked", path)
    assert text == "locked, 0 in line"
    assert parent_got_it is None
    assert waiting == 0
    assert left == 1


# -------------------------------------------------------------------- the machine starts anew


@EVERY
@pytest.mark.parametrize(
    "gap", [0.0, 2.0, 1e5, -50.0], ids=["at-once", "soon", "late", "backwards"]
)
def test_after_a_reboot_ages_go_on_by_the_wall_clock(
    make: Callable[[], Limiter], gap: float, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wall = Clock(5000.0), Clock(1.7e9)
    monkeypatch.setattr(crowd, "wall_clock", wall)
    plain = make()
    plain._clock = clock
    for member in getattr(plain, "members", ()):
        member._clock = clock
        for inner in getattr(member, "members", ()):
            inner._clock = clock
    before = FileLimiter(path, plain)
    for limiter in (before, plain):
        limiter.charge(4)
    before.close()
    monkeypatch.setattr(crowd, "boot_id", lambda: b"another boot....")
    clock.now, wall.now = 3.0, 1.7e9 + gap
    after = FileLimiter(path, plain)
    age = max(0.0, gap)
    assert after.delay() == pytest.approx(plain.delay(5000.0 + age), abs=1e-6)
    assert after.available() == pytest.approx(plain.available(5000.0 + age), abs=1e-6)
    after.charge(1)
    plain.charge(1, 5000.0 + age)
    again = FileLimiter(path, plain)
    assert again.delay() == pytest.approx(plain.delay(5000.0 + age), abs=1e-6)


def test_a_pause_outlives_a_reboot_and_a_line_does_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wall = Clock(5000.0), Clock(1.7e9)
    monkeypatch.setattr(crowd, "wall_clock", wall)
    before = FileLimiter(path, TokenBucket(1, 5, clock=clock))
    before.pause(60)
    plant(before, Head(1, 5000.0, 5060.0, (1.0,)))
    monkeypatch.setattr(crowd, "boot_id", lambda: b"another boot....")
    clock.now, wall.now = 3.0, 1.7e9 + 20
    after = FileLimiter(path, TokenBucket(1, 5, clock=clock))
    assert after.delay() == pytest.approx(40)
    assert after._shared._heads == []


def test_five_thousand_a_day_holds_when_the_program_is_started_twice(path: Path) -> None:
    for started in range(2):
        limiter = FileLimiter(path, SlidingWindowLog.from_rate("5000/day"))
        granted = sum(limiter.allow(100.0 + started) for _ in range(3000))
        limiter.close()
        assert granted == (3000, 2000)[started]


def test_a_system_that_does_not_name_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(statefile.boot_id()) == 16
    monkeypatch.setattr("builtins.open", lambda *a, **k: (_ for _ in ()).throw(OSError))
    assert statefile.boot_id() == bytes(16)


# -------------------------------------------------------------------- files that are not ours


def whole(path: Path) -> bytes:
    FileLimiter(path, TokenBucket(1, 5)).charge(2, 0.0)
    return path.read_bytes()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "holds no state"),
        (lambda data: b"x", "holds no state"),
        (lambda data: b"[limits]\nrate = 5\n" * 500, "holds no state"),
        (lambda data: b"throttle", "holds no state"),
        (lambda data: data[:-1], "is torn: 8191 bytes"),
        (lambda data: data[:4096], "is torn: 4096 bytes"),
        (lambda data: data + b"\0", "is torn"),
        (lambda data: data + bytes(10**7), "is torn"),
        (lambda data: flipped(data, 8), "version"),
        (lambda data: flipped(data, 30), "header does not add up"),
        (lambda data: flipped(data, 4096), "there is no slot"),
        (lambda data: flipped(data, 4160 + 20), "record does not add up"),
        (lambda data: data[:4096] + bytes(4096), "record does not add up"),
    ],
    ids=[
        "empty", "one-byte", "foreign", "magic-only", "short", "header-only", "long", "huge",
        "version", "header", "slot", "record", "wiped",
    ],
)  # fmt: skip
def test_a_foreign_or_torn_file_is_refused_and_left_as_it_is(
    damage: Callable[[bytes], bytes], why: str, path: Path
) -> None:
    data = whole(path)
    current = data[4096]
    if current and why == "record does not add up":  # damage the slot that counts
        data = data[:4096] + b"\0" + data[4097:]
        slot = -(-(48 + 8 * 5 + 32 * 32 + 4) // 64) * 64
        data = data[:4160] + data[4160 + slot : 4160 + 2 * slot] + data[4160 + slot :]
    bad = damage(data)
    path.write_bytes(bad)
    stamp = path.stat().st_mtime_ns
    with pytest.raises(FileRefused, match=why) as failure:
        FileLimiter(path, TokenBucket(1, 5))
    assert failure.value.path == str(path)
    assert isinstance(failure.value, ValueError)
    assert path.read_bytes() == bad
    assert path.stat().st_mtime_ns == stamp
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "other",
    [
        TokenBucket(1, 6), TokenBucket(2, 5), LeakyBucket(1, 5), SlidingWindowLog(5, 1),
        TokenBucket(1, 5) & TokenBucket(1, 5),
    ],
    ids=str,
)  # fmt: skip
def test_another_configuration_is_refused_and_both_are_named(other: Limiter, path: Path) -> None:
    data = whole(path)
    with pytest.raises(FileRefused, match=r"rate=1\.0, capacity=5\.0") as failure:
        FileLimiter(path, other)
    assert "not of" in str(failure.value)
    assert path.read_bytes() == data


def test_the_same_configuration_in_other_words_is_the_same(path: Path) -> None:
    FileLimiter(path, TokenBucket("60/minute", 5)).charge(5, 0.0)
    assert FileLimiter(path, TokenBucket(1.0, 5.0, slack=0)).available(0.0) == 0


def test_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FileLimiter(tmp_path, TokenBucket(1))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileRefused, match="not a regular file"):
        FileLimiter(tmp_path / "pipe", TokenBucket(1))


def test_a_log_out_of_order_is_refused_after_a_reboot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = FileLimiter(path, SlidingWindowLog(5, 10, clock=Clock()))
    for _ in range(3):
        assert limiter.allow()
    limiter._shared._file.cells[2] = 1e12  # the second entry comes long after the third
    limiter.close()
    data = path.read_bytes()
    monkeypatch.setattr(crowd, "boot_id", lambda: b"another boot....")
    with pytest.raises(FileRefused, match="no order"):
        FileLimiter(path, SlidingWindowLog(5, 10, clock=Clock()))
    assert path.read_bytes() == data


def test_a_file_that_is_removed_is_made_again_and_all_meet_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statefile, "_RECHECK", -1.0)
    one, other = (FileLimiter(path, SlidingWindowLog(3, 10)) for _ in range(2))
    one.charge(3, 0.0)
    path.unlink()
    assert one.allow(0.0)
    assert other.available(0.0) == 2


@pytest.mark.parametrize("size", [0, 100, 4096, 5000, 100_000])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_file_cut_off_under_a_running_process_is_an_error_and_not_the_end(
    size: int, when: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statefile, "_RECHECK", 1e9 if when == "at once" else -1.0)
    limiter = FileLimiter(path, SlidingWindowLog(500, 60))
    limiter.charge(500)
    whole = path.read_bytes()
    os.truncate(path, size)
    for _ in range(2):
        with pytest.raises(FileRefused, match=f"is torn: {size} bytes|holds no state"):
            limiter.allow()
    assert path.stat().st_size == size
    path.write_bytes(whole)
    assert not limiter.allow()
    path.unlink()
    os.truncate(limiter._shared._file._fd, 0)  # cut off and replaced: go on with the new one
    path.write_bytes(whole)
    assert not limiter.allow()
    limiter.refund(1)
    assert limiter.allow()


@pytest.mark.anyio
async def test_who_waits_is_told_when_the_file_goes_bad(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statefile, "_RECHECK", -1.0)
    limiter = FileLimiter(path, TokenBucket(1, 1))
    await limiter.acquire()
    refused: list[FileRefused] = []

    async def call() -> None:
        with pytest.raises(FileRefused) as failure:
            await limiter.acquire()
        refused.append(failure.value)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        group.start_soon(call)
        await anyio.sleep(0.1)
        os.truncate(path, 100)
    assert len(refused) == 2


def test_a_closed_limiter_says_so(path: Path) -> None:
    limiter = FileLimiter(path, TokenBucket(1, 5))
    limiter.close()
    limiter.close()
    with pytest.raises(ValueError, match="closed"):
        limiter.allow()


# -------------------------------------------------------------------- the system says no


def refusing(code: int, calls: list[str], name: str, when: Callable[..., bool]) -> Any:
    real = getattr(os, name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            calls.append(name)
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return refuse


@pytest.mark.parametrize(
    ("code", "name", "when"),
    [
        (errno.ENOSPC, "write", lambda fd, data: True),
        (errno.ENOSPC, "fsync", lambda fd: True),
        (errno.EDQUOT, "write", lambda fd, data: True),
        (errno.EACCES, "open", lambda path, flags, *mode: bool(flags & os.O_CREAT)),
        (errno.EROFS, "open", lambda path, flags, *mode: bool(flags & os.O_CREAT)),
        (errno.EPERM, "link", lambda draft, path: True),
    ],
    ids=["full", "full-at-last", "quota", "read-only-dir", "read-only-disk", "no-links"],
)
def test_a_file_that_cannot_be_made_is_the_systems_error_and_leaves_nothing(
    code: int,
    name: str,
    when: Callable[..., bool],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, name, refusing(code, calls, name, when))
        with pytest.raises(OSError, match=os.strerror(code)) as failure:
            FileLimiter(path, TokenBucket(1, 5))
    assert calls
    assert failure.value.errno == code
    assert failure.value.filename == str(path)
    assert os.listdir(path.parent) == []


def test_the_system_may_write_less_than_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:1000]))
    FileLimiter(path, TokenBucket(1, 5)).charge(5, 0.0)
    assert FileLimiter(path, TokenBucket(1, 5)).available(0.0) == 0


def test_two_processes_that_make_the_file_at_once_meet_in_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def slower(draft: str, target: str) -> None:
        monkeypatch.setattr(os, "link", real)
        FileLimiter(path, TokenBucket(1, 5)).charge(2, 0.0)  # another was faster
        real(draft, target)

    monkeypatch.setattr(os, "link", slower)
    assert FileLimiter(path, TokenBucket(1, 5)).available(0.0) == 3
    assert os.listdir(path.parent) == [path.name]


def test_a_platform_without_flock_or_mmap_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statefile, "fcntl", None)
    with pytest.raises(OSError, match="needs flock and mmap"):
        FileLimiter(path, TokenBucket(1))
    assert not path.exists()


# -------------------------------------------------------------------- never torn


class Cut:
    """Memory of a process that is killed when it has stored `left` bytes more."""

    def __init__(self, memory: mmap.mmap, left: int) -> None:
        self.memory = memory
        self.left = left

    def __getitem__(self, where: Any) -> Any:
        return self.memory[where]

    def __setitem__(self, where: Any, value: Any) -> None:
        if isinstance(where, slice):
            stored = min(len(value), self.left)
            self.memory[where.start : where.start + stored] = value[:stored]
            self.left -= len(value)
        elif self.left > 0:
            self.memory[where] = value
            self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_a_store_that_is_cut_off_anywhere_leaves_the_old_record_or_the_new(path: Path) -> None:
    old, new = b"o" * 40, b"n" * 64
    size = 48 + 64 + 4 + 1
    for left in range(size + 1):
        first = Record(bytes(16), 1.0, 2.0, old)
        file = StateFile(path, "a test", 64, 0, first)
        record = file.read()
        assert record is not None
        assert record.body == old
        real, file._map = file._map, Cut(file._map, left)  # type: ignore[assignment]
        try:
            file.write(3.0, 4.0, new)
        except KeyboardInterrupt:
            assert left < size
        file._map = real
        seen = StateFile(path, "a test", 64, 0, first).read()
        assert seen is not None
        assert seen == (Record(bytes(16), 3.0, 4.0, new) if left >= size else first)
        file.close()
        path.unlink()


def test_a_gift_that_is_cut_off_never_shrinks_the_limit(path: Path) -> None:
    limiter = FileLimiter(path, SlidingWindowLog(5, 10))
    assert limiter.allow(0.0, 4)
    cells = limiter._shared._file.cells
    cells[1] = 1.0  # a refund of three reached the log, and its process was killed then
    other = FileLimiter(path, SlidingWindowLog(5, 10))
    assert other.available(1.0) in (1, 4)
    assert other.allow(1.0)
    assert other.available(10.0) == 4
    assert other.available(11.0) == 5


@pytest.mark.parametrize("moment", ["lock", "take", "write"])
def test_an_interrupt_leaves_no_lock_and_no_trace(
    moment: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, other = (FileLimiter(path, TokenBucket(1, 5)) for _ in range(2))

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            real(*args)
            raise KeyboardInterrupt  # Ctrl-C, right after

        return call

    owner, name = {
        "lock": (StateFile, "try_lock"),
        "take": (TokenBucket, "_try"),
        "write": (crowd, "wall_clock"),
    }[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            limiter.allow(0.0)
    assert other.available(0.0) == 5
    assert limiter.available(0.0) == 5
    assert limiter.allow(0.0)
    assert other.available(0.0) == 4
