"""The types of a ThrottledSession, as strict mypy sees them: what is right passes, what is wrong is
an error (an ignore that is not needed would be one too)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLAIMS = Path(__file__).parent / "typing" / "session.py"


def test_keyword_arguments_are_checked(tmp_path: Path) -> None:
    options = ["--strict", "--no-pretty", "--cache-dir", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, CLAIMS],
        cwd=CLAIMS.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in run.stdout.splitlines() if "typing/session.py" in line]
    assert complaints == []
    assert run.returncode in (0, 1), run.stderr
    assert CLAIMS.read_text().count("# type: ignore[") > 8
