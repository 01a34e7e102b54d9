"""The command line: `throttle fetch | simulate | inspect | demo`.

Each command has a module of its own with `add(commands)`, which declares its options, and a
function that runs it and answers the exit code. A module is imported only for its own command.

Exit codes: 0 – done; 1 – done, but something failed; 2 – the command line was wrong, or a part is
not installed; 130 – interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from throttle.cli.options import UsageError

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
    parser = argparse.ArgumentParser(
        prog="throttle",
        description="Keeps a program inside other people's rate limits.",
        epilog="`throttle COMMAND --help` shows the options of a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=metadata.version("throttle-asyncio"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == chosen:
            import_module(f"throttle.cli.{name}").add(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    options = parser.parse_args(words)
    try:
        return int(options.run(options))
    except UsageError as error:
        print(f"throttle {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return 1
