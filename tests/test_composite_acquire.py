"""`acquire` on a composite, with nobody in its own line, respects what its members say."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from throttle import AllOf, LeakyBucket, Limiter, SlidingWindowLog, TokenBucket, clock

COMPOSITES: dict[str, Callable[[Limiter, Limiter], Limiter]] = {
    "first": lambda member, other: AllOf(member, other),
    "last": lambda member, other: AllOf(other, member),
    "only": lambda member, other: AllOf(member),
    "nested": lambda member, other: AllOf(AllOf(other, member), TokenBucket(1e9)),
}


@pytest.mark.anyio
@pytest.mark.parametrize("shape", COMPOSITES)
@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket, SlidingWindowLog.from_rate])
async def test_a_paused_member_holds_back_acquire_as_it_does_allow(
    shape: str, kind: Callable[[str], Limiter]
) -> None:
    member = kind("1000/s")
    composite = COMPOSITES[shape](member, TokenBucket(1e9))
    member.pause(30)
    assert not composite.allow()
    await composite.acquire()
    assert clock.now() == 30


@pytest.mark.anyio
@pytest.mark.parametrize("shape", COMPOSITES)
async def test_the_line_of_a_member_is_not_overtaken(shape: str) -> None:
    member = TokenBucket(1, 2, slack=0)
    composite = COMPOSITES[shape](member, TokenBucket(1e9))
    order: list[tuple[str, float]] = []

    async def wait(limiter: Limiter, name: str, cost: float) -> None:
        await limiter.acquire(cost)
        order.append((name, clock.now()))

    await member.acquire(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, member, "dear", 2)
        await anyio.sleep(0.5)
        tasks.start_soon(wait, composite, "cheap", 1)
    assert order == [("dear", 1), ("cheap", 2)]


def test_a_nested_composite_keeps_its_own_pause() -> None:
    inner = AllOf(TokenBucket(1e9))
    outer = AllOf(inner, TokenBucket(1e9))
    inner.pause(5, now=0)
    assert outer.delay(now=0) == 5
