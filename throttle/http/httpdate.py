"""Dates in header fields, as instants of the wall clock.

HTTP has three forms of date (RFC 9110, 5.6.7) and servers send three more: RFC 3339, the text of a
JavaScript `Date`, and any of these written carelessly. What a date means is never guessed: a
missing zone is UTC, a known zone is applied, and an unknown zone, a trailing word or the 30th of
February is no date at all. `email.utils` is not used because it accepts all of those and drops the
offset of "GMT+0100". Pure: the only clock is `now`, for the century of a two-digit year.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from datetime import datetime

__all__ = ["parse_date", "split_dates"]

_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
# RFC 5322, 4.3: the only names of zones whose offset is agreed upon.
_ZONES = {"gmt": 0, "utc": 0, "ut": 0, "z": 0} | {
    f"{place}{kind}": hours
    for place, standard in {"e": -5, "c": -6, "m": -7, "p": -8}.items()
    for kind, hours in {"st": standard, "dt": standard + 1}.items()
}

_WEEKDAY = (
    r"(?:mon|tue|wed|thu|fri|sat|sun|"
    r"monday|tuesday|wednesday|thursday|friday|saturday|sunday)"
)
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?P<fraction>\.\d+)?)?"
_ZONE = r"[ \t]*(?P<zone>[a-z]{1,3})?(?P<offset>[+-]\d\d(?::?\d\d)?)?"
_MONTH = r"(?P<month>[a-z]{3})"
_DAY = r"(?P<day>\d\d?)"
_YEAR = r"(?P<year>\d{4}|\d\d)"
_ON = rf"(?:{_WEEKDAY}(?:[ \t]*,[ \t]*|[ \t]+))?"

_FORMS = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        # IMF-fixdate and RFC 850: Fri, 31 Dec 1999 23:59:59 GMT, Sunday, 06-Nov-94 08:49:37 GMT
        rf"{_ON}{_DAY}(?:[ \t]+|-){_MONTH}(?:[ \t]+|-){_YEAR}[ \t]+{_CLOCK}{_ZONE}",
        # asctime: Sun Nov  6 08:49:37 1994
        rf"{_ON}{_MONTH}[ \t]+{_DAY}[ \t]+{_CLOCK}[ \t]+{_YEAR}",
        # JavaScript: Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)
        rf"{_ON}{_MONTH}[ \t]+{_DAY}[ \t]+{_YEAR}[ \t]+{_CLOCK}{_ZONE}(?:[ \t]*\([^()]*\))?",
        # RFC 3339, and ISO 8601 as far as it is the same: 2026-03-26T16:00Z
        rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)(?:t|[ \t]+){_CLOCK}{_ZONE}",
    )
)
_LONGEST_DATE = 128
_ENDS_IN_WEEKDAY = re.compile(rf"[ \t]*{_WEEKDAY}[ \t]*", re.ASCII | re.IGNORECASE)


def parse_date(text: str, now: float) -> float | None:
    """The instant a date names, in epoch seconds, or None if it is no date.

    `text` – the field's value without surrounding whitespace; `now` – epoch seconds, needed for a
    two-digit year: the latest year with those digits that is not more than 50 years ahead.
    Raises nothing.
    """
    # The patterns allow runs of blanks, which must not become a way to burn time.
    if len(text) > _LONGEST_DATE:
        return None
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is not None:
            return _instant(match.groupdict(), now)
    return None


def split_dates(text: str) -> list[str]:
    """The members of a comma-separated list in which a member may be a date with a comma inside."""
    members: list[str] = []
    for part in text.split(","):
        if members and _ENDS_IN_WEEKDAY.fullmatch(members[-1]):
            members[-1] += "," + part
        else:
            members.append(part)
    return [member.strip(" \t") for member in members]


def _instant(part: dict[str, str | None], now: float) -> float | None:
    offset = _offset(part.get("zone"), part.get("offset"))
    month_text = part["month"] or ""
    month = _MONTHS.get(month_text.lower()) or (int(month_text) if month_text.isdigit() else 0)
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
    # 23:59:60 is legal (a leap second), in any zone; an epoch has no room for it.
    leap = second == 60 and minute == 59
    if offset is None:
        return None
    try:
        day, year = int(part["day"] or 0), int(part["year"] or 0)
        rest = (month, day, hour, minute, second - leap)
        if len(part["year"] or "") == 2:
            year = _full_year(year, rest, now)
        when = datetime(year, *rest)
    except (ValueError, OverflowError, OSError):
        return None
    return timegm(when.timetuple()) + leap - offset + float(part["fraction"] or 0)


def _offset(zone: str | None, numeric: str | None) -> float | None:
    hours = _ZONES.get((zone or "utc").lower())
    if numeric is None or hours is None:
        return None if hours is None else 3600.0 * hours
    # "GMT+0100" is an offset, "EST-0500" would be two.
    if hours != 0:
        return None
    hours, minutes = int(numeric[1:3]), int(numeric[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        return None
    return (60 * hours + minutes) * (-60.0 if numeric[0] == "-" else 60.0)


def _full_year(digits: int, rest: tuple[int, ...], now: float) -> int:
    today = time.gmtime(now)
    latest = today.tm_year + 50
    year = latest - (latest - digits) % 100
    return year - 100 if year == latest and rest > today[1:6] else year
