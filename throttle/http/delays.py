"""One value of a field, read as a delay in seconds.

A delay is written in seconds, in milliseconds, as a duration, as a date or as an epoch, and a name
does not tell which: the same `X-RateLimit-Reset` is an epoch at one site and seconds at another. A
`Form` says what is expected; "auto" decides by magnitude. The raw text never reaches `int()` or
`float()` before a pattern of ASCII digits has passed it, because those accept `1_000`, `nan`, a
sign, an exponent and the digits of every script. What is not understood is None, as if absent; a
delay past is 0; one beyond 2**31 is 2**31 (RFC 9111, 1.2.2). Pure; `now` is the server's clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from throttle.http.httpdate import parse_date, split_dates

__all__ = ["FORMS", "LONGEST", "Delay", "Form", "longest", "read_count", "read_delay", "read_json"]

Form = Literal[
    "retry-after", "auto", "delta", "ms-delta", "epoch", "ms-epoch", "duration", "date", "tail"
]
"""How a delay is written.

"retry-after" – seconds (a fraction is accepted) or a date; "auto" – a number by magnitude (below
1e9 seconds from now, below 1e11 an epoch in seconds, below 1e14 in ms, 1e17 in µs, 1e20 in ns), a
duration or a date; "delta" and "ms-delta" – from now; "epoch" and "ms-epoch" – an instant;
"duration" – Go's notation, "1h2m3.5s"; "date"; "tail" – an epoch after the last colon of a text.
"""

LONGEST = float(2**31)

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|μs|ms|[smhd]))+")
_DURATION_PART = re.compile(r"([0-9.]+)([a-zµμ]+)")
_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
# A count beyond this is not a quota anybody could use up: unknown, rather than a number to trust.
_LARGEST_COUNT = 1e18


class Delay(NamedTuple):
    """Seconds from now; `coarse` if made from an instant in whole seconds: maybe a second short."""

    seconds: float
    coarse: bool = False


def read_delay(text: str, now: float, form: Form) -> Delay | None:
    """One value as a delay, or None. `now` – the server's clock, epoch seconds."""
    if form == "tail":
        text = text.rpartition(":")[2].strip()
    if form != "date" and form != "duration" and _NUMBER.fullmatch(text):
        return FORMS[form](float(text), now)
    if (form == "auto" or form == "duration") and _DURATION.fullmatch(text):
        parts = _DURATION_PART.findall(text)
        return _ahead(sum(float(number) * _UNITS[unit] for number, unit in parts))
    if form == "auto" or form == "date" or form == "retry-after":
        instant = parse_date(text, now)
        if instant is not None:
            # Retry-After is a promise ("after this instant"), a reset is a rounded report.
            return _until(instant, now, coarse=form != "retry-after" and instant % 1 == 0)
    return None


def read_json(value: Any, now: float, form: Form) -> Delay | None:
    """The same for a JSON value: a number, or a string of the form."""
    if isinstance(value, str):
        return read_delay(value, now, form)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value < float("inf"):
        return None
    # An int beyond the range of a float is as good as any other that is too large.
    return FORMS[form](float(min(value, 10**300)), now)


def longest(values: Iterable[str], now: float, form: Form) -> Delay | None:
    """The longest of repeated lines and of comma-joined members; what is no delay is skipped."""
    best: Delay | None = None
    for value in values:
        for member in split_dates(value) if "," in value else (value,):
            delay = read_delay(member, now, form)
            if delay is not None and (best is None or delay.seconds > best.seconds):
                best = delay
    return best


def read_count(value: Any) -> int | None:
    """A quota: digits, or a JSON number; a fraction is cut off (half a request is none)."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return None
        value = float(value) if "." in value or len(value) > 18 else int(value)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < _LARGEST_COUNT else None


def _ahead(seconds: float) -> Delay:
    return Delay(min(seconds, LONGEST))


def _seconds(number: float, now: float) -> Delay:
    return _ahead(number)


def _until(instant: float, now: float, coarse: bool) -> Delay:
    return Delay(min(max(instant - now, 0.0), LONGEST), coarse)


def _by_magnitude(number: float, now: float) -> Delay | None:
    if number < 1e9:
        return _ahead(number)
    if number < 1e11:
        return _epoch(number, now)
    for scale in (1e3, 1e6, 1e9):
        if number < 1e11 * scale:
            return _until(number / scale, now, coarse=False)
    return None


def _epoch(number: float, now: float) -> Delay:
    return _until(number, now, coarse=number % 1 == 0)


def _late_epoch(number: float, now: float) -> Delay | None:
    # The number at the end of any error message could be anything; a small one is no instant.
    return _epoch(number, now) if number >= 1e9 else None


def _nothing(number: float, now: float) -> None:
    return None


FORMS: dict[Form, Callable[[float, float], Delay | None]] = {
    "retry-after": _seconds,
    "auto": _by_magnitude,
    "delta": _seconds,
    "ms-delta": lambda number, now: _ahead(number / 1e3),
    "epoch": _epoch,
    "ms-epoch": lambda number, now: _until(number / 1e3, now, coarse=False),
    "duration": _nothing,
    "date": _nothing,
    "tail": _late_epoch,
}
