"""@throttle: a function whose calls keep to a limit.

    @throttle("100/minute", burst=20)
    async def fetch(url: str) -> bytes: ...

What comes out is what went in: a coroutine function stays one, a generator function, a method, a
name, a signature, a type. Each kind of function has one small wrapper here; what a call must pass
is in `throttle.gate`. What cannot be throttled is refused while decorating, never let through.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Hashable, Iterable
from types import CoroutineType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from throttle import checks
from throttle.choice import limiter_for
from throttle.concurrency import Concurrency
from throttle.gate import Gate
from throttle.keyed import Keyed
from throttle.limiter import Cost, Limiter, SupportsAcquire, is_limiter
from throttle.rate import Rate, RateLike

__all__ = ["Throttled", "ThrottledAsync", "Throttling", "throttle"]

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_S = TypeVar("_S")
_R_co = TypeVar("_R_co", covariant=True)
_L_co = TypeVar("_L_co", covariant=True)
_L = TypeVar("_L", bound=SupportsAcquire)

Price = Cost | Callable[..., Cost]
Key = str | Callable[..., Hashable]
OnLimit = Literal["wait", "raise"]


# -------------------------------------------------------------------- types


class Throttled(Protocol[_P, _R_co, _L_co]):
    """A throttled function: called as before, and it shows its limiter."""

    __name__: str
    __qualname__: str

    @property
    def limiter(self) -> _L_co:
        """What it is throttled by: a limiter, a `Keyed` (with `key=`), or else a `Concurrency`."""
        ...

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

    # Found on the class it may be a method, unbound, or stand under @staticmethod or @classmethod;
    # no type can tell these apart, so there the arguments are not checked.
    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> Throttled[..., _R_co, _L_co]: ...

    @overload
    def __get__(
        self: Throttled[Concatenate[_S, _Q], _R_co, _L_co], instance: _S, owner: Any = None, /
    ) -> Throttled[_Q, _R_co, _L_co]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None, /) -> Throttled[..., _R_co, _L_co]: ...


class ThrottledAsync(Throttled[_P, Coroutine[Any, Any, _R_co], _L_co], Protocol[_P, _R_co, _L_co]):
    """`Throttled` for a coroutine function; `_R_co` is what awaiting it gives."""

    @overload
    def __get__(
        self, instance: None, owner: Any = None, /
    ) -> ThrottledAsync[..., _R_co, _L_co]: ...

    @overload
    def __get__(
        self: ThrottledAsync[Concatenate[_S, _Q], _R_co, _L_co], instance: _S, owner: Any = None, /
    ) -> ThrottledAsync[_Q, _R_co, _L_co]: ...

    @overload
    def __get__(
        self, instance: object, owner: Any = None, /
    ) -> ThrottledAsync[..., _R_co, _L_co]: ...


class Throttling(Protocol[_L_co]):
    """What `throttle(...)` answers: the decorator."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # each is callable; the first that fits is meant
        self, func: staticmethod[_P, _T], /
    ) -> staticmethod[_P, _T]: ...

    @overload
    def __call__(self, func: classmethod[_S, _P, _T], /) -> classmethod[_S, _P, _T]: ...

    @overload
    def __call__(
        self, func: Callable[_P, Coroutine[Any, Any, _T]], /
    ) -> ThrottledAsync[_P, _T, _L_co]: ...

    @overload
    def __call__(self, func: Callable[_P, _T], /) -> Throttled[_P, _T, _L_co]: ...


# -------------------------------------------------------------------- the decorator


class _Flight(TypedDict, total=False):
    concurrency: int | Concurrency | None
    timeout: float | None
    on_limit: OnLimit


class _Options(_Flight, total=False):
    cost: Price


@overload
def throttle(rate: Keyed, *, key: Key, **options: Unpack[_Options]) -> Throttling[Keyed]: ...


@overload
def throttle(
    rate: RateLike | Iterable[RateLike],
    *,
    burst: float | None = None,
    key: Key,
    **options: Unpack[_Options],
) -> Throttling[Keyed]: ...


@overload
def throttle(
    rate: RateLike | Iterable[RateLike],
    *,
    burst: float | None = None,
    **options: Unpack[_Options],
) -> Throttling[Limiter]: ...


@overload
def throttle(
    rate: Concurrency | None = None, **options: Unpack[_Flight]
) -> Throttling[Concurrency]: ...


@overload
def throttle(rate: _L, **options: Unpack[_Options]) -> Throttling[_L]: ...


def throttle(
    rate: Any = None,
    *,
    burst: float | None = None,
    key: Key | None = None,
    cost: Any = 1,
    concurrency: int | Concurrency | None = None,
    timeout: float | None = None,
    on_limit: OnLimit = "wait",
) -> Throttling[Any]:
    """Throttle a function: `@throttle(rate=10)`, `@throttle("100/minute", burst=20)`.

    rate – a rate in any spelling or several of them, see `limiter_for`; or a limiter, to share it;
        or a `Keyed`. Each use of the decorator with a rate has a limiter of its own, which all
        instances of a class share.
    burst – permits that may go at once; without it never more than N in any T.
    key – a limiter for each key: the name of an argument, or a function of the call's arguments.
    cost – permits a call takes: a number, or a function of the call's arguments.
    concurrency – calls in flight at most; a call takes its slot first, then its permit. A generator
        is in flight until it ends.
    timeout – seconds a call may wait in all, otherwise it raises WaitTimeout.
    on_limit – "wait", or "raise": RateLimited with `retry_after` in seconds (inf: it is a slot
        that is missing, and nobody can tell) instead of any wait.

    Coroutine functions and async generator functions wait in their event loop (asyncio, trio),
    plain functions and generator functions in their thread. Creating a coroutine costs nothing,
    awaiting it does; of a generator the start is throttled. Works on methods (on either side of
    `staticmethod` and `classmethod`), partials and callable objects. Wrong arguments, and what
    cannot be throttled, raise TypeError or ValueError while decorating.

    >>> @throttle("2/s", on_limit="raise")
    ... def ping() -> str:
    ...     return "pong"
    >>> ping(), ping.limiter
    ('pong', SlidingWindowLog(limit=2, window=1))
    """
    if on_limit not in ("wait", "raise"):
        raise ValueError(f"on_limit must be 'wait' or 'raise', not {on_limit!r}")
    if timeout is not None:
        timeout = checks.non_negative("timeout", timeout, infinite=True)
        if on_limit == "raise":
            raise ValueError(f"timeout={timeout!r} has no meaning with on_limit='raise'")
    if isinstance(rate, Concurrency):
        if concurrency is not None:
            raise TypeError(f"concurrency is given twice: {rate!r} and {concurrency!r}")
        rate, concurrency = None, rate
    if concurrency is not None and not isinstance(concurrency, Concurrency):
        concurrency = Concurrency(checks.whole("concurrency", concurrency, least=1))
    if rate is None:
        if concurrency is None:
            raise TypeError("throttle() needs a rate, a limiter or concurrency=")
        if burst is not None or key is not None or cost != 1:
            raise TypeError("burst, key and cost have no meaning without a rate or a limiter")
        limiter, sample = None, None
    else:
        limiter, sample = _limiter(rate, burst, key)
    _check_key(key)
    _check_cost(cost, sample)

    def decorate(func: Any) -> Any:
        if isinstance(func, (staticmethod, classmethod)):
            return type(func)(decorate(func.__func__))
        kind = _kind(func)
        shown = concurrency if limiter is None else limiter
        if kind in (_plain, _generator) and not hasattr(shown, "acquire_sync"):
            raise TypeError(f"{func!r} is not async, and {shown!r} has no acquire_sync for it")
        gate = Gate(
            limiter=limiter,
            slots=concurrency,
            key=_argument(func, key) if isinstance(key, str) else key,
            cost=cost,
            timeout=0.0 if on_limit == "raise" else timeout,
            raises=on_limit == "raise",
        )
        wrapper = _dressed(kind(func, gate), func)
        wrapper.limiter = shown
        return wrapper

    return cast("Throttling[Any]", decorate)


# -------------------------------------------------------------------- one wrapper for each kind


def _coroutine(func: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    async def throttled(*args: Any, **kwargs: Any) -> Any:
        lent = await gate.enter(args, kwargs)
        try:
            return await func(*args, **kwargs)
        finally:
            gate.leave(lent)

    return throttled


def _plain(func: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    def throttled(*args: Any, **kwargs: Any) -> Any:
        lent = gate.enter_sync(args, kwargs)
        try:
            answer = func(*args, **kwargs)
            if type(answer) is CoroutineType:
                # A lambda around a coroutine function: its thread would wait, and not its task.
                answer.close()
                raise TypeError(
                    f"{func!r} is no coroutine function but answers a coroutine: "
                    "make it `async def`, or put @throttle on the coroutine function itself"
                )
            return answer
        finally:
            gate.leave(lent)

    return throttled


def _generator(func: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    def throttled(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        lent = gate.enter_sync(args, kwargs)
        try:
            return (yield from func(*args, **kwargs))
        finally:
            gate.leave(lent)

    return throttled


def _async_generator(func: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    async def throttled(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        lent = await gate.enter(args, kwargs)
        try:
            inner = func(*args, **kwargs)
            try:
                step = inner.__anext__()
                while True:  # what `yield from` would do, if there were an async one
                    try:
                        value = await step
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield value
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        step = inner.athrow(error)
                    else:
                        step = inner.asend(sent)
            finally:
                await inner.aclose()
        finally:
            gate.leave(lent)

    return throttled


def _kind(func: object) -> Callable[[Callable[..., Any], Gate], Callable[..., Any]]:
    """The wrapper that fits. TypeError for what cannot be throttled."""
    import inspect

    if isinstance(func, type):
        raise TypeError(f"@throttle is for functions: {func!r} is a class; decorate a method of it")
    if not callable(func):
        raise TypeError(f"@throttle is for functions, and {func!r} cannot be called")
    kind = _kind_of_code(func)
    if kind is _plain and _kind_of_code(inspect.unwrap(_code_of(func))) is not _plain:
        raise TypeError(
            f"{func!r} is a plain function around an async one or a generator, and nobody can tell "
            "what it answers: put @throttle on the inner function, below the other decorator"
        )
    return kind


def _code_of(func: Any) -> Any:
    """The function that runs when a partial or a callable object is called."""
    import inspect

    while isinstance(func, functools.partial):
        func = func.func
    return func if inspect.isroutine(func) or not callable(func) else type(func).__call__


def _kind_of_code(func: Any) -> Callable[[Callable[..., Any], Gate], Callable[..., Any]]:
    import inspect

    code = _code_of(func)
    if inspect.isasyncgenfunction(code):
        return _async_generator
    flags = getattr(getattr(code, "__code__", None), "co_flags", 0)
    if (
        inspect.iscoroutinefunction(func)
        or inspect.iscoroutinefunction(code)
        or flags & inspect.CO_ITERABLE_COROUTINE  # types.coroutine, to be awaited
    ):
        return _coroutine
    return _generator if inspect.isgeneratorfunction(code) else _plain


def _dressed(wrapper: Any, func: Any) -> Any:
    """The wrapper with name, signature and attributes of `func`, which may be a nameless object."""
    import inspect

    inner = func
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.isroutine(inner):
        own = ("__dict__",) if inner is func else ()
        functools.update_wrapper(wrapper, inner, updated=own)
    else:
        names = ("__module__", "__name__", "__qualname__", "__doc__")
        functools.update_wrapper(wrapper, type(inner), assigned=names, updated=())
    wrapper.__wrapped__ = func
    return wrapper


# -------------------------------------------------------------------- what the decorator is told


def _limiter(rate: Any, burst: float | None, key: Key | None) -> tuple[Any, Limiter | None]:
    """What to throttle by, and a limiter to try the cost on, if there is one."""
    if not hasattr(rate, "acquire") and not isinstance(rate, Keyed):
        if callable(rate):
            raise TypeError(f"@throttle needs to be told a rate: @throttle(rate=10), not {rate!r}")
        if not isinstance(rate, (str, Rate)) and isinstance(rate, Iterable):
            rate = list(rate)
        limiter = limiter_for(rate, burst)
        return (limiter if key is None else Keyed(lambda: limiter_for(rate, burst))), limiter
    if burst is not None:
        raise TypeError(f"burst={burst!r} goes with a rate, not with {rate!r}")
    if isinstance(rate, Keyed):
        if key is None:
            raise TypeError(f"key is needed to choose a limiter of {rate!r}")
        return rate, None
    if key is not None:
        raise TypeError(f"key={key!r} goes with a rate or a Keyed: {rate!r} is one limiter for all")
    if not is_limiter(rate):
        raise TypeError(f"{rate!r} is no limiter: `await acquire(cost, timeout=...)` is needed")
    return rate, rate if isinstance(rate, Limiter) else None


def _check_cost(cost: Any, sample: Limiter | None) -> None:
    if _is_plain("cost", cost):
        return
    if sample is None:
        for part in cost if isinstance(cost, tuple) else (cost,):
            checks.non_negative("cost", part)
    elif any(share > leaf._ceiling() for leaf, share in sample._needs(sample._checked(cost))):
        raise sample._too_large(cost)


def _check_key(key: Key | None) -> None:
    if key is not None and not isinstance(key, str) and not _is_plain("key", key):
        raise TypeError(f"key must be a function or the name of an argument, not {key!r}")


def _is_plain(name: str, function: Any) -> bool:
    """Whether it is a function; TypeError if it is one that has to be awaited."""
    if callable(function) and _kind_of_code(function) is not _plain:
        raise TypeError(f"{name} must be a plain function, and {function!r} is not")
    return callable(function)


def _argument(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that finds the argument of this name in a call of `func`."""
    from inspect import Parameter, signature

    whole = signature(func)
    parameter = whole.parameters.get(name)
    if parameter is None or parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise ValueError(f"key={name!r} names no argument of {func!r}")
    by_name = parameter.kind is not Parameter.POSITIONAL_ONLY
    by_position = parameter.kind is not Parameter.KEYWORD_ONLY
    position, default = list(whole.parameters).index(name), parameter.default

    def argument(*args: Any, **named: Any) -> Any:
        if by_name and name in named:
            return named[name]
        if by_position and position < len(args):
            return args[position]
        if default is not Parameter.empty:
            return default
        return whole.bind(*args, **named).arguments[name]  # TypeError: it is missing

    return argument
