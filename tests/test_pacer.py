"""How long a host is left alone: the pace, and the limiter that keeps it."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nextafter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttle import CostTooLarge, clock
from throttle.http.pace import Pace
from throttle.http.pacer import Pacer

ANSWERS = st.tuples(
    st.sampled_from([200, 204, 301, 304, 404, 429, 500, 503]),
    st.floats(0, 100),
    st.floats(0, 5000),
)


# -------------------------------------------------------------------- the pace


def test_the_slowest_of_all_that_apply() -> None:
    pace = Pace(5, most=60)
    assert pace.delay == 5
    pace.ask("a", 0.2)
    assert pace.delay == 5
    pace.ask("a", 10)
    assert pace.delay == 10
    pace.answered(200, 30, False, now=0)
    assert pace.delay == 30
    pace.ask("a", 100)
    assert pace.delay == 100


def test_sites_that_share_a_pace_do_not_undo_each_other() -> None:
    pace = Pace(1, most=60)
    pace.ask("a", 10)
    pace.ask("b", 0)
    assert pace.delay == 10
    pace.ask("b", 20)
    pace.ask("a", 10)
    assert pace.delay == 20
    pace.ask("b", 3)
    assert pace.delay == 3
    pace.ask("a", 10)  # asks anew before each request
    assert pace.delay == 10


def test_slow_answers_are_given_time_and_quick_ones_take_it_back_by_halves() -> None:
    pace = Pace(1, most=60)
    delays = []
    for number, seconds in enumerate([8, 8, 2, 2, 0.1, 0.1, 0.1, 0.1]):
        pace.answered(200, seconds, False, now=number)
        delays.append(pace.delay)
    assert delays[:4] == [8, 8, 5, 3.5]
    assert delays[4:] == sorted(delays[4:], reverse=True)
    assert delays[-1] == 1


def test_a_refusal_doubles_the_delay_up_to_the_most() -> None:
    pace = Pace(1, most=60)
    now, delays = 0.0, []
    for _ in range(8):
        pace.answered(429, 0.01, True, now)
        delays.append(pace.delay)
        now += pace.delay
    assert delays == [2, 4, 8, 16, 32, 60, 60, 60]


def test_refusals_of_one_moment_are_one_refusal() -> None:
    pace = Pace(4, most=60)
    for _ in range(5):
        pace.answered(429, 0.01, True, now=10.0)
    assert pace.delay == 8


def test_a_refusal_counts_from_what_robots_txt_asks() -> None:
    pace = Pace(1, most=60)
    pace.ask("a", 10)
    pace.answered(503, 0.01, True, now=0)
    assert pace.delay == 20


def test_no_delay_at_all_is_raised_to_a_second() -> None:
    pace = Pace(0, most=60)
    pace.answered(200, 0.0, False, now=0)
    assert pace.delay == 0
    pace.answered(429, 0.0, True, now=1)
    assert pace.delay == 1


def test_what_was_learned_is_forgotten_in_an_hour_of_silence() -> None:
    pace = Pace(1, most=60)
    pace.answered(429, 0.1, True, now=0)
    assert pace.until == 3600
    pace.answered(404, 0.1, False, now=3599)
    assert pace.delay == 2
    pace.answered(404, 0.1, False, now=3599 + 3601)
    assert pace.delay == 1
    assert pace.until == -inf


def test_who_does_not_adapt_learns_nothing() -> None:
    pace = Pace(1, most=60, adapts=False)
    pace.answered(429, 100, True, now=0)
    assert (pace.delay, pace.until) == (1, -inf)


@given(st.floats(0, 20), st.lists(ANSWERS, max_size=20))
def test_only_a_success_lowers_and_nothing_goes_below_what_was_configured(
    configured: float, answers: list[tuple[int, float, float]]
) -> None:
    pace = Pace(configured, most=60)
    now = 0.0
    for status, seconds, later in answers:
        now += later
        before, forgotten = pace.delay, now >= pace.until
        pace.answered(status, seconds, status in (429, 503), now)
        assert configured <= pace.delay <= max(60, configured)
        if not 200 <= status < 300 and not forgotten:
            assert pace.delay >= before


# -------------------------------------------------------------------- the limiter


def taken(pacer: Pacer, count: int) -> list[float]:
    """The instants at which one goes who always goes as soon as it may."""
    instants, now = [], 0.0
    for _ in range(count):
        now = pacer.ready_at(now)
        assert pacer.allow(now)
        instants.append(now)
    return instants


@given(st.floats(0.001, 1e5), st.floats(0, 3), st.integers(0, 2**64 - 1))
def test_a_gap_is_never_shorter_than_the_delay(delay: float, jitter: float, seed: int) -> None:
    pacer = Pacer(Pace(delay, most=60), jitter=jitter, seed=seed)
    for earlier, later in pairwise(taken(pacer, 30)):
        assert delay * (1 - 1e-9) <= later - earlier <= delay * (1 + jitter) * (1 + 1e-9)


def test_gaps_are_spread_over_the_whole_range() -> None:
    instants = taken(Pacer(Pace(10, most=60), jitter=0.5, seed=3), 2000)
    gaps = sorted(later - earlier for earlier, later in pairwise(instants))
    assert 10 <= gaps[0] < 10.05
    assert 14.95 < gaps[-1] < 15
    assert abs(sum(gaps) / len(gaps) - 12.5) < 0.1


def test_two_pacers_do_not_keep_step() -> None:
    one, two = (taken(Pacer(Pace(10, most=60)), 5) for _ in range(2))
    assert one != two


def test_refused_until_the_very_instant_it_names_and_looking_changes_nothing() -> None:
    pacer = Pacer(Pace(7, most=60), seed=1)
    for start in (0.0, 1e6):
        pacer.allow(start)
        ready = pacer.ready_at(start)
        assert [pacer.ready_at(start) for _ in range(5)] == [ready] * 5
        assert not pacer.allow(nextafter(ready, 0) - 2e-9)
        assert pacer.available(start) == 0
        assert pacer.available(ready) == 1
        assert pacer.ready_at(start) == ready
        assert pacer.allow(ready)


def test_a_delay_that_is_learned_during_the_rest_counts_at_once() -> None:
    pacer = Pacer(Pace(1, most=60), jitter=0, clock=lambda: 0.5)
    assert pacer.allow(0.0)
    pacer.pace.ask("a", 10)
    pacer.update()
    assert pacer.ready_at(0.9) == 10
    pacer.pace.ask("a", 0)
    pacer.update()
    assert pacer.ready_at(0.9) == 1


@pytest.mark.anyio
async def test_a_line_moves_as_it_was_foretold() -> None:
    pacer = Pacer(Pace(10, most=60), seed=8)
    went, foretold = [], []

    async def one() -> None:
        await pacer.acquire()
        went.append(clock.now())

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            foretold.append(pacer.ready_at())
            tasks.start_soon(one)
            await anyio.sleep(0.01)
    assert went[1:] == pytest.approx(foretold[1:], abs=1e-6)


@pytest.mark.anyio
async def test_who_waits_is_timed_anew_when_the_delay_grows() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0)
    await pacer.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.acquire)
        await anyio.sleep(5)
        pacer.pace.ask("a", 30)
        pacer.update()
    assert clock.now() == 30


@pytest.mark.anyio
async def test_cancelled_in_line_it_takes_nothing() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0)
    await pacer.acquire()
    with anyio.move_on_after(5):
        await pacer.acquire()
    await pacer.acquire()
    assert clock.now() == 10


def test_a_permit_that_comes_back_leaves_no_rest() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0)
    pacer.allow(0.0)
    pacer.allow(10.0)
    pacer.refund(1, now=10.0)
    assert pacer.ready_at(10.0) == 10


def test_charging_without_asking_makes_a_debt() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0)
    for _ in range(3):
        pacer.charge(1, now=0.0)
    assert pacer.ready_at(0.0) == 30


def test_a_clock_that_goes_back_earns_nothing() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0)
    pacer.allow(1000.0)
    assert not pacer.allow(995.0)
    assert pacer.ready_at(1000.0) == 1010
    assert pacer.ready_at(5.0) == 15  # another clock: the rest is still due


def test_when_it_may_be_forgotten() -> None:
    pacer = Pacer(Pace(10, most=60), jitter=0, clock=lambda: 0.5)
    assert pacer.fresh_at(0.0) == 0
    pacer.allow(0.0)
    assert pacer.fresh_at(0.0) == 10
    pacer.pace.answered(429, 0.1, True, now=0.0)
    pacer.update()
    assert pacer.fresh_at(0.0) == 3600
    pacer.reset()
    assert pacer.allow(0.0)


def test_costs_above_one_never_fit() -> None:
    pacer = Pacer(Pace(10, most=60))
    assert not pacer.allow(0.0, cost=2)
    with pytest.raises(CostTooLarge):
        pacer.acquire_sync(2)


def test_no_delay_never_holds_back() -> None:
    pacer = Pacer(Pace(0, most=60))
    assert [pacer.allow(0.0) for _ in range(5)] == [True] * 5
    assert pacer.rate == inf


def test_a_wrong_jitter_is_named() -> None:
    with pytest.raises(ValueError, match="jitter must be at least 0, not -1"):
        Pacer(Pace(1, most=60), jitter=-1)
