"""A state is written down and taken over: by another limiter, later, by another clock."""

from __future__ import annotations

import json
from math import inf

import anyio
import pytest
from helpers.callers import callers
from helpers.templates import EVERY, GAPS, MAKERS, SIZES, VERBS
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle import (
    FixedWindow,
    Limiter,
    SlidingWindowLog,
    TokenBucket,
)

CALLS = st.lists(st.tuples(GAPS, VERBS, SIZES), max_size=25)


def play(limiter: Limiter, calls: list[tuple[float, str, int]], now: float) -> float:
    for gap, verb, size in calls:
        now += gap
        if verb == "allow":
            limiter.allow(now, size)
        elif verb == "resume":
            limiter.resume()
        else:
            getattr(limiter, verb)(size, now)
    return now


def answers(limiter: Limiter, start: float) -> list[object]:
    """What can be seen of a limiter from `start` on, with instants told as delays."""
    seen: list[object] = []
    for step in range(12):
        now = start + step * 2.3
        seen += [round(limiter.delay(now, cost), 6) for cost in (1, 2, 4)]
        seen += [round(limiter.available(now), 6), limiter.allow(now, 1 + step % 3)]
    seen.append(round(limiter.fresh_at(start + 26) - start, 6))
    return seen


@EVERY
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, start=st.sampled_from([0.0, 1e6]), elsewhere=st.sampled_from([0.0, -5e3, 4e5]))
def test_the_copy_answers_as_the_original(make, calls, start, elsewhere) -> None:
    original, copy = make(), make()
    now = play(original, calls, start)
    copy.restore(json.loads(json.dumps(original.state(now), allow_nan=False)), elsewhere)
    # A few microseconds off any edge: rounding may move an instant by less than a nanosecond.
    assert answers(copy, elsewhere + 3.3e-6) == answers(original, now + 3.3e-6)


@EVERY
@settings(max_examples=30, deadline=None)
@given(calls=CALLS)
def test_writing_it_down_is_only_a_look(make, calls) -> None:
    looked, untouched = make(), make()
    now = play(looked, calls, 0.0)
    play(untouched, calls, 0.0)
    assert looked.state(now) == looked.state(now)
    assert answers(looked, now) == answers(untouched, now)


@EVERY
def test_the_state_of_a_new_limiter_restores_a_new_one(make) -> None:
    new, used = make(), make()
    used.charge(4, 0.0)
    used.restore(new.state(0.0), 0.0)
    assert answers(used, 1.0) == answers(new, 1.0)


def test_what_it_looks_like() -> None:
    bucket = TokenBucket(2, 10)
    bucket.allow(100.0, cost=4)
    bucket.pause(8, 101.0)
    assert bucket.state(101.5) == {
        "version": 1,
        "algorithm": "TokenBucket",
        "parameters": {"rate": 2, "capacity": 10},
        "numbers": [1.5, 4],
        "pause": 7.5,
    }
    log = SlidingWindowLog(3, 10)
    assert log.allow(0.0)
    assert log.allow(6.0, 2)
    assert log.state(7.0)["numbers"] == [7.0, 1, 1.0, 2]
    assert log.state(10.0)["numbers"] == [4.0, 2], "what has left the window is not written"
    assert (log & bucket).state(102.0)["numbers"] == [[0.0], [7.0, 2.0, 4]]


def test_time_that_passed_in_between_is_told_by_now() -> None:
    written = SlidingWindowLog(2, 60)
    assert written.allow(0.0, 2)
    copy = SlidingWindowLog(2, 60)
    copy.restore(written.state(10.0), now=1000.0 - 30)  # it is 30 s old, and this clock says 1000
    assert copy.delay(1000.0) == 20.0


def test_a_pause_is_taken_over_for_what_is_left_of_it_and_an_old_one_dropped() -> None:
    paused, copy = FixedWindow(5, 1), FixedWindow(5, 1)
    paused.pause(inf, 0.0)
    copy.restore(json.loads(json.dumps(paused.state(3.0), allow_nan=False)), 50.0)
    assert copy.delay(60.0) == inf
    copy.restore(FixedWindow(5, 1).state(0.0), 60.0)
    assert copy.delay(60.0) == 0


def test_it_does_not_need_the_same_spelling_of_the_parameters() -> None:
    copy = TokenBucket("120/minute", 3)
    copy.restore(TokenBucket(2, 3.0).state(0.0), 0.0)
    assert copy.available(0.0) == 3


GOOD = {
    "version": 1,
    "algorithm": "TokenBucket",
    "parameters": {"rate": 3, "capacity": 5},
    "numbers": [1.0, 2],
    "pause": None,
}
FOREIGN = {
    "not a dict": ([1, 2], TypeError),
    "nothing": (None, TypeError),
    "a key too few": ({k: v for k, v in GOOD.items() if k != "pause"}, ValueError),
    "a key too many": ({**GOOD, "more": 1}, ValueError),
    "a later version": ({**GOOD, "version": 2}, ValueError),
    "another algorithm": ({**GOOD, "algorithm": "LeakyBucket"}, ValueError),
    "another rate": ({**GOOD, "parameters": {"rate": 4, "capacity": 5}}, ValueError),
    "parameters of another form": ({**GOOD, "parameters": [3, 5]}, ValueError),
    "numbers that are none": ({**GOOD, "numbers": "12"}, TypeError),
    "too few": ({**GOOD, "numbers": [1.0]}, ValueError),
    "too many": ({**GOOD, "numbers": [1.0, 2, 3]}, ValueError),
    "a text": ({**GOOD, "numbers": [1.0, "2"]}, TypeError),
    "a bool": ({**GOOD, "numbers": [1.0, True]}, TypeError),
    "a null": ({**GOOD, "numbers": [None, 2]}, TypeError),
    "a row": ({**GOOD, "numbers": [1.0, [2]]}, TypeError),
    "not a number": ({**GOOD, "numbers": [float("nan"), 2]}, ValueError),
    "an age below 0": ({**GOOD, "numbers": [-1.0, 2]}, ValueError),
    "a count below 0": ({**GOOD, "numbers": [1.0, -2]}, ValueError),
    "an infinite count": ({**GOOD, "numbers": [1.0, "inf"]}, ValueError),
    "a count of no age": ({**GOOD, "numbers": ["inf", 2]}, ValueError),
    "a pause below 0": ({**GOOD, "pause": -1}, ValueError),
    "a pause of text": ({**GOOD, "pause": "long"}, TypeError),
}


@pytest.mark.parametrize(("state", "error"), FOREIGN.values(), ids=FOREIGN.keys())
def test_what_does_not_fit_is_refused_and_changes_nothing(state, error) -> None:
    bucket, untouched = TokenBucket(3, 5), TokenBucket(3, 5)
    for limiter in (bucket, untouched):
        assert limiter.allow(7.0, 4)
    with pytest.raises(error):
        bucket.restore(state, 8.0)
    assert answers(bucket, 7.1) == answers(untouched, 7.1)


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (MAKERS["log"], [5.0]),
        (MAKERS["log"], [1.0, 1, 2.0, 1]),
        (MAKERS["log"], [1.0, 1.5]),
        (MAKERS["log"], ["inf", 1]),
        (MAKERS["log"], [1.0, 0]),
        (MAKERS["counter"], [1.0, 2]),
        (MAKERS["counter"], ["inf", 0, 2]),
        (MAKERS["fixed"], [1.0, 2, 3]),
        (MAKERS["fixed"], ["inf", 9]),
        (MAKERS["leaky"], []),
        (MAKERS["all"], [[0.0, 1.0, 2]]),
        (MAKERS["all"], [1.0, 2.0]),
        (MAKERS["all"], [[0.0, 1.0, 2], []]),
        (MAKERS["all"], [[0.0, 1.0, 2], [-1.0]]),
        (MAKERS["all"], [[0.0, 1.0, 2], [0.0, 1.0]]),
    ],
)
def test_numbers_that_the_algorithm_cannot_mean(make, numbers) -> None:
    limiter, untouched = make(), make()
    for one in (limiter, untouched):
        assert one.allow(0.0, 3)
    with pytest.raises((ValueError, TypeError)):
        limiter.restore({**limiter.state(0.0), "numbers": numbers}, 1.0)
    assert answers(limiter, 0.5) == answers(untouched, 0.5)


def test_an_algorithm_of_ones_own_without_the_two_methods_says_so() -> None:
    class Own(Limiter):
        def _ready_at(self, now: float, cost: float) -> float:
            return now

        def _take(self, at: float, cost: float) -> None:
            pass

    with pytest.raises(NotImplementedError, match="Own cannot write its state down"):
        Own().state(0.0)


@pytest.mark.anyio
@pytest.mark.parametrize("composite", [False, True])
async def test_who_waits_is_timed_anew(composite: bool) -> None:
    def make() -> Limiter:
        log = SlidingWindowLog(1, 100)
        return log & TokenBucket(1, 1) if composite else log

    limiter, fresh, older = make(), make(), make()
    assert older.allow(70.0)
    async with callers() as crowd:
        for name in range(3):
            await crowd.join(name, limiter)
        await anyio.sleep(10)
        limiter.restore(older.state(100.0))  # its permit is 30 s old
        await anyio.sleep(50)
        limiter.restore(fresh.state(0.0))
    assert crowd.instants() == {0: 0, 1: 60, 2: 160}
