"""The types that users see, as mypy sees them under its strictest settings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

API = Path(__file__).parent / "typing" / "api.py"

_MARK = re.compile(r"# (?P<kind>[RE]): (?P<what>.+)$")
_SAID = re.compile(r".*?api\.py:(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says of each line: codes of errors, and revealed types in their shortest form."""
    options = ["--strict", "--disallow-any-decorated", "--disallow-any-unimported"]
    cache = tmp_path_factory.mktemp("mypy")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--no-pretty", "--cache-dir", str(cache), API],
        cwd=API.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr
    lines: dict[int, list[str]] = {}
    for match in filter(None, map(_SAID.match, run.stdout.splitlines())):
        text = match["text"]
        if match["kind"] == "error":
            lines.setdefault(int(match["line"]), []).append(text[text.rindex("[") :])
        elif text.startswith("Revealed type"):
            shown = re.sub(r"\b[a-z_]+(\.[a-z_]+)*\.(?=\w)", "", text.split('"')[1])
            lines.setdefault(int(match["line"]), []).append(shown)
    return lines


def test_every_line_says_what_it_should_and_no_more(said: dict[int, list[str]]) -> None:
    expected = {
        number: [match["what"]]
        for number, line in enumerate(API.read_text().splitlines(), start=1)
        if (match := _MARK.search(line))
    }
    assert len(expected) > 30
    assert said == expected
