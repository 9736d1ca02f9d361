"""Steps as they are simulated on this machine, beside the same steps measured.

    python benches/predicted.py                                    # one rank
    torchrun --nproc-per-node 2 benches/predicted.py               # two
    ... benches/predicted.py --models gpt llama                    # only these
    ... benches/predicted.py --models gpt --rounds 1 --details     # by operation and collective, as `unisono trace diff` prints it

One thread per process. As for every user, the machine is measured when the first step is made, and the operations of each step before it
is planned. Each model is planned freely, and with the batch, state, or tensors sharded, and the steps of a model take turns. All of it,
from the first measurement on, is done in several rounds, since a shared machine is not as fast at each moment: what is simulated and what
is measured are the medians of the rounds. Milliseconds on a rank: the wall time of a step on the slowest rank, the mean of some that
follow each other, and by stream what one recorded step of the last round took.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import gpt
import small_models

import unisono
from unisono._ranks import Ranks

WARM, TURNS, REPEATS = 3, 5, 8
#: Steps of each turn that are not counted: those before them were of another plan, and have left nothing of this one in the caches.
COLD = 2
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


def small(name: str) -> Made:
    """A model of `small_models.toml` with four times its batch: what a step takes is mostly that it has many operations."""
    model, inputs = small_models.build(name)
    tensors = {key: torch.cat([value] * 4) for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in inputs.items() if key not in tensors}

    def loss(*given: torch.Tensor) -> torch.Tensor:
        return small_models.loss(model, {**others, **dict(zip(tensors, given, strict=True))})

    return _trained(model, loss, tuple(tensors.values()))


#: Of `small_models.toml`, one of each kind.
SMALL = (
    *("GPT2LMHeadModel", "Qwen3ForCausalLM", "BloomForCausalLM", "MixtralForCausalLM", "BertForMaskedLM"),
    *("T5ForConditionalGeneration", "ViTForImageClassification", "WanTransformer3DModel"),
    *("FluxTransformer2DModel", "UNet2DConditionModel"),
)
MODELS: dict[str, Callable[[], Made]] = {
    "gpt": of_demo,
    "4 x linear": linear,
    "convolutions": convolutions,
    "llama": llama,
    **{name: functools.partial(small, name) for name in SMALL},
}


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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of it is done")
    parser.add_argument("--details", action="store_true", help="by operation and collective too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks()
    rows: dict[str, dict[str, Row]] = {name: {} for name in options.models}
    with tempfile.TemporaryDirectory(prefix="unisono-predicted-") as kept:
        folder = Path(ranks.tell(kept))
        for number in range(options.rounds):
            os.environ["HOME"] = str(folder / str(number))  # where measurements are kept
            for name, row in rows.items():
                details = options.details and number + 1 == options.rounds
                taken_in_turns(name, row, ranks, folder / str(number) / name, details)
                if ranks.rank == 0:
                    print(f"round {number + 1}: {name}", file=sys.stderr)
        if ranks.rank == 0:
            for name, row in ((name, row) for name, of in rows.items() for row in of.values()):
                print("| " + " | ".join([name, str(ranks.count), *row.columns()]) + " |")
            summarise(rows)
        if ranks.count > 1:
            torch.distributed.barrier()


def taken_in_turns(name: str, rows: dict[str, Row], ranks: Ranks, folder: Path, details: bool) -> None:
    """Plans a model in each way, and measures the steps in turns."""
    steps = {family: planned(name, family, ranks) for family in (FAMILIES if ranks.count > 1 else ["free"])}
    for step, batch in steps.values():
        for _ in range(WARM):
            step(*batch)
    times: dict[str, list[float]] = {family: [] for family in steps}
    for _, (family, (step, batch)) in itertools.product(range(TURNS), steps.items()):
        for _ in range(COLD):
            step(*batch)
        start = time.perf_counter()
        for _ in range(REPEATS):
            step(*batch)
        # Not each by itself: of ranks that share a core most steps are as fast as if it were theirs alone, and others wait.
        times[family].append((time.perf_counter() - start) * 1e3 / REPEATS)
    for family, (step, batch) in steps.items():
        medians = [statistics.median(times[family])] * ranks.count
        if ranks.count > 1:
            torch.distributed.all_gather_object(medians, medians[0])
        step.write_timelines(folder / family, *batch)
        ranks.tell(None)  # rank 0 reads what all have written
        if ranks.count > 1:
            torch.distributed.barrier()
        if ranks.rank == 0:
            row = rows.setdefault(family, Row(family))
            row.simulated.append(step.plan.prediction["step_ns"] / 1e6)
            row.measured.append(max(medians))
            row.streams = compared(folder / family, details)


def planned(name: str, family: str, ranks: Ranks) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """The step of a model under one family of plans, and its batch."""
    torch.manual_seed(0)
    model, optimizer, step, batch = MODELS[name]()
    mesh, pins = {"ranks": ranks.count}, FAMILIES[family]
    return unisono.parallelize(step, model=model, optimizer=optimizer, example=batch, mesh=mesh, pins=pins), batch


@dataclass
class Row:
    """What was found of one model under one family of plans."""

    family: str
    simulated: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    streams: dict[str, Any] = field(default_factory=dict)

    def times(self) -> tuple[float, float]:
        """What a step takes as simulated and as measured."""
        return statistics.median(self.simulated), statistics.median(self.measured)

    def columns(self) -> list[str]:
        simulated, measured = self.times()
        parts = [
            f"{self.streams[key][of] / 1e3:.1f}"
            for key in ("compute", "exposed", "communication")
            for of in ("predicted", "measured")
        ]
        return [self.family, f"{simulated:.1f}", f"{measured:.1f}", f"{simulated / measured:.2f}", *parts]


def summarise(rows: dict[str, dict[str, Row]]) -> None:
    """Prints the errors of all, and for each model how the free plan does beside the others."""
    found = {name: [row.times() for row in of.values()] for name, of in rows.items()}
    errors = [abs(predicted / measured - 1) for times in found.values() for predicted, measured in times]
    print(f"mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}")
    for name, (free, *pinned) in found.items():
        if pinned:
            pairs = list(itertools.combinations(pinned, 2))
            agreeing = sum((one[0] - other[0]) * (one[1] - other[1]) > 0 for one, other in pairs)
            tau = (2 * agreeing - len(pairs)) / len(pairs)
            best = min(measured for _, measured in pinned)
            print(f"{name}: free {free[1] / best:.2f} of the best pinned, Kendall's tau of the pinned {tau:.2f}")


if __name__ == "__main__":
    main()
