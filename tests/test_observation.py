"""Watching a limiter: counts by looking (`stats`), and each wait by `on_wait`."""

from __future__ import annotations

import logging
import threading
from typing import Any

import anyio
import pytest
from helpers.callers import callers

from throttle import (
    Keyed,
    LeakyBucket,
    QueueFull,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    limiter_for,
)
from throttle.algorithms import ALGORITHMS
from throttle.limiter import Waited
from throttle.testing import virtual_time


@pytest.mark.anyio
async def test_who_waited_is_told_of_and_nobody_else() -> None:
    seen: list[Waited] = []
    limiter = SlidingWindowLog(1, 10, on_wait=seen.append)
    assert limiter.allow()
    assert not limiter.allow()
    with pytest.raises(WaitTimeout):
        await limiter.acquire(timeout=3)
    with anyio.move_on_after(2):
        await limiter.acquire()
    assert seen == []
    assert await limiter.acquire() == 8
    assert seen == [(limiter, 1, 8)]
    assert limiter.stats() == (2, 2, 0, 8.0)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)
async def test_every_algorithm_has_the_hook(kind: Any) -> None:
    seen: list[Waited] = []
    limiter = kind.from_rate("2/s", on_wait=seen.append)
    async with callers() as crowd:
        for name in range(4):
            await crowd.join(name, limiter)
    assert [event.seconds for event in seen] == [at for _, at in crowd.log if at]
    assert {event.limiter for event in seen} == {limiter}
    assert limiter.stats().seconds_waited == sum(event.seconds for event in seen)


@pytest.mark.anyio
async def test_of_several_limits_the_whole_is_watched_and_bounded() -> None:
    seen: list[Waited] = []
    several: Any = limiter_for(["1/s", "9/minute"], on_wait=seen.append, max_waiting=1)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, several, (1, 2))
    assert seen == [(several, (1, 2), 1)]
    assert isinstance(crowd.errors[2], QueueFull)


@pytest.mark.anyio
async def test_a_watcher_that_fails_costs_nobody_his_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = LeakyBucket(1, 5, on_wait=lambda event: 1 / 0)
    with caplog.at_level(logging.ERROR, "throttle"):
        async with callers() as crowd:
            for name in range(3):
                await crowd.join(name, limiter)
    assert crowd.log == [(0, 0), (1, 1), (2, 2)]
    assert len(caplog.records) == 2
    assert "on_wait of LeakyBucket" in caplog.text


def test_a_watcher_may_use_the_limiter_it_watches_from_another_thread_too() -> None:
    """It is called after the decision, not under the lock of all decisions."""
    left: list[float] = []

    def look(event: Waited) -> None:
        thread = threading.Thread(target=lambda: left.append(event.limiter.available()))
        thread.start()
        thread.join()

    with virtual_time():
        limiter = TokenBucket(1, on_wait=look)
        assert [limiter.acquire_sync() for _ in range(3)] == [0, 1, 1]
    assert left == [0, 0]


@pytest.mark.anyio
async def test_each_key_can_be_watched() -> None:
    seen: list[tuple[str, float]] = []
    keyed = Keyed(
        lambda key: TokenBucket(1, on_wait=lambda event: seen.append((key, event.seconds)))
    )
    for key in ("a", "a", "b"):
        await keyed.acquire(key)
    assert seen == [("a", 1)]


@pytest.mark.parametrize("hook", [5, "print", (print,)])
def test_a_watcher_that_cannot_be_called_is_refused(hook: Any) -> None:
    with pytest.raises(TypeError, match="on_wait"):
        TokenBucket(1, on_wait=hook)
