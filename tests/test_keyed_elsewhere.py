"""Keyed over other engines: the state lies in a file or on a server, the key's object is cheap."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.callers import settle
from helpers.redis_servers import RedisServer

from throttle import (
    Concurrency,
    FileLimiter,
    Keyed,
    KeysFull,
    RedisLimiter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
    throttle,
)
from throttle.elsewhere import _SPARE
from throttle.testing import virtual_time


class Bare:
    """An engine that has nothing but `acquire`; the state lies in `states`."""

    states: dict[str, TokenBucket]
    made = 0

    def __init__(self, key: str, states: dict[str, TokenBucket]) -> None:
        self._of = states.setdefault(key, TokenBucket(1))
        Bare.made += 1

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        return await self._of.acquire(cost, timeout=timeout)


def of_bare(**options: Any) -> Keyed:
    states: dict[str, TokenBucket] = {}
    return Keyed(lambda key: Bare(key, states), **options)


def of_files(folder: Path, **options: Any) -> Keyed:
    return Keyed(lambda key: FileLimiter(folder / f"{key}", SlidingWindowLog(2, 10)), **options)


def open_files(folder: Path) -> int:
    """How many files below it are open in this process. (A mapped one has two descriptors.)"""
    links = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            links.add(os.readlink(entry.path))
        except OSError:  # the directory's own
            continue
    return sum(link.startswith(str(folder)) for link in links)


# -------------------------------------------------------------------- any SupportsAcquire


@pytest.mark.anyio
async def test_callers_of_a_key_wait_for_each_other_and_for_no_other_key() -> None:
    keyed = of_bare()
    ends: list[tuple[str, float]] = []

    async def call(key: str) -> None:
        await keyed.acquire(key)
        ends.append((key, clock.now()))

    async with anyio.create_task_group() as group:
        for key in "aabab":
            group.start_soon(call, key)
    assert sorted(ends) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    with pytest.raises(WaitTimeout):
        await keyed["a"].acquire(timeout=0.5)


@pytest.mark.anyio
async def test_a_verb_that_the_engine_lacks_says_so_and_leaves_nothing_behind() -> None:
    keyed = of_bare(max_keys=1)
    for verb in ("allow", "stats", "reset", "acquire_sync"):
        with pytest.raises(AttributeError, match=verb):
            getattr(keyed["a"], verb)()
    assert await keyed.acquire("b") == 0


@pytest.mark.anyio
async def test_max_keys_holds_for_those_inside_and_the_idle_make_room() -> None:
    keyed = of_bare(max_keys=2)
    async with anyio.create_task_group() as group:
        for key in "aabb":
            group.start_soon(keyed.acquire, key)
        await settle()
        assert len(keyed) == 2
        assert sorted(keyed) == ["a", "b"]
        with pytest.raises(KeysFull):
            await keyed.acquire("c")
        assert "c" not in keyed
    assert await keyed.acquire("c") == 0
    assert (len(keyed), "c" in keyed) == (2, True)
    assert keyed.discard("c")
    assert not keyed.discard("c")


@pytest.mark.anyio
async def test_few_idle_ones_are_kept_and_those_in_use_are_never_made_anew() -> None:
    keyed, before = of_bare(), Bare.made
    for _ in range(3):
        await keyed.acquire("a")
    assert Bare.made == before + 1
    async with anyio.create_task_group() as group:
        group.start_soon(keyed.acquire, "a")
        await settle()
        for n in range(3 * _SPARE):
            await keyed.acquire(n)
        assert "a" in keyed
        assert len(keyed) == _SPARE + 1
    made = Bare.made
    await keyed.acquire("a")
    assert Bare.made == made


@pytest.mark.anyio
async def test_a_cancelled_call_is_out() -> None:
    keyed = of_bare(max_keys=1)
    await keyed.acquire("a")
    with anyio.move_on_after(0.5):
        await keyed.acquire("a")
    assert await keyed.acquire("b") == 0


@pytest.mark.anyio
async def test_discarded_while_somebody_is_inside() -> None:
    keyed = of_bare()
    await keyed.acquire("a")
    async with anyio.create_task_group() as group:
        group.start_soon(keyed.acquire, "a")
        await settle()
        assert keyed.discard("a")
        group.start_soon(keyed.acquire, "a")
        await settle()
    assert clock.now() == 2
    assert list(keyed) == ["a"]


@pytest.mark.anyio
async def test_local_and_other_limiters_share_the_room() -> None:
    states: dict[str, TokenBucket] = {}
    keyed = Keyed(
        lambda key: TokenBucket(1) if key.isupper() else Bare(key, states),  # type: ignore[arg-type, return-value]
        max_keys=2,
    )
    await keyed.acquire("a")
    await keyed.acquire("b")
    assert keyed.allow("A")  # in place of an idle one
    assert sorted(keyed) == ["A", "b"]
    assert keyed.allow("B")
    assert sorted(keyed) == ["A", "B"]
    with pytest.raises(KeysFull):
        await keyed.acquire("a")
    with pytest.raises(KeysFull):
        keyed.allow("C")


class Sync:
    def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        return 0.0


@pytest.mark.parametrize(
    "made",
    [None, 5, Bare, asyncio.Semaphore(), Concurrency(1), Keyed(lambda: TokenBucket(1)), Sync()],
    ids=lambda made: str(made)[:30],
)
def test_what_is_no_limiter_is_refused(made: Any) -> None:
    keyed = Keyed(lambda: made)
    with pytest.raises(TypeError, match=r"factory must make a limiter, not .* for 'a'"):
        keyed.allow("a")
    assert len(keyed) == 0


# -------------------------------------------------------------------- files


def test_a_key_of_files_has_all_the_verbs(tmp_path: Path) -> None:
    keyed = of_files(tmp_path)
    with virtual_time() as time:
        assert [keyed.allow("a") for _ in range(3)] == [True, True, False]
        assert keyed.delay("a") == keyed.ready_at("a", cost=2) == keyed.fresh_at("a") == 10
        assert keyed["a"].available() == 0
        assert keyed.allow("a", 10.0)
        time.advance(10)
        keyed.refund("a", 1)
        assert keyed.acquire_sync("a", 2) == 0
        assert keyed.acquire_sync("a") == 10
        keyed.charge("a", 1)
        keyed.pause("b", 5)
        assert not keyed.allow("b")
        keyed.resume("b")
        assert keyed.allow("b")
        keyed.reset("a")
        assert keyed.stats("a").granted == 0
        assert keyed.allow("a", cost=2)


@pytest.mark.anyio
async def test_looking_at_an_unknown_key_stores_nothing(tmp_path: Path) -> None:
    keyed = of_files(tmp_path)
    assert keyed.available("a") == 2
    assert (len(keyed), open_files(tmp_path)) == (0, 0)


@pytest.mark.anyio
async def test_forgotten_files_are_closed_and_their_state_is_not_lost(tmp_path: Path) -> None:
    keyed = of_files(tmp_path)
    for n in range(2 * _SPARE):
        assert await keyed.acquire(n) == 0
        assert keyed.allow(n)
        with suppress(WaitTimeout):
            await keyed.acquire(n, timeout=1)
    assert open_files(tmp_path) == len(keyed) == _SPARE
    assert 0 not in keyed
    assert not keyed.allow(0)
    keyed = of_files(tmp_path)
    assert open_files(tmp_path) == 0


@pytest.mark.anyio
async def test_one_file_for_several_keys_outlives_each_of_them(tmp_path: Path) -> None:
    one = FileLimiter(tmp_path / "one", TokenBucket(1, 1000))
    keyed = Keyed(lambda: one)
    for n in range(2 * _SPARE):
        assert keyed.allow(n)
    assert one.allow()


# -------------------------------------------------------------------- a server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def over_redis(server: RedisServer) -> Callable[[Any], Any]:
    """Run a function of a client in a real loop, since the server's clock is real."""
    server.admin.flushall()

    async def main(work: Any) -> Any:
        async with server.client() as client:
            return await work(client)

    return lambda work: asyncio.run(main(work))


def test_the_verbs_of_redis_keys_are_coroutines(over_redis: Any) -> None:
    async def work(client: Any) -> None:
        keyed: Any = Keyed(
            lambda key: RedisLimiter(client, f"user:{key}", SlidingWindowLog(2, 100))
        )
        user = keyed["ann"]
        assert [await user.allow() for _ in range(3)] == [True, True, False]
        assert await user.available() == 0
        assert 90 < await user.delay() <= 100
        await user.refund(1)
        assert await keyed.acquire("ann") == pytest.approx(0, abs=2)
        with pytest.raises(WaitTimeout):
            await user.acquire(timeout=1)
        assert (user.stats().granted, user.stats().denied) == (3, 2)
        await user.reset()
        await user.charge(2)
        assert not await user.allow()
        await keyed.pause("bob", 50)
        assert not await keyed.allow("bob")
        await keyed.resume("bob")
        assert await keyed.allow("bob")
        for n in range(2 * _SPARE):
            await keyed.allow(n)
        assert len(keyed) == _SPARE
        assert not await user.allow()
        with pytest.raises(TypeError, match="now"):
            keyed.allow("ann", 3.0)

    over_redis(work)


def test_throttle_by_redis(over_redis: Any) -> None:
    async def work(client: Any) -> None:
        keyed = Keyed(lambda key: RedisLimiter(client, f"of:{key}", TokenBucket(20, 1)))

        @throttle(keyed, key="x")
        async def by_key(x: str) -> str:
            return x

        @throttle(RedisLimiter(client, "one", TokenBucket(20, 1)))
        async def by_one(x: str) -> str:
            return x

        loop = asyncio.get_running_loop()
        for call in (by_key, by_one):
            began = loop.time()
            assert await asyncio.gather(*(call("a") for _ in range(3))) == ["a"] * 3
            assert loop.time() - began > 0.09
        with pytest.raises(TypeError, match="has no acquire_sync"):
            throttle(RedisLimiter(client, "one", TokenBucket(20, 1)))(len)

    over_redis(work)


def test_a_stand_in_for_a_server_that_is_away_is_not_forgotten_with_its_debt() -> None:
    async def work() -> None:
        server = RedisServer()  # not started
        async with server.client() as client:
            keyed: Any = Keyed(
                lambda key: RedisLimiter(
                    client, f"user:{key}", SlidingWindowLog(4, 1000), on_error="local"
                )
            )
            assert [await keyed.allow("a") for _ in range(2)] == [True, False]
            for n in range(2 * _SPARE):
                assert await keyed.allow(n)
            assert len(keyed) == 1 + 2 * _SPARE
            assert not await keyed.allow("a")
        server.close()

    asyncio.run(work())
