"""Running `throttle fetch` in tests, in this process or as a program, and reading what it left."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from throttle.cli import main

__all__ = ["check_files", "fetch", "manifest", "program"]


def fetch(out: Path, *words: str, rate: str | None = "2000/s") -> int:
    """Run it here; the exit code."""
    rates = [] if rate is None else ["--rate", rate]
    return main(["fetch", *words, *rates, "--out", str(out)])


def program(out: Path, *words: str, rate: str = "2000/s", **options: Any) -> subprocess.Popen[str]:
    """Start it as a program of its own."""
    command = [sys.executable, "-m", "throttle", "fetch", *words, "--rate", rate, "--out", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def manifest(folder: Path) -> list[dict[str, Any]]:
    """The lines of the manifest; a last one that a kill has torn is left out."""
    path = folder / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def check_files(folder: Path, *, killed: bool = False) -> None:
    """Every fetched line has a whole file, and no file lies there without a line.

    A kill may come after a file has got its name, and before it has its line: then the file is one
    that will be fetched again.
    """
    fetched = [line for line in manifest(folder) if "file" in line]
    for line in fetched:
        body = (folder / line["file"]).read_bytes()
        assert len(body) == line["bytes"]
        assert hashlib.sha256(body).hexdigest() == line["sha256"]
    without = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.jsonl" and ".parts" not in path.parts
    } - {line["file"] for line in fetched}
    assert len(without) <= killed
