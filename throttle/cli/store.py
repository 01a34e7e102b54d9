"""What `throttle fetch` keeps on disk: the files, and the manifest that says which are whole.

A body is written under a temporary name in a folder of its own (`.parts`) and renamed when it is
complete; only then is its line appended to `manifest.jsonl`. So every URL in the manifest has a
whole file, whenever the program was stopped, and a second run knows what is left to do.

Invariants: at most one line a resource says that it was fetched, and its file is complete; no file
that the command did not write itself is touched; one run at a time works in a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["MANIFEST", "Store", "file_name"]

MANIFEST = "manifest.jsonl"
#: Failures that are told at the end; the manifest has all.
_TOLD = 3
_PARTS = ".parts"
_LONGEST_STEM = 80
#: Names that Windows keeps for devices, whatever the ending; and one that is kept for us.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?|manifest\.jsonl", re.IGNORECASE)


class Store:
    """The folder of one download, as a context manager.

    `is_finished` – called with the URL of each line of what earlier runs have fetched, whether it
    is to be kept (a second line for one resource is not). ValueError if `folder` is no folder, or
    another run is at work in it; OSError where it cannot be written to.
    """

    def __init__(self, folder: Path, is_finished: Callable[[str], bool]) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.finished = 0
        """Fetched by earlier runs."""
        self.troubles: list[str] = []  # the first failures of this run
        self._manifest_path = folder / MANIFEST
        self._parts = folder / _PARTS
        self._number = 0
        self._lock = _locked(folder)
        try:
            self._parts.mkdir(exist_ok=True)
            self._clear_parts()  # of a run that was killed in the middle of a body
            self._tidy_manifest(is_finished)
            self._manifest = self._manifest_path.open("ab")
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._manifest.close()
        self._clear_parts()
        with suppress(OSError):
            self._parts.rmdir()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def part(self) -> Path:
        """Where a body is written until it is whole."""
        self._number += 1
        return self._parts / str(self._number)

    def keep(self, part: Path, key: str) -> str:
        """The body of this resource is whole; answers its name relative to the folder."""
        name = file_name(key)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, path)
        return name

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to the manifest: in one write, so that a kill tears none in the middle."""
        self._manifest.write(json.dumps(line).encode("ascii") + b"\n")
        self._manifest.flush()
        if "error" in line and len(self.troubles) < _TOLD:
            self.troubles.append(f"{line['url']}: {line['error']}")

    @property
    def manifest(self) -> Path:
        """Where the manifest lies."""
        return self._manifest_path

    def _clear_parts(self) -> None:
        for part in self._parts.iterdir():
            if part.name.isdecimal() or part.name == MANIFEST:  # the rest is somebody else's
                part.unlink()

    def _tidy_manifest(self, is_finished: Callable[[str], bool]) -> None:
        """Keep the lines of what earlier runs fetched; what failed will be tried anew."""
        if not self._manifest_path.exists():
            return
        tidy = self._parts / MANIFEST
        with self._manifest_path.open("rb") as old, tidy.open("wb") as new:
            for raw in old:
                line = _parsed(raw)
                if self._is_whole(line) and is_finished(line["url"]):
                    self.finished += 1
                    new.write(raw)
        os.replace(tidy, self._manifest_path)

    def _is_whole(self, line: dict[str, Any]) -> bool:
        name = line.get("file")
        if not isinstance(name, str):
            return False
        try:
            return (self.folder / name).stat().st_size == line.get("bytes")
        except (OSError, ValueError):
            return False


def _locked(folder: Path) -> int | None:
    """A lock on the folder itself, which dies with its holder; None where systems have none."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(f"another run is at work in {str(folder)!r}") from None
    except OSError:  # a file system that knows no locks
        os.close(descriptor)
        return None
    return descriptor


def _parsed(raw: bytes) -> dict[str, Any]:
    """A line of the manifest; empty if it is torn, as a kill may leave the last one."""
    try:
        line = json.loads(raw) if raw.endswith(b"\n") else None
    except (ValueError, RecursionError):
        line = None
    return line if isinstance(line, dict) and isinstance(line.get("url"), str) else {}


def file_name(url: str) -> str:
    """A name for the body of `url`: safe on every system, readable, and different for each URL.

    `host/last-part-of-the-path-HASH.ext`: the hash keeps apart what differs in case, in the query
    or behind the cut, and no name is one that a system reserves.
    """
    parts = urlsplit(url)
    host = re.sub(r"[^a-z0-9.-]+", "_", (parts.netloc.rpartition("@")[2]).lower())
    host = host[:_LONGEST_STEM].strip(".-_") or "host"
    if _RESERVED.fullmatch(host):
        host = f"host-{host}"
    last = unquote(parts.path.rstrip("/").rpartition("/")[2], errors="replace")
    stem, dot, extension = last.rpartition(".")
    if not dot or not re.fullmatch(r"[A-Za-z0-9]{1,8}", extension):
        stem, extension = last, ""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:_LONGEST_STEM].strip("-_") or "index"
    digest = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    ending = f".{extension.lower()}" if extension else ""
    return f"{host}/{stem}-{digest}{ending}"
