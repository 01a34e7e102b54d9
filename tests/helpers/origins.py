"""What a client holds."""

from __future__ import annotations

from throttle.http.call import Engine

__all__ = ["nothing_is_held"]


def nothing_is_held(engine: Engine) -> bool:
    """Whether origins are known, and at none a request is in flight, in line or has a slot."""
    origins = list(engine.routes)
    return bool(origins) and all(
        one.in_flight == 0 and one.waiting == 0 and (one.slots is None or one.slots.taken == 0)
        for one in origins
    )
