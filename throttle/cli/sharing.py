"""Limits that several runs of `throttle fetch` share: through a folder, or through a Redis.

One limit a host (or a host and path that was named), whichever run asks first makes it. Invariant:
what goes wrong with the place where limits are shared ends the run: without it the run would go
faster than it was told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from throttle.choice import limiter_for
from throttle.cli.options import UsageError, missing
from throttle.http.together import Together
from throttle.limiter import SupportsAcquire
from throttle.rate import Rate

__all__ = ["Sharing", "in_folder", "in_redis", "late"]

#: Seconds by which a request may arrive later than another that was sent at the same time.
_LATE = 0.25


class Sharing:
    """`make` – a limiter for a place and its rates; `check` – whether it can be used at all;
    `failures` – the exceptions by which it tells that it cannot."""

    def __init__(
        self,
        make: Callable[[str, tuple[Rate, ...]], SupportsAcquire],
        check: Callable[[], Awaitable[None]],
        failures: tuple[type[BaseException], ...],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.make = make
        self.check = check
        self.failures = failures
        self.close = close


def late(rate: Rate) -> Rate:
    """The rate to share, so that `rate` holds where requests arrive.

    A permit is taken when a request is sent. A session moves its own to the receipt of the answer;
    one that others have seen is not moved, so the window is longer by as much as it would be.
    """
    return Rate(rate.count, rate.per + min(rate.per / 10, _LATE))


def _file_name(place: str) -> str:
    """A name for the file of a place: readable, and different for each."""
    readable = re.sub(r"[^a-z0-9.-]+", "_", place.lower()).strip(".-_")[:60]
    return f"{readable}-{hashlib.sha256(place.encode()).hexdigest()[:12]}.limit"


async def _nothing() -> None:
    pass


def in_folder(folder: Path) -> Sharing:
    """One file a limit; for the runs of one machine."""
    from throttle.errors import FileLocked, FileRefused
    from throttle.shared.file import FileLimiter

    def make(place: str, rates: tuple[Rate, ...]) -> SupportsAcquire:
        return FileLimiter(folder / _file_name(place), limiter_for(map(late, rates)))

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--shared {folder}: {error}") from error
    return Sharing(make, _nothing, (FileLocked, FileRefused), _nothing)


def in_redis(url: str) -> Sharing:
    """One key a rate; for the runs of a fleet."""
    try:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        from throttle.shared.redis import RedisLimiter
    except ImportError:
        raise missing("redis", "redis") from None
    try:
        client: Any = Redis.from_url(url)
    except ValueError as error:
        raise UsageError(f"--redis: {error}") from error

    def make(place: str, rates: tuple[Rate, ...]) -> SupportsAcquire:
        return Together(
            *(
                RedisLimiter(client, f"throttle-fetch:{place}:{rate}", limiter_for(late(rate)))
                for rate in rates
            )
        )

    async def check() -> None:
        await client.ping()

    return Sharing(make, check, (RedisError,), client.aclose)
