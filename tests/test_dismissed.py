"""`waiting.dismiss`: whoever stands in one line is sent away, in order, and nobody else."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import sniffio

from throttle import AllOf, Limiter, TokenBucket
from throttle.lock import LOCK
from throttle.waiting import dismiss

pytestmark = pytest.mark.anyio


class Away(Exception):
    """One for each of them."""


def send_away(limiter: Limiter) -> None:
    with LOCK:
        dismiss(limiter, Away)


def asyncio_runs() -> bool:
    return sniffio.current_async_library() == "asyncio"


async def stand(limiter: Limiter, name: str, log: list[tuple[str, Any]]) -> None:
    try:
        await limiter.acquire()
    except Away:
        log.append((name, "away"))
    else:
        log.append((name, anyio.current_time()))


@pytest.mark.parametrize("composite", [False, True])
async def test_all_who_stand_are_sent_away_in_order_and_the_permits_stay(composite: bool) -> None:
    bucket = TokenBucket(1, 1)
    asker: Limiter = AllOf(bucket, TokenBucket(5, 5)) if composite else bucket
    log: list[tuple[str, Any]] = []
    assert asker.allow()
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(stand, asker, name, log)
            await anyio.sleep(0.01)
        send_away(asker)
        await anyio.sleep(0.01)
        # trio runs tasks of one turn in any order.
        names = log if asyncio_runs() else sorted(log)
        assert names == [(name, "away") for name in "abc"]
        assert asker.stats().waiting == 0
        begun = anyio.current_time()
        await asker.acquire()
    assert begun < anyio.current_time()
    assert asker.stats().denied == 3


async def test_those_who_ask_another_composite_of_the_same_limiter_stay() -> None:
    shared = TokenBucket(1, 1)
    first, second = AllOf(shared, TokenBucket(9, 9)), AllOf(shared, TokenBucket(9, 9))
    log: list[tuple[str, Any]] = []
    assert shared.allow()
    begun = anyio.current_time()
    async with anyio.create_task_group() as group:
        for name, asker in (("a", first), ("b", second), ("c", shared), ("d", first)):
            group.start_soon(stand, asker, name, log)
            await anyio.sleep(0.01)
        send_away(first)
    assert sorted(name for name, what in log if what == "away") == ["a", "d"]
    gone = {name: round(what - begun) for name, what in log if what != "away"}
    assert gone == {"b": 1, "c": 2}


async def test_nobody_there_is_nobody_sent_away() -> None:
    bucket = TokenBucket(1, 1)
    send_away(bucket)
    bucket.pause(5)
    send_away(bucket)
    assert bucket.stats().denied == 0
    assert not bucket.allow()
