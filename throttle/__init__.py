"""Keeps a program inside other people's rate limits.

The names of this package are flat. Those that need aiohttp, httpx or a shared store are loaded on
first use (PEP 562), so that `import throttle` costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from throttle.algorithms import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    RingBuffer,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from throttle.choice import limiter_for
from throttle.concurrency import Concurrency
from throttle.decorator import throttle
from throttle.errors import (
    CostTooLarge,
    KeysFull,
    QueueFull,
    RateLimited,
    RobotsDisallowed,
    ServerThrottled,
    ThrottleError,
    WaitTimeout,
)
from throttle.keyed import Keyed
from throttle.limiter import Limiter, Stats, SupportsAcquire
from throttle.rate import Rate

if TYPE_CHECKING:
    from throttle.http.polite import PoliteSession
    from throttle.http.retry import Retry
    from throttle.http.session import ThrottledSession, ThrottleMiddleware
    from throttle.shared.file import FileLimiter
    from throttle.shared.redis import RedisLimiter

__all__ = [
    "AllOf",
    "Concurrency",
    "CostTooLarge",
    "FileLimiter",
    "FixedWindow",
    "Keyed",
    "KeysFull",
    "LeakyBucket",
    "Limiter",
    "PoliteSession",
    "QueueFull",
    "Rate",
    "RateLimited",
    "RedisLimiter",
    "Retry",
    "RingBuffer",
    "RobotsDisallowed",
    "ServerThrottled",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "Stats",
    "SupportsAcquire",
    "ThrottleError",
    "ThrottleMiddleware",
    "ThrottledSession",
    "TokenBucket",
    "WaitTimeout",
    "limiter_for",
    "throttle",
]

#: Where the names live that are loaded on first use.
_LATER = {
    "FileLimiter": "throttle.shared.file",
    "PoliteSession": "throttle.http.polite",
    "RedisLimiter": "throttle.shared.redis",
    "Retry": "throttle.http.retry",
    "ThrottleMiddleware": "throttle.http.session",
    "ThrottledSession": "throttle.http.session",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
