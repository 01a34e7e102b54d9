"""Own backoff: exponential, capped, with full jitter, whatever the number of the try."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttle.http.backoff import ceiling, full_jitter, stretched


def never() -> float:
    return 0.0


def almost_always() -> float:
    return 1.0 - 2.0**-53


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 0.5), (1, 1), (2, 2), (6, 32), (7, 60)])
def test_the_ceiling_doubles_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert ceiling(attempt, 0.5, 60) == seconds


@pytest.mark.parametrize("attempt", [1023, 1024, 5_000, 10**30])
@pytest.mark.parametrize("base", [1e-9, 0.5, 1e300])
def test_the_exponent_never_overflows(attempt: int, base: float) -> None:
    assert ceiling(attempt, base, 60) == 60


def test_a_base_of_zero_never_waits() -> None:
    assert ceiling(5_000, 0.0, 60) == 0
    assert full_jitter(3, 0.0, 60, almost_always) == 0


def test_full_jitter_spans_everything_from_the_minimum_to_the_ceiling() -> None:
    assert full_jitter(2, 0.5, 60, never) == 0
    assert full_jitter(2, 0.5, 60, almost_always) == pytest.approx(2)
    assert full_jitter(2, 0.5, 60, never, minimum=1) == 1
    assert full_jitter(0, 0.5, 60, almost_always, minimum=1) == 1, "the minimum goes before"


def test_the_same_seed_gives_the_same_delays() -> None:
    drawn = [[full_jitter(n, 0.5, 60, Random(7).random) for n in range(9)] for _ in range(2)]
    assert drawn[0] == drawn[1]


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.floats(0.001, 1e6), st.floats(0, 1e6))
def test_a_delay_is_within_its_bounds(
    attempt: int, base: float, cap: float, minimum: float
) -> None:
    for random in (never, almost_always):
        delay = full_jitter(attempt, base, cap, random, minimum=minimum)
        assert minimum <= delay <= max(ceiling(attempt, base, cap), minimum) * (1 + 1e-12)


@given(st.floats(0, 2**31), st.floats(0, 1), st.floats(0, 60))
def test_what_was_asked_is_only_added_to(asked: float, share: float, most: float) -> None:
    assert stretched(asked, share, most, never) == asked
    assert asked <= stretched(asked, share, most, almost_always) <= asked + most + 1e-6
