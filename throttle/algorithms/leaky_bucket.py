"""Leaky bucket: each call pours water in, a hole lets it out at `rate`.

Two things go by this name. As a meter (`allow`, `delay`) a call fits or overflows: the mirror image
of a token bucket. As a queue (`acquire`) a call leaves when all that was poured before it has
leaked out, so that the output is even at `rate` whatever comes in: nginx's `limit_req` without and
with its delay. `_departs_at` is all that differs. The arithmetic is in `bucket`.

Promise: `allow` – at most `capacity + rate * t` in any t seconds. `acquire` – each call leaves
`previous cost / rate` seconds after the one before, at the earliest.

>>> bucket = LeakyBucket(rate=1, capacity=2)
>>> [bucket.allow(now=0.0) for _ in range(3)], bucket.water(now=0.5)
([True, True, False], 1.5)
"""

from __future__ import annotations

from math import inf
from typing import final

from throttle.algorithms.bucket import Bucket
from throttle.clock import or_now

__all__ = ["LeakyBucket"]


@final
class LeakyBucket(Bucket):
    """An even output at `rate`; `capacity` is how much water fits (default: the rate's count).

    `initial` – room at the start (default: dry, all of it); `slack` as in TokenBucket. Source: the
    lab; nginx `ngx_http_limit_req_module`, whose `burst` is `capacity - 1`.
    """

    __slots__ = ()

    def _departs_at(self, now: float, cost: float) -> float:
        fits = self._ready_at(now, cost)
        if fits == inf or self._rate == inf:
            return fits
        return or_now(self._full_at(), now)  # full of tokens: dry of water

    def water(self, now: float | None = None) -> float:
        """How much is in the bucket at `now`, in permits; more than fits in debt."""
        return self._capacity - self._level(now)
