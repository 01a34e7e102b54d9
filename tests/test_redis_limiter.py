"""RedisLimiter against a real server: the Python classes' answers, and the line of a fleet."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
import uvloop
from helpers.redis_servers import RedisServer
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from throttle import (
    CostTooLarge,
    FixedWindow,
    LeakyBucket,
    Limiter,
    QueueFull,
    SlidingWindowCounter,
    SlidingWindowLog,
    SupportsAcquire,
    TokenBucket,
    WaitTimeout,
    throttle,
)
from throttle.clock import tolerance
from throttle.shared.redis import RedisLimiter
from throttle.shared.redis_scripts import keys_for, number, parameters_of, read, script_for

pytestmark = pytest.mark.anyio

TEMPLATES = [
    TokenBucket(10, 3),
    TokenBucket("7/s", 1),
    TokenBucket(10 / 13, 5),
    TokenBucket(3, 4.5),
    LeakyBucket(10, 3),
    LeakyBucket(1 / 3, 2),
    SlidingWindowLog(5, 1),
    SlidingWindowLog(3, 0.7),
    SlidingWindowLog(8, 2),
    SlidingWindowCounter(5, 1),
    SlidingWindowCounter(3, 0.3),
    SlidingWindowCounter(4.5, 2),
]
FOUR = [
    TokenBucket(10, 2),
    LeakyBucket(10, 2),
    SlidingWindowLog(2, 0.2),
    SlidingWindowCounter(2, 0.2),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # real time: the server's clock is real


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def client(server: RedisServer) -> Any:
    server.admin.flushall()
    async with server.client() as client:
        yield client


class Clock:
    """The server's time, in the hand of a test: microseconds."""

    def __init__(self) -> None:
        self.micros = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.micros

    def advance(self, seconds: float) -> None:
        self.micros += round(seconds * 1e6)


def at_own_time(client: Redis, template: Limiter, **options: Any) -> tuple[RedisLimiter, Clock]:
    limiter, clock = RedisLimiter(client, "shared", template, **options), Clock()
    limiter._stamp = clock
    return limiter, clock


# -------------------------------------------------------------------- the same answers as Python


class Script:
    """A template's script, called with times of the test's choice; many calls in one go."""

    def __init__(self, server: RedisServer, template: Limiter, key: str) -> None:
        admin = SyncRedis(port=server.port)
        script = script_for(template)
        self.sha = admin.script_load(script.text)
        assert self.sha == script.sha
        self.keys = keys_for(template, key)
        self.parameters = parameters_of(template)
        self.pipe = admin.pipeline(transaction=False)

    def call(self, micros: int, verb: str, *args: float | str) -> None:
        words = [arg if isinstance(arg, str) else number(arg) for arg in args]
        line = " ".join((verb, str(micros), *self.parameters, *words))
        self.pipe.evalsha(self.sha, len(self.keys), *self.keys, line)

    def go(self, micros: int, kind: str, cost: float, longest: float, callers: int = 1) -> None:
        self.call(micros, "go", 0, 0, 0, 0, 0, 0, 0, 0, kind, cost, longest, callers)

    def answers(self) -> list[tuple[float, ...]]:
        return [read(reply)[1] for reply in self.pipe.execute()]


class Twin:
    """What the Python class answers, with reservations: the end of the line is a number."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter._clone()
        self.tail = -inf

    def allow(self, now: float, cost: float) -> tuple[float, ...]:
        free = self.tail <= now + tolerance(now) and self.limiter._ready_at(now, cost) <= now
        if free:
            self.limiter._spend(now, cost)
        return (int(free),)

    def reserve(self, now: float, cost: float, longest: float) -> tuple[float, float]:
        at = self.limiter._departs_at(max(now, self.tail), cost)
        if at == inf or at - now > longest + 0.5e-9:
            return 0, at
        self.limiter._spend(at, cost)
        self.tail = at
        return 1, at

    def delay(self, now: float, cost: float) -> float:
        return self.limiter._ready_at(max(now, self.tail), cost) - now

    def available(self, now: float) -> float:
        return 0 if self.tail > now + tolerance(now) else max(0, self.limiter._available(now))


@pytest.mark.parametrize("template", TEMPLATES, ids=repr)
def test_a_random_schedule_gets_the_answers_of_the_python_class(
    server: RedisServer, template: Limiter
) -> None:
    server.admin.flushall()
    draw = random.Random(repr(template))
    whole = isinstance(template, SlidingWindowLog)
    costs = [1, 1, 1, 2, 3] if whole else [1, 1, 2, 0.5, 1.25]
    seen = set()
    for schedule in range(12):
        script, twin = Script(server, template, f"schedule {schedule}"), Twin(template)
        start = micros = 1_700_000_000_000_000 + schedule
        script.go(start, "a", 1, 0)  # the first spending starts the limiter's own time
        expected: list[Any] = [twin.allow(0.0, 1)]
        for _ in range(150):
            # Bursts, steps on the grid of the rate, and odd ones; sometimes a long rest.
            step = draw.choice([0, 0, 1, 100_000, 142_857, 333_333, draw.randrange(700_000)])
            micros += step if draw.random() < 0.97 else 20_000_000
            now = (micros - start) / 1_000_000
            cost = draw.choice(costs)
            verb = draw.choice(["allow"] * 4 + ["reserve"] * 3 + ["delay", "available", "spend"])
            if verb == "allow":
                script.go(micros, "a", cost, 0)
                expected.append(twin.allow(now, cost))
            elif verb == "reserve":
                longest = draw.choice([0, 0.2, 1.5, inf])
                script.go(micros, "w", cost, longest)
                expected.append(twin.reserve(now, cost, longest))
            elif verb == "delay":
                script.call(micros, "delay", cost)
                expected.append(twin.delay(now, cost))
            elif verb == "available":
                script.call(micros, "available")
                expected.append(twin.available(now))
            elif twin.tail <= now:
                script.call(micros, "charge", cost)
                twin.limiter._spend(now, cost)
                given = draw.choice([cost, 1])
                script.call(micros, "refund", given)
                twin.limiter._refund(now, given)
                expected += [(), ()]
        for answer, right in zip(script.answers(), expected, strict=True):
            if isinstance(right, tuple):
                assert answer == right
                seen.add((len(right), *right[:1]))
            else:
                # `delay` is rounded up to the microsecond, which is all the clock can tell.
                assert answer[0] == right or -1e-9 <= answer[0] - right < 1.001e-6
    assert seen >= {(1, 0), (1, 1), (2, 0), (2, 1)}  # allowed and not, reserved and not


TABLES = [
    (TokenBucket(1, 5), [0.0] * 6 + [0.5, 1.0, 1.0, 3.0, 3.0, 3.0], "TTTTTFFTFTTF"),
    (LeakyBucket(1, 2), [0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 9.0], "TTFFTFTT"),
    (SlidingWindowLog(2, 10), [0.0, 4.0, 9.0, 10.0, 10.0, 14.0], "TTFTFT"),
    (SlidingWindowCounter(2, 10), [0.0, 0.0, 9.0, 10.0, 15.0, 15.0, 20.0], "TTFFTFT"),
]


@pytest.mark.parametrize(("template", "instants", "right"), TABLES, ids=lambda v: repr(v)[:20])
async def test_a_table_of_instants(
    client: Redis, template: Limiter, instants: list[float], right: str
) -> None:
    limiter, clock = at_own_time(client, template)
    local = template._clone()
    answers = []
    started = clock.micros
    for instant in instants:
        clock.micros = started + round(instant * 1e6)
        answers.append(await limiter.allow())
        assert answers[-1] == local.allow(now=instant)
    assert "".join("FT"[answer] for answer in answers) == right


@pytest.mark.parametrize("template", TEMPLATES, ids=repr)
def test_a_batch_is_the_same_as_its_callers_one_by_one(
    server: RedisServer, template: Limiter
) -> None:
    server.admin.flushall()
    one, all_ = Script(server, template, "one"), Script(server, template, "all")
    start = 1_700_000_000_000_000
    for micros in (start, start + 50_000, start + 3_000_000):
        for _ in range(7):
            one.go(micros, "w", 1, 4.0)
        all_.go(micros, "w", 1, 4.0, 7)
    singles = one.answers()
    for i, (let, *instants) in enumerate(all_.answers()):
        # The first refusal stands for all that follow it.
        instants += instants[-1:] * (7 - len(instants))
        batch = [(float(j < let), at) for j, at in enumerate(instants)]
        assert batch == singles[7 * i : 7 * i + 7]


@pytest.mark.parametrize(
    "template", [SlidingWindowLog(20, 5), SlidingWindowLog(1000, 60)], ids=repr
)
def test_the_log_holds_in_any_window_whatever_is_reserved_cancelled_or_given_back(
    server: RedisServer, template: SlidingWindowLog
) -> None:
    server.admin.flushall()
    draw = random.Random(7)
    script = Script(server, template, "bound")
    micros = 1_700_000_000_000_000
    for _ in range(600):
        micros += draw.randrange(200_000)
        script.go(micros, "w", draw.choice([1, 2, 5]), draw.choice([0, 3, 30]))
    spent = [at for let, at in script.answers() if let]
    assert spent == sorted(spent)
    entries = server.admin.zrange(script.keys[1], 0, -1, withscores=True)
    sums = [int(member) for member, _ in entries]
    assert sums == sorted(sums)
    assert all(later - sooner <= template.limit for sooner, later in pairwise(sums))


# -------------------------------------------------------------------- the verbs


@pytest.mark.parametrize("template", FOUR, ids=repr)
async def test_callers_in_line_wait_once_each_and_in_order(
    client: Redis, template: Limiter
) -> None:
    limiter = RedisLimiter(client, "line", template)
    order: list[int] = []
    started = time.monotonic()
    gone: list[float] = []

    async def call(i: int) -> float:
        waited = await limiter.acquire()
        order.append(i)
        gone.append(time.monotonic() - started)
        return waited

    waits = await asyncio.gather(*(call(i) for i in range(6)))
    assert order == list(range(6))
    twin = Twin(template)
    planned = [twin.reserve(0.0, 1, inf)[1] for _ in range(6)]
    for instant, plan, waited in zip(gone, planned, waits, strict=True):
        assert instant >= plan - 1e-6  # never early
        assert waited <= instant
    assert limiter.stats() == (6, 0, 0, pytest.approx(sum(waits)))


async def test_what_a_refusal_names_is_enough(client: Redis) -> None:
    limiter, clock = at_own_time(client, TokenBucket(7, 1))
    for _ in range(50):
        assert await limiter.allow()
        wait = await limiter.delay()
        assert not await limiter.allow()
        clock.micros += round(wait * 1e6) - 2
        assert not await limiter.allow()
        clock.micros += 2


async def test_timeout_refuses_at_once_and_spends_nothing(client: Redis) -> None:
    limiter, clock = at_own_time(client, TokenBucket(1, 2))
    assert await limiter.acquire(2) < 1
    with pytest.raises(WaitTimeout) as caught:
        await limiter.acquire(timeout=0.5)
    assert caught.value.delay == pytest.approx(1.0)
    assert caught.value.timeout == 0.5
    with pytest.raises(WaitTimeout):
        await limiter.acquire(timeout=0)
    clock.advance(1)
    assert await limiter.acquire(timeout=0) >= 0  # untouched by the two that failed
    assert limiter.stats()[:3] == (2, 2, 0)


async def test_a_cost_that_never_fits_is_refused_without_a_trip(
    client: Redis, server: RedisServer
) -> None:
    limiter = RedisLimiter(client, "large", TokenBucket(10, 5))
    before = server.script_calls()
    with pytest.raises(CostTooLarge):
        await limiter.acquire(6)
    assert not await limiter.allow(6)
    assert await limiter.delay(6) == inf
    assert await limiter.acquire(0) == 0.0
    assert await limiter.allow(0)
    assert server.script_calls() == before


async def test_rate_0_never_refills_and_rate_inf_never_limits(client: Redis) -> None:
    never = RedisLimiter(client, "never", TokenBucket(0, 2))
    assert [await never.allow() for _ in range(3)] == [True, True, False]
    assert await never.delay() == inf
    with pytest.raises(CostTooLarge):
        await never.acquire()
    free = RedisLimiter(client, "free", TokenBucket(inf))
    assert await free.acquire(1e9) < 1
    assert await free.delay(1e12) == 0.0
    await free.pause(60)
    assert not await free.allow()


async def test_charge_goes_into_debt_and_refund_gives_back(client: Redis) -> None:
    for template in (TokenBucket(1, 10), LeakyBucket(1, 10), SlidingWindowLog(10, 10)):
        limiter, _ = at_own_time(client, template)
        await limiter.charge(15)
        assert await limiter.available() == 0
        await limiter.refund(6)
        assert await limiter.available() == pytest.approx(1)
        await limiter.refund(100)
        assert await limiter.available() == 10
        await limiter.reset()


async def test_the_largest_debts_are_counted_and_larger_ones_refused(client: Redis) -> None:
    limiter, clock = at_own_time(client, SlidingWindowLog(3, 10))
    with pytest.raises(ValueError, match="cost must be at most"):
        await limiter.charge(2**50 + 1)
    assert await limiter.available() == 3
    for _ in range(4):
        await limiter.charge(2**50)
    assert not await limiter.allow()
    for _ in range(3):
        clock.advance(20)
        assert str(await limiter.delay()) == "0.0"
        assert [await limiter.allow() for _ in range(5)] == [True] * 3 + [False] * 2


async def test_reset_makes_it_new(client: Redis, server: RedisServer) -> None:
    for template in FOUR:
        limiter, _ = at_own_time(client, template)
        assert [await limiter.allow() for _ in range(3)] == [True, True, False]
        await limiter.pause(100)
        await limiter.reset()
        assert limiter.stats() == (0, 0, 0, 0.0)
        assert server.admin.keys("*") == []
        assert await limiter.available() == 2


async def test_a_context_takes_one(client: Redis) -> None:
    limiter = RedisLimiter(client, "with", TokenBucket(1, 2))
    async with limiter:
        assert await limiter.available() == pytest.approx(1, abs=0.1)
    assert isinstance(limiter, SupportsAcquire)


async def test_a_full_line_is_refused(client: Redis) -> None:
    limiter = RedisLimiter(client, "full", TokenBucket(1, 1, max_waiting=2))
    await limiter.acquire()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert limiter.stats().waiting == 2
    with pytest.raises(QueueFull):
        await limiter.acquire()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert limiter.stats().waiting == 0


async def test_the_count_of_who_waits_is_right_whatever_becomes_of_them(client: Redis) -> None:
    limiter = RedisLimiter(client, "count", LeakyBucket(200, 5, max_waiting=60))
    chance = random.Random(7)
    tasks: list[asyncio.Task[float]] = []
    asks: list[asyncio.Task[bool]] = []
    full = 0
    for _ in range(400):
        cost, timeout = chance.choice([1, 1, 2, 0.5]), chance.choice([None, None, 0, 0.02, 0.2])
        tasks.append(asyncio.create_task(limiter.acquire(cost, timeout=timeout)))
        if chance.random() < 0.3:
            asks.append(asyncio.create_task(limiter.allow()))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        await asyncio.sleep(chance.choice([0, 0, 0, 0.002]))
        await asyncio.sleep(0)  # who was cancelled has left
        waiting = sum(not task.done() and not task.cancelling() for task in tasks)
        assert limiter.stats().waiting <= min(waiting, 60)
        # One whose instant came in this very turn has left the line and not yet returned.
        full = max(full, limiter.stats().waiting)
    await asyncio.gather(*tasks, *asks, return_exceptions=True)
    assert full == 60
    assert limiter.stats().waiting == 0
    await limiter.acquire()


async def test_thousands_come_at_once_to_a_line_that_is_bounded(client: Redis) -> None:
    limiter = RedisLimiter(client, "bounded", TokenBucket(1e9, 1e9, max_waiting=20_000))
    done = await asyncio.gather(*(limiter.acquire() for _ in range(30_000)), return_exceptions=True)
    assert sum(isinstance(one, float) for one in done) == 20_000
    assert sum(isinstance(one, QueueFull) for one in done) == 10_000


@pytest.mark.parametrize(
    ("arguments", "options", "error", "names"),
    [
        ((None, "k", TokenBucket(1)), {}, TypeError, "client"),
        ((SyncRedis(), "k", TokenBucket(1)), {}, TypeError, "client"),
        ((Redis(), 5, TokenBucket(1)), {}, TypeError, "key"),
        ((Redis(), "", TokenBucket(1)), {}, ValueError, "key"),
        ((Redis(), "a\udcff", TokenBucket(1)), {}, ValueError, "key must be text"),
        ((Redis(), "k", "10/s"), {}, TypeError, "limiter"),
        ((Redis(), "k", FixedWindow(1, 1)), {}, TypeError, "FixedWindow"),
        ((Redis(), "k", TokenBucket(1) & TokenBucket(2)), {}, TypeError, "limiter"),
        ((Redis(), "k", TokenBucket(1, 5, initial=2)), {}, ValueError, "initial"),
        ((Redis(), "k", TokenBucket(1)), {"on_error": "close"}, ValueError, "on_error"),
        ((Redis(), "k", TokenBucket(1)), {"timeout": 0}, ValueError, "timeout"),
        ((Redis(), "k", TokenBucket(1)), {"share": 2}, ValueError, "share"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        RedisLimiter(*arguments, **options)


async def test_wrong_costs_and_times_are_named_and_change_nothing(client: Redis) -> None:
    limiter = RedisLimiter(client, "wrong", SlidingWindowLog(5, 60))
    for wrong in (-1, float("nan"), "1", True, 1.5):
        with pytest.raises((TypeError, ValueError), match="cost"):
            await limiter.allow(wrong)  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError), match="cost"):
            await limiter.acquire(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        await limiter.acquire(timeout=-1)
    with pytest.raises(ValueError, match="seconds"):
        await limiter.pause(inf)
    assert await limiter.available() == 5


async def test_the_template_is_copied(client: Redis) -> None:
    template = TokenBucket(1, 2)
    limiter = RedisLimiter(client, "copy", template)
    template.capacity = 100
    template.allow()
    assert [await limiter.allow() for _ in range(3)] == [True, True, False]
    assert repr(limiter) == "RedisLimiter('copy', TokenBucket(rate=1, capacity=2))"


async def test_a_rollout_with_other_parameters_never_stalls(client: Redis) -> None:
    """Old and new processes share what was spent; each decides by its own parameters."""
    pairs: list[tuple[Limiter, Limiter]] = [
        (TokenBucket(10, 10), TokenBucket(1, 2)),
        (SlidingWindowLog(100, 1), SlidingWindowLog(5, 60)),
        (SlidingWindowCounter(100, 0.1), SlidingWindowCounter(5, 60)),
    ]
    for old, new in pairs:
        before, clock = at_own_time(client, old)
        after, _ = at_own_time(client, new)
        after._stamp = clock
        for _ in range(200):
            clock.advance(0.11)
            assert await before.allow()
        assert await after.delay() <= 130
        clock.advance(130)
        assert await after.allow()
        assert await before.allow()
        await after.reset()


# -------------------------------------------------------------------- pauses


async def test_a_pause_is_shared_and_the_latest_wins(client: Redis) -> None:
    one, clock = at_own_time(client, TokenBucket(10, 5))
    two, _ = at_own_time(client, TokenBucket(10, 5))
    two._stamp = clock
    await one.pause(5)
    await two.pause(2)
    assert not await two.allow()
    assert await two.delay() == pytest.approx(5)
    assert await two.available() == 0
    clock.advance(4.999)
    assert not await one.allow()
    clock.advance(0.001)
    assert await one.allow()
    await one.pause(5)
    await two.resume()
    assert await one.allow()


@pytest.mark.parametrize("template", FOUR, ids=repr)
async def test_after_a_pause_the_line_goes_on_at_its_own_pace(
    client: Redis, template: Limiter
) -> None:
    """Who waited keeps his place, moved by the pause: the end of a pause is no stampede."""
    one = RedisLimiter(client, "evenly", template)
    two = RedisLimiter(client, "evenly", template)
    loop = asyncio.get_running_loop()
    gone: list[float] = []

    async def call(limiter: RedisLimiter) -> None:
        await limiter.acquire()
        gone.append(loop.time())

    await one.acquire(2)
    tasks = [asyncio.create_task(call(limiter)) for limiter in (one, two, one, two)]
    await asyncio.sleep(0.03)
    paused = loop.time()
    await one.pause(0.3)
    await two.delay()  # anything the other process asks tells it of the pause
    await asyncio.gather(*tasks)
    local = Twin(template)
    local.reserve(0.0, 2, inf)
    planned = [local.reserve(0.0, 1, inf)[1] for _ in range(4)]
    for instant, plan in zip(gone, planned, strict=True):
        # The first goes when the pause ends, at the earliest; the others as far behind as ever.
        assert instant >= paused + 0.3 + plan - planned[0] - 0.005


async def test_a_sleeper_of_more_than_a_second_looks_again_before_it_goes(
    client: Redis, server: RedisServer
) -> None:
    limiter = RedisLimiter(client, "look", TokenBucket(1 / 1.2, 1))
    other = RedisLimiter(client, "look", TokenBucket(1 / 1.2, 1))
    await limiter.acquire()
    loop = asyncio.get_running_loop()
    started = loop.time()
    task = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0.1)
    asked = server.script_calls()
    await other.pause(0.5)  # nobody tells the sleeper
    await task
    assert loop.time() - started >= 1.2 + 0.4 - 0.1
    assert server.script_calls() - asked == 2  # the pause, and one look


async def test_who_waits_is_served_when_a_pause_is_lifted(client: Redis) -> None:
    limiter = RedisLimiter(client, "lift", TokenBucket(20, 1))
    await limiter.pause(60)
    loop = asyncio.get_running_loop()
    started = loop.time()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await limiter.resume()
    await asyncio.gather(*tasks)
    assert 0.1 <= loop.time() - started < 10


async def test_pauses_with_a_line_never_give_more_than_the_rate(client: Redis) -> None:
    """Pause, wait, lift, again and again: no permits come out of it."""
    for template in (TokenBucket(10, 5), SlidingWindowLog(5, 0.5)):
        limiter, clock = at_own_time(client, template)
        script_time = clock.micros
        draw = random.Random(3)
        allowed = 0
        for _ in range(300):
            clock.advance(draw.random() * 0.05)
            what = draw.random()
            if what < 0.1:
                await limiter.pause(draw.random())
            elif what < 0.2:
                await limiter.resume()
            elif await limiter.allow():
                allowed += 1
        assert 0 < allowed <= 5 + 10 * (clock.micros - script_time) / 1e6
        await limiter.reset()


# -------------------------------------------------------------------- cancelling


async def settle() -> None:
    await asyncio.sleep(0.05)


async def test_a_cancelled_caller_leaves_his_place_to_the_next(client: Redis) -> None:
    limiter = RedisLimiter(client, "next", TokenBucket(10, 1))
    limiter._stamp = Clock()  # it stands: the end of the line tells which places were used
    await limiter.acquire()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(4)]
    await settle()
    tasks[0].cancel()
    tasks[1].cancel()
    waits = await asyncio.gather(tasks[2], tasks[3])
    assert waits[0] >= 0.1 - 1e-6
    assert waits[1] >= 0.2 - 1e-6
    assert limiter.stats()[:3] == (3, 0, 0)
    assert await limiter.delay() == pytest.approx(0.3)


async def test_places_at_the_end_of_the_line_go_back_to_the_server(client: Redis) -> None:
    for template in FOUR:
        limiter = RedisLimiter(client, "back", template)
        clock = Clock()  # it stands, so that what is there before and after can be compared
        limiter._stamp = clock
        await limiter.acquire(2)
        before = [await limiter.delay(), await limiter.delay(2)]
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(6)]
        await settle()
        behind = await limiter.delay()
        assert behind > before[0]
        for task in tasks:
            task.cancel()
        await settle()
        after = [await limiter.delay(), await limiter.delay(2)]
        if isinstance(template, SlidingWindowCounter):
            # It keeps two counts: what a later window had replaced is not known any more.
            assert after[0] < behind
        else:
            assert after == pytest.approx(before, abs=1e-5)
        await limiter.reset()


async def test_a_place_is_not_given_back_once_another_process_stands_behind_it(
    client: Redis,
) -> None:
    """Subtracting blindly would put two callers on one slot."""
    one, clock = at_own_time(client, TokenBucket(1, 1))
    two, _ = at_own_time(client, TokenBucket(1, 1))
    two._stamp = clock
    await one.acquire()
    mine = asyncio.create_task(one.acquire())
    await settle()
    theirs = asyncio.create_task(two.acquire())
    await settle()
    mine.cancel()
    await settle()
    assert await two.delay() == pytest.approx(3.0)  # slots at 1 and 2 are taken; 1 lapses
    # ... but a newcomer of the same process takes it.
    third = asyncio.create_task(one.acquire())
    await settle()
    assert await two.delay() == pytest.approx(3.0)
    for task in (third, theirs):
        task.cancel()
    await asyncio.gather(mine, third, theirs, return_exceptions=True)


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_turn_of_the_loop_nothing_is_lost_or_given_twice(
    client: Redis, turns: int
) -> None:
    limiter, _ = at_own_time(client, SlidingWindowLog(3, 60))
    task = asyncio.create_task(limiter.acquire())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    await settle()
    taken = 0 if isinstance(result, asyncio.CancelledError) else 1
    assert await limiter.available() == 3 - taken


async def test_a_cancelled_question_breaks_no_connection(
    client: Redis, server: RedisServer
) -> None:
    limiter, _ = at_own_time(client, TokenBucket(1, 100))
    await limiter.available()
    before = server.connections_so_far()
    server.freeze()
    verbs = [limiter.delay(), limiter.charge(1), limiter.pause(0), limiter.available()]
    tasks = [asyncio.create_task(verb) for verb in verbs]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.thaw()
    assert await limiter.allow()
    assert server.connections_so_far() == before


async def test_cancelled_in_the_turn_of_the_grant_the_next_goes(client: Redis) -> None:
    limiter = RedisLimiter(client, "turn", TokenBucket(10, 1))
    await limiter.acquire()
    first = asyncio.create_task(limiter.acquire())
    second = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0.02)
    line = limiter._line()
    granted = line._slots[0]
    caller = line._lanes[1].waiters[0]
    let_go = line._go

    def let_go_and_cancel() -> None:
        let_go()
        if caller.done():
            first.cancel()

    line._go = let_go_and_cancel  # type: ignore[method-assign]
    line._time()
    await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert second.result() < 0.19  # it went on the first one's slot, at 0.1
    assert granted.due <= asyncio.get_running_loop().time()


async def test_many_cancelled_in_flight_cost_one_connection_and_no_permit(
    client: Redis, server: RedisServer
) -> None:
    limiter, _ = at_own_time(client, TokenBucket(1, 100))
    await limiter.available()
    before = server.connections_so_far()
    server.freeze()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(50)]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.sleep(0)
    server.thaw()
    await settle()
    assert await limiter.available() == 100
    assert server.connections_so_far() == before
    assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize("seed", range(4))
async def test_a_crowd_that_comes_and_goes_at_random_stays_within_the_limit(
    client: Redis, seed: int
) -> None:
    """Two processes; callers with other costs, patience and luck; cancelled at any moment."""
    draw = random.Random(seed)
    template = TokenBucket(400, 6) if seed % 2 else SlidingWindowLog(20, 0.05)
    fleet = [RedisLimiter(client, "crowd", template) for _ in range(2)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    spent: list[tuple[float, int]] = []

    async def call(limiter: RedisLimiter, cost: int, timeout: float | None) -> None:
        await limiter.acquire(cost, timeout=timeout)
        spent.append((loop.time(), cost))

    tasks = []
    for _ in range(300):
        limiter, cost = draw.choice(fleet), draw.choice([1, 1, 1, 2, 5])
        timeout = draw.choice([None, None, 0.0, 0.3])
        tasks.append(asyncio.create_task(call(limiter, cost, timeout)))
        if draw.random() < 0.3:
            draw.choice(tasks).cancel()
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() * 0.004)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    served = [result is None for result in results]
    failed = [r for r in results if not (r is None or isinstance(r, WaitTimeout))]
    assert all(isinstance(error, asyncio.CancelledError) for error in failed)
    assert sum(served) == len(spent)
    # Counted from the beginning: then a wake-up that is late can only make it less.
    total = 0
    for instant, cost in spent:
        total += cost
        assert total <= 20 + 400 * (instant - began)
    for limiter in fleet:
        line = limiter._line()
        assert limiter.stats().waiting == 0
        assert not line._queue
        assert not line._batch
        assert sum(lane.live for lane in line._lanes.values()) == 0


async def test_the_decorator_takes_it(client: Redis) -> None:
    limiter = RedisLimiter(client, "decorated", TokenBucket(1, 3))

    @throttle(limiter)
    async def double(x: int) -> int:
        return 2 * x

    assert [await double(x) for x in range(3)] == [0, 2, 4]
    assert not await limiter.allow()
    assert double.limiter is limiter


async def test_cancelling_and_coming_back_for_ever_keeps_nothing(client: Redis) -> None:
    limiter = RedisLimiter(client, "again", TokenBucket(0.01, 1))
    await limiter.acquire()
    for _ in range(300):
        task = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await settle()
    line = limiter._line()
    assert sum(len(lane.waiters) + len(lane.slots) for lane in line._lanes.values()) < 50
    assert await limiter.delay() <= 200


# -------------------------------------------------------------------- fewer trips


async def test_callers_of_one_process_share_a_trip(client: Redis, server: RedisServer) -> None:
    limiter = RedisLimiter(client, "together", TokenBucket(10_000, 1000))
    await limiter.available()
    before = server.script_calls()
    await asyncio.gather(*(limiter.acquire() for _ in range(500)))
    assert server.script_calls() - before == 1
    assert sum(await asyncio.gather(*(limiter.allow() for _ in range(600)))) >= 500
    assert server.script_calls() - before == 2


async def test_a_wait_costs_one_trip(client: Redis, server: RedisServer) -> None:
    limiter = RedisLimiter(client, "once", TokenBucket(20, 1))
    await limiter.acquire()
    before = server.script_calls()
    for _ in range(5):
        await limiter.acquire()
    assert server.script_calls() - before == 5


async def test_callers_with_different_costs_and_timeouts_share_a_trip(client: Redis) -> None:
    limiter, _ = at_own_time(client, TokenBucket(10, 10))
    calls = [
        limiter.acquire(4, timeout=0),
        limiter.allow(3),
        limiter.acquire(5, timeout=0),
        limiter.acquire(2, timeout=0),
        limiter.allow(2),
        limiter.allow(1),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[2], WaitTimeout)
    granted = [result is True or isinstance(result, float) for result in results]
    assert granted == [True, True, False, True, False, True]


# -------------------------------------------------------------------- field reports


def test_b074_keys_do_not_grow_with_past_clients(server: RedisServer) -> None:
    server.admin.flushall()

    async def one_shot() -> None:
        async with server.client() as client:
            await RedisLimiter(client, "clients", TokenBucket(10_000, 1000)).acquire()

    async def many() -> None:
        for _ in range(100):
            await asyncio.gather(*(one_shot() for _ in range(10)))

    asyncio.run(many())
    assert len(server.admin.keys("*")) == 1
    assert server.admin.strlen(server.admin.keys("*")[0]) <= 120


async def test_b075_script_flush_reloads_once_and_spends_once(
    client: Redis, server: RedisServer
) -> None:
    limiter, _ = at_own_time(client, SlidingWindowLog(10, 60))
    await limiter.acquire()
    server.admin.script_flush()
    calls = server.script_calls()
    await limiter.acquire()
    assert server.script_calls() - calls == 1
    assert await limiter.available() == 8


async def test_b076_a_key_without_a_time_to_live_heals_itself(
    client: Redis, server: RedisServer
) -> None:
    for template in FOUR:
        limiter, clock = at_own_time(client, template)
        await limiter.acquire(2)
        for key in server.admin.keys("*"):
            assert server.admin.pttl(key) > 0
            server.admin.persist(key)
        assert not await limiter.allow()
        assert all(server.admin.pttl(key) > 0 for key in server.admin.keys("*"))
        clock.advance(0.5)
        assert await limiter.allow()
        await limiter.pause(3600)
        assert all(server.admin.pttl(key) > 3_600_000 for key in server.admin.keys("*")[:1])
        await limiter.reset()


async def test_b077_calls_of_one_instant_are_all_counted(
    client: Redis, server: RedisServer
) -> None:
    fleet = [at_own_time(client, SlidingWindowLog(5, 60))[0] for _ in range(4)]
    answers = await asyncio.gather(*(limiter.allow() for limiter in fleet for _ in range(5)))
    assert sum(answers) == 5
    members = server.admin.zrange("throttle:{shared}:sliding_window_log:entries", 0, -1)
    assert int(members[-1]) == 5


def test_b078_a_client_clock_that_runs_ahead_changes_nothing(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.admin.flushall()
    ahead = [0.0]
    real_time, real_monotonic = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: real_time() + ahead[0])
    monkeypatch.setattr(time, "monotonic", lambda: real_monotonic() + ahead[0])

    async def ask(calls: int) -> tuple[list[bool], float]:
        async with server.client() as client:
            limiter = RedisLimiter(client, "skew", TokenBucket(10, 10))
            return [await limiter.allow() for _ in range(calls)], await limiter.delay()

    drained, _ = asyncio.run(ask(10))
    assert all(drained)
    waits = []
    for ahead[0] in (3.0, 0.0):
        allowed, wait = asyncio.run(ask(1))
        assert allowed == [False]
        waits.append(wait)
    assert abs(waits[0] - waits[1]) < 0.1


@pytest.mark.parametrize("template", FOUR, ids=repr)
def test_b079_every_key_is_declared_and_in_one_slot(server: RedisServer, template: Limiter) -> None:
    texts = script_for(template).text
    for call in re.findall(r"redis\.call\('[A-Z]+'(?:, *([\w\[\]]+(?:\(KEYS\))?))?", texts):
        assert call in ("", "KEYS[1]", "KEY", "key", "unpack(KEYS)"), call
    for key in ("plain", "a{b}c", "}", "{", "%", "{}x", "ü"):
        names = keys_for(template, key)
        slots = {tag(name) for name in names}
        assert len(slots) == 1
        assert slots.pop()
    assert len({keys_for(template, key)[0] for key in ("}", "%7D", "%", "%25")}) == 4


def tag(key: str) -> str:
    """What a cluster hashes of a key's name."""
    opened = key.index("{")
    closed = key.index("}", opened)
    return key[opened + 1 : closed]


async def test_b080_a_large_cost_is_one_entry(client: Redis, server: RedisServer) -> None:
    limiter, clock = at_own_time(client, SlidingWindowLog(20_000, 60))
    before = server.script_calls()
    assert await limiter.allow(10_000)
    assert server.script_calls() - before == 1
    assert await limiter.available() == 10_000
    assert server.admin.zcard("throttle:{shared}:sliding_window_log:entries") == 1
    for _ in range(40):
        clock.advance(0.1)
        assert await limiter.allow(250)
    assert not await limiter.allow(1)
    clock.advance(56)
    assert await limiter.allow(10_000)


# -------------------------------------------------------------------- loops, clocks, processes


def test_made_once_used_in_one_loop_after_another(server: RedisServer) -> None:
    server.admin.flushall()
    client = server.client()
    limiter = RedisLimiter(client, "loops", SlidingWindowLog(3, 60))

    async def take() -> bool:
        return await limiter.allow()

    assert [asyncio.run(take()) for _ in range(4)] == [True, True, True, False]
    assert limiter.stats()[:2] == (3, 1)


def test_under_uvloop_too(server: RedisServer) -> None:
    server.admin.flushall()

    async def wait() -> list[float]:
        async with server.client() as client:
            limiter = RedisLimiter(client, "uvloop", TokenBucket(20, 1))
            return list(await asyncio.gather(*(limiter.acquire() for _ in range(3))))

    for _ in range(2):
        assert max(uvloop.run(wait())) >= 0.05
    deadline = time.monotonic() + 5
    while len(clients := server.admin.client_list(_type="normal")) > 1:  # it takes its time to see
        assert time.monotonic() < deadline, clients
        time.sleep(0.01)


async def test_the_connection_can_be_closed_and_comes_back(
    client: Redis, server: RedisServer
) -> None:
    limiter = RedisLimiter(client, "close", TokenBucket(10, 5))
    assert await limiter.allow()
    await limiter.aclose()
    await limiter.aclose()
    assert await limiter.allow()


async def test_a_client_that_decodes_replies_works(server: RedisServer) -> None:
    async with server.client(decode_responses=True, protocol=3) as client:
        limiter = RedisLimiter(client, "decoded", SlidingWindowLog(2, 60))
        await limiter.reset()
        assert [await limiter.allow() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "ascii"])
async def test_a_client_that_encodes_otherwise_means_the_same_key(
    client: Redis, server: RedisServer, encoding: str
) -> None:
    async with server.client(encoding=encoding) as other:
        for key in ("plain", "日本{é}"):
            here = RedisLimiter(client, key, SlidingWindowLog(3, 60))
            there = RedisLimiter(other, key, SlidingWindowLog(3, 60))
            assert await here.allow()
            assert await there.allow(2)
            assert not await here.allow()


@pytest.mark.parametrize("template", FOUR, ids=repr)
@pytest.mark.parametrize("jump", [-60.0, 60.0, -3600.0, 3600.0])
async def test_a_jump_of_the_server_clock_costs_one_burst_and_never_stalls(
    client: Redis, template: Limiter, jump: float
) -> None:
    limiter, clock = at_own_time(client, template)
    per_second, burst = 10, 2
    allowed = 0
    for tick in range(400):
        clock.advance(0.01)
        if tick == 100:
            clock.advance(jump)
        if await limiter.allow():
            allowed += 1
    steady = 4 * per_second
    assert steady * 0.4 <= allowed <= steady + 3 * burst
    await limiter.reset()


async def test_who_waits_keeps_his_place_when_the_clock_leaps_or_the_state_is_lost(
    client: Redis, server: RedisServer
) -> None:
    """Newcomers go behind the sleepers, though the server has forgotten them."""
    for lose in ("leap", "flush"):
        limiter, clock = at_own_time(client, TokenBucket(2, 1))
        await limiter.acquire()
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(6)]
        await settle()
        if lose == "leap":
            clock.advance(3600)
        else:
            server.admin.flushall()
        last = asyncio.create_task(limiter.acquire())
        await settle()
        line = limiter._line()
        dues = sorted(slot.due for slot in line._slots)
        gaps = [b - a for a, b in pairwise(dues)]
        assert len(dues) == 7
        assert min(gaps) > 0.4
        for task in (last, *tasks):
            task.cancel()
        await asyncio.gather(last, *tasks, return_exceptions=True)
        await settle()
        await limiter.reset()


async def test_a_clock_that_runs_at_another_speed_is_no_lost_state(client: Redis) -> None:
    """After an hour of waiting the two clocks differ a little; nobody is charged for that."""
    limiter, clock = at_own_time(client, TokenBucket(1 / 3600, 1))
    await limiter.acquire()
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await settle()
    before = await limiter.delay()
    for slot in limiter._line()._slots:  # as if an hour had passed here ...
        slot.asked -= 3600
        slot.due -= 3600 - 0.5
    clock.advance(3600)  # ... and on the server
    with pytest.raises(WaitTimeout):
        await limiter.acquire(timeout=1)
    assert await limiter.delay() == pytest.approx(before - 3600, abs=1e-3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


WORKER = """
import asyncio, sys, time
sys.path[:0] = {path!r}
from redis.asyncio import Redis
from throttle import TokenBucket
from throttle.shared.redis import RedisLimiter

async def main():
    ahead = {ahead}
    if ahead:
        real = time.time
        time.time = lambda: real() + ahead
    async with Redis(port={port}) as client:
        limiter = RedisLimiter(client, "fleet", TokenBucket(200, 10))
        await limiter.available()
        print("ready", flush=True)
        sys.stdin.readline()
        end = time.monotonic() + {seconds}
        stamps = []
        async def work():
            while time.monotonic() < end:
                await limiter.acquire()
                stamps.append(time.monotonic())
        await asyncio.gather(*(work() for _ in range(16)))
        print(*(repr(stamp) for stamp in stamps))
asyncio.run(main())
"""


def worker(server: RedisServer, seconds: float, ahead: float = 0.0) -> subprocess.Popen[str]:
    code = WORKER.format(path=sys.path, port=server.port, seconds=seconds, ahead=ahead)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("ahead", [0.0, 2.0])
def test_four_processes_keep_one_limit(server: RedisServer, ahead: float) -> None:
    server.admin.flushall()
    seconds = 1.5
    fleet = [worker(server, seconds, ahead if number_ == 0 else 0.0) for number_ in range(4)]
    for process in fleet:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=30)[0] for process in fleet]
    shares = [len(output.split()) for output in outputs]
    stamps = sorted(float(word) for output in outputs for word in output.split())
    # Monotonic clocks of one machine agree. A wake-up may be late, so an interval may hold a few
    # more than the bucket gives out; never more than one burst.
    over = max(
        j - i + 1 - (10 + 200 * (stamps[j] - stamps[i]))
        for i in range(len(stamps))
        for j in range(i, min(i + 400, len(stamps)))
    )
    assert over <= 10
    assert min(shares) >= 0.5 * max(shares)
    assert sum(shares) >= 200 * seconds * 0.5


def test_a_process_killed_holding_slots_leaves_them_idle_no_longer_than_they_take(
    server: RedisServer,
) -> None:
    server.admin.flushall()
    process = worker(server, 30)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    async def wait() -> float:
        async with server.client() as client:
            return await RedisLimiter(client, "fleet", TokenBucket(200, 10)).acquire()

    assert asyncio.run(wait()) <= 17 / 200 + 0.5


def test_import_throttle_loads_no_redis() -> None:
    code = "import sys, throttle; sys.exit('redis' in sys.modules)"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_nothing_is_logged_while_all_is_well(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with server.client() as client:
            limiter = RedisLimiter(client, "quiet", TokenBucket(1000, 10))
            await asyncio.gather(*(limiter.acquire() for _ in range(20)))

    with caplog.at_level(logging.DEBUG, "throttle"):
        asyncio.run(work())
    assert caplog.records == []
