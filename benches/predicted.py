"""Steps as they are simulated on this machine, beside the same steps measured.

    python benches/predicted.py                                    # one rank
    torchrun --nproc-per-node 2 benches/predicted.py               # two
    ... benches/predicted.py --details gpt                         # by operation and collective, as `unisono trace diff` prints it

One thread per process. As for every user, the machine is measured when the first step is made, and the operations of each step before it
is planned. Each model is planned freely, and with the batch, state, or tensors sharded; each step is warmed up and measured: the median
wall time of a step on the slowest rank, and one recorded step by stream, in milliseconds on a rank.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gpt

import unisono
from unisono._ranks import Ranks

WARM, REPEATS = 3, 15
Made = tuple[nn.Module, torch.optim.Optimizer, Callable[..., Any], tuple[torch.Tensor, ...]]


def _trained(model: nn.Module, loss_of: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...]) -> Made:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(*tensors: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*tensors)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step, batch


def of_demo() -> Made:
    """The GPT of `make demo`."""
    model, optimizer, step = gpt.make()
    return model, optimizer, step, next(gpt.batches(gpt.read_text()))


def linear() -> Made:
    """Four wide matrices with AdamW: state dominates."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    return _trained(model, lambda x: model(x).square().mean(), (torch.randn(64, 1024),))


def convolutions() -> Made:
    """Three convolutions with batch norm."""

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    model = nn.Sequential(
        *layer(3, 32), *layer(32, 64), nn.MaxPool2d(2), *layer(64, 64), nn.Flatten(), nn.Linear(64 * 256, 10)
    )
    batch = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return _trained(model, lambda x, y: F.cross_entropy(model(x), y), batch)


def llama() -> Made:
    """transformers' LLaMA, 256 wide, 4 layers, 8 x 64 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1024, **sizes, **heads)).train()
    ids, labels = torch.randint(0, 1024, (2, 8, 64))
    return _trained(model, lambda ids, labels: model(input_ids=ids, labels=labels).loss, (ids, labels))


MODELS = {"gpt": of_demo, "4 x linear": linear, "convolutions": convolutions, "llama": llama}


def compared(folder: Path, details: bool) -> dict[str, Any]:
    """What `unisono trace diff` says of the predicted and the measured step."""
    command = [sys.executable, "-m", "unisono", "trace", "diff", str(folder / "predicted"), str(folder / "measured")]
    if details:
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)[
        "prediction"
    ]


#: Pins by family; all but the first where there are several ranks.
FAMILIES: dict[str, dict[str, dict[str, str]]] = {
    "free": {},
    "batch": {name: {"ranks": "replicate"} for name in ("params.*", "optimizer.*")}
    | {"batch.*": {"ranks": "shard(0)"}},
    "state": {name: {"ranks": "shard(0)"} for name in ("params.*", "optimizer.*", "batch.*")},
    "tensors": {"params.*": {"ranks": "shard(0)"}, "batch.*": {"ranks": "replicate"}},
}


def main() -> None:
    """Prints a line of a table for each model and family, and how far off predictions are in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--details", metavar="MODEL", choices=MODELS, help="only this model, by operation and collective"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="unisono-predicted-") as kept:
        folder = Path(ranks.tell(kept))
        os.environ["HOME"] = str(folder)  # where measurements are kept
        for name, make in MODELS.items():
            if options.details in (None, name):
                for family in FAMILIES if ranks.count > 1 else ["free"]:
                    torch.manual_seed(0)
                    times = one(name, family, make(), ranks, folder / f"{name} {family}", options.details is not None)
                    found.setdefault(name, []).append(times)
        if ranks.rank == 0:
            summarise(found)
        if ranks.count > 1:
            torch.distributed.barrier()


def summarise(found: dict[str, list[tuple[float, float]]]) -> None:
    """Prints the errors of all, and for each model how the free plan does beside the others."""
    errors = [abs(predicted / measured - 1) for times in found.values() for predicted, measured in times]
    print(f"mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}")
    for name, (free, *pinned) in found.items():
        if pinned:
            pairs = list(itertools.combinations(pinned, 2))
            agreeing = sum((one[0] - other[0]) * (one[1] - other[1]) > 0 for one, other in pairs)
            tau = (2 * agreeing - len(pairs)) / len(pairs)
            best = min(measured for _, measured in pinned)
            print(f"{name}: free {free[1] / best:.2f} of the best pinned, Kendall's tau of the pinned {tau:.2f}")


def one(name: str, family: str, made: Made, ranks: Ranks, folder: Path, details: bool) -> tuple[float, float]:
    """Runs and prints one model under one family of plans; the milliseconds that are predicted and measured."""
    model, optimizer, step, batch = made
    mesh = {"ranks": ranks.count}
    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=batch, mesh=mesh, pins=FAMILIES[family]
    )
    for _ in range(WARM):
        parallel(*batch)
    measured = max(parallel.measure(*batch, repeats=REPEATS)["step_ns"]) / 1e6
    parallel.write_timelines(folder, *batch)
    ranks.tell(None)  # rank 0 reads what all have written
    if ranks.count > 1:
        torch.distributed.barrier()
    simulated = parallel.plan.prediction["step_ns"] / 1e6
    if ranks.rank == 0:
        found = compared(folder, details)
        parts = [
            f"{found[key][of] / 1e3:.1f}"
            for key in ("compute", "exposed", "communication")
            for of in ("predicted", "measured")
        ]
        columns = [name, str(ranks.count), family, f"{simulated:.1f}", f"{measured:.1f}", f"{simulated / measured:.2f}"]
        print("| " + " | ".join([*columns, *parts]) + " |", flush=True)
    return simulated, measured


if __name__ == "__main__":
    main()
