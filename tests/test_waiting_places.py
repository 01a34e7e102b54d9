"""Where callers wait: threads, several loops, one after another, forks, uvloop, real clocks."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time as real_time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
import uvloop
from helpers.callers import callers

from throttle import (
    LeakyBucket,
    Limiter,
    QueueFull,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
    clock,
)
from throttle.testing.virtual import virtual_time

# -------------------------------------------------------------------- threads


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Each call in a thread of its own, all started in this order; the answers."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(30) for future in [pool.submit(call) for call in calls]]


def test_threads_wait_their_turn() -> None:
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1)
        log: list[float] = []

        def call() -> float:
            waited = limiter.acquire_sync()
            log.append(time.now())
            return waited

        assert sorted(in_threads(*[call] * 5)) == [0, 1, 2, 3, 4]
        assert log == [0, 1, 2, 3, 4]
        assert limiter._side is None


def test_a_thread_fails_at_once_like_a_task() -> None:
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1, max_waiting=1)
        limiter.acquire_sync(timeout=0)
        with pytest.raises(WaitTimeout) as failure:
            limiter.acquire_sync(timeout=0.5)
        assert failure.value.delay == 1.0
        assert time.now() == 0.0
        refused = []

        def second() -> None:
            while limiter.stats().waiting < 1:
                real_time.sleep(0.001)  # the first is about to stand in line
            with pytest.raises(QueueFull):
                limiter.acquire_sync()
            refused.append(time.now())

        in_threads(limiter.acquire_sync, second)
        assert refused == [0.0]


def test_a_thread_is_failed_when_its_turn_moves_beyond_its_timeout() -> None:
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1, initial=0)

        def hurried() -> float:
            with pytest.raises(WaitTimeout) as failure:
                limiter.acquire_sync(timeout=2)
            return failure.value.delay

        def spender() -> None:
            while limiter.stats().waiting < 1:
                real_time.sleep(0.001)
            limiter.pause(9)

        delay, _ = in_threads(hurried, spender)
        assert delay == 9.0
        assert time.now() == 0.0


def test_with_takes_one_and_releases_nothing() -> None:
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1)
        for turn in range(3):
            with limiter:
                assert time.now() == turn


def test_a_thread_interrupted_in_line_leaves_no_trace() -> None:
    limiter = TokenBucket(rate=0.001, capacity=1)
    limiter.allow()
    waiter_seen = threading.Event()

    class Interrupt(BaseException):
        pass

    class Gate:
        def acquire(self, *, timeout: float | None) -> bool:
            waiter_seen.set()
            raise Interrupt

        def release(self) -> None:
            pass

    before, clock.gate = clock.gate, Gate
    try:
        with pytest.raises(Interrupt):
            limiter.acquire_sync()
    finally:
        clock.gate = before
    assert waiter_seen.is_set()
    assert limiter._side is None
    assert limiter.stats() == (1, 0, 0, 0.0)


@pytest.mark.anyio
async def test_a_running_loop_must_not_be_blocked_but_may_be_used_where_nobody_waits() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    assert limiter.acquire_sync() == 0.0
    with pytest.raises(RuntimeError, match="acquire"):
        limiter.acquire_sync()
    assert limiter._side is None
    assert limiter.stats() == (1, 0, 0, 0.0)


# -------------------------------------------------------------------- several places at a time


def test_loops_in_threads_and_plain_threads_share_one_limit() -> None:
    with virtual_time() as time:
        limiter = SlidingWindowLog(limit=4, window=1)
        log: list[float] = []

        def thread() -> None:
            for _ in range(6):
                limiter.acquire_sync()
                log.append(time.now())

        async def task() -> None:
            await limiter.acquire()
            log.append(time.now())

        async def loop() -> None:
            await asyncio.gather(*(task() for _ in range(6)))

        async def nursery() -> None:
            async with trio.open_nursery() as group:
                for _ in range(6):
                    group.start_soon(task)

        in_threads(
            thread,
            thread,
            lambda: time.run(loop),
            lambda: time.run(loop),
            lambda: time.run(nursery, backend="trio"),
        )
        log.sort()
        assert len(log) == 30
        assert log[-1] == 7.0
        assert all(b - a >= 1 for a, b in zip(log, log[4:], strict=False))
        assert limiter._side is None
        assert limiter.stats().granted == 30


def test_a_change_in_one_thread_wakes_the_line_of_another_loop() -> None:
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1)
        limiter.pause(1000)

        def helper() -> None:
            while limiter.stats().waiting < 2:
                real_time.sleep(0.001)
            limiter.resume()

        async def pair() -> list[float]:
            return list(await asyncio.gather(limiter.acquire(), limiter.acquire()))

        waited, _ = in_threads(lambda: time.run(pair), helper)
        assert waited[0] < 1000
        assert time.now() < 1000


def test_a_line_of_one_loop_does_not_wait_for_the_line_of_another() -> None:
    """One line over all would stand still with a loop that was stopped with its head in it."""
    with virtual_time() as time:
        limiter = TokenBucket(rate=1, capacity=1, initial=0)
        stopped = time.loop_factory()
        task = stopped.create_task(limiter.acquire())
        stopped.call_soon(stopped.call_soon, stopped.stop)
        stopped.run_forever()
        assert not task.done()
        # It does not count while its loop stands still …
        assert limiter.stats().waiting == 0
        assert limiter.ready_at() == 1.0
        assert limiter.acquire_sync() == 1.0
        assert limiter.fresh_at() == 2.0
        # … and is served when it runs again.
        assert stopped.run_until_complete(task) == 2.0
        stopped.close()
        assert limiter._side is None


def test_one_run_after_another_on_a_limiter_made_at_import() -> None:
    limiter = TokenBucket(rate=1, capacity=1)
    with virtual_time() as time:
        for backend in ("asyncio", "trio", "asyncio"):
            started = time.now()
            time.run(three, limiter, backend=backend)
            assert time.now() - started in (2.0, 3.0)
    assert limiter.stats().granted == 9


async def three(limiter: Limiter) -> None:
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_changes_while_a_loop_stands_still_ask_it_for_one_look() -> None:
    """Otherwise a loop that is stopped, or busy, would gather a call for each change."""
    asked: list[object] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:
            asked.append(args[0])
            return super().call_soon_threadsafe(*args, **options)

    moment = [0.0]
    limiter = TokenBucket(1, 1, clock=lambda: moment[0])
    both = limiter & SlidingWindowLog(9, 1, clock=limiter._clock)
    assert limiter.allow()
    loop = Loop()
    waiters = [loop.create_task(one.acquire()) for one in (limiter, both)]
    loop.run_until_complete(asyncio.sleep(0))
    before = len(asked)
    for change in range(500):
        limiter.charge(change % 2)
        limiter.refund(1)
        limiter.pause(0)
        both.resume()
    assert len(asked) - before <= 2
    limiter.charge(2)
    moment[0] = 10.0
    loop.run_until_complete(asyncio.sleep(0))
    assert len(asked) - before <= 2
    limiter.reset()
    loop.run_until_complete(asyncio.wait(waiters, timeout=30))
    assert [waiter.result() for waiter in waiters] == [10.0, 10.0]
    assert len(asked) - before <= 4
    loop.close()


def test_the_line_of_a_closed_loop_is_dropped() -> None:
    limiter = TokenBucket(rate=1, capacity=3)
    with virtual_time() as time:
        loop = time.loop_factory()
        tasks = [loop.create_task(limiter.acquire()) for _ in range(7)]
        loop.call_soon(loop.call_soon, loop.stop)
        loop.run_forever()
        assert [task.done() for task in tasks] == [True] * 3 + [False] * 4
        for task in tasks[3:]:
            task._log_destroy_pending = False  # asyncio's own complaint about its tasks
        loop.close()
        assert limiter.stats().waiting == 0
        assert not limiter.allow()
        assert limiter._side is None
        assert time.run(limiter.acquire) == 1.0
        del tasks, loop
        gc.collect()
        assert limiter.ready_at() == time.now() + 1


def test_nothing_is_said_when_loops_end_with_waiters_in_them() -> None:
    """No "never retrieved", no "loop is closed", whichever way a program ends."""
    program = """
        import asyncio, gc, sys, threading
        from throttle import TokenBucket, SlidingWindowLog

        limiter = TokenBucket(rate=0.001, capacity=1) & SlidingWindowLog(1, 1000)
        plain = TokenBucket(rate=0.001, capacity=1)

        async def waits(which, timeout):
            await which.acquire(timeout=timeout)

        async def main():
            for which in (limiter, plain):
                for timeout in (None, 1e6):
                    for _ in range(3):
                        asyncio.create_task(waits(which, timeout))
            await asyncio.sleep(0)
            threading.Thread(target=plain.acquire_sync, daemon=True).start()
            abandoned = plain.acquire()
            abandoned.send(None)
            granted = plain.acquire()
            granted.send(None)
            plain.refund(1)
            await asyncio.sleep(0)
            if sys.argv[1] == "exit":
                sys.exit(0)

        try:
            asyncio.run(main())
        finally:
            gc.collect()
            plain.refund(1)
            limiter.members[0].refund(1)
    """
    for way in ("return", "exit"):
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), way],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -------------------------------------------------------------------- forks


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_lines_of_the_child_are_empty_and_the_lock_is_free() -> None:
    with virtual_time() as time:
        limiter = SlidingWindowLog(limit=1, window=10)

        async def main() -> tuple[int, float]:
            await limiter.acquire()
            tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    asyncio._set_running_loop(loop)
                    assert limiter.stats().waiting == 0
                    assert limiter.ready_at() == 10.0
                    assert limiter.fresh_at() == 10.0
                    time.advance(10)
                    assert limiter.allow()
                    late = limiter.acquire()
                    late.send(None)  # a line of the child's own, in a loop of the same name
                    assert limiter.stats().waiting == 1
                    assert limiter.ready_at() == 30.0
                    late.close()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(child, 0)  # noqa: ASYNC222
            waited = [await task for task in tasks]
            return status, waited[-1]

        assert time.run(main) == (0, 30.0)


def test_a_fork_never_catches_another_thread_in_a_decision() -> None:
    limiter = TokenBucket(rate=1e6, capacity=10)
    over = threading.Event()

    def decide() -> None:
        while not over.is_set():
            limiter.allow()

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                limiter.allow()
                os._exit(0)
            deadline = real_time.monotonic() + 20
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                assert real_time.monotonic() < deadline, "the child hangs on the lock"
                real_time.sleep(0.001)
    finally:
        over.set()
        for thread in threads:
            thread.join()


# -------------------------------------------------------------------- real clocks: never early


REAL: dict[str, Callable[[], Limiter]] = {
    "bucket": lambda: TokenBucket(rate=500, capacity=1, slack=0),
    "leaky": lambda: LeakyBucket(rate=500, capacity=5, slack=0),
    "log": lambda: SlidingWindowLog(limit=5, window=0.01),
}


@pytest.mark.parametrize("algorithm", REAL)
@pytest.mark.parametrize("runner", ["asyncio", "uvloop", "trio"])
def test_on_the_real_clock_nobody_is_early(runner: str, algorithm: str) -> None:
    limiter = REAL[algorithm]()
    granted: list[float] = []

    async def one() -> None:
        await limiter.acquire()
        granted.append(clock.now())

    async def tasks() -> None:
        await asyncio.gather(*(one() for _ in range(40)))

    async def nursery() -> None:
        async with trio.open_nursery() as group:
            for _ in range(40):
                group.start_soon(one)

    started = clock.now()
    if runner == "trio":
        trio.run(nursery)
    else:
        factory = uvloop.new_event_loop if runner == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as run:
            run.run(tasks())
    assert len(granted) == 40
    for number, instant in enumerate(granted):
        earliest = number // 5 * 0.01 if algorithm == "log" else number * 0.002
        assert instant >= started + earliest - 1e-9


def test_on_the_real_clock_threads_are_not_early() -> None:
    limiter = TokenBucket(rate=500, capacity=1, slack=0)
    started = clock.now()
    in_threads(*[lambda: [limiter.acquire_sync() for _ in range(5)]] * 8)
    assert clock.now() - started >= 39 / 500 - 1e-9
