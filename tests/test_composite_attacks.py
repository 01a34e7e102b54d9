"""Composites in odd ways: costs that spare a member, charges; and what the counters then say."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.callers import callers, settle

from throttle import AllOf, FixedWindow, LeakyBucket, QueueFull, SlidingWindowLog, TokenBucket
from throttle.lock import LOCK
from throttle.waiting import dismiss

#: Costs that spare the first member, the last one, or none; and one for members of members.
COSTS = pytest.mark.parametrize("cost", [(1, 0), (0, 1), (1, 1), 1], ids=str)


def pair(**options: Any) -> AllOf:
    return AllOf(SlidingWindowLog(1, 1), SlidingWindowLog(1, 1), **options)


@COSTS
@pytest.mark.anyio
async def test_who_spares_a_member_is_counted_too(cost: Any) -> None:
    both = pair()
    async with callers() as them:
        for name in "abcd":
            await them.join(name, both, cost)
        await settle()
        assert both.stats().waiting == 3
        assert both.fresh_at() == float("inf")
        them.cancel("c")
        await settle()
        assert both.stats().waiting == 2
    assert [instant for _, instant in them.log] == [0.0, 1.0, 2.0]
    assert both.stats()[:3] == (3, 0, 0)
    assert [member.stats()[:3] for member in both.members] == [
        (3 * (share > 0), 0, 0) for share in (cost if isinstance(cost, tuple) else (cost, cost))
    ]
    assert both._side is None


@COSTS
@pytest.mark.anyio
async def test_who_spares_a_member_needs_room_in_line_too(cost: Any) -> None:
    both = pair(max_waiting=2)
    async with callers() as them:
        for name in "abcde":
            await them.join(name, both, cost)
        await settle()
        assert both.stats().waiting == 2
    assert list(them.errors) == ["d", "e"]
    assert all(isinstance(error, QueueFull) for error in them.errors.values())


@pytest.mark.anyio
async def test_only_the_callers_of_one_composite_are_counted_as_its_own() -> None:
    one, other = SlidingWindowLog(1, 1), SlidingWindowLog(1, 1)
    first, second = AllOf(one, other, max_waiting=1), AllOf(other, one)
    async with callers() as them:
        await them.join("", first)
        await them.join("first", first)
        for name in "abc":
            await them.join(name, second, (1, 0))
        await settle()
        assert (first.stats().waiting, second.stats().waiting) == (1, 3)
        with pytest.raises(QueueFull):
            await first.acquire((0, 1))
        await second.acquire((0, 1))
    assert not them.errors


@COSTS
@pytest.mark.anyio
async def test_all_who_wait_for_a_composite_can_be_dismissed(cost: Any) -> None:
    both = pair()
    alone = both.members[0]
    async with callers() as them:
        await them.join("", both)
        for name in "ab":
            await them.join(name, both, cost)
        await them.join("alone", alone)
        await settle()
        with LOCK:
            dismiss(both, lambda: KeyError("gone"))
        await settle()
        assert sorted(them.errors) == ["a", "b"]
        assert both.stats()[:3] == (1, 2, 0)
    assert [name for name, _ in them.log] == ["", "alone"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: AllOf(TokenBucket(1, 3), FixedWindow(3, 1)),
        lambda: AllOf(TokenBucket(1, 3) & LeakyBucket(1, 3), SlidingWindowLog(3, 1)),
    ],
    ids=["flat", "nested"],
)
def test_charging_a_composite_lets_nobody_in(make: Any) -> None:
    """`granted` counts calls, of a composite and its members as of any limiter."""
    limiter = make()
    limiter.charge(1, 0.0)
    leaves = [leaf for leaf, _ in limiter._needs(1)]
    assert [one.stats().granted for one in (limiter, *leaves)] == [0] * (1 + len(leaves))
    assert limiter.allow(0.0)
    assert [one.stats().granted for one in (limiter, *leaves)] == [1] * (1 + len(leaves))
    assert [leaf.available(0.0) for leaf in leaves] == [1] * len(leaves)
