"""Never run, only type-checked: what strict checkers see of `throttle`.

`# R:` the type that reveal_type must show, `# E:` what must be reported on that line. A line
without a mark must give neither. See test_typing.py.

Of the faults reported of other libraries: B083, checkers lose or falsify the signature (`fetch`,
`Client.get`); B084, a strict setting complains about Any in a decorated function (`nothing`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from typing import reveal_type

from throttle import (
    AllOf,
    Concurrency,
    FileLimiter,
    Keyed,
    Limiter,
    Rate,
    SlidingWindowLog,
    SupportsAcquire,
    TokenBucket,
    limiter_for,
    throttle,
)


@throttle(rate=10)
async def fetch(x: str, y: int) -> str:
    return x * y


@throttle("100/minute", burst=20, timeout=5, on_limit="wait", cost=2)
def work(x: str) -> bytes:
    return x.encode()


@throttle(concurrency=3)
async def nothing() -> str:
    return ""


@throttle(["10/s", Rate(100, per=60)], key="x", cost=lambda x: len(x))
async def pages(x: str) -> AsyncIterator[int]:
    yield 1


@throttle(TokenBucket(1), concurrency=Concurrency(2))
def lines() -> Iterator[str]:
    yield ""


async def functions() -> None:
    reveal_type(await fetch("a", 2))  # R: str
    coroutine: Coroutine[None, None, str] = fetch("a", y=2)
    await coroutine
    await fetch(1, 1)  # E: [arg-type]
    await fetch("a")  # E: [call-arg]
    fetch("a", 2)  # E: [unused-coroutine]
    reveal_type(fetch.limiter)  # R: Limiter
    reveal_type(fetch.__name__)  # R: str
    reveal_type(work("a"))  # R: bytes
    work(b"a")  # E: [arg-type]
    reveal_type(await nothing())  # R: str
    reveal_type(nothing.limiter)  # R: Concurrency
    reveal_type(pages("a"))  # R: AsyncIterator[int]
    reveal_type(pages.limiter)  # R: Keyed
    reveal_type(lines())  # R: Iterator[str]
    reveal_type(lines.limiter)  # R: TokenBucket
    reveal_type(await throttle(1)(partial(fetch, "a"))(2))  # R: str


class Client:
    @throttle("5/s")
    async def get(self, x: str, *, y: int = 0) -> bytes:
        return b""

    @throttle(SlidingWindowLog(3, 60))
    def sync(self, x: str) -> int:
        return 1

    @staticmethod
    @throttle(1)
    async def static(x: str) -> int:
        return 1

    @classmethod
    @throttle(1)
    async def of_class(cls, x: str) -> int:
        return 1


class Child(Client):
    pass


async def methods(client: Client, child: Child) -> None:
    reveal_type(await client.get("a", y=1))  # R: bytes
    await client.get(1)  # E: [arg-type]
    await client.get("a", 1)  # E: [call-arg]
    reveal_type(child.sync("a"))  # R: int
    client.sync(1)  # E: [arg-type]
    reveal_type(client.sync.limiter)  # R: SlidingWindowLog
    reveal_type(await Client.get(client, "a"))  # R: bytes
    reveal_type(await Client.static("a"))  # R: int
    reveal_type(await Client.of_class("a"))  # R: int
    reveal_type(await client.of_class("a"))  # R: int


class OnlyAcquire:
    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        return 0.0


def takes(limiter: SupportsAcquire) -> None: ...


def arguments(keyed: Keyed) -> None:
    takes(TokenBucket(1))
    takes(limiter_for("1/s"))
    takes(keyed["a"])
    takes(AllOf(TokenBucket(1), TokenBucket(2)))
    takes(OnlyAcquire())
    takes(keyed)  # E: [arg-type]
    takes(Concurrency(1))  # E: [arg-type]
    reveal_type(throttle(OnlyAcquire())(functions).limiter)  # R: OnlyAcquire
    throttle(keyed, key="x")
    throttle(keyed)  # E: [arg-type]
    throttle(1, cost="2")  # E: [call-overload]
    throttle(1, on_limit="drop")  # E: [call-overload]
    throttle(functions)  # E: [call-overload]
    Keyed(lambda: TokenBucket(1))
    Keyed(lambda key: TokenBucket(1))
    Keyed(lambda key: FileLimiter(f"/tmp/{key}", TokenBucket(1)))
    Keyed(OnlyAcquire)
    Keyed(TokenBucket(1))  # E: [arg-type]


async def verbs(limiter: Limiter, slots: Concurrency, keyed: Keyed) -> None:
    reveal_type(await limiter.acquire(2, timeout=1))  # R: float
    reveal_type(limiter & TokenBucket(1))  # R: AllOf
    reveal_type(keyed["a"].allow())  # R: bool
    reveal_type(await keyed.acquire("a", 2))  # R: float
    both = limiter & TokenBucket(1)
    reveal_type(both.allow(cost=(1, 2)))  # R: bool
    reveal_type(await AllOf(limiter, limiter).acquire((1, 2000)))  # R: float
    both.acquire_sync((1, 2), timeout=1)
    reveal_type(both.ready_at(cost=(1, 2)) + both.delay(1.0, (1, 2)))  # R: float
    both.charge((1, 2))
    both.refund((1, 2), 1.0)
    reveal_type(both & both)  # R: AllOf
    limiter.allow(cost=(1, 2))  # E: [arg-type]
    both.allow(cost="1")  # E: [arg-type]
    keyed.allow("a", cost=(1, 2))
    await keyed["a"].acquire((1, 2))
    async with limiter, slots, keyed["a"]:
        pass
    with limiter as same, slots as same_slots:
        reveal_type(same)  # R: Limiter
        reveal_type(same_slots)  # R: Concurrency
