"""What a robots.txt says to one crawler: `Robots`. Pure.

The Robots Exclusion Protocol is RFC 9309; its rules are parsed and matched by Protego. Crawl-delay
and Request-rate are in no standard; many sites send them, and they are honoured here, the slower of
the two, and of duplicates the slowest. Their values are read by patterns of ASCII digits, not by
`float()`, which takes `nan`, an exponent and the digits of every script.

State: of a file that may be half a megabyte, only the lines of the group that concerns this crawler
are kept, as text; the parsed form of those in use is in a bounded cache. Invariant: whatever a
server sends, nothing is raised, and a delay is finite, above 0 and at most `LONGEST_DELAY`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import lru_cache

from yarl import URL

try:
    from protego import Protego
except ImportError:
    raise ImportError(
        "robots.txt is read by Protego: pip install 'throttle-asyncio[scrape]'"
    ) from None

__all__ = ["LARGEST", "LONGEST_DELAY", "RequestRate", "Robots", "product_of"]

#: Bytes of a robots.txt that are read (RFC 9309, 2.5: at least 500 KiB); the rest is ignored.
LARGEST = 500 * 1024
#: Seconds. A site that asks for more has made a typing error, or wants nobody.
LONGEST_DELAY = 86400.0

_AGENT = re.compile(r"user[- ]?agent\s*(?::|\s)\s*(.*)", re.IGNORECASE)
_SITE_WIDE = re.compile(r"(?:site-?maps?|host)\s*(?::|\s)", re.IGNORECASE)
# What Protego takes for a directive, known or not; any other line does not end a group.
_DIRECTIVE = re.compile(
    r".*:|(?:allow|d\w*al\w*w|(?:crawl|request|visit)[- ](?:delay|rate|time))\s", re.IGNORECASE
)
_PACE = re.compile(r"(?:crawl|request|visit)[- ](?:delay|rate|time)", re.IGNORECASE)
_DELAY = re.compile(r"crawl[- ]delay\s*(?::|\s)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)", re.I | re.A)
_RATE = re.compile(
    r"request[- ]rate\s*(?::|\s)\s*([0-9]+)\s*/\s*([0-9]+)([smhd]?)"
    r"(?:\s+([0-9]{2}):?([0-9]{2})\s*-\s*([0-9]{2}):?([0-9]{2}))?",
    re.I | re.A,
)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DIGITS = 18  # beyond that no number means anything
_PRODUCT = re.compile(r"[A-Za-z0-9_.-]+")
_COMPATIBLE = re.compile(r"\(compatible;\s*([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class RequestRate:
    """`requests` in `seconds`; between `start` and `end` (UTC), or always if they are None."""

    requests: int
    seconds: int
    start: time | None = None
    end: time | None = None

    @property
    def interval(self) -> float:
        """Seconds from one request to the next."""
        return min(self.seconds / self.requests, LONGEST_DELAY)

    def applies(self, at: time) -> bool:
        """Whether it holds at this time of day; the minute named as the end is part of it."""
        if self.start is None or self.end is None:
            return True
        minute = at.replace(second=0, microsecond=0, tzinfo=None)
        if self.start <= self.end:
            return self.start <= minute <= self.end
        return minute >= self.start or minute <= self.end  # over midnight


@dataclass(frozen=True, slots=True)
class Robots:
    """What a site lets one crawler do, and how fast.

    `crawl_delay` – seconds, or None; `rates` – its Request-rates; `reason` – why nothing at all may
    be fetched, or None.
    """

    rules: str = ""
    crawl_delay: float | None = None
    rates: tuple[RequestRate, ...] = ()
    reason: str | None = None

    @classmethod
    def parse(cls, content: str | bytes, product: str) -> Robots:
        """Read a robots.txt for the crawler with this product token (see `product_of`)."""
        if isinstance(content, str):
            content = content.encode("utf-8", "replace")
        text = content[:LARGEST].decode("utf-8", "replace").removeprefix("\ufeff")
        if len(content) > LARGEST:  # the last line may have lost its end
            text = text.rpartition("\n")[0]
        lines = _lines_for(product, text)
        rules = "\n".join(line for line in lines if not _PACE.match(line))
        delays = [_delay(line) for line in lines]
        rates = [_rate(line) for line in lines]
        return cls(
            rules,
            max((delay for delay in delays if delay), default=None),
            tuple(rate for rate in rates if rate),
        )

    @classmethod
    def answered(cls, status: int, content: str | bytes, product: str) -> Robots:
        """What follows from the answer to GET /robots.txt (RFC 9309, 2.3.1).

        2xx: what it says; 429 and 5xx: unreachable, so nothing may be fetched; 4xx, and a redirect
        that leads nowhere: there are no rules.
        """
        if 200 <= status < 300:
            return cls.parse(content, product)
        if status == 429 or not 300 <= status < 500:
            return cls.unreachable(f"status {status}")
        return cls()

    @classmethod
    def unreachable(cls, why: str) -> Robots:
        """Nobody knows the rules: everything must be taken as forbidden (RFC 9309, 2.3.1.4)."""
        return cls(reason=f"its robots.txt is unreachable: {why}")

    @property
    def is_unreachable(self) -> bool:
        return self.reason is not None

    def allows(self, url: URL) -> bool:
        """Whether the URL may be fetched. /robots.txt itself always may."""
        if url.raw_path == "/robots.txt":
            return True
        if self.reason is not None:
            return False
        # The host plays no part; one of our own keeps a path like //x from being taken for one.
        if not self.rules:
            return True
        parsed = _small if len(self.rules) < _LARGE else _large
        return parsed(self.rules).can_fetch(f"http://robots{url.raw_path_qs}", "*")

    def interval(self, now: float) -> float:
        """Seconds it asks to leave between requests at `now` (epoch seconds); 0: none."""
        at = datetime.fromtimestamp(now, UTC).time() if self.rates else time()
        rates = [rate.interval for rate in self.rates if rate.applies(at)]
        return max([*rates, self.crawl_delay or 0.0])


def product_of(user_agent: str) -> str:
    """The product token by which robots.txt files address a crawler.

    >>> product_of("examplebot/1.0 (+https://example.org/bot)")
    'examplebot'
    >>> product_of("Mozilla/5.0 (compatible; examplebot/1.0; +https://example.org/bot)")
    'examplebot'
    """
    found = _COMPATIBLE.search(user_agent) or _PRODUCT.match(user_agent.strip())
    return found[found.re.groups] if found else ""


def _parse(rules: str) -> Protego:
    return Protego.parse("User-agent: *\n" + rules)


# The parsed form takes some twenty times the memory of the text.
_LARGE = 16384
_small = lru_cache(maxsize=256)(_parse)
_large = lru_cache(maxsize=4)(_parse)


def _lines_for(product: str, text: str) -> list[str]:
    """The lines of all groups that concern a crawler (RFC 9309, 2.2.1: they are combined)."""
    groups: dict[str, list[list[str]]] = {}
    for agents, lines in _groups(text):
        for agent in agents:
            groups.setdefault(agent, []).append(lines)
    # Which of the names is meant is Protego's to say: each gets its number for a delay.
    names = list(groups)
    index = "\n".join(
        f"User-agent: {name}\nCrawl-delay: {number}" for number, name in enumerate(names, 1)
    )
    number = Protego.parse(index).crawl_delay(product) if names else None
    return [] if not number else [line for part in groups[names[int(number) - 1]] for line in part]


def _groups(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The names and the lines of each group."""
    agents: list[str] = []
    lines: list[str] = []
    begun = False
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        agent = _AGENT.match(line)
        if agent:
            if begun:
                yield agents, lines
                agents, lines, begun = [], [], False
            name = agent[1].strip().lower()
            if name != "*":
                name = name.replace("*", "")
            if name:
                agents.append(name)
        elif _DIRECTIVE.match(line) and not _SITE_WIDE.match(line):
            begun = True
            lines.append(line)
    yield agents, lines


def _delay(line: str) -> float | None:
    match = _DELAY.fullmatch(line)
    if match is None or len(match[1]) > _DIGITS:
        return None
    return min(float(match[1]), LONGEST_DELAY) or None


def _rate(line: str) -> RequestRate | None:
    match = _RATE.fullmatch(line)
    if match is None or max(len(match[1]), len(match[2])) > _DIGITS:
        return None
    requests, seconds = int(match[1]), int(match[2]) * _SECONDS[match[3].lower()]
    if not requests or not seconds:
        return None
    if match[4] is None:
        return RequestRate(requests, seconds)
    try:
        return RequestRate(
            requests,
            seconds,
            time(int(match[4]), int(match[5])),
            time(int(match[6]), int(match[7])),
        )
    except ValueError:
        return None
