"""Token bucket: tokens drip in at `rate` up to `capacity`; each call takes some.

After a quiet spell a burst of `capacity` may go at once; then only as fast as tokens drip. Nothing
drips by a timer: what has come in is computed when somebody asks. The arithmetic is in `bucket`.

Promise: in any interval of t seconds at most `capacity + rate * t` permits (callers of `acquire`:
`capacity + rate * (t + slack)`). That is more than `rate * t`, which only a window promises.

>>> bucket = TokenBucket(rate=1, capacity=5)
>>> [bucket.allow(now=0.0) for _ in range(6)]
[True, True, True, True, True, False]
>>> bucket.ready_at(now=0.0), bucket.allow(now=1.0)
(1.0, True)
"""

from __future__ import annotations

from typing import final

from throttle.algorithms.bucket import Bucket

__all__ = ["TokenBucket"]


@final
class TokenBucket(Bucket):
    """Average `rate`, bursts to `capacity` (default: the rate's count, at least 1).

    `initial` – tokens at the start (default: full); `slack` – seconds by which a late wake-up may
    still be charged on plan (0 is strict). A rate of 0 never refills, inf never limits. Source of
    the algorithm: Turner, "New directions in communications", 1986; the name is Go's and the lab's.
    """

    __slots__ = ()
