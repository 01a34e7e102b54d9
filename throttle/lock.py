"""The lock of all decisions: one for the process, and that is on purpose.

A decision takes well under a microsecond and no wait ever happens under the lock. So composites
need no order of locking, a key of a large table costs no lock of its own, and a fork can be made
safe in one place: nobody is in the middle of a decision when the process splits.

It is re-entrant, because the garbage collector may close an abandoned `acquire()` while a decision
is being made; see `throttle.waiting.leave`.
"""

from __future__ import annotations

import os
import threading

__all__ = ["LOCK"]

LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )
