"""Whose code is whose: PyTorch's, Unisono's, of Python's library, of an installed package or the user's."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig

import torch

import unisono

#: Modules of the standard library whose functions give the same for the same operands.
PURE = frozenset(
    """__future__ _collections_abc _functools _operator _abc abc builtins collections collections.abc contextlib copy dataclasses enum
    functools itertools keyword math numbers operator re string textwrap types typing weakref""".split()  # noqa: SIM905
)
STDLIB = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")
_TORCH = os.path.dirname(inspect.getfile(torch)) + os.sep
_UNISONO = os.path.dirname(inspect.getfile(unisono)) + os.sep
PACKAGES = f"-packages{os.sep}"


@functools.lru_cache(maxsize=16384)
def origin_of_file(file: str) -> str:
    """Whose code a source file holds: ``torch``, ``unisono``, ``library`` or, what nothing else is, ``user``."""
    if file.startswith(_TORCH):
        return "torch"
    if file.startswith(_UNISONO):
        return "unisono"
    return "library" if file.startswith(STDLIB) or PACKAGES in file else "user"


@functools.lru_cache(maxsize=16384)
def origin(module: str) -> str:
    """Whose a module is: as of files, and ``pure`` for those of the standard library that only compute."""
    if module in PURE:
        return "pure"
    top = module.partition(".")[0]
    if top in ("torch", "unisono"):
        return top
    if top in sys.stdlib_module_names and module != "__main__":
        return "library"
    file = getattr(sys.modules.get(module), "__file__", None)
    return "user" if file is None else origin_of_file(file)
