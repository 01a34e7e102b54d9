"""The gates that are not about behaviour: style, types, and the package as it is shipped."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path = ROOT) -> None:
    """Run a command; a failure shows all it printed."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"


def test_ruff_finds_nothing() -> None:
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_code_is_formatted() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", "--no-cache", ".")


def test_types_are_strict() -> None:
    run(sys.executable, "-m", "mypy", "--cache-dir", "/dev/null")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "throttle/py.typed" in names
    scripts = {path.name for path in (ROOT / "throttle/shared/scripts").glob("*.lua")}
    assert scripts
    assert scripts == {Path(name).name for name in names if name.endswith(".lua")}
    assert {name.split("/")[0] for name in names} == {
        "throttle",
        wheel.name.split("-py3")[0] + ".dist-info",
    }


def test_the_installed_wheel_works_with_its_base_dependencies_alone(
    wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv/bin/python")
    run(python, "-m", "pip", "install", "-q", str(wheel))
    program = (
        "import throttle; from throttle import ThrottledSession, FileLimiter, TokenBucket\n"
        "assert TokenBucket(1).allow(0.0)\n"
        "from importlib.resources import files\n"
        "assert (files('throttle') / 'py.typed').is_file()\n"
        "assert throttle.__version__\n"
        "from throttle import *\n"
        "for make, extra in (lambda: RedisLimiter(None, 'a', TokenBucket(1)), 'redis'), "
        "(lambda: PoliteSession(user_agent='a (a@example.org)'), 'scrape'):\n"
        "    try: make()\n"
        "    except ImportError as error: assert f'throttle-asyncio[{extra}]' in str(error)\n"
        "    else: raise AssertionError(extra)\n"
    )
    run(python, "-I", "-c", program, cwd=tmp_path)
    run(str(tmp_path / "venv/bin/throttle"), "--version", cwd=tmp_path)
