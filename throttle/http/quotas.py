"""A quota a server reports, and the notations that pack a whole one into a single value.

Most vendors spread a quota over several headers; a few put it into one (`32/40`, a JSON object, a
list of pairs). Each notation has a reader here, named by a row of the table in `dialects`. A reader
is pure, takes (value, now, dimension) and yields what it understood: nothing, if it is garbage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from throttle.http.delays import LONGEST, read_count, read_json

__all__ = ["Quota", "json_object", "key_values", "query_cost", "usages", "used_of_limit"]


class Quota(NamedTuple):
    """One quota as reported. None = not said.

    `limit`, `remaining` – counts of `unit`; `reset_after_s` – seconds until it is renewed;
    `window_s` – its length in seconds; `scope` – what it concerns, as "kind:name"; `policy` – its
    name; `dialect` – the row of the table it was read by. `coarse` – the reset was an instant in
    whole seconds, so the true one may be up to a second later. `fits_after_s` – seconds until the
    refused request itself would fit, where a server tells enough to know.
    """

    limit: int | None = None
    remaining: int | None = None
    reset_after_s: float | None = None
    window_s: float | None = None
    scope: str | None = None
    unit: str = "requests"
    policy: str | None = None
    dialect: str | None = None
    coarse: bool = False
    fits_after_s: float | None = None


_RATIO = re.compile(r"([0-9]{1,18})[ \t]*/[ \t]*([0-9]{1,18})", re.ASCII)
_USAGE = re.compile(r"([A-Za-z][\w-]*)=([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_PAIR = re.compile(r"([a-z]+)[ \t]*=[ \t]*([^;,\s]+)", re.ASCII | re.IGNORECASE)


def used_of_limit(value: str, now: float, dimension: str | None) -> Iterator[Quota]:
    """`32/40`: used of limit."""
    match = _RATIO.fullmatch(value)
    if match:
        used, limit = int(match[1]), int(match[2])
        yield Quota(limit, max(limit - used, 0))


def usages(value: str, now: float, dimension: str | None) -> Iterator[Quota]:
    """`api-usage=18/5000; per-app-api-usage=17/250(appName=x)`: used of limit, by name."""
    for name, used, limit in _USAGE.findall(value):
        left = max(int(limit) - int(used), 0)
        yield Quota(int(limit), left, scope=f"policy:{name}", policy=name)


def key_values(value: str, now: float, dimension: str | None) -> Iterator[Quota]:
    """`total=100; remaining=99; resets=41`, the policy being the dimension in the header's name."""
    pairs = {key.lower(): text for key, text in _PAIR.findall(value)}
    yield _named(pairs.get("total"), pairs, pairs.get("resets"), now, dimension)


def json_object(value: str, now: float, dimension: str | None) -> Iterator[Quota]:
    """`{"name": "API", "period": 10, "limit": 50, "remaining": 0, "until": "2016-01-01T…Z"}`."""
    try:
        pairs = json.loads(value)
    except (ValueError, RecursionError):
        return
    if isinstance(pairs, dict):
        name = pairs.get("name")
        policy = name if isinstance(name, str) else None
        quota = _named(pairs.get("limit"), pairs, pairs.get("until"), now, policy)
        period = read_json(pairs.get("period"), now, "delta")
        yield quota._replace(window_s=period.seconds if period else None)


def query_cost(value: Any, now: float, dimension: str | None) -> Iterator[Quota]:
    """The `cost` of a GraphQL answer: a bucket of points that is restored at a rate a second."""
    status = value.get("throttleStatus") if isinstance(value, dict) else None
    if not isinstance(status, dict):
        return
    limit = read_count(status.get("maximumAvailable"))
    left = read_count(status.get("currentlyAvailable"))
    rate = read_count(status.get("restoreRate"))
    if limit is None or left is None or not rate:
        return
    full = min(max(limit - left, 0) / rate, LONGEST)
    cost = read_count(value.get("requestedQueryCost"))
    fits = None if cost is None else min(max(cost - left, 0) / rate, LONGEST)
    yield Quota(limit, left, full, scope="unit:cost", unit="cost", fits_after_s=fits)


def _named(limit: Any, pairs: dict[str, Any], reset: Any, now: float, policy: str | None) -> Quota:
    delay = read_json(reset, now, "auto")
    return Quota(
        read_count(limit),
        read_count(pairs.get("remaining")),
        delay.seconds if delay else None,
        scope=f"policy:{policy}" if policy else None,
        policy=policy,
        coarse=bool(delay and delay.coarse),
    )
