"""A library that is not installed, for tests of what is said then."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

__all__ = ["without"]

#: Modules that import it as they are loaded, and so must be loaded anew.
_USERS = {"matplotlib": ["throttle.cli.picture"], "protego": ["throttle.cli.client"]}
_USERS["protego"] += ["throttle.http.polite", "throttle.http.robots", "throttle.http.politeness"]
_USERS["protego"] += ["throttle.http.robots_cache"]


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Until the test is over, `import library` fails."""
    real = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return real(name, *rest)

    loaded = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in [*loaded, *_USERS.get(library, [])]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
