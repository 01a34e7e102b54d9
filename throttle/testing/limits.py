"""No limits: while it is on, every limiter lets everybody in at once and remembers nothing.

It is done by exchanging the verbs on the classes, not by a question in the verbs: `allow` has a few
hundred nanoseconds, and nobody who is not testing should pay for those who are. So it is global: it
holds for all threads and tasks of the process, as a rate limit does. (A context variable would have
to be asked at each call, and would miss the threads that a program starts.)

State: how many are inside, and the verbs to put back. Invariant: with nobody inside, the classes
are as they were.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from functools import wraps
from importlib import import_module
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, TypeVar

from throttle import clock
from throttle.limiter import Limiter

__all__ = ["ALLOW", "DELAY", "no_limits"]

#: The verbs as they are written, for `RateLimitedServer`: it is what limits are tested against.
ALLOW, DELAY = Limiter.allow, Limiter.delay

#: Limiters that are no `Limiter`, and the library without which there are none.
_SHARED = (
    ("throttle.shared.file", "throttle.shared.file", "FileLimiter"),
    ("redis", "throttle.shared.redis", "RedisLimiter"),
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_lock = threading.Lock()
_inside = 0
_written: list[tuple[type, str, Any]] = []


def _ready_at(limiter: Any, now: float | None = None, cost: float = 1) -> float:
    own = getattr(limiter, "_clock", None)
    return (own or clock.now)() if now is None else now


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


_FREE: dict[str, Callable[..., Any]] = {
    "allow": _always(True),
    "acquire": _always(0.0),
    "acquire_sync": _always(0.0),
    "delay": _always(0.0),
    "ready_at": _ready_at,
    "charge": _always(None),
    "refund": _always(None),
    "settle": _always(None),
    "pause": _always(None),
}


class no_limits(ContextDecorator):  # noqa: N801 - it reads as a function, like contextlib.suppress
    """`with no_limits():` every limiter lets everybody in at once, and its state does not change.

    Also as a decorator, of plain and of coroutine functions. `allow` says True, `acquire` and
    `acquire_sync` return 0.0 without waiting whatever the cost, `delay` is 0; `charge`, `refund`
    and `pause` do nothing; so the decorator, sessions and keyed limiters are free too. Slots of a
    `Concurrency` are lent and given back as ever, `RateLimitedServer` goes on refusing, and who
    stood in line before stays there until his turn. For the whole process; can be nested.
    """

    def __enter__(self) -> Self:
        global _inside
        with _lock:
            if not _inside:
                for kind in _kinds():
                    _exchange(kind)
            _inside += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if not _inside:
                while _written:
                    owner, name, verb = _written.pop()
                    setattr(owner, name, verb)

    def __call__(self, function: _Function) -> _Function:
        if not iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def free(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return free  # type: ignore[return-value]


def _kinds() -> Iterator[type]:
    """Every class of limiters there is."""
    todo: list[type] = [Limiter]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        yield kind
    for library, room, name in _SHARED:
        if library in sys.modules:  # without it nobody has made one
            yield getattr(import_module(room), name)


def _exchange(kind: type) -> None:
    for name, answer in _FREE.items():
        verb = vars(kind).get(name)
        if verb is not None:
            _written.append((kind, name, verb))
            setattr(kind, name, _freed(verb, answer))


def _freed(verb: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    def free(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What is lent has to come back: a slot is counted, or its release would be one too many.
        lent = not getattr(self, "_foreseen", True)
        return (verb if lent else answer)(self, *args, **kwargs)

    async def free_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        lent = not getattr(self, "_foreseen", True)
        return await verb(self, *args, **kwargs) if lent else answer(self, *args, **kwargs)

    return wraps(verb)(free_async if iscoroutinefunction(verb) else free)
