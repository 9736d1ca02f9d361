"""CUDA's compiler and driver as one library that runs kernels on the processor, as in the tests of the Rust crate ``cuda``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import compiled

_SOURCES = Path(__file__).resolve().parents[2] / "crates/cuda/tests/processor"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", f'-DUNISONO_PROCESSOR="{_SOURCES}"')


def lacking() -> str | None:
    """What is not here to build it and programs for it with."""
    if sys.platform != "linux":
        return "kernels of CUDA run on the processor of Linux only"
    return None if shutil.which("c++") else "there is no C++ compiler to compile kernels of CUDA for the processor with"


def built() -> Path:
    """The library, built once for these sources."""
    return compiled.once(
        "cuda-processor", _SOURCES, _FLAGS, lambda files, made: compiled.run("c++", *_FLAGS, *files, "-o", made)
    )
