"""Typed options: what a word on the command line means, or an error that names both."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

from throttle.checks import positive, whole
from throttle.rate import Rate

__all__ = [
    "UsageError",
    "checked_rate",
    "count",
    "missing",
    "option",
    "rate",
    "seconds",
    "size",
]

T = TypeVar("T")

_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class UsageError(Exception):
    """What the user asked for cannot be done; the text says why, in a line."""


def missing(package: str, extra: str) -> UsageError:
    """The error for a part that is not installed."""
    return UsageError(f"needs {package}: pip install 'throttle-asyncio[{extra}]'")


def option(read: Callable[[str], T]) -> Callable[[str], T]:
    """A type for argparse that keeps the reader's own message."""

    def typed(word: str) -> T:
        try:
            return read(word)
        except (ValueError, TypeError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def checked_rate(value: Any) -> Rate:
    """A rate in any spelling, above 0. ValueError or TypeError."""
    parsed = Rate.parse(value)
    if not parsed.count:
        raise ValueError(f"rate must be above 0, not {value!r}")
    return parsed


@option
def rate(word: str) -> Rate:
    """`5/s`, `100/minute`, `10` (per second)."""
    return checked_rate(word)


@option
def seconds(word: str) -> float:
    """A number of seconds, above 0."""
    return positive("seconds", _number(word))


@option
def count(word: str) -> int:
    """A whole number, at least 1."""
    return whole("number", _number(word), least=1)


@option
def size(word: str) -> int:
    """Bytes: `10M`, `500k`, `4096`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", word.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"size must look like 4096, 500k or 10M, not {word!r}")
    return whole("size", round(float(match[1]) * _SIZES[match[2].lower()]), least=1)


def _number(word: str) -> Any:
    try:
        return int(word)
    except ValueError:
        return float(word)
