"""What other libraries answered, or were specified to: run against the algorithms here.

`vectors/limiters.json` and `vectors/go-rate-random.json` say where each comes from. Every vector is
either run and holds, or stands in one of two tables with its reason: DIFFERS (it runs, and the
answer here is another one, by choice), ELSEWHERE (it is about something the algorithms are not).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from math import floor, inf
from pathlib import Path
from typing import Any

import pytest

from throttle import (
    AllOf,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)

FOLDER = Path(__file__).parent / "vectors"
VECTORS = {v["id"]: v for v in json.loads((FOLDER / "limiters.json").read_text())["vectors"]}
GO = {v["id"]: v for v in json.loads((FOLDER / "go-rate-random.json").read_text())["vectors"]}

Vector = dict[str, Any]
NANO = 1e-9


class Answers:
    """A limiter on a clock of its own, driven by the steps of a vector; what it answers."""

    def __init__(self, make: Callable[..., Limiter], start: float = 0.0, **options: Any) -> None:
        self.now = start
        self.limiter = make(clock=lambda: self.now)
        self.capacity: float = self.limiter._ceiling()
        self.max_wait: float = options.get("max_wait", inf)
        self.whole: bool = options.get("whole", False)  # whether levels are told in whole tokens
        self.split: bool = options.get("split", False)  # whether a reservation may pass the limit
        self.aligned: float = options.get("aligned", 0)
        self.leaky: Any = options.get("leaky")
        self.scale: float = options.get("scale", 1)  # what a second of the vector is here
        self.acts: dict[str, tuple[float, float]] = {}  # of reservations: when, and how much
        self.limiter.available()  # the first instant it sees starts it

    def step(self, step: Vector) -> Vector:
        self.now = (step["at_ns"] / 1e9 if "at_ns" in step else step["at"]) * self.scale
        if self.aligned and self.limiter.fresh_at() <= self.now:
            # The vector's windows stand on multiples; here they count from the first use. A grain,
            # too small to be seen, opens one there.
            self.limiter.charge(1e-13, floor(self.now / self.aligned) * self.aligned)
        got: Vector = getattr(self, step["op"])(step)
        times = {key: got[key] / self.scale for key in ("delay", "retry_after") if key in got}
        return got | times

    def allow(self, step: Vector) -> Vector:
        before, wait = self.tokens(step)["tokens"], self.limiter.delay(cost=step["cost"])
        allowed = self.limiter.allow(cost=step["cost"])
        assert allowed == (wait == 0)
        return {
            "allowed": allowed,
            "tokens_before": before,
            "tokens_after": self.tokens(step)["tokens"],
            "remaining": floor(self.limiter.available()),
            "retry_after": wait,
            "never": wait == inf,
            "capacity": self.capacity,
        }

    def allow_many(self, step: Vector) -> Vector:
        return {"granted": sum(self.limiter.allow() for _ in range(step["count"]))}

    def tokens(self, step: Vector) -> Vector:
        level = self.limiter._available(self.limiter._settle(self.now))
        return {"tokens": max(0, floor(level)) if self.whole else level}

    def take_all(self, step: Vector) -> Vector:
        taken = floor(self.limiter.available())
        assert self.limiter.allow(cost=taken)
        return {"taken": taken}

    def delay(self, step: Vector) -> Vector:
        if "ref" in step:
            act, _ = self.acts.get(step["ref"], (inf, 0))
            return {"ok": act < inf, "delay": max(0.0, act - self.now), "delay_inf": act == inf}
        return {"delay": self.limiter.delay(cost=step["cost"])}

    def reserve(self, step: Vector) -> Vector:
        """Ask, then spend. What may pass the limit is so many single ones (law 4)."""
        cost, wait = step["cost"], 0.0
        if cost > self.capacity and not self.split:
            return {"ok": False}
        for part in [1] * cost if cost > self.capacity else [cost]:
            wait = self.limiter.delay(cost=part)
            if wait > self.max_wait:
                return {"ok": False}
            self.limiter.charge(part)
        if "name" in step:
            self.acts[step["name"]] = self.now + wait, cost
        return {"ok": True, "delay": wait, "delay_inf": wait == inf}

    def cancel(self, step: Vector) -> Vector:
        """Give back what was not used: nobody gives back a call whose time has come."""
        act, cost = self.acts.get(step["ref"], (-inf, 0))
        if self.now < act:
            self.limiter.refund(cost)
        return {}

    def acquire(self, step: Vector) -> Vector:
        """A caller in line: let in after those before it; the instants are answered at once."""
        if step.get("already_cancelled"):
            return {"error": "cancelled"}
        wait = self.limiter._departs_at(self.limiter._settle(self.now), step["cost"]) - self.now
        if wait == inf:
            return {"error": "exceeds_capacity"}
        if self.now + wait > step.get("deadline", inf):
            return {"error": "would_exceed_deadline"}
        self.limiter._spend(self.now + max(0.0, wait), step["cost"])
        return {"granted_at": self.now + wait}

    def consume_debt(self, step: Vector) -> Vector:
        self.limiter.charge(step["cost"])
        return {"delay": self.limiter._ready_at(self.now, 1e-12) - self.now}

    def time_to_full(self, step: Vector) -> Vector:
        return {"delay": self.limiter.fresh_at() - self.now}

    def request(self, step: Vector) -> Vector:
        """nginx's `limit_req`: what came before and has not leaked yet is the excess."""
        bucket, free = self.limiter, self.leaky
        assert isinstance(bucket, LeakyBucket)
        excess = bucket.water()
        told = {"excess_milli": excess * 1000}
        if not bucket.allow():
            return told | {"outcome": "reject"}
        if free == "nodelay" or excess <= free:
            return told | {"outcome": "pass", "delay": 0}
        return told | {"outcome": "delay", "delay": (excess - free) / bucket.rate}

    def greedy_count(self, step: Vector) -> Vector:
        count = 0
        while (at := self.limiter._departs_at(max(self.now, self.limiter._last), 1)) < step[
            "until"
        ]:
            self.limiter._spend(at, 1)
            count += at >= step.get("since", -inf)
        return {"granted_before": count}

    def set_rate(self, step: Vector) -> Vector:
        self.limiter.rate = _number(step["rate"])  # type: ignore[attr-defined]
        return {}

    def set_capacity(self, step: Vector) -> Vector:
        self.limiter.capacity = self.capacity = step["capacity"]  # type: ignore[attr-defined]
        return {}

    def set_limit(self, step: Vector) -> Vector:
        self.limiter.limit = step["limit"]  # type: ignore[attr-defined]
        return {}

    def set_config(self, step: Vector) -> Vector:
        """New parameters; what was earned is kept ("as is")."""
        (new,) = step["bandwidths"]
        self.limiter.rate = new["refill"] / new["period"] / self.scale  # type: ignore[attr-defined]
        self.limiter.capacity = new["capacity"]  # type: ignore[attr-defined]
        return {}


def _number(value: float | str) -> float:
    return inf if value == "inf" else float(value)


def bucket(p: Vector) -> Answers:
    return Answers(partial(TokenBucket, _number(p["rate"]), p["burst"]))


def adaptive(p: Vector) -> Answers:
    return Answers(partial(TokenBucket, p["max_rate"], p["max_rate"], initial=p["initial"]))


def gcra(p: Vector) -> Answers:
    interval = p.get("interval") or p["period"] / p["limit"]
    return Answers(partial(TokenBucket, 1 / interval, p["burst"]))


def pacer(p: Vector) -> Answers:
    return Answers(partial(TokenBucket, p["rate"], 1 + p["slack"]))


def grid(p: Vector) -> Answers:
    return Answers(partial(TokenBucket, 1 / p["interval"], 1), split=True)


def several(p: Vector) -> Answers:
    """bucket4j's "greedy" bandwidths: a bucket each, all or nothing. It tells whole tokens."""
    # Some tell single nanoseconds apart, which is below the tolerance: they run a million times
    # slower.
    scale = 1e6 if p["bandwidths"][0]["period"] < 1e-3 else 1

    def make(clock: Callable[[], float]) -> Limiter:
        members = [
            TokenBucket(
                b["refill"] / b["period"] / scale,
                b["capacity"],
                initial=b.get("initial"),
                clock=clock,
            )
            for b in p["bandwidths"]
        ]
        return members[0] if len(members) == 1 else AllOf(*members)

    return Answers(make, p.get("start_ns", 0) / 1e9 * scale, whole=True, scale=scale)


def window(kind: type[Limiter], p: Vector) -> Answers:
    return Answers(
        partial(kind, p["limit"], p["window"]),
        max_wait=p.get("max_wait", inf),
        split=kind is FixedWindow,
        aligned=p["window"] if kind is SlidingWindowCounter else 0,
    )


def leaky(p: Vector) -> Answers:
    """nginx keeps its rate in thousandths a second, and lets `burst` in besides the first."""
    return Answers(partial(LeakyBucket, p["rate_milli"] / 1000, p["burst"] + 1), leaky=p["delay"])


def interval(p: Vector) -> Answers:
    return Answers(partial(TokenBucket, p["refill"] / p["interval"], p["max"]))


MAKERS: dict[str, Callable[[Vector], Answers]] = {
    "token_bucket": bucket,
    "token_bucket_adaptive": adaptive,
    "token_bucket_multi": several,
    "gcra": gcra,
    "pacer": pacer,
    "pacer_grid": grid,
    "leaky_bucket": leaky,
    "sliding_window_log": partial(window, SlidingWindowLog),
    "sliding_window_counter": partial(window, SlidingWindowCounter),
    "fixed_window": partial(window, FixedWindow),
    "fixed_window_from_first": partial(window, FixedWindow),
    "interval_bucket": interval,
}

#: Run, and answered otherwise here, by choice.
DIFFERS = {
    "go-set-burst-then-past": "time does not run backwards below the last spending",
    "go-x-cancel-at-act-time": "whoever comes at the instant of his call has used it",
    "uber-initial-slack": "a new bucket is full",
    "b4j-reconf-reset": "a change of parameters keeps what was earned",
    "b4j-reconf-additive-grow": "raising a capacity grants nothing",
    "b4j-reconf-additive-grow-2": "raising a capacity grants nothing",
    "b4j-reconf-prop-greedy": "raising a capacity grants nothing",
    "pt-strict-count": "the log is exact: it does not space what it lets in",
    "r4j-limit-change": "a new limit counts at once",
    "fs-smooth-500": "a pacer counts from the last call, not on a grid",
    "fs-smooth-200": "a pacer counts from the last call, not on a grid",
    "fs-smooth-100": "a pacer counts from the last call, not on a grid",
    "nginx-backwards-far": "a clock set back by more than the memory is another clock",
}

_BY_HAND = "a bucket refilled by hand, with a queue that counts permits"
_SEGMENTS = "a window cut into segments"
_BOUNDARY = "tokens that come all at once, on a boundary"
_PREPAID = "a pacer whose caller pays for the one before"

#: Not run, by algorithm …
ELSEWHERE = {
    "bounded_queue_bucket": _BY_HAND,
    "sliding_window_segments": _SEGMENTS,
    "smooth_bursty": _PREPAID,
    "smooth_warmup": _PREPAID,
    "gcra_keyed": "which keys may be forgotten: see the tests of Keyed",
    "adaptive_cubic": "a rate that follows errors",
    "rate_meter": "a measure of a rate",
    "retry_budget": "see the tests of retries",
    "latency_throttle": "a delay that follows latencies",
    "concurrency_aimd": "a number of calls in flight that follows errors",
    "capacity_share": "a share of a capacity among clients",
    "job_queue": "a queue of jobs with priorities",
}
#: … and one by one.
ELSEWHERE_IDS = {
    "b4j-aligned-initial-3": _BOUNDARY,
    "b4j-aligned-initial-4": _BOUNDARY,
    "b4j-aligned-initial-5": _BOUNDARY,
    "b4j-aligned-initial-7": _BOUNDARY,
    "b4j-aligned-initial-8": _BOUNDARY,
    "b4j-aligned-no-adaptive": _BOUNDARY,
    "b4j-full-2": _BOUNDARY,
    "b4j-full-4": _BOUNDARY,
}
RUN = [
    name
    for name, vector in VECTORS.items()
    if vector["algorithm"] not in ELSEWHERE and name not in ELSEWHERE_IDS
]


def tolerance(key: str, step: Vector, number: int) -> float:
    """How far an answer may be off: two nanoseconds, or what nginx loses to whole numbers."""
    if step["op"] == "request":
        return 0.002 if key == "delay" else 1 + number
    return 2 * NANO


def differences(vector: Vector, answers: Answers) -> list[str]:
    """Where the answers are not those expected."""
    found, compared = [], 0
    for number, step in enumerate(vector["steps"]):
        got = answers.step(step)
        for key, expected in step["expect"].items():
            if key.endswith("_ns") and key.removesuffix("_ns") in step["expect"]:
                continue
            compared += 1
            if isinstance(expected, bool | str):
                far = got.get(key) != expected
            else:
                slip = tolerance(key, step, number) + NANO * abs(expected)
                far = abs(got.get(key, inf) - expected) > slip
            if far:
                found.append(f"step {number} {step}: {key} is {got.get(key)}")
    assert compared
    return found


def test_every_vector_is_accounted_for() -> None:
    algorithms = {vector["algorithm"] for vector in VECTORS.values()}
    assert algorithms == MAKERS.keys() | ELSEWHERE.keys()
    assert not MAKERS.keys() & ELSEWHERE.keys()
    assert DIFFERS.keys() <= set(RUN)
    assert ELSEWHERE_IDS.keys() <= VECTORS.keys()
    assert len(RUN) == 76


def test_what_is_portable_holds_here() -> None:
    assert not [name for name in DIFFERS if VECTORS[name]["class"] == "portable"]
    for name in ELSEWHERE_IDS:
        kinds = {bandwidth["kind"] for bandwidth in VECTORS[name]["params"]["bandwidths"]}
        assert "greedy" not in kinds


@pytest.mark.parametrize("name", RUN)
def test_vector(name: str) -> None:
    vector = VECTORS[name]
    found = differences(vector, MAKERS[vector["algorithm"]](vector["params"]))
    if name in DIFFERS:
        assert found
    else:
        assert not found


# ------------------------------------------------------------------ random schedules, by Go

AGREEING = [name for name, vector in GO.items() if vector["agrees"]["exact_strict_clamped"]]


#: What is otherwise here.
GO_DIFFERS = {
    "go-random-special-011": "an unlimited bucket is always full; 634 years are not for ever;"
    " a cost of 0 never waits",
    "go-random-special-016": "an unlimited bucket is always full",
}
GO_REFUSED = {
    "go-random-special-004": "a capacity of 0 is an error",
    "go-random-special-014": "a capacity of 0 is an error",
    "go-random-special-017": "a capacity of 0 is an error",
    "go-random-special-019": "a capacity of 0 is an error",
}


def before_a_cancel(steps: list[Vector]) -> list[Vector]:
    """Go gives back less than was taken when others reserved later: from there on it is another
    story. The steps before it hold."""
    ends = (number for number, step in enumerate(steps) if step["op"] == "cancel")
    return steps[: next(ends, len(steps))]


def test_the_schedules_are_enough() -> None:
    assert len(AGREEING) == 82
    assert GO_DIFFERS.keys() | GO_REFUSED.keys() <= set(AGREEING)
    assert sum(len(before_a_cancel(GO[name]["steps"])) for name in AGREEING) > 1000
    whole = [name for name in AGREEING if before_a_cancel(GO[name]["steps"]) == GO[name]["steps"]]
    assert len(whole) >= 28


@pytest.mark.parametrize("name", AGREEING)
def test_go_schedule(name: str) -> None:
    vector = GO[name]
    if name in GO_REFUSED:
        with pytest.raises(ValueError, match="capacity must be above 0"):
            go_differences(vector, bucket(vector["params"]))
        return
    found = go_differences(vector, bucket(vector["params"]))
    if name in GO_DIFFERS:
        assert found
    else:
        assert not found


def go_differences(vector: Vector, answers: Answers) -> list[str]:
    found = []
    for number, step in enumerate(before_a_cancel(vector["steps"])):
        reserving = step["op"] == "reserve"
        before = answers.step({**step, "op": "tokens"})["tokens"] if not reserving else None
        got = answers.step(step)
        for key, expected in step["expect"].items():
            if key == "delay_ns":
                wrong = abs(got["delay"] * 1e9 - expected) > 2 + 1e-9 * expected
            elif key == "tokens_before":
                level = got.get(key, before)
                wrong = level is not None and abs(level - expected) > 1e-6 * (1 + abs(expected))
            elif key == "tokens_after":
                level = answers.step({**step, "op": "tokens"})["tokens"]
                wrong = abs(level - expected) > 1e-6 * (1 + abs(expected))
            else:
                wrong = got[key] != expected
            if wrong:
                found.append(f"step {number} {step}: {key}, got {got}")
    return found
