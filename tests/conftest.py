"""Tests marked `anyio` run on asyncio and on trio, both in virtual time that starts at 0."""

from __future__ import annotations

from typing import Any

import pytest

from throttle.testing.on_asyncio import VirtualLoop
from throttle.testing.on_trio import VirtualTrioClock


@pytest.fixture(params=["asyncio", "trio"], ids=["asyncio-virtual", "trio-virtual"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "asyncio":
        return "asyncio", {"loop_factory": VirtualLoop}
    return "trio", {"clock": VirtualTrioClock()}
