"""The settings that every client has, whatever HTTP library it is made for, and what they make.

`ThrottledSession` says what each means. Wrong ones are refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypedDict

from yarl import URL

from throttle.http.call import Engine
from throttle.http.events import Hooks, Retried, Signalled, Waited
from throttle.http.retry import Retry
from throttle.http.routes import Limit, Routes, host_of
from throttle.http.signals import Overrides, check_overrides
from throttle.limiter import SupportsAcquire, is_limiter

__all__ = ["Options", "new_engine"]


class Options(TypedDict, total=False):
    """The keywords of `new_engine`, for those who pass them on."""

    burst: float | None
    limiter: SupportsAcquire | Callable[[str], SupportsAcquire] | None
    limits: Mapping[str, Limit] | None
    key: Callable[[URL, str], Hashable] | None
    total: Limit | None
    concurrency: int | None
    settle: float | None
    retry: Retry | None
    signals: Mapping[str, Overrides] | Callable[[URL], Overrides | None] | None
    on_wait: Callable[[Waited], object] | None
    on_retry: Callable[[Retried], object] | None
    on_signal: Callable[[Signalled], object] | None


def new_engine(
    rate: Limit | None = None,
    *,
    burst: float | None = None,
    limiter: SupportsAcquire | Callable[[str], SupportsAcquire] | None = None,
    limits: Mapping[str, Limit] | None = None,
    key: Callable[[URL, str], Hashable] | None = None,
    total: Limit | None = None,
    concurrency: int | None = None,
    settle: float | None = None,
    retry: Retry | None = None,
    signals: Mapping[str, Overrides] | Callable[[URL], Overrides | None] | None = None,
    on_wait: Callable[[Waited], object] | None = None,
    on_retry: Callable[[Retried], object] | None = None,
    on_signal: Callable[[Signalled], object] | None = None,
) -> Engine:
    """The engine of one client. ValueError or TypeError naming what is wrong."""
    if limiter is not None and (rate is not None or burst is not None):
        raise ValueError(f"limiter={limiter!r} leaves nothing for rate={rate!r} to say")
    if limiter is not None and not callable(limiter) and not is_limiter(limiter):
        raise TypeError(
            f"limiter must be a limiter, or a function of an origin's name, not {limiter!r}"
        )
    hooks = {"key": key, "on_wait": on_wait, "on_retry": on_retry, "on_signal": on_signal}
    for name, function in hooks.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {function!r}")
    policy = Retry() if retry is None else retry
    if not isinstance(policy, Retry):
        raise TypeError(f"retry must be a Retry, not {retry!r}")
    routes = Routes(
        rate if limiter is None else limiter,
        burst=burst,
        limits=limits,
        key=key,
        total=total,
        concurrency=concurrency,
        settle=settle,
    )
    return Engine(
        routes,
        policy,
        Hooks(on_wait, on_retry, on_signal),
        _lookup(signals),
        policy.new_budget(),
    )


def _lookup(signals: Any) -> Callable[[URL], Overrides | None] | None:
    if signals is None or callable(signals):
        return signals  # type: ignore[no-any-return]
    if not isinstance(signals, Mapping):
        raise TypeError(
            f"signals must be a mapping from host to settings, or a function, not {signals!r}"
        )
    hosts: dict[str, Overrides] = {}
    for host, overrides in signals.items():
        if not isinstance(host, str):
            raise TypeError(f"signals must be keyed by host, not {host!r}")
        try:
            name = host_of(URL.build(scheme="http", host=host.strip("[]")))
        except ValueError:
            name = ""
        if not name or "/" in host:
            raise ValueError(f"signals must be keyed by host alone, not {host!r}")
        check_overrides(overrides, f"signals[{host!r}]")
        hosts[name] = overrides
    return lambda url: hosts.get(host_of(url))
