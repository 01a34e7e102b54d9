"""`throttle demo`, and `python -m throttle`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from throttle.cli import main


def test_the_throttled_session_earns_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--requests", "30", "--rate", "20/s"]) == 0
    rows = {
        line.split()[0]: line.split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("bare", "throttled"))
    }
    assert rows["throttled"][:3] == ["30", "30", "0"]
    assert rows["bare"][0] == "30"
    assert int(rows["bare"][2]) > 0


def test_the_module_is_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "throttle", "--help"], capture_output=True, text=True, check=True
    )
    assert all(command in result.stdout for command in ("fetch", "simulate", "inspect", "demo"))
