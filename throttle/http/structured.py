"""The IETF `RateLimit` and `RateLimit-Policy` fields, in every revision of the draft.

draft-ietf-httpapi-ratelimit-headers: since -08 `RateLimit` is a List (`"default";r=50;t=30`), in
-07 it was a Dictionary (`limit=100, remaining=50, reset=5`); `RateLimit-Policy` is a List of named
policies (`"default";q=100;w=60`), before -08 of bare quotas (`100;w=60`). The grammar (RFC 9651) is
http-sf's; here are the rules above it: a malformed field is ignored as a whole, an unknown
parameter is ignored, and of what the draft demands only two things are let off, because its own
examples break them: a name may be a Token, and `r` may be missing (D11). Pure.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import http_sf

from throttle.http.delays import LONGEST
from throttle.http.quotas import Quota

__all__ = ["Policy", "announced", "policy_window", "read_policies", "read_ratelimit"]

# One table for the names of the parameters: a pull request on the draft would rename two of them.
_REMAINING, _RESET, _QUOTA, _WINDOW, _UNIT, _KEY = "r", "t", "q", "w", "qu", "pk"


class Policy(NamedTuple):
    """One member of RateLimit-Policy: `quota` of `unit` in `window` seconds, maybe by name."""

    name: str | None
    quota: int
    window: int | None
    unit: str
    key: bytes | None


class _MalformedError(Exception):
    pass


@lru_cache(maxsize=256)
def read_policies(value: str) -> tuple[Policy, ...]:
    """The members of a RateLimit-Policy field; none if it is malformed.

    Kept, because a server repeats the same text in every answer.
    """
    policies = []
    try:
        for item, parameters in _items(value):
            quota = _whole(parameters, _QUOTA)
            name: str | None = None
            if type(item) is int and item >= 0:
                quota = item
            else:
                name = _text(item)
            if quota is None:
                return ()
            window = _whole(parameters, _WINDOW, least=1)
            policies.append(Policy(name, quota, window, _unit(parameters), _key(parameters)))
    except _MalformedError:
        return ()
    return tuple(policies)


def policy_window(limit: int | None, policies: Iterable[Policy]) -> int | None:
    """The window of the unnamed policy whose quota is `limit` (revisions before -08)."""
    return next((one.window for one in policies if one.quota == limit), None)


def read_ratelimit(value: str, policies: tuple[Policy, ...]) -> list[Quota]:
    """The quotas of a RateLimit field, joined by name with their policies; none if malformed."""
    try:
        items = _items(value)
    except _MalformedError:
        return _draft_07(value, policies)
    try:
        return [_quota(_text(item), parameters, policies) for item, parameters in items]
    except _MalformedError:
        return []


def announced(policies: Iterable[Policy]) -> list[Quota]:
    """What RateLimit-Policy says on its own, where there is no RateLimit beside it."""
    return [_quota(one.name, {}, (one,), one.key) for one in policies]


def _quota(
    name: str | None,
    parameters: dict[str, Any],
    policies: tuple[Policy, ...],
    key: bytes | None = None,
) -> Quota:
    remaining, reset = _whole(parameters, _REMAINING), _whole(parameters, _RESET)
    key = _key(parameters) or key
    same = [one for one in policies if one.name == name]
    policy = next((one for one in same if one.key == key), same[0] if same else None)
    unit = policy.unit if policy else "requests"
    scope = None
    if name is not None:
        scope = f"policy:{name}"
        if key is not None:
            scope += f";pk={b64encode(key).decode()}"
        if unit != "requests":
            scope += f";unit={unit}"
    return Quota(
        policy.quota if policy else None,
        remaining,
        None if reset is None else min(float(reset), LONGEST),
        policy.window if policy else None,
        scope,
        unit,
        name,
        "ietf",
    )


def _draft_07(value: str, policies: tuple[Policy, ...]) -> list[Quota]:
    try:
        members: Any = http_sf.parse(value.encode("ascii"), tltype="dictionary")
        numbers = {key: member[0] for key, member in members.items()}
        limit, remaining, reset = (_whole(numbers, k) for k in ("limit", "remaining", "reset"))
    except (ValueError, _MalformedError):
        return []
    if limit is None and remaining is None and reset is None:
        return []
    seconds = None if reset is None else min(float(reset), LONGEST)
    return [Quota(limit, remaining, seconds, policy_window(limit, policies), dialect="ietf-07")]


def _items(value: str) -> list[tuple[Any, dict[str, Any]]]:
    try:
        items: Any = http_sf.parse(value.encode("ascii"), tltype="list")
    except ValueError:
        raise _MalformedError from None
    return items  # type: ignore[no-any-return]


def _whole(parameters: dict[str, Any], name: str, least: int = 0) -> int | None:
    value = parameters.get(name)
    # Exactly int: a bare parameter is True, which Python would take for 1.
    if value is not None and (type(value) is not int or value < least):
        raise _MalformedError
    return value


def _text(item: object) -> str:
    if not isinstance(item, (str, http_sf.Token)):
        raise _MalformedError
    return str(item)


def _unit(parameters: dict[str, Any]) -> str:
    return _text(parameters[_UNIT]) if _UNIT in parameters else "requests"


def _key(parameters: dict[str, Any]) -> bytes | None:
    key = parameters.get(_KEY)
    if key is not None and not isinstance(key, bytes):
        raise _MalformedError
    return key
