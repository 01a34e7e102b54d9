"""Faults reported of other libraries' decorators, each as a test of its whole kind.

B081 and B082; B083 and B084 are about types, and are held by tests/typing/api.py.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from throttle import clock, throttle


async def plain_target(x: int = 0) -> int:
    return x


def logged(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(func)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await func(*args, **kwargs)

    return wrapper


def logged_by_a_plain_function(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


class Fetcher:
    async def __call__(self, x: int = 0) -> int:
        return x

    @throttle(1)
    async def method(self) -> None: ...


limited = throttle(1)


@pytest.mark.parametrize(
    "function",
    [
        limited(plain_target),
        limited(limited(plain_target)),
        logged(limited(plain_target)),
        limited(logged(plain_target)),
        logged(logged(limited(logged(plain_target)))),
        functools.partial(limited(plain_target), 1),
        limited(functools.partial(plain_target, 1)),
        limited(Fetcher()),
        Fetcher.method,
        Fetcher().method,
    ],
)
def test_b081_a_coroutine_function_is_recognised_as_one(function: Any) -> None:
    assert inspect.iscoroutinefunction(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # asyncio's own is on its way out
        assert asyncio.iscoroutinefunction(function)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "target",
    [functools.partial(plain_target, 1), Fetcher(), Fetcher().__call__, logged(plain_target)],
)
async def test_b082_what_hides_a_coroutine_function_is_throttled_around_the_await(
    target: Any,
) -> None:
    throttled = throttle(1)(target)
    starts = []

    async def one() -> None:
        await throttled()
        starts.append(clock.now())

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
    assert starts == [0, 1, 2]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "target",
    [
        lambda: plain_target(1),
        functools.singledispatch(plain_target),
        logged_by_a_plain_function(plain_target),
        functools.lru_cache(plain_target),
    ],
)
async def test_b082_or_it_is_refused_and_never_let_through(target: Any) -> None:
    with pytest.raises(TypeError, match=r"async|coroutine"):
        await throttle(100)(target)()
