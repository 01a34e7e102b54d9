"""How things are measured here: side by side, in turns, medians of rounds, shown as ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["medians", "per_call", "table"]


def per_call(run: Callable[[int], object], number: int) -> float:
    """Seconds of CPU a call: `run(number)` makes that many."""
    began = time.process_time()
    run(number)
    return (time.process_time() - began) / number


def medians(measures: Mapping[str, Callable[[], float]], rounds: int = 7) -> dict[str, float]:
    """Each measure once a round, in turns; the median of its rounds."""
    seen: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            seen[name].append(measure())
    return {name: statistics.median(values) for name, values in seen.items()}


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    print(f"\n## {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        cells = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row)
        print("| " + " | ".join(cells) + " |", flush=True)
