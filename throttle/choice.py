"""Which limiter a bare rate means. A bare rate means what it says.

"100/minute" promises never more than 100 in any minute, so without a `burst` it is a sliding window
log. A bucket would let 199 calls through in the first minute: the most repeated complaint about
limiters of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from throttle.algorithms import AllOf, SlidingWindowLog, TokenBucket
from throttle.checks import positive
from throttle.limiter import Limiter
from throttle.rate import Rate, RateLike

__all__ = ["limiter_for"]

_OF_ALL = ("max_waiting", "on_wait")


def limiter_for(
    rate: RateLike | Iterable[RateLike], burst: float | None = None, **options: Any
) -> Limiter:
    """The limiter for a rate in any spelling, or for several that all hold.

    Without `burst`: never more than N in any T (`SlidingWindowLog`); a rate whose count is not
    whole becomes 1 per 1/rate. With `burst=b`: a `TokenBucket` of capacity b; `burst=1` paces
    evenly. `options` go to the limiter (`clock=`, `max_waiting=`, `on_wait=`). A rate that does not
    parse, or is 0, is a ValueError or TypeError naming it.
    """
    if not isinstance(rate, (str, bytes, Rate)) and isinstance(rate, Iterable):
        rates = list(rate)
        if not rates:
            raise ValueError("rate: at least one is needed")
        if len(rates) == 1:
            return limiter_for(rates[0], burst, **options)
        # Callers wait for all of them together, so a bound on waiting, or a watcher, is not theirs.
        common = {name: options.pop(name) for name in _OF_ALL if name in options}
        return AllOf(*(limiter_for(one, burst, **options) for one in rates), **common)
    parsed = Rate.parse(rate)  # type: ignore[arg-type]  # bytes are refused there
    positive("rate", parsed.count, infinite=True)
    if burst is not None:
        return TokenBucket(parsed, positive("burst", burst), **options)
    if parsed.count == inf:
        return TokenBucket(parsed, **options)
    return SlidingWindowLog.from_rate(parsed, **options)
