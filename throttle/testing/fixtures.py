"""pytest fixtures: `pytest_plugins = ["throttle.testing.fixtures"]` in the conftest.py of the root.

Not an entry point on purpose: a plugin that pytest finds by itself is imported into every run of
everybody who has the package installed. (PYTEST_DONT_REWRITE: it may be imported already.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import throttle.testing
from throttle.testing.virtual import VirtualTime

__all__ = ["no_limits", "virtual_time"]


@pytest.fixture
def virtual_time() -> Iterator[VirtualTime]:
    """Virtual time for one test, from 0.0."""
    with throttle.testing.virtual_time() as time:
        yield time


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Every limiter lets everybody in for one test."""
    with throttle.testing.no_limits():
        yield
