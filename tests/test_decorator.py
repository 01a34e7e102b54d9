"""@throttle: every kind of function keeps to its limit and stays what it was."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import pickle
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.callers import settle

from throttle import (
    Concurrency,
    CostTooLarge,
    FileLimiter,
    Keyed,
    Rate,
    RateLimited,
    SlidingWindowLog,
    ThrottleError,
    TokenBucket,
    WaitTimeout,
    clock,
    throttle,
)
from throttle.limiter import Limiter
from throttle.testing import virtual_time


async def instants(*calls: Callable[[], Awaitable[Any]]) -> list[float]:
    """The instants at which calls that were begun together returned, in order."""
    ends: list[float] = []

    async def one(call: Callable[[], Awaitable[Any]]) -> None:
        await call()
        ends.append(clock.now())

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(one, call)
    return ends


async def plain_target(x: int = 0) -> int:
    return x


class Doer:
    """Callable objects count as what their __call__ is."""

    async def __call__(self, x: int = 0) -> int:
        return x


@types.coroutine
def old_style() -> Iterator[Any]:
    return 7
    yield


class Service:
    @throttle(1)
    async def method(self) -> str:
        return type(self).__name__

    @throttle(1)
    @staticmethod
    async def static_inside() -> str:
        return "static"

    @staticmethod
    @throttle(1)
    async def static_outside() -> str:
        return "static"

    @throttle(1)
    @classmethod
    async def class_inside(cls) -> str:
        return cls.__name__

    @classmethod
    @throttle(1)
    async def class_outside(cls) -> str:
        return cls.__name__


# ---------------------------------------------------------------- every kind of callable


@pytest.mark.anyio
@pytest.mark.parametrize(
    "target",
    [
        plain_target,
        functools.partial(plain_target, 1),
        functools.partial(functools.partial(plain_target), x=1),
        Doer(),
        Doer().__call__,
        functools.partial(Doer(), 2),
        old_style,
    ],
    ids=str,
)
async def test_what_is_awaited_waits(target: Any) -> None:
    throttled = throttle(1)(target)
    assert inspect.iscoroutinefunction(throttled)
    assert await instants(throttled, throttled, throttled) == [0, 1, 2]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (Service().method, "Service"),
        (Service().static_inside, "static"),
        (Service().static_outside, "static"),
        (Service.static_inside, "static"),
        (Service.static_outside, "static"),
        (Service().class_inside, "Service"),
        (Service.class_outside, "Service"),
    ],
    ids=lambda case: getattr(case, "__qualname__", ""),
)
async def test_methods_wait_and_are_bound(call: Any, answer: str) -> None:
    call.limiter.reset()
    assert inspect.iscoroutinefunction(call)
    assert await call() == answer
    assert await instants(call, call) == [1, 2]


@pytest.mark.anyio
async def test_instances_share_the_limiter_of_a_method_and_key_parts_them() -> None:
    class Client:
        @throttle(1, key="self")
        async def own(self) -> None: ...

        @throttle(1)
        async def shared(self) -> None: ...

    one, two = Client(), Client()
    assert await instants(one.shared, two.shared) == [0, 1]
    assert await instants(one.own, two.own, one.own) == [1, 1, 2]


@pytest.mark.anyio
async def test_of_an_async_generator_the_start_is_throttled() -> None:
    @throttle(1)
    async def pages(n: int) -> AsyncIterator[int]:
        for page in range(n):
            yield page

    assert inspect.isasyncgenfunction(pages)
    seen = [[(page, clock.now()) async for page in pages(3)] for _ in range(2)]
    assert seen == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1), (2, 1)]]


@pytest.mark.anyio
async def test_an_async_generator_gets_what_is_sent_and_thrown_into_it() -> None:
    log: list[object] = []

    @throttle(10)
    async def echo() -> Any:
        got: object = "first"
        try:
            while True:
                try:
                    got = yield got
                except KeyError as error:
                    got = f"caught {error}"
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    talk = echo()
    assert await talk.asend(None) == "first"
    assert await talk.asend("second") == "second"
    assert await talk.athrow(KeyError("third")) == "caught 'third'"
    with pytest.raises(ZeroDivisionError):
        await talk.athrow(ZeroDivisionError())
    assert log == ["closed"]
    other = echo()
    await other.asend(None)
    await other.aclose()
    assert log == ["closed", "closed"]


def test_plain_functions_and_generators_make_their_thread_wait() -> None:
    @throttle("2/s")
    def work(x: int) -> float:
        return clock.now() + x

    @throttle(1)
    def count(n: int) -> Iterator[int]:
        got = yield n
        yield got
        return "end"

    with virtual_time():
        assert [work(0) for _ in range(5)] == [0, 0, 1, 1, 2]
        for _ in range(2):
            counting = count(3)
            assert inspect.isgenerator(counting)
            assert (next(counting), counting.send(4)) == (3, 4)
            with pytest.raises(StopIteration, match="end"):
                next(counting)
        assert clock.now() == 3


@pytest.mark.anyio
async def test_a_plain_function_that_would_block_the_loop_is_told_so() -> None:
    @throttle(1)
    def work() -> int:
        return 1

    assert work() == 1
    with pytest.raises(RuntimeError, match="await"):
        work()


@pytest.mark.anyio
async def test_creating_a_coroutine_costs_nothing_awaiting_it_does() -> None:
    throttled = throttle(1)(plain_target)
    coroutines = [throttled() for _ in range(3)]
    assert throttled.limiter.available() == 1
    assert await coroutines[1] == 0
    assert throttled.limiter.available() == 0
    coroutines[0].close()
    coroutines[2].close()


def _bare(limiter: Any) -> Any:
    """What has `acquire` and `acquire_sync`, and is falsy."""

    class Bare:
        async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
            return float(await limiter.acquire(cost, timeout=timeout))

        def acquire_sync(self, cost: float = 1, *, timeout: float | None = None) -> float:
            return float(limiter.acquire_sync(cost, timeout=timeout))

        def __len__(self) -> int:
            return 0

    return Bare()


def _keyed_of_bare() -> Keyed:
    state = TokenBucket(1)
    return Keyed(lambda: _bare(state))


class Hollow(TokenBucket):
    """A limiter of a user's own that counts something, and is falsy while that is 0."""

    def __len__(self) -> int:
        return 0


def _file(folder: Path) -> FileLimiter:
    return FileLimiter(folder / "limit", TokenBucket(1))


#: What to throttle by, as `throttle(*args, **options)`, made of a folder; all let one in a second.
LIMITERS: dict[str, Callable[[Path], tuple[Any, dict[str, Any]]]] = {
    "rate": lambda _: (1, {}),
    "rate and key": lambda _: (1, {"key": "x"}),
    "rate and slots": lambda _: (1, {"concurrency": 1}),
    "limiter": lambda _: (TokenBucket(1), {}),
    "falsy limiter": lambda _: (Hollow(1), {}),
    "composite": lambda _: (TokenBucket(1) & TokenBucket(2), {}),
    "bare": lambda _: (_bare(TokenBucket(1)), {}),
    "file": lambda folder: (_file(folder), {}),
    "keyed": lambda _: (Keyed(lambda: TokenBucket(1)), {"key": "x"}),
    "keyed and slots": lambda _: (Keyed(lambda: TokenBucket(1)), {"key": "x", "concurrency": 1}),
    "keyed of falsy": lambda _: (Keyed(lambda: Hollow(1)), {"key": "x"}),
    "keyed of bare": lambda _: (_keyed_of_bare(), {"key": "x"}),
    "keyed of file": lambda folder: (Keyed(lambda: _file(folder)), {"key": "x"}),
    "handle": lambda _: (Keyed(lambda: TokenBucket(1))["a"], {}),
    "handle of file": lambda folder: (Keyed(lambda: _file(folder))["a"], {}),
}


def _kinds() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """A function of each kind, and how to run a call of it to its end."""

    async def coroutine(x: int = 0) -> int:
        return x

    def plain(x: int = 0) -> int:
        return x

    def generator(x: int = 0) -> Iterator[int]:
        yield x

    async def async_generator(x: int = 0) -> AsyncIterator[int]:
        yield x

    async def drained(call: Any) -> Any:
        (answer,) = [value async for value in call()]
        return answer

    return {
        "coroutine": (coroutine, lambda call: call()),
        "plain": (plain, lambda call: call()),
        "generator": (generator, lambda call: next(iter(list(call())))),
        "async generator": (async_generator, drained),
        "partial": (functools.partial(plain, x=0), lambda call: call()),
        "callable": (Doer(), lambda call: call()),
    }


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("limiter", LIMITERS)
def test_every_kind_of_function_with_every_kind_of_limiter(
    kind: str, limiter: str, tmp_path: Path
) -> None:
    func, run = _kinds()[kind]
    rate, options = LIMITERS[limiter](tmp_path)
    with virtual_time() as time:
        throttled = throttle(rate, **options)(func)
        if not isinstance(rate, int):
            assert throttled.limiter is rate

        async def twice() -> list[Any]:
            return [await run(throttled), await run(throttled)]

        is_async = kind in ("coroutine", "async generator", "callable")
        answers = time.run(twice) if is_async else [run(throttled), run(throttled)]
        assert answers == [0, 0]
        assert clock.now() == pytest.approx(1)


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("rate", [Concurrency(2), None])
def test_every_kind_of_function_with_slots_alone(kind: str, rate: Any) -> None:
    func, run = _kinds()[kind]
    throttled = throttle(rate, **({"concurrency": 2} if rate is None else {}))(func)
    slots = throttled.limiter
    granted = slots.stats().granted
    with virtual_time() as time:
        if kind in ("coroutine", "async generator", "callable"):

            async def once() -> Any:
                return await run(throttled)

            assert time.run(once) == 0
        else:
            assert run(throttled) == 0
    assert (slots.taken, slots.stats().granted) == (0, granted + 1)


# ---------------------------------------------------------------- it stays what it was


def test_name_signature_and_attributes_are_kept() -> None:
    async def target(x: int, /, *rest: str, y: float = 1.5) -> bytes:
        """Its words."""
        return b""

    target.mark = "kept"
    throttled: Any = throttle(1)(target)
    assert throttled.__name__ == "target"
    assert throttled.__qualname__ == target.__qualname__
    assert throttled.__doc__ == "Its words."
    assert throttled.__wrapped__ is target
    assert throttled.mark == "kept"
    assert inspect.signature(throttled) == inspect.signature(target)


def test_nameless_things_get_a_name() -> None:
    partial: Any = throttle(1)(functools.partial(plain_target, 4))
    assert (partial.__name__, partial.__doc__) == ("plain_target", None)
    assert list(inspect.signature(partial).parameters) == []
    thing: Any = throttle(1)(Doer())
    assert thing.__name__ == "Doer"
    assert list(inspect.signature(thing).parameters) == ["x"]


@throttle(5)
async def at_top_level() -> None: ...


def test_it_pickles_by_name_as_functions_do() -> None:
    assert pickle.loads(pickle.dumps(at_top_level)) is at_top_level


def test_limiter_is_what_was_given_or_what_the_rate_means() -> None:
    given = TokenBucket(3)
    assert throttle(given)(plain_target).limiter is given
    assert repr(throttle("100/minute")(plain_target).limiter) == repr(SlidingWindowLog(100, 60))
    assert repr(throttle(Rate(3, 2), burst=4)(plain_target).limiter) == repr(
        TokenBucket(Rate(3, 2), 4)
    )
    assert len(throttle(["10/s", "100/minute"])(plain_target).limiter.members) == 2
    assert isinstance(throttle(1, key="x")(plain_target).limiter, Keyed)
    slots = Concurrency(2)
    assert throttle(concurrency=slots)(plain_target).limiter is slots
    assert throttle(slots)(plain_target).limiter is slots


@pytest.mark.anyio
async def test_two_functions_may_share_a_limiter_and_one_use_is_one_limiter() -> None:
    both = throttle(TokenBucket(1))
    first, second = both(plain_target), both(Doer())
    assert await instants(first, second) == [0, 1]
    apart = [throttle(1)(plain_target) for _ in range(2)]
    assert await instants(*apart) == [1, 1]


@pytest.mark.anyio
async def test_stacked_limits_both_hold() -> None:
    throttled = throttle("2/s")(throttle("3 per 5 s")(plain_target))
    assert await instants(*[throttled] * 6) == [0, 0, 1, 5, 5, 6]
    assert throttled.limiter.limit == 2


# ---------------------------------------------------------------- key, cost


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["host", lambda path, host="a", **more: host])
async def test_each_key_has_a_limiter_of_its_own(key: Any) -> None:
    @throttle(1, key=key)
    async def fetch(path: str, host: str = "a", **more: int) -> None: ...

    assert await instants(
        lambda: fetch("/"),
        lambda: fetch("/", "b"),
        lambda: fetch("/", host="a"),
        lambda: fetch(path="/", host="b", extra=1),
    ) == [0, 0, 1, 1]
    assert len(fetch.limiter) == 2


@pytest.mark.anyio
async def test_falsy_keys_are_keys() -> None:
    keyed = Keyed(lambda: TokenBucket(1))
    throttled = throttle(keyed, key="x")(plain_target)
    assert await instants(throttled, lambda: throttled(x=0), lambda: throttled(None)) == [0, 0, 1]


@pytest.mark.anyio
async def test_a_key_by_name_follows_pythons_own_rules() -> None:
    @throttle(1, key="host")
    async def positional(host: str, /, **host_too: str) -> str:
        return host

    @throttle(1, key="host")
    async def named(*args: str, host: str) -> str:
        return host

    assert await positional("a", host="b") == "a"
    assert "a" in positional.limiter
    assert await named("x", "y", host="h") == "h"
    assert list(named.limiter) == ["h"]
    with pytest.raises(TypeError, match="host"):
        await named("x")
    assert list(named.limiter) == ["h"]


@pytest.mark.anyio
async def test_the_key_of_a_partial_is_found_among_what_is_left() -> None:
    async def fetch(scheme: str, host: str) -> None: ...

    throttled: Any = throttle(1, key="host")(functools.partial(fetch, "https"))
    await throttled("a")
    await throttled(host="b")
    assert sorted(throttled.limiter) == ["a", "b"]


@pytest.mark.anyio
async def test_cost_is_a_number_or_told_by_the_call() -> None:
    fixed = throttle(TokenBucket(1, 4, initial=4), cost=4)(plain_target)
    assert await instants(fixed, fixed) == [0, 4]
    told = throttle(TokenBucket(1, 10, initial=3), cost=lambda x=0: x)(plain_target)
    assert await instants(lambda: told(3), lambda: told(0), lambda: told(x=2)) == [4, 4, 6]


@pytest.mark.anyio
async def test_a_cost_for_each_of_several_limits() -> None:
    both = TokenBucket(1, 2) & TokenBucket(10, 100)
    throttled = throttle(both, cost=lambda x=0: (1, x))(plain_target)
    assert await instants(*[lambda: throttled(100)] * 2) == [0, 10]
    with pytest.raises(CostTooLarge):
        await throttled(101)


@pytest.mark.anyio
async def test_a_key_or_cost_that_raises_costs_nothing() -> None:
    throttled = throttle(1, key=lambda x: 1 / x, concurrency=1)(plain_target)
    with pytest.raises(ZeroDivisionError):
        await throttled(0)
    assert len(throttled.limiter) == 0
    assert await instants(lambda: throttled(1)) == [0]


# ---------------------------------------------------------------- timeout, on_limit


@pytest.mark.anyio
async def test_timeout_bounds_the_wait_and_fails_at_once() -> None:
    throttled = throttle("1/10s", timeout=4)(plain_target)
    await throttled()
    with pytest.raises(WaitTimeout) as caught:
        await throttled()
    assert (caught.value.delay, clock.now()) == (10, 0)


@pytest.mark.anyio
async def test_on_limit_raise_tells_when_to_come_back() -> None:
    throttled = throttle("1/10s", on_limit="raise")(plain_target)
    await throttled()
    await anyio.sleep(4)
    with pytest.raises(RateLimited) as caught:
        await throttled()
    assert caught.value.retry_after == 6
    assert caught.value.__cause__ is None
    await anyio.sleep(caught.value.retry_after)
    assert await throttled(5) == 5


def test_on_limit_raise_in_a_thread() -> None:
    throttled = throttle("1/10s", on_limit="raise", concurrency=1)(len)
    with virtual_time():
        assert throttled("abc") == 3
        with pytest.raises(RateLimited) as caught:
            throttled("abc")
        assert caught.value.retry_after == 10
        assert throttled.__name__ == "len"


@pytest.mark.anyio
async def test_what_the_function_raises_is_not_ours_to_change() -> None:
    @throttle(1, on_limit="raise")
    async def fails() -> None:
        raise WaitTimeout(3.0, 1.0)

    with pytest.raises(WaitTimeout):
        await fails()


# ---------------------------------------------------------------- concurrency


@pytest.mark.anyio
async def test_concurrency_bounds_calls_in_flight() -> None:
    flying = most = 0

    @throttle(concurrency=2)
    async def call(seconds: float) -> None:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await anyio.sleep(seconds)
        flying -= 1

    assert await instants(*[lambda: call(3)] * 5) == [3, 3, 6, 6, 9]
    assert most == 2


@pytest.mark.anyio
async def test_the_slot_comes_first_and_then_the_permit() -> None:
    @throttle("5/s", concurrency=1)
    async def call() -> float:
        began = clock.now()
        await anyio.sleep(10)
        return began

    await instants(*[call] * 3)
    assert call.limiter.available() == 5, "permits taken while waiting for a slot would have lapsed"
    assert clock.now() == 30


@pytest.mark.anyio
@pytest.mark.parametrize("error", [WaitTimeout, RateLimited])
async def test_a_permit_that_is_refused_gives_the_slot_back(error: type[ThrottleError]) -> None:
    slots = Concurrency(1)
    how: Any = {"timeout": 1} if error is WaitTimeout else {"on_limit": "raise"}
    throttled = throttle("1/10s", concurrency=slots, **how)(plain_target)
    await throttled()
    for _ in range(3):
        with pytest.raises(error):
            await throttled()
    assert slots.taken == 0


@pytest.mark.anyio
async def test_timeout_is_for_slot_and_permit_together() -> None:
    slots = Concurrency(1)
    throttled = throttle("1/10s", concurrency=slots, timeout=9)(plain_target)
    await throttled()
    async with anyio.create_task_group() as group:

        @group.start_soon
        async def hold() -> None:
            async with slots:
                await anyio.sleep(2)

        await settle()
        with pytest.raises(WaitTimeout) as caught:
            await throttled()
    assert (caught.value.delay, caught.value.timeout, clock.now()) == (8, 7, 2)
    assert slots.taken == 0


@pytest.mark.anyio
async def test_a_missing_slot_is_a_limit_too() -> None:
    @throttle(concurrency=1, on_limit="raise")
    async def call() -> None:
        await anyio.sleep(1)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await settle()
        with pytest.raises(RateLimited):
            await call()


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["exhausted", "closed", "raised"])
async def test_a_generator_is_in_flight_until_it_ends(end: str) -> None:
    slots = Concurrency(1)

    @throttle(slots)
    async def pages() -> AsyncIterator[int]:
        yield 1
        yield 2

    reading = pages()
    assert slots.taken == 0
    assert await anext(reading) == 1
    assert slots.taken == 1
    if end == "exhausted":
        assert [page async for page in reading] == [2]
    elif end == "closed":
        await reading.aclose()
    else:
        with pytest.raises(KeyError):
            await reading.athrow(KeyError())
    assert slots.taken == 0


@pytest.mark.anyio
async def test_a_cancelled_call_holds_nothing() -> None:
    slots = Concurrency(1)

    @throttle("1/5s", concurrency=slots)
    async def call() -> None:
        await anyio.sleep(100)

    for seconds in (1, 1):  # the first is cancelled in the call, the second while it waits
        with anyio.move_on_after(seconds):
            await call()
        assert slots.taken == 0
    assert call.limiter.stats().granted == 1


@pytest.mark.anyio
async def test_recursion_into_the_only_slot_is_an_error_and_no_deadlock() -> None:
    @throttle(concurrency=1)
    async def call(depth: int) -> None:
        if depth:
            await call(depth - 1)

    with pytest.raises(RuntimeError, match="itself"):
        await call(1)
    await call(0)


# ---------------------------------------------------------------- refused while decorating


class Asyncless:
    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        return 0.0


@contextlib.contextmanager
def manager() -> Iterator[None]:
    yield


@functools.wraps(plain_target)
def runs_it(x: int = 0) -> int:
    return asyncio.run(plain_target(x))


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        (None, "cannot be called"),
        (5, "cannot be called"),
        (property(lambda self: 1), "cannot be called"),
        (functools.partialmethod(plain_target), "cannot be called"),
        (Service, "class"),
        (manager, "inner function"),
        (functools.singledispatch(plain_target), "inner function"),
        (functools.lru_cache(plain_target), "inner function"),
        (runs_it, "inner function"),
        (functools.partial(runs_it, 1), "inner function"),
    ],
    ids=str,
)
def test_what_cannot_be_throttled_is_refused(target: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        throttle(1)(target)


def test_a_thread_needs_a_limiter_that_threads_can_wait_for() -> None:
    assert throttle(Asyncless())(plain_target).limiter
    with pytest.raises(TypeError, match="acquire_sync"):
        throttle(Asyncless())(len)


def test_a_lambda_around_a_coroutine_function_is_not_let_through() -> None:
    throttled = throttle(100)(lambda: plain_target())
    with pytest.raises(TypeError, match="async def"):
        throttled()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "hint"),
    [
        ((), {}, TypeError, "needs a rate"),
        ((plain_target,), {}, TypeError, r"@throttle\(rate=10\)"),
        (("often",), {}, ValueError, "often"),
        ((0,), {}, ValueError, "rate"),
        ((-1,), {}, ValueError, "-1"),
        ((True,), {}, TypeError, "True"),
        ((None,), {}, TypeError, "needs a rate"),
        (([],), {}, ValueError, "at least one"),
        ((1,), {"burst": 0}, ValueError, "burst"),
        ((asyncio.Semaphore(1),), {}, TypeError, "no limiter"),
        ((TokenBucket(1),), {"burst": 2}, TypeError, "burst"),
        ((TokenBucket(1),), {"key": "x"}, TypeError, "key"),
        ((Keyed(lambda: TokenBucket(1)),), {}, TypeError, "key"),
        ((Keyed(lambda: TokenBucket(1)),), {"key": "x", "burst": 2}, TypeError, "burst"),
        ((1,), {"key": "y"}, ValueError, "'y'"),
        ((1,), {"key": 5}, TypeError, "key"),
        ((1,), {"key": plain_target}, TypeError, "key"),
        ((1,), {"cost": -1}, ValueError, "cost"),
        ((1,), {"cost": "1"}, TypeError, "cost"),
        ((1,), {"cost": 1.5}, ValueError, "1.5"),
        ((1,), {"cost": 2}, CostTooLarge, "2"),
        ((1,), {"cost": 2, "key": "x"}, CostTooLarge, "2"),
        ((Keyed(lambda: TokenBucket(1)),), {"cost": -2, "key": "x"}, ValueError, "cost"),
        ((Asyncless(),), {"cost": (1, float("nan"))}, ValueError, "cost"),
        ((1,), {"cost": plain_target}, TypeError, "cost"),
        ((1,), {"concurrency": 0}, ValueError, "concurrency"),
        ((1,), {"concurrency": 1.5}, ValueError, "concurrency"),
        ((Concurrency(1),), {"concurrency": 1}, TypeError, "twice"),
        ((), {"concurrency": 1, "cost": 2}, TypeError, "cost"),
        ((), {"concurrency": 1, "key": "x"}, TypeError, "key"),
        ((1,), {"timeout": -1}, ValueError, "timeout"),
        ((1,), {"timeout": "1"}, TypeError, "timeout"),
        ((1,), {"on_limit": "drop"}, ValueError, "on_limit"),
        ((1,), {"on_limit": "raise", "timeout": 1}, ValueError, "timeout"),
    ],
    ids=str,
)
def test_bad_arguments_are_errors_while_decorating(
    arguments: Any, options: Any, error: type[Exception], hint: str
) -> None:
    with pytest.raises(error, match=hint):
        throttle(*arguments, **options)(plain_target)


def test_a_limiter_of_ones_own_will_do() -> None:
    class Own(Limiter):
        def _ready_at(self, now: float, cost: float) -> float:
            return now

        def _take(self, at: float, cost: float) -> None: ...

    assert throttle(Own(), cost=10**9)(len)("ab") == 2


@pytest.mark.anyio
async def test_a_plain_function_that_does_not_wait_may_be_called_in_a_loop() -> None:
    tried = throttle("1/10s", on_limit="raise")(len)
    assert tried("abc") == 3
    with pytest.raises(RateLimited) as caught:
        tried("abc")
    assert caught.value.retry_after == 10
    with pytest.raises(WaitTimeout):
        throttle(tried.limiter, timeout=0)(len)("ab")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_hours_of_throttling_are_tested_in_a_moment(backend: str) -> None:
    @throttle("5000/hour")
    async def call(number: int) -> float:
        return clock.now()

    async def one_by_one() -> list[float]:
        return [await call(number) for number in range(12_000)]

    async def all_together() -> list[float]:
        starts: list[float] = []

        async def one(number: int) -> None:
            starts.append(await call(number))

        async with anyio.create_task_group() as group:
            for number in range(12_000):
                group.start_soon(one, number)
        return starts

    with virtual_time() as time:
        hours = [0.0] * 5000 + [3600.0] * 5000 + [7200.0] * 2000
        assert time.run(one_by_one, backend=backend) == hours
        call.limiter.reset()
        assert time.run(all_together, backend=backend) == [7200 + hour for hour in hours]


@pytest.mark.anyio
async def test_a_limit_shared_through_a_file_is_a_limiter_too(tmp_path: Path) -> None:
    shared = FileLimiter(tmp_path / "limit", TokenBucket(1, 1))
    throttled = throttle(shared, on_limit="raise")(plain_target)
    assert await throttled(3) == 3
    with pytest.raises(RateLimited):
        await throttled(3)
    with pytest.raises(RateLimited):
        throttle(shared, on_limit="raise")(len)("abc")
    shared.close()
