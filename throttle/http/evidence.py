"""What part of an answer is read to learn from it, the same for every HTTP library.

A throttle may show in the body alone (D14 of docs/signals.md); a body is looked at only where that
costs nothing. A refused response is read to its end if that is soon, so that its connection can be
used again.
"""

from __future__ import annotations

__all__ = ["DRAIN", "SMALL", "TELLING", "TEXTS", "UNREPLAYABLE"]

#: Bytes of a body that are read to learn from it, or to keep a connection for reuse.
SMALL = 65536
#: Seconds that may be spent on reading a refused response so that its connection can be reused.
DRAIN = 1.0
#: Statuses whose body may be evidence of a throttle, and the media types it may come in.
TELLING = frozenset({400, 403, 409, 418, 429, 503, 529})
TEXTS = frozenset(
    {"application/json", "application/problem+json", "application/xml", "text/xml", "text/plain"}
)
#: Why there is no other try of a request whose body is gone.
UNREPLAYABLE = "the body cannot be sent again"
