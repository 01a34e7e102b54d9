"""`throttle simulate`: the arrivals, the limiters, the table and the picture."""

from __future__ import annotations

import asyncio
import io
import sys
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from helpers.without import without

from throttle.cli import main
from throttle.cli.arrivals import PATTERNS, from_log
from throttle.cli.simulate import DEFAULTS, Outcome, simulate
from throttle.cli.specs import factory
from throttle.limiter import Limiter
from throttle.testing import virtual_time


@pytest.mark.parametrize(
    ("spec", "granted", "left"),
    [
        ("token-bucket:5/s,burst=5", 5, [0, 0, 0, 0, 0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ("leaky-bucket:5/s,burst=5", 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8]),
        ("sliding-log:5/s", 5, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        ("sliding-counter:5/s", 5, [0, 0, 0, 0, 0, 1.2, 1.4, 1.6, 1.8, 2.0]),
        ("fixed-window:5/s", 5, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        ("sliding-log:5/s&token-bucket:2/s,burst=1", 1, [n / 2 for n in range(10)]),
        ("5/s", 5, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    ],
)
def test_the_labs_burst(spec: str, granted: int, left: list[float]) -> None:
    outcome = simulate(spec, factory(spec), [0.0] * 10)
    assert len(outcome.granted) == granted
    assert list(outcome.left) == pytest.approx(left, abs=1e-9)


@pytest.mark.parametrize("spec", [*DEFAULTS, "5/s&token-bucket:3/s,burst=2", "2/0.7s"])
@pytest.mark.parametrize("seed", range(3))
def test_the_line_is_the_one_that_acquire_makes(spec: str, seed: int) -> None:
    arrivals = PATTERNS["poisson"](150, 6.0, seed) + [40.0] * 9
    left: list[float] = []

    async def caller(limiter: Limiter, came: float) -> None:
        left.append(came + await limiter.acquire())

    async def all_of() -> None:
        limiter, loop = factory(spec)(), asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for came in arrivals:
                if came > loop.time():
                    arrived = loop.create_future()
                    loop.call_at(came, arrived.set_result, None)
                    await arrived
                group.create_task(caller(limiter, came))

    with virtual_time() as time:
        time.run(all_of)
    assert list(simulate(spec, factory(spec), arrivals).left) == pytest.approx(left, abs=1e-6)


def test_a_cost_that_can_never_fit_is_never_let_out() -> None:
    outcome = simulate("x", factory("token-bucket:1/s,burst=0.5"), [0.0, 1.0])
    assert outcome.left == (inf, inf)


@pytest.mark.parametrize("spec", DEFAULTS)
def test_the_labs_steady_stream_passes_everywhere(spec: str) -> None:
    arrivals = PATTERNS["steady"](40, 4.0, 1)
    outcome = simulate(spec, factory(spec), arrivals)
    assert list(outcome.granted) == arrivals
    assert outcome.waits == [0.0] * 40 if "leaky" not in spec else max(outcome.waits) < 0.01


def test_the_most_in_a_window_is_counted_over_every_window() -> None:
    outcome = Outcome("x", (), (0.0, 0.4, 0.9, 1.0, 1.3, 5.0), ())
    assert outcome.most_in(1.0) == 4  # 0.4, 0.9, 1.0 and 1.3
    assert outcome.most_in(0.5) == 3
    assert Outcome("x", (), (), ()).most_in(1.0) == 0


def test_patterns_are_in_order_and_as_many_as_asked() -> None:
    for pattern in PATTERNS.values():
        instants = pattern(37, 5.0, 7)
        assert len(instants) == 37
        assert instants == sorted(instants)
    assert PATTERNS["poisson"](5, 5.0, 7) == PATTERNS["poisson"](5, 5.0, 7)
    assert PATTERNS["poisson"](5, 5.0, 7) != PATTERNS["poisson"](5, 5.0, 8)


COMMON = '127.0.0.1 - - [10/Oct/2000:13:55:{second:02}{fraction} {zone}] "GET / HTTP/1.1" 200 5'


@pytest.mark.parametrize(
    ("text", "instants"),
    [
        (
            "\n".join(COMMON.format(second=s, fraction="", zone="-0700") for s in (36, 36, 40)),
            [0, 0, 4],
        ),
        (
            COMMON.format(second=1, fraction="", zone="+0000")
            + ' "-" "curl"\n'
            + COMMON.format(second=2, fraction=".25", zone="+0000"),
            [0, 1.25],
        ),
        ("1700000000.5\n1700000001\n# no time\n1699999999", [0, 1.5, 2]),
        ("1700000000000,GET\n1700000000250,GET\n", [0, 0.25]),
    ],
)
def test_times_are_read_out_of_logs(text: str, instants: list[float]) -> None:
    assert from_log(text.splitlines(), "x") == pytest.approx(instants)


def test_a_log_of_a_day_is_drawn_as_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.log"
    line = '10.0.0.1 - - [01/Nov/2026:{:02}:{:02}:{:02} +0000] "GET / HTTP/1.1" 200 5\n'
    log.write_text(
        "".join(line.format(n // 3600, n // 60 % 60, n % 60) for n in range(0, 86400, 40))
    )
    picture = tmp_path / "out.svg"
    assert main(["simulate", str(log), "1/minute", "--plot", str(picture)]) == 0
    assert "2160 arrivals in 86360 s" in capsys.readouterr().out
    drawn = picture.read_text()
    assert "<!-- hours -->" in drawn
    assert "<!-- per second -->" in drawn
    assert len(drawn) < 300_000  # not a mark an arrival


@pytest.mark.parametrize(
    "line",
    [
        COMMON.format(second=1, fraction="", zone="+0000").replace("Oct", "Okt"),
        COMMON.format(second=1, fraction="", zone="+0000").replace("10/Oct", "40/Oct"),
        "1e400",
        "",
    ],
)
def test_a_line_without_a_time_is_passed_over(line: str) -> None:
    assert from_log([line, "1700000000"], "x") == [0.0]


def test_a_log_without_times_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("roses are red\n")
    assert main(["simulate", str(tmp_path / "poem.txt")]) == 2
    assert "poem.txt" in capsys.readouterr().err


def test_the_table_stands_in_a_pipe_without_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n1\n1\n"))
    assert main(["simulate", "-", "sliding-log:2/s", "token-bucket:1/s,burst=1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    rows = [line.split() for line in out.splitlines() if ":" in line and "/s" in line]
    assert rows[0][:4] == ["sliding-log:2/s", "2", "1", "2"]
    assert rows[1] == ["token-bucket:1/s,burst=1", "1", "2", "1", "1.00", "2.00", "2.00"]


def test_options_may_stand_between_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "burst", "--count", "4", "sliding-log:2/s", "--seed", "3"]) == 0
    assert "4 arrivals" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_a_picture_is_drawn(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    assert main(["simulate", "bursts", "--plot", str(path)]) == 0
    head = path.read_bytes()[:5]
    assert head == {"svg": b"<?xml", "png": b"\x89PNG\r", "pdf": b"%PDF-"}[ending]
    if ending == "svg":
        ET.parse(path)


def test_a_picture_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert main(["simulate", "burst", "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["rain"], "'rain'"),
        (["burst", "sponge:5/s"], "'sponge'"),
        (["burst", "token-bucket:fast"], "'fast'"),
        (["burst", "token-bucket:5/s,size=3"], "'size=3'"),
        (["burst", "sliding-log:5/s,burst=3"], "'burst=3'"),
        (["burst", "token-bucket:5/s,burst=x"], "'x'"),
        (["burst", "token-bucket:5/s,burst=-1"], "-1"),
        (["burst", "--plot", "out.xyz"], "xyz"),
        (["burst", "--plot", "/no/such/folder/out.svg"], "/no/such/folder"),
        (["burst", "--window", "0"], "--window"),
    ],
)
def test_what_is_wrong_is_named(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(["simulate", *words])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_missing_part_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "matplotlib")
    assert main(["simulate", "burst", "--plot", "x.svg"]) == 2
    told = capsys.readouterr()
    assert "throttle-asyncio[plot]" in told.err
    assert told.err.count("\n") == 1
    assert not told.out
