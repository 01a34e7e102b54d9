"""The laws that every algorithm keeps, over one table, on time that is passed in."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nextafter

import pytest
from helpers.subjects import (
    EARLY_STARTS,
    EVERY,
    NOT_COMPOSITE,
    STARTS,
    STORIES,
    Step,
    Subject,
    cost_of,
    keeps_its_promise,
    play,
    slip,
)
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
)

HOLDS = settings(max_examples=25, deadline=None)
SHARES = st.one_of(st.sampled_from([0, 0.5, 1]), st.floats(0, 1))


def alike(one: Limiter, other: Limiter, now: float, subject: Subject) -> None:
    """Nothing that a later decision could see tells the two apart, within the tolerance."""
    for share in (0, 0.5, 0.7, 1):
        cost = cost_of(subject, share)
        first, second = one.ready_at(now, cost), other.ready_at(now, cost)
        assert first == second or abs(Fraction(first) - Fraction(second)) <= 2 * slip(first)
    # As much as comes in within the tolerance, and the roundings of a sum of fractions.
    blur = 1e-9 + 4 * float(slip(now)) * subject.most / subject.span
    assert one.available(now) == pytest.approx(other.available(now), abs=blur)


# ------------------------------------------------------------------ 1, 9: what it is told, holds


@EVERY
@HOLDS
@given(story=STORIES, start=EARLY_STARTS, share=SHARES)
def test_1_tight(subject: Subject, story: list[Step], start: float, share: float) -> None:
    limiter, now, _ = play(subject, story, start)
    cost = cost_of(subject, share)
    ready = limiter.ready_at(now, cost)
    assert ready >= now
    if ready >= 1e6:  # a float cannot tell two nanoseconds any more
        return
    if ready > now:
        assert not limiter.allow(max(now, ready - 2e-9), cost) or ready - now < 2e-9
    assert limiter.allow(ready, cost)


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS, share=SHARES)
def test_9_one_wait_is_enough(
    subject: Subject, story: list[Step], start: float, share: float
) -> None:
    limiter, now, _ = play(subject, story, start)
    cost = cost_of(subject, share)
    wait = limiter.delay(now, cost)
    if limiter.allow(now, cost):
        assert wait == 0
    else:
        assert 0 < wait < inf
        assert limiter.allow(now + wait, cost)


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS)
def test_what_is_available_can_be_taken(subject: Subject, story: list[Step], start: float) -> None:
    limiter, now, _ = play(subject, story, start)
    level = limiter.available(now)
    assert 0 <= level <= subject.most
    assert limiter.allow(now, level)
    assert limiter.available(now) <= 1e-6
    assert not limiter.allow(now, 1)


# ------------------------------------------------------------------ 2: the bound


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS)
def test_2_no_interval_holds_more_than_promised(
    subject: Subject, story: list[Step], start: float
) -> None:
    limiter, _, grants = play(subject, story, start, debts=False)
    keeps_its_promise(limiter, grants)


@EVERY
@pytest.mark.parametrize("start", [0.0, 1e6, 1.7e9])
def test_2_a_greedy_caller_gets_no_more(subject: Subject, start: float) -> None:
    limiter, now, grants = subject.make(), start, []
    for index in range(1000):
        cost = cost_of(subject, (0, 0.3, 1, 0.123)[index % 4])
        now = limiter.ready_at(now, cost)
        assert limiter.allow(now, cost)
        grants.append((now, cost))
    keeps_its_promise(limiter, grants)


@pytest.mark.parametrize("start", [0.0, 1e6, 1.7e9])
@pytest.mark.parametrize("capacity", [1, 100])
def test_2_a_million_calls_do_not_drift(start: float, capacity: int) -> None:
    bucket, rate, calls = TokenBucket(7, capacity), 7, 1_000_000
    now = start
    # `allow` at each instant named, by the two methods it is made of: half the time it would take.
    for _ in range(calls):
        now = bucket._ready_at(now, 1)
        bucket._spend(now, 1)
    exact = Fraction(start) + Fraction(calls - capacity, rate)
    # Where floats are fine, one who comes each time it is just full moves the anchor a little.
    rounding = calls * Fraction(2) ** -34 if capacity == 1 and start < 2**20 else 0
    assert abs(Fraction(now) - exact) <= slip(now) + rounding


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
@pytest.mark.parametrize("start", [0.0, 1e6, 1.7e9])
def test_2_a_million_fractions_do_not_drift(kind: type[TokenBucket], start: float) -> None:
    bucket = kind(1000, 10)
    assert bucket.allow(start)
    bucket.refund(1, start)
    for _ in range(1_000_000):
        bucket._take(start, 0.1)
    exact = Fraction(start) + (1_000_000 * Fraction(0.1) + 1 - 10) / 1000
    assert abs(Fraction(bucket.ready_at(start, 1)) - exact) <= slip(start)


@pytest.mark.parametrize("start", [0.0, 1e6, 1.7e9])
def test_2_a_hundred_thousand_calls_keep_every_window(start: float) -> None:
    log, now, instants = SlidingWindowLog(7, 1), start, []
    for _ in range(100_000):
        now = log._ready_at(now, 1)
        log._spend(now, 1)
        instants.append(now)
    for early, late in zip(instants, instants[7:], strict=False):
        assert late - early >= 1 - float(slip(now))


# ------------------------------------------------------------------ 3: on the grid


@pytest.mark.parametrize("adding", [False, True], ids=["computed", "adding"])
@pytest.mark.parametrize("start", [0.0, 1e6])
@pytest.mark.parametrize("rate", [3, 7, 10, 1 / 3, 10 / 13, 0.1])
@pytest.mark.parametrize(
    "kind",
    [
        lambda rate: TokenBucket(rate, 1),
        lambda rate: LeakyBucket(rate, 1),
        lambda rate: TokenBucket(rate, 2),
        SlidingWindowLog.from_rate,
        lambda rate: SlidingWindowLog(1, 1 / rate),
    ],
    ids=["token", "leaky", "token-2", "log", "log-1"],
)
def test_3_on_the_grid_nobody_is_refused(
    kind: type[TokenBucket], rate: float, start: float, adding: bool
) -> None:
    limiter, now, step = kind(rate), start, 1 / rate
    for index in range(2000):
        assert limiter.allow(now if adding else start + index / rate), index
        now += step


# ------------------------------------------------------------------ 4: the split


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS, data=st.data())
def test_4_n_at_once_are_n_times_one(
    subject: Subject, story: list[Step], start: float, data: st.DataObject
) -> None:
    whole, now, _ = play(subject, story, start)
    split, _, _ = play(subject, story, start)
    count = data.draw(st.integers(1, int(subject.most)))
    fits = whole.allow(now, count)
    singles = [split.allow(now) for _ in range(count)]
    assert fits == all(singles)
    if fits:
        alike(whole, split, now, subject)


@EVERY
@pytest.mark.parametrize("part", [0.1, 0.3, 0.7, 1 / 3, 0.125])
def test_4_fractions_add_up(subject: Subject, part: float) -> None:
    if not subject.fractions:
        with pytest.raises(ValueError, match="cost must be a whole number, not"):
            subject.make().allow(0.0, part)
        return
    limiter = subject.make()
    parts = round(limiter.available(0.0) / part - 0.5 + 1e-9)
    assert [limiter.allow(0.0, part) for _ in range(parts)] == [True] * parts
    assert limiter.available(0.0) < part
    assert not limiter.allow(0.0, part)


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS)
def test_4_nothing_is_always_granted_and_stored_nowhere(
    subject: Subject, story: list[Step], start: float
) -> None:
    def ask_for_nothing(limiter: Limiter, now: float) -> None:
        assert limiter.allow(now, 0)
        assert limiter.ready_at(now, 0) == now
        assert limiter.delay(now, 0) == 0
        limiter.charge(0, now)
        limiter.refund(0, now)

    limiter, now, grants = play(subject, story, start, meddle=ask_for_nothing)
    untouched, _, same = play(subject, story, start)
    assert grants == same
    assert limiter.state(now) == untouched.state(now)
    limiter.pause(inf, now)
    assert limiter.allow(now, 0)


# ------------------------------------------------------------------ 5: looks and refusals


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS)
def test_5_looks_and_refusals_change_nothing(
    subject: Subject, story: list[Step], start: float
) -> None:
    def look(limiter: Limiter, now: float) -> None:
        for cost in (1, subject.most):
            limiter.ready_at(now, cost)
            limiter.delay(now, cost)
        limiter.available(now)
        limiter.fresh_at(now)
        limiter.state(now)
        limiter.stats()
        repr(limiter)
        assert not limiter.allow(now, subject.most * 8)
        if limiter.delay(now, subject.most):
            assert not limiter.allow(now, subject.most)

    limiter, now, grants = play(subject, story, start, meddle=look)
    untouched, _, same = play(subject, story, start)
    assert grants == same
    assert limiter.state(now) == untouched.state(now)
    assert limiter.ready_at(now, subject.most) == untouched.ready_at(now, subject.most)


# ------------------------------------------------------------------ 6: time going back


@EVERY
@HOLDS
@given(
    story=STORIES,
    start=STARTS,
    backs=st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)), max_size=12),
)
def test_6_a_small_step_back_earns_nothing_twice(
    subject: Subject, story: list[Step], start: float, backs: list[tuple[float, float]]
) -> None:
    limiter, now, grants = play(subject, story, start, debts=False)
    reached, span = now, min(subject.span, 1)  # the shortest memory of any member
    for ahead, back in backs:
        reached += ahead * span
        for instant in (reached, reached - back * span):
            level = limiter.available(instant)
            assert level <= limiter.available(reached)
            if limiter.allow(instant):
                grants.append((reached, 1))  # at the latest; earlier would be more
    keeps_its_promise(limiter, grants)


@NOT_COMPOSITE
@HOLDS
@given(story=STORIES, start=STARTS)
def test_6_a_large_step_back_is_another_clock(
    subject: Subject, story: list[Step], start: float
) -> None:
    limiter, _, grants = play(subject, story, start + 1e6, debts=False)
    if not grants:
        return
    last = grants[-1][0]
    there, _, _ = play(subject, story, start + 1e6, debts=False)
    here = last - 10_000 - 10 * subject.span
    assert limiter.available(here) == pytest.approx(there.available(last), abs=1e-4)
    assert limiter.delay(here) == pytest.approx(there.delay(last), abs=1e-5)
    assert limiter.delay(here, subject.most) <= 2 * subject.span + 1e-5
    wait = limiter.delay(here)
    assert limiter.allow(here + wait)


# ------------------------------------------------------------------ 7: idle


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS, then=STORIES)
def test_7_idle_long_enough_is_as_new(
    subject: Subject, story: list[Step], start: float, then: list[Step]
) -> None:
    limiter, now, _ = play(subject, story, start)
    fresh = limiter.fresh_at(now)
    assert now <= fresh < inf
    if fresh > now:
        assert limiter.fresh_at(fresh) == fresh
    new = subject.make()
    new.available(fresh - 2 * subject.span)  # those that start low are full by then
    later = nextafter(fresh, inf)
    older, end, old_grants = play(subject._replace(make=lambda: limiter), then, later)
    newer, _, new_grants = play(subject._replace(make=lambda: new), then, later)
    assert [cost for _, cost in old_grants] == [cost for _, cost in new_grants]
    alike(older, newer, end, subject)


@NOT_COMPOSITE
@HOLDS
@given(story=STORIES, start=EARLY_STARTS)
def test_7_it_is_not_as_new_any_earlier(subject: Subject, story: list[Step], start: float) -> None:
    limiter, now, _ = play(subject, story, start)
    fresh = limiter.fresh_at(now)
    if fresh > now + 2e-6:
        before = limiter.available(fresh - 1e-6)
        opened = isinstance(limiter, FixedWindow | SlidingWindowCounter)
        assert before < limiter.available(fresh) or opened
        assert limiter.fresh_at(fresh - 1e-6) == fresh


@pytest.mark.parametrize("rate", [1e-10, 1e-3, 1, 1e9])
@pytest.mark.parametrize("capacity", [1, 1e9])
@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket])
def test_7_extremes_of_a_bucket(kind: type[TokenBucket], rate: float, capacity: float) -> None:
    bucket = kind(rate, capacity)
    assert bucket.allow(0.0, capacity)
    assert not bucket.allow(0.0, capacity)
    wait = bucket.delay(0.0, capacity)
    assert wait == pytest.approx(capacity / rate)
    assert bucket.fresh_at(0.0) == wait
    idle = 400 * 86400.0
    level = bucket.available(idle)
    assert level == pytest.approx(min(capacity, rate * idle))
    assert bucket.allow(idle, level)
    assert bucket.delay(idle) == pytest.approx(1 / rate, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("window", [1e-9, 1e-3, 1, 1e10])
@pytest.mark.parametrize("limit", [1, 10**9])
@pytest.mark.parametrize("kind", [SlidingWindowLog, SlidingWindowCounter, FixedWindow])
def test_7_extremes_of_a_window(kind: type[FixedWindow], limit: int, window: float) -> None:
    limiter = kind(limit, window)
    assert limiter.allow(0.0, limit)
    assert not limiter.allow(0.0)
    wait = limiter.delay(0.0)
    assert window <= wait <= 2 * window
    for later in (wait, 400 * 86400.0):
        if later >= wait:
            assert limiter.allow(later)


# ------------------------------------------------------------------ 8: charge, refund, all of


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS, share=SHARES, times=st.integers(1, 4))
def test_8_charge_then_refund_is_the_identity(
    subject: Subject, story: list[Step], start: float, share: float, times: int
) -> None:
    limiter, now, _ = play(subject, story, start)
    untouched, _, _ = play(subject, story, start)
    cost = cost_of(subject, share)
    for _ in range(times):
        limiter.charge(cost, now)
    for _ in range(times):
        limiter.refund(cost, now)
    alike(limiter, untouched, now, subject)


@EVERY
@HOLDS
@given(story=STORIES, start=STARTS, share=SHARES)
def test_8_a_refund_never_fills_above_full(
    subject: Subject, story: list[Step], start: float, share: float
) -> None:
    limiter, now, _ = play(subject, story, start)
    limiter.refund(cost_of(subject, share) * 3, now)
    level = limiter.available(now)
    assert level <= subject.most
    grants = 0
    while limiter.allow(now):
        grants += 1
    assert grants <= subject.most


@EVERY
def test_8_a_debt_however_large_lets_nobody_through(subject: Subject) -> None:
    limiter, untouched = subject.make(), subject.make()
    for cost in (2**50 + 1, 2**53, 10**300):
        with pytest.raises(ValueError, match="cost must be at most"):
            limiter.charge(cost, 0.0)
    alike(limiter, untouched, 0.0, subject)
    for _ in range(4):
        limiter.charge(2**50, 0.0)
    assert not limiter.allow(0.0)
    # Where a debt lapses with its window, the limit is kept afterwards too.
    later = 3 * subject.span + 3
    assert sum(limiter.allow(later) for _ in range(100)) <= max(1, subject.most)


@HOLDS
@given(story=STORIES, start=STARTS)
def test_8_all_of_is_its_strictest_member(story: list[Step], start: float) -> None:
    def members() -> tuple[Limiter, Limiter, Limiter]:
        return TokenBucket(3, 5), SlidingWindowLog(9, 4), FixedWindow(7, 2)

    alone = members()
    both = AllOf(*members())
    now = start
    for _, gap, share in story:
        now += gap
        cost = max(1, round(share * 5))
        assert both.ready_at(now, cost) == max(one.ready_at(now, cost) for one in alone)
        assert both.available(now) == min(one.available(now) // 1 for one in alone) or (
            both.available(now) == min(one.available(now) for one in alone)
        )
        fits = all(one.delay(now, cost) == 0 for one in alone)
        assert both.allow(now, cost) == fits
        if fits:
            assert all(one.allow(now, cost) for one in alone)
