"""`throttle inspect`: what a server says about its limits, and the configuration that follows.

One request, or the responses that a browser recorded (a HAR export). Shown are the fields that were
understood, what they mean, and a line to put into a program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from throttle.cli import options as types
from throttle.cli.options import UsageError, missing
from throttle.http.dialects import DIALECTS, Index
from throttle.http.signals import Signal, read_signal

__all__ = ["DESCRIPTION", "EXAMPLES", "Seen", "declare", "run", "suggestion"]

_MOST_BODY = 65536

DESCRIPTION = """Make one request, and show every signal about limits in the answer, decoded; or
read recorded responses instead."""

EXAMPLES = """examples:
  throttle inspect https://api.example.org/items
  throttle inspect --method HEAD --header 'Authorization: Bearer …' https://api.example.org/
  throttle inspect --har recorded.har
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One response that was looked at. `fields` – those of its headers that speak of limits."""

    url: str
    status: int
    fields: list[tuple[str, str]]
    signal: Signal


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
    if options.har is not None:
        seen = list(_recorded(options.har))
        speaking = [one for one in seen if one.fields or one.signal.throttled]
        print(f"{len(seen)} responses, {len(speaking)} of them speak of limits")
        seen = list({(_host(one.url), one.signal): one for one in speaking}.values())
    else:
        headers = dict(_header(word) for word in options.header)
        try:
            seen = [asyncio.run(_ask(options, headers))]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise UsageError(f"{options.url}: {type(error).__name__}: {error}") from error
    for one in seen:
        _show(one)
    return 0


def _header(word: str) -> tuple[str, str]:
    name, colon, value = word.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header must look like 'Name: value', not {word!r}")
    return name.strip(), value.strip()


async def _ask(options: argparse.Namespace, headers: dict[str, str]) -> Seen:
    limit = aiohttp.ClientTimeout(total=options.timeout)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.request(options.method, options.url, headers=headers) as response,
    ):
        body = await response.content.read(_MOST_BODY)
        pairs = [(str(name), value) for name, value in response.headers.items()]
        return _seen(str(response.url), response.status, pairs, body, time.time())


def _recorded(path: Path) -> Iterator[Seen]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))["log"]["entries"]
        for entry in entries:
            response = entry["response"]
            pairs = [(str(one["name"]), str(one["value"])) for one in response["headers"]]
            began = datetime.fromisoformat(entry["startedDateTime"]).timestamp()
            now = began + float(entry.get("time") or 0) / 1000
            body = response.get("content", {}).get("text")
            yield _seen(str(entry["request"]["url"]), int(response["status"]), pairs, body, now)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--har {path}: not a HAR export: {error!r}") from error


def _seen(
    url: str, status: int, pairs: list[tuple[str, str]], body: str | bytes | None, now: float
) -> Seen:
    index = Index(DIALECTS)
    spoken = [pair for pair in pairs if (field := index[pair[0]]) and field.role != "date"]
    return Seen(url, status, spoken, read_signal(status, pairs, body=body, now=now))


def suggestion(seen: Seen) -> str | None:
    """A line of configuration that keeps within what was said; None if no rate can be read."""
    signal = seen.signal
    quotas = [q for q in signal.quotas if q.unit == "requests" and q.limit and q.window_s]
    rates = sorted({f"{quota.limit}/{quota.window_s:g}s" for quota in quotas})
    if not rates and signal.limit and signal.window_s and signal.unit == "requests":
        rates = [f"{signal.limit}/{signal.window_s:g}s"]
    if not rates:
        return None
    limit = json.dumps(rates[0] if len(rates) == 1 else rates)
    return f"ThrottledSession(limits={{{json.dumps(_host(seen.url))}: {limit}}})"


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _show(seen: Seen) -> None:
    try:
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        raise missing("rich", "cli") from None
    console = Console(highlight=False)
    parts = urlsplit(seen.url)
    console.print(
        f"\n[bold]{seen.status}[/] {escape(parts.scheme)}://{escape(parts.netloc)}"
        f"{escape(parts.path)}"
    )
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in seen.fields:
        table.add_row(escape(name), escape(value))
    table.add_section()
    for field in fields(Signal):
        found: Any = getattr(seen.signal, field.name)
        if field.name != "quotas" and found != field.default:
            table.add_row(f"[bold]{field.name}[/]", escape(_plain(field.name, found)))
    for quota in seen.signal.quotas if len(seen.signal.quotas) > 1 else ():
        told = {name: value for name, value in quota._asdict().items() if value is not None}
        text = ", ".join(f"{name}={value}" for name, value in told.items())
        table.add_row("[bold]quota[/]", escape(text))
    if not table.row_count:
        console.print("  says nothing about limits")
        return
    console.print(table)
    line = suggestion(seen)
    if line is not None:
        console.print(f"  [bold]{escape(line)}[/]", soft_wrap=True)
    elif seen.signal.limit is not None:
        console.print("  names no window: a session learns the rest from each answer")


def _plain(name: str, value: object) -> str:
    return f"{value:.6g} s" if isinstance(value, float) and name.endswith("_s") else str(value)
