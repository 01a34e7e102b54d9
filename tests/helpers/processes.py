"""Several processes on one file, run as a program of its own so that it may fork.

`python processes.py <scene> <path>` plays a scene and prints what was seen, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from throttle import Limiter, SlidingWindowLog, TokenBucket
from throttle.shared.crowd import Shared
from throttle.shared.file import FileLimiter

ROOT = Path(__file__).parents[2]


def play(scene: str, path: Path) -> Any:
    """Run a scene in a new process; its report."""
    done = subprocess.run(
        [sys.executable, __file__, scene, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{scene}: {done.stderr}")
    return json.loads(done.stdout)


def fork(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that does `work(pipe)`: its id, and the end of the pipe to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def told(pipes: list[int]) -> list[bytes]:
    """Everything that children wrote, until each has closed its end."""
    texts = []
    for pipe in pipes:
        with os.fdopen(pipe, "rb") as file:
            texts.append(file.read())
    return texts


def grants_of(
    work: Callable[[FileLimiter, Callable[[bytes], object]], None], path: str, make: Any
) -> Any:
    """Four children on one file; what each reported."""
    FileLimiter(path, make())

    def child(pipe: int) -> None:
        work(FileLimiter(path, make()), partial(os.write, pipe))

    children = [fork(child) for _ in range(4)]
    texts = told([pipe for _, pipe in children])
    codes = [os.waitpid(child, 0)[1] for child, _ in children]
    if any(codes):
        raise RuntimeError(f"children failed: {codes}")
    return texts


def instants(texts: list[bytes]) -> list[list[float]]:
    return [[t for (t,) in struct.iter_unpack("d", text)] for text in texts]


def window(path: str) -> Any:
    """`allow` as fast as it goes: for each process, the instants around each call let in."""

    def work(limiter: FileLimiter, tell: Callable[[bytes], object]) -> None:
        end = time.monotonic() + 0.6
        while (before := time.monotonic()) < end:
            if limiter.allow():
                tell(struct.pack("dd", before, time.monotonic()))

    return instants(grants_of(work, path, lambda: SlidingWindowLog(50, 0.05)))


def line(path: str) -> Any:
    """`acquire` by four tasks in each process: the instants that were charged."""
    spend = Shared._spend

    def work(limiter: FileLimiter, tell: Callable[[bytes], object]) -> None:
        def recorded(self: Shared, at: float, cost: Any) -> None:
            tell(struct.pack("d", at))
            spend(self, at, cost)

        Shared._spend = recorded  # type: ignore[method-assign]

        async def task() -> None:
            for _ in range(10):
                await limiter.acquire()

        async def tasks() -> None:
            await asyncio.gather(*(task() for _ in range(4)))

        asyncio.run(tasks())

    return instants(grants_of(work, path, lambda: SlidingWindowLog(16, 0.05)))


def kills(path: str) -> Any:
    """Children that spend are killed at random moments; what they told and what the file says."""
    seen = []
    plans: list[Limiter] = [
        TokenBucket(0, 10.0**9),
        SlidingWindowLog(200_000, 10.0**6),
        TokenBucket(0, 10.0**9) & SlidingWindowLog(200_000, 10.0**6),
    ]
    for number, plan in enumerate(plans):
        limiter = FileLimiter(f"{path}{number}", plan, patience=5.0)
        for _ in range(80):
            before = limiter.available()
            child, pipe = fork(partial(_spend_on, limiter))
            time.sleep(random.random() * 0.006)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            seen.append((before - limiter.available(), len(told([pipe])[0])))
        FileLimiter(f"{path}{number}", plan)
    return seen


def _spend_on(limiter: FileLimiter, out: int) -> None:
    while True:
        if limiter.allow():
            os.write(out, b".")


def kills_of_all_verbs(path: str) -> Any:
    """Children that use every verb are killed; the file must be whole after each."""
    plan = SlidingWindowLog(40, 0.02) & TokenBucket(10**4, 50)
    limiter = FileLimiter(path, plan, patience=5.0)
    levels = []
    for _ in range(150):
        child, pipe = fork(lambda _: _do_everything(limiter))
        time.sleep(random.random() * 0.008)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(pipe)
        limiter.resume()
        other = FileLimiter(path, plan, patience=5.0)
        levels.append(other.available())
        other._shared._model.check()
    return levels


def _do_everything(limiter: FileLimiter) -> None:
    while True:
        limiter.allow(cost=random.randrange(1, 4))
        limiter.charge(random.randrange(1, 6))
        limiter.refund(random.randrange(1, 6))
        limiter.pause(random.choice([0, 0.0001]))
        limiter.acquire_sync()


def stopped(path: str) -> Any:
    """A holder of the lock is stopped, and goes on later: what others see meanwhile and after."""
    limiter = FileLimiter(path, TokenBucket(1, 5), patience=0.1)
    other = FileLimiter(path, TokenBucket(1, 5), patience=0.1)

    def hold(pipe: int) -> None:
        def held() -> None:
            os.write(pipe, b"held")
            os.kill(os.getpid(), signal.SIGSTOP)

        if limiter._shared.run(held):
            os.write(pipe, b", free")

    child, pipe = fork(hold)
    held = os.read(pipe, 4).decode()
    os.waitpid(child, os.WUNTRACED)
    seen = {}
    calls: dict[str, Callable[[], object]] = {
        "allow": other.allow,
        "acquire_sync": other.acquire_sync,
        "acquire": lambda: asyncio.run(_acquire(other)),
        "charge": lambda: other.charge(1),
    }
    for name, call in calls.items():
        try:
            seen[name] = repr(call())
        except TimeoutError as error:
            seen[name] = str(error)
    os.kill(child, signal.SIGCONT)
    rest = told([pipe])[0].decode()
    os.waitpid(child, 0)
    return {"child": held + rest, "seen": seen, "left": other.available()}


async def _acquire(limiter: FileLimiter) -> float:
    return await limiter.acquire()


def forked(path: str) -> Any:
    """A child uses the object of its parent, which has callers in line."""
    limiter = FileLimiter(path, SlidingWindowLog(2, 10.0**6))

    async def scene() -> Any:
        await limiter.acquire()
        waiting = asyncio.ensure_future(limiter.acquire(2))
        await asyncio.sleep(0.01)
        tried, go_on = os.pipe()

        def child(pipe: int) -> None:
            def held() -> None:
                os.write(pipe, b"locked")
                os.read(tried, 1)

            limiter._shared.run(held)  # its own lock: the parent must not get it
            os.write(pipe, f", {limiter.stats().waiting} in line".encode())

        number, pipe = fork(child)
        first = os.read(pipe, 6).decode()
        mine = limiter._shared.run(int)
        os.write(go_on, b".")
        text = told([pipe])[0].decode()
        os.waitpid(number, 0)  # noqa: ASYNC222  # the loop has nothing else to do
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return first + text, mine, limiter.stats().waiting, limiter.available()

    return asyncio.run(scene())


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
