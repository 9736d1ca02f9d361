"""The ``unisono`` command: subcommands that need Python are here, all others are the native ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from unisono import _native

_PYTHON_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (without the program's name) and returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = _PYTHON_COMMANDS.get(arguments[0]) if arguments else None
    if command is not None:
        return command(arguments[1:])
    return _native.run_command(["unisono", *arguments])


if __name__ == "__main__":
    sys.exit(main())
