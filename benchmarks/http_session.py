"""ThrottledSession against a real limit, and beside raw aiohttp. Prints a table; asserts nothing.

    python -m benchmarks.http_session [overhead] [exact] [listening]

* overhead – requests per second and CPU per request of both, in rounds that take turns; medians.
  The server is a few lines of asyncio in a process of its own, so that it is not what is measured.
* exact – a window of 50 requests a second on both sides, 200 requests at once, five runs: how many
  are refused (none should be), and the time taken (3 s is ideal).
* listening – a server that admits 20 a second, and 300 requests at once from a client that believes
  in 50: how many are refused, the time against the ideal, and how evenly the line drains.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from typing import Any

import aiohttp

from throttle.http.session import ThrottledSession
from throttle.testing import RateLimitedServer

ROUNDS, REQUESTS = 15, 1000
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
FIELDS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
    b'RateLimit: "default";r=50000;t=30\r\nRateLimit-Policy: "default";q=100000;w=60\r\n\r\nok'
)


def serve(answer: bytes, port: Any) -> None:
    class Answering(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(answer * data.count(b"\r\n\r\n"))

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        port.value = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    asyncio.run(main())


async def work(http: Any, url: str, tasks: int, count: int) -> tuple[float, float]:
    """Seconds of wall and of CPU a request."""

    async def one(times: int) -> None:
        for _ in range(times):
            async with http.get(url) as response:
                await response.read()

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(count // tasks) for _ in range(tasks)))
    done = count // tasks * tasks
    return (time.perf_counter() - wall) / done, (time.process_time() - cpu) / done


async def overhead(url: str, label: str) -> None:
    variants: dict[str, Any] = {
        "raw": aiohttp.ClientSession,
        "throttled, no rate": ThrottledSession,
        "throttled, 1e6/s": lambda: ThrottledSession(rate="1000000/s"),
        "throttled, burst": lambda: ThrottledSession(rate="1000000/s", burst=1000000),
        "throttled, 64 slots": lambda: ThrottledSession(rate="1000000/s", concurrency=64),
    }
    for tasks in (1, 20):
        sessions = {name: make() for name, make in variants.items()}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for session in sessions.values():
            await work(session, url, tasks, 400)
        for _ in range(ROUNDS):
            for name, session in sessions.items():
                took[name].append(await work(session, url, tasks, REQUESTS))
        for name, results in took.items():
            ratio = statistics.median(
                raw[0] / mine[0] for raw, mine in zip(took["raw"], results, strict=True)
            )
            above = statistics.median(
                mine[1] - raw[1] for raw, mine in zip(took["raw"], results, strict=True)
            )
            cpu = statistics.median(one[1] for one in results)
            print(
                f"{label}, {tasks:2} tasks, {name:20} {cpu * 1e6:6.1f} µs CPU a request, "
                f"{above * 1e6:+6.1f} µs above raw, requests/s {ratio:.3f} of raw"
            )
        for session in sessions.values():
            await session.close()


async def burst(http: ThrottledSession, url: str, count: int) -> float:
    async def one() -> None:
        async with http.get(url) as response:
            await response.read()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - begun


async def exact() -> None:
    for settle in (None, 0):
        for run in range(5):
            with RateLimitedServer("50/s", latency=0.005) as server:
                async with ThrottledSession(rate="50/s", settle=settle) as http:
                    took = await burst(http, server.url, 200)
                print(
                    f"exact, settle={settle}, run {run + 1}: {server.refused} × 429 of 200, "
                    f"{took:.3f} s (ideal 3)"
                )


async def listening() -> None:
    for dialect in ("retry-after", "ietf"):
        with RateLimitedServer("20/s", dialect=dialect) as server:
            async with ThrottledSession(rate="50/s") as http:
                took = await burst(http, server.url, 300)
            sends = server.requests
            print(
                f"listening, {dialect}: {server.refused} × 429 "
                f"({server.refused / len(sends):.1%} of {len(sends)} sends), "
                f"{took:.1f} s (ideal 14)"
            )
            per_slice = Counter(int((one.instant - sends[0].instant) * 10) for one in sends)
            print("  sends per 100 ms:", [per_slice[at] for at in range(int(took * 10) + 1)])


def main() -> None:
    chosen = sys.argv[1:] or ["overhead", "exact", "listening"]
    if "overhead" in chosen:
        for label, answer in (("plain", PLAIN), ("RateLimit fields", FIELDS)):
            port = multiprocessing.Value("i", 0)
            server = multiprocessing.Process(target=serve, args=(answer, port), daemon=True)
            server.start()
            while not port.value:
                time.sleep(0.01)
            asyncio.run(overhead(f"http://127.0.0.1:{port.value}/", label))
            server.terminate()
    if "exact" in chosen:
        asyncio.run(exact())
    if "listening" in chosen:
        asyncio.run(listening())


if __name__ == "__main__":
    main()
