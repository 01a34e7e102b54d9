"""Keeps a program inside other people's rate limits.

The names of this package are flat. Those that need aiohttp, httpx or a shared store are loaded on
first use (PEP 562), so that `import throttle` costs little. Two of them need an extra; without it
they can be named, and say so when they are made.
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
    FileLocked,
    FileRefused,
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

    __version__: str

__all__ = [
    "AllOf",
    "Concurrency",
    "CostTooLarge",
    "FileLimiter",
    "FileLocked",
    "FileRefused",
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


#: Of these, what needs an extra to be installed.
_EXTRAS = ("PoliteSession", "RedisLimiter")


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("throttle-asyncio")
    elif name in _LATER:
        from importlib import import_module

        try:
            value = getattr(import_module(_LATER[name]), name)
        except ImportError as missing:
            if name not in _EXTRAS:
                raise
            value = _stand_in(name, missing)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _stand_in(name: str, missing: ImportError) -> type:
    """A class that says what is missing when it is used, so that naming it does no harm:
    `from throttle import *` names all of them."""

    def refuse(cls: type, *args: Any, **options: Any) -> Any:
        raise type(missing)(*missing.args, name=missing.name)

    return type(name, (), {"__new__": refuse, "__doc__": str(missing), "__module__": __name__})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
