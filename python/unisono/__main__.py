"""The ``unisono`` command: subcommands that need Python are here, all others are the native ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from unisono import _commands, _native

_PYTHON_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "capture": _commands.capture,
    "doctor": _commands.doctor,
    "kernels": _commands.kernels,
    "profile": _commands.profile,
}
_HELP = """
Commands that need Python:
  capture  Capture a training step and print its graph
  doctor   Look at all that a run needs, or try a device (--device), and say what to do where it is not well
  kernels  Print which operations of a step become kernels with `fuse=True`, or these in CUDA C (--cuda)
  profile  Measure this machine and print the cluster description that plans are made for"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (without the program's name) and returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = _PYTHON_COMMANDS.get(arguments[0]) if arguments else None
    if command is not None:
        return command(arguments[1:])
    status = _native.run_command(["unisono", *arguments])
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        print(_HELP)
    return status


if __name__ == "__main__":
    sys.exit(main())
