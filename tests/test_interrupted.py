"""Decisions that are disturbed in the middle: by an interrupt, a clock that fails, or the garbage
collector that closes somebody else's call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle
from helpers.subjects import EVERY, Subject

from throttle import (
    AllOf,
    Concurrency,
    FixedWindow,
    Keyed,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    clock,
)
from throttle.lock import LOCK
from throttle.testing import virtual_time

KINDS: dict[str, Callable[..., Any]] = {
    "token": lambda **o: TokenBucket(1, 1, **o),
    "leaky": lambda **o: LeakyBucket(1, 1, **o),
    "log": lambda **o: SlidingWindowLog(1, 1, **o),
    "counter": lambda **o: SlidingWindowCounter(1, 1, **o),
    "fixed": lambda **o: FixedWindow(1, 1, **o),
    "all": lambda **o: AllOf(TokenBucket(1, 1, **o), SlidingWindowLog(1, 1, **o)),
}
EACH = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
#: More calls of the clock than an `acquire` makes before it sleeps.
CALLS = range(1, 12)


class Failing:
    """The time of the test; the call number `at` from when it was set raises."""

    def __init__(self) -> None:
        self.left = 0
        self.error: type[BaseException] = OSError

    def __call__(self) -> float:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return clock.now()


@EACH
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_thread_that_is_interrupted_on_its_way_into_the_line_leaves_no_place_in_it(
    make: Callable[..., Any], error: type[BaseException], timeout: float | None
) -> None:
    failed = 0
    for call in CALLS:
        with virtual_time():
            time = Failing()
            limiter = make(clock=time)
            limiter.acquire_sync()
            time.left, time.error = call, error
            try:
                limiter.acquire_sync(timeout=timeout)
            except error:
                failed += 1
            time.left = 0
            assert not LOCK._is_owned()  # type: ignore[attr-defined]
            assert limiter.stats().waiting == 0
            assert limiter.acquire_sync(timeout=3) <= 2
            assert limiter._side is None
    assert failed >= 2


@EACH
@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.anyio
async def test_a_clock_that_fails_once_holds_nobody_up(
    make: Callable[..., Any], timeout: float | None
) -> None:
    for call in CALLS:
        time = Failing()
        limiter = make(clock=time)
        async with callers() as them:
            await them.join("first", limiter)
            time.left = call
            for name in "abc":
                await them.join(name, limiter, timeout=timeout)
            await settle()
            time.left = 0
        assert len(them.log) + len(them.errors) == 4
        assert len(them.errors) <= 3
        assert all(isinstance(error, OSError) for error in them.errors.values())
        assert limiter.stats().waiting == 0
        assert await limiter.acquire(timeout=3) <= 2


@contextmanager
def interrupted_at(event: int) -> Iterator[None]:
    """Ctrl-C at the point of this number within the algorithms. The interpreter looks for signals
    where a function begins and where one of C has ended, and nowhere between (but for loops)."""
    left = event

    def watch(frame: FrameType, kind: str, _: object) -> None:
        nonlocal left
        left -= kind in ("call", "c_return") and "algorithms" in frame.f_code.co_filename
        if not left:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


@EVERY
@pytest.mark.parametrize("fill", [0.4, 1, 3])
@pytest.mark.parametrize("gap", [0, 1, 1.3])
def test_a_decision_that_is_interrupted_leaves_a_limiter_that_works(
    subject: Subject, fill: float, gap: float
) -> None:
    count = 0
    while True:
        count += 1
        limiter = subject.make()
        for index in range(int(fill * subject.most)):
            limiter.charge(1, index / 1000)
        now = gap * subject.span
        try:
            with interrupted_at(count):
                limiter.allow(now)
            break
        except KeyboardInterrupt:
            pass
        assert not LOCK._is_owned()  # type: ignore[attr-defined]
        for _ in range(3):
            limiter.allow(now)
            limiter.ready_at(now, subject.most)
        now += 100 * subject.span
        assert limiter.available(now) == pytest.approx(limiter._ceiling())
        assert limiter.allow(now, subject.most)
    assert count > 1


# ------------------------------------------------------------------ closed amid a decision


class Suspended:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def hold(slots: Concurrency) -> None:
    async with slots:
        await Suspended()


def held(slots: Concurrency) -> Coroutine[Any, Any, None]:
    """A call that holds a slot and is about to be forgotten."""
    call = hold(slots)
    call.send(None)
    return call


@pytest.mark.anyio
async def test_a_slot_that_is_given_back_amid_a_decision_goes_to_the_next_in_line_after_it() -> (
    None
):
    slots = Concurrency(1)
    call = held(slots)
    came = []

    async def wait(name: str) -> None:
        async with slots:
            came.append(name)

    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(wait, name)
            await settle()
        with LOCK:  # as any decision of this thread
            before = slots.stats()
            call.close()
            assert slots.stats() == before
            assert slots.taken == 1
        await settle()
        await settle()
    assert came == ["a", "b"]
    assert slots.taken == 0


@pytest.mark.anyio
async def test_a_slot_that_is_given_back_amid_a_decision_is_free_after_it() -> None:
    slots = Concurrency(1)
    call = held(slots)
    with LOCK:
        call.close()
    assert slots.allow()
    slots.release()
    assert slots.taken == 0


def test_a_slot_that_is_given_back_amid_a_decision_goes_to_a_thread_too() -> None:
    slots = Concurrency(1)
    assert slots.allow()
    waiter = threading.Thread(target=slots.acquire_sync)
    waiter.start()
    while not slots.stats().waiting:
        pass
    with LOCK:
        slots.release()
        assert slots.taken == 1
    waiter.join(timeout=30)
    assert not waiter.is_alive()
    assert slots.taken == 1


# ------------------------------------------------------------------ keys


@pytest.mark.anyio
async def test_a_call_for_a_key_closed_amid_a_decision_changes_nothing_before_its_end() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1))
    assert keyed.allow("key")
    first, second = keyed.acquire("key"), keyed.acquire("key")
    first.send(None)
    second.send(None)
    with LOCK:
        second.close()
        assert keyed._inside == {"key": 2}
        assert keyed.stats("key").waiting == 2
    await settle()
    assert keyed._inside == {"key": 1}
    assert keyed.stats("key").waiting == 1
    first.close()
    assert not keyed._inside
    assert await keyed.acquire("key") == 1.0


class Mutable:
    """A key that is not what it was: its hash changes with its value."""

    def __init__(self) -> None:
        self.value = 1

    def __hash__(self) -> int:
        return self.value


def test_a_key_that_hashes_otherwise_later_harms_no_other() -> None:
    keyed = Keyed(lambda: TokenBucket(1, 1))
    changed = Mutable()
    for index in range(20):
        changed.value = index
        assert keyed.allow(changed, index * 10.0)
        assert keyed.allow("other", index * 10.0)
        changed.value = -index - 2
    assert "other" in keyed
