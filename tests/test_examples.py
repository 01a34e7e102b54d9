"""Every file in examples/ runs by itself, offline, and says something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(example: Path, folder: Path) -> str:
    """What an example prints, run in a folder of its own with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_offline_and_prints_what_it_shows(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path).strip()
    assert example.read_text().startswith('"""'), "it opens with its idea"


def test_the_scrape_tells_what_happened(tmp_path: Path) -> None:
    early, late = run(ROOT / "examples/prometheus_export.py", tmp_path).split("# when all is done")
    assert 'throttle_granted_total{limiter="search"} 20' in early
    assert 'throttle_waiting{limiter="upload"} 5' in early
    assert 'throttle_granted_total{limiter="upload"} 8' in late
    assert 'throttle_waiting{limiter="upload"} 0' in late
    # Of 8 uploads 3 a minute, 3 waited a minute and 2 waited two.
    assert 'throttle_wait_seconds_bucket{limiter="upload",le="10.0"} 0' in late
    assert 'throttle_wait_seconds_bucket{limiter="upload",le="+Inf"} 5' in late
    assert 'throttle_wait_seconds_sum{limiter="upload"} 420' in late
