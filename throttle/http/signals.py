"""What a response says about limits: one pure function, `read_signal`, and its answer, `Signal`.

Headers are looked up in the table of `dialects`, gathered into quotas, and weighed by fixed rules
(docs/signals.md): which quota binds, whether the answer is a refusal, how long to hold the next
request. Time is what the server says it is: an absolute instant is measured from the response's own
`Date`, never from a local clock that may be wrong, and leaves this module as a delay.

Invariant: whatever a server sends, nothing is raised and every number is finite and at least 0.
Garbage is as if absent; it neither stops a request nor spoils the fields beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict

from throttle.http.delays import FORMS, Delay, Form, longest, read_count, read_delay, read_json
from throttle.http.dialects import DIALECTS, Dialect, Field, Index, Sign
from throttle.http.quotas import Quota
from throttle.http.structured import announced, policy_window, read_policies, read_ratelimit

__all__ = ["Headers", "Overrides", "Signal", "header_pairs", "read_signal"]

Headers = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)
"""Header fields: pairs, or a multidict or mapping whose `items()` keep what is repeated."""


class Overrides(TypedDict, total=False):
    """What a user knows better about one host.

    `reset` – how its resets are written (a `Form`), where the magnitude would deceive: a site that
    sends milliseconds from now needs "ms-delta". `dialects` – rows of the user's own; they come
    before the built-in ones.
    """

    reset: Form
    dialects: Sequence[Dialect]


@dataclass(frozen=True, slots=True)
class Signal:
    """What one response says. Seconds count from its receipt; None = not said, or not understood.

    `throttled` – the caller was refused or must slow down. `retry_after_s` – the wait the server
    asked for. `limit`, `remaining`, `reset_after_s`, `window_s`, `unit`, `policy` – of the binding
    quota: of those used up the one with the latest reset, else the one with the least left in
    proportion, else the first. Only a quota whose `unit` is "requests" may feed a request limiter.
    `scope` – whom it concerns, as far as the message tells ("request" = this one operation only,
    "global", "ip", "policy:…", "bucket:…"); None = whatever the caller keys by.
    `wait_s` – how long to hold the next request of that scope, not capped; None = nothing stated
    (own backoff, if throttled). `pad_s` – to be added to `wait_s`, because the instant it was made
    from came in whole seconds. `should_retry` – the server's own word. `evidence` – why it counts
    as throttled: "status", or the row of the table. `quotas` – everything reported, in order.
    """

    retry_after_s: float | None = None
    limit: int | None = None
    remaining: int | None = None
    reset_after_s: float | None = None
    window_s: float | None = None
    scope: str | None = None
    throttled: bool = False
    wait_s: float | None = None
    should_retry: bool | None = None
    pad_s: float = 0.0
    unit: str = "requests"
    policy: str | None = None
    dialect: str | None = None
    evidence: str | None = None
    quotas: tuple[Quota, ...] = ()


_THROTTLED = frozenset({429, 503, 529})
# Refusals that mean something else most of the time: a wait stated in a header is evidence (D14).
_AMBIGUOUS = frozenset({403, 409, 418})
_LARGEST_BODY = 65536
_LATEST_CLOCK = 2.5e11
_MANY = 64

_SILENT = Signal()
_BARE = Signal(throttled=True, evidence="status")
_INDEX = Index(DIALECTS)

_WINDOWS = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
    "month": 2592000.0,
    "year": 31536000.0,
}
# Dimensions that are no count of requests (D12); any other is one: user, endpoint, requests.
_OTHER_UNIT = re.compile(r"token|byte|cost|complexity|weight|point|credit|concurren|image|second")
_XML_ELEMENT = re.compile(r"<([A-Za-z]{1,32})>\s*([^<>]{1,128}?)\s*</\1>")


def read_signal(
    status: int,
    headers: Headers,
    *,
    body: Any = None,
    now: float,
    overrides: Overrides | None = None,
) -> Signal:
    """Read one response.

    `status` – of the response; `headers` – pairs or a multidict, names in any case, text or bytes;
    `body` – None if it was not read, else a JSON value, or text or bytes of up to 64 KiB (more is
    not looked at); `now` – the local wall clock at the receipt of the head, in epoch seconds.
    A wrong entry in `overrides` is a ValueError that names it; nothing a server sends raises.
    """
    index, reset_form = (_INDEX, None) if overrides is None else _resolve(overrides)
    found: list[tuple[Field, str]] | None = None
    dates: list[str] = []
    for name, value in header_pairs(headers):
        field = index[name]
        if field is not None:
            text = _text(value)
            if field.role == "date":
                dates.append(text)
            elif text:
                if found is None:
                    found = []
                found.append((field, text))
    if found is None and body is None:
        return _BARE if status in _THROTTLED else _SILENT
    return _Reading(status, found or (), dates, now, index, reset_form).weigh(_parsed(body))


def header_pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    """The fields one by one, repeated ones too."""
    items = getattr(headers, "items", None)
    return headers if items is None else items()  # type: ignore[no-any-return]


def _resolve(overrides: Overrides) -> tuple[Index, Form | None]:
    form = overrides.get("reset")
    if form is not None and form not in FORMS:
        raise ValueError(f"overrides['reset'] must be one of {sorted(FORMS)}, not {form!r}")
    rows = overrides.get("dialects", ())
    return (_index_with(tuple(rows)) if rows else _INDEX), form


@lru_cache(maxsize=64)
def _index_with(rows: tuple[Dialect, ...]) -> Index:
    for row in rows:
        if not isinstance(row, Dialect):
            raise TypeError(f"overrides['dialects'] must hold Dialect rows, not {row!r}")
    return Index((*rows, *DIALECTS))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    elif not isinstance(value, str):
        return ""
    # Only these two are whitespace around a value (RFC 9110, 5.6.3); str.strip() takes NBSP too.
    return value.strip(" \t")


def _parsed(body: Any) -> Any:
    if isinstance(body, (bytes, bytearray, memoryview)):
        body = bytes(body[: _LARGEST_BODY + 1]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    if len(body) > _LARGEST_BODY:
        return None
    if body.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body


class _Reading:
    """One response being read: the fields found, by what they are."""

    __slots__ = ("_found", "_form", "_index", "_now", "_status", "_values")

    def __init__(
        self,
        status: int,
        found: Sequence[tuple[Field, str]],
        dates: Sequence[str],
        now: float,
        index: Index,
        reset_form: Form | None,
    ) -> None:
        self._status = status
        self._found = found
        self._index = index
        self._form = reset_form
        local = now if 0.0 <= now <= _LATEST_CLOCK else 0.0
        age = self._longest("age", "delta")
        # A response from a cache tells the quota of long ago (D15).
        self._stale = age is not None and age.seconds > 0
        date = read_delay(dates[0], 0.0, "date") if len(dates) == 1 else None
        self._now = local
