"""A limiter written as a word: `token-bucket:10/s,burst=10`, `sliding-log:100/minute`.

    NAME:RATE[,OPTION=VALUE…]     NAME is one of `throttle.algorithms.ALGORITHMS`
    RATE                          what a bare rate means: never more than N in any T
    SPEC&SPEC                     both, all or nothing

Options are those of the class: `burst` (or `capacity`), `initial` for buckets; `limit`, `window`
for windows. What does not fit is an error that names the word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

from throttle.algorithms import ALGORITHMS
from throttle.algorithms.bucket import Bucket
from throttle.choice import limiter_for
from throttle.limiter import Limiter
from throttle.rate import Rate

__all__ = ["factory"]

_BUCKET = {"burst": "capacity", "capacity": "capacity", "initial": "initial"}
_WINDOW = {"limit": "limit", "window": "window"}


def factory(spec: str) -> Callable[[], Limiter]:
    """A function that makes the limiter which `spec` describes. ValueError naming what is wrong."""
    parts = [part.strip() for part in spec.split("&")]

    def make() -> Limiter:
        return reduce(and_, [_one(part, spec) for part in parts])

    make()
    return make


def _one(part: str, spec: str) -> Limiter:
    name, colon, rest = part.partition(":")
    if not colon:
        return limiter_for(part)
    if name not in ALGORITHMS:
        raise ValueError(f"{name!r} in {spec!r} is none of {', '.join(ALGORITHMS)}")
    kind = ALGORITHMS[name]
    rate, *words = rest.split(",")
    known = _BUCKET if issubclass(kind, Bucket) else _WINDOW
    options: dict[str, float] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals or option.strip() not in known:
            raise ValueError(f"{word!r} in {spec!r} is no option of {name}: {', '.join(known)}")
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"{option} in {spec!r} must be a number, not {value!r}") from None
        options[known[option.strip()]] = int(number) if number.is_integer() else number
    if rate:
        return kind.from_rate(Rate.parse(rate), **options)
    return kind(**options)
