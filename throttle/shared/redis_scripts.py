"""The scripts that decide on the server: which one a limiter needs, and its parameters.

A script is put together from parts, as a Python limiter is from its bases: `clock.lua` tells the
time, one file says what the algorithm is, `limiter.lua` holds every verb. All of it runs as one
atomic call. State: none. Invariant: a script touches the keys it was given and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from struct import unpack
from typing import Any, NamedTuple

from throttle.algorithms import LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from throttle.limiter import Limiter

__all__ = ["Said", "Script", "keys_for", "number", "parameters_of", "read", "script_for"]


class Said(NamedTuple):
    """What every reply tells of the state. Instants and lengths in seconds of its own time."""

    now: float
    pause: float
    """How much of a pause is left."""
    born: float
    """Which state it is: another one than last time, if the server lost that."""
    moved: float
    """By how much pauses have moved all reservations so far."""
    seq: float
    """The number of the last call that granted anything."""
    undone: float
    """1 where reservations were taken back as asked."""
    tail: float
    """The instant of the last reservation before this call's."""


class Script(NamedTuple):
    """The text of a script, and the name by which a server that has seen it knows it."""

    text: str
    sha: str


def _bucket(limiter: Any) -> tuple[float, float]:
    return limiter.rate, limiter.capacity


def _window(limiter: Any) -> tuple[float, float]:
    return limiter.limit, limiter.window


_PARTS: dict[type[Limiter], tuple[tuple[str, ...], Callable[[Any], tuple[float, float]]]] = {
    TokenBucket: (("bucket", "token_bucket"), _bucket),
    LeakyBucket: (("bucket", "leaky_bucket"), _bucket),
    SlidingWindowLog: (("sliding_window_log",), _window),
    SlidingWindowCounter: (("sliding_window_counter",), _window),
}


@cache
def _assembled(parts: tuple[str, ...]) -> Script:
    folder = files("throttle.shared") / "scripts"
    text = "\n".join(
        (folder / f"{part}.lua").read_text("utf-8") for part in ("clock", *parts, "limiter")
    )
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_for(limiter: Limiter) -> Script:
    """The script for a template. TypeError for one that no script decides like."""
    if type(limiter) not in _PARTS:
        names = ", ".join(kind.__name__ for kind in _PARTS)
        raise TypeError(f"limiter must be one of {names}, not {limiter!r}")
    return _assembled(_PARTS[type(limiter)][0])


def parameters_of(limiter: Limiter) -> tuple[str, str]:
    """The two numbers of a template, as its script reads them."""
    first, second = _PARTS[type(limiter)][1](limiter)
    return number(first), number(second)


def keys_for(limiter: Limiter, key: str) -> tuple[str, ...]:
    """The names of the keys that a limiter lives in, all in one hash slot of a cluster."""
    tag = key.replace("%", "%25").replace("}", "%7D")  # a brace would end the tag early
    kind = _PARTS[type(limiter)][0][-1]
    name = f"throttle:{{{tag}}}:{kind}"
    return (name, f"{name}:entries") if type(limiter) is SlidingWindowLog else (name,)


def number(value: float) -> str:
    """A number as text that loses nothing: what Lua's `tostring` would not do."""
    return format(value, ".17g")


def read(reply: bytes) -> tuple[Said, tuple[float, ...]]:
    """A script's reply: what it tells of the state, and the answer."""
    numbers = unpack(f"<{len(reply) // 8}d", reply)
    return Said(*numbers[:7]), numbers[7:]
