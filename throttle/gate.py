"""What stands before each call of a throttled function: a slot, then a permit.

A gate knows what the decorator was told: which limiter (or which of a `Keyed`), what a call costs,
how long it may wait. From the arguments of a call it works out key and cost, takes the slot first
and then the permit, so that nobody pays for a call that may not start yet.

Invariant: a call that fails at the gate holds nothing; one that passed holds a slot until `leave`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from throttle.concurrency import Concurrency, holder
from throttle.errors import RateLimited, WaitTimeout

__all__ = ["Gate", "Passable"]

_T = TypeVar("_T")


class Passable(Protocol):
    """A limiter, or a `Keyed` that wants the key in front."""

    def acquire(self, *where_and_cost: Any, timeout: float | None) -> Awaitable[float]: ...

    def acquire_sync(self, *where_and_cost: Any, timeout: float | None) -> float: ...


class Gate(NamedTuple):
    """`key` and `cost` are functions of a call's positional and named arguments, or fixed."""

    limiter: Passable | None
    slots: Concurrency | None
    key: Callable[..., object] | None
    cost: Any
    timeout: float | None
    raises: bool
    """Whether to raise RateLimited instead of waiting."""

    async def enter(self, args: tuple[Any, ...], named: dict[str, Any]) -> object:
        """Wait for a slot and a permit. Answers what `leave` wants to know."""
        price = self._price(args, named)
        timeout, lent = self.timeout, None
        try:
            if self.slots is not None:
                timeout = _less(timeout, await self.slots.acquire(timeout=timeout))
                lent = holder()
            if self.limiter is not None:
                await self.limiter.acquire(*price, timeout=timeout)
        except BaseException as error:
            self._refused(error, lent)
            raise
        return lent

    def enter_sync(self, args: tuple[Any, ...], named: dict[str, Any]) -> object:
        """`enter` for a thread."""
        price = self._price(args, named)
        timeout, lent = self.timeout, None
        try:
            if self.slots is not None:
                timeout = _less(timeout, self.slots.acquire_sync(timeout=timeout))
                lent = holder()
            if self.limiter is not None:
                self.limiter.acquire_sync(*price, timeout=timeout)
        except BaseException as error:
            self._refused(error, lent)
            raise
        return lent

    def leave(self, lent: object) -> None:
        """The call is over."""
        if lent is not None and self.slots is not None:
            self.slots.release(lent)

    def _price(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        cost = self.cost(*args, **named) if callable(self.cost) else self.cost
        return (cost,) if self.key is None else (self.key(*args, **named), cost)

    def _refused(self, error: BaseException, lent: object) -> None:
        self.leave(lent)
        if self.raises and isinstance(error, WaitTimeout):
            raise RateLimited(error.delay) from None


def _less(timeout: float | None, waited: float) -> float | None:
    return None if timeout is None else max(0.0, timeout - waited)
