"""What goes wrong on the way: answers that a `RateLimitedServer` spoils on purpose.

A fault is a name ("drop", "truncate") or a status of 500 to 599. Faults come by a script (one an
admitted request, in order of arrival, None for a good one) or by chance from a seed; both say the
same thing again in the next run. A refused request is never spoiled: it was not done anyway.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from aiohttp import hdrs, web

from throttle.checks import non_negative

__all__ = ["Fault", "Faults", "apply_fault", "fault_plan"]

Fault = str | int
Faults = Mapping[Fault, float] | Iterable[Fault | None]

NAMES = ("drop", "truncate")


def fault_plan(faults: object, seed: int) -> Callable[[], Iterator[Fault | None]]:
    """A function that starts the plan: what happens to each request. (TypeError, ValueError)"""
    if isinstance(faults, (str, bytes)) or not isinstance(faults, Iterable):
        raise TypeError(f"faults must be a mapping of chances or a list of faults, not {faults!r}")
    if not isinstance(faults, Mapping):
        script = [None if fault is None else _checked(fault) for fault in faults]
        return lambda: chain(script, repeat(None))
    chances = {_checked(fault): non_negative("faults", p) for fault, p in faults.items()}
    total = sum(chances.values())
    if total > 1 + 1e-9:
        raise ValueError(f"faults must have chances of at most 1 together, not {faults!r}")
    choices, weights = [*chances, None], [*chances.values(), max(0.0, 1 - total)]

    def throw() -> Iterator[Fault | None]:
        dice = random.Random(seed)
        while True:
            yield dice.choices(choices, weights)[0]

    return throw


def _checked(fault: Any) -> Fault:
    if fault in NAMES or (isinstance(fault, int) and 500 <= fault <= 599):
        return fault  # type: ignore[no-any-return]
    raise ValueError(f"faults: {fault!r} is none of {', '.join(NAMES)} and 500 to 599")


async def apply_fault(
    fault: Fault, request: web.Request, response: web.StreamResponse
) -> web.StreamResponse:
    """Spoil an answer that is not sent yet; what is to be sent instead."""
    if isinstance(fault, int):
        return web.Response(status=fault, text=f"{fault}\n", headers=_kept(response))
    if fault == "truncate":
        body = response.body if isinstance(response, web.Response) else None
        whole = body if isinstance(body, (bytes, bytearray)) else b""
        short = web.StreamResponse(status=response.status, headers=_kept(response))
        # Longer than what will ever come, also where there was no body to cut.
        short.content_length = max(len(whole), 1)
        await short.prepare(request)
        await short.write(whole[: len(whole) // 2])
        response = short
    if request.transport is not None:
        if fault == "drop":
            request.transport.abort()
        else:
            request.transport.close()
    return response


def _kept(response: web.StreamResponse) -> list[tuple[str, str]]:
    """The headers that do not describe the body."""
    own = {hdrs.CONTENT_TYPE, hdrs.CONTENT_LENGTH, hdrs.TRANSFER_ENCODING}
    return [(name, value) for name, value in response.headers.items() if name not in own]
