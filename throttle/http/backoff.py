"""How long to wait of one's own accord before trying again, and how to spread what was asked.

Pure: the random source is an argument, a function that answers a float in [0, 1) such as
`random.random`. Invariant: jitter on a wait that a server asked for only adds to it.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["RandomSource", "ceiling", "full_jitter", "stretched"]

RandomSource = Callable[[], float]

# 2.0**1024 is beyond a float; whatever the base, the cap is reached long before.
_LARGEST_EXPONENT = 1023


def ceiling(attempt: int, base: float, cap: float) -> float:
    """min(cap, base · 2^attempt), in seconds; `attempt` counts from 0. Never overflows."""
    return min(cap, base * 2.0 ** min(attempt, _LARGEST_EXPONENT))


def full_jitter(
    attempt: int, base: float, cap: float, random: RandomSource, *, minimum: float = 0.0
) -> float:
    """A delay drawn evenly from [minimum, ceiling], in seconds, and never below the minimum.

    "Full jitter": Marc Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015. Of
    the schemes compared there it causes the fewest calls for the same progress.
    """
    return minimum + random() * max(ceiling(attempt, base, cap) - minimum, 0.0)


def stretched(asked: float, share: float, most: float, random: RandomSource) -> float:
    """`asked` and up to `share` of it more, but at most `most` more, in seconds.

    Callers who were told the same number then do not all return at the same instant.
    """
    return asked + random() * min(share * asked, most)
