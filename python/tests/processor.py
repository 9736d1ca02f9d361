"""CUDA's compiler and driver as one library that runs kernels on the processor, as in the tests of the Rust crate ``cuda``."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from unisono import _profile

_SOURCES = Path(__file__).resolve().parents[2] / "crates/cuda/tests/processor"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", f'-DUNISONO_PROCESSOR="{_SOURCES}"')


def lacking() -> str | None:
    """What is not here to build it and programs for it with."""
    if sys.platform != "linux":
        return "kernels of CUDA run on the processor of Linux only"
    return None if shutil.which("c++") else "there is no C++ compiler to compile kernels of CUDA for the processor with"


def built() -> Path:
    """The library, built once for these sources; other processes wait for the one that builds it."""
    sources = sorted(_SOURCES.iterdir())
    text = "\n".join([*_FLAGS, *(file.read_text() for file in sources)])
    folder = _profile.cache_folder() / f"cuda-processor-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "processor.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            made, files = library.with_suffix(".new"), [str(file) for file in sources if file.suffix == ".cpp"]
            ended = subprocess.run(["c++", *_FLAGS, *files, "-o", made], capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr[-4000:]
            made.rename(library)
    return library
