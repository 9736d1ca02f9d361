"""Errors of operations that found no memory."""

from __future__ import annotations

import torch

from unisono import _devices
from unisono.errors import UnisonoError
from unisono.plans import Plan


def without_memory(error: UnisonoError, plan: Plan, device: torch.device, limit: int | None) -> UnisonoError:
    """The error with what the plan says of memory, what the device has given out, and what would take less."""
    lines, starts = plan.explain().splitlines(), ("  memory ", "  at the peak ")
    said = [line.removeprefix(start).strip() for line in lines for start in starts if line.startswith(start)]
    out = _devices.given_out(device)
    given = "" if out is None else f"\n  where the device has given out {_in_mib(out)}, to all of this process"
    wish = f"plan with {'a' if limit is None else 'a lower'} `memory_limit=`{_smaller(plan)}"
    return type(error)(
        error.message,
        code=error.code,
        place=error.place,
        cause=f"{error.cause}\n  where the plan has {'; held there: '.join(said)}{given}",
        hint=f"{wish}; what is on the device beside the step takes memory, too",
    )


def _smaller(plan: Plan) -> str:
    """The plan with the least memory that was considered, if it takes less."""
    if plan.graph is None or plan.cluster is None:
        return ""
    others = plan.figures()["runners_up"]
    least = min(others, key=lambda one: one["peak_bytes"], default=None)
    if least is None or least["peak_bytes"] >= plan.prediction["peak_bytes"]:
        return ""
    return f" ({least['label']} was considered and takes {_in_mib(least['peak_bytes'])})"


def _in_mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
