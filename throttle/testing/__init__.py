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
    from throttle.testing.server import Arrival, RateLimitedServer

__all__ = ["Answer", "Arrival", "Quota", "RateLimitedServer"]

_ROOMS = {
    "Answer": "dialects",
    "Quota": "dialects",
    "Arrival": "server",
    "RateLimitedServer": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
