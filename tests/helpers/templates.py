"""A limiter of every kind, also in states that are easily forgotten, and calls to put it through.

For what must work for all of them: states that are written down, limits that are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import strategies as st

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    Rate,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)

MAKERS: dict[str, Callable[[], Limiter]] = {
    "token": lambda: TokenBucket(3, 5),
    "token-initial": lambda: TokenBucket(3, 5, initial=2),
    "token-unlimited": lambda: TokenBucket(inf),
    "token-never": lambda: TokenBucket(0, 5),
    "leaky": lambda: LeakyBucket(Rate(1, 3), 4),
    "log": lambda: SlidingWindowLog(4, 7),
    "counter": lambda: SlidingWindowCounter(4, 7),
    "fixed": lambda: FixedWindow(4, 7),
    "all": lambda: TokenBucket(3, 5) & SlidingWindowLog(9, 20),
    "all-nested": lambda: AllOf(AllOf(FixedWindow(4, 7), LeakyBucket(1, 6)), TokenBucket(2, 9)),
    "all-shared": lambda: _shared_member(TokenBucket(3, 5)),
    "all-initial": lambda: AllOf(TokenBucket(1, 5, initial=1), SlidingWindowLog(3, 9)),
}
EVERY = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

GAPS = st.floats(0, 9).map(lambda gap: round(gap, 3))
VERBS = st.sampled_from(["allow", "allow", "allow", "charge", "refund", "pause", "resume"])
SIZES = st.integers(1, 4)


def _shared_member(bucket: Limiter) -> Limiter:
    return AllOf(AllOf(bucket, SlidingWindowLog(9, 20)), bucket)
