"""Four worker processes of one machine share one limit through a file.

No server, no manager process: each worker opens the same path with the same limiter. Whoever comes
and goes, together they never make more than 20 calls in any fifth of a second, and they go in turn.

    python examples/worker_pool.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.pool import Pool
from pathlib import Path

from throttle import SlidingWindowLog
from throttle.shared.file import FileLimiter

LIMIT, WINDOW = 20, 0.2
WORKERS, TASKS, SECONDS = 4, 8, 2.0


async def call_the_api(limiter: FileLimiter, until: float, done: list[float]) -> None:
    while True:
        await limiter.acquire()
        now = time.monotonic()  # one clock for all processes of a machine
        if now >= until:
            return
        done.append(now)


async def work(path: Path, until: float) -> list[float]:
    limiter = FileLimiter(path, SlidingWindowLog(LIMIT, WINDOW))
    done: list[float] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(call_the_api(limiter, until, done))
    return done


def worker(path: Path, until: float) -> list[float]:
    return asyncio.run(work(path, until))


def share(pool: Pool, path: Path) -> None:
    start = time.monotonic()
    calls = pool.starmap(worker, [(path, start + SECONDS)] * WORKERS)
    took = time.monotonic() - start
    for number, instants in enumerate(calls, 1):
        print(f"worker {number}: {len(instants):3} calls")
    total = sum(map(len, calls))
    most = LIMIT * (int(took / WINDOW) + 1)
    print(f"together: {total} calls in {took:.1f} s; the limit allows {most}")


def main() -> None:
    # Workers are started afresh: nothing is shared between them but the path.
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, spawn.Pool(WORKERS) as pool:
        pool.map(abs, range(WORKERS * 4))  # all have started before the clock runs
        share(pool, Path(folder) / "api.limit")


if __name__ == "__main__":
    main()
