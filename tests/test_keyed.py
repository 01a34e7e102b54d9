"""Keyed: each key as if it had a limiter of its own, and no more memory than that needs."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Hashable
from functools import partial
from math import inf, nan
from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle
from helpers.subjects import STARTS, STORIES, SUBJECTS, play
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    CostTooLarge,
    FixedWindow,
    Keyed,
    KeysFull,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    SupportsAcquire,
    TokenBucket,
    WaitTimeout,
    clock,
)
from throttle.lock import LOCK
from throttle.testing import virtual_time

MAKERS: dict[str, Callable[[], Limiter]] = {
    "token": lambda: TokenBucket(2, 5),
    "leaky": lambda: LeakyBucket(1, 3),
    "log": lambda: SlidingWindowLog(3, 4),
    "counter": lambda: SlidingWindowCounter(3, 4),
    "fixed": lambda: FixedWindow(3, 4),
    "all": lambda: TokenBucket(2, 5) & SlidingWindowLog(6, 9),
}


# ---------------------------------------------------------------- as if nothing were forgotten

STEPS = st.lists(
    st.tuples(
        st.floats(0, 3).map(lambda gap: round(gap, 2)),
        st.sampled_from("abcde"),
        st.sampled_from(["allow", "allow", "allow", "charge", "refund", "pause", "resume", "look"]),
        st.integers(0, 4),
    ),
    max_size=60,
)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_it_answers_as_a_table_that_forgets_nothing(make: Any, steps: Any) -> None:
    keyed, table, now = Keyed(make), {key: make() for key in "abcde"}, 0.0
    for gap, key, verb, size in steps:
        now += gap
        known = key in keyed
        if verb == "look":
            for name in ("ready_at", "delay", "available"):
                assert getattr(keyed, name)(key, now) == pytest.approx(
                    getattr(table[key], name)(now), abs=1e-9
                )
            assert (key in keyed) == known
        elif verb == "allow":
            assert keyed.allow(key, now, size) == table[key].allow(now, size)
        elif verb == "resume":
            keyed.resume(key)
            table[key].resume()
        else:
            getattr(keyed, verb)(key, size, now)
            getattr(table[key], verb)(size, now)
    assert len(keyed) <= 5
    keyed.allow("z", now + 1e6)
    keyed.allow("z", now + 2e6)
    assert list(keyed) == ["z"]


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "token-started-low"])
@settings(max_examples=40, deadline=None)
@given(story=STORIES, start=STARTS)
def test_a_key_grants_what_its_limiter_alone_would(name: str, story: Any, start: float) -> None:
    alone = SUBJECTS[name]
    keyed: Keyed = Keyed(alone.make)

    def somebody_else(_: Any, now: float) -> None:
        keyed.charge("another", 1, now)  # which sweeps

    handle: Any = alone._replace(make=lambda: keyed["one"])
    one, end, grants = play(handle, story, start, meddle=somebody_else)
    limiter, same_end, same_grants = play(alone, story, start)
    # Where floats are coarse a key is forgotten a rounding before its time, within the tolerance.
    assert [cost for _, cost in grants] == [cost for _, cost in same_grants]
    assert end == pytest.approx(same_end, rel=0, abs=1e-6)
    assert one.fresh_at(end) == pytest.approx(limiter.fresh_at(end), rel=0, abs=1e-6)
    one.reset()
    keyed.charge("another", 1, end)
    assert one.available(end) == alone.make().available(end)


def test_with_an_initial_level_a_key_that_comes_back_starts_anew() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2, initial=0))
    assert [keyed.allow("a", now) for now in (0.0, 0.5, 1.0)] == [False, False, True]
    assert len(keyed) == 1, "a refusal that started its clock is remembered"
    assert keyed.allow("b", 100.0) is False
    assert "a" not in keyed


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("key", [0, "", None, False, (), frozenset(), 1.5, b"", ("a", 1), nan])
def test_any_hashable_is_a_key_falsy_ones_too(key: Hashable) -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2))
    assert [keyed.allow(key, 0.0) for _ in range(3)] == [True, True, False]
    assert key in keyed
    assert len(keyed) == 1


def test_an_unhashable_key_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        Keyed(lambda: TokenBucket(1)).allow([], 0.0)


def test_the_factory_may_want_the_key() -> None:
    rates = {"slow": 1, "fast": 5}
    keyed = Keyed(lambda key: TokenBucket(rates[key]))
    assert keyed.available("fast", 0.0) == 5
    assert keyed.available("slow", 0.0) == 1
    assert Keyed(partial(TokenBucket, 3)).available("x", 0.0) == 3, "defaults are left alone"
    assert Keyed(lambda key=7: TokenBucket(key)).available("x", 0.0) == 7


def test_a_factory_that_raises_leaves_nothing() -> None:
    def factory(key: str) -> Limiter:
        raise LookupError(key)

    keyed = Keyed(factory)
    for verb in (keyed.allow, keyed.delay, keyed.available, keyed.acquire_sync, keyed.resume):
        with pytest.raises(LookupError):
            verb("a")
    assert len(keyed) == 0


@pytest.mark.parametrize(
    ("factory", "hint"),
    [
        (TokenBucket(1), "factory"),
        (None, "factory"),
        (lambda one, two: TokenBucket(1), "factory"),
        (lambda *, key: TokenBucket(1), "factory"),
    ],
)
def test_a_factory_that_cannot_be_called_is_refused(factory: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        Keyed(factory)


def test_a_factory_that_makes_something_else_is_refused_when_it_does() -> None:
    with pytest.raises(TypeError, match="factory must make a limiter, not 5"):
        Keyed(lambda: 5).allow("a", 0.0)


@pytest.mark.parametrize("most", [0, -1, 1.5, "2", True])
def test_bad_max_keys(most: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="max_keys"):
        Keyed(lambda: TokenBucket(1), max_keys=most)


# ---------------------------------------------------------------- forgetting


def test_refusals_and_free_calls_are_not_remembered() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2))
    assert keyed.allow("free", 0.0, 0)
    assert not keyed.allow("too dear", 0.0, 3)
    keyed.refund("full", 5, 0.0)
    keyed.resume("never paused")
    keyed.pause("no time", 0, 0.0)
    with pytest.raises(CostTooLarge), virtual_time():
        keyed.acquire_sync("too dear", 3)
    with pytest.raises(ValueError, match="cost"):
        keyed.allow("bad", 0.0, -1)
    assert len(keyed) == 0


def test_a_pause_keeps_a_key_alive_until_it_is_over() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2))
    keyed.pause("a", 50, 0.0)
    assert keyed.allow("b", 49.0)
    assert "a" in keyed
    assert keyed.allow("b", 60.0)
    assert "a" not in keyed


def test_keys_are_full_until_one_is_as_new_and_not_a_moment_longer() -> None:
    keyed = Keyed(lambda: TokenBucket(3, 1), max_keys=3)
    for index, key in enumerate("abc"):
        assert keyed.allow(key, index / 10)
    for now in (0.2, 0.3, 1 / 3 - 1e-6):
        with pytest.raises(KeysFull, match="max_keys=3") as caught:
            keyed.allow("d", now)
        assert caught.value.max_keys == 3
        assert keyed.delay("d", now) == 0, "looking needs no room"
    assert sorted(keyed) == ["a", "b", "c"]
    assert keyed.allow("d", 1 / 3)
    assert sorted(keyed) == ["b", "c", "d"]
    assert not keyed.allow("b", 0.4), "the debts of the others are not forgotten"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 2).map(lambda gap: round(gap, 3)), st.integers(0, 6)), max_size=80
    ),
    st.sampled_from([0.0, 1e6, 1.7e9]),
)
def test_full_exactly_while_that_many_are_in_use(calls: Any, start: float) -> None:
    keyed, now = Keyed(lambda: TokenBucket(1, 3), max_keys=3), start
    table = {key: TokenBucket(1, 3) for key in range(7)}
    for gap, key in calls:
        now += gap
        used = {other for other, limiter in table.items() if limiter.fresh_at(now) > now}
        if key not in used and len(used) >= 3:
            with pytest.raises(KeysFull):
                keyed.allow(key, now)
        else:
            assert keyed.allow(key, now) == table[key].allow(now)
        assert used - {key} <= set(keyed)
        assert len(keyed) <= 3


def test_discard_forgets_at_once() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1))
    assert keyed.allow("a", 0.0)
    assert keyed.discard("a")
    assert not keyed.discard("a")
    assert keyed.allow("a", 0.0)
    assert not keyed.allow("a", 0.5)
    assert keyed.allow("b", 5.0)
    assert list(keyed) == ["b"]


def test_discarding_over_and_over_leaves_nothing_behind() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1), max_keys=10)
    gc.collect()
    tracemalloc.start()
    try:
        for index in range(8_000):
            assert keyed.allow(index, 0.0)
            assert keyed.allow("same", 0.0)
            assert keyed.discard(index)
            assert keyed.discard("same")
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keyed) == 0
    assert grown < 200_000


def test_a_limit_common_to_all_keys_keeps_none_of_them_alive() -> None:
    total = SlidingWindowLog(1000, 1000)
    keyed = Keyed(lambda: TokenBucket(1, 1) & total, max_keys=10)
    for second in range(200):
        assert keyed.allow(second, float(second) * 2)
    assert len(keyed) < 10
    assert total.available(400.0) == 800
    assert keyed.allow("held by its own", 401.0)
    assert not keyed.allow("held by its own", 401.5)


def test_nothing_common_is_spent_for_a_key_there_is_no_room_for() -> None:
    total = SlidingWindowLog(1000, 1000)
    keyed = Keyed(lambda: TokenBucket(1, 1) & total, max_keys=2)
    assert all(keyed.allow(key, 0.0) for key in "ab")
    with pytest.raises(KeysFull):
        keyed.allow("c", 0.0)
    assert total.available(0.0) == 998


def test_many_keys_in_a_row_take_no_more_than_those_of_the_last_window() -> None:
    keyed = Keyed(lambda: TokenBucket(10, 1))
    most = looks = 0
    sweep = Keyed._sweep

    def counted(self: Keyed, at: float, upto: float) -> int:
        nonlocal looks
        looked = sweep(self, at, upto)
        assert looked <= 256
        looks += looked
        return looked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keyed, "_sweep", counted)
        for index in range(40_000):
            assert keyed.allow(index, index * 1e-4)
            most = max(most, len(keyed))
    assert most < 1100, "a window holds 1000"
    assert looks < 5 * 40_000


def test_a_key_takes_at_most_250_bytes() -> None:
    keyed = Keyed(lambda: TokenBucket(10, 20))
    names = [f"user-{number}" for number in range(30_000)]
    gc.collect()
    tracemalloc.start()
    try:
        for number, name in enumerate(names):
            keyed.allow(name, number * 1e-7)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keyed) == 30_000
    assert grown / 30_000 <= 250


# ---------------------------------------------------------------- waiting


@pytest.mark.anyio
async def test_a_slow_key_delays_no_other() -> None:
    keyed = Keyed(lambda key: TokenBucket(1 if key == "fast" else 0.1, 1))
    async with callers() as crowd:
        for index in range(3):
            for name in ("slow", "fast"):
                await crowd.join((name, index), keyed[name])
    assert crowd.instants() == {
        ("slow", 0): 0,
        ("slow", 1): 10,
        ("slow", 2): 20,
        ("fast", 0): 0,
        ("fast", 1): 1,
        ("fast", 2): 2,
    }


@pytest.mark.anyio
async def test_who_waits_keeps_the_key_alive() -> None:
    keyed = Keyed(lambda: SlidingWindowLog(1, 10), max_keys=2)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, keyed["a"])
        await anyio.sleep(5)
        keyed.resume("a")
        await anyio.sleep(10)
        assert keyed.allow("b")
        with pytest.raises(KeysFull):
            await keyed.acquire("c")
        assert keyed.stats("a").waiting == 1
    assert crowd.instants() == {0: 0, 1: 10, 2: 20}
    await anyio.sleep(10)
    assert await keyed.acquire("c") == 0
    assert "a" not in keyed


@pytest.mark.anyio
async def test_a_key_paused_for_ever_is_remembered_and_can_be_resumed() -> None:
    keyed = Keyed(lambda: TokenBucket(1), max_keys=1)
    keyed.pause("a", inf)
    await anyio.sleep(1000)
    with pytest.raises(KeysFull):
        keyed.allow("b")
    async with callers() as crowd:
        await crowd.join("waits", keyed["a"])
        await anyio.sleep(5)
        keyed.resume("a")
    assert crowd.instants() == {"waits": 1005}


@pytest.mark.anyio
async def test_a_cancelled_or_failed_acquire_leaves_no_key_behind() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1))
    await keyed.acquire("a")
    with pytest.raises(WaitTimeout):
        await keyed.acquire("a", timeout=0.5)
    keyed.pause("b", 3)
    with anyio.move_on_after(1):
        await keyed.acquire("b")
    assert keyed.stats("b").waiting == 0
    await anyio.sleep(5)
    keyed.allow("c")
    assert list(keyed) == ["c"]
    assert not keyed._inside


@pytest.mark.anyio
async def test_discarding_a_key_that_is_waited_for_strands_nobody() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1))
    async with callers() as crowd:
        await crowd.join("first", keyed["a"])
        await crowd.join("second", keyed["a"])
        assert keyed.discard("a")
        await crowd.join("third", keyed["a"])
    assert crowd.instants() == {"first": 0, "second": 1, "third": 0}
    assert not keyed._inside


def test_threads_share_a_key_and_wait_in_turn() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2))
    instants: list[float] = []
    with virtual_time():

        def work() -> None:
            keyed.acquire_sync("a")
            instants.append(clock.now())

        threads = [threading.Thread(target=work) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(instants) == [0, 0, 1, 2, 3]


def test_threads_that_hammer_few_keys_get_what_the_limits_allow_and_no_more() -> None:
    made: list[object] = []

    def factory(key: int) -> Limiter:
        made.append(key)
        return SlidingWindowLog(100, 1e9)

    keyed = Keyed(factory, max_keys=3)
    granted = [[0, 0, 0] for _ in range(6)]

    def work(mine: list[int]) -> None:
        for index in range(300):
            mine[index % 3] += keyed.allow(index % 3, 0.0)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in granted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(column) for column in zip(*granted, strict=True)] == [100, 100, 100]


def test_the_factory_runs_outside_the_lock() -> None:
    other = TokenBucket(1)

    def factory() -> Limiter:
        thread = threading.Thread(target=other.allow)
        thread.start()
        thread.join(timeout=5)
        assert not thread.is_alive(), "the factory held the lock of all decisions"
        return TokenBucket(1)

    assert Keyed(factory).allow("a")
    assert other.stats().granted == 1


# ---------------------------------------------------------------- the handle


@pytest.mark.anyio
async def test_a_handle_is_a_limiter_bound_to_its_key() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 2))
    one = keyed["a"]
    assert isinstance(one, SupportsAcquire)
    assert len(keyed) == 0
    assert one.allow()
    assert (one.available(), one.delay(cost=2), one.ready_at(cost=2)) == (1, 1, 1)
    async with one:
        pass
    with pytest.raises(WaitTimeout):
        one.acquire_sync(timeout=0)
    one.refund(1)
    with one:
        pass
    one.charge(2)
    assert keyed.delay("a") == 3
    one.pause(10)
    assert one.delay() == 10
    one.resume()
    assert one.stats() == keyed.stats("a")
    assert one.stats().granted == 3
    assert await one.acquire() == 3
    await anyio.sleep(100)
    assert keyed.allow("b")
    assert len(keyed) == 1
    assert one.allow(), "it names the key, not the limiter that was forgotten"
    assert "a" in repr(one)


@pytest.mark.anyio
async def test_a_handle_in_line_is_served_in_turn() -> None:
    keyed = Keyed(lambda: LeakyBucket(1, 5))
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, keyed["a"])
            await settle()
    assert crowd.log == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.anyio
async def test_a_call_that_the_collector_closes_in_the_middle_of_a_decision() -> None:
    keyed = Keyed(lambda: SlidingWindowLog(1, 10))
    keyed.pause("a", 5)
    abandoned = keyed.acquire("a")
    abandoned.send(None)  # it stands in line now
    assert keyed.stats("a").waiting == 1
    with LOCK:
        abandoned.close()
    await settle()
    assert keyed.stats("a").waiting == 0
    assert not keyed._inside
    await anyio.sleep(10)
    assert keyed.allow("b")
    assert list(keyed) == ["b"]


@pytest.mark.parametrize("back", [5.0, 1e9])
def test_a_clock_set_back_keeps_no_room_from_new_keys_for_good(back: float) -> None:
    """Room is made as soon as it would have been with a clock that had always told this time."""
    keyed = Keyed(lambda: TokenBucket(1, 1), max_keys=700)
    for key in range(700):
        assert keyed.allow(key, 1e9)
    now = 1e9 - back
    with pytest.raises(KeysFull):
        keyed.allow("new", now)
    for key in range(300, 400):
        assert not keyed.allow(key, now)
    assert keyed.allow("new", now + 1.5)
    assert not keyed.allow("new", now + 1.5)
    assert len(keyed) < 700
