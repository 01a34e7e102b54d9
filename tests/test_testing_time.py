"""Virtual time and no limits: exact instants, nobody overslept, everything put back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time as real
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
)
from throttle.concurrency import Concurrency
from throttle.testing import (
    RateLimitedServer,
    VirtualLoop,
    VirtualTime,
    VirtualTrioClock,
    no_limits,
    virtual_backends,
    virtual_time,
)

BACKENDS = ["asyncio", "trio"]


def hooks() -> tuple[Any, ...]:
    return clock.now, clock.gate, asyncio.new_event_loop, asyncio.events.new_event_loop


# -------------------------------------------------------------------- the hour in milliseconds


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_hour_of_throttled_work(backend: str) -> None:
    limiter = SlidingWindowLog(10, 60)

    async def work() -> list[float]:
        instants = []
        for _ in range(601):
            await limiter.acquire()
            instants.append(time.now())
        return instants

    with virtual_time() as time:
        instants = time.run(work, backend=backend)
    assert instants == [60.0 * (i // 10) for i in range(601)]


def test_an_hour_of_throttled_work_in_a_thread() -> None:
    limiter = TokenBucket(1, 1)
    with virtual_time() as time:
        waited = [limiter.acquire_sync() for _ in range(3601)]
        assert time.now() == 3600.0
    assert waited == [0.0] + [1.0] * 3600


def test_by_hand() -> None:
    limiter = TokenBucket("1/hour", 1)
    with virtual_time() as time:
        assert [limiter.allow(), limiter.allow(), limiter.delay()] == [True, False, 3600.0]
        time.advance(3600)
        assert limiter.allow()
        time.sleep(1800)
        assert (limiter.delay(), time.now()) == (1800.0, 5400.0)


def test_it_begins_where_it_is_told() -> None:
    with virtual_time(100) as time:
        assert clock.now() == time.now() == 100.0
        assert time.run(asyncio.sleep, 5) is None
        assert time.now() == 105.0


def test_a_loop_that_asyncio_makes_meanwhile_is_virtual_too() -> None:
    async def main() -> float:
        await asyncio.sleep(86400.0 * 400)
        return asyncio.get_running_loop().time()

    with virtual_time() as time:
        assert asyncio.run(main()) == time.now() == 86400.0 * 400


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30, deadline=None)
@given(
    instants=st.lists(st.floats(0, 1e6), min_size=1, max_size=12), dropped=st.sets(st.integers())
)
def test_who_sleeps_wakes_at_exactly_his_instant(
    backend: str, instants: list[float], dropped: set[int]
) -> None:
    """Whatever the instants, and whatever timers were cancelled before their time."""
    woken: list[tuple[float, float]] = []

    async def sleeper(instant: float) -> None:
        await anyio.sleep_until(instant)
        woken.append((instant, anyio.current_time()))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for instant in instants:
                group.start_soon(sleeper, instant)
            for number in dropped:
                with anyio.move_on_at(number % 1000 + 0.1):
                    await anyio.lowlevel.checkpoint()

    VirtualTime().run(main, backend=backend)
    assert sorted(instant for instant, _ in woken) == sorted(instants)
    for asked, got in woken:
        # A loop of asyncio takes timers within a nanosecond of each other together.
        assert got == asked or (backend == "asyncio" and 0 < asked - got <= 1e-9)


@pytest.mark.anyio
async def test_timeouts_are_virtual_and_cancellation_is_not_waited_for() -> None:
    limiter = TokenBucket("1/hour", 1)
    await limiter.acquire()
    with pytest.raises(WaitTimeout) as told:
        await limiter.acquire(timeout=3599)
    assert told.value.delay == 3600.0
    with anyio.move_on_after(10) as scope:
        await limiter.acquire()
    assert scope.cancelled_caught
    assert anyio.current_time() == clock.now() == 10.0
    assert await limiter.acquire() == 3590.0


@pytest.mark.anyio
async def test_time_stands_while_anybody_works() -> None:
    instants = []

    async def work() -> None:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
            instants.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        group.start_soon(anyio.sleep, 1e-6)
    assert set(instants) == {0.0}
    assert anyio.current_time() == 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_moving_time_by_hand_in_a_loop_is_like_a_loop_that_froze(backend: str) -> None:
    time = VirtualTime()

    async def main() -> list[float]:
        woken = []

        async def sleeper() -> None:
            await anyio.sleep(2)
            woken.append(time.now())

        async with anyio.create_task_group() as group:
            group.start_soon(sleeper)
            await anyio.sleep(1)
            time.advance(10)
        return woken

    assert time.run(main, backend=backend) == [11.0]


# -------------------------------------------------------------------- threads and loops together


def in_threads(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_take_their_turns_as_if_in_real_time() -> None:
    """Each limiter serves at its own rate; nobody is let in early, and nobody oversleeps."""
    slow, fast = TokenBucket(1, 1), TokenBucket(3, 1)
    served: dict[Limiter, list[float]] = {slow: [], fast: []}

    def work(limiter: Limiter, count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                limiter.acquire_sync()
                served[limiter].append(time.now())

        return run

    with virtual_time() as time:
        in_threads(work(slow, 60), work(fast, 180), work(slow, 61))
    assert sorted(served[slow]) == [float(i) for i in range(121)]
    assert len(served[fast]) == 180
    assert served[fast] == sorted(served[fast])


def test_a_thread_that_waits_for_another_does_not_make_time_run_away() -> None:
    limiter = TokenBucket(1, 1)
    with virtual_time() as time:
        limiter.pause(inf)
        go = threading.Event()

        def waits() -> None:
            go.set()
            limiter.acquire_sync()

        def resumes() -> None:
            go.wait()
            while not limiter.stats().waiting:
                real.sleep(0.001)
            limiter.resume()

        in_threads(waits, resumes)
        assert time.now() == 0.0
    assert limiter.stats().granted == 1


@pytest.mark.anyio
async def test_a_job_in_a_thread_holds_time_back_until_it_is_done() -> None:
    """As long as it takes: getaddrinfo is such a job."""

    async def watch() -> None:
        await anyio.sleep(1000)
        order.append("timer")

    def job() -> None:
        real.sleep(0.12)
        order.append("job")

    order: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.to_thread.run_sync(job)
        assert anyio.current_time() == 0.0
    assert order == ["job", "timer"]


def test_a_job_in_an_executor_holds_time_back_too() -> None:
    async def main() -> None:
        sleeper = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.to_thread(real.sleep, 0.12)
        assert asyncio.get_running_loop().time() == 0.0
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert asyncio.get_running_loop().time() == 0.0
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        await sleeper

    time = VirtualTime()
    time.run(main)
    assert time.now() == 1000.0


@pytest.mark.anyio
async def test_a_thread_that_waits_shares_the_line_of_time_with_its_loop() -> None:
    limiter = TokenBucket(1, 1)
    seen: list[tuple[str, float]] = []

    def in_thread() -> None:
        for _ in range(4):
            limiter.acquire_sync()
            seen.append(("thread", clock.now()))

    async def in_loop() -> None:
        for _ in range(5):
            await anyio.sleep(0.625)
            seen.append(("loop", clock.now()))

    async with anyio.create_task_group() as group:
        group.start_soon(in_loop)
        group.start_soon(anyio.to_thread.run_sync, in_thread)
    assert [what for what in seen if what[0] == "thread"] == [
        ("thread", float(i)) for i in range(4)
    ]
    assert [instant for _, instant in seen] == sorted(instant for _, instant in seen)
    assert anyio.current_time() == 3.125


def test_two_loops_in_two_threads_share_one_time() -> None:
    limiter = TokenBucket(1, 1)
    seen: list[float] = []

    async def work() -> None:
        for _ in range(20):
            await limiter.acquire()
            seen.append(clock.now())

    with virtual_time() as time:
        in_threads(lambda: asyncio.run(work()), lambda: time.run(work, backend="trio"))
    assert sorted(seen) == [float(i) for i in range(40)]


@pytest.mark.anyio
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_loop_in_a_worker_thread_of_another_loop(backend: str) -> None:
    """It shares its time, or has its own if it is given one."""
    shared = virtual_backends()[BACKENDS.index(backend)]

    async def inner() -> float:
        await anyio.sleep(7)
        return anyio.current_time()

    def run(options: dict[str, Any]) -> float:
        return anyio.run(inner, backend=backend, backend_options=options)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 3)
        assert await anyio.to_thread.run_sync(run, shared[1]) == 7.0
        assert anyio.current_time() == 7.0
        own = VirtualTime(100)
        assert await anyio.to_thread.run_sync(lambda: own.run(inner, backend=backend)) == 107.0
        assert anyio.current_time() == 7.0


def test_sleeping_as_a_thread_inside_a_loop_is_an_error_that_says_so() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="event loop"):
            time.sleep(1)

    with virtual_time() as time:
        for backend in BACKENDS:
            time.run(main, backend=backend)


# -------------------------------------------------------------------- sockets


def test_a_real_client_and_a_real_server_on_one_loop() -> None:
    async def main() -> list[float]:
        async with (
            RateLimitedServer("1/10m", latency=3) as server,
            aiohttp.ClientSession() as client,
        ):
            url = server.url.replace("127.0.0.1", "localhost")
            for _ in range(4):
                async with client.get(url) as response:
                    await asyncio.sleep(float(response.headers.get("Retry-After", 0)))
            return [arrival.instant for arrival in server.requests]

    assert VirtualTime().run(main) == [0.0, 3.0, 600.0, 603.0]


# -------------------------------------------------------------------- what is restored


def test_hooks_are_put_back_after_an_error() -> None:
    before = hooks()

    def fails() -> None:
        with virtual_time():
            assert hooks() != before
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert hooks() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_without_a_context_puts_the_hooks_back(backend: str) -> None:
    before = hooks()

    async def fails() -> None:
        await anyio.sleep(3)
        assert clock.now() == time.now() == 3.0
        raise KeyError

    time = VirtualTime()
    with pytest.raises(KeyError):
        time.run(fails, backend=backend)
    assert hooks() == before


def test_nested_times_are_separate_and_the_outer_comes_back() -> None:
    before = hooks()
    with virtual_time() as outer:
        outer.advance(5)
        with virtual_time(100) as inner:
            assert clock.now() == 100.0
            asyncio.run(asyncio.sleep(7))
            assert (inner.now(), outer.now()) == (107.0, 5.0)
        assert clock.now() == 5.0
    assert hooks() == before


def test_times_may_end_in_any_order() -> None:
    before = hooks()
    first, second = VirtualTime(1).active(), VirtualTime(2).active()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert clock.now() == 2.0
    second.__exit__(None, None, None)
    assert hooks() == before


def test_a_clock_of_its_own_is_left_to_a_limiter() -> None:
    with virtual_time() as time:
        mine = TokenBucket(1, 1, clock=lambda: 7.0)
        assert mine.allow()
        time.advance(100)
        assert not mine.allow()


def test_each_run_under_a_shared_trio_clock_starts_at_zero() -> None:
    shared = VirtualTrioClock()

    async def main() -> float:
        await trio.sleep(5)
        return trio.current_time()

    assert [trio.run(main, clock=shared) for _ in range(2)] == [5.0, 5.0]
    with virtual_time(10) as time:
        assert trio.run(main, clock=shared) == time.now() == 15.0


def test_a_loop_runs_in_the_time_that_is_active_when_it_runs() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(5))
        assert runner.get_loop().time() == 5.0
        with virtual_time(100) as time:
            runner.run(asyncio.sleep(5))
            assert time.now() == 105.0


@pytest.mark.anyio
async def test_the_plugin_of_anyio_takes_what_virtual_backends_answers() -> None:
    (first, options), (second, more) = virtual_backends()
    assert (first, second) == ("asyncio", "trio")
    assert options["loop_factory"] is VirtualLoop
    assert isinstance(more["clock"], VirtualTrioClock)


def test_waiting_until_all_are_blocked_lets_no_time_pass() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked()
                assert trio.current_time() == 0.0
        assert trio.current_time() == 10.0

    for _ in range(20):  # trio runs the tasks of a batch in random order
        VirtualTime().run(main, backend="trio")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: VirtualTime("x"), "start"),
        (lambda: VirtualTime().advance(-1), "seconds"),
        (lambda: VirtualTime().sleep(float("nan")), "seconds"),
        (lambda: VirtualTime().run(asyncio.sleep, 0, backend="curio"), "backend"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Any], name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        call()


# -------------------------------------------------------------------- no limits

EVERY = [
    TokenBucket(1, 1),
    LeakyBucket(1, 1),
    SlidingWindowLog(1, 1),
    SlidingWindowCounter(1, 1),
    FixedWindow(1, 1),
    AllOf(TokenBucket(1, 1), SlidingWindowLog(1, 1)),
]


@pytest.mark.parametrize("limiter", EVERY, ids=repr)
def test_without_limits_everybody_is_let_in_and_nothing_is_remembered(limiter: Limiter) -> None:
    async def main() -> None:
        limiter.reset()
        assert limiter.allow(cost=1)
        limiter.pause(1000)
        before = (limiter.stats(), limiter.available(), limiter.ready_at(), limiter.fresh_at())
        with no_limits():
            for _ in range(3):
                assert limiter.allow()
                assert limiter.allow(now=5.0, cost=99)
                assert await limiter.acquire() == await limiter.acquire(5, timeout=0) == 0.0
                assert limiter.acquire_sync() == 0.0
                async with limiter:
                    pass
                with limiter:
                    pass
            assert (limiter.delay(), limiter.ready_at(), limiter.ready_at(7.0)) == (0.0, 0.0, 7.0)
            limiter.charge(50)
            limiter.refund(50)
            limiter.pause(inf)
        assert time.now() == 0.0
        assert before == (
            limiter.stats(), limiter.available(), limiter.ready_at(), limiter.fresh_at()
        )  # fmt: skip
        assert not limiter.allow()

    with virtual_time() as time:
        time.run(main)


def test_the_verbs_are_put_back_whatever_happens() -> None:
    before = {kind: dict(vars(kind)) for kind in (Limiter, SlidingWindowLog, TokenBucket)}

    def fails() -> None:
        with no_limits(), no_limits():
            assert Limiter.allow is not before[Limiter]["allow"]
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with no_limits():
        with no_limits():
            pass
        assert TokenBucket(0, 1).allow(cost=2), "the outer one still holds"
    assert {kind: dict(vars(kind)) for kind in before} == before


def test_it_decorates_functions_and_coroutine_functions() -> None:
    limiter = TokenBucket(0, 1)

    @no_limits()
    def plain() -> bool:
        return limiter.allow(cost=2)

    @no_limits()
    async def coroutine() -> bool:
        await asyncio.sleep(1)
        return limiter.allow(cost=2)

    with virtual_time() as time:
        assert plain()
        assert time.run(coroutine)
        made = coroutine()
        assert not limiter.allow(cost=2), "making a coroutine opens nothing"
        made.close()


def test_it_holds_in_other_threads() -> None:
    limiter = TokenBucket(0, 1)
    with no_limits():
        in_threads(*[lambda: limiter.acquire_sync(2) and None] * 3)
    assert limiter.stats().granted == 0


def test_slots_are_lent_and_given_back_as_ever() -> None:
    slots = Concurrency(1)
    with no_limits():
        with slots:
            assert not slots.allow()
        assert slots.allow()
        slots.release()
    assert slots.taken == 0


def test_the_server_goes_on_refusing() -> None:
    async def main() -> list[int]:
        statuses = []
        async with RateLimitedServer("1/s") as server, aiohttp.ClientSession() as client:
            with no_limits():
                for _ in range(3):
                    async with client.get(server.url) as response:
                        statuses.append(response.status)
        return statuses

    assert VirtualTime().run(main) == [200, 429, 429]


# -------------------------------------------------------------------- for pytest

USERS_TEST = """
import anyio, pytest
from throttle import TokenBucket
from throttle.testing import virtual_backends

@pytest.fixture(params=virtual_backends(), ids=lambda backend: backend[0])
def anyio_backend(request):
    return request.param

@pytest.mark.anyio
@pytest.mark.parametrize("turn", [1, 2])
async def test_async(virtual_time, turn):
    limiter = TokenBucket("1/hour", 1)
    waited = [await limiter.acquire() for _ in range(3)]
    assert waited == [0.0, 3600.0, 3600.0] and virtual_time.now() == 7200.0

def test_sync(virtual_time):
    limiter = TokenBucket("1/hour", 1)
    assert [limiter.acquire_sync(), limiter.acquire_sync()] == [0.0, 3600.0]

def test_free(no_limits):
    assert all(TokenBucket(1, 1).allow(cost=9) for _ in range(9))
"""


def test_the_fixtures_work_in_a_project_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        'import throttle.testing.fixtures\npytest_plugins = ["throttle.testing.fixtures"]\n'
    )
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "6 passed" in result.stdout, result.stdout + result.stderr


def test_what_is_not_used_is_not_imported() -> None:
    program = (
        "import sys, throttle.testing as t\n"
        "with t.no_limits(): pass\n"
        "assert not {'aiohttp', 'asyncio', 'pytest', 'trio'} & set(sys.modules)\n"
        "t.virtual_time; assert not {'aiohttp', 'pytest', 'trio'} & set(sys.modules)\n"
        "assert set(t.__all__) <= set(dir(t)); [getattr(t, name) for name in t.__all__]\n"
        "try: t.nothing\n"
        "except AttributeError: sys.exit(7)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 7, result.stderr
