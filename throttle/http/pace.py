"""How long to leave a host alone between two requests: the slowest of all that apply. Pure.

Three have a say: who configured it, the host's robots.txt (`ask`), and how it answers (`answered`):
a host that takes long to answer is given as much time to rest, and one that says 429 or 503 twice
what it had. The last is Scrapy's AutoThrottle with two changes: only a success may lower the delay
(error pages are cheap and come back fast), and a refusal raises it.

State: what each of the three says now. Invariant: the delay is never below the configured one, nor
below what robots.txt asks; what was learned is forgotten after `_MEMORY` seconds without an answer.
"""

from __future__ import annotations

from math import inf

__all__ = ["Pace"]

_MEMORY = 3600.0
_LEAST_RAISED = 1.0


class Pace:
    """`configured` – seconds; `most` – the longest delay that may be learned; `adapts` – whether
    any may. Instants (`now`) are monotonic seconds."""

    __slots__ = (
        "_adapts",
        "_asked_by",
        "_most",
        "_raised",
        "asked",
        "configured",
        "learned",
        "until",
    )

    def __init__(self, configured: float, *, most: float, adapts: bool = True) -> None:
        self.configured = configured
        self.asked = 0.0
        self.learned = 0.0
        self.until = -inf  # the instant at which what was learned is forgotten
        self._asked_by: object = None
        self._most = most
        self._adapts = adapts
        self._raised = -inf

    @property
    def delay(self) -> float:
        """Seconds."""
        return max(self.configured, self.asked, self.learned)

    def ask(self, site: object, seconds: float) -> None:
        """A site's robots.txt asks for so many seconds; 0: for none.

        Sites that share a pace (two schemes of a host, or two hosts of an address) ask anew before
        each request of theirs, so that it is enough to know who asks for most.
        """
        if seconds >= self.asked or site == self._asked_by:
            self.asked, self._asked_by = seconds, site

    def answered(self, status: int, seconds: float, throttled: bool, now: float) -> None:
        """An answer came after so many seconds."""
        if not self._adapts:
            return
        if now >= self.until:
            self.learned = 0.0
        old = max(self.learned, self.configured)
        if throttled or status in (429, 503):
            # Requests that were in flight together are refused together: that is one refusal.
            if now - self._raised >= self.delay / 2:
                self.learned = min(max(2 * self.delay, _LEAST_RAISED), self._most)
                self._raised = now
        else:
            new = min(max(seconds, (old + seconds) / 2), self._most)
            self.learned = new if 200 <= status < 300 else max(old, new)
        self.until = now + _MEMORY if self.learned > self.configured else -inf
