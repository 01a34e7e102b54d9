"""Every example in a docstring of the package runs, and those that teach are there."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "throttle"
WITH_EXAMPLES = sorted(
    ".".join(("throttle", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in PACKAGE.rglob("*.py")
    if "\n>>> " in (text := path.read_text()) or " >>> " in text
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert result.attempted
    assert not result.failed


def test_every_algorithm_shows_itself() -> None:
    algorithms = {name for name in WITH_EXAMPLES if name.startswith("throttle.algorithms.")}
    shown = {name.rsplit(".", 1)[1] for name in algorithms}
    assert shown >= {
        "all_of",
        "fixed_window",
        "leaky_bucket",
        "ring_buffer",
        "sliding_window_counter",
        "sliding_window_log",
        "token_bucket",
    }
