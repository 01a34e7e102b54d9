"""Where the URLs of `throttle fetch` come from: arguments, files, standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from throttle.cli.options import UsageError

__all__ = ["urls"]


def urls(words: Iterable[str]) -> Iterator[str]:
    """The URLs that the words name, one by one: a URL, `-` for standard input, or a file of them.

    Lists have one URL a line; blank lines and those that begin with `#` are passed over. A word
    that is neither a URL nor a file is a UsageError, before anything is fetched.
    """
    words = list(words)
    for word in words:
        if word != "-" and not _is_url(word) and not Path(word).is_file():
            raise UsageError(f"{word!r} is neither an http(s) URL nor a file")
    return _read(words)


def _read(words: list[str]) -> Iterator[str]:
    for word in words:
        if word == "-":
            yield from _lines(sys.stdin)
        elif _is_url(word):
            yield word
        else:
            with Path(word).open(encoding="utf-8", errors="surrogateescape") as file:
                yield from _lines(file)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        url = line.strip()
        if url and not url.startswith("#"):
            yield url


def _is_url(word: str) -> bool:
    return word.lower().startswith(("http://", "https://"))
