"""RedisLimiter on a cluster of three primaries, on loopback: slots that move, nodes that die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.redis_servers import RedisServer, cluster_of
from redis.asyncio import RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError

from throttle import LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from throttle.shared.redis import RedisLimiter

pytestmark = pytest.mark.anyio

FOUR = [
    TokenBucket(0.001, 20),
    LeakyBucket(0.001, 20),
    SlidingWindowLog(20, 3600),
    SlidingWindowCounter(20, 3600),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # real time: the server's clock is real


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    with cluster_of(3) as nodes:
        yield nodes


@pytest.fixture
async def client(nodes: list[RedisServer]) -> Any:
    async with RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:
        yield client


def ids(nodes: list[RedisServer]) -> list[str]:
    return [str(node.admin.execute_command("CLUSTER", "MYID")) for node in nodes]


def holder_of(nodes: list[RedisServer], slot: int) -> int:
    """The number of the node that serves a slot, as the nodes themselves see it."""
    for number, node in enumerate(nodes):
        for row in node.admin.execute_command("CLUSTER", "NODES").splitlines():
            words = row.split() if isinstance(row, str) else []
            if "myself" in "".join(words[2:3]) and any(
                int(part.split("-")[0]) <= slot <= int(part.split("-")[-1])
                for part in words[8:]
                if not part.startswith("[")
            ):
                return number
    raise AssertionError(f"nobody serves slot {slot}")


@pytest.mark.parametrize("template", FOUR, ids=repr)
async def test_every_verb_works_on_keys_of_every_node(client: RedisCluster, template: Any) -> None:
    for key in range(12):
        limiter = RedisLimiter(client, f"verbs {key}", template)
        assert sum(await asyncio.gather(*(limiter.allow() for _ in range(25)))) == 20
        assert await limiter.delay() > 1
        await limiter.refund(3)
        assert await limiter.available() >= 2
        if not isinstance(template, LeakyBucket):  # its queue waits until all has leaked
            assert await limiter.acquire(timeout=0) >= 0
        await limiter.charge(1)
        await limiter.pause(5)
        assert not await limiter.allow()
        await limiter.resume()
        await limiter.reset()
        assert await limiter.available() == 20


async def test_many_keys_share_a_connection_for_each_node(
    client: RedisCluster, nodes: list[RedisServer]
) -> None:
    await RedisLimiter(client, "first", TokenBucket(1)).available()
    before = sum(node.connections_so_far() for node in nodes)
    limiters = [RedisLimiter(client, f"many {i}", TokenBucket(1)) for i in range(200)]
    assert all(await asyncio.gather(*(limiter.allow() for limiter in limiters)))
    assert sum(node.connections_so_far() for node in nodes) <= before + 2


async def test_a_slot_that_moves_under_load_loses_and_spends_nothing(
    client: RedisCluster, nodes: list[RedisServer]
) -> None:
    """Back and forth, as a resharding does it: migrating, the keys one by one, then the slot."""
    limit = 100_000
    limiter = RedisLimiter(client, "moving", SlidingWindowLog(limit, 3600))
    taken = 0
    moving = True

    async def load() -> None:
        nonlocal taken
        while moving:
            assert await limiter.allow()
            taken += 1

    workers = [asyncio.create_task(load()) for _ in range(8)]
    slot = key_slot(b"throttle:{moving}:sliding_window_log")
    names = ids(nodes)
    await asyncio.sleep(0.05)
    for _ in range(4):
        here = holder_of(nodes, slot)
        there = (here + 1) % 3
        source, target = nodes[here].admin, nodes[there].admin
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[here])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[there])
        await asyncio.sleep(0.02)
        for key in source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.execute_command("MIGRATE", "127.0.0.1", nodes[there].port, key, 0, 2000)
            await asyncio.sleep(0.02)  # one key here, one there: TRYAGAIN
        await asyncio.sleep(0.02)
        for admin in (target, source, nodes[3 - here - there].admin):
            admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[there])
        await asyncio.sleep(0.02)
    moving = False
    await asyncio.gather(*workers)
    assert taken > 50
    assert await limiter.available() == limit - taken


async def test_scripts_flushed_on_every_node_are_loaded_again(
    client: RedisCluster, nodes: list[RedisServer]
) -> None:
    limiters = [RedisLimiter(client, f"flush {i}", SlidingWindowLog(20, 3600)) for i in range(9)]
    for _ in range(2):
        assert all(await asyncio.gather(*(limiter.allow() for limiter in limiters)))
        for node in nodes:
            node.admin.script_flush()
    assert {await limiter.available() for limiter in limiters} == {18}


async def test_a_node_that_dies_takes_its_keys_along_and_no_others() -> None:
    with cluster_of(3) as nodes:
        for node in nodes:
            node.admin.config_set("cluster-require-full-coverage", "no")
        async with RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:
            limiters = [
                RedisLimiter(client, f"dies {i}", TokenBucket(1000), timeout=0.5) for i in range(30)
            ]
            assert all(await asyncio.gather(*(limiter.allow() for limiter in limiters)))
            nodes[2].kill()
            outcomes: list[bool | None] = []
            for limiter in limiters:
                async with asyncio.timeout(5):
                    try:
                        outcomes.append(await limiter.allow())
                    except RedisError:
                        outcomes.append(None)
            dead = [holder == 2 for holder in map(_node_of, limiters)]
            assert True in dead
            assert [outcome is None for outcome in outcomes] == dead


def _node_of(limiter: RedisLimiter) -> int:
    return min(2, 3 * key_slot(limiter._keys[0].encode()) // 16384)
