"""How fast to go on after a pause: pure, instants are arguments."""

from __future__ import annotations

from math import inf

import pytest

from throttle.http.recovery import Recovery

#: The share of a server's rate that is kept to.
CARE = 0.95


def served(recovery: Recovery, count: int, start: float, end: float) -> None:
    for number in range(count):
        recovery.served(start + (end - start) * number / max(count - 1, 1))


def test_what_the_server_told_counts_most_and_never_above_the_configured_rate() -> None:
    recovery = Recovery()
    served(recovery, 50, 0, 1)
    recovery.pause(1, 2, rate=50, window=1, told=20)
    assert (recovery.rate, recovery.until) == (20 * CARE, 4)
    recovery = Recovery()
    recovery.pause(1, 2, rate=50, window=1, told=200)
    assert recovery.rate == 50


@pytest.mark.parametrize(
    ("count", "took", "pause", "rate"),
    [(20, 0.01, 1, 20), (20, 0.4, 1, 20), (21, 1.05, 1, 20), (100, 30, 60, 100 / 60)],
)
def test_what_it_let_in_between_two_stops_is_its_rate(
    count: int, took: float, pause: float, rate: float
) -> None:
    recovery = Recovery()
    served(recovery, count, 0, took)
    recovery.pause(took, pause, rate=500, window=1)
    assert recovery.rate == pytest.approx(rate * CARE)


def test_a_few_answers_say_nothing_so_that_the_configured_rate_holds() -> None:
    recovery = Recovery()
    served(recovery, 4, 0, 0.1)
    recovery.pause(0.1, 30, rate=5, window=1)
    assert (recovery.rate, recovery.until) == (5, pytest.approx(31.1))


def test_an_idle_hour_is_no_part_of_a_stretch_of_work() -> None:
    recovery = Recovery()
    served(recovery, 10, 0, 1)
    served(recovery, 10, 3600, 3600.5)
    recovery.pause(3600.5, 1, rate=inf)
    assert recovery.rate == pytest.approx(10 * CARE)


@pytest.mark.parametrize(("pause", "rate"), [(0.5, 40), (4, 10), (3600, 4)])
def test_where_nothing_is_known_the_crowd_goes_within_as_long_as_the_pause(
    pause: float, rate: float
) -> None:
    recovery = Recovery()
    recovery.pause(0, pause, crowd=40)
    assert recovery.rate == rate


def test_a_longer_wait_of_the_same_wave_moves_the_end_and_not_the_rate() -> None:
    recovery = Recovery()
    served(recovery, 20, 0, 0.1)
    recovery.pause(0.1, 1, rate=50, window=1)
    recovery.pause(0.2, 3, rate=50, window=1)
    assert recovery.rate == 20 * CARE
    assert recovery.until == pytest.approx(0.2 + 3 + 1)


def test_the_pace_grows_while_somebody_waits_and_ends_at_the_configured_rate() -> None:
    recovery = Recovery()
    recovery.pause(0, 1, rate=50, window=1, told=20)
    rates = []
    while recovery.rate < inf:
        recovery.step(recovery.until, crowd=5)
        rates.append(recovery.rate)
    assert rates == [pytest.approx(30 * CARE), pytest.approx(45 * CARE), inf]
    assert recovery.until == inf
    recovery.pause(10, 1, rate=50, window=1, told=20)
    recovery.step(recovery.until, crowd=0)
    assert recovery.rate == inf


def test_a_rate_that_is_found_again_holds_for_longer() -> None:
    recovery = Recovery()
    now, spans = 0.0, []
    for _ in range(7):
        recovery.pause(now, 1, rate=50, window=1, told=20)
        spans.append(round(recovery.until - now - 1))
        now = recovery.until + 5
    assert spans == [1, 2, 4, 8, 16, 16, 16]
    recovery.pause(now, 1, rate=50, window=1, told=40)
    assert round(recovery.until - now - 1) == 1


@pytest.mark.parametrize("told", [100 / 86400, 1 / 86400, 1e-15, 0.3, 7, 45])
def test_growth_counts_in_the_middle_of_a_wait(told: float) -> None:
    recovery = Recovery()
    recovery.pause(10, 2, rate=50, window=1, told=told)
    now = 12.0
    rates = []
    while recovery.rate < inf:
        pace = recovery.pace(now)
        assert pace >= min(recovery.rate, 50)
        if pace > recovery.rate:  # else a permit is earned within the span
            # What growth earns in spans of 1 s, until the configured rate governs.
            ahead, earned = recovery.until - now, recovery.rate * (recovery.until - now)
            rate = recovery.rate * 1.5
            while earned < 1 - 1e-9 and rate < 50:
                step = min(1.0, (1 - earned) / rate)
                earned, ahead, rate = earned + rate * step, ahead + step, rate * 1.5
            assert 1 / pace == pytest.approx(ahead)
        now += 1 / pace
        rates.append(pace)
        if now >= recovery.until:
            recovery.step(now, crowd=3)
    assert now < 12 + 100  # 1.5 ** 100 is more than any quota may hold back
    assert rates == pytest.approx(sorted(rates))


def test_the_pace_during_a_pause_is_that_after_it_and_none_is_none() -> None:
    recovery = Recovery()
    assert recovery.pace(5) == inf
    recovery.pause(10, 2, rate=50, window=1, told=0.01)
    assert recovery.pace(10) == recovery.pace(11.5) == recovery.pace(12)
    recovery.pause(1e9, 2, rate=50, window=1e-9, told=0.01)  # a span that a float cannot tell
    assert recovery.pace(1e9) > 1


def test_spans_that_went_by_while_nobody_came_count() -> None:
    recovery = Recovery()
    recovery.pause(0, 1, rate=50, window=1, told=1)
    recovery.step(recovery.until + 2.5, crowd=1)
    assert recovery.rate == pytest.approx(CARE * 1.5**3)
    recovery.pause(100, 1, rate=inf, told=1e-9)
    recovery.step(1e300, crowd=1)
    assert recovery.rate > 1e100


def test_answers_from_before_the_pause_are_not_counted_after_it() -> None:
    recovery = Recovery()
    served(recovery, 20, 0, 0.1)
    recovery.pause(0.1, 1, rate=50, window=1)
    served(recovery, 30, 0.2, 0.3)
    served(recovery, 8, 1.2, 1.5)
    recovery.pause(1.6, 1, rate=50, window=1)
    assert recovery.rate == pytest.approx(8 * CARE)
