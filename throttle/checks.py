"""Arguments from outside: each is either good, or an error that names it and its value."""

from __future__ import annotations

from math import inf, isfinite

__all__ = ["finite", "non_negative", "number", "positive", "row", "whole"]


def number(name: str, value: object) -> float:
    """`value` as a plain int or float; an error if it is no real number (TypeError, ValueError)."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    try:
        as_float = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} is out of range: {value!r:.50}") from None
    if as_float != as_float:
        raise ValueError(f"{name} must be a number, not {value!r}")
    # numpy scalars, Fraction, Decimal or a class of one's own are numbers to their owners; but none
    # goes into a state, where it would compare and compute in its own way.
    return int(value) if isinstance(value, int) else as_float


def finite(name: str, value: object) -> float:
    """A number that is neither infinite nor NaN."""
    result = number(name, value)
    if not isfinite(result):
        raise ValueError(f"{name} must be finite, not {value!r}")
    return result


def non_negative(name: str, value: object, *, infinite: bool = False) -> float:
    """A number of at least 0; `infinite=True` lets inf pass."""
    result = number(name, value)
    if result < 0 or (result == inf and not infinite):
        raise ValueError(
            f"{name} must be {'at least 0' if result < 0 else 'finite'}, not {value!r}"
        )
    return result


def positive(name: str, value: object, *, infinite: bool = False) -> float:
    """A number above 0; `infinite=True` lets inf pass."""
    result = non_negative(name, value, infinite=infinite)
    if result == 0:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return result


def whole(name: str, value: object, *, least: int = 0) -> int:
    """A whole number (an int, or a float such as 3.0) of at least `least`, as an int."""
    result = number(name, value)
    if not isfinite(result) or result != int(result):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    if result < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    return int(result)


def row(numbers: tuple[object, ...], *, counts: int) -> list[float]:
    """The numbers of a state: an age (inf when nothing counts), then so many counts."""
    if len(numbers) != 1 + counts:
        raise ValueError(f"numbers must be {1 + counts}, not {numbers!r}")
    age, *rest = numbers
    checked = [non_negative("numbers", value) for value in rest]
    if non_negative("numbers", age, infinite=True) == inf and any(checked):
        raise ValueError(f"numbers must name an age for what they count, not {numbers!r}")
    return [number("numbers", age), *checked]
