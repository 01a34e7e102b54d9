"""One limit for several processes of a machine: FileLimiter beside SQLite.

    .venv/bin/python -m benchmarks.shared_file

Decisions a second by 1 and by 4 processes, how evenly these share them, and the longest stall; the
peer is a token bucket in a row of SQLite (WAL, BEGIN IMMEDIATE). Then a line: 4 processes of 16
tasks each, 200/s with bursts of 10, for 5 s.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import table
from throttle import Limiter, SlidingWindowLog, TokenBucket
from throttle.shared.file import FileLimiter

CONTEXT = multiprocessing.get_context("fork")
SECONDS = 1.0
ROUNDS = 5


def bucket() -> Limiter:
    return TokenBucket(1e9)


def refusing() -> Limiter:
    return TokenBucket(100)


def log() -> Limiter:
    return SlidingWindowLog(1000, 1.0)


def by_file(make: Callable[[], Limiter]) -> Callable[[str], Callable[[], object]]:
    return lambda path: FileLimiter(path, make()).allow


def by_sqlite(path: str) -> Callable[[], object]:
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=OFF")
    base.execute("CREATE TABLE IF NOT EXISTS bucket (id INTEGER PRIMARY KEY, level, at)")
    base.execute("INSERT OR IGNORE INTO bucket VALUES (1, 1e9, 0)")

    def decide() -> bool:
        base.execute("BEGIN IMMEDIATE")
        level, at = base.execute("SELECT level, at FROM bucket").fetchone()
        now = time.monotonic()
        level = min(1e9, level + (now - at) * 1e9)
        if level >= 1:
            base.execute("UPDATE bucket SET level = ?, at = ?", (level - 1, now))
        base.execute("COMMIT")
        return bool(level >= 1)

    return decide


def _hammer(
    begin: Callable[[str], Callable[[], object]], path: str, start: float, results: Any
) -> None:
    decide, clock = begin(path), time.monotonic
    while clock() < start:
        time.sleep(0.001)
    count, stall, before = 0, 0.0, clock()
    while before < start + SECONDS:
        decide()
        count += 1
        now = clock()
        stall = max(stall, now - before)
        before = now
    results.put((count, stall))


def together(work: Callable[..., None], processes: int, *arguments: Any) -> list[Any]:
    """What each of several processes puts into a queue, all starting at one instant."""
    results = CONTEXT.Queue()
    start = time.monotonic() + 0.3
    crew = [
        CONTEXT.Process(target=work, args=(*arguments, start, results)) for _ in range(processes)
    ]
    for process in crew:
        process.start()
    seen = [results.get() for _ in crew]
    for process in crew:
        process.join()
    return seen


def decisions() -> None:
    ways = {
        "file, token bucket": by_file(bucket),
        "file, token bucket, refusing": by_file(refusing),
        "file, sliding log of 1000": by_file(log),
        "SQLite, token bucket": by_sqlite,
    }
    rounds: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for _ in range(ROUNDS):
        for name, begin in ways.items():
            for processes in (1, 4):
                with tempfile.TemporaryDirectory() as folder:
                    begin(f"{folder}/state")()
                    seen = together(_hammer, processes, begin, f"{folder}/state")
                counts = [count for count, _ in seen]
                stall = max(stall for _, stall in seen)
                row = (sum(counts) / SECONDS, min(counts) / max(counts), stall * 1000)
                rounds.setdefault((name, processes), []).append(row)
    rows: list[Sequence[object]] = []
    for (name, processes), values in rounds.items():
        rate, share, stall = (statistics.median(column) for column in zip(*values, strict=True))
        rows.append((name, processes, f"{rate / 1000:.0f}k", share, stall))
    head = ("way", "processes", "decisions/s", "min/max share", "longest stall, ms")
    table("Decisions on one limit", head, rows)


def _queue(path: str, make: Callable[[], Limiter], start: float, results: Any) -> None:
    limiter = FileLimiter(path, make())
    instants: list[float] = []
    waits: list[float] = []

    async def task() -> None:
        while True:
            before = time.monotonic()
            await limiter.acquire()
            now = time.monotonic()
            if now >= start + 5:
                return
            instants.append(now)
            waits.append(now - before)

    async def tasks() -> None:
        await asyncio.sleep(start - time.monotonic())
        await asyncio.gather(*(task() for _ in range(16)))

    asyncio.run(tasks())
    results.put(json.dumps((instants, waits)))


def excess(instants: list[float], rate: float, capacity: float) -> float:
    """The most by which any interval held more than capacity + rate * its length."""
    lowest = worst = float("-inf")
    for count, instant in enumerate(sorted(instants)):
        lowest = max(lowest, rate * instant - count)
        worst = max(worst, count + 1 - rate * instant + lowest)
    return worst - capacity


def line() -> None:
    rows: list[Sequence[object]] = []
    for rate, burst in ((200, 10), (2000, 1)):

        def make(rate: float = rate, burst: float = burst) -> Limiter:
            return TokenBucket(rate, burst)

        with tempfile.TemporaryDirectory() as folder:
            FileLimiter(f"{folder}/state", make())
            seen = [json.loads(text) for text in together(_queue, 4, f"{folder}/state", make)]
        counts = [len(instants) for instants, _ in seen]
        everything = [instant for instants, _ in seen for instant in instants]
        rows.append(
            (
                f"{rate}/s, burst {burst}",
                sum(counts) / (rate * 5 + burst),
                excess(everything, rate, burst),
                min(counts) / max(counts),
                max(wait for _, waits in seen for wait in waits) * 1000,
            )
        )
    head = ("limit", "admitted / allowed", "over", "min/max share", "longest wait, ms")
    table("Four processes of 16 tasks in line", head, rows)


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores")
    decisions()
    line()
