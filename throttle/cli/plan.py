"""How fast each host may be asked: what the command line and a file of limits say, as one plan.

    rate = ["2/s", "1000/hour"]        # each host that is not named below
    concurrency = 4
    contact = "bot@example.org"

    [limits]                           # hosts, or hosts with a path
    "api.example.org" = "10/s"
    "example.org/search" = ["1/3s", "500/day"]

What the command line says replaces what the file says. Invariant: a plan holds only what has been
checked; what is wrong is an error that names the option (or the file and the key) and the value.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from typing import Any

from yarl import URL

from throttle.checks import whole
from throttle.cli import options as types
from throttle.cli.options import UsageError
from throttle.http.politeness import checked_user_agent
from throttle.http.routes import host_of
from throttle.rate import Rate

__all__ = ["PRODUCT", "Plan", "declare", "plan"]

PRODUCT = "throttle-fetch"
#: What a host is asked when nobody said how fast: seconds from one request to the next.
DELAY = 1.0
#: Requests in flight to each host when a rate was named, and when none was.
_WIDTH, _CAREFUL = 16, 1
_CONTACT = "THROTTLE_CONTACT"
#: Seconds that a slow answer takes, body and all.
_SLOW = 10.0

Rates = tuple[Rate, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`rates` – of each host; empty: nobody named any, and a host is asked as a stranger's is.

    `limits` – by host or host/path; `concurrency` – requests in flight to each host; `contact` – a
    mail address or a URL, or None.
    """

    rates: Rates = ()
    limits: dict[str, Rates] = field(default_factory=dict)
    concurrency: int = _CAREFUL
    contact: str | None = None

    def allowed(self, host: str) -> Rates:
        """What holds for a host, or for the paths of it that were named."""
        places = [place for place in self.limits if _host_of(place) == host]
        found = tuple(rate for place in places for rate in self.limits[place])
        return found or self.rates or (Rate(1, DELAY),)

    def width(self, host: str) -> int:
        """Requests that are worth having under way at a host: as many as its limits let go in the
        time of a slow answer."""
        rate = min(rate.per_second for rate in self.allowed(host))
        return max(1, min(self.concurrency, ceil(rate * _SLOW) if rate < inf else self.concurrency))

    def user_agent(self, version: str) -> str:
        """What the requests are sent as; for hosts of this machine if there is no contact."""
        return _user_agent(self.contact or "http://localhost/", version)


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options that make a plan."""
    parser.add_argument(
        "--rate",
        type=types.rate,
        action="append",
        help="requests to each host, exactly: 5/s, 100/minute; several times: all hold (default: "
        "one at a time, 1 to 1.5 s apart, slower if the host is)",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="HOST[/PATH]=RATE",
        help="for one host, instead of --rate; several times: all hold",
    )
    parser.add_argument(
        "--limits", type=Path, metavar="FILE", help="a TOML file of rates and limits"
    )
    parser.add_argument(
        "--concurrency",
        type=types.count,
        metavar="N",
        help=f"requests in flight to each host (default: {_WIDTH} with a rate, else {_CAREFUL})",
    )
    parser.add_argument(
        "--contact",
        metavar="MAIL-OR-URL",
        help="who you are, for the User-Agent; needed for all hosts but this machine's "
        f"(default: the environment's {_CONTACT})",
    )


def plan(options: argparse.Namespace) -> Plan:
    """The plan that the options make. UsageError."""
    told = {} if options.limits is None else _file(options.limits)
    limits: dict[str, Rates] = {}
    for place, rate in options.limit:
        limits[place] = (*limits.get(place, ()), rate)
    rates = tuple(options.rate or ()) or told.get("rate", ())
    default = _WIDTH if rates else _CAREFUL
    contact = options.contact or told.get("contact") or os.environ.get(_CONTACT)
    if contact is not None:
        try:
            _user_agent(contact, "1")
        except ValueError:
            raise UsageError(
                f"--contact must be a mail address or a URL, not {contact!r}"
            ) from None
    return Plan(
        rates,
        {**told.get("limits", {}), **limits},
        options.concurrency or told.get("concurrency", default),
        contact,
    )


def _user_agent(contact: str, version: str) -> str:
    sign = "+" if "://" in contact else ""
    return checked_user_agent(f"{PRODUCT}/{version} ({sign}{contact})")


def _host_of(place: str) -> str:
    return host_of(URL(place if "://" in place else f"//{place}"))


def _place(word: str) -> str:
    try:
        host = _host_of(word)
    except ValueError:
        host = ""
    if not host:
        raise ValueError(f"must begin with a host, which {word!r} does not")
    return word


@types.option
def _limit(word: str) -> tuple[str, Rate]:
    place, equals, rate = word.rpartition("=")
    if not equals:
        raise ValueError(f"must look like example.org=5/s, not {word!r}")
    return _place(place), types.checked_rate(rate)


# -------------------------------------------------------------------- the file


def _file(path: Path) -> dict[str, Any]:
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--limits {path}: {error}") from error
    read: dict[str, Any] = {}
    for key, value in told.items():
        if key not in _KEYS:
            raise UsageError(f"--limits {path}: {key!r} is none of {', '.join(_KEYS)}")
        try:
            read[key] = _KEYS[key](value)
        except (ValueError, TypeError) as error:
            raise UsageError(f"--limits {path}: {key}: {error}") from error
    return read


def _rates(value: Any) -> Rates:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("at least one rate is needed, not []")
    return tuple(map(types.checked_rate, values))


def _limits(value: Any) -> dict[str, Rates]:
    if not isinstance(value, dict):
        raise TypeError(f"must be a table of hosts, not {value!r}")
    return {_place(place): _rates(rates) for place, rates in value.items()}


def _contact(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a text, not {value!r}")
    return value


_KEYS: dict[str, Callable[[Any], Any]] = {
    "rate": _rates,
    "concurrency": lambda value: whole("concurrency", value, least=1),
    "contact": _contact,
    "limits": _limits,
}
