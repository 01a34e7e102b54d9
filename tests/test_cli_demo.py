"""`throttle demo`, and `python -m throttle`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.without import without

from throttle.cli import main


def rows(out: str) -> dict[str, list[str]]:
    return {
        line.split()[0]: line.split()[1:]
        for line in out.splitlines()
        if line.strip().startswith(("bare", "throttled"))
    }


def test_the_throttled_session_earns_no_refusal_and_it_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "demo.svg"
    assert main(["demo", "--requests", "30", "--rate", "20/s", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert rows(out)["throttled"][:3] == ["30", "30", "0"]
    assert rows(out)["bare"][0] == "30"
    assert int(rows(out)["bare"][2]) > 0
    assert str(picture) in out
    drawn = picture.read_text()
    assert "<!-- throttled: 0 × 429 -->" in drawn
    assert "<!-- refused (429) -->" in drawn


def test_where_the_picture_was_saved_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--requests", "2"]) == 0
    (picture,) = tmp_path.glob("*.png")
    assert str(picture) in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["demo", "--requests", "2", "--no-plot"]) == 0
    assert list(tmp_path.iterdir()) == [picture]


def test_without_matplotlib_there_is_the_table_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "matplotlib")
    assert main(["demo", "--requests", "2"]) == 0
    assert "throttle-asyncio[plot]" in capsys.readouterr().out
    assert main(["demo", "--requests", "2", "--plot", "x.svg"]) == 2
    said = capsys.readouterr().err
    assert "throttle-asyncio[plot]" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--plot", "out.xyz"], "out.xyz"),
        (["--plot", "/no/such/folder/out.svg"], "/no/such/folder"),
        (["--rate", "0"], "'0'"),
        (["--requests", "some"], "'some'"),
    ],
)
def test_what_is_wrong_is_named_before_any_work(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(["demo", *words])
    except SystemExit as error:
        code = error.code
    assert code == 2
    told = capsys.readouterr()
    assert named in told.err
    assert not told.out


def test_the_module_is_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "throttle", "--help"], capture_output=True, text=True, check=True
    )
    assert all(command in result.stdout for command in ("fetch", "simulate", "inspect", "demo"))


@pytest.mark.parametrize("command", ["fetch", "simulate", "inspect", "demo"])
def test_help_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert f"throttle {command} " in told.partition("examples:")[2]
    assert "exit codes:" in told
    assert max(map(len, told.splitlines())) <= 100


FETCH = ["fetch", "http://127.0.0.1:9/"]


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [
        (["demo"], "rich", "cli"),
        (["simulate", "burst"], "rich", "cli"),
        (["inspect", "http://127.0.0.1:9/"], "rich", "cli"),
        (FETCH, "rich", "cli"),
        (FETCH, "protego", "cli"),
        ([*FETCH, "--redis", "redis://127.0.0.1:9"], "redis", "redis"),
    ],
)
def test_a_part_that_is_missing_is_one_line_that_says_what_to_install(
    command: list[str],
    library: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, library)
    assert main(command) == 2
    told = capsys.readouterr()
    assert f"throttle-asyncio[{extra}]" in told.err
    assert told.err.count("\n") == 1
    assert not told.out
