"""How a server says what is left: one row a dialect, for `RateLimitedServer`.

The other direction is `throttle.http.dialects`. A row makes headers out of an `Answer`, and the
body of a refusal. To add a dialect, write one function and one line of the table.

Invariant: a client that waits as long as it is told is let in, so that every wait is rounded up to
what the notation can hold, never down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email.utils import formatdate
from math import ceil, floor
from typing import NamedTuple

import http_sf

from throttle.clock import tolerance

__all__ = ["DIALECTS", "Answer", "Dialect", "Headers", "Quota", "http_date"]

#: What a delay too large to represent is written as (RFC 9111, 1.2.2).
_LONGEST = 2**31


class Quota(NamedTuple):
    """One limit as a client sees it. Seconds count from the answer."""

    name: str
    limit: int
    """Permits in a window (a bucket's capacity)."""
    window: float
    """Seconds in which that many come back."""
    remaining: int
    """Permits left."""
    next_after: float
    """Seconds until a permit is free: 0 while any is left."""
    full_after: float
    """Seconds until all are."""

    @property
    def reset_after(self) -> float:
        """Seconds until the next permit if none is left, else until all are."""
        return self.full_after if self.remaining else self.next_after


class Answer(NamedTuple):
    """What there is to say in one response."""

    refused: bool
    quotas: tuple[Quota, ...]
    """All limits that hold, the binding one first."""
    retry_after: float
    """Seconds until this client is let in again; 0 if it was admitted."""
    wall: float
    """The server's wall clock, in epoch seconds: what its Date header says, with the fraction."""

    @property
    def quota(self) -> Quota:
        """The limit that binds."""
        return self.quotas[0]


Headers = Mapping[str, str]


class Dialect(NamedTuple):
    """A row: the headers of any answer, and the (media type, text) of a refusal."""

    headers: Callable[[Answer], Headers]
    refusal: tuple[str, str] = ("text/plain", "slow down\n")


def _whole(seconds: float) -> int:
    """Whole seconds, up; a rounding error above a whole number is not another second."""
    return ceil(min(seconds, _LONGEST) - tolerance(seconds))


def http_date(instant: float) -> str:
    """An instant in epoch seconds, cut to whole seconds, as an HTTP-date (RFC 9110, 5.6.7)."""
    return formatdate(floor(instant), usegmt=True)


def _later(answer: Answer, seconds: float) -> int:
    return _whole(answer.wall + min(seconds, _LONGEST))


def _nothing(answer: Answer) -> Headers:
    return {}


def _retry_after(answer: Answer) -> dict[str, str]:
    return {"Retry-After": str(_whole(answer.retry_after))} if answer.refused else {}


def _retry_after_date(answer: Answer) -> Headers:
    if not answer.refused:
        return {}
    return {"Retry-After": http_date(_later(answer, answer.retry_after))}


def _github(answer: Answer) -> Headers:
    """Epoch seconds, and no Retry-After: that is for its secondary limits."""
    quota = answer.quota
    return {
        "X-RateLimit-Limit": str(quota.limit),
        "X-RateLimit-Remaining": str(quota.remaining),
        "X-RateLimit-Used": str(quota.limit - quota.remaining),
        "X-RateLimit-Reset": str(_later(answer, quota.reset_after)),
        "X-RateLimit-Resource": "core",
    }


def _ietf(answer: Answer) -> Headers:
    """draft-ietf-httpapi-ratelimit-headers-08 and later."""
    left: list[object] = []
    policies: list[object] = []
    for quota in answer.quotas:
        left.append((quota.name, {"r": quota.remaining, "t": _whole(quota.reset_after)}))
        policies.append((quota.name, {"q": quota.limit, **_window(quota)}))
    return _retry_after(answer) | {
        "RateLimit": http_sf.ser(left),  # type: ignore[arg-type]
        "RateLimit-Policy": http_sf.ser(policies),  # type: ignore[arg-type]
    }


def _ietf_draft_7(answer: Answer) -> Headers:
    """One dictionary for the binding quota, and the policies of all."""
    quota = answer.quota
    one = {"limit": quota.limit, "remaining": quota.remaining, "reset": _whole(quota.reset_after)}
    return _retry_after(answer) | {
        "RateLimit": http_sf.ser(one),  # type: ignore[arg-type]
        "RateLimit-Policy": _policies(answer),
    }


def _ietf_draft_3(answer: Answer) -> Headers:
    """Three headers; the policies follow the limit in force."""
    quota = answer.quota
    return _retry_after(answer) | {
        "RateLimit-Limit": f"{quota.limit}, {_policies(answer)}",
        "RateLimit-Remaining": str(quota.remaining),
        "RateLimit-Reset": str(_whole(quota.reset_after)),
    }


def _policies(answer: Answer) -> str:
    policies: list[object] = [(quota.limit, _window(quota)) for quota in answer.quotas]
    return http_sf.ser(policies)  # type: ignore[arg-type]


def _window(quota: Quota) -> dict[str, int]:
    """The optional parameter `w`: whole seconds; what it cannot hold is left out."""
    whole = int(quota.window) if quota.window < _LONGEST else 0
    return {"w": whole} if whole == quota.window and whole > 0 else {}


def _openai(answer: Answer) -> Headers:
    """Durations as Go writes them; the reset is when all is back."""
    quota = answer.quota
    return _retry_after(answer) | {
        "x-ratelimit-limit-requests": str(quota.limit),
        "x-ratelimit-remaining-requests": str(quota.remaining),
        "x-ratelimit-reset-requests": _go_duration(quota.full_after),
    }


def _go_duration(seconds: float) -> str:
    """`1h2m3.5s`, `12ms`: to the millisecond, up."""
    milliseconds = ceil((min(seconds, _LONGEST) - tolerance(seconds)) * 1000)
    if milliseconds < 1000:
        return f"{max(milliseconds, 0)}ms" if milliseconds > 0 else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return text + f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def _shopify(answer: Answer) -> Headers:
    """Used of limit, and a wait with a decimal."""
    quota = answer.quota
    headers = {"X-Shopify-Shop-Api-Call-Limit": f"{quota.limit - quota.remaining}/{quota.limit}"}
    if answer.refused:
        headers["Retry-After"] = f"{_whole(answer.retry_after):.1f}"
    return headers


def _json(value: object) -> tuple[str, str]:
    return "application/json", json.dumps(value)


DIALECTS: dict[str, Dialect] = {
    "none": Dialect(_nothing),
    "retry-after": Dialect(_retry_after),
    "retry-after-date": Dialect(_retry_after_date),
    "github": Dialect(_github, _json({"message": "API rate limit exceeded"})),
    "ietf": Dialect(_ietf),
    "ietf-draft-7": Dialect(_ietf_draft_7),
    "ietf-draft-3": Dialect(_ietf_draft_3),
    "openai": Dialect(
        _openai,
        _json({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}),
    ),
    "shopify": Dialect(_shopify, _json({"errors": "Exceeded the call limit of this client"})),
}
