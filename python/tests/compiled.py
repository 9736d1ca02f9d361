"""Libraries in C++ that tests compile: once for their sources, and kept for other runs."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from unisono import _profile


def once(name: str, folder: Path, settings: Sequence[str], build: Callable[[list[Path], Path], object]) -> Path:
    """The library that ``build`` makes of a folder's C++ sources, under the path that it is given.

    It is built once for what is in the folder and these settings; other processes wait for the one that builds it.
    """
    files = sorted(folder.iterdir())
    text = "\n".join([*settings, *(file.read_text() for file in files)])
    kept = _profile.cache_folder() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    kept.mkdir(parents=True, exist_ok=True)
    library = kept / f"{name}.so"
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            made = library.with_suffix(".new")
            build([file for file in files if file.suffix == ".cpp"], made)
            made.rename(library)
    return library


def run(*command: str | Path) -> None:
    """Runs a compiler; what it says where it fails is the error."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
