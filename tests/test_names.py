"""The public names, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import throttle
from throttle import errors

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


#: A floor of the house, and what it may import of the house besides itself.
FLOORS = {
    "algorithms": {"checks", "clock", "limiter", "rate", "snapshot"},
    "parking": {"clock", "lock"},
    "waiting": {"clock", "errors", "lines", "lock", "outlook", "parking"},
    "limiter": {"checks", "clock", "entering", "errors", "lock", "snapshot", "waiting"},
}


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_one_way(floor: str) -> None:
    """At run time: what is imported for types, or inside a function, makes no circle."""
    place = Path(throttle.__path__[0], floor)
    found: set[str] = set()
    for path in place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module == "throttle":
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("throttle."):
                found.add((node.module or "").split(".")[1])
    assert found - {floor} <= FLOORS[floor]


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


def test_the_version_is_that_of_the_distribution() -> None:
    assert throttle.__version__ == metadata.version("throttle-asyncio")
    assert "__version__" in dir(throttle)
    lazy = "import sys, throttle; print('importlib.metadata' in sys.modules)"
    assert fresh(lazy) == "False"


#: Packages that only an extra installs, and the names that need them.
EXTRAS = {"protego": ("PoliteSession", "scrape"), "redis": ("RedisLimiter", "redis")}


def test_everything_can_be_named_without_the_extras() -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({[*EXTRAS, 'httpx']}))\n"
        "import throttle as package\n"
        "from throttle import *\n"
        "for name in package.__all__: assert globals()[name].__name__ == name\n"
        "TokenBucket(1).allow(), ThrottledSession\n"
        "for make in (lambda: RedisLimiter(1, 'a', TokenBucket(1)), "
        "lambda: PoliteSession(user_agent='a'), lambda: PoliteSession()):\n"
        "    try: make()\n"
        "    except ImportError as error: print(error)\n"
    )
    redis, polite, again = fresh(program).splitlines()
    assert "pip install 'throttle-asyncio[redis]'" in redis
    assert "pip install 'throttle-asyncio[scrape]'" in polite
    assert again == polite


def _exceptions() -> list[type[BaseException]]:
    """Every exception class that is defined in the package."""
    values = [
        value
        for module in pkgutil.walk_packages(throttle.__path__, "throttle.")
        if not module.name.endswith("__main__")
        for value in vars(importlib.import_module(module.name)).values()
    ]
    kinds = [one for one in values if isinstance(one, type) and issubclass(one, BaseException)]
    return [kind for kind in dict.fromkeys(kinds) if kind.__module__.startswith("throttle.")]


#: Never raised to a caller: caught in the package, or the command line's own.
INTERNAL = {"UnreachableError", "UsageError"}


def test_every_public_exception_is_exported_and_in_the_tree() -> None:
    public = {
        kind.__name__: kind
        for kind in _exceptions()
        if not kind.__name__.startswith("_") and kind.__name__ not in INTERNAL
    }
    assert {"FileLocked", "FileRefused", "ThrottleError", "RobotsDisallowed"} <= public.keys()
    tree = errors.__doc__ or ""
    for name, kind in public.items():
        assert kind.__module__ == "throttle.errors"
        assert issubclass(kind, throttle.ThrottleError)
        assert name in throttle.__all__
        assert getattr(throttle, name) is kind
        standard = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        line = next(line for line in tree.splitlines() if f" {name} " in f"{line} ")
        assert all(f"({base})" in line for base in standard if base != "Exception"), line
    assert set(errors.__all__) == public.keys()


@pytest.mark.parametrize(
    "error",
    [
        throttle.CostTooLarge(3, 2),
        throttle.WaitTimeout(3.0, 2.0),
        throttle.WaitTimeout(float("inf"), 2.0),
        throttle.RateLimited(3.0),
        throttle.QueueFull(3),
        throttle.KeysFull(3),
        throttle.ServerThrottled("no", retry_after=3.0, status=429),
        throttle.RobotsDisallowed("http://a.example/", "bot"),
        throttle.FileLocked("/run/x", 2.0),
        throttle.FileRefused("/run/x", "is torn"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_crosses_a_process_pool(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


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
