"""`throttle inspect`: what a server says about its limits, and the configuration that follows.

One request, or the responses that a browser recorded. Shown are the fields that were understood,
what they mean, and what to put into a program. Of responses that are alike the last is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from throttle.cli import options as types
from throttle.cli.har import Recorded, recorded
from throttle.cli.options import UsageError
from throttle.cli.terminal import clean, console, table
from throttle.http.dialects import DIALECTS, Index
from throttle.http.evidence import SMALL
from throttle.http.quotas import Quota
from throttle.http.signals import Signal, read_signal

__all__ = ["DESCRIPTION", "EXAMPLES", "Seen", "configuration", "declare", "rates", "run"]

_UNITS = {1.0: "s", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
_INDEX = Index(DIALECTS)

DESCRIPTION = """Make one request, and show every signal about limits in the answer, decoded; or
read recorded responses instead."""

EXAMPLES = """examples:
  throttle inspect https://api.example.org/items
  throttle inspect --method HEAD --header 'Authorization: Bearer …' https://api.example.org/
  throttle inspect --har recorded.har

exit codes:
  0    there was something to look at
  1    the server did not answer
  2    the command line was wrong, or a part is not installed
  130  interrupted
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One response that was looked at. `fields` – those of its headers that speak of limits."""

    url: str
    status: int
    fields: list[tuple[str, str]]
    signal: Signal

    @property
    def host(self) -> str:
        return URL(self.url).host or self.url

    @property
    def speaks(self) -> bool:
        """Whether it says anything of limits."""
        return bool(self.fields) or self.signal.throttled

    @property
    def kind(self) -> tuple[object, ...]:
        """The same for responses that tell the same, but for how much is left."""
        signal = self.signal
        names = tuple(sorted({name.lower() for name, _ in self.fields}))
        return self.host, self.status, names, signal.limit, signal.window_s, signal.scope


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("url", nargs="?", metavar="URL", help="what to ask for")
    parser.add_argument("--har", type=Path, metavar="FILE", help="read recorded responses instead")
    parser.add_argument("--method", default="GET", help="of the request (default: GET)")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="of the request"
    )
    parser.add_argument(
        "--timeout", type=types.seconds, default=30.0, metavar="SECONDS", help="(default: 30)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; answers the exit code."""
    if (options.url is None) == (options.har is None):
        raise UsageError("give either a URL or --har FILE")
    screen = console()
    if options.har is not None:
        seen = [_seen(one) for one in recorded(options.har)]
        _show_hosts(screen, seen)
    else:
        headers = [_header(word) for word in options.header]
        try:
            seen = [_seen(asyncio.run(_ask(options, headers)))]
        except (aiohttp.InvalidURL, ValueError) as error:
            raise UsageError(f"{options.url!r} cannot be asked for: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            print(f"throttle inspect: {options.url}: {text}", file=sys.stderr)
            return 1
    alike: dict[tuple[object, ...], list[Seen]] = {}
    for one in seen:
        if one.speaks or options.har is None:
            alike.setdefault(one.kind, []).append(one)
    for several in alike.values():
        _show(screen, several[-1], len(several))
    line = configuration(seen)
    if line is not None:
        screen.print(clean(line), style="bold", soft_wrap=True)
    return 0


# -------------------------------------------------------------------- responses


def _header(word: str) -> tuple[str, str]:
    name, colon, value = word.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header must look like 'Name: value', not {word!r}")
    return name.strip(), value.strip()


async def _ask(options: argparse.Namespace, headers: list[tuple[str, str]]) -> Recorded:
    limit = aiohttp.ClientTimeout(total=options.timeout)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.request(options.method, options.url, headers=headers) as response,
    ):
        at = time.time()
        body = await response.content.read(SMALL)
        pairs = [(str(name), value) for name, value in response.headers.items()]
        text = body.decode("utf-8", "replace")
        return Recorded(str(response.url), response.status, pairs, text, at)


def _seen(one: Recorded) -> Seen:
    spoken = [pair for pair in one.headers if (field := _INDEX[pair[0]]) and field.role != "date"]
    signal = read_signal(one.status, one.headers, body=one.body, now=one.at)
    return Seen(one.url, one.status, spoken, signal)


# -------------------------------------------------------------------- the configuration


def rates(signal: Signal) -> list[str]:
    """The rates that keep within what was said; empty if none can be read."""
    quotas = [q for q in signal.quotas if q.unit == "requests" and q.limit and q.window_s]
    found = {(quota.window_s or 0.0, quota.limit or 0) for quota in quotas}
    if not found and signal.limit and signal.window_s and signal.unit == "requests":
        found = {(signal.window_s, signal.limit)}
    return [f"{limit}/{_UNITS.get(window) or f'{window:g}s'}" for window, limit in sorted(found)]


def configuration(seen: Iterable[Seen]) -> str | None:
    """A line of configuration that keeps within what all said; None if there is none."""
    limits: dict[str, list[str]] = {}
    for one in seen:
        known = limits.setdefault(one.host, [])
        known += [rate for rate in rates(one.signal) if rate not in known]
    said = {host: found[0] if len(found) == 1 else found for host, found in limits.items() if found}
    return f"ThrottledSession(limits={json.dumps(said)})" if said else None


# -------------------------------------------------------------------- what is shown


def _show_hosts(screen: Any, seen: Sequence[Seen]) -> None:
    speaking = sum(one.speaks for one in seen)
    screen.print(f"{len(seen)} responses, {speaking} of them speak of limits")
    hosts = Counter(one.host for one in seen)
    rows = table("host", "responses", "refused", "least left", last="dialect")
    for host, count in hosts.most_common():
        its = [one.signal for one in seen if one.host == host]
        left = [signal.remaining for signal in its if signal.remaining is not None]
        dialects = dict.fromkeys(signal.dialect for signal in its if signal.dialect)
        rows.add_row(
            clean(host),
            str(count),
            str(sum(signal.throttled for signal in its)),
            str(min(left)) if left else "",
            clean(", ".join(dialects)),
        )
    if hosts:
        screen.print(rows)


def _show(screen: Any, seen: Seen, alike: int) -> None:
    """One response; `alike` – how many there were, this one included."""
    url = URL(seen.url)
    place = f"{url.scheme}://{url.raw_authority.rpartition('@')[2]}{url.raw_path}"
    more = f" ({alike} alike, this is the last)" if alike > 1 else ""
    screen.print(f"[bold]{seen.status}[/]", clean(place + more), soft_wrap=True)
    rows = table("", header=False, last="")
    for name, value in seen.fields:
        rows.add_row(clean(name), clean(value))
    rows.add_section()
    for field in fields(Signal):
        found: Any = getattr(seen.signal, field.name)
        if field.name != "quotas" and found != field.default:
            rows.add_row(f"[bold]{field.name}[/]", clean(_plain(field.name, found)))
    for quota in seen.signal.quotas if len(seen.signal.quotas) > 1 else ():
        rows.add_row("[bold]quota[/]", clean(_told(quota)))
    if not rows.row_count:
        screen.print("  says nothing about limits\n")
        return
    screen.print(rows)
    if seen.signal.limit is not None and not rates(seen.signal):
        what = "names no window" if seen.signal.unit == "requests" else f"is of {seen.signal.unit}"
        screen.print(f"  {what}: a session learns the rest from each answer\n")


def _plain(name: str, value: Any) -> str:
    return f"{value:.6g} s" if name.endswith("_s") else str(value)


def _told(quota: Quota) -> str:
    """`5 of 10 requests in 1 s, renewed in 0.4 s (policy:burst)`."""
    left = "" if quota.remaining is None else f"{quota.remaining} of "
    text = f"{left}{'?' if quota.limit is None else quota.limit} {quota.unit}"
    if quota.window_s is not None:
        text += f" in {quota.window_s:.6g} s"
    if quota.reset_after_s is not None:
        text += f", renewed in {quota.reset_after_s:.6g} s"
    return f"{text} ({quota.scope})" if quota.scope else text
