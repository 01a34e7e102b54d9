"""Faults reported of other libraries' keyed limiters and of their verbs, one test for each kind."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from throttle import AllOf, Keyed, SlidingWindowLog, TokenBucket, WaitTimeout, clock


def test_b071_keys_that_nobody_uses_are_removed() -> None:
    keyed, plain = Keyed(lambda: SlidingWindowLog(5, 60)), SlidingWindowLog(5, 60)
    assert all(keyed.allow(key, 0.0) for key in range(100_000))
    for start in (61.0, 122.0):
        # Some at each call, so that no call is slow: all of them within some hundred calls.
        assert keyed.allow("new", start) == plain.allow(start)
        for step in range(400):
            assert keyed.allow("new", start + step / 100) == plain.allow(start + step / 100)
        assert list(keyed) == ["new"]


def test_b072_asking_about_unknown_keys_stores_none_of_them() -> None:
    keyed, fresh = Keyed(lambda: SlidingWindowLog(5, 60)), SlidingWindowLog(5, 60)
    for key in range(10_000):
        handle = keyed[key]
        assert handle.available(7.0) == fresh.available(7.0)
        assert handle.delay(7.0, 6) == fresh.delay(7.0, 6)
        assert keyed.ready_at(key, 7.0) == fresh.ready_at(7.0)
        assert keyed.stats(key) == fresh.stats()
        assert key not in keyed
    assert len(keyed) == 0


@pytest.mark.anyio
async def test_b073_a_delay_is_not_forgotten_with_the_queue() -> None:
    keyed = Keyed(lambda: TokenBucket("1/5s", 1))
    sent = []
    for pause in (1.0, 1.0, 1.0, 30.0, 1.0):
        await keyed.acquire("host")
        sent.append(clock.now())
        await anyio.sleep(pause)
        await keyed.acquire(f"another {pause}")  # gives it every chance to be cleaned up
    assert sent == [0, 5, 10, 15, 45]


@pytest.mark.anyio
async def test_b089_timeout_0_tries_and_succeeds_where_it_can() -> None:
    for acquire in (TokenBucket(1).acquire, Keyed(lambda: TokenBucket(1))["a"].acquire):
        began = clock.now()
        assert await acquire(timeout=0) == 0
        for _ in range(2):
            with pytest.raises(WaitTimeout) as caught:
                await acquire(timeout=0)
            assert caught.value.delay == 1, "the refusal left no trace"
        assert clock.now() == began
        await anyio.sleep(1)


@pytest.mark.anyio
async def test_b090_a_wait_that_is_too_long_fails_at_once_and_says_how_long() -> None:
    for limiter in (SlidingWindowLog(1, 10), Keyed(lambda: SlidingWindowLog(1, 10))["a"]):
        began = clock.now()
        assert await limiter.acquire() == 0
        with pytest.raises(WaitTimeout) as caught:
            await limiter.acquire(timeout=4)
        assert (clock.now(), caught.value.delay) == (began, 10)
        assert not limiter.allow()
        assert limiter.delay() == 10, "nothing is reserved"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("keyed", [False, True])
def test_b091_a_refusal_by_one_of_several_costs_the_others_nothing(
    order: tuple[int, ...], keyed: bool
) -> None:
    members = [TokenBucket(0, 5), TokenBucket(0, 1)]
    both: Any = AllOf(*(members[index] for index in order))
    if keyed:
        both = Keyed(lambda both=both: both)["a"]
    assert sum(both.allow(0.0) for _ in range(5)) == 1
    assert [member.available(0.0) for member in members] == [4, 0]
