"""The list of what is left to fetch, by host; on disk, so that memory does not grow with it.

State: a temporary database that sqlite deletes by itself, with a digest of each resource that was
ever asked about, and the URLs whose turn has not come. Invariant: a resource is handed out at most
once, whatever spellings of it the list holds.
"""

from __future__ import annotations

import hashlib
import sqlite3

from throttle.cli.target import Target

__all__ = ["Todo"]


class Todo:
    """In order of arrival for each host. Not for use by several threads."""

    def __init__(self) -> None:
        self._disk = sqlite3.connect("", isolation_level=None)
        self._disk.execute("PRAGMA journal_mode=OFF")
        self._disk.execute("PRAGMA cache_size=-16000")
        self._disk.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._disk.execute(
            "CREATE TABLE waiting (host TEXT, number INTEGER, url BLOB, key TEXT,"
            " PRIMARY KEY (host, number)) WITHOUT ROWID"
        )
        self._number = 0

    def is_new(self, key: str) -> bool:
        """Whether this resource has not been asked about yet; from now on it has."""
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        cursor = self._disk.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
        return cursor.rowcount == 1

    def add(self, target: Target) -> bool:
        """Put it at the end of its host's list, if it is new; whether it was."""
        if not self.is_new(target.key):
            return False
        self._number += 1
        url = target.url.encode("utf-8", "surrogateescape")
        self._disk.execute(
            "INSERT INTO waiting VALUES (?, ?, ?, ?)", (target.host, self._number, url, target.key)
        )
        return True

    def take(self, host: str) -> Target | None:
        """The next one for this host; None if there is none left."""
        row = self._disk.execute(
            "SELECT number, url, key FROM waiting WHERE host = ? ORDER BY number LIMIT 1", (host,)
        ).fetchone()
        if row is None:
            return None
        number, url, key = row
        self._disk.execute("DELETE FROM waiting WHERE host = ? AND number = ?", (host, number))
        return Target(url.decode("utf-8", "surrogateescape"), key, host)

    def close(self) -> None:
        self._disk.close()
