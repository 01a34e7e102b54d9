"""Random schedules against a slow and obvious model: who goes, in which order, at which instant.

Events never fall on the very instant of a grant (each has its own odd fraction), so that there is
one right answer; what happens when they do is in test_waiting_cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from helpers.line_model import LineModel
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    CostTooLarge,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    WaitTimeout,
)
from throttle.testing.virtual import virtual_time

ALGORITHMS: dict[str, Callable[[], Limiter]] = {
    "token bucket": lambda: TokenBucket(rate=2, capacity=3),
    "strict token bucket": lambda: TokenBucket(rate=3, capacity=2, slack=0),
    "leaky bucket": lambda: LeakyBucket(rate=2, capacity=3),
    "sliding log": lambda: SlidingWindowLog(limit=3, window=1.7),
    "sliding counter": lambda: SlidingWindowCounter(limit=3, window=1.7),
    "fixed window": lambda: FixedWindow(limit=3, window=1.7),
}

COSTS = st.sampled_from([1, 1, 1, 2, 3, 4])
EVENTS = st.one_of(
    st.tuples(st.just("arrive"), COSTS, st.sampled_from([None, None, None, 0, 0.4, 1.1, 3.3, 9.9])),
    st.tuples(st.just("arrive"), COSTS, st.none()),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("charge"), st.sampled_from([1, 2])),
    st.tuples(st.just("refund"), st.sampled_from([1, 2])),
    st.tuples(st.just("pause"), st.sampled_from([0.31, 1.23])),
    st.tuples(st.just("resume")),
    st.tuples(st.just("retune"), st.sampled_from([1, 2, 3, 5])),
)
SCHEDULES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.7, 2.3]), EVENTS), max_size=24)


def parameters(limiter: Limiter, size: int) -> dict[str, Any]:
    return {"limit" if hasattr(limiter, "limit") else "capacity": size}


async def play(limiter: Limiter, schedule: list[Any], now: Callable[[], float]) -> list[Any]:
    """The schedule as callers in tasks; what happened to each, in the order it happened."""
    log: list[tuple[Any, ...]] = []
    scopes: list[anyio.CancelScope] = []

    async def caller(name: int, cost: float, timeout: float | None) -> None:
        with scopes[name]:
            try:
                await limiter.acquire(cost, timeout=timeout)
                log.append((name, "granted", now()))
            except WaitTimeout as error:
                log.append((name, "timeout", error.delay))
            except CostTooLarge:
                log.append((name, "too large", None))
        if scopes[name].cancelled_caught:
            log.append((name, "cancelled", None))

    async with anyio.create_task_group() as group:
        for number, (gap, (verb, *details)) in enumerate(schedule):
            await anyio.sleep(gap + 1.618e-4 * (number + 1))
            if verb == "arrive":
                scopes.append(anyio.CancelScope())
                group.start_soon(caller, len(scopes) - 1, *details)
            elif verb == "cancel":
                if details[0] < len(scopes):
                    scopes[details[0]].cancel()
            elif verb == "retune":
                for parameter, value in parameters(limiter, details[0]).items():
                    setattr(limiter, parameter, value)
            else:
                getattr(limiter, verb)(*details)
            for _ in range(4):
                await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.0001)
        limiter.resume()
    return log


def expect(limiter: Limiter, schedule: list[Any]) -> LineModel:
    model = LineModel(limiter)
    now, callers = 0.0, 0
    for number, (gap, (verb, *details)) in enumerate(schedule):
        now += gap + 1.618e-4 * (number + 1)
        model.run_until(now)
        if verb == "arrive":
            model.arrive(callers, *details)
            callers += 1
        elif verb == "retune":
            model.retune(**parameters(limiter, details[0]))
        else:
            getattr(model, verb)(*details)
    model.run_until(now + 0.0001)
    model.resume()
    model.run_until(1e6)
    return model


def same(happened: list[Any], foreseen: list[Any], *, shuffled: bool = False) -> bool:
    """Grants in this very order at these instants; the rest in any order.

    `shuffled`: trio runs those who were let in at the same instant in a random order.
    """

    def close(a: Any, b: Any) -> bool:
        return a == b or (a is not None and b is not None and abs(a - b) < 1e-6)

    grants = [[entry for entry in log if entry[1] == "granted"] for log in (happened, foreseen)]
    if shuffled:
        for log in grants:
            log.sort(key=lambda entry: (round(entry[2], 6), entry[0]))
    others = [sorted(e for e in log if e[1] != "granted") for log in (happened, foreseen)]
    return all(
        len(left) == len(right)
        and all(a[:2] == b[:2] and close(a[2], b[2]) for a, b in zip(left, right, strict=True))
        for left, right in (grants, others)
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_schedule_goes_as_the_model_says(algorithm: str, backend: str) -> None:
    make = ALGORITHMS[algorithm]

    @settings(max_examples=60 if backend == "asyncio" else 15, deadline=None)
    @given(schedule=SCHEDULES)
    def check(schedule: list[Any]) -> None:
        model = expect(make(), schedule)
        with virtual_time() as time:
            limiter = make()
            happened = time.run(play, limiter, schedule, time.now, backend=backend)
            stats = limiter.stats()
            for cost in (1, 2, 3):
                assert (
                    abs(limiter._ready_at(1e4, cost) - model.state._ready_at(1e4, cost)) < 1e-6
                    or cost > limiter._ceiling()
                )
        assert same(happened, model.log, shuffled=backend == "trio"), (happened, model.log)
        assert stats.granted == sum(what == "granted" for _, what, _ in model.log)
        assert stats.waiting == 0
        assert limiter._side is None

    check()
