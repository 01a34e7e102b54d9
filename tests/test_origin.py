"""The state of one origin: whom it lets in, what it learns, and what can never lift a pause."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import anyio
import pytest

from throttle import AllOf, LeakyBucket, SlidingWindowLog, TokenBucket, clock
from throttle.errors import ServerThrottled, WaitTimeout
from throttle.http.origin import Origin
from throttle.http.signals import Signal

pytestmark = pytest.mark.anyio

REFUSED = Signal(throttled=True, evidence="status", wait_s=10.0, retry_after_s=10.0)


def left(remaining: int, reset: float, **others: Any) -> Signal:
    return Signal(remaining=remaining, reset_after_s=reset, **others)


def unlimited() -> Origin:
    return Origin("o", TokenBucket(inf), own=True)


async def gaps(origin: Origin, count: int) -> list[float]:
    """Instants, from now, at which so many tasks are let in."""
    begun, instants = clock.now(), []

    async def one() -> None:
        if not origin.enter():
            origin.waiting += 1
            await origin.admit()
            origin.waiting -= 1
        instants.append(round(clock.now() - begun, 3))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return instants


# -------------------------------------------------------------------- what it learns


async def test_a_remainder_only_falls_within_a_window_in_whatever_order_answers_come() -> None:
    origin = unlimited()
    for remaining in (5, 3, 9, 4, 9):
        await origin.learn(left(remaining, 20.0))
    instants = await gaps(origin, 6)
    assert instants[:3] == [0, 0, 0]
    assert min(instants[3:]) >= 20


async def test_a_reset_that_is_a_little_off_is_the_same_window() -> None:
    origin = unlimited()
    await origin.learn(left(2, 20.0))
    await origin.learn(left(9, 21.0))
    await origin.learn(left(9, 19.0))
    assert sum(instant < 1 for instant in await gaps(origin, 5)) == 2


async def test_an_answer_of_a_window_before_changes_nothing() -> None:
    origin = unlimited()
    await origin.learn(left(9, 60.0))
    await origin.learn(left(1, 2.0))
    assert await gaps(origin, 5) == [0] * 5


async def test_a_new_window_begins_anew() -> None:
    origin = unlimited()
    await origin.learn(left(1, 5.0))
    await anyio.sleep(6)
    assert await gaps(origin, 4) == [0] * 4
    await origin.learn(left(4, 5.0))
    origin = unlimited()
    await origin.learn(left(1, 5.0))
    await origin.learn(left(3, 60.0))  # later: of another window, which counts from here
    assert sum(instant < 1 for instant in await gaps(origin, 5)) == 3


async def test_a_bucket_whose_reset_moves_on_does_not_starve_a_steady_client() -> None:
    """Each answer says: 95 left, full again in 0.6 s."""
    origin = unlimited()
    begun = clock.now()
    for _ in range(300):
        await gaps(origin, 1)
        origin.settle(origin.now())
        await origin.learn(left(95, 0.6, limit=100))
        await anyio.sleep(0.1)
    assert clock.now() - begun == pytest.approx(30)


async def test_requests_in_flight_are_taken_as_not_counted_yet() -> None:
    origin = unlimited()
    await gaps(origin, 4)
    origin.settle(origin.now())
    await origin.learn(left(5, 20.0))
    assert sum(instant < 1 for instant in await gaps(origin, 5)) == 2


@pytest.mark.parametrize(
    "signal",
    [
        left(0, 9.0, unit="tokens"),
        left(1, 9.0, unit="cost"),
        Signal(wait_s=9.0, retry_after_s=9.0, scope="request"),
        left(0, 9.0, scope="request"),
        Signal(limit=5),
        Signal(remaining=3),
        left(7, 0.0),
    ],
)
async def test_what_says_nothing_of_the_next_request_holds_nobody(signal: Signal) -> None:
    origin = unlimited()
    await origin.learn(signal, 1.0)
    assert await gaps(origin, 3) == [0] * 3


async def test_a_refusal_without_a_time_holds_for_the_callers_backoff() -> None:
    origin = unlimited()
    await origin.learn(Signal(throttled=True, evidence="status"), 3.0)
    assert (await gaps(origin, 1))[0] == 3


async def test_an_exact_window_of_ones_own_is_better_than_a_reset_in_whole_seconds() -> None:
    origin = Origin("o", SlidingWindowLog(5, 1), own=True)
    assert await gaps(origin, 5) == [0] * 5
    await origin.learn(left(0, 1.0, limit=5, wait_s=1.0))
    assert origin.held_until == -inf
    await origin.learn(left(0, 30.0, limit=5, wait_s=30.0))  # a longer window than one's own
    assert origin.held_until > clock.now()
    other = Origin("o", SlidingWindowLog(5, 1), own=True)
    await gaps(other, 1)
    await other.learn(left(0, 1.0, limit=5, wait_s=1.0))  # somebody else uses the same quota
    assert other.held_until > clock.now()


# -------------------------------------------------------------------- pauses


async def test_the_latest_deadline_wins() -> None:
    origin = unlimited()
    for seconds in (2.0, 7.0, 3.0):
        await origin.hold(seconds)
    await origin.learn(left(50, 1.0))
    origin.served()
    assert (await gaps(origin, 1))[0] == 7


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenBucket(100),
        lambda: LeakyBucket(100),
        lambda: SlidingWindowLog(100, 1),
        lambda: TokenBucket(100) & SlidingWindowLog(1000, 60),
    ],
)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("total", [None, TokenBucket(1000)])
async def test_a_pause_catches_whoever_waits_already_whatever_the_limiter(
    make: Any, own: bool, total: Any
) -> None:
    limiter = make()
    origin = Origin("o", limiter, own=own, total=total and TokenBucket(1000))
    while origin.enter() or limiter.allow():
        pass
    instants: list[float] = []
    begun = clock.now()

    async def stand() -> None:
        await origin.admit()
        instants.append(clock.now() - begun)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(stand)
        await anyio.sleep(0.001)
        await origin.hold(50.0)
    assert min(instants) >= 50


async def test_a_longer_pause_than_anybody_would_wait_is_told_with_all_that_is_known() -> None:
    origin = Origin("http://o", TokenBucket(1, 1), own=True)
    await origin.admit()
    caught: list[ServerThrottled] = []

    async def stand(max_wait: float | None) -> None:
        try:
            await origin.admit(max_wait=max_wait)
        except ServerThrottled as error:
            caught.append(error)

    async with anyio.create_task_group() as group:
        for max_wait in (5.0, None, 20.0, 9.0):
            group.start_soon(stand, max_wait)
        await anyio.sleep(0.5)
        await origin.learn(REFUSED, status=429, wall=1000.0)
        await anyio.sleep(0.1)
        assert len(caught) == 2
    for error in caught:
        assert (error.status, error.origin, error.retry_at) == (429, "http://o", 1010)
        assert error.retry_after == pytest.approx(10)
    assert origin.in_flight == 3


# -------------------------------------------------------------------- limiters of other kinds


class Remote:
    """A limiter of a fleet: one that only has an `acquire`, and a `pause`."""

    def __init__(self, wait: float = 0.0, error: Exception | None = None) -> None:
        self.wait = wait
        self.error = error
        self.timeouts: list[float | None] = []
        self.pauses: list[float] = []

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        self.timeouts.append(timeout)
        await anyio.sleep(self.wait)
        return self.wait

    async def pause(self, seconds: float) -> None:
        if self.error is not None:
            raise self.error
        self.pauses.append(seconds)


async def test_a_pause_is_shared_with_the_fleet() -> None:
    remote = Remote()
    origin = Origin("o", remote)
    await origin.learn(REFUSED)
    assert remote.pauses == [10]
    assert not origin.enter()
    assert await origin.admit() == pytest.approx(10)


async def test_a_fleet_that_cannot_be_told_is_logged_and_the_pause_holds_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "throttle")
    origin = Origin("o", Remote(error=OSError("gone")))
    await origin.hold(4.0)
    assert "could not be shared" in caplog.text
    assert await origin.admit() == pytest.approx(4)


async def test_what_a_fleet_takes_is_taken_off_the_timeout() -> None:
    remote = Remote(wait=3)
    origin = Origin("o", remote, total=TokenBucket(0.1, 1))
    assert await origin.admit(timeout=5) == pytest.approx(3)
    with pytest.raises(WaitTimeout):
        await origin.admit(timeout=5)
    assert remote.timeouts == [5, 5]
    assert origin.in_flight == 1


async def test_a_total_holds_over_all_origins() -> None:
    total = TokenBucket(1, 1)
    a, b = (Origin(name, TokenBucket(inf), own=True, total=total) for name in "ab")
    assert sorted(await gaps(a, 2) + await gaps(b, 2)) == [0, 1, 1, 2]


# -------------------------------------------------------------------- settling a permit


@pytest.mark.parametrize(
    ("settle", "next_at"), [(None, 10.5), (0, 10), (0.2, 10.2), (5, 10.5), (inf, 10.5)]
)
async def test_a_permit_moves_to_the_receipt_of_the_answer(
    settle: float | None, next_at: float
) -> None:
    origin = Origin("o", SlidingWindowLog(1, 10), settle=settle, own=True)
    begun = clock.now()
    assert origin.enter()
    sent = origin.now()
    await anyio.sleep(0.5)
    origin.settle(sent)
    await origin.admit()
    assert clock.now() - begun == pytest.approx(next_at)


async def test_by_default_it_moves_by_a_tenth_of_the_window_at_most() -> None:
    log = SlidingWindowLog(1, 10)
    origin = Origin("o", AllOf(log, TokenBucket(100)), own=True)
    begun = clock.now()
    assert origin.enter()
    await anyio.sleep(8)
    origin.settle(begun)
    assert log.ready_at() == pytest.approx(begun + 11)


async def test_who_goes_at_the_servers_pace_does_not_stop_for_a_remainder_of_zero() -> None:
    """At the pace of a sliding window there is never much left, and its reset is rounded up."""
    told = left(0, 1.0, limit=20, window_s=1.0, wait_s=1.0)
    origin = unlimited()
    await origin.learn(told)
    assert (await gaps(origin, 1))[0] == 1
    held = origin.held_until
    await origin.learn(told)
    assert origin.held_until == held
    await origin.learn(left(0, 5.0, limit=10, window_s=1.0, wait_s=5.0))  # slower than one goes
    assert origin.held_until > held
