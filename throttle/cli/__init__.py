"""The command line: `throttle fetch | simulate | inspect | demo`.

Each command has a module of its own: `DESCRIPTION`, `EXAMPLES`, `declare(parser)` for its options,
and `run(options)`, which answers the exit code. It is imported only when it is called.

Exit codes: 0 – done; 1 – done, but something failed; 2 – the command line was wrong, or a part is
not installed; 130 – interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from throttle.cli.options import UsageError, missing

__all__ = ["main"]

#: Command: what it does, in a line.
COMMANDS = {
    "fetch": "download a list of URLs politely",
    "simulate": "run arrivals against limiters, side by side",
    "inspect": "show what a server says about its limits",
    "demo": "a bare client and a throttled one against a server that enforces a limit",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; answers the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words and words[0] in COMMANDS else None
    if command is None:
        _top().parse_args(words)
        return 2
    try:
        module = import_module(f"throttle.cli.{command}")
    except ImportError:
        print(f"throttle {command}: {missing('parts that are absent', 'cli')}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        prog=f"throttle {command}",
        description=module.DESCRIPTION,
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.declare(parser)
    # Intermixed: options may stand between the words, as in every other program.
    options = parser.parse_intermixed_args(words[1:])
    # What it would say is in the tables and in the manifest.
    logging.getLogger("throttle").addHandler(logging.NullHandler())
    try:
        return int(module.run(options))
    except UsageError as error:
        print(f"throttle {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _top() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="throttle",
        description="Keeps a program inside other people's rate limits.",
        epilog=f"commands:\n{lines}\n\n`throttle COMMAND --help` shows options and examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=metadata.version("throttle-asyncio"))
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS)
    return parser
