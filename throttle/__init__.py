"""Keeps a program inside other people's rate limits.

The names of this package are flat. Those that need aiohttp, httpx or a shared store are loaded on
first use (PEP 562), so that `import throttle` costs little.
"""

from __future__ import annotations

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
from throttle.errors import (
    CostTooLarge,
    QueueFull,
    RateLimited,
    ServerThrottled,
    ThrottleError,
    WaitTimeout,
)
from throttle.limiter import Limiter, Stats, SupportsAcquire
from throttle.rate import Rate
