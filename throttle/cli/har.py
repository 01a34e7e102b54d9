"""Responses that a browser recorded: the HAR export of its developer tools (HAR 1.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from throttle.cli.options import UsageError

__all__ = ["Recorded", "recorded"]


class Recorded(NamedTuple):
    """One response. `at` – the wall clock at its receipt, epoch seconds."""

    url: str
    status: int
    headers: list[tuple[str, str]]
    body: str | None
    at: float


def recorded(path: Path) -> Iterator[Recorded]:
    """The responses in a file, in order; requests that got none are passed over. UsageError."""
    try:
        for entry in json.loads(path.read_text(encoding="utf-8-sig"))["log"]["entries"]:
            response = entry["response"]
            if not response["status"]:  # blocked, or cancelled
                continue
            began = datetime.fromisoformat(entry["startedDateTime"]).timestamp()
            yield Recorded(
                str(entry["request"]["url"]),
                int(response["status"]),
                [(str(one["name"]), str(one["value"])) for one in response["headers"]],
                response.get("content", {}).get("text"),
                began + float(entry.get("time") or 0) / 1000,
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--har {path}: not a HAR export: {error!r}") from error
