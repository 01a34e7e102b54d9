"""One URL of a bulk download: asked for, streamed to disk, and told of in a line.

The session waits for the turn and tries again where an answer, or a connection, failed before the
body. What breaks in the middle of a body is tried again here, from its beginning. Invariants: a
body is kept only if all of it came, and what is kept is what the server meant (a content coding is
undone); a URL is tried at most `tries` times.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import hdrs
from yarl import URL

from throttle.cli.options import UsageError
from throttle.cli.store import Store
from throttle.cli.tally import Tally
from throttle.cli.target import Target
from throttle.errors import RobotsDisallowed, ThrottleError
from throttle.http.backoff import full_jitter
from throttle.http.events import Retried, Waited
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession

__all__ = ["Download", "on_retry", "on_wait"]

_CHUNK = 65536
#: URLs in a row without any answer after which a host is taken for dead.
_DEAD = 5
_BASE, _CAP = 0.5, 10.0  # seconds of backoff after a body that broke


class _RefusedError(Exception):
    """The answer is not what was asked for, and would not be at another try."""


@dataclass(slots=True)
class _Job:
    """What has happened to a URL so far."""

    tries: int = 0
    """Requests that were sent for it and answered, or failed; the one under way is not counted."""
    waited: float = 0.0
    part: Path | None = None
    """Its whole body, under a temporary name."""


_job: ContextVar[_Job] = ContextVar("job")


def on_wait(event: Waited) -> None:
    """A hook for the session."""
    job = _job.get(None)
    if job is not None:
        job.waited += event.seconds


def on_retry(event: Retried) -> None:
    """A hook for the session."""
    job = _job.get(None)
    if job is not None and event.wait is not None and not event.url.endswith("/robots.txt"):
        job.tries += 1
        job.waited += event.wait


class Download:
    """What is the same for all URLs of a run.

    `retry` – the policy; `most` – bytes a body may have, or None; `fatal` – errors that are not a
    URL's but the run's: they are raised.
    """

    def __init__(
        self,
        session: ThrottledSession,
        store: Store,
        retry: Retry,
        *,
        most: int | None,
        fatal: tuple[type[BaseException], ...],
    ) -> None:
        self._session = session
        self._store = store
        self._retry = retry
        self._most = most
        self._fatal = fatal

    async def __call__(self, target: Target, tally: Tally) -> None:
        """Fetch it, and write its line into the manifest. UsageError: the disk is full, or gone."""
        line: dict[str, Any] = {"url": target.url, "status": None}
        job = _Job()
        if tally.unanswered >= _DEAD:
            line["error"] = f"not tried: {_DEAD} URLs of {target.host} in a row got no answer"
        else:
            _job.set(job)
            try:
                await self._fetch(target, job, line, tally)
            except (
                aiohttp.ClientError,
                ThrottleError,
                TimeoutError,
                OSError,
                ValueError,
                _RefusedError,
            ) as error:
                if isinstance(error, self._fatal) or isinstance(error.__cause__, self._fatal):
                    raise
                line["error"] = _told(error)
                if isinstance(error, RobotsDisallowed) and error.reason is None:
                    tally.count(forbidden=1)
        line["tries"], line["waited"] = job.tries, round(job.waited, 3)
        if job.part is None:
            tally.count(failed=1, waited=job.waited)
        else:
            tally.count(fetched=1, size=line["bytes"], waited=job.waited)
            line["file"] = self._keep(job.part, target.key)
        self._store.write(line)  # at once: a kill in between would have it fetched again

    def _keep(self, part: Path, key: str) -> str:
        try:
            return self._store.keep(part, key)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write to {self._store.folder}: {error}")

    async def _fetch(self, target: Target, job: _Job, line: dict[str, Any], tally: Tally) -> None:
        while not await self._try(target, job, line, tally):
            wait = full_jitter(job.tries - 1, _BASE, _CAP, random.random)
            await asyncio.sleep(wait)
            job.waited += wait

    async def _try(self, target: Target, job: _Job, line: dict[str, Any], tally: Tally) -> bool:
        """Ask until there is an answer, and save its body; False: it broke, and may be tried again.

        What is cancelled was not tried, as far as anybody knows.
        """
        before, answered = job.tries, False
        url = URL(target.key, encoded=True)
        retry = replace(self._retry, attempts=self._retry.attempts - before)
        try:
            async with self._session.using(retry=retry).get(
                url, headers={hdrs.ACCEPT_ENCODING: "gzip"}, auto_decompress=False
            ) as response:
                answered = True
                tally.unanswered = 0
                line["status"] = response.status
                if response.url != url:
                    line["final"] = str(response.url)
                part = await self._save(response, line)
            job.tries += 1
            job.part = part
            return True
        except RobotsDisallowed:
            raise  # nothing was sent
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
            job.tries += 1
            tally.unanswered += not answered
            if answered and job.tries < self._retry.attempts:
                return False
            raise
        except Exception:
            job.tries += 1
            raise
        finally:
            tally.note(time.monotonic(), job.tries - before)

    async def _save(self, response: aiohttp.ClientResponse, line: dict[str, Any]) -> Path:
        """Stream the body to disk, and tell of it in the line; its temporary name."""
        if not 200 <= response.status < 300 or response.status == 206:
            raise _RefusedError(f"status {response.status}")
        self._check_size(response.content_length or 0)
        decoder = _decoder(response)
        size, digest, part = 0, hashlib.sha256(), self._store.part()
        try:
            with part.open("wb") as file:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    for piece in decoder.pieces(chunk):
                        size += len(piece)
                        self._check_size(size)
                        digest.update(piece)
                        file.write(piece)
                decoder.finish()
        except OSError as error:
            part.unlink(missing_ok=True)
            if isinstance(error, (aiohttp.ClientError, TimeoutError)):
                raise
            raise self._unwritable(error) from error
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        line["bytes"], line["sha256"] = size, digest.hexdigest()
        return part

    def _check_size(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise _RefusedError(f"the body is larger than --max-bytes {self._most}")


def _told(error: BaseException) -> str:
    text = str(error)
    kind = type(error).__name__
    if isinstance(error, (ThrottleError, _RefusedError)) and text:
        return text
    return f"{kind}: {text}" if text else kind


# -------------------------------------------------------------------- content codings


class _Plain:
    """No coding."""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def finish(self) -> None:
        pass


class _Gzip:
    """gzip, one member or several. Cut short it is an error, which aiohttp's own reader lets pass.

    A chunk is undone in pieces of bounded size: some kilobytes may stand for gigabytes.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._begun = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        piece = b""
        try:
            while chunk or len(piece) == _CHUNK:
                self._begun = True
                if self._member.eof:
                    chunk = chunk.lstrip(b"\0")  # padding, as behind the end of a tape
                    if not chunk:
                        return
                    self._member = zlib.decompressobj(31)
                piece = self._member.decompress(chunk, _CHUNK)
                chunk = self._member.unconsumed_tail or self._member.unused_data
                if piece:
                    yield piece
        except zlib.error as error:
            raise aiohttp.ClientPayloadError(f"the gzip coding is broken: {error}") from None

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise aiohttp.ClientPayloadError("the gzip coding is cut short")


def _decoder(response: aiohttp.ClientResponse) -> _Plain | _Gzip:
    coding = response.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if coding in ("", "identity"):
        return _Plain()
    if coding in ("gzip", "x-gzip"):
        return _Gzip()
    raise _RefusedError(f"Content-Encoding {coding!r} was not asked for")
