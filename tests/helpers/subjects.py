"""Every algorithm once, with what it promises, and stories of calls to put it through.

A new algorithm joins all the laws by one line in SUBJECTS.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, inf, ulp
from typing import Any, NamedTuple

import pytest
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

Grant = tuple[float, float]  # instant, cost


def slip(instant: float) -> Fraction:
    """The tolerance of all laws: half a nanosecond, or two ulp where a float is coarser."""
    return Fraction(max(0.5e-9, 2 * ulp(instant)))


# ------------------------------------------------------------------ what each kind promises


def holds_a_bucket(limiter: Any, grants: list[Grant]) -> None:
    """In no interval of t seconds more than capacity + rate * t."""
    rate, capacity = Fraction(limiter.rate), Fraction(limiter.capacity)
    lowest = spent = Fraction(0)  # what an interval that starts here has to its credit
    for index, (at, cost) in enumerate(grants):
        before = spent - rate * Fraction(at)
        lowest = before if index == 0 else min(lowest, before)
        spent += Fraction(cost)
        excess = spent - rate * Fraction(at) - lowest - capacity
        # Where floats are fine, a caller who adds up 1/rate is forgiven his own roundings (law 3).
        rounding = index * Fraction(ulp(at)) / 2 if at < 2**20 else 0
        assert excess <= rate * (slip(at) + rounding) + spent / 2**50


def holds_every_window(limiter: Any, grants: list[Grant]) -> None:
    """In no window (now - window, now] more than the limit."""
    first, inside = 0, 0.0
    for at, cost in grants:
        inside += cost
        while Fraction(grants[first][0]) + Fraction(limiter.window) <= Fraction(at) + slip(at):
            inside -= grants[first][1]
            first += 1
        assert inside <= limiter.limit


def holds_fixed_windows(limiter: Any, grants: list[Grant]) -> None:
    """Windows that open at the first call after the last one, each with at most the limit."""
    opened, spent = -inf, 0.0
    for at, cost in grants:
        if opened + limiter.window <= at + float(slip(at)):
            # A call within the tolerance before the edge belongs to the window that opens there.
            opened, spent = max(at, opened + limiter.window), 0.0
        spent += cost
        assert spent <= limiter.limit * (1 + 1e-12)


def holds_the_estimate(limiter: Any, grants: list[Grant]) -> None:
    """previous * (its share still in sight) + current is at most the limit, after each grant."""
    window, origin, counts = limiter.window, 0.0, dict[int, float]()
    for at, cost in grants:
        index = floor((at - origin) / window)
        if at < origin + index * window:
            index -= 1
        elif at >= origin + (index + 1) * window:
            index += 1
        if not any(number >= index - 1 for number in counts):  # idle: windows count from here
            origin, index, counts = at, 0, {}
        passed = (Fraction(at) + slip(at) - Fraction(origin)) / Fraction(window)
        share = 1 - (passed - index)
        counts[index] = counts.get(index, 0) + cost
        load = Fraction(counts.get(index - 1, 0)) * min(1, max(0, share)) + Fraction(counts[index])
        assert load <= Fraction(limiter.limit) * (1 + Fraction(1, 10**12))


PROMISES: dict[type[Limiter], Callable[[Any, list[Grant]], None]] = {
    TokenBucket: holds_a_bucket,
    LeakyBucket: holds_a_bucket,
    SlidingWindowLog: holds_every_window,
    SlidingWindowCounter: holds_the_estimate,
    FixedWindow: holds_fixed_windows,
}


def keeps_its_promise(limiter: Limiter, grants: list[Grant]) -> None:
    if isinstance(limiter, AllOf):
        for member in limiter.members:
            keeps_its_promise(member, grants)
    else:
        PROMISES[type(limiter)](limiter, grants)


# ------------------------------------------------------------------ the table


class Subject(NamedTuple):
    make: Callable[[], Limiter]
    span: float  # seconds that a full limit takes
    most: float = 5  # the largest cost that fits
    fractions: bool = True  # whether it takes costs that are not whole


SUBJECTS = {
    "token": Subject(lambda: TokenBucket(3, 5), 5 / 3),
    "token-1": Subject(lambda: TokenBucket(10 / 13, 1), 1.3, most=1),
    "token-slow": Subject(lambda: TokenBucket("5/hour"), 3600),
    "token-started-low": Subject(lambda: TokenBucket(7, 5, initial=1), 5 / 7),
    "leaky": Subject(lambda: LeakyBucket("10/s", 5), 0.5),
    "log": Subject(lambda: SlidingWindowLog(5, 1), 1, fractions=False),
    "log-1": Subject(lambda: SlidingWindowLog(1, 0.1), 0.1, most=1, fractions=False),
    "log-long": Subject(lambda: SlidingWindowLog(40, 60), 60, most=40, fractions=False),
    "counter": Subject(lambda: SlidingWindowCounter(5, 1), 1),
    "counter-long": Subject(lambda: SlidingWindowCounter(5, 60), 60),
    "fixed": Subject(lambda: FixedWindow(5, 1), 1),
    "fixed-3": Subject(lambda: FixedWindow(3, 0.7), 0.7, most=3),
    "all": Subject(lambda: TokenBucket(3, 5) & SlidingWindowLog(9, 4), 4, fractions=False),
    "all-nested": Subject(
        lambda: AllOf(FixedWindow(5, 1), TokenBucket(7, 6) & SlidingWindowCounter(20, 5)), 5
    ),
}
EVERY = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
NOT_COMPOSITE = pytest.mark.parametrize(
    "subject",
    [subject for name, subject in SUBJECTS.items() if not name.startswith("all")],
    ids=[name for name in SUBJECTS if not name.startswith("all")],
)


# ------------------------------------------------------------------ stories


class Step(NamedTuple):
    verb: str  # allow | ready (go to the instant named, then allow) | charge | refund
    gap: float  # what passes before it, in parts of the subject's span
    share: float  # its cost, as a share of the largest that fits


STEPS = st.builds(
    Step,
    st.sampled_from(["allow", "allow", "allow", "ready", "ready", "charge", "refund"]),
    st.one_of(st.sampled_from([0, 0, 0, 1e-9, 0.1, 0.2, 1 / 3, 1, 2]), st.floats(0, 2.5)),
    st.one_of(st.sampled_from([0, 0, 0.2, 0.5, 1]), st.floats(0, 1)),
)
STORIES = st.lists(STEPS, max_size=25)
STARTS = st.sampled_from([0.0, 1e6 / 3, 1.7e9 + 0.1])
EARLY_STARTS = st.sampled_from([0.0, 0.1, 1000.0, 1e6 / 3])


def cost_of(subject: Subject, share: float) -> float:
    """Whole from 1 on for most shares; where the class takes them, fractions for the odd ones."""
    exact = share * subject.most
    if subject.fractions and share not in (0, 0.5, 1):
        return max(exact, 1e-3)
    return max(1, ceil(exact))


def play(
    subject: Subject,
    story: list[Step],
    start: float,
    *,
    meddle: Callable[[Limiter, float], object] | None = None,
    debts: bool = True,
) -> tuple[Limiter, float, list[Grant]]:
    """Tell a story to a new limiter: itself, the instant at the end, and what it granted."""
    limiter, now, grants = subject.make(), start, []
    for verb, gap, share in story:
        cost = cost_of(subject, share)
        now += gap * subject.span
        if meddle is not None:
            meddle(limiter, now)
        if verb in ("charge", "refund"):
            if debts:
                getattr(limiter, verb)(cost, now)
            continue
        if verb == "ready":
            now = limiter.ready_at(now, cost)
            assert now < inf
        if limiter.allow(now, cost):
            grants.append((now, cost))
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(grants))
    return limiter, now, grants
