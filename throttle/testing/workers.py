"""Whether the running thread does a job for an event loop: then the loop waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["is_worker", "work"]

_T = TypeVar("_T")
_here = threading.local()


def work(function: Callable[..., _T], *args: Any) -> _T:
    """Do a job of an asyncio executor. A module's function, so that it goes to processes too."""
    _here.works = True
    try:
        return function(*args)
    finally:
        _here.works = False


def is_worker() -> bool:
    """Whether this is a thread that works for an event loop: asyncio's, anyio's or trio's."""
    if getattr(_here, "works", False):
        return True
    for name in ("anyio.from_thread", "trio.from_thread"):
        module = sys.modules.get(name)
        if module is not None:
            try:
                module.check_cancelled()
            except RuntimeError:  # it says so in a thread that is none of its own
                continue
            except BaseException:  # cancelled, and so one of its own
                return True
            return True
    return False
