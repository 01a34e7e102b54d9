"""Every sample in README and docs is run, and prints what it says it prints.

A `python` block is a program of its own. What it must print is the `text` block that follows it,
if one does; without one it must print nothing that matters, only succeed. Blocks in which `>>>`
appears are doctests. `sh` blocks are not run here, but `.ci/run` must be one of them.
"""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Sample(NamedTuple):
    """One block of code in a page."""

    name: str
    code: str
    output: str | None


def samples(kind: str) -> list[Sample]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == kind:
                line = text[: match.start()].count("\n") + 1
                found.append(Sample(f"{page.name}:{line}", match[2], match[3]))
    return found


PYTHON = samples("python")


@pytest.mark.parametrize(
    "sample", [s for s in PYTHON if ">>>" not in s.code], ids=lambda sample: sample.name
)
def test_a_sample_prints_what_it_says(sample: Sample, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", sample.code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    if sample.output is not None:
        assert result.stdout == sample.output


@pytest.mark.parametrize(
    "sample", [s for s in PYTHON if ">>>" in s.code], ids=lambda sample: sample.name
)
def test_a_dialogue_answers_what_it_says(sample: Sample) -> None:
    test = doctest.DocTestParser().get_doctest(sample.code, {}, sample.name, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_samples_and_examples_pass_the_strictest_checker(tmp_path: Path) -> None:
    # One by one they are programs of their own; together they are checked in one go.
    files = sorted((ROOT / "examples").glob("*.py"))
    for sample in PYTHON:
        if ">>>" not in sample.code:
            file = tmp_path / f"{sample.name.replace('.', '_').replace(':', '_')}.py"
            file.write_text(sample.code, encoding="utf-8")
            files.append(file)
    assert len(files) > 10
    # Whether other packages have types is not for the samples to say.
    options = ("--strict", "--disable-error-code", "import-untyped", "--cache-dir", str(tmp_path))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_there_are_samples() -> None:
    assert len(PYTHON) > 5


def test_ci_runs_the_readmes_test_command() -> None:
    command = (ROOT / ".ci/run").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert any(command in sample.code.splitlines() for sample in samples("sh"))


def test_links_inside_the_project_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
