"""Copies of a limiter, by every way Python makes one: as it is, and then each on its own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from math import inf
from typing import Any

import pytest
from helpers.callers import callers, settle
from helpers.subjects import EVERY, NOT_COMPOSITE, Subject

from throttle import Limiter, SlidingWindowLog, TokenBucket

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy,
    "deepcopy": deepcopy,
    "pickle": lambda limiter: pickle.loads(pickle.dumps(limiter)),
}
BY_EACH_WAY = pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS.keys())


def looks(limiter: Limiter, now: float) -> Any:
    return limiter.state(now), limiter.available(now), limiter.delay(now), limiter.stats()[:2]


@BY_EACH_WAY
@NOT_COMPOSITE
def test_a_copy_and_its_original_share_nothing(
    subject: Subject, duplicate: Callable[[Any], Any]
) -> None:
    """Both go on as one would that was never copied, whatever the other does meanwhile."""
    limiter, alone = subject.make(), subject.make()
    for one in (limiter, alone):
        one.allow(10.0)
    other = duplicate(limiter)
    for step in range(8):
        now = 10.0 + step * subject.span / 5
        assert looks(other, now) == looks(limiter, now) == looks(alone, now)
        limiter.charge(1, now)
        alone.charge(1, now)
        assert looks(limiter, now) == looks(alone, now)
        other.charge(1, now)
        assert looks(limiter, now) == looks(alone, now)


@EVERY
def test_a_deep_copy_of_a_composite_has_members_of_its_own(subject: Subject) -> None:
    limiter = subject.make()
    limiter.allow(10.0)
    before = looks(limiter, 10.0)
    for duplicate in (WAYS["deepcopy"], WAYS["pickle"]):
        duplicate(limiter).charge(1, 10.0)
    assert looks(limiter, 10.0) == before


@BY_EACH_WAY
@pytest.mark.parametrize("pause", [5.0, inf])
def test_a_copy_is_paused_as_its_original_is(duplicate: Callable[[Any], Any], pause: float) -> None:
    limiter = TokenBucket(1)
    limiter.pause(pause, 0.0)
    other = duplicate(limiter)
    assert other.delay(0.0) == pause
    limiter.resume()
    assert (limiter.delay(0.0), other.delay(0.0)) == (0.0, pause)


@BY_EACH_WAY
@pytest.mark.anyio
async def test_nobody_stands_in_line_for_a_copy(duplicate: Callable[[Any], Any]) -> None:
    limiter = SlidingWindowLog(1, 10)
    async with callers() as them:
        for name in "abc":
            await them.join(name, limiter)
        await settle()
        other = duplicate(limiter)
        assert (limiter.stats().waiting, other.stats().waiting) == (2, 0)
        assert (limiter.delay(), other.delay()) == (30.0, 10.0)
        other.reset()
        assert other.allow()
        assert limiter.stats().waiting == 2
    assert them.log == [("a", 0.0), ("b", 10.0), ("c", 20.0)]
