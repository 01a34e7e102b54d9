"""The pictures: what came in and what went out over time, one row a limiter.

Made to be read in print and by everybody: marks differ in shape as well as in colour, and the
colours (Okabe and Ito's) can be told apart with any kind of colour vision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from throttle.cli.simulate import Outcome

__all__ = ["draw"]

#: Above so many instants in a row the numbers would run into each other.
_MOST_NUMBERS = 40

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#999999"


def draw(outcomes: Sequence[Outcome], path: Path, *, title: str) -> None:
    """Write a picture; the ending of `path` chooses the format. ValueError for one unknown."""
    end = max(
        max((instant for instant in (*one.left, *one.arrivals) if instant < inf), default=1)
        for one in outcomes
    )
    with mpl.rc_context({"svg.hashsalt": "throttle", "font.size": 9}):
        figure = Figure(figsize=(8, 1.0 + 1.2 * len(outcomes)), layout="constrained")
        axes = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
        figure.suptitle(title, fontsize=10)
        for axis, outcome in zip(axes, outcomes, strict=True):
            _row(axis, outcome)
            axis.set_xlim(-0.03 * end - 0.02, 1.03 * end + 0.02)
        axes[-1].set_xlabel("seconds")
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            frameon=False,
        )
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _row(axis: Any, outcome: Outcome) -> None:
    refused = Counter(outcome.arrivals) - Counter(outcome.granted)
    _marks(axis, 3, Counter(outcome.arrivals), marker="|", color=_GREY, label="came in")
    _marks(axis, 2, Counter(outcome.granted), marker="o", color=_BLUE, label="let in at once")
    _marks(axis, 1, refused, marker="x", color=_ORANGE, label="refused")
    _marks(axis, 0, Counter(outcome.left), marker="^", color=_BLUE, label="let out after its wait")
    axis.set_title(outcome.name, loc="left", fontsize=9, family="monospace")
    axis.set_yticks([0, 1.5, 3], ["acquire()", "allow()", "in"])
    axis.set_ylim(-0.5, 3.6)
    axis.grid(axis="x", linewidth=0.4, color="#dddddd")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _marks(axis: Any, level: float, instants: Counter[float], **style: Any) -> None:
    """A mark at each instant, with their number where there is more than one."""
    shown = {instant: count for instant, count in instants.items() if instant < inf}
    axis.plot(list(shown), [level] * len(shown), linestyle="none", ms=5, clip_on=False, **style)
    if len(shown) <= _MOST_NUMBERS:
        for instant, count in shown.items():
            if count > 1:
                axis.annotate(
                    f"{count}", (instant, level), (5, -3), textcoords="offset points", fontsize=7
                )
