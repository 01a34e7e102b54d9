"""What happens inside a client, for whoever wants to watch: frozen events, hooks, and the log.

Nothing secret leaves through here: a URL is shown as origin and path, without query, fragment or
user, and no header is shown at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from yarl import URL

from throttle.http.signals import Signal

__all__ = ["Hooks", "Retried", "Signalled", "Waited", "shown"]

log = logging.getLogger("throttle")


@dataclass(frozen=True, slots=True)
class Waited:
    """A request waited for its turn. `seconds` – how long; `method`, `url` (no query) – whose."""

    origin: str
    method: str
    url: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Retried:
    """A try failed. `wait` – seconds until the next one; None if there is none, and `reason` why.

    `attempt` – the number of the try that failed, from 1; `status` – of its answer, or None;
    `error` – what broke the connection, or None.
    """

    origin: str
    method: str
    url: str
    attempt: int
    status: int | None
    error: BaseException | None
    wait: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Signalled:
    """A response spoke about limits. `signal` – what it said."""

    origin: str
    method: str
    url: str
    status: int
    signal: Signal


Event = TypeVar("Event", Waited, Retried, Signalled)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions called with each event. One that raises is logged; the request goes on."""

    on_wait: Callable[[Waited], object] | None = None
    on_retry: Callable[[Retried], object] | None = None
    on_signal: Callable[[Signalled], object] | None = None

    def waited(self, event: Waited) -> None:
        log.debug("%s %s waited %.3f s for its turn", event.method, event.url, event.seconds)
        _call(self.on_wait, event)

    def retried(self, event: Retried) -> None:
        what = event.status if event.error is None else type(event.error).__name__
        if event.wait is None:
            log.warning(
                "%s %s: %s, try %d; no other: %s",
                event.method, event.url, what, event.attempt, event.reason,
            )  # fmt: skip
        else:
            log.info(
                "%s %s: %s, try %d; next in %.3f s (%s)",
                event.method, event.url, what, event.attempt, event.wait, event.reason,
            )  # fmt: skip
        _call(self.on_retry, event)

    def signalled(self, event: Signalled) -> None:
        _call(self.on_signal, event)


def _call(hook: Callable[[Event], object] | None, event: Event) -> None:
    if hook is not None:
        try:
            hook(event)
        except Exception:
            log.exception("a hook failed on %s %s", event.method, event.url)


def shown(url: URL) -> str:
    """A URL without what may be secret: user, query and fragment."""
    return f"{url.origin()}{url.raw_path}"
