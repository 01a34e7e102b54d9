"""A local server that answers from a script, for tests of HTTP clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from aiohttp import web

from throttle import clock
from throttle.testing import RateLimitedServer

__all__ = ["Got", "Site", "answer", "drop", "now", "read"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Got(NamedTuple):
    """One request as the site saw it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    instant: float


def answer(status: int = 200, body: Any = "", **headers: str) -> Handler:
    """An answer; `Retry_After="1"` is a header."""

    async def handler(request: web.Request) -> web.StreamResponse:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, (dict, list)):
            return web.json_response(body, status=status, headers=fields)
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=fields)
        return web.Response(text=body, status=status, headers=fields)

    return handler


async def drop(request: web.Request) -> web.StreamResponse:
    """An answer that never comes: the connection breaks once the request has been read."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def now() -> float:
    """The instant on the clock of the running loop."""
    return asyncio.get_running_loop().time()


async def read(pending: Any) -> int:
    """Make a request and read its answer to the end; the status."""
    async with pending as response:
        await response.read()
        return int(response.status)


class Site:
    """`async with Site(answer(429), answer()) as site:`; the last answer repeats.

    An answer is a status or a handler; `routes` – handlers by path, which come first.
    """

    def __init__(self, *script: Handler | int, routes: Mapping[str, Handler] | None = None) -> None:
        self._script = [answer(one) if isinstance(one, int) else one for one in script or (200,)]
        self._routes = dict(routes or {})
        self._server = RateLimitedServer(inf, dialect="none", handler=self._answer)
        self.got: list[Got] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        instant = clock.now()
        body = await request.read() if request.method != "CONNECT" else b""
        self.got.append(Got(request.method, request.path, request.headers.copy(), body, instant))
        if request.path in self._routes:
            return await self._routes[request.path](request)
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        return await step(request)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def instants(self) -> list[float]:
        return [one.instant for one in self.got]

    async def __aenter__(self) -> Site:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._server.__aexit__(None, None, None)
