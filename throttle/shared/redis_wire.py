"""The way to the server: one connection a client and event loop, and every command sent once.

redis-py sends a command again after an error, even when the server may have run it: that would
spend twice. So commands go over a connection of our own, made as the client's pool makes its own
(address, TLS, password, Sentinel), with no retries and a deadline. All limiters of a client share
it: commands that meet while it is busy go together in the next round, so a hundred keys need one
connection, never a hundred.

State: the connection, and the commands that wait for the next round. Invariant: a command is
written at most once, but where the server said that it has not run it (NOSCRIPT, READONLY, MOVED,
ASK, TRYAGAIN, CLUSTERDOWN). A connection whose answers are not all read is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from redis import exceptions as errors
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from throttle.shared.redis_scripts import Script

__all__ = ["Server", "server_of"]

#: Commands in one round: what a server runs between looking after others.
_ROUND = 64
#: Seconds between two tries while a cluster says "try again".
_PAUSE = 0.02

_T = TypeVar("_T")


class _Trip(NamedTuple):
    commands: tuple[tuple[Any, ...], ...]
    deadline: float
    answer: asyncio.Future[Any]


class Wire:
    """One connection. `make()` makes it, unconnected; `tasks` are those of its server."""

    def __init__(self, make: Callable[[], Any], tasks: set[asyncio.Task[Any]]) -> None:
        self._make = make
        self._tasks = tasks
        self._connection: Any = None
        self._waiting: list[_Trip] = []
        self._busy = False
        self._end: AsyncGenerator[None, None] | None = None

    async def ask(self, deadline: float, *commands: tuple[Any, ...]) -> Any:
        """Send commands, and answer the reply to the last. Raises what the server or the way said.

        Not to be cancelled lightly: that costs the connection.
        """
        trip = _Trip(commands, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(trip)
        if not self._busy:
            self._busy = True
            await self._carry()
        return await trip.answer

    async def close(self) -> None:
        """Close the connection; the next command opens another."""
        if self._connection is not None:
            await self._connection.disconnect()

    async def _carry(self) -> None:
        batch, self._waiting = self._waiting[:_ROUND], self._waiting[_ROUND:]
        try:
            await self._round(batch)
        finally:
            if self._waiting:
                _spawn(self._carry(), self._tasks)
            else:
                self._busy = False

    async def _round(self, batch: list[_Trip]) -> None:
        error: Exception
        try:
            async with asyncio.timeout_at(min(trip.deadline for trip in batch)):
                connection = await self._ready()
                await connection.send_packed_command(
                    connection.pack_commands([c for trip in batch for c in trip.commands]),
                    check_health=False,
                )
                for trip in batch:
                    for last in range(len(trip.commands)):
                        try:
                            reply = await connection.read_response()
                        except errors.ResponseError as refusal:
                            self._tell(trip, refusal)
                        else:
                            if last == len(trip.commands) - 1 and not trip.answer.done():
                                trip.answer.set_result(reply)
                return
        except TimeoutError:
            error = errors.TimeoutError("no answer in time; the call may have counted")
        except (errors.RedisError, OSError) as failure:
            error = failure
        except BaseException:
            await self._drop()
            for trip in batch:
                self._tell(trip, errors.ConnectionError("given up: the event loop ends"))
            raise
        await self._drop()
        for trip in batch:
            self._tell(trip, error)

    @staticmethod
    def _tell(trip: _Trip, error: Exception) -> None:
        if not trip.answer.done():
            trip.answer.set_exception(error)
            trip.answer.exception()  # seen: whoever asked may be gone

    async def _ready(self) -> Any:
        """The connection, connected, and not one that the server has closed meanwhile."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._make()
            self._end = _until_the_end(connection, self._tasks)
            await anext(self._end)
        elif connection.is_connected:
            # Its own look at a connection (`can_read`) was renamed in redis-py 8, and in 5 does not
            # see that the server has closed it; the stream below does.
            reader = getattr(connection, "_reader", None)
            if reader is not None and reader.at_eof():
                await connection.disconnect()
        if not connection.is_connected:
            await connection.connect()
        return connection

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)


def _spawn(work: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[_T]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _until_the_end(
    connection: Any, tasks: set[asyncio.Task[Any]]
) -> AsyncGenerator[None, None]:
    """Closes a connection when its loop ends, or nobody holds its wire any more: asyncio sees to it
    that a generator is closed then. A loop that ends cancels its tasks before that, so those that
    were started since (to give back what the cancelled had reserved) are ended here."""
    try:
        yield
    finally:
        late = list(tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await connection.disconnect()


class Server:
    """A server, as one event loop sees it."""

    def __init__(self, client: Redis) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        pool = client.connection_pool
        self._wire = Wire(_maker(pool.connection_class, pool.connection_kwargs), self._tasks)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task that asks this server; it ends with the loop at the latest."""
        return _spawn(work, self._tasks)

    async def run(
        self, script: Script, keys: tuple[str, ...], words: tuple[str, ...], deadline: float
    ) -> Any:
        """Run a script until `deadline` (the loop's time), once; answer its reply."""
        # As bytes, whatever encoding the client has for texts of its user.
        key, tail = keys[0].encode(), (len(keys), *(one.encode() for one in keys), " ".join(words))
        command: tuple[Any, ...] = ("EVALSHA", script.sha, *tail)
        found_again = False
        while True:
            try:
                return await self._ask(key, deadline, command)
            except errors.NoScriptError:
                if command[0] == "EVAL":
                    raise
                command = ("EVAL", script.text, *tail)
            except (errors.ReadOnlyError, errors.ConnectionError) as error:
                if found_again or not _demoted(error):
                    raise
                found_again = True
                await self._find_again(key, deadline)

    async def close(self) -> None:
        """Close what is open."""
        await self._wire.close()

    async def _ask(self, key: bytes, deadline: float, command: tuple[Any, ...]) -> Any:
        return await self._wire.ask(deadline, command)

    async def _find_again(self, key: bytes, deadline: float) -> None:
        # A name or a Sentinel may point elsewhere by now; connecting asks it.
        await self._wire.close()


class Cluster(Server):
    """A cluster: the client knows which node holds a key; each node has a wire."""

    def __init__(self, client: RedisCluster) -> None:
        self._tasks = set()
        self._client = ref(client)
        self._wires: dict[str, Wire] = {}
        self._doubtful = False

    async def close(self) -> None:
        for wire in self._wires.values():
            await wire.close()

    async def _ask(self, key: bytes, deadline: float, command: tuple[Any, ...]) -> Any:
        client = self._client()
        assert client is not None, "the limiter holds it"
        async with asyncio.timeout_at(deadline):
            await client.initialize()
        if self._doubtful:
            await self._find_again(key, deadline)
        node = _node_of(client, key)
        commands: tuple[tuple[Any, ...], ...] = (command,)
        while True:
            if node is None:
                raise errors.ConnectionError("no node of the cluster holds this key")
            try:
                return await self._wire_to(node).ask(deadline, *commands)
            except errors.MovedError:
                await self._find_again(key, deadline)
            except errors.AskError as error:
                node = client.get_node(host=error.host, port=error.port)
                if node is not None:
                    commands = (("ASKING",), command)
                    continue
                await self._find_again(key, deadline)
            except (errors.TryAgainError, errors.ClusterDownError):
                if asyncio.get_running_loop().time() + _PAUSE > deadline:
                    raise
                await asyncio.sleep(_PAUSE)
                await self._find_again(key, deadline)
            except (errors.ConnectionError, errors.TimeoutError):
                self._doubtful = True
                raise
            node, commands = _node_of(client, key), (command,)

    async def _find_again(self, key: bytes, deadline: float) -> None:
        # A read, which the client may repeat as often as it likes: in passing it learns where the
        # key is by now.
        client = self._client()
        assert client is not None, "the limiter holds it"
        try:
            async with asyncio.timeout_at(deadline):
                await client.exists(key)
        except TimeoutError:
            raise errors.TimeoutError(
                "the cluster does not say in time who holds the key"
            ) from None
        self._doubtful = False

    def _wire_to(self, node: Any) -> Wire:
        wire = self._wires.get(node.name)
        if wire is None:
            wire = Wire(_maker(node.connection_class, node.connection_kwargs), self._tasks)
            self._wires[node.name] = wire
        return wire


def _node_of(client: RedisCluster, key: bytes) -> Any:
    return client.get_node_from_key(key)  # type: ignore[arg-type]  # bytes are taken as they are


def _maker(kind: Callable[..., Any], given: dict[str, Any]) -> Callable[[], Any]:
    ours = {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "health_check_interval": 0,
        "decode_responses": False,
        "encoding": "utf-8",
    }
    return lambda: kind(**{**given, **ours})


def _demoted(error: BaseException) -> bool:
    """Whether the server said it is no primary any more (under Sentinel redis-py wraps that)."""
    return isinstance(error, errors.ReadOnlyError) or isinstance(
        error.__context__, errors.ReadOnlyError
    )


_SERVERS: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakKeyDictionary[Redis | RedisCluster, Server]
] = WeakKeyDictionary()


def server_of(client: Redis | RedisCluster, loop: asyncio.AbstractEventLoop) -> Server:
    """The one way from a loop to the server of a client."""
    servers = _SERVERS.setdefault(loop, WeakKeyDictionary())
    server = servers.get(client)
    if server is None:
        server = Cluster(client) if isinstance(client, RedisCluster) else Server(client)
        servers[client] = server
    return server
