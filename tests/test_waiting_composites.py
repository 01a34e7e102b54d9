"""Waiting for several limits at once, where members are shared. Virtual time, both backends."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import anyio
import pytest
from helpers.callers import Callers, callers, settle

from throttle import (
    AllOf,
    CostTooLarge,
    FixedWindow,
    LeakyBucket,
    Limiter,
    QueueFull,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
    waiting,
)
from throttle.testing.virtual import VirtualTime, virtual_time

pytestmark = pytest.mark.anyio


# -------------------------------------------------------------------- who waits for whom


async def test_the_wait_is_the_longest_of_the_members() -> None:
    both = TokenBucket(rate=1, capacity=1) & SlidingWindowLog(limit=2, window=10)
    async with callers() as crowd:
        for name in range(5):
            await crowd.join(name, both)
    assert crowd.log == [(0, 0), (1, 1), (2, 10), (3, 11), (4, 20)]
    assert both.stats() == (5, 0, 0, 42.0)
    assert all(member.stats().granted == 5 for member in both.members)
    assert all(member._side is None for member in both.members)


async def test_a_user_who_waits_for_himself_delays_nobody() -> None:
    common = TokenBucket(rate=1, capacity=1)
    slow, quick = SlidingWindowLog(1, 100), SlidingWindowLog(100, 1)
    slow.allow()
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(("slow", name), slow & common)
        for name in range(4):
            await crowd.join(("quick", name), quick & common)
    assert crowd.log[:4] == [(("quick", name), float(name)) for name in range(4)]
    assert [instant for _, instant in crowd.log[4:]] == [100, 200, 300]


async def test_users_who_wait_for_the_common_limit_are_served_in_turn() -> None:
    common = TokenBucket(rate=1, capacity=1, initial=0)
    users = [SlidingWindowLog(100, 1) for _ in range(5)]
    async with callers() as crowd:
        for turn in range(3):
            for user in range(5):
                await crowd.join((turn, user), users[user] & common)
    assert crowd.order == [(turn, user) for turn in range(3) for user in range(5)]
    assert [instant for _, instant in crowd.log] == list(range(1, 16))


async def test_objects_made_for_one_call_stand_in_one_line() -> None:
    a, b = TokenBucket(rate=1, capacity=1, initial=0), TokenBucket(rate=1, capacity=9)
    async with callers() as crowd:
        for name in range(6):
            await crowd.join(name, AllOf(a, b) if name % 2 else AllOf(b, a))
    assert crowd.order == list(range(6))


async def test_plain_callers_and_composites_take_turns_by_arrival() -> None:
    common, own = TokenBucket(rate=1, capacity=1, initial=0), TokenBucket(rate=9, capacity=9)
    async with callers() as crowd:
        for name in range(8):
            await crowd.join(name, common & own if name % 2 else common)
    assert crowd.log == [(name, name + 1.0) for name in range(8)]


async def test_a_dear_composite_is_not_starved_by_plain_callers_on_both_members() -> None:
    a, b = TokenBucket(rate=1, capacity=4, initial=0), TokenBucket(rate=1, capacity=4, initial=0)
    async with callers() as crowd:

        async def stream(limiter: Limiter, label: str) -> None:
            for number in range(40):
                await crowd.join((label, number), limiter)
                await anyio.sleep(0.5)

        async with anyio.create_task_group() as group:
            group.start_soon(stream, a, "a")
            group.start_soon(stream, b, "b")
            await anyio.sleep(0.1)
            await crowd.join("dear", a & b, 4)
    # What came before it (1 s), a wait at each member in turn (4 s), and one at both (4 s).
    assert crowd.instants()["dear"] <= 13


async def test_the_cost_may_be_another_for_each_member() -> None:
    requests, tokens = SlidingWindowLog(limit=2, window=10), TokenBucket(rate=10, capacity=100)
    both = requests & tokens
    async with callers() as crowd:
        for name, cost in enumerate([(1, 100), (1, 50), (1, 10), (0, 20)]):
            await crowd.join(name, both, cost)
    instants = crowd.instants()
    # The last asks for no request, so it does not wait for one.
    assert instants == {0: 0, 1: 5, 2: 10, 3: 7}
    assert requests.stats().granted == 3


async def test_a_composite_of_composites_waits_for_all_leaves() -> None:
    a, b, c = (TokenBucket(rate=size, capacity=size, initial=0) for size in (3, 2, 1))
    nested = AllOf(AllOf(a, b), c)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, nested)
        await crowd.join("plain", c)
    assert crowd.log == [(0, 1.0), (1, 2.0), (2, 3.0), ("plain", 4.0)]


@pytest.mark.parametrize("paused", ["outer", "inner", "member"])
async def test_a_pause_of_any_part_holds_the_whole(paused: str) -> None:
    a, b, c = (TokenBucket(rate=1, capacity=2) for _ in range(3))
    inner = a & b
    outer = inner & c
    {"outer": outer, "inner": inner, "member": a}[paused].pause(5)
    assert not outer.allow()
    assert outer.delay() == 5
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, outer)
        await crowd.join("plain", c)
        await settle()
        # A pause of the whole is none of a member's own.
        assert crowd.log == [("plain", 0)]
    # The members know nothing of it, so the first two count as let in late, by up to a slack.
    assert crowd.order[1:] == [0, 1, 2]
    assert [instant for _, instant in crowd.log[1:]] == pytest.approx([5, 5, 6], abs=0.005)


async def test_a_pause_that_begins_while_they_wait_and_is_lifted() -> None:
    a, b = TokenBucket(rate=1, capacity=1, initial=0), TokenBucket(rate=1, capacity=9)
    both = a & b
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, both)
        await anyio.sleep(1.5)
        both.pause(100)
        await anyio.sleep(3)
        assert crowd.order == [0]
        both.resume()
    assert crowd.instants() == {0: 1.0, 1: 4.5, 2: 5.495}


# -------------------------------------------------------------------- refusals and cancellation


async def test_a_composite_refuses_like_any_limiter() -> None:
    both = AllOf(
        TokenBucket(rate=1, capacity=1, initial=0), SlidingWindowLog(5, 100), max_waiting=3
    )
    with pytest.raises(CostTooLarge):
        await both.acquire(2)
    with pytest.raises(WaitTimeout) as failure:
        await both.acquire(timeout=0.5)
    assert failure.value.delay == 1.0
    async with callers() as crowd:
        for name in range(4):
            await crowd.join(name, both, timeout=2.5)
    assert crowd.log == [(0, 1.0), (1, 2.0)]
    assert isinstance(crowd.errors[2], WaitTimeout)
    assert crowd.errors[2].delay == 3.0
    assert both.stats().denied == 4


async def test_max_waiting_counts_the_callers_of_this_composite_only() -> None:
    a, b = TokenBucket(rate=1, capacity=1, initial=0), TokenBucket(rate=1, capacity=9)
    narrow, wide = AllOf(a, b, max_waiting=1), AllOf(a, b)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(("wide", name), wide)
            await crowd.join(("narrow", name), narrow)
        assert (narrow.stats().waiting, wide.stats().waiting) == (1, 3)
        assert all(isinstance(crowd.errors["narrow", name], QueueFull) for name in (1, 2))
        crowd.cancel(("narrow", 0))
        await settle()
        await crowd.join(("narrow", 3), narrow)
    assert ("narrow", 3) in crowd.order


async def test_a_waiter_given_up_in_a_composite_lets_the_next_one_go() -> None:
    a, b = TokenBucket(rate=1, capacity=3, initial=0), SlidingWindowLog(5, 100)
    both = a & b
    async with callers() as crowd:
        await crowd.join("dear", both, 3, timeout=4)
        await crowd.join("next", both)
        await anyio.sleep(0.5)
        a.pause(3)
        await anyio.sleep(0.1)
        a.charge(2)
    assert isinstance(crowd.errors["dear"], WaitTimeout)
    assert crowd.order == ["next"]
    assert not a._side.lines
    assert b._side is None


async def test_a_plain_caller_behind_a_guest_is_given_up_in_time() -> None:
    """What its line foresaw for it does not know of guests that come later, by an older claim."""
    a = SlidingWindowLog(limit=1, window=4)
    others = [TokenBucket(rate=1, capacity=9, initial=0) for _ in range(2)]
    a.allow()
    async with callers() as crowd:
        for name, other in zip("xy", others, strict=True):
            await crowd.join(name, a & other, (1, 9))  # held by the other one until 9
        for name in range(4):  # 4, 8, 12, 16 as far as its line can tell
            await crowd.join(name, a, timeout=17 if name == 3 else None)
        await anyio.sleep(17.02)
        assert crowd.instants() == {0: 4, 1: 8, "x": 12, "y": 16}
        assert isinstance(crowd.errors[3], WaitTimeout)


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_cancelled_caller_of_a_composite_leaves_no_trace(victim: int) -> None:
    a, b = TokenBucket(rate=1, capacity=2, initial=0), TokenBucket(rate=1, capacity=2)
    both = a & b
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, both)
        await anyio.sleep(0.5)
        crowd.cancel(victim)
        assert not both.allow()  # the line is not empty for a moment
    assert [instant for _, instant in crowd.log] == [1, 2]
    assert victim not in crowd.order
    assert both.stats()[:3] == (2, 1, 0)


async def test_a_refund_of_a_cancelled_grant_goes_to_every_member() -> None:
    a, b = TokenBucket(rate=1, capacity=3, initial=0), SlidingWindowLog(5, 100)
    both = a & b
    call = both.acquire(2)
    async with callers() as crowd:
        await crowd.join("first", both)

        async def owner() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await both.acquire(2)

        scopes: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as group:
            group.start_soon(owner)
            await anyio.sleep(0.5)
            scopes[0].cancel()
    call.close()
    assert b.available() == 4
    assert a.delay(cost=1) == 1.0


async def test_who_no_longer_fits_a_member_is_told() -> None:
    a, b = TokenBucket(rate=1, capacity=5, initial=0), TokenBucket(rate=1, capacity=5)
    both = a & b
    async with callers() as crowd:
        await crowd.join("fits", both, 2)
        await crowd.join("does not", both, 4)
        b.capacity = 3
        await settle()
        assert isinstance(crowd.errors["does not"], CostTooLarge)
    assert crowd.log == [("fits", 2.0)]


# -------------------------------------------------------------------- work, and fairness at scale


async def test_two_hundred_users_and_one_common_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    work: Counter[str] = Counter()
    for name in ("_bind", "_advance", "_weigh"):
        original = getattr(waiting, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            work[name] += 1
            return original(*args)

        monkeypatch.setattr(waiting, name, counted)
    common = TokenBucket(rate=100, capacity=1)
    users = [SlidingWindowLog(limit=3, window=10) for _ in range(200)]
    async with callers() as crowd:
        for turn in range(5):
            for user, own in enumerate(users):
                await crowd.join((user, turn), own & common)
    assert len(crowd.log) == 1000
    by_user = defaultdict(list)
    for (user, turn), _ in crowd.log:
        by_user[user].append(turn)
    assert all(turns == sorted(turns) for turns in by_user.values())
    assert crowd.log[599][1] < 10  # the first three of each: nobody waited for a user's own window
    assert crowd.log[-1][1] < 14.1
    assert work["_bind"] <= 5 * 1000
    assert work["_advance"] <= 8 * 1000
    assert work["_weigh"] <= 10 * 1000


MEMBERS = {
    "token": lambda: TokenBucket(rate=2, capacity=3),
    "strict": lambda: TokenBucket(rate=1.5, capacity=2, slack=0),
    "leaky": lambda: LeakyBucket(rate=2, capacity=3),
    "log": lambda: SlidingWindowLog(limit=3, window=1.7),
    "counter": lambda: SlidingWindowCounter(limit=3, window=1.7),
    "fixed": lambda: FixedWindow(limit=3, window=1.7),
}


def promise(leaf: Limiter, seconds: float) -> float:
    """The most that an interval of this many seconds may hold (see each class)."""
    if isinstance(leaf, TokenBucket | LeakyBucket):
        return leaf.capacity + leaf.rate * (seconds + leaf._slack)
    windows = int(seconds // leaf.window) + 1
    return leaf.limit * (windows if isinstance(leaf, SlidingWindowLog) else windows + 1)


class Ledger:
    """Every spending of a leaf, as (when it happened, how much)."""

    def __init__(self, leaves: list[Limiter], monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[Limiter, list[tuple[float, float]]] = {leaf: [] for leaf in leaves}
        for kind in {type(leaf) for leaf in leaves}:
            original = kind._spend

            def spend(leaf: Any, at: float, cost: float, original: Any = original) -> None:
                if leaf in self.of:
                    self.of[leaf].append((clock.now(), cost))
                original(leaf, at, cost)

            monkeypatch.setattr(kind, "_spend", spend)

    def check(self) -> None:
        for leaf, entries in self.of.items():
            for first in range(len(entries)):
                total = 0.0
                for instant, cost in entries[first:]:
                    total += cost
                    assert total <= promise(leaf, instant - entries[first][0] + 1e-9) + 1e-6, leaf


async def mayhem(seed: int, kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    debts = seed % 2  # a charge asks nobody, and may break any bound
    leaves = [MEMBERS[kind]() for kind in kinds]
    ledger = Ledger(leaves, monkeypatch)
    needs: dict[Any, frozenset[Limiter]] = {}
    costs: dict[Any, float] = {}
    gone: list[Any] = []
    async with callers() as crowd:
        for name in range(120):
            chosen = chance.sample(leaves, chance.choice([1, 1, 2, 2, 3]))
            limiter = chosen[0] if len(chosen) == 1 else AllOf(*chosen)
            if len(chosen) == 3 and chance.random() < 0.5:
                limiter = AllOf(AllOf(*chosen[:2]), chosen[2])
            cost = chance.choice([1, 1, 1, 2])
            needs[name], costs[name] = frozenset(chosen), cost
            timeout = chance.choice([None, None, None, None, 5.0, 30.0])
            await crowd.join(name, limiter, cost, timeout=timeout)
            if chance.random() < 0.3:
                await anyio.sleep(chance.choice([0.05, 0.31, 1.0]))
            if chance.random() < 0.1:
                gone.append(chance.randrange(name + 1))
                crowd.cancel(gone[-1])
            if chance.random() < 0.05:
                chance.choice(leaves).pause(chance.random())
            if debts and chance.random() < 0.05:
                chance.choice(leaves).charge(1)
        joined = clock.now()
    # Nothing lost: each was let in, refused, or cancelled, and once.
    assert len(crowd.log) + len(crowd.errors) + len(crowd.cancelled) == 120
    assert len({*crowd.order, *crowd.errors, *crowd.cancelled}) == 120
    assert all(isinstance(error, WaitTimeout) for error in crowd.errors.values())
    assert not any(leaf._side.lines or leaf._side.groups for leaf in leaves if leaf._side)
    # First come, first served among those with the same needs.
    instants = dict(crowd.log)
    for same in set(needs.values()):
        row = [instants[name] for name in sorted(instants) if needs[name] == same]
        assert row == sorted(row)
    # No starvation: done when the busiest member could just have done it alone, and a bit.
    slowest = max(
        sum(costs[name] for name in instants if leaf in needs[name]) / rate_of(leaf)
        for leaf in leaves
    )
    assert max(instants.values()) <= joined + 2.5 * slowest + 12
    if not debts:
        ledger.check()


def rate_of(leaf: Limiter) -> float:
    return float(leaf.rate)


@pytest.mark.parametrize("seed", range(12))
async def test_mayhem_among_shared_members(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = random.Random(seed).choices(list(MEMBERS), k=4)
    await mayhem(seed, kinds, monkeypatch)


def test_members_alone_together_and_in_many_composites_reach_the_common_rate() -> None:
    """No rate is lost to moving between lines: the common limit is busy all the time."""

    async def main(time: VirtualTime) -> float:
        common = TokenBucket(rate=50, capacity=1)
        users = [TokenBucket(rate=5, capacity=1) for _ in range(20)]
        crowd: Callers
        async with callers() as crowd:
            for turn in range(25):
                for user, own in enumerate(users):
                    await crowd.join((user, turn), own & common)
        return time.now()

    with virtual_time() as time:
        assert time.run(main, time) <= 499 / 50 + 0.1
