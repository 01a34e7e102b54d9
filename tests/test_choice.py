"""A bare rate means what it says: never more than N in any T."""

from __future__ import annotations

from math import inf

import pytest

from throttle import AllOf, Rate, SlidingWindowLog, TokenBucket, limiter_for


@pytest.mark.parametrize("rate", ["100/minute", Rate(100, 60), "100 per 60 s"])
def test_a_bare_rate_is_a_window(rate: str) -> None:
    limiter = limiter_for(rate)
    assert isinstance(limiter, SlidingWindowLog)
    assert (limiter.limit, limiter.window) == (100, 60)


def test_no_minute_holds_more_than_was_said() -> None:
    limiter, now, instants = limiter_for("100/minute"), 0.0, []
    while now < 180:
        if limiter.allow(now):
            instants.append(now)
        now += 0.25
    busiest = max(sum(s - 60 < t <= s for t in instants) for s in instants)
    assert busiest == 100  # a bucket lets 199 into the first minute


@pytest.mark.parametrize(
    ("rate", "limit", "window"),
    [(10, 10, 1), (0.5, 1, 2), (2.5, 1, 0.4), ("1/3s", 1, 3), ("1.5/minute", 1, 40), (1, 1, 1)],
)
def test_a_count_that_is_not_whole_becomes_one(rate: float, limit: int, window: float) -> None:
    limiter = limiter_for(rate)
    assert isinstance(limiter, SlidingWindowLog)
    assert (limiter.limit, limiter.window) == (limit, pytest.approx(window))


def test_a_burst_is_a_bucket() -> None:
    limiter = limiter_for("100/minute", burst=20)
    assert isinstance(limiter, TokenBucket)
    assert (limiter.rate, limiter.capacity) == (100 / 60, 20)


def test_a_burst_of_one_paces_evenly() -> None:
    limiter = limiter_for("10/s", burst=1)
    assert limiter.allow(0.0)
    assert not limiter.allow(0.05)
    assert limiter.ready_at(0.05) == 0.1


def test_no_limit() -> None:
    limiter = limiter_for(inf)
    assert all(limiter.allow(0.0, 10**9) for _ in range(3))


def test_several_all_hold() -> None:
    limiter = limiter_for(["2/s", "3/minute"])
    assert isinstance(limiter, AllOf)
    assert [limiter.allow(now) for now in (0, 0, 0, 1, 1, 60)] == [1, 1, 0, 1, 0, 1]
    assert limiter_for(("2/s",)).limit == 2  # type: ignore[attr-defined]


def test_options_reach_every_member() -> None:
    now = 5.0
    one, other = limiter_for(["1/s", "2/s"], burst=1, clock=lambda: now).members  # type: ignore[attr-defined]
    assert one.allow()
    assert one.fresh_at() == 6.0
    assert (one._now(), other._now()) == (5.0, 5.0)
    with pytest.raises(ValueError, match=r"^max_waiting must be at least 1, not 0"):
        limiter_for(1, max_waiting=0)


@pytest.mark.parametrize(
    ("rate", "error", "text"),
    [
        (0, ValueError, "rate must be above 0"),
        ("0/s", ValueError, "rate must be above 0"),
        (-1, ValueError, "rate must be at least 0, not -1"),
        ("fast", ValueError, "rate must look like .* not 'fast'"),
        ([], ValueError, "rate: at least one is needed"),
        (["1/s", "fast"], ValueError, "rate must look like .* not 'fast'"),
        (None, TypeError, "rate must be a number, not None"),
        (True, TypeError, "rate must be a number, not True"),
        (b"1/s", TypeError, "rate must be a number, not b'1/s'"),
    ],
)
def test_a_bad_rate_is_named(rate: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        limiter_for(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("burst", [0, -1, inf, "2", True])
def test_a_bad_burst_is_named(burst: float) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^burst must be"):
        limiter_for("1/s", burst=burst)
