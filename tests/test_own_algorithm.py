"""An algorithm of a user's own: two methods are enough, and what is missing says so."""

from __future__ import annotations

import asyncio
import copy
import re
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers.callers import settle

from throttle import Concurrency, CostTooLarge, Limiter, RateLimited, WaitTimeout, clock, throttle
from throttle.testing import virtual_time

PAGE = Path(__file__).resolve().parent.parent / "docs" / "limiters.md"


class EveryOther(Limiter):
    """One permit in each even second."""

    _next = 0.0

    def _ready_at(self, now: float, cost: float) -> float:
        return inf if cost > 1 else max(now, self._next)

    def _take(self, at: float, cost: float) -> None:
        self._next = (at // 2 + 1) * 2


class Forgetful(EveryOther):
    """Its __init__ does not call that of its base."""

    def __init__(self) -> None:
        pass


class Bare(Limiter):
    pass


VERBS: dict[str, Any] = {
    "allow": lambda limiter: limiter.allow(),
    "acquire_sync": lambda limiter: limiter.acquire_sync(),
    "ready_at": lambda limiter: limiter.ready_at(),
    "delay": lambda limiter: limiter.delay(),
    "available": lambda limiter: limiter.available(),
    "charge": lambda limiter: limiter.charge(1),
    "pause": lambda limiter: limiter.pause(1),
    "resume": lambda limiter: limiter.resume(),
    "stats": lambda limiter: limiter.stats(),
    "fresh_at": lambda limiter: limiter.fresh_at(),
    "composite": lambda limiter: (limiter & EveryOther()).allow(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_class_that_forgets_super_init_works_without_its_options(verb: str) -> None:
    VERBS[verb](Forgetful())
    assert EveryOther().allow(0.0)  # the lock was let go of


@pytest.mark.anyio
async def test_a_class_that_forgets_super_init_can_be_waited_for() -> None:
    assert await Forgetful().acquire() == 0.0


def test_another_missing_attribute_is_the_usual_error() -> None:
    with pytest.raises(
        AttributeError, match="'EveryOther' object has no attribute 'alow'"
    ) as error:
        EveryOther().alow()  # type: ignore[attr-defined]
    assert (error.value.name, "super" in str(error.value)) == ("alow", False)
    assert not hasattr(EveryOther(), "members")
    assert copy.copy(EveryOther()).allow(0.0)


@pytest.mark.parametrize("verb", ["allow", "acquire_sync", "ready_at", "delay", "available"])
def test_without_the_two_methods_the_error_says_what_they_are(verb: str) -> None:
    with pytest.raises(NotImplementedError, match=r"Bare must define _ready_at\(self, now, cost\)"):
        VERBS[verb](Bare())
    with pytest.raises(NotImplementedError, match=r"Bare must define _take\(self, at, cost\)"):
        Bare().charge(1)


OPTIONAL: dict[str, Any] = {
    "refund": lambda limiter: limiter.refund(1),
    "reset": lambda limiter: limiter.reset(),
    "state": lambda limiter: limiter.state(),
    "restore": lambda limiter: limiter.restore({}),
}


@pytest.mark.parametrize("verb", OPTIONAL)
def test_a_verb_that_needs_more_says_so_and_changes_nothing(verb: str) -> None:
    limiter = EveryOther(clock=lambda: 1.0)
    assert limiter.allow()
    with pytest.raises((NotImplementedError, ValueError), match=r"EveryOther|state"):
        OPTIONAL[verb](limiter)
    assert (limiter.delay(), limiter._last) == (1.0, 1.0)
    assert limiter.stats().granted == 1


@pytest.mark.anyio
async def test_a_cost_that_never_fits_where_the_ceiling_is_not_known() -> None:
    with pytest.raises(CostTooLarge) as error:
        await EveryOther().acquire(3)
    assert str(error.value) == "cost=3 can never fit"
    assert (error.value.cost, error.value.capacity) == (3, inf)
    assert str(CostTooLarge(3, 2)) == "cost=3 can never fit: at most 2 ever do"


@pytest.mark.parametrize("composite", [False, True])
def test_cancelled_right_after_its_grant_it_is_cancelled(composite: bool) -> None:
    one = EveryOther()
    limiter = one & EveryOther() if composite else one

    async def main() -> None:
        assert await limiter.acquire() == 0
        waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(2)]
        await settle()
        # In the turn of the loop in which the timer of the line lets it in, and after it.
        asyncio.get_running_loop().call_at(2.0, waiting[0].cancel)
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert await waiting[1] == 4.0  # the permit of 2.0 is lost, since nothing can be given back
        assert (limiter.stats().granted, limiter.stats().waiting) == (2, 0)

    with virtual_time() as time:
        time.run(main)


# -------------------------------------------------------------------- nobody can tell


@pytest.mark.anyio
@pytest.mark.parametrize("timeout", [0, 1.5])
async def test_who_waits_in_vain_for_a_slot_is_told_nothing_untrue(timeout: float) -> None:
    slots = Concurrency(1)
    await slots.acquire()

    async def other() -> None:
        with pytest.raises(WaitTimeout) as error:
            await slots.acquire(timeout=timeout)
        assert str(error.value) == (
            f"nobody can tell how long the wait would be, timeout={timeout:g}"
        )
        assert (error.value.delay, clock.now()) == (inf, timeout)

    async with anyio.create_task_group() as group:
        group.start_soon(other)


def test_nor_is_who_would_rather_have_an_error() -> None:
    slots = Concurrency(1)
    assert slots.allow()
    with pytest.raises(RateLimited) as error:
        throttle(slots, on_limit="raise")(len)("")
    assert "inf" not in str(error.value)
    assert error.value.retry_after == inf


# -------------------------------------------------------------------- the page


def test_the_page_names_every_hook_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = [line for line in text[text.index("## Writing") :].splitlines() if line[:3] == "| `"]
    named = {name for line in table for name in re.findall(r"`(_\w+)", line.split("|")[1])}
    optional = {
        name
        for name in vars(Limiter)
        if name.startswith("_") and not name.startswith("__") and name not in PRIVATE
    }
    assert named == optional


#: Of the methods of `Limiter`, those that are no hooks: the two, and the library's own.
PRIVATE = {
    "_as_new_at", "_level", "_postpone",
    "_ready_at", "_take", "_enter", "_enter_by_departure", "_shown", "_foreseen", "_needs",
    "_pause_for", "_pause_left", "_clone", "_now", "_given", "_settle", "_back", "_spend", "_shut",
    "_told", "_change", "_too_large", *Limiter.__slots__,
}  # fmt: skip
