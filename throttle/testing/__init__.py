"""Tests of a program that throttles: virtual time, no limits, and a server that enforces one.

    with virtual_time() as time: ...                an hour of work in milliseconds, exact instants
    with no_limits(): ...                           every limiter lets everybody in at once
    with RateLimitedServer("50/s") as server: ...   a real HTTP server here that answers 429

docs/testing.md shows each. The names are loaded on first use: a test that needs no server imports
no aiohttp. pytest fixtures are in `throttle.testing.fixtures`, which nothing here imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from throttle.testing.dialects import Answer, Quota
    from throttle.testing.limits import no_limits
    from throttle.testing.on_asyncio import VirtualLoop
    from throttle.testing.on_trio import VirtualTrioClock
    from throttle.testing.server import Arrival, RateLimitedServer
    from throttle.testing.virtual import VirtualTime, virtual_backends, virtual_time

__all__ = [
    "Answer",
    "Arrival",
    "Quota",
    "RateLimitedServer",
    "VirtualLoop",
    "VirtualTime",
    "VirtualTrioClock",
    "no_limits",
    "virtual_backends",
    "virtual_time",
]

_ROOMS = {
    "Answer": "dialects",
    "Arrival": "server",
    "Quota": "dialects",
    "RateLimitedServer": "server",
    "VirtualLoop": "on_asyncio",
    "VirtualTime": "virtual",
    "VirtualTrioClock": "on_trio",
    "no_limits": "limits",
    "virtual_backends": "virtual",
    "virtual_time": "virtual",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
