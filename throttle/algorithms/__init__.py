"""The classical algorithms, one file each. Pure: no clock, no await, no lock, no I/O.

Two methods decide (`_ready_at`, `_take`), and both take the instant as an argument. To add an
algorithm, write one file with those two and add one line to the table below.
"""

from __future__ import annotations

from throttle.algorithms.all_of import AllOf
from throttle.algorithms.bucket import Bucket
from throttle.algorithms.fixed_window import FixedWindow
from throttle.algorithms.leaky_bucket import LeakyBucket
from throttle.algorithms.ring_buffer import RingBuffer
from throttle.algorithms.sliding_window_counter import SlidingWindowCounter
from throttle.algorithms.sliding_window_log import SlidingWindowLog
from throttle.algorithms.token_bucket import TokenBucket
from throttle.algorithms.window import Window

__all__ = [
    "ALGORITHMS",
    "AllOf",
    "FixedWindow",
    "LeakyBucket",
    "RingBuffer",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "TokenBucket",
]

#: What a name on a command line, in a file or in a shared store stands for.
ALGORITHMS: dict[str, type[Bucket] | type[Window]] = {
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "sliding-log": SlidingWindowLog,
    "sliding-counter": SlidingWindowCounter,
    "fixed-window": FixedWindow,
}
