"""When calls come in: patterns, and the times of an access log. Pure but for reading the file.

Every pattern answers instants in seconds from 0, in order. A log's instants count from its first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import isfinite

__all__ = ["PATTERNS", "burst", "bursts", "from_log", "poisson", "steady"]

#: The time in a line of the common or combined log format: [10/Oct/2000:13:55:36 -0700].
_STAMP = re.compile(
    r"\[(\d{1,2})/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d(?:\.\d+)?) ([+-]\d\d)(\d\d)\]",
    re.ASCII,
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_EPOCH = re.compile(r"\s*(\d+(?:\.\d+)?)(?=[\s,;]|$)")


def burst(count: int, rate: float, seed: int) -> list[float]:
    """All at once: the lab's `demo_burst`."""
    return [0.0] * count


def steady(count: int, rate: float, seed: int) -> list[float]:
    """One every 1/rate seconds: the lab's `demo_steady`."""
    return [number / rate for number in range(count)]


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Independent of each other, `rate` a second on average."""
    source = random.Random(seed)
    instants, now = [], 0.0
    for _ in range(count):
        now += source.expovariate(rate)
        instants.append(now)
    return instants


def bursts(count: int, rate: float, seed: int) -> list[float]:
    """Ten at once, again and again, `rate` a second on average."""
    return [(number // 10) * 10 / rate for number in range(count)]


PATTERNS = {"burst": burst, "steady": steady, "poisson": poisson, "bursts": bursts}


def from_log(lines: Iterable[str], name: str) -> list[float]:
    """The times in an access log (common or combined format), or in a first column of epochs.

    Lines without a time are passed over; a file without any is a ValueError naming it.
    """
    found = sorted(_times(lines))
    if not found:
        raise ValueError(f"{name!r} holds no times: neither an access log nor a column of epochs")
    return [instant - found[0] for instant in found]


def _times(lines: Iterable[str]) -> Iterator[float]:
    for line in lines:
        stamp = _STAMP.search(line)
        if stamp is not None:
            day, month, year, hour, minute, second, zone, rest = stamp.groups()
            try:
                date = datetime(int(year), _MONTHS.index(month) + 1, int(day), tzinfo=UTC)
            except ValueError:
                continue
            offset = int(f"{zone[0]}1") * (3600 * int(zone[1:]) + 60 * int(rest))
            since = 3600 * int(hour) + 60 * int(minute) + float(second)
            yield date.timestamp() + since - offset
        elif (epoch := _EPOCH.match(line)) is not None:
            instant = float(epoch[1])
            if isfinite(instant):
                # Epochs in milliseconds are as common as in seconds; no log is from the year 5000.
                yield instant / 1000 if instant > 1e11 else instant
