"""The pictures: what came in and what went out over time, one row a limiter or a client.

A few instants are drawn one by one, many as rates over time: marks that run into each other say
nothing. Made to be read in print and by everybody: marks differ in shape as well as in colour, and
the colours (Okabe and Ito's) can be told apart with any kind of colour vision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["Row", "Seen", "check", "draw", "draw_requests"]

#: Above so many arrivals a row is drawn as rates.
_MOST_MARKS = 400
#: Above so many instants in a row the numbers would run into each other.
_MOST_NUMBERS = 40
#: Intervals that time is cut into for rates.
_BINS = 150

_BLUE, _ORANGE, _GREY, _BLACK = "#0072B2", "#D55E00", "#999999", "#222222"
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


class Row(NamedTuple):
    """What one limiter did with the arrivals; instants in seconds."""

    name: str
    arrivals: Sequence[float]
    granted: Sequence[float]
    left: Sequence[float]
    """When each caller who waits was let out; inf: never."""


class Seen(NamedTuple):
    """What a server saw of one client; instants in seconds from its start."""

    name: str
    served: Sequence[float]
    refused: Sequence[float]


def check(path: Path) -> None:
    """Before the work: ValueError if no picture can be written there."""
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"{path.suffix!r} is none of .png, .svg, .pdf")
    if not path.parent.is_dir():
        raise ValueError(f"{str(path.parent)!r} is not a folder")


def draw(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Write a picture; the ending of `path` chooses the format (see `check`)."""
    end = max((t for row in rows for t in (*row.left, *row.arrivals) if t < inf), default=1.0)
    many = any(len(row.arrivals) > _MOST_MARKS for row in rows)
    scale, unit = 1.0, "seconds"
    if many:
        scale, unit = next((one for one in _UNITS if end > 3 * one[0]), (scale, unit))
    with mpl.rc_context({"svg.hashsalt": "throttle", "font.size": 9}):
        figure, axes = _rows(len(rows), title)
        for axis, row in zip(axes, rows, strict=True):
            if many:
                _rates(axis, row, end, scale)
            else:
                _instants(axis, row)
            _frame(axis, row.name)
            axis.set_xlim(-0.02 * end / scale - 0.02, 1.02 * end / scale + 0.02)
        axes[-1].set_xlabel(unit)
        _finish(figure, axes[0], path)


def draw_requests(clients: Sequence[Seen], path: Path, *, width: float, title: str) -> None:
    """What a server saw of each client, in intervals of `width` seconds."""
    ends = [max((*one.served, *one.refused), default=0.0) for one in clients]
    count = max(1, ceil((max(ends) + 1e-9) / width))
    edges = [number * width for number in range(count)]
    with mpl.rc_context({"svg.hashsalt": "throttle", "font.size": 9}):
        figure, axes = _rows(len(clients), title, height=1.8, sharey=True)
        for axis, client in zip(axes, clients, strict=True):
            served = _counts(client.served, width, count)
            refused = _counts(client.refused, width, count)
            style = {"width": 0.9 * width, "align": "edge", "linewidth": 0.5}
            axis.bar(edges, served, color=_BLUE, edgecolor=_BLUE, label="served", **style)
            axis.bar(
                edges, refused, bottom=served, color="white", edgecolor=_ORANGE, hatch="xxxx",
                label="refused (429)", **style,
            )  # fmt: skip
            axis.set_ylabel(f"requests in {width:g} s")
            _frame(axis, client.name)
            axis.set_xlim(-width, edges[-1] + 2 * width)
        axes[-1].set_xlabel("seconds")
        _finish(figure, axes[0], path)


# -------------------------------------------------------------------- one row


def _instants(axis: Any, row: Row) -> None:
    refused = Counter(row.arrivals) - Counter(row.granted)
    _marks(axis, 3, Counter(row.arrivals), marker="|", color=_GREY, label="came in")
    _marks(axis, 2, Counter(row.granted), marker="o", color=_BLUE, label="let in at once")
    _marks(axis, 1, refused, marker="x", color=_ORANGE, label="refused")
    _marks(axis, 0, Counter(row.left), marker="^", color=_BLUE, label="let out after its wait")
    axis.set_yticks([0, 1.5, 3], ["acquire()", "allow()", "in"])
    axis.set_ylim(-0.5, 3.6)


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


def _rates(axis: Any, row: Row, end: float, scale: float) -> None:
    width = max(end, 1e-9) / _BINS
    at = [(number + 0.5) * width / scale for number in range(_BINS)]
    came = [count / width for count in _counts(row.arrivals, width, _BINS)]
    granted = [count / width for count in _counts(row.granted, width, _BINS)]
    left = [count / width for count in _counts(row.left, width, _BINS)]
    axis.fill_between(
        at, granted, step="mid", color=_BLUE, alpha=0.75, linewidth=0, label="let in by allow()"
    )
    axis.fill_between(
        at, granted, came, step="mid", facecolor="white", edgecolor=_ORANGE, hatch="////",
        linewidth=0.3, label="refused by allow()",
    )  # fmt: skip
    axis.plot(
        at, left, drawstyle="steps-mid", color=_BLACK, linewidth=0.9, label="let out by acquire()"
    )
    axis.set_ylabel("per second")
    axis.set_ylim(bottom=0)


def _counts(instants: Iterable[float], width: float, count: int) -> list[int]:
    """How many fall into each of `count` intervals; the end belongs to the last."""
    counts = [0] * count
    for instant in instants:
        if instant < inf:
            counts[min(int(instant / width), count - 1)] += 1
    return counts


# -------------------------------------------------------------------- what all have


def _rows(count: int, title: str, *, height: float = 1.2, sharey: bool = False) -> tuple[Any, Any]:
    figure = Figure(figsize=(8, 1.0 + height * count), layout="constrained")
    axes = figure.subplots(count, 1, sharex=True, sharey=sharey, squeeze=False)[:, 0]
    # Dollars would be taken for formulas; and a title is no place for a path of any length.
    figure.suptitle(_plain(title), fontsize=10)
    return figure, axes


def _frame(axis: Any, name: str) -> None:
    axis.set_title(_plain(name), loc="left", fontsize=9, family="monospace")
    axis.grid(axis="x", linewidth=0.4, color="#dddddd")
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _plain(text: str) -> str:
    short = text if len(text) <= 90 else f"{text[:89]}…"
    return short.replace("$", r"\$")


def _finish(figure: Any, axis: Any, path: Path) -> None:
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
