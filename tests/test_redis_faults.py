"""What a user of RedisLimiter sees when the server, or the way to it, fails. Real faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from helpers.redis_servers import Proxy, RedisServer
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import (
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from throttle import LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from throttle.shared.redis import RedisLimiter

pytestmark = pytest.mark.anyio

#: Seconds a call may wait for the server here; and what a busy machine may add to it.
TIMEOUT, SLACK = 0.3, 3.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # real time: the server's clock is real


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of each test's own: it will not be the same afterwards."""
    with RedisServer() as server:
        yield server


def day_limit(client: Redis, **options: Any) -> RedisLimiter:
    """A limit whose permits do not come back within a test, so that each one spent is seen."""
    return RedisLimiter(client, "day", SlidingWindowLog(10, 86400), timeout=TIMEOUT, **options)


async def within(limit: float, awaitable: Any) -> Any:
    """Await it; whatever the outcome, it has to come within `limit` seconds."""
    async with asyncio.timeout(limit + SLACK):
        return await awaitable


# -------------------------------------------------------------------- the server is gone


async def test_gone_raises_within_the_timeout_and_recovers(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = day_limit(client)
        assert await limiter.allow()
        server.kill()
        for verb in (limiter.allow, limiter.acquire, limiter.delay, limiter.available):
            with pytest.raises(ConnectionError):
                await within(TIMEOUT, verb())
        with pytest.raises(ConnectionError):
            await within(TIMEOUT, limiter.pause(1))
        server.start()
        assert await limiter.allow()
        assert await limiter.available() == 9  # a new server: one burst more, and no error


async def test_gone_with_a_local_stand_in(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.client() as client:
        limiter = day_limit(client, on_error="local", share=0.3)
        assert await limiter.allow()
        server.kill()
        with caplog.at_level(logging.INFO, "throttle"):
            answers = [await within(TIMEOUT, limiter.allow()) for _ in range(5)]
            assert answers == [True, True, True, False, False]  # 0.3 of 10
            assert await limiter.available() == 0
            assert await limiter.delay() > 86000
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            server.start()
            await asyncio.sleep(TIMEOUT)
            assert await limiter.allow()
            assert await limiter.available() == 9
        assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
        assert all(record.name == "throttle" for record in caplog.records)


async def test_gone_with_the_door_open(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.client() as client:
        limiter = day_limit(client, on_error="open")
        server.kill()
        with caplog.at_level(logging.INFO, "throttle"):
            assert all([await within(TIMEOUT, limiter.allow()) for _ in range(50)])
            assert await within(TIMEOUT, limiter.acquire(10)) < TIMEOUT + SLACK
            assert await limiter.delay() == 0
            await limiter.charge(5)
            await limiter.refund(5)
            assert len(caplog.records) == 1
        await limiter.pause(60)
        assert not await limiter.allow()  # somebody said stop: that much is known here
        await limiter.resume()
        assert await limiter.allow()


async def test_a_pause_called_before_it_went_holds_in_the_stand_in(server: RedisServer) -> None:
    async with server.client() as client:
        for policy in ("local", "open"):
            limiter = RedisLimiter(
                client, policy, TokenBucket(100), on_error=policy, timeout=TIMEOUT
            )
            if policy == "local":
                await limiter.pause(60)
                server.kill()
            else:
                await limiter.pause(60)
            assert not await limiter.allow()


@pytest.mark.parametrize(
    "template",
    [TokenBucket(10, 5), LeakyBucket(10, 5), SlidingWindowLog(5, 1), SlidingWindowCounter(5, 1)],
    ids=repr,
)
async def test_a_cost_that_fits_the_limit_fits_its_stand_in(template: Any) -> None:
    with RedisServer() as server:
        pass  # nobody listens there
    async with server.client() as client:
        limiter = RedisLimiter(client, "x", template, on_error="local", share=0.1, timeout=TIMEOUT)
        assert await within(TIMEOUT, limiter.acquire(5)) >= 0
        assert not await limiter.allow(5)
        assert await limiter.delay(5) < 60
        assert await limiter.delay(6) == inf


async def test_who_already_sleeps_goes_on_time_when_the_server_goes(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = RedisLimiter(client, "sleep", TokenBucket(1 / 1.3, 1), timeout=TIMEOUT)
        await limiter.acquire()
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.1)
        server.kill()
        assert await within(1.3, task) >= 1.1


async def test_restarted_empty_it_heals_itself(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = day_limit(client)
        assert sum([await limiter.allow() for _ in range(12)]) == 10
        server.kill()
        server.start()
        await asyncio.sleep(0.02)  # the connection is seen to be closed
        assert sum([await limiter.allow() for _ in range(12)]) == 10  # one burst more, no error


# -------------------------------------------------------------------- the server does not answer


async def test_frozen_for_a_while_costs_one_timeout_and_one_permit_at_most(
    server: RedisServer,
) -> None:
    async with server.client() as client:  # redis-py would try ten times by default
        limiter = day_limit(client)
        assert await limiter.allow()
        server.freeze()
        with pytest.raises(TimeoutError):
            await within(TIMEOUT, limiter.acquire())
        server.thaw()
        assert await limiter.available() in (8, 9)


async def test_frozen_for_ever_no_call_hangs(server: RedisServer) -> None:
    """Those too that came while another was under way."""
    async with server.client() as client:
        limiter = day_limit(client)
        assert await limiter.allow()
        server.freeze()
        tasks = [asyncio.create_task(limiter.acquire())]
        for _ in range(5):
            await asyncio.sleep(TIMEOUT / 8)
            tasks.append(asyncio.create_task(limiter.acquire()))
            tasks.append(asyncio.create_task(limiter.allow()))
        results = await within(2 * TIMEOUT, asyncio.gather(*tasks, return_exceptions=True))
        assert all(isinstance(result, TimeoutError) for result in results)
        assert len({id(result) for result in results}) == len(results)  # each its own traceback
        server.thaw()


async def test_frozen_the_stand_in_answers_without_waiting_each_time(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = RedisLimiter(
            client, "frozen", TokenBucket(1e6), on_error="local", timeout=TIMEOUT
        )
        server.freeze()
        loop = asyncio.get_running_loop()
        assert await within(TIMEOUT, limiter.allow())
        started = loop.time()
        assert all([await limiter.allow() for _ in range(100)])
        assert loop.time() - started < 100 * TIMEOUT / 2  # tried again now and then, not by each
        server.thaw()
        await asyncio.sleep(TIMEOUT)
        before = server.script_calls()
        assert await limiter.allow()
        assert server.script_calls() > before


# -------------------------------------------------------------------- the way breaks


async def test_a_connection_killed_while_idle_costs_one_reconnect_and_nothing_else(
    server: RedisServer,
) -> None:
    async with server.client() as client:
        limiter = day_limit(client)
        for taken in range(1, 6):
            assert await limiter.allow()
            server.admin.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
            before = server.connections_so_far()
            assert await limiter.available() == 10 - taken
            assert server.connections_so_far() == before + 1


async def test_what_was_sent_is_never_sent_again(server: RedisServer) -> None:
    """The reply is lost after the server has counted: an error, and one permit spent, not two."""
    async with Proxy(server.port) as proxy, Redis(port=proxy.port) as client:
        limiter = day_limit(client)
        assert await limiter.available() == 10
        for taken in (1, 2):
            calls = server.script_calls()
            proxy.cut_replies = 1
            with pytest.raises(ConnectionError):
                await within(TIMEOUT, limiter.acquire())
            assert server.script_calls() == calls + 1
            assert await limiter.available() == 10 - taken


async def test_many_calls_at_once_never_run_out_of_connections(server: RedisServer) -> None:
    async with server.client(max_connections=1) as client:
        before = server.connections_so_far()
        one = RedisLimiter(client, "one", TokenBucket(1000, 1000))
        assert all(await asyncio.gather(*(one.allow() for _ in range(101))))
        many = [RedisLimiter(client, f"key {i}", TokenBucket(1000, 1000)) for i in range(101)]
        assert all(await asyncio.gather(*(limiter.allow() for limiter in many)))
        assert server.connections_so_far() == before + 1
        assert await client.ping()  # the client's own one is free


# -------------------------------------------------------------------- the server refuses


async def test_scripts_flushed_under_load_nobody_notices(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = RedisLimiter(client, "flush", SlidingWindowLog(2000, 86400))
        for _ in range(20):
            server.admin.script_flush()
            assert all(await asyncio.gather(*(limiter.allow() for _ in range(20))))
        assert await limiter.available() == 2000 - 400


@pytest.mark.parametrize("policy", ["raise", "local"])
async def test_out_of_memory_is_said_and_spends_nothing(server: RedisServer, policy: Any) -> None:
    async with server.client() as client:
        limiter = day_limit(client, on_error=policy)
        assert await limiter.allow(3)
        server.admin.config_set("maxmemory-policy", "noeviction")
        server.admin.config_set("maxmemory", 1)
        if policy == "raise":
            for _ in range(3):
                with pytest.raises(OutOfMemoryError):
                    await limiter.acquire()
        else:
            assert [await limiter.allow() for _ in range(3)] == [True, True, False]
        server.admin.config_set("maxmemory", 0)
        await asyncio.sleep(TIMEOUT)
        assert await limiter.available() == 7


async def test_a_demoted_primary_is_asked_for_again_once_then_the_policy(
    server: RedisServer,
) -> None:
    with RedisServer() as new:
        async with server.client() as client:
            limiter = day_limit(client)
            assert await limiter.allow()
            server.admin.replicaof("127.0.0.1", new.port)
            before = server.connections_so_far()
            with pytest.raises(ReadOnlyError):
                await within(TIMEOUT, limiter.allow())
            assert server.connections_so_far() == before + 1
            server.admin.replicaof("NO", "ONE")
            assert await limiter.allow()


async def test_a_primary_that_moved_is_found_behind_its_name(server: RedisServer) -> None:
    """As with Sentinel, or a name that points elsewhere: connecting anew finds the primary."""
    primary = server.port

    class Named(Connection):
        async def _connect(self) -> None:
            self.port = primary
            await super()._connect()

    with RedisServer() as new:
        async with Redis(connection_pool=ConnectionPool(connection_class=Named)) as client:
            limiter = day_limit(client)
            assert await limiter.allow()
            server.admin.replicaof("127.0.0.1", new.port)
            primary = new.port
            assert await within(TIMEOUT, limiter.allow())
            assert new.script_calls() == 1
            await client.connection_pool.disconnect()


async def test_sentinel_promotes_another_and_nobody_notices(
    server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer() as replica:
        replica.admin.replicaof("127.0.0.1", server.port)
        settings = tmp_path / "sentinel.conf"
        settings.write_text(f"sentinel monitor main 127.0.0.1 {server.port} 1\n")
        with RedisServer(settings=settings) as watch:
            sentinel = Sentinel([("127.0.0.1", watch.port)])
            client = sentinel.master_for("main")
            async with client, sentinel.sentinels[0], asyncio.timeout(30):
                limiter = RedisLimiter(client, "day", SlidingWindowLog(10, 86400), timeout=5)
                assert await limiter.allow()
                await until(lambda: watch.admin.sentinel_master("main")["num-slaves"] == 1)
                server.admin.wait(1, 5000)
                await until(lambda: promoted(watch, replica))
                server.admin.replicaof("127.0.0.1", replica.port)  # as Sentinel does, in its time
                assert await limiter.allow()
                assert await limiter.available() == 8
                assert replica.script_calls() >= 2


async def until(true: Callable[[], bool]) -> None:
    """Look now and then: a server does not tell when it is done."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def promoted(watch: RedisServer, replica: RedisServer) -> bool:
    """Ask for a failover until the sentinel knows enough to do it, and it is done."""
    if int(watch.admin.sentinel_master("main")["port"]) == replica.port:
        return True
    with suppress(ResponseError):
        watch.admin.execute_command("SENTINEL", "FAILOVER", "main")
    return False


async def test_a_key_of_another_kind_is_an_error_and_left_alone(server: RedisServer) -> None:
    async with server.client() as client:
        limiter = RedisLimiter(client, "taken", TokenBucket(1))
        name = "throttle:{taken}:token_bucket"
        server.admin.set(name, "mine")
        with pytest.raises(ResponseError, match="something else"):
            await limiter.allow()
        assert server.admin.get(name) == "mine"
        server.admin.delete(name)
        server.admin.rpush(name, "mine")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await limiter.allow()
        assert server.admin.lrange(name, 0, -1) == ["mine"]


async def test_a_torn_state_is_made_anew(server: RedisServer) -> None:
    """A log without its numbers, numbers without their log: one of two keys was evicted."""
    async with server.client() as client:
        limiter = day_limit(client)
        name, log = "throttle:{day}:sliding_window_log", "throttle:{day}:sliding_window_log:entries"
        assert await limiter.allow(10)
        server.admin.delete(name)
        assert await limiter.allow(4)
        assert await limiter.available() == 6
        server.admin.delete(log)
        assert await limiter.allow(10)
        assert server.admin.pttl(name) > 0
        assert server.admin.pttl(log) > 0


async def test_a_loop_that_ends_in_the_middle_of_a_call_leaves_nothing_behind(
    server: RedisServer,
) -> None:
    """No warning of a task or a connection, whatever was under way. (Warnings are errors here.)"""

    def run() -> None:
        async def leave() -> None:
            client = server.client()
            limiter = RedisLimiter(client, "end", TokenBucket(1, 1))
            tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
            await until(lambda: limiter.stats()[:3] == (1, 0, 2))
            server.freeze()
            tasks.append(asyncio.create_task(limiter.acquire()))
            await until(lambda: limiter.stats().waiting == 3)

        try:
            asyncio.run(leave())
        finally:
            server.thaw()

    await asyncio.to_thread(run)
    async with asyncio.timeout(5):
        await until(lambda: len(server.admin.client_list(_type="normal")) == 1)
