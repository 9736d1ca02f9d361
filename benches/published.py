"""Published training runs, predicted from presets beside what was published: `published.toml` has the runs with their sources.

    python benches/published.py [PART OF A RUN'S ID]

Each model is captured at its real size, of parameters on `meta`: f32 parameters that are cast to bf16 where they are used, fused AdamW,
clipping, and blocks checkpointed as the run did. The plan is pinned to the run's: its mesh and micro-batches, the batch over the data
axis, state as the run had it, and the search decides along the tensor axis. Of all that a preset says one number is fitted, for each
device and precision: what part of the rate of products and attention is reached. The last columns plan the same global batch on the same
devices freely, on the run's mesh, within the device's memory, under the same number.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import real_sizes
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import unisono
from unisono.errors import ResourceError
from unisono.graph import StepGraph

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROUNDS = 4
RANKS_OF_A_NODE = 8


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder, and how its blocks are checkpointed."""

    layers: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    recompute: str = "none"


class Linear(nn.Linear):
    """A product in bf16 with weights in f32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(torch.bfloat16))


class Norm(nn.RMSNorm):
    """A norm in bf16 with weights in f32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, tuple(self.normalized_shape), self.weight.to(torch.bfloat16), 1e-5)


class Block(nn.Module):
    """Attention with grouped queries and rotated positions, and a perceptron."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.norm_in, self.norm_mlp = Norm(width), Norm(width)
        self.q = Linear(width, shape.heads * shape.head)
        self.k, self.v = (Linear(width, shape.key_heads * shape.head) for _ in range(2))
        self.o = Linear(shape.heads * shape.head, width)
        self.up, self.down = Linear(width, shape.hidden), Linear(shape.hidden, width)
        self.gate = Linear(width, shape.hidden) if shape.gated else None

    def forward(self, x_BTD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.norm_in(x_BTD)
        q, k, v = (
            product(y).unflatten(-1, (-1, self.shape.head)).transpose(1, 2) for product in (self.q, self.k, self.v)
        )
        q, k = (one * cos + torch.cat((-one.chunk(2, -1)[1], one.chunk(2, -1)[0]), -1) * sin for one in (q, k))
        grouped = self.shape.heads != self.shape.key_heads
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x_BTD = x_BTD + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm_mlp(x_BTD)
        return x_BTD + self.down(F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y))


def selective() -> Any:
    """Keeps attention and every second product of a block."""
    products = 0

    def policy(_context: Any, operation: Any, *_arguments: Any, **_settings: Any) -> CheckpointPolicy:
        nonlocal products
        products += operation is torch.ops.aten.mm.default
        keeps = products % 2 == 1 if operation is torch.ops.aten.mm.default else "attention" in str(operation)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Decoder(nn.Module):
    """A language model of such blocks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm, self.head = Norm(shape.width), Linear(shape.width, shape.vocabulary)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embedding(tokens_BT).to(torch.bfloat16)
        rates = 5e5 ** (-torch.arange(0, self.shape.head, 2, device=x_BTD.device).float() / self.shape.head)
        angles = torch.outer(torch.arange(tokens_BT.shape[1], device=x_BTD.device).float(), rates).repeat(1, 2)
        cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        contexts = {"context_fn": selective} if self.shape.recompute == "selective" else {}
        run: Callable[..., torch.Tensor] = Block.__call__
        if self.shape.recompute != "none":
            run = functools.partial(checkpoint, use_reentrant=False, **contexts)
        for block in self.blocks:
            x_BTD = run(block, x_BTD, cos, sin)
        return self.head(self.norm(x_BTD))


@functools.cache
def captured(shape: Shape, sequences: int, length: int) -> StepGraph:
    """One step of such a model on so many sequences."""
    with torch.device("meta"):
        model, tokens = Decoder(shape), torch.zeros(sequences, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    step = real_sizes.make_step(model, optimizer)
    return unisono.capture(step, model=model, optimizer=optimizer, example=(tokens, tokens), device="cuda")


def cluster(device: dict[str, Any], ranks: int, precision: str, share: float) -> str:
    """The device's preset, with that share of its rates."""
    nodes, each = max(1, ranks // RANKS_OF_A_NODE), min(ranks, RANKS_OF_A_NODE)
    products, attention = RATES[device["preset"]]
    values = [f"{key} = {device[key]!r}" for key in ("memory_bytes", "memory_bandwidth") if key in device]
    rate = products * (2 if precision == "fp8" else 1) * share
    return "\n".join(
        [
            f'preset = "{device["preset"]}:{nodes}x{each}"',
            "[device]",
            *values,
            f"matmul_flops = {{ bf16 = {rate:.6g}, f32 = {rate / 10:.6g} }}",
            f"attention_flops = {{ bf16 = {attention * share:.6g} }}",
        ]
    )


RATES = {"h100": (794e12, 346e12), "h200": (794e12, 346e12), "b200": (1745e12, 787e12)}


@dataclass
class Run:
    """A published run."""

    given: dict[str, Any]
    device: dict[str, Any]
    shape: Shape

    def __getattr__(self, name: str) -> Any:
        defaults = {"tensor": 1, "accumulate": 1, "state": "sharded", "memory_gib": None}
        return self.given.get(name, defaults.get(name))

    @property
    def ranks(self) -> int:
        return self.data * self.tensor

    @property
    def sequences(self) -> int:
        return self.batch * self.data * self.accumulate

    @property
    def published_s(self) -> float:
        return self.sequences * self.sequence / (self.tokens * self.ranks)

    def planned(self, share: float, *, free: bool = False) -> dict[str, Any]:
        """The figures of the run's plan, or of one that the search chose on the same mesh."""
        graph = captured(self.shape, self.sequences, self.sequence)
        mesh = {"data": self.data, **({"tensor": self.tensor} if self.tensor > 1 else {})}
        batch = {axis: "shard(0)" if axis == "data" else "replicate" for axis in mesh}
        sharded, whole = {"data": "shard(0)"}, {"data": "replicate"}
        pins = {"batch.*": batch, "params.*": sharded if self.state == "sharded" else whole, "optimizer.*": sharded}
        if self.tensor > 1:
            # With the batch whole along the tensor axis, products use weights as they are stored there: columns, then rows. Along the data
            # axis, which is the outer one, the other dimension is stored in parts, or heads would be dealt out in blocks.
            for dim, names in enumerate((("q", "k", "v", "gate", "up", "head", "embedding"), ("o", "down"))):
                stored = {"data": f"shard({1 - dim})" if self.state == "sharded" else "replicate"}
                pins |= {f"params.*{name}.weight": stored | {"tensor": f"shard({dim})"} for name in names}
            if self.shape.tied:
                del pins["params.*head.weight"]
            if not self.shape.gated:
                del pins["params.*gate.weight"]
        plan = functools.partial(graph.plan, cluster(self.device, self.ranks, self.precision, share), mesh=mesh)
        if free:
            return plan(micro_batches=None if self.accumulate == 1 else self.accumulate).figures()
        try:
            return plan(micro_batches=self.accumulate, pins=pins).figures()
        except ResourceError:  # by what is predicted, the run would not fit
            return plan(micro_batches=self.accumulate, pins=pins, memory_limit="4TiB").figures()


def fitted(runs: Sequence[Run]) -> float:
    """The share of the rates under which the geometric mean of predicted over published time is one."""
    share, known = 0.7, []
    for _ in range(ROUNDS):
        ratio = statistics.fmean(math.log(run.planned(share)["step_ms"] / 1e3 / run.published_s) for run in runs)
        known.append((math.log(share), ratio))
        if abs(ratio) < 1e-3:
            break
        slope = -0.8 if len(known) == 1 else (known[-1][1] - known[-2][1]) / (known[-1][0] - known[-2][0])
        share = math.exp(known[-1][0] - ratio / slope)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part", nargs="?", default="", help="only runs whose device, precision and id have this in them"
    )
    parser.add_argument("--free", action="store_true", help="plan freely too")
    wanted = parser.parse_args()
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    groups: dict[tuple[str, str], list[Run]] = {}
    for given in content["runs"]:
        shape = Shape(**content["models"][given["model"]], recompute=given.get("recompute", "none"))
        if wanted.part in f"{given['device']} {given['precision']} {given['id']}":
            key = given["device"], given["precision"]
            groups.setdefault(key, []).append(Run(given, content["devices"][given["device"]], shape))
    print(
        "| run | published s | predicted s | error | exposed | peak GiB: published | predicted | planned freely s | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    errors = []
    for (device, precision), runs in groups.items():
        start = time.process_time()
        share = fitted([run for run in runs if run.tensor == 1] or runs)
        title = f"{content['devices'][device]['title']}, {precision}, {share:.3f} of the preset's rates"
        print(f"| **{title}** | | | | | | | | {time.process_time() - start:.0f} |", flush=True)
        for run in runs:
            start = time.process_time()
            figures = run.planned(share)
            took = time.process_time() - start
            predicted = figures["step_ms"] / 1e3
            error = predicted / run.published_s - 1
            errors.append(error)
            free = run.planned(share, free=True) if wanted.free else None
            print(
                f"| {run.id} | {run.published_s:.3f} | {predicted:.3f} | {error:+.1%} | {figures['exposed_ms'] / 1e3:.3f} | "
                f"{run.memory_gib or ''} | {figures['peak_bytes'] / 2**30:.1f} | "
                f"{'' if free is None else format(free['step_ms'] / 1e3, '.3f')} | {took:.1f} |",
                flush=True,
            )
    absolute = [abs(error) for error in errors]
    print(f"\nmean error {statistics.fmean(absolute):.1%}, worst {max(absolute):.1%}")


if __name__ == "__main__":
    main()
