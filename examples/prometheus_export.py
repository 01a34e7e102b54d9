"""Metrics of limiters in the text format of Prometheus, without a client library.

Two sources. Counts are looked at when a scrape comes (`stats`), so they cost a limiter nothing. How
the waits are distributed has to be seen one by one (`on_wait`); only calls that waited come there.
With the official client the same two go into a custom collector and a Histogram.

Time is virtual here: two minutes of traffic run in a moment.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator

from throttle import Limiter, SlidingWindowLog, TokenBucket, throttle
from throttle.limiter import Waited
from throttle.testing import virtual_time

BUCKETS = (0.1, 1.0, 10.0)


class Metrics:
    """The limiters by name, and a histogram of the waits of each."""

    def __init__(self) -> None:
        self._limiters: dict[str, Limiter] = {}
        self._waits: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def watch(self, name: str, limiter: Limiter) -> Limiter:
        self._limiters[name] = limiter
        return limiter

    def on_wait(self, name: str, event: Waited) -> None:
        counts = self._waits.setdefault(name, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, event.seconds)] += 1
        self._seconds[name] = self._seconds.get(name, 0.0) + event.seconds

    def lines(self) -> Iterator[str]:
        """One scrape."""
        yield "# TYPE throttle_granted_total counter"
        yield "# TYPE throttle_denied_total counter"
        yield "# TYPE throttle_waiting gauge"
        yield "# TYPE throttle_available gauge"
        for name, limiter in self._limiters.items():
            stats, label = limiter.stats(), f'{{limiter="{name}"}}'
            yield f"throttle_granted_total{label} {stats.granted}"
            yield f"throttle_denied_total{label} {stats.denied}"
            yield f"throttle_waiting{label} {stats.waiting}"
            yield f"throttle_available{label} {limiter.available():g}"
        yield "# TYPE throttle_wait_seconds histogram"
        for name, counts in self._waits.items():
            total = 0
            for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                yield f'throttle_wait_seconds_bucket{{limiter="{name}",le="{bound}"}} {total}'
            yield f'throttle_wait_seconds_sum{{limiter="{name}"}} {self._seconds[name]:g}'
            yield f'throttle_wait_seconds_count{{limiter="{name}"}} {total}'


metrics = Metrics()
search = metrics.watch(
    "search",
    TokenBucket("2/s", capacity=5, on_wait=lambda event: metrics.on_wait("search", event)),
)
upload = metrics.watch(
    "upload",
    SlidingWindowLog(3, 60, on_wait=lambda event: metrics.on_wait("upload", event)),
)


@throttle(search)
async def find(word: str) -> str:
    return word


@throttle(upload)
async def send(file: int) -> int:
    return file


async def traffic() -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(find(f"word {number}"))
        for number in range(8):
            group.create_task(send(number))
        await asyncio.sleep(30)
        print("\n".join(["# after 30 seconds", *metrics.lines(), ""]))
    print("\n".join(["# when all is done", *metrics.lines()]))


if __name__ == "__main__":
    with virtual_time() as time:
        time.run(traffic)
