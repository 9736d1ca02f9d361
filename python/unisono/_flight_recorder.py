"""PyTorch's flight recorder: what a rank's last collectives were, kept by the process groups of NCCL and gloo in memory.

It is on unless the user's environment says ``TORCH_FR_BUFFER_SIZE=0``, and its files have the names that PyTorch itself gives them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

#: PyTorch's recorders: of devices first, whose collectives are those of steps where there are any.
_RECORDERS = ("nccl", "fr")


def records() -> bool:
    """Whether this rank's recorder has something to say."""
    return _dump() is not None


def _dump() -> Callable[..., bytes] | None:
    """What dumps the recorder of this rank that has something to say."""
    import torch.distributed as dist

    if not dist.is_available():
        return None
    from torch._C import _distributed_c10d as c10d

    for name in _RECORDERS:
        short: Callable[..., bytes] | None = getattr(c10d, f"_dump_{name}_trace_json", None)
        whole: Callable[..., bytes] | None = getattr(c10d, f"_dump_{name}_trace", None)
        if short and whole and json.loads(short(includeCollectives=True, onlyActive=False)).get("entries"):
            return whole
    return None


def prefix() -> str:
    """What the path of a dump begins with, before the rank, as PyTorch itself has it."""
    said = os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return said or str(Path(cache, "torch", "comm_lib_trace_rank_"))


def write(path: Path) -> bool:
    """Writes the dump of this rank's recorder, if there is one; whether it is there now."""
    dump = _dump()
    if dump is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dump())
    return True
