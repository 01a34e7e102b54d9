"""The session of a bulk download: a plan of limits, handed to `PoliteSession`.

A rate that was named is kept exactly: no pause at random, none learned from how long a host takes
to answer. Where none was named a host is asked as a stranger's is.
"""

from __future__ import annotations

from importlib import metadata
from math import inf
from typing import Any

import aiohttp

from throttle.cli.plan import DELAY, Plan
from throttle.cli.sharing import Sharing
from throttle.http.polite import PoliteSession
from throttle.http.retry import Retry
from throttle.http.routes import Limit
from throttle.rate import Rate

__all__ = ["new_session"]

#: Connections in use at a time: each goes with a file that is being written.
_CONNECTIONS = 400
#: Seconds for a connection to be made, at most.
_CONNECT = 15.0
#: Seconds that a connection is kept for the next request to its host.
_KEEP = 10.0


def new_session(
    plan: Plan,
    sharing: Sharing | None,
    *,
    retry: Retry,
    robots: bool,
    silence: float,
    longest: float,
    **hooks: Any,
) -> PoliteSession:
    """`silence` – the longest that a server may say nothing, `longest` – that a try may take, in
    seconds; `hooks` – those of a session."""

    def limit(place: str | None, rates: tuple[Rate, ...]) -> Limit:
        if sharing is None:
            return list(rates)
        return lambda host: sharing.make(place or host, rates)

    exact = bool(plan.rates)
    rates = plan.rates or ((Rate(1, DELAY),) if sharing is not None else ())
    return PoliteSession(
        user_agent=plan.user_agent(metadata.version("throttle-asyncio")),
        rate=limit(None, rates) if rates else None,
        limits={place: limit(place, named) for place, named in plan.limits.items()},
        delay=0.0 if exact else DELAY,
        jitter=0.0 if exact else 0.5,
        adaptive=not exact,
        concurrency=plan.concurrency,
        settle=inf,  # a strict server refuses nothing, however late a request reaches it
        robots=robots,
        retry=retry,
        timeout=aiohttp.ClientTimeout(
            total=longest, sock_connect=min(_CONNECT, silence), sock_read=silence
        ),
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP),
        **hooks,
    )
