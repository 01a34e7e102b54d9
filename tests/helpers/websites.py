"""A web of any names on this machine, for tests of crawlers, and a session that crawls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from throttle import clock
from throttle.http.polite import PoliteSession
from throttle.testing import RateLimitedServer

__all__ = ["AGENT", "Web", "crawler", "get", "get_all"]

AGENT = "examplebot/1.0 (+https://example.org/bot; bot@example.org)"


class Everywhere(AbstractResolver):
    """Every name is this machine, at one port."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def resolve(self, host: str, port: int = 0, family: Any = None) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=self.port, family=2, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


class Visit(NamedTuple):
    instant: float
    host: str
    path: str


class Web:
    """Sites under any name; `pages` by host/path: a text, a status, or an aiohttp handler.

    Without one a page is 200 and empty, and a robots.txt 404. `latency` – seconds to each answer.
    """

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages = pages
        self.visits: list[Visit] = []
        self.agents: set[str | None] = set()
        self.flying: dict[str, int] = {}
        self.most_flying = 0
        self.latency = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        host = request.host.partition(":")[0]
        self.visits.append(Visit(clock.now(), host, request.path))
        self.agents.add(request.headers.get("user-agent"))
        self.flying[host] = self.flying.get(host, 0) + 1
        self.most_flying = max(self.most_flying, *self.flying.values())
        try:
            await asyncio.sleep(self.latency)
            page = self.pages.get(host + request.path)
            if callable(page):
                return await page(request)  # type: ignore[no-any-return]
            if isinstance(page, int):
                return web.Response(status=page)
            if page is None:
                return web.Response(status=404 if request.path == "/robots.txt" else 200)
            return web.Response(text=page)
        finally:
            self.flying[host] -= 1

    def instants(self, *, host: str | None = None) -> list[float]:
        """When pages were asked for, of one host or of all."""
        return [
            one.instant
            for one in self.visits
            if one.path != "/robots.txt" and host in (None, one.host)
        ]

    @property
    def fetches(self) -> list[tuple[str, float]]:
        """Who was asked for a robots.txt, and when."""
        return [(one.host, one.instant) for one in self.visits if one.path == "/robots.txt"]


@asynccontextmanager
async def crawler(
    pages: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[PoliteSession, Web]]:
    """A PoliteSession without jitter, and the web it sees."""
    sites = Web(pages or {})
    async with RateLimitedServer("1000000/s", handler=sites.handle) as server:
        connector = aiohttp.TCPConnector(resolver=Everywhere(int(server.url.rpartition(":")[2])))
        options = {"user_agent": AGENT, "jitter": 0, "connector": connector, **options}
        async with PoliteSession(**options) as http:
            yield http, sites


async def get(http: PoliteSession, url: str) -> int:
    async with http.get(url) as response:
        await response.read()
        return response.status


async def get_all(http: PoliteSession, *urls: str) -> None:
    await asyncio.gather(*(get(http, url) for url in urls))
