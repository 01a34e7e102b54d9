"""Where a local HTTP server runs: in the running asyncio loop, or in a thread of its own.

State: the socket and the tasks that answer requests. Invariant: after `stop` neither is left, even
where clients hold connections open or an answer is still being waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from aiohttp import hdrs, web

from throttle.testing.virtual import active

__all__ = ["HEADERS", "InLoop", "InThread"]

Answerer = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Seconds that a stop allows to a connection that does not close by itself.
_PATIENCE = 0.001
_BACKLOG = 1024


#: Headers that whatever is answered to a request will carry: also a stream, or an error.
#: Keys of requests have types since aiohttp 3.14 only.
HEADERS: Any = getattr(web, "RequestKey", lambda name, kind: name)("HEADERS", Mapping)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(request.get(HEADERS, {}))


class InLoop:
    """A server in the running loop."""

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen on the loopback address; the port."""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        app = web.Application(client_max_size=2**30)
        app.router.add_route(hdrs.METH_ANY, "/{path:.*}", self._serve)
        app.on_response_prepare.append(_add_headers)
        self._runner = runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_PATIENCE, handle_signals=False
        )
        await runner.setup()
        await web.SockSite(runner, self._socket, backlog=_BACKLOG).start()
        return int(self._socket.getsockname()[1])

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._answer(request)
        finally:
            self._tasks.discard(task)

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        return len(self._tasks)

    async def stop(self) -> None:
        """Close everything at once; answers that are not out are never sent."""
        if self._runner is None:
            return
        # A listener that is closed while a connection is being accepted leaves it half made: first
        # take no more, then let those come in that are on their way.
        asyncio.get_running_loop().remove_reader(self._socket)
        for _ in range(3):
            await asyncio.sleep(0)
        await self._cancel()
        await self._runner.cleanup()
        await self._cancel()
        self._runner = None

    async def _cancel(self) -> None:
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class _Selector(selectors.DefaultSelector):
    """Tells whether its loop is waiting, and has nothing that it could wait no longer for."""

    waiting = False

    def select(self, timeout: float | None = None) -> list[Any]:
        self.waiting = True
        try:
            return super().select(timeout)
        finally:
            self.waiting = False

    def idle(self) -> bool:
        """Asked from another thread."""
        if not self.waiting:
            return False
        with selectors.DefaultSelector() as look:
            look.register(self.fileno(), selectors.EVENT_READ)
            return not look.select(0)


class InThread:
    """A server in a thread of its own. From any thread, and under any event loop."""

    def __init__(self, answer: Answerer) -> None:
        self._server = InLoop(answer)
        self._selector = _Selector()
        self._watch: AbstractContextManager[None] = nullcontext()
        self._ready = threading.Event()
        self._port = 0
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="RateLimitedServer", daemon=True)

    def start(self) -> int:
        """Start the thread and listen; the port."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        time = active()
        if time is not None:
            self._watch = time.watching(self._thread, self._busy)
            self._watch.__enter__()
        return self._port

    def stop(self) -> None:
        """Close everything and wait for the thread to end."""
        self._watch.__exit__(None, None, None)
        if self._loop is not None and self._over is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _busy(self) -> bool:
        return self._server.answering > 0 or not self._selector.idle()

    def _run(self) -> None:
        try:
            loop = partial(asyncio.SelectorEventLoop, self._selector)
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            self._port = await self._server.start()
            self._ready.set()
            await self._over.wait()
        finally:
            await self._server.stop()
