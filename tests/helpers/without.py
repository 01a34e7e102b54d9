"""A library that is not installed, for tests of what is said then."""

from __future__ import annotations

import sys

import pytest

__all__ = ["without"]

#: Those that import it as they are loaded, and so must be loaded anew.
_USERS = {
    "matplotlib": ["throttle.cli.picture"],
    "protego": [
        "throttle.cli.client",
        "throttle.cli.fetch",
        "throttle.cli.plan",
        "throttle.http.polite",
        "throttle.http.politeness",
        "throttle.http.robots",
        "throttle.http.robots_cache",
    ],
    "redis": ["throttle.shared.redis"],
}


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Until the test is over, `import library` fails."""
    for name in _USERS.get(library, []):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
