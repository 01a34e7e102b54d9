"""One process: `allow`, `acquire`, ten thousand in line, rates, lateness, memory, import."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import aiolimiter
import asynciolimiter
import limits as limits_lib
import pyrate_limiter
import throttled as throttled_lib

import throttle
from benchmarks.harness import medians, per_call, table

CALLS = 20_000
GREAT = 1_000_000_000


class Bare:
    """What any limiter with a clock must do at least: a method call that reads the clock."""

    def allow(self) -> float:
        return time.monotonic()


def _loop_of(call: Callable[[], object]) -> Callable[[], float]:
    def run(number: int) -> None:
        for _ in range(number):
            call()

    return lambda: per_call(run, CALLS)


def allow() -> None:
    """`allow()` with the real clock, granted each time."""
    storage = limits_lib.storage.MemoryStorage()
    moving = limits_lib.strategies.MovingWindowRateLimiter(storage)
    item = limits_lib.parse("1000000/second")
    pyrate = pyrate_limiter.Limiter(pyrate_limiter.Rate(GREAT, 1000))
    peer = throttled_lib.Throttled(
        key="k", quota=throttled_lib.rate_limiter.per_sec(GREAT, burst=GREAT)
    )
    window = {"limit": 10**6, "window": 1}
    calls: dict[str, Callable[[], object]] = {
        "bare method call + clock": Bare().allow,
        "TokenBucket": throttle.TokenBucket(GREAT, GREAT).allow,
        "LeakyBucket": throttle.LeakyBucket(GREAT, GREAT).allow,
        "SlidingWindowLog": throttle.SlidingWindowLog(**window).allow,
        "SlidingWindowCounter": throttle.SlidingWindowCounter(**window).allow,
        "FixedWindow": throttle.FixedWindow(**window).allow,
        "AllOf(two buckets)": (
            throttle.TokenBucket(GREAT, GREAT) & throttle.TokenBucket(GREAT, GREAT)
        ).allow,
        "limits, moving window": lambda: moving.hit(item, "k"),
        "pyrate-limiter": lambda: pyrate.try_acquire("k", blocking=False),
        "throttled-py": lambda: peer.limit("k"),
    }
    found = medians({name: _loop_of(call) for name, call in calls.items()})
    base = found["bare method call + clock"]
    rows = [(name, f"{value * 1e9:.0f} ns", value / base) for name, value in found.items()]
    table("allow()", ("what", "CPU a call", "ratio"), rows)


async def _nothing() -> None:
    pass


def acquire() -> None:
    """`await acquire()` where nobody waits and it fits."""
    leaky = asynciolimiter.LeakyBucketLimiter(GREAT, capacity=GREAT)
    aio = aiolimiter.AsyncLimiter(GREAT, 1)
    semaphore = asyncio.Semaphore(GREAT)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "empty coroutine": _nothing,
        "asyncio.Semaphore": semaphore.acquire,
        "TokenBucket": throttle.TokenBucket(GREAT, GREAT).acquire,
        "SlidingWindowLog": throttle.SlidingWindowLog(10**6, 1).acquire,
        "asynciolimiter": leaky.wait,
        "aiolimiter": aio.acquire,
    }

    def measured(call: Callable[[], Awaitable[Any]]) -> Callable[[], float]:
        async def run(number: int) -> None:
            for _ in range(number):
                await call()

        return lambda: per_call(lambda number: asyncio.run(run(number)), CALLS)

    found = medians({name: measured(call) for name, call in calls.items()})
    base = found["empty coroutine"]
    rows = [(name, f"{value * 1e9:.0f} ns", value / base) for name, value in found.items()]
    table("await acquire(), uncontended", ("what", "CPU a call", "ratio"), rows)


def _burst_one(name: str, rate: float) -> Callable[[], Awaitable[Any]]:
    if name == "TokenBucket":
        return throttle.TokenBucket(rate, 1).acquire
    if name == "asynciolimiter":
        return asynciolimiter.LeakyBucketLimiter(rate, capacity=1).wait
    return aiolimiter.AsyncLimiter(1, 1 / rate).acquire


PEERS = ("TokenBucket", "asynciolimiter", "aiolimiter")


def line() -> None:
    """Ten thousand tasks in line."""
    many, rate = 10_000, 5_000.0
    rows = []
    for name in PEERS:

        async def run(name: str = name) -> tuple[float, float]:
            call = _burst_one(name, rate)
            began, cpu = time.monotonic(), time.process_time()
            await asyncio.gather(*(call() for _ in range(many)))
            return time.monotonic() - began, time.process_time() - cpu

        wall, cpu = asyncio.run(run())
        memory = asyncio.run(_memory_of_waiters(lambda name=name: _burst_one(name, 0.001)))
        rows.append(
            (name, wall / ((many - 1) / rate), f"{cpu / many * 1e6:.1f} µs", f"{memory:.0f} B")
        )
    head = ("what", "wall / ideal", "CPU a grant", "memory a waiter above a bare future")
    table("10,000 in line at 5,000/s", head, rows)


async def _memory_of_waiters(make: Callable[[], Callable[[], Awaitable[Any]]]) -> float:
    async def bare() -> None:
        future = asyncio.get_running_loop().create_future()
        futures.append(future)
        await future

    futures: list[asyncio.Future[None]] = []

    async def memory(call: Callable[[], Awaitable[Any]]) -> float:
        gc.collect()
        tracemalloc.start()
        tasks = [asyncio.ensure_future(call()) for _ in range(5000)]
        for _ in range(3):
            await asyncio.sleep(0)
        used = tracemalloc.get_traced_memory()[0] / 5000
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return used

    limited = make()
    first = asyncio.ensure_future(limited())
    await asyncio.sleep(0)
    used = await memory(limited)
    futures.clear()
    alone = await memory(bare) - 8  # the list of futures is ours
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return used - alone


def achieved() -> None:
    """Grants in a second by a queue of callers, burst 1, against what was asked."""
    rows = []
    for rate in (100.0, 1_000.0, 10_000.0):
        row: list[object] = [f"{rate:.0f}/s"]
        for name in PEERS:

            async def run(name: str = name, rate: float = rate) -> float:
                call = _burst_one(name, rate)
                count = int(2 * rate)
                began = time.monotonic()
                await asyncio.gather(*(call() for _ in range(count)))
                return (count - 1) / (time.monotonic() - began) / rate

            row.append(f"{asyncio.run(run()):.3f}")
        rows.append(row)
    table("achieved / asked, burst 1", ("asked", *PEERS), rows)


def lateness() -> None:
    """How long after the computed instant a caller wakes, beside a plain sleep."""

    async def sleeping() -> list[float]:
        late = []
        for _ in range(300):
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            late.append(time.monotonic() - due)
        return late

    async def limited() -> list[float]:
        late = []
        limiter = throttle.SlidingWindowLog(1, 0.01)
        await limiter.acquire()
        for _ in range(300):
            due = limiter.ready_at()
            await limiter.acquire()
            late.append(time.monotonic() - due)
        return late

    def p99(run: Callable[[], Any]) -> Callable[[], float]:
        return lambda: sorted(asyncio.run(run()))[296]

    found = medians({"asyncio.sleep": p99(sleeping), "acquire": p99(limited)}, rounds=5)
    base = found["asyncio.sleep"]
    rows = [(name, f"{value * 1e6:.0f} µs", value / base) for name, value in found.items()]
    table("wake after the computed instant, p99", ("what", "late", "ratio"), rows)


def keys() -> None:
    """Memory a key at 100,000 keys, the key itself not counted."""
    many = 100_000
    names = [f"user:{number}" for number in range(many)]

    def ours(factory: Callable[[], throttle.Limiter]) -> Callable[[], object]:
        def fill() -> object:
            keyed = throttle.Keyed(factory, max_keys=many)
            for name in names:
                keyed.allow(name)
            return keyed

        return fill

    def peer_throttled() -> object:
        peer = throttled_lib.Throttled(
            using=throttled_lib.RateLimiterType.TOKEN_BUCKET.value,
            quota=throttled_lib.rate_limiter.per_sec(1, burst=5),
            store=throttled_lib.MemoryStore(options={"MAX_SIZE": many}),
        )
        for name in names:
            peer.limit(name)
        return peer

    def peer_limits() -> object:
        storage = limits_lib.storage.MemoryStorage()
        moving = limits_lib.strategies.MovingWindowRateLimiter(storage)
        item = limits_lib.parse("5/hour")
        for name in names:
            moving.hit(item, name)
        return storage

    fills: dict[str, Callable[[], object]] = {
        "TokenBucket": ours(lambda: throttle.TokenBucket("5/hour", 5)),
        "LeakyBucket": ours(lambda: throttle.LeakyBucket("5/hour", 5)),
        "SlidingWindowLog": ours(lambda: throttle.SlidingWindowLog(5, 3600)),
        "SlidingWindowCounter": ours(lambda: throttle.SlidingWindowCounter(5, 3600)),
        "FixedWindow": ours(lambda: throttle.FixedWindow(5, 3600)),
        "throttled-py, token bucket": peer_throttled,
        "limits, moving window": peer_limits,
    }
    rows = []
    for name, fill in fills.items():
        gc.collect()
        tracemalloc.start()
        kept = fill()
        gc.collect()
        rows.append((name, f"{tracemalloc.get_traced_memory()[0] / many:.0f} B"))
        tracemalloc.stop()
        del kept
    table("memory a key, 100,000 keys", ("what", "bytes"), rows)


def importing() -> None:
    """`import throttle` above bare Python."""

    def wall(code: str) -> Callable[[], float]:
        def measure() -> float:
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            return time.perf_counter() - began

        return measure

    found = medians(
        {
            code: wall(code)
            for code in ("pass", "import throttle", "import anyio", "import aiohttp")
        },
        rounds=9,
    )
    rows = [(code, f"{(value - found['pass']) * 1e3:.0f} ms") for code, value in found.items()]
    table("import, above bare Python", ("what", "time"), rows)


if __name__ == "__main__":
    for part in (allow, acquire, line, achieved, lateness, keys, importing):
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            part()
