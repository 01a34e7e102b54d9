"""RedisLimiter: one limit for a fleet, kept on a Redis or Valkey server.

The algorithm runs on the server, as an atomic script, by the server's clock. A caller who has to
wait reserves: one round trip, then one sleep, and first come, first served over all processes. This
file holds the verbs, and what to do when the server does not answer; the rooms beside it are
`redis_line` (the callers of one event loop), `redis_wire` (a connection, every command sent once)
and `redis_scripts`.

State here: the counts of `stats`, and since when the server is unreachable. Everything else is on
the server, or in the line of a loop. Invariant: the template never changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import floor, inf
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

try:
    from redis.asyncio import Redis, RedisCluster
    from redis.exceptions import RedisError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "RedisLimiter needs redis-py: pip install 'throttle-asyncio[redis]'", name=error.name
    ) from error

from throttle import checks
from throttle.algorithms import TokenBucket
from throttle.entering import EnteringAsync
from throttle.errors import CostTooLarge, QueueFull, WaitTimeout
from throttle.limiter import Limiter, Stats
from throttle.shared.redis_line import Line, UnreachableError
from throttle.shared.redis_scripts import Said, keys_for, number, parameters_of, read, script_for
from throttle.shared.redis_wire import server_of

__all__ = ["RedisLimiter"]

_log = logging.getLogger("throttle")

#: Seconds; a shared pause is never longer, since no key lives for ever.
_YEAR = 366 * 86400.0
_ONE = 1


class RedisLimiter(EnteringAsync):
    """A limit that all who use the same `key` on the same server share. asyncio.

    `client` – a `redis.asyncio.Redis` or `RedisCluster`. Only its settings are used (address, TLS,
    password, Sentinel): all limiters of a client share one connection of their own in each event
    loop (one a node in a cluster), without retries, and never take one of the client's. A limiter
    may be made at import and used in one `asyncio.run` after another; on a cluster it needs a
    client, and so a limiter, for each, since the client itself is bound to its loop.
    `key` – names the limit on the server.
    `limiter` – a TokenBucket, LeakyBucket, SlidingWindowLog or SlidingWindowCounter as a template:
    its parameters and `max_waiting` are copied and stay. Processes that share a key should give the
    same; if they do not (in the middle of a rollout), each decides by its own, on one state.
    `on_error` – what happens when the server does not answer: "raise" (redis-py's error reaches the
    caller), "local" (a limiter of this process takes over, with `share` of the rate), "open"
    (everybody is let in, but for a pause called here). Logged once; the server is tried again by
    itself.
    `timeout` – seconds a call may wait for the server's answer (the wait for a permit comes after).

    Time is the server's. A step of its clock costs at most one burst, never a stall. Every verb is
    one round trip; callers of one loop who ask while one is under way share the next. Costs are in
    permits, times in seconds. What a reservation that was cancelled had taken goes to the next in
    line of this process, or back to the server, or lapses when another process has reserved since.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        key: str,
        limiter: Limiter,
        *,
        on_error: Literal["raise", "local", "open"] = "raise",
        share: float = 0.25,
        timeout: float = 1.0,
    ) -> None:
        if not isinstance(client, (Redis, RedisCluster)):
            raise TypeError(f"client must be a redis.asyncio.Redis or RedisCluster, not {client!r}")
        if not isinstance(key, str):
            raise TypeError(f"key must be a str, not {key!r}")
        if not key:
            raise ValueError("key must not be empty")
        if any("\ud800" <= letter <= "\udfff" for letter in key):
            raise ValueError(f"key must be text that UTF-8 can write, not {key!r}")
        self._script = script_for(limiter)
        if getattr(limiter, "_initial", None) is not None:
            raise ValueError(
                f"limiter must not have initial=, a shared one starts full: {limiter!r}"
            )
        if on_error not in ("raise", "local", "open"):
            raise ValueError(f"on_error must be 'raise', 'local' or 'open', not {on_error!r}")
        share = checks.positive("share", share)
        if share > 1:
            raise ValueError(f"share must be at most 1, not {share!r}")
        self._client = client
        self._key = key
        self._template = limiter._clone()
        self._template.reset()
        self._ceiling = limiter._ceiling()
        self._keys = keys_for(limiter, key)
        self._parameters = parameters_of(limiter)
        self._timeout = checks.positive("timeout", timeout)
        self._fallback: Limiter | None = None
        if on_error == "local":
            self._fallback = _share_of(self._template, share)
        elif on_error == "open":
            self._fallback = TokenBucket(inf)
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = WeakKeyDictionary()
        self._here: tuple[asyncio.AbstractEventLoop, Line] | None = None
        self._down = False
        self._again = -inf  # the loop's time at which a server that is down is tried again
        self._granted = self._denied = 0
        self._waited = 0.0
        #: For tests: the server's time in µs, instead of its TIME.
        self._stamp: Callable[[], int] | None = None

    # ---------------------------------------------------------------- the verbs

    async def allow(self, cost: float = 1) -> bool:
        """Take `cost` permits if they are free; never waits. False leaves no trace.

        False too while the limit is paused or anybody of the fleet waits, and for a cost that can
        never fit. Cost 0 is always True, and asks nobody.
        """
        if cost is not _ONE:
            cost = self._template._checked(cost)
            if not cost:
                return True
        if cost > self._ceiling:
            taken = False
        elif self._down and self._is_down():
            taken = self._local().allow(cost=self._fitting(cost))
        else:
            try:
                taken = await self._line().ask(False, cost)
            except UnreachableError as lost:
                taken = self._instead(lost).allow(cost=self._fitting(cost))
        if taken:
            self._granted += 1
        else:
            self._denied += 1
        return taken

    async def acquire(self, cost: float = 1, *, timeout: float | None = None) -> float:
        """Wait for `cost` permits; answer the seconds waited. First come, first served.

        One round trip that reserves, then one sleep until the reserved instant; who sleeps for more
        than a second asks again before going, since a pause may have come. `timeout` is in seconds:
        None waits for ever, 0 tries; where the wait would be longer it fails at once with
        WaitTimeout, which carries the wait, and nothing is taken. Raises CostTooLarge for a cost
        that can never fit, QueueFull beyond the template's `max_waiting` in this process, and
        redis-py's errors when the server does not answer (`on_error="raise"`).
        """
        if timeout is not None:
            timeout = checks.non_negative("timeout", timeout, infinite=True)
        if cost is not _ONE:
            cost = self._template._checked(cost)
            if not cost:
                return 0.0
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        try:
            if cost > self._ceiling:
                raise CostTooLarge(cost, self._ceiling)
            if self._down and self._is_down():
                await self._local().acquire(self._fitting(cost), timeout=timeout)
            else:
                line = self._line()
                most = self._template._max_waiting
                if most is not None and line.waiting >= most:
                    raise QueueFull(most)
                caller = line.ask(True, cost, timeout)
                try:
                    await caller
                except asyncio.CancelledError:
                    line.leave(caller)
                    raise
                except UnreachableError as lost:
                    fallback = self._instead(lost)
                    if timeout is not None:
                        timeout = max(0.0, timeout - (loop.time() - arrived))
                    await fallback.acquire(self._fitting(cost), timeout=timeout)
        except WaitTimeout as error:
            self._denied += 1
            if error.delay == inf:
                raise CostTooLarge(cost, self._ceiling) from None
            raise
        except (CostTooLarge, QueueFull):
            self._denied += 1
            raise
        waited = loop.time() - arrived
        self._granted += 1
        self._waited += waited
        return waited

    async def delay(self, cost: float = 1) -> float:
        """Seconds until `cost` would fit for a newcomer at the end of the line; inf: never."""
        cost = self._template._checked(cost)
        if not cost:
            return 0.0
        if cost > self._ceiling:
            return inf
        wait = await self._ask(
            lambda local: local.delay(cost=self._fitting(cost)), "delay", number(cost)
        )
        return max(0.0, float(wait))  # a server may tell -0.0

    async def available(self) -> float:
        """Permits that could be taken now: 0 in debt, while paused, or behind a line."""
        return float(await self._ask(lambda local: local.available(), "available"))

    async def charge(self, cost: float) -> None:
        """Spend without asking, into debt if need be: for a cost known only afterwards (at most
        2**50)."""
        cost = self._template._chargeable(cost)
        if cost:
            await self._ask(lambda local: local.charge(cost), "charge", number(cost))

    async def refund(self, cost: float) -> None:
        """Give permits back, never above full: for a call that cost less than was taken."""
        cost = self._template._checked(cost)
        if cost:
            await self._ask(lambda local: local.refund(cost), "refund", number(cost))

    async def pause(self, seconds: float) -> None:
        """Let nobody of the fleet in for `seconds` (finite; a year at most). The latest wins.

        Who waits already keeps his place: the line moves by the length of the pause as it is, and
        goes on at its own pace, in no stampede.
        """
        seconds = min(checks.non_negative("seconds", seconds), _YEAR)
        if self._fallback is not None:
            self._fallback.pause(seconds)
        await self._ask(lambda local: None, "pause", number(seconds))

    async def resume(self) -> None:
        """Lift a pause early. Sleepers of other processes hear of it when they ask next."""
        if self._fallback is not None:
            self._fallback.resume()
        await self._ask(lambda local: None, "resume")

    async def reset(self) -> None:
        """Become as new, for the whole fleet: state and pause; and the statistics of this process.

        Who waits keeps his place.
        """
        if self._fallback is not None:
            self._fallback.reset()
        self._granted = self._denied = 0
        self._waited = 0.0
        await self._ask(lambda local: None, "reset")

    def stats(self) -> Stats:
        """What this process was granted, denied and waited: a snapshot. Asks nobody."""
        waiting = sum(line.waiting for line in list(self._lines.values()))
        return Stats(self._granted, self._denied, waiting, self._waited)

    async def aclose(self) -> None:
        """Close the connection of this loop, which all limiters of the client share there.

        The next call opens another. A loop that ends under `asyncio.run` closes it by itself.
        """
        await server_of(self._client, asyncio.get_running_loop()).close()

    @property
    def key(self) -> str:
        """The name of the limit on the server."""
        return self._key

    def __repr__(self) -> str:
        return f"RedisLimiter({self._key!r}, {self._template!r})"

    # ---------------------------------------------------------------- the server

    def _line(self) -> Line:
        loop = asyncio.get_running_loop()
        if self._here is not None and self._here[0] is loop:
            return self._here[1]
        line = self._lines.get(loop)
        if line is None:
            # No circle, so that a limiter that is dropped closes its connection at once.
            this = ref(self)

            def run(verb: str, *words: str) -> Any:
                limiter = this()
                assert limiter is not None, "whoever waits holds it"
                return limiter._run(verb, *words)

            line = self._lines[loop] = Line(run, server_of(self._client, loop).spawn, loop)
        self._here = loop, line
        return line

    async def _run(self, verb: str, *args: str) -> tuple[Said, tuple[float, ...]]:
        """Run the script; answer what it tells of the state, and the answer itself."""
        loop = asyncio.get_running_loop()
        stamp = "-" if self._stamp is None else str(self._stamp())
        deadline = loop.time() + self._timeout
        reply = await server_of(self._client, loop).run(
            self._script, self._keys, (verb, stamp, *self._parameters, *args), deadline
        )
        if self._down:
            self._down = False
            _log.info("%r: the server answers again", self)
        return read(reply)

    async def _ask(self, local: Callable[[Limiter], Any], verb: str, *args: str) -> Any:
        """A verb that is one call by itself, and what stands for it while the server is down."""
        if self._is_down():
            return local(self._local())
        try:
            # In a task of its own: a caller who is cancelled must not break the connection.
            server = server_of(self._client, asyncio.get_running_loop())
            said, answer = await asyncio.shield(server.spawn(self._run(verb, *args)))
        except (RedisError, OSError) as error:
            lost = UnreachableError()
            lost.__cause__ = error
            return local(self._instead(lost))
        self._line().heed(said)
        return answer[0] if answer else None

    # ---------------------------------------------------------------- without it

    def _is_down(self) -> bool:
        """Whether not to try: it failed a moment ago, and there is somebody to stand in."""
        return (
            self._down
            and self._fallback is not None
            and asyncio.get_running_loop().time() < self._again
        )

    def _owes(self) -> bool:
        """Whether something would be lost with this object: what its stand-in has granted."""
        local = self._fallback
        return local is not None and local.fresh_at() > local._now()

    def _local(self) -> Limiter:
        assert self._fallback is not None
        return self._fallback

    def _instead(self, lost: UnreachableError) -> Limiter:
        """Who decides while the server does not; raises its error if nobody does."""
        error = lost.__cause__
        assert error is not None
        if not self._down:
            self._down = True
            _log.warning("%r: the server does not answer: %s", self, error)
        self._again = asyncio.get_running_loop().time() + self._timeout
        if self._fallback is None:
            # An exception of its own for each caller: a traceback is written into it.
            raise type(error)(*error.args) from error
        return self._fallback

    def _fitting(self, cost: float) -> float:
        """A cost that fits the limit also fits its stand-in, which may hold less."""
        return min(cost, self._local()._ceiling())


def _share_of(limiter: Any, share: float) -> Limiter:
    """A local limiter with a share of the rate, and at least one permit at a time."""
    new: Limiter
    if hasattr(limiter, "capacity"):
        new = type(limiter)(
            limiter.rate * share, max(1, limiter.capacity * share), slack=limiter._slack
        )
    elif limiter.limit * share >= 1:
        new = type(limiter)(floor(limiter.limit * share), limiter.window)
    else:  # less than one a window is one in a longer window
        new = type(limiter)(1, limiter.window / (limiter.limit * share))
    return new
