"""A model that no rank could hold: what each process needs to build it, train it, save it and load it again.

    torchrun --nproc-per-node 4 benches/large_model.py FOLDER [GB of state]

A GPT 2,048 wide with AdamW in f32, as many layers as make 4 GB of state (or so many as are given), built in `unisono.deferred_init`, on
2 x 64 tokens. Printed is the most memory that any rank's process had beyond what it had after its imports, from stage to stage, as Linux
counts it (VmHWM): code, buffers of the network and what the allocator keeps are in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # as `save` imports it

sys.path.insert(0, str(Path(__file__).parent))
from gpt_step import GPT, step

import unisono
from unisono.parallel import ParallelStep

WIDTH, HEADS, VOCABULARY, TOKENS = 2048, 16, 8192, (2, 64)
#: Parameters, and two moments of AdamW.
BYTES_PER_PARAMETER = 12


def parameters(layers: int) -> int:
    """How many a model has."""
    with torch.device("meta"):
        return sum(one.numel() for one in GPT(WIDTH, layers, HEADS, VOCABULARY, TOKENS[1]).parameters())


def parallel(layers: int) -> ParallelStep:
    """The step of a new model, whose values are nowhere whole."""
    torch.manual_seed(0)
    with unisono.deferred_init():
        model = GPT(WIDTH, layers, HEADS, VOCABULARY, TOKENS[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return unisono.parallelize(
        step(model, optimizer), model=model, optimizer=optimizer, example=batch(0), memory_limit="1.4 GB"
    )


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets."""
    return torch.randint(0, VOCABULARY, (2, *TOKENS), generator=torch.Generator().manual_seed(seed)).unbind()


def memory(key: str) -> int:
    """A line of what Linux says of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


class Stages:
    """The most memory of any rank from stage to stage."""

    def __init__(self) -> None:
        self._before = memory("VmRSS")

    def over(self, name: str) -> None:
        most = torch.tensor([memory("VmHWM") - self._before])
        dist.all_reduce(most, dist.ReduceOp.MAX)
        Path("/proc/self/clear_refs").write_text("5")
        if dist.get_rank() == 0:
            print(f"{name:<28} {most.item() / 1e9:6.2f} GB", flush=True)


def main(folder: Path, gigabytes: float) -> None:
    each = parameters(1) - parameters(0)
    layers = round((gigabytes * 1e9 / BYTES_PER_PARAMETER - parameters(0)) / each)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stages = Stages()
    parallel_step = parallel(layers)
    if dist.get_rank() == 0:
        state = parameters(layers) * BYTES_PER_PARAMETER
        print(f"{state / 1e9:.2f} GB of state, {layers} layers, {dist.get_world_size()} ranks")
        print(parallel_step.plan.explain())
    stages.over("built, captured, planned")
    losses = [parallel_step(*batch(0)).item() for _ in range(2)]
    stages.over("two steps")
    parallel_step.save(folder)
    stages.over("saved")
    losses.append(parallel_step(*batch(1)).item())
    parallel_step.load(folder)
    stages.over("loaded")
    again = parallel_step(*batch(1)).item()
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.4f}" for loss in losses))
    assert again == losses[-1], "a loaded state is not the one that was saved"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 4.0)
