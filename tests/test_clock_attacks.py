"""Clocks that lie: none that is broken, set back, or infinitely late lets anybody in too early."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import anyio
import pytest
from helpers.callers import callers, settle
from helpers.subjects import EVERY, Subject
from hypothesis import given
from hypothesis import strategies as st

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
)

KINDS: dict[str, Any] = {
    "token": lambda **o: TokenBucket(1, 2, **o),
    "token-initial": lambda **o: TokenBucket(1, 2, initial=1, **o),
    "leaky": lambda **o: LeakyBucket(1, 2, **o),
    "log": lambda **o: SlidingWindowLog(2, 2, **o),
    "counter": lambda **o: SlidingWindowCounter(2, 2, **o),
    "fixed": lambda **o: FixedWindow(2, 2, **o),
    "all": lambda **o: AllOf(TokenBucket(1, 2, **o), FixedWindow(2, 2, **o)),
}
EACH = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


class Moved:
    """The time of the test, set forward or back by `by` seconds."""

    def __init__(self, by: float = 0.0) -> None:
        self.by = by

    def __call__(self) -> float:
        return clock.now() + self.by


# ------------------------------------------------------------------ no number


@EACH
@pytest.mark.anyio
async def test_a_clock_that_tells_no_number_lets_nobody_in_and_spoils_nothing(make: Any) -> None:
    time = Moved(10.0)
    limiter = make(clock=time)
    assert limiter.allow()
    before = limiter.state(10.5)
    time.by = nan
    for verb in (limiter.allow, limiter.acquire_sync, lambda: limiter.charge(1)):
        with pytest.raises(ValueError, match="clock must tell seconds, not nan"):
            verb()
    with pytest.raises(ValueError, match="clock must tell seconds, not nan"):
        await limiter.acquire()
    assert limiter.state(10.5) == before
    assert limiter.stats().waiting == 0


@EACH
@pytest.mark.anyio
async def test_who_waits_by_a_clock_that_breaks_is_told(make: Any) -> None:
    time = Moved(10.0)
    limiter = make(clock=time)
    async with callers() as them:
        for name in "abcd":
            await them.join(name, limiter)
        await settle()
        time.by = nan
    assert "d" in them.errors
    assert all("clock must tell seconds" in str(error) for error in them.errors.values())
    time.by = 1000.0
    assert limiter.allow()


# ------------------------------------------------------------------ set back


@EACH
@pytest.mark.parametrize("back", [0.3, 1.0, 1000.0])
@pytest.mark.anyio
async def test_nobody_has_waited_less_than_no_time(make: Any, back: float) -> None:
    time = Moved(1e4)
    limiter = make(clock=time)
    waited = []

    async def call() -> None:
        waited.append(await limiter.acquire())

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call)
        await anyio.sleep(0.1)
        time.by -= back
    assert len(waited) == 5
    assert min(waited) >= 0
    assert limiter.stats().seconds_waited >= 0


@EVERY
@given(back=st.floats(0, 3), later=st.floats(0, 0.999))
def test_a_step_back_ends_no_pause(subject: Subject, back: float, later: float) -> None:
    limiter = subject.make()
    assert limiter.allow(1000.0)
    now = 1000.0 - back * subject.span
    limiter.pause(5.0, now)
    assert not limiter.allow(now + 5 * later)
    assert limiter.delay(now + 5 * later) > 0
    assert limiter.delay(now) < 5 + 2 * max(10, subject.span)


# ------------------------------------------------------------------ infinitely late


@EVERY
@pytest.mark.parametrize("debt", [0, 1, 3])
def test_a_pause_without_end_is_an_infinite_wait(subject: Subject, debt: int) -> None:
    limiter = subject.make()
    if debt:
        limiter.charge(debt * subject.most, 0.0)
    limiter.pause(inf, 0.0)
    assert (limiter.delay(1.0), limiter.ready_at(1.0)) == (inf, inf)
    assert limiter.fresh_at(1.0) == inf
    with pytest.raises(WaitTimeout):
        limiter.acquire_sync(timeout=0)


@EACH
def test_one_member_that_never_fits_is_an_infinite_wait(make: Any) -> None:
    never = AllOf(TokenBucket(1, 1), make())
    never.charge(1, 0.0)
    assert never.ready_at(0.5, (2, 1)) == inf


@pytest.mark.parametrize("window", [5e-324, 1e-300, 1e-100, 1e-9, 1e300, 1.7e308])
@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter, FixedWindow])
def test_no_window_is_too_short_or_too_long(kind: Any, window: float) -> None:
    limiter: Limiter = kind(2, window)
    limiter.charge(9, 0.0)
    for now in (1e-3, 1.0, 1e9, 1e18):
        assert limiter.allow(now) == (window < 1e-3)
        assert limiter.ready_at(now) >= now
        assert limiter.fresh_at(now) >= now


# ------------------------------------------------------------------ permits moved under a line


@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter, FixedWindow])
@pytest.mark.anyio
async def test_a_timeout_holds_also_where_permits_are_settled_later(kind: Any) -> None:
    """A server counted each call a second after it was sent, so that the line falls behind."""
    limiter = kind(1, 10)
    ended = []

    async def patient() -> None:
        await limiter.acquire()
        at = clock.now()
        await anyio.sleep(1)
        limiter.settle(1, at, 1)

    async def hurried(timeout: float) -> None:
        try:
            await limiter.acquire(timeout=timeout)
        except WaitTimeout:
            ended.append(clock.now())

    async with anyio.create_task_group() as group:
        for _ in range(21):
            group.start_soon(patient)
            await settle()
        due = limiter.delay()
        group.start_soon(hurried, due + 0.5)
    assert ended
    assert ended[0] <= due + 0.5 + 0.01
