"""The public names, and what importing them costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import throttle

HEAVY = {"aiohttp", "anyio", "asyncio", "httpx", "redis", "trio", "protego", "http_sf", "rich"}


def fresh(program: str) -> str:
    """What a program prints in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_it_imports_nothing_heavy() -> None:
    loaded = set(fresh("import sys, throttle; print(*sys.modules)").split())
    assert "throttle.limiter" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert not any(name.startswith(("throttle.http", "throttle.shared")) for name in loaded)


def test_using_limiters_without_waiting_imports_no_event_loop() -> None:
    program = (
        "import sys, throttle as t; t.TokenBucket(1).allow(); t.Keyed(lambda: t.TokenBucket(1))"
        ".allow(1); t.throttle(1)(len)('a'); t.Concurrency(1).allow(); print(*sys.modules)"
    )
    assert set(fresh(program).split()).isdisjoint(HEAVY)


@pytest.mark.parametrize("name", throttle.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(throttle, name)
    assert name in dir(throttle)
    assert value.__name__ == name
    assert value.__doc__


def test_the_name_of_the_package_inside_it_is_the_decorator() -> None:
    from throttle import throttle as decorator

    assert throttle.throttle is decorator
    assert callable(decorator)
    assert (
        fresh("import throttle.decorator, throttle; print(callable(throttle.throttle))") == "True"
    )


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Trottle"):
        throttle.Trottle  # noqa: B018


def test_a_name_that_is_loaded_later_is_loaded_once() -> None:
    program = "import throttle; a = throttle.Retry; print(a is vars(throttle)['Retry'])"
    assert fresh(program) == "True"


@pytest.mark.parametrize(
    "name",
    [
        module.name
        for module in pkgutil.walk_packages(throttle.__path__, "throttle.")
        if not module.name.endswith("__main__")
    ],
)
def test_every_module_lists_what_it_has(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(set(names)) == len(names)
    assert all(hasattr(module, each) for each in names)
