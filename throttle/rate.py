"""A rate: so many permits per so many seconds.

People write rates in many ways: `10` (per second), `"100/minute"`, `"10/s"`, `"1/3s"`,
`"5000 per hour"`, `Rate(100, per=60)`. All of them become one `Rate`, which keeps both numbers:
a window limiter needs the count and the period, a bucket only their quotient.

>>> Rate.parse("100/minute")
Rate(count=100, per=60)
>>> Rate.parse("1/3s").per_second * 3
1.0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isfinite

from throttle.checks import non_negative, positive

__all__ = ["Rate", "RateLike"]

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "msec": 0.001,
    "s": 1, "sec": 1, "second": 1,
    "m": 60, "min": 60, "minute": 60,
    "h": 3600, "hr": 3600, "hour": 3600,
    "d": 86400, "day": 86400,
    "w": 604800, "week": 604800,
}  # fmt: skip
_PLURAL = re.compile(r"(?<=[a-z][a-rt-z])s$")  # of a word, not of "s" or "ms"
_NUMBER = r"\d+(?:[_,]\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+"
_SPELLING = re.compile(
    rf"\s*(?P<count>{_NUMBER}|inf)\s*"
    rf"(?:(?:/|\bper\b|\ban?\b|\beach\b|\bevery\b)\s*(?P<per>{_NUMBER})?\s*(?P<unit>[A-Za-z]+)\s*)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` permits per `per` seconds. `count` may be 0 (never) or inf (no limit).

    Wrong values raise ValueError or TypeError naming the argument and the value.
    """

    count: float
    per: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", non_negative("count", self.count, infinite=True))
        object.__setattr__(self, "per", positive("per", self.per))

    @property
    def per_second(self) -> float:
        """Permits per second."""
        return self.count / self.per

    @classmethod
    def parse(cls, value: RateLike, *, name: str = "rate") -> Rate:
        """Read any spelling of a rate; a number means permits per second.

        What does not parse is a ValueError (TypeError for a wrong type) with `name` and the value.
        """
        if isinstance(value, Rate):
            return value
        if not isinstance(value, str):
            return cls(non_negative(name, value, infinite=True))
        match = _SPELLING.fullmatch(value)
        if match is None:
            raise ValueError(f"{name} must look like 10, '10/s' or '100/minute', not {value!r}")
        unit = match["unit"]
        seconds: float = 1
        if unit is not None:
            known = _UNITS.get(unit.lower()) or _UNITS.get(_PLURAL.sub("", unit.lower()))
            if known is None:
                raise ValueError(f"{name} has an unknown unit of time {unit!r} in {value!r}")
            seconds = known
        count, times = _read(match["count"]), _read(match["per"] or "1")
        if not isfinite(times) or times <= 0 or (count == inf and match["count"].lower() != "inf"):
            raise ValueError(f"{name} is out of range: {value!r}")
        # 0.001 is not a float's number: dividing by 1000 rounds once, multiplying twice.
        return cls(count, times / 1000 if seconds == 0.001 else times * seconds)

    def __str__(self) -> str:
        return f"{self.count:g}/s" if self.per == 1 else f"{self.count:g} per {self.per:g} s"


RateLike = Rate | float | str


def _read(text: str) -> float:
    text = text.replace("_", "").replace(",", "")
    return int(text) if text.isdigit() else float(text)
