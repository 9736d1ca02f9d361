"""What a call of CUDA's flash attention takes of the host by its own C function, and by Python: the device is not needed, since what it
would compute is given by a stand-in on the processor, the same for both.

    python benches/functions.py
"""

from __future__ import annotations

import time
from typing import Any

import torch

from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, Slot

CALLS, ROUNDS = 64, 60
FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default


def program(q: torch.Tensor, device: torch.device) -> Executor:
    """A program of some attentions, lowered for a device."""
    builder = ProgramBuilder()
    given = builder.slot(q)
    builder.inputs.append(given)
    for _ in range(CALLS):
        made: list[Any] = [builder.slot() if at in (0, 1, 6, 7) else None for at in range(9)]
        builder.call(FLASH, [Slot(given)] * 3 + [0.0, True, False], {"scale": None}, made)
        builder.returns[:] = made[:1]
    return Executor(lower(builder.spec(), device))


def main() -> None:
    """Prints CPU microseconds of a call, the best of some rounds."""
    q, sums, state = torch.randn(1, 1, 2, 8), torch.zeros(1, 1, 2), torch.zeros(2)
    inner = (torch.zeros(1, 2, 1, 8), sums, state, state, sums)
    outer = (torch.zeros(1, 1, 2, 8), sums, None, None, 2, 2, state, state, sums)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", lambda *_, **__: inner, "CPU")
        library.impl("_scaled_dot_product_flash_attention", lambda *_, **__: outer, "CPU")
        runs = {"its own function": program(q, torch.device("cuda", 0)), "Python": program(q, torch.device("meta"))}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(ROUNDS):
            for name, run in runs.items():
                start = time.process_time()
                run([q])
                best[name] = min(best[name], time.process_time() - start)
    for name, seconds in best.items():
        print(f"by {name}: {1e6 * seconds / CALLS:.1f} us")


if __name__ == "__main__":
    main()
