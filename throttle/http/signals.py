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
from throttle.http.dialects import DIALECTS, QUOTA_ROLES, Dialect, Field, Index, Sign
from throttle.http.evidence import SMALL
from throttle.http.httpdate import parse_date, split_dates
from throttle.http.quotas import Quota
from throttle.http.structured import (
    Policy,
    announced,
    policy_window,
    read_policies,
    read_ratelimit,
)

__all__ = [
    "SILENT",
    "Headers",
    "Overrides",
    "Signal",
    "check_overrides",
    "header_pairs",
    "read_signal",
]

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
_LATEST_CLOCK = 2.5e11
_LONGEST_SCOPE = 128
_LONGEST_PACKED = 1024
_MANY = 64

#: What a response says that says nothing.
SILENT = Signal()
_BARE = Signal(throttled=True, evidence="status")
_NO_QUOTA = Quota()
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
_OTHER_UNIT = re.compile("token|byte|cost|complexity|weight|point|credit|concurren|image")
_WINDOW_PARAMETER = re.compile(r";[ \t]*w(?:indow)?=([0-9]{1,15})(?![0-9.])", re.ASCII)
_XML_ELEMENT = re.compile(r"<([A-Za-z]{1,32})>([^<>]{1,128})</\1>")


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
    A wrong entry in `overrides` is a ValueError or TypeError that names it; nothing a server sends
    raises.
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
        return _BARE if status in _THROTTLED else SILENT
    return _Reading(status, found or (), dates, now, index, reset_form).weigh(_parsed(body))


def header_pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    """The fields one by one, repeated ones too."""
    items = getattr(headers, "items", None)
    return headers if items is None else items()  # type: ignore[no-any-return]


def check_overrides(overrides: Any, name: str = "overrides") -> None:
    """TypeError or ValueError for what are no `Overrides`; `name` – what they are called."""
    if not isinstance(overrides, Mapping):
        raise TypeError(f"{name} must be a dict such as {{'reset': 'ms-delta'}}, not {overrides!r}")
    for key, value in overrides.items():
        if key == "reset":
            if not isinstance(value, str) or value not in FORMS:
                raise ValueError(f"{name}['reset'] must be one of {sorted(FORMS)}, not {value!r}")
        elif key == "dialects":
            if not isinstance(value, Sequence) or not all(isinstance(v, Dialect) for v in value):
                raise TypeError(f"{name}['dialects'] must hold Dialect rows, not {value!r}")
        else:
            raise ValueError(f"{name} must have no entries but 'reset' and 'dialects', not {key!r}")


def _resolve(overrides: Overrides) -> tuple[Index, Form | None]:
    check_overrides(overrides)
    rows = overrides.get("dialects", ())
    return (_index_with(tuple(rows)) if rows else _INDEX), overrides.get("reset")


@lru_cache(maxsize=64)
def _index_with(rows: tuple[Dialect, ...]) -> Index:
    return Index((*rows, *DIALECTS))


def _text(value: Any) -> str:
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    # Only these two are whitespace around a value (RFC 9110, 5.6.3); str.strip() takes NBSP too.
    return text.strip(" \t") if isinstance(text, str) else ""


def _parsed(body: Any) -> Any:
    if isinstance(body, (bytes, bytearray, memoryview)):
        body = bytes(body[: SMALL + 1]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    if len(body) > SMALL:
        return None
    if body.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body


class _Reading:
    """One response being read: its fields by what they are, and the clock they are measured by."""

    __slots__ = ("_families", "_form", "_index", "_now", "_others", "_stale", "_status")

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
        self._index = index
        self._form = reset_form
        self._families: dict[tuple[str, str | None], _Family] = {}
        self._others: dict[str, list[tuple[Field, str]]] = {}
        for field, text in found:
            if field.role in QUOTA_ROLES:
                key = (field.row.name, field.dimension)
                family = self._families.get(key)
                if family is None:
                    family = self._families[key] = _Family(field)
                family.values.setdefault(field.role, []).append(text)
            else:
                self._others.setdefault(field.role, []).append((field, text))
        self._now = now if 0.0 <= now <= _LATEST_CLOCK else 0.0
        age = longest(self._texts("age"), 0.0, "delta")
        # A response from a cache tells the quota of long ago (D15).
        self._stale = age is not None and age.seconds > 0
        date = parse_date(dates[0], self._now) if len(dates) == 1 else None
        if date is not None:
            self._now = date + (age.seconds if age else 0.0)

    def weigh(self, body: Any) -> Signal:
        quotas = () if self._stale else tuple(self._quotas(body))
        binding = _binding(quotas)
        asked = self._asked()
        signs = list(self._signs(body))
        evidence = self._evidence(signs, asked, binding)
        if asked is None and (evidence or self._status >= 500):
            asked = self._asked_in(body)

        scope, wait = binding.scope, self._wait(binding, asked, signs, evidence)
        if evidence:
            scope = next((one.scope for _, one in signs if one.scope), None) or (
                self._refusal_scope(binding) or scope
            )
        elif wait is None and asked and not (200 <= self._status < 300 and self._status != 202):
            # It delays this one operation (a redirect, a poll, a gateway), not the host (D10).
            scope, wait = "request", asked
        return Signal(
            retry_after_s=asked.seconds if asked else None,
            limit=binding.limit,
            remaining=binding.remaining,
            reset_after_s=binding.reset_after_s,
            window_s=binding.window_s,
            scope=scope or self._named_scope(),
            throttled=evidence is not None,
            wait_s=wait.seconds if wait else None,
            should_retry=self._should_retry(signs),
            pad_s=1.0 if wait and wait.coarse else 0.0,
            unit=binding.unit,
            policy=binding.policy,
            dialect=binding.dialect,
            evidence=evidence,
            quotas=quotas,
        )

    def _texts(self, role: str) -> list[str]:
        return [text for _, text in self._others.get(role, ())]

    def _quotas(self, body: Any) -> list[Quota]:
        policies = read_policies(", ".join(self._texts("ratelimit-policy")))
        quotas: list[Quota] = []
        if "ratelimit" in self._others:
            # The lines of a structured field are one field: one bad line spoils it.
            quotas += read_ratelimit(", ".join(self._texts("ratelimit")), policies)
        for family in self._families.values():
            quotas += family.quotas(self._now, self._form, policies)
        for field, text in self._others.get("packed", ()):
            if len(text) <= _LONGEST_PACKED:
                quotas += _labelled(field.row, field.detail(text, self._now, field.dimension))
        if body is not None:
            for row, path, reader in self._index.body_packed:
                for value in _at(body, path):
                    quotas += _labelled(row, reader(value, self._now, None))
        return quotas or announced(policies)

    def _asked(self) -> Delay | None:
        fields = self._others.get("wait")
        if fields is None:
            return None
        best: dict[Form, Delay] = {}
        for field, text in fields:
            delay = longest((text,), self._now, field.detail)
            if delay and (field.detail not in best or best[field.detail].seconds < delay.seconds):
                best[field.detail] = delay
        plain, exact = best.pop("retry-after", None), best.pop("ms-delta", None)
        if plain and exact:
            # The same value to the millisecond; or else two opinions, of which the longer counts.
            near = abs(plain.seconds - exact.seconds) <= 1.0
            return exact if near else max(plain, exact)
        return plain or exact or max(best.values(), default=None)

    def _asked_in(self, body: Any) -> Delay | None:
        if body is None:
            return None
        for _, path, form in self._index.body_waits:
            delays = [read_json(value, self._now, form) for value in _at(body, path)]
            known = [delay for delay in delays if delay is not None]
            if known:
                return max(known)
        return None

    def _signs(self, body: Any) -> Iterator[tuple[Dialect, Sign]]:
        """The signs that match and may be believed at this status, in the order of the table."""
        for field, text in self._others.get("sign", ()):
            for sign in field.row.signs:
                if sign.header == field.detail and self._believed(sign) and sign.matches(text):
                    yield field.row, sign
        if body is None:
            return
        elements = dict(_XML_ELEMENT.findall(body)) if isinstance(body, str) else {}
        for row, sign in self._index.body_signs:
            if self._believed(sign):
                texts = [elements.get(sign.xml, "")] if sign.path is None else _at(body, sign.path)
                if any(sign.matches(_word(text)) for text in texts):
                    yield row, sign

    def _believed(self, sign: Sign) -> bool:
        return sign.success or self._status >= 400

    def _evidence(
        self, signs: list[tuple[Dialect, Sign]], asked: Delay | None, binding: Quota
    ) -> str | None:
        for row, sign in signs:
            if sign.throttled is not None:
                return row.name if sign.throttled else None
        if self._status in _THROTTLED:
            return "status"
        for row in self._rows_seen():
            if self._status in row.refuses:
                return row.name
        if self._status in _AMBIGUOUS and asked is not None:
            return "retry-after"
        return binding.dialect if self._status == 403 and binding.remaining == 0 else None

    def _rows_seen(self) -> Iterator[Dialect]:
        for fields in self._others.values():
            for field, _ in fields:
                yield field.row

    def _wait(
        self,
        binding: Quota,
        asked: Delay | None,
        signs: list[tuple[Dialect, Sign]],
        evidence: str | None,
    ) -> Delay | None:
        if evidence:
            floor = max((one.floor_s for _, one in signs if one.floor_s), default=None)
            stated = floor if floor is not None else binding.fits_after_s
            if asked is not None or stated is not None:
                return asked or Delay(stated or 0.0)
        # A refusal with quota left was another limiter's: its reset says nothing about it (D9).
        used_up = binding.remaining == 0 or (evidence and binding.remaining is None)
        if not used_up or binding.reset_after_s is None or binding.unit == "concurrent-requests":
            return None
        return Delay(binding.reset_after_s, binding.coarse)

    def _refusal_scope(self, binding: Quota) -> str | None:
        for row in self._rows_seen():
            if row.throttled_scope:
                return row.throttled_scope
        if binding.limit == 0 and binding.remaining == 0:
            return next((one.row.zero_scope for one in self._families.values()), None)
        return None

    def _named_scope(self) -> str | None:
        for field, text in self._others.get("scope", ()):
            return f"{field.detail}:{text[:_LONGEST_SCOPE]}"
        return None

    def _should_retry(self, signs: list[tuple[Dialect, Sign]]) -> bool | None:
        for text in self._texts("should_retry"):
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
        return next((one.should_retry for _, one in signs if one.should_retry is not None), None)


class _Family:
    """The headers of one row and dimension, and the quotas they add up to."""

    __slots__ = ("dimension", "row", "values")

    def __init__(self, field: Field) -> None:
        self.row = field.row
        self.dimension = field.dimension
        self.values: dict[str, list[str]] = {}

    def quotas(
        self, now: float, reset_form: Form | None, policies: tuple[Policy, ...]
    ) -> list[Quota]:
        limits, left = self._members("limit"), self._members("remaining")
        resets = self._resets(now, reset_form)
        if len(left) < 2:
            quota = self._quota(limits, left[0] if left else None, _latest(resets), now, policies)
            return [quota] if quota else []
        # Several limits in repeated or joined lines belong together by position.
        size = len(left)
        limits = limits * size if len(limits) == 1 else limits
        resets = resets if len(resets) == size else [_latest(resets)] * size
        quotas = (
            self._quota(limits[at : at + 1], left[at], resets[at], now, policies)
            for at in range(size)
        )
        return [quota for quota in quotas if quota]

    def _members(self, role: str) -> list[str]:
        parts = [part for text in self.values.get(role, ()) for part in text.split(",", _MANY)]
        return [part.strip(" \t") for part in parts[:_MANY]]

    def _resets(self, now: float, form: Form | None) -> list[Delay | None]:
        after = longest(self.values.get("reset_after", ()), now, "delta")
        if after is not None:
            return [after]
        form = form if form and self.row.reset_form == "auto" else self.row.reset_form
        parts = [part for text in self.values.get("reset", ()) for part in split_dates(text)]
        delays = [read_delay(part.partition(";")[0].rstrip(" \t"), now, form) for part in parts]
        if any(delays):
            return delays
        return [longest(self.values.get("reset_date", ()), now, "auto")]

    def _quota(
        self,
        limits: list[str],
        left: str | None,
        reset: Delay | None,
        now: float,
        policies: tuple[Policy, ...],
    ) -> Quota | None:
        limit, window = _limit_and_window(limits)
        remaining = read_count(left.partition(";")[0].rstrip(" \t")) if left else None
        used = read_count(self.values["used"][0]) if "used" in self.values else None
        if limit is None and "limit" not in self.values:
            if used is not None and remaining is not None:
                limit = used + remaining
            elif remaining is not None and len(policies) == 1 and self.dimension is None:
                limit = policies[0].quota
        elif limit is not None and remaining is None and used is not None:
            remaining = max(limit - used, 0)
        if limit is None and remaining is None and reset is None:
            return None
        scope, unit = None, "requests"
        if self.dimension is not None:
            window = window or _WINDOWS.get(self.dimension)
            kind = "window" if self.dimension in _WINDOWS else "unit"
            scope = f"{kind}:{self.dimension}"
            unit = self.dimension if _OTHER_UNIT.search(self.dimension) else unit
        else:
            window = self._window(now) or window or policy_window(limit, policies)
        return Quota(
            limit,
            remaining,
            reset.seconds if reset else None,
            window,
            scope,
            unit,
            dialect=self.row.name,
            coarse=bool(reset and reset.coarse),
        )

    def _window(self, now: float) -> float | None:
        texts = self.values.get("window", ())
        plain = longest(texts, now, "delta")
        if plain is not None:
            return plain.seconds * self.row.window_unit or None
        duration = longest(texts, now, "duration")
        return duration.seconds or None if duration else None


def _limit_and_window(members: list[str]) -> tuple[int | None, float | None]:
    """`10, 10;w=1, 1000;w=3600`: the first is in force, its window stands where its count does."""
    limit: int | None = None
    for member in members:
        head, _, parameters = member.partition(";")
        count = read_count(head.rstrip(" \t"))
        if limit is None:
            limit = count
        if count == limit and limit is not None:
            window = _WINDOW_PARAMETER.search(";" + parameters)
            if window:
                return limit, float(window[1]) or None
    return limit, None


def _latest(delays: Iterable[Delay | None]) -> Delay | None:
    return max((delay for delay in delays if delay is not None), default=None)


def _labelled(row: Dialect, quotas: Iterable[Quota]) -> Iterator[Quota]:
    for quota in quotas:
        if any(value is not None for value in quota[:3]):
            yield quota._replace(dialect=row.name)


def _binding(quotas: tuple[Quota, ...]) -> Quota:
    """The quota that holds the caller back (D11); an empty one if there is none."""
    if not quotas:
        return _NO_QUOTA
    # A reset that stands alone (Kong) belongs to the quotas beside it that have none.
    lone = [one for one in quotas if _is_lone(one)]
    candidates = [one for one in quotas if not _is_lone(one)] or lone
    empty = [one for one in candidates if one.remaining == 0]
    if empty:
        binding = max(
            empty, key=lambda one: -1.0 if one.reset_after_s is None else one.reset_after_s
        )
    else:
        binding = min(candidates, key=_share_left)
    if binding.reset_after_s is None and lone:
        return binding._replace(reset_after_s=lone[0].reset_after_s, coarse=lone[0].coarse)
    return binding


def _is_lone(quota: Quota) -> bool:
    return quota.limit is None and quota.remaining is None and quota.scope is None


def _share_left(quota: Quota) -> tuple[float, bool]:
    if not quota.limit or quota.remaining is None:
        return 2.0, False
    return min(quota.remaining / quota.limit, 1.0), quota.reset_after_s is None


def _at(body: Any, path: str) -> list[Any]:
    """The values at a path; a list on the way, or at its end, stands for its members."""
    level = _flat([body])
    for key in path.split("."):
        level = _flat(item[key] for item in level if isinstance(item, dict) and key in item)
    return level


def _flat(level: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in level:
        if isinstance(item, list):
            flat += item[:_MANY]
        else:
            flat.append(item)
    return flat[:_MANY]


def _word(value: Any) -> str:
    if value is True:
        return "true"
    return value if isinstance(value, str) else ""
