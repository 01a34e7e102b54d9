"""What the commands show things with: rich, which is an extra.

It finds out by itself whether it writes to a terminal: in a pipe, with NO_COLOR or on a dumb
terminal there are no colours, and nothing that moves.
"""

from __future__ import annotations

import os
from typing import Any

from throttle.cli.options import missing

__all__ = ["amount", "clean", "console", "table"]

_WIDE = 160


def console(*, stderr: bool = False) -> Any:
    """A console; UsageError if rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        raise missing("rich", "cli") from None
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _WIDE  # nothing has to fit anywhere
    return made


def table(*titles: str, last: str | None = None, header: bool = True) -> Any:
    """A table whose first column holds names, the others numbers; `last` – of one for texts."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_header=header, padding=(0, 1), pad_edge=False)
    name, *numbers = titles
    made.add_column(name, overflow="fold", min_width=16)
    for title in numbers:
        made.add_column(title, justify="right", no_wrap=True)
    if last is not None:
        made.add_column(last, overflow="fold")
    return made


def clean(text: str) -> Any:
    """A text as it is: no markup is read in it, and no control character reaches the terminal."""
    from rich.text import Text

    printable = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return Text(printable)


def amount(size: float) -> str:
    """Bytes for people: `512 B`, `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
