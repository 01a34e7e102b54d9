"""What happened at each host: the numbers of the progress and of the summary. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """One host. Instants and durations in seconds, sizes in bytes."""

    listed: int = 0
    fetched: int = 0
    failed: int = 0
    forbidden: int = 0
    """Of those that failed: what robots.txt forbids."""
    refused: int = 0
    """Answers with status 429."""
    sent: int = 0
    """Requests, those that were tried again included."""
    waited: float = 0.0
    size: int = 0
    unanswered: int = 0
    """URLs in a row that got no answer at all."""
    delay: float = 0.0
    """Seconds between requests that the host asked for, or taught."""
    began: float = inf
    ended: float = -inf
    together: Tally | None = None
    """The sum of all hosts, which counts along."""

    @property
    def done(self) -> int:
        """URLs that are finished, well or not."""
        return self.fetched + self.failed

    def count(self, **more: float) -> None:
        """Add to these numbers."""
        for name, amount in more.items():
            setattr(self, name, getattr(self, name) + amount)
        if self.together is not None:
            self.together.count(**more)

    def note(self, now: float, requests: int) -> None:
        """So many requests have been made by now."""
        if not requests:
            return
        self.sent += requests
        self.began = min(self.began, now)
        self.ended = max(self.ended, now)

    def rate(self, window: float) -> float:
        """Requests a second, of a host that allows so many in any `window` seconds.

        The last window counts in full: who keeps to N in T is never told to have made more than
        N/T, although all the N were made at its beginning.
        """
        if not self.sent:
            return 0.0
        return self.sent / (self.ended - self.began + window)
