"""What `throttle fetch` keeps on disk: the files, and the manifest that says which are whole.

A body is written under a temporary name and renamed when it is complete; only then is its line
appended to `manifest.jsonl`. So every URL in the manifest has a whole file, whenever the program
was stopped, and a second run knows what is left to do. Which URLs have been seen is kept in a
temporary database and not in memory, which stays flat however long the list is.

Invariant: at most one line a URL says that it was fetched, and its file is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Store", "file_name"]

MANIFEST = "manifest.jsonl"
_PART = ".part"
_LONGEST_STEM = 80


class Store:
    """The folder of one download. Use as a context manager; ValueError if it is not a folder."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._manifest_path = folder / MANIFEST
        # "" is a database on disk that sqlite deletes by itself.
        self._index = sqlite3.connect("", isolation_level=None)
        self._index.execute("PRAGMA journal_mode=OFF")
        self._index.execute("CREATE TABLE seen (url BLOB PRIMARY KEY) WITHOUT ROWID")
        self.finished = 0  # fetched by earlier runs
        for part in folder.glob(f"**/*{_PART}"):
            part.unlink()  # of a run that was killed in the middle of a body
        self._tidy_manifest()
        self._manifest = self._manifest_path.open("a", encoding="utf-8")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._manifest.close()
        self._index.close()

    def is_new(self, url: str) -> bool:
        """Whether this URL has not been asked about yet, nor fetched by an earlier run."""
        digest = hashlib.blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        cursor = self._index.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
        return cursor.rowcount == 1

    def part(self, url: str) -> Path:
        """Where the body of this URL is written until it is whole."""
        path = self.folder / file_name(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + _PART)

    def keep(self, part: Path, url: str) -> str:
        """The body is whole; answers its name relative to the folder."""
        name = file_name(url)
        os.replace(part, self.folder / name)
        return name

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to the manifest, so that a kill at any moment leaves only whole lines."""
        self._manifest.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._manifest.flush()

    def _tidy_manifest(self) -> None:
        """Keep the lines of what earlier runs fetched; what failed will be tried anew."""
        if not self._manifest_path.exists():
            return
        tidy = self._manifest_path.with_name(MANIFEST + ".tidy")
        with self._manifest_path.open("rb") as old, tidy.open("wb") as new:
            for raw in old:
                line = _parsed(raw)
                name = line.get("file")
                whole = isinstance(name, str) and (self.folder / name).is_file()
                if whole and self.is_new(line["url"]):
                    self.finished += 1
                    new.write(raw)
        os.replace(tidy, self._manifest_path)


def _parsed(raw: bytes) -> dict[str, Any]:
    """A line of the manifest; empty if it is torn, as a kill may leave the last one."""
    try:
        line = json.loads(raw) if raw.endswith(b"\n") else None
    except ValueError:
        line = None
    return line if isinstance(line, dict) and isinstance(line.get("url"), str) else {}


def file_name(url: str) -> str:
    """A name for the body of `url`: safe on every system, readable, and different for each URL.

    `host/last-part-of-the-path-HASH.ext`: the hash keeps apart what differs in case, in the query
    or behind the cut, and no name is one that a system reserves.
    """
    parts = urlsplit(url)
    host = re.sub(r"[^a-z0-9.-]+", "_", (parts.netloc.rpartition("@")[2]).lower()).strip(".-_")
    last = unquote(parts.path.rstrip("/").rpartition("/")[2], errors="replace")
    stem, dot, extension = last.rpartition(".")
    if not dot or not re.fullmatch(r"[A-Za-z0-9]{1,8}", extension):
        stem, extension = last, ""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:_LONGEST_STEM].strip("-_") or "index"
    digest = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    ending = f".{extension.lower()}" if extension else ""
    return f"{host[:_LONGEST_STEM] or 'host'}/{stem}-{digest}{ending}"
