"""How fast to go on after a server said stop, so that the line drains evenly and not as a stampede.

What is known of the server's rate, the best first: what it told (a limit and its window); what it
did (how many requests it let in between two stops, over the time that took); what the user
configured; else that all who wait shall go within as long as the pause was.

The pace found holds for one span after the pause, then it grows by half each span, as long as
somebody waits, until the configured rate governs alone. A rate that is found a second time was no
accident: it then holds for twice as many spans as the time before. A quota of a day may make the
pace so slow that spans go by between one request and the next; growth counts in the middle of a
wait too (`pace`), or that quota would shut out for hours a client that was told "two seconds".

Pure: `now` is an argument. Invariant: the pace is never above the configured rate.
"""

from __future__ import annotations

from math import inf

__all__ = ["Recovery"]

#: Fewer requests than this say nothing about a rate.
_ENOUGH = 5
#: Seconds without an answer after which a new stretch of work has begun.
_IDLE = 2.0
#: Seconds: a span is as long as the pause, within these.
_SHORTEST, _LONGEST = 1.0, 10.0
_GROWTH = 1.5
#: The share of a server's own rate to keep to: requests arrive less regularly than they leave.
_CARE = 0.95
_SAME = 0.3
_MOST_SPANS = 16
#: Spans of growth after which any pace is as good as none, and still a float.
_MANY = 1000


class Recovery:
    """`rate` – permits per second, inf = no pace; `until` – the instant at which `step` is due."""

    __slots__ = (
        "_found",
        "_last",
        "_most",
        "_resumes",
        "_served",
        "_since",
        "_span",
        "_spans",
        "rate",
        "until",
    )

    def __init__(self) -> None:
        self.rate = inf
        self.until = inf
        self._most = inf  # the configured rate
        self._served = 0  # requests let in since `_since`
        self._since = self._last = -inf
        self._resumes = -inf  # when the last pause ends
        self._found: float | None = None
        self._span = _SHORTEST
        self._spans = 1

    def served(self, now: float) -> None:
        """A request was answered, and not refused."""
        if now < self._since:  # it was sent before the pause that is on
            return
        if now - self._last > _IDLE:
            self._since, self._served = now, 0
        self._served += 1
        self._last = now

    def pause(
        self,
        now: float,
        seconds: float,
        *,
        rate: float = inf,
        window: float = inf,
        told: float | None = None,
        crowd: int = 0,
    ) -> None:
        """The server asked for a pause.

        `rate`, `window` – as configured, in permits per second and seconds; `told` – the server's
        own rate, if it said; `crowd` – how many requests wait or are on their way.
        """
        resumes = now + seconds
        if now < self._resumes:  # others of the same wave were told to wait longer
            self.until += resumes - self._resumes
            self._resumes = self._since = resumes
            return
        found = told
        if found is None and self._served >= _ENOUGH:
            found = self._served / max(now - self._since, seconds)
        again = found is not None and self._found is not None
        again = again and abs(found - self._found) <= _SAME * self._found  # type: ignore[operator]
        self._spans = min(2 * self._spans, _MOST_SPANS) if again else 1
        self._found, self._most = found, rate
        self._span = min(max(seconds, _SHORTEST), _LONGEST, window)
        if found is None:
            found = rate if rate < inf else max(crowd, 1) / self._span
            self.rate = found
        else:
            self.rate = min(found * _CARE, rate)
        self.until = resumes + self._span * self._spans
        self._resumes = self._since = resumes
        self._served = 0

    def step(self, now: float, *, crowd: int) -> None:
        """`until` has come: go faster, or end if nobody waits or the configured rate is reached."""
        passed = min((now - self.until) // self._span, _MANY)  # spans in which nobody went
        faster = self.rate * _GROWTH ** (1 + passed)
        if crowd and faster < self._most:
            self.rate, self.until = faster, now + self._span
        else:
            self.rate = self.until = inf

    def pace(self, now: float) -> float:
        """The rate at which the next permit after one at `now` is earned, growth included."""
        start = at = max(now, self._resumes)
        rate, until, earned = self.rate, self.until, 0.0
        while earned + rate * (until - at) < 1:
            earned += rate * (until - at)
            at, until, rate = until, until + self._span, rate * _GROWTH
            if rate >= self._most:
                return 1 / (at - start) if at > start else inf
        return rate if at == start else 1 / (at - start + (1 - earned) / rate)
