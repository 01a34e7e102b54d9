"""Rates are read in every spelling that people use, and a bad one names itself."""

from __future__ import annotations

import pickle
from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttle import Rate, TokenBucket

GOOD = {
    10: (10, 1),
    0: (0, 1),
    0.5: (0.5, 1),
    inf: (inf, 1),
    Fraction(1, 4): (0.25, 1),
    Decimal("2.5"): (2.5, 1),
    "10": (10, 1),
    " 10 ": (10, 1),
    "0.5": (0.5, 1),
    ".5": (0.5, 1),
    "inf": (inf, 1),
    "INF/s": (inf, 1),
    "10/s": (10, 1),
    "10/sec": (10, 1),
    "10/second": (10, 1),
    "10/seconds": (10, 1),
    "10 / s": (10, 1),
    "10/S": (10, 1),
    "100/m": (100, 60),
    "100/min": (100, 60),
    "100/minute": (100, 60),
    "100/Minutes": (100, 60),
    "5000/h": (5000, 3600),
    "5000/hr": (5000, 3600),
    "5000 per hour": (5000, 3600),
    "5000 PER HOUR": (5000, 3600),
    "5,000/hour": (5000, 3600),
    "5_000/hour": (5000, 3600),
    "1e3/day": (1000, 86400),
    "1/d": (1, 86400),
    "7/week": (7, 604800),
    "7/w": (7, 604800),
    "1/3s": (1, 3),
    "1/3 s": (1, 3),
    "1 per 3 seconds": (1, 3),
    "1 every 3 minutes": (1, 180),
    "10 a second": (10, 1),
    "5 an hour": (5, 3600),
    "10 each second": (10, 1),
    "100/15min": (100, 900),
    "2/0.5s": (2, 0.5),
    "3/100ms": (3, 0.1),
    "1/millisecond": (1, 0.001),
    "1/msec": (1, 0.001),
    "0/s": (0, 1),
}


@pytest.mark.parametrize(("spelling", "meaning"), GOOD.items(), ids=map(repr, GOOD))
def test_good_spelling(spelling: str, meaning: tuple[float, float]) -> None:
    assert Rate.parse(spelling) == Rate(*meaning)


BAD_VALUES = [
    "",
    " ",
    "x",
    "ten/s",
    "-1/s",
    "+1/s",
    "nan",
    "nan/s",
    "10/",
    "/s",
    "10 s",
    "10 per",
    "10/s/s",
    "10//s",
    "10perminute",
    "1,00/day",
    "10/0s",
    "10/-1s",
    "1e999/s",
    "10/1e999s",
    "10/fortnight",
    "10/months",
    "10/ss",
    "١٠/s",
    -1,
    -inf,
    nan,
    10**400,
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=map("{!r:.20}".format, BAD_VALUES))
def test_bad_value_names_itself(value: str) -> None:
    with pytest.raises(ValueError, match=r"^speed .*") as caught:
        Rate.parse(value, name="speed")
    assert repr(value)[:30] in str(caught.value)


@pytest.mark.parametrize("value", [True, False, None, b"10/s", [10], (10, 60), 1j, object])
def test_bad_type_names_itself(value: object) -> None:
    with pytest.raises(TypeError, match=r"^speed must be a number, not ") as caught:
        Rate.parse(value, name="speed")  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("count", "per", "named"),
    [(-1, 1, "count"), (nan, 1, "count"), (1, 0, "per"), (1, -1, "per"), (1, inf, "per")],
)
def test_bad_numbers_name_themselves(count: float, per: float, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be"):
        Rate(count, per)


def test_a_unit_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown unit of time 'fortnight' in '1/fortnight'"):
        Rate.parse("1/fortnight")


def test_every_limiter_names_its_argument() -> None:
    with pytest.raises(ValueError, match=r"^rate must look like .*, not 'soon'"):
        TokenBucket("soon")


def test_a_rate_stays_what_it_is() -> None:
    rate = Rate(100, per=60)
    assert Rate.parse(rate) is rate
    assert rate == Rate(100, 60) == Rate.parse("100/minute")
    assert hash(rate) == hash(Rate(100, 60))
    assert pickle.loads(pickle.dumps(rate)) == rate
    assert (str(rate), str(Rate(10))) == ("100 per 60 s", "10/s")
    with pytest.raises(AttributeError):
        rate.count = 5  # type: ignore[misc]


def test_per_second() -> None:
    assert Rate.parse("1/3s").per_second * 3 == 1
    assert Rate.parse("3/100ms").per_second == 30
    assert Rate(1e308, 1e-300).per_second == inf


@given(st.integers(0, 10**9), st.sampled_from([(1, "s"), (60, "min"), (3600, "hours")]))
def test_what_is_written_is_read(count: int, unit: tuple[int, str]) -> None:
    seconds, name = unit
    assert Rate.parse(f"{count}/{name}") == Rate(count, seconds)
    assert Rate.parse(f"{count:,} per {name}") == Rate(count, seconds)
    assert Rate.parse(f"{count}/3{name}") == Rate(count, 3 * seconds)


@given(st.text(max_size=12))
def test_any_text_is_a_rate_or_an_error_that_names_it(text: str) -> None:
    complaint = repr(text)
    try:
        rate = Rate.parse(text)
    except ValueError as error:
        complaint = str(error)
    else:
        assert rate.count >= 0
        assert 0 < rate.per < inf
    assert repr(text) in complaint
