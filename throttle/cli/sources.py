"""Where the URLs of `throttle fetch` come from: arguments, files, standard input.

A list is read in pieces as they come, by a thread of its own: a slow producer at the other end of a
pipe holds up nobody, and memory is the same for ten URLs and for ten million. The thread reads from
the descriptor, not from `sys.stdin`: the interpreter could not end while that is being read.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from throttle.cli.options import UsageError

__all__ = ["check", "pieces", "read_ahead"]

_PIECE = 16384
#: Bytes without an end of line that are taken for a line; no URL is that long.
_LONGEST = 2**20
_COMMENT = re.compile(r"(?:^|\s)\s*#")
#: Pieces that may wait to be used.
_AHEAD = 4


def check(words: Iterable[str]) -> None:
    """UsageError for a word that is neither a URL, nor a file, nor `-`."""
    for word in words:
        if word != "-" and not _is_url(word) and not Path(word).exists():
            raise UsageError(f"{word!r} is neither an http(s) URL nor a file")


def pieces(words: Iterable[str]) -> Iterator[list[str]]:
    """The URLs that the words name, some at a time: a URL, `-` for standard input, or a file.

    Lists have one URL a line; blank lines are passed over, and what follows a `#` that begins a
    line or stands behind a space: a `#` inside a URL is its fragment.
    """
    for word in words:
        if _is_url(word):
            yield [word]
        elif word == "-":
            yield from _lines(_standard_input())
        else:
            descriptor = os.open(word, os.O_RDONLY)
            try:
                yield from _lines(_chunks(descriptor))
            finally:
                os.close(descriptor)


async def read_ahead(source: Iterator[list[str]]) -> AsyncIterator[list[str]]:
    """The same, read by a thread. What that raises (OSError) is raised here."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[list[str] | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)

    def read() -> None:
        last: Exception | None = None
        with suppress(RuntimeError):  # the loop has ended: nobody wants the rest
            try:
                for piece in source:
                    room.acquire()
                    loop.call_soon_threadsafe(ready.put_nowait, piece)
            except OSError as error:
                last = error
            loop.call_soon_threadsafe(ready.put_nowait, last)

    threading.Thread(target=read, name="throttle-list", daemon=True).start()
    while (piece := await ready.get()) is not None:
        if isinstance(piece, Exception):
            raise piece
        room.release()
        yield piece


def _is_url(word: str) -> bool:
    return word.lower().startswith(("http://", "https://"))


def _standard_input() -> Iterator[bytes]:
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, AttributeError):  # replaced by something that only looks like a file
        return iter([sys.stdin.read().encode("utf-8", "surrogateescape")])
    return _chunks(descriptor)


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _PIECE):
        yield chunk


def _lines(chunks: Iterable[bytes]) -> Iterator[list[str]]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST:
            lines.append(rest)
            rest = b""
        if piece := list(_urls(lines)):
            yield piece
    if piece := list(_urls([rest])):
        yield piece


def _urls(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        text = line.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        url = _COMMENT.split(text, maxsplit=1)[0].strip()
        if url:
            yield url
