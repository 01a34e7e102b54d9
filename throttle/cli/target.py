"""A URL of the list: which resource it names, at which host, and whether that is this machine."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from yarl import URL

from throttle.http.routes import host_of

#: Bytes of a list that are not UTF-8, as they stand in a text.
_BYTE = re.compile("[\udc80-\udcff]")

__all__ = ["Target", "is_here", "target"]


class Target(NamedTuple):
    """`url` – as it was listed; `key` – the same for all spellings of one resource; `host`."""

    url: str
    key: str
    host: str


def target(url: str) -> Target:
    """ValueError for what is no http(s) URL."""
    try:
        parsed = URL(_BYTE.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", url))
        host = host_of(parsed)
        if parsed.scheme not in ("http", "https") or not host:
            raise ValueError(f"the scheme is {parsed.scheme!r}, the host {host!r}")
        origin = parsed.with_host(host).origin()
    except (ValueError, TypeError) as error:
        raise ValueError(f"not an http(s) URL: {error}") from None
    # The fragment is not sent; two that differ in nothing else are one request.
    user = f"{parsed.raw_user}:{parsed.raw_password}@" if parsed.raw_user else ""
    authority = str(origin).partition("://")[2]
    return Target(url, f"{parsed.scheme}://{user}{authority}{parsed.raw_path_qs}", host)


@lru_cache(1024)
def is_here(host: str) -> bool:
    """Whether a host is this machine by its name alone (RFC 6761, 6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
