"""What the ranks of tests with experts run; see ``test_experts.py``."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from session_ranks import FUSED, OFFLOADED, RECOMPUTED, compare


def cases() -> Iterator[tuple[str, str]]:
    """The models and families of plans that each number of ranks runs."""
    for model in ("mixtral", "qwen3_moe", "deepseek_v3"):
        yield from ((model, family) for family in ("free", "experts cut"))
    yield from (("few_experts", family) for family in ("free", "layer cut"))
    yield from (("mixtral", f"experts cut{how}") for how in (FUSED, RECOMPUTED, OFFLOADED))


def compare_all() -> None:
    """Runs all cases and writes for each the largest differences from one device, and the plan, as JSON."""
    found: dict[str, Any] = {}
    for model, family in cases():
        try:
            found[f"{model}, {family}"] = compare(model, family, int(os.environ["WORLD_SIZE"]))
        except Exception:
            found[f"{model}, {family}"] = {"error": traceback.format_exc()}
    Path(f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
