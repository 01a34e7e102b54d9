"""A limiter's state written down: plain values that JSON can hold, so that it outlives the process.

    {"version": 1, "algorithm": "TokenBucket", "parameters": {"rate": 5.0, "capacity": 10},
     "numbers": [1.5, 4.0], "pause": None}

Everything about time is an age or a remainder in seconds, never an instant: the zero of a monotonic
clock means nothing to another process. What the numbers are, each algorithm says (`_state`);
infinity is the string "inf", since JSON has no number for it.

Invariant: `read` either answers numbers that the limiter can take, or raises and nothing changed.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from throttle.checks import non_negative

if TYPE_CHECKING:
    from throttle.limiter import Limiter

__all__ = ["describe", "read", "write"]

_VERSION = 1
_KEYS = {"version", "algorithm", "parameters", "numbers", "pause"}


def describe(limiter: Limiter) -> dict[str, Any]:
    """Which algorithm it is, and its parameters: what a state must have been made by to fit."""
    return {
        "algorithm": type(limiter).__name__,
        "parameters": _plain(limiter._parameters()),
    }


def write(limiter: Limiter, now: float) -> dict[str, Any]:
    """The state at `now`, which has been settled."""
    return {
        "version": _VERSION,
        **describe(limiter),
        "numbers": _plain(limiter._state(now)),
        "pause": _plain(limiter._pause_left(now)) or None,
    }


def read(limiter: Limiter, state: object) -> tuple[tuple[Any, ...], float]:
    """The numbers for `_restore` and the seconds of pause left (0: none), if they fit `limiter`."""
    if not isinstance(state, dict):
        raise TypeError(f"state must be a dict as made by state(), not {state!r}")
    if state.keys() != _KEYS:
        raise ValueError(f"state must have the keys {sorted(_KEYS)}, not {sorted(map(str, state))}")
    if state["version"] != _VERSION:
        raise ValueError(f"state has version {state['version']!r}; this is version {_VERSION}")
    for key, own in describe(limiter).items():
        if state[key] != own:
            raise ValueError(
                f"state is of another limiter: its {key} is {state[key]!r}, not {own!r}"
            )
    if not isinstance(state["numbers"], (list, tuple)):
        raise TypeError(f"numbers must be a list, not {state['numbers']!r}")
    pause = state["pause"]
    return (
        _read(state["numbers"]),
        0.0 if pause is None else non_negative("pause", _read(pause), infinite=True),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return "inf" if value == inf else value


def _read(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_read, value))
    return inf if value == "inf" else value
