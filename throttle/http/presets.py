"""Documented rates of well-known services, as data: `limits=presets("crossref", "nominatim")`.

For services whose answers do not say how fast one may ask. A row is what is known of the provider's
documentation in the month given, for a client without a paid plan. It may have changed since: look
at the page, and let the fields of an answer correct it downwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from throttle.choice import limiter_for
from throttle.limiter import Limiter

__all__ = ["PRESETS", "Preset", "presets"]


class Preset(NamedTuple):
    """One service."""

    places: tuple[str, ...]
    """Hosts, or hosts with a path prefix. They share one limit."""
    rates: tuple[str, ...]
    """All of them hold."""
    source: str
    """The provider's page."""
    as_of: str
    """What the row reflects: year and month."""
    note: str = ""
    """What else the provider asks for."""


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "arxiv": Preset(
            ("export.arxiv.org",),
            ("1/3s",),
            "https://info.arxiv.org/help/api/tou.html",
            "2026-11",
            "one connection at a time: concurrency=1",
        ),
        "cloudflare": Preset(
            ("api.cloudflare.com/client/v4",),
            ("1200/5min",),
            "https://developers.cloudflare.com/fundamentals/api/reference/limits/",
            "2026-11",
            "for each user, over all tokens; when exceeded, blocked for five minutes",
        ),
        "crossref": Preset(
            ("api.crossref.org",),
            ("3/s",),
            "https://www.crossref.org/documentation/retrieve-metadata/rest-api/access-and-authentication/",
            "2026-11",
            "a careful default for lists in the polite pool (a mail address in the User-Agent), "
            "not a documented number: X-Rate-Limit-Limit and -Interval in the answers say it",
        ),
        "discord": Preset(
            ("discord.com/api",),
            ("50/s",),
            "https://discord.com/developers/docs/topics/rate-limits",
            "2026-11",
            "over all routes; those of each route are in the answers; 10,000 invalid requests in "
            "10 minutes block the address",
        ),
        "nasa": Preset(
            ("api.nasa.gov",),
            ("1000/hour",),
            "https://api.nasa.gov/",
            "2026-11",
            "for each key",
        ),
        "nasa-demo-key": Preset(
            ("api.nasa.gov",),
            ("30/hour", "50/day"),
            "https://api.nasa.gov/",
            "2026-11",
            "with DEMO_KEY, for each address",
        ),
        "nominatim": Preset(
            ("nominatim.openstreetmap.org",),
            ("1/s",),
            "https://operations.osmfoundation.org/policies/nominatim/",
            "2026-11",
            "for the whole application; a User-Agent of its own; keep the results",
        ),
        "sec-edgar": Preset(
            ("www.sec.gov", "data.sec.gov", "efts.sec.gov"),
            ("10/s",),
            "https://www.sec.gov/os/accessing-edgar-data",
            "2026-11",
            "for each address; a User-Agent with a contact, else 403; when exceeded, blocked for "
            "some ten minutes",
        ),
        "semantic-scholar": Preset(
            ("api.semanticscholar.org",),
            ("1/s",),
            "https://www.semanticscholar.org/product/api",
            "2026-11",
            "with a key",
        ),
        "stripe": Preset(
            ("api.stripe.com",),
            ("100/s",),
            "https://docs.stripe.com/rate-limits",
            "2026-11",
            "in live mode",
        ),
        "stripe-sandbox": Preset(
            ("api.stripe.com",),
            ("25/s",),
            "https://docs.stripe.com/rate-limits",
            "2026-11",
            "with test keys",
        ),
    }
)


def presets(*names: str) -> dict[str, Limiter]:
    """New limits for these services, by place: for `limits=` of a session or a transport.

    ValueError for an unknown name (it lists those known), and for two that speak of the same place.
    """
    limits: dict[str, Limiter] = {}
    for name in names:
        if name not in PRESETS:
            raise ValueError(f"names: no preset {name!r}; there are {', '.join(PRESETS)}")
        preset = PRESETS[name]
        limiter = limiter_for(preset.rates)
        for place in preset.places:
            if place in limits:
                raise ValueError(f"names: {name!r} and another speak of {place!r}: {names!r}")
            limits[place] = limiter
    return limits
