"""Published training runs, predicted from presets beside what was published: `published.toml` has the runs with their sources.

    python benches/published.py [PART OF A RUN'S ID]

Each model is captured at its real size, of parameters on `meta`: f32 parameters that are cast to bf16 where they are used, fused AdamW,
clipping, dropout where the model has it, and blocks checkpointed as the run did. The plan is pinned to the run's: its mesh and
micro-batches, the batch over the data axis, sharded state, and along a tensor axis products by features and the sequence sharded between
blocks, unless the run did not. What a framework does otherwise than the program that is captured is said row by row: whether its
operations are compiled, which kernel attention is, whether collectives along the tensor axis pass behind pieces of products, or copy. Of
all that a preset says one number is fitted for each device: what part of the rates of products and attention is reached. It is fitted once
more to every other run, and what that says of those between is printed last. With `--free` the same global batch is planned on the same
devices freely, on the run's mesh, within the device's memory, under the same number. With `--unfitted` the runs are those of
`published_unfitted.toml`, under the number that stands beside each device in `published.toml`: nothing is fitted to them.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from published_models import Shape, captured

from unisono._arguments import cluster_text
from unisono.errors import ResourceError
from unisono.plans import Plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROUNDS = 4
#: What part of their time asynchronous collectives along a tensor axis pass behind products: torchtitan published five pairs of runs with
#: and without (70B in 2024, twice in 2025, 8B twice in 2025), whose steps differ by 22, 50, 59, 25 and 29 % of what these collectives and
#: the copies beside them take by the preset.
HIDDEN = 0.37
RANKS_OF_A_NODE = 8
#: Modules of a block that have a matrix.
PRODUCTS = {"q", "k", "v", "o", "gate", "up", "down"}


@functools.cache
def preset(name: str) -> dict[str, Any]:
    """A preset's device."""
    return tomllib.loads(cluster_text(name))["device"]


def cluster(device: dict[str, Any], ranks: int, share: float, *, compiled: bool) -> str:
    """The device's preset, with that share of its rates. Kernels that are compiled walk through memory as fast as a copy does."""
    nodes, each = max(1, ranks // RANKS_OF_A_NODE), min(ranks, RANKS_OF_A_NODE)
    known = preset(device["preset"])
    bandwidth = device.get("memory_bandwidth", known["memory_bandwidth"])
    lines = [f'preset = "{device["preset"]}:{nodes}x{each}"', "[device]", f"memory_bandwidth = {bandwidth!r}"]
    lines += [f"memory_bytes = {device['memory_bytes']}"] if "memory_bytes" in device else []
    lines += [f"uneven_bandwidth = {bandwidth!r}"] if compiled else []
    for rates in ("matmul_flops", "attention_flops"):
        shares = ", ".join(f"{dtype} = {rate * share:.6g}" for dtype, rate in known.get(rates, {}).items())
        lines += [f"{rates} = {{ {shares} }}"] if shares else []
    for operator, types in known.get("operations", {}).items():
        for dtype, fit in types.items():
            if "flop_ps" in fit:
                lines += [f'[device.operations."{operator}".{dtype}]', f"flop_ps = {fit['flop_ps'] / share:.6g}"]
    return "\n".join(lines)


@dataclass
class Figures:
    """The figures of a run's plan, and of the same plan with PyTorch's own operations where the run's loss is of these."""

    run: dict[str, Any]
    plain: dict[str, Any]


@dataclass
class Run:
    """A published run."""

    given: dict[str, Any]
    device: dict[str, Any]
    shape: Shape

    def __getattr__(self, name: str) -> Any:
        defaults = {
            "tensor": 1,
            "context": 1,
            "stages": 1,
            "chunks": 1,
            "accumulate": 1,
            "attention": "flash",
            "compiled": True,
            "asynchronous": False,
            "batch_first": False,
            "whole_heads": False,
            "plain_loss": False,
            "step_s": None,
            "tflops": None,
            "whole_sequence": False,
            "reduces_wide": False,
            "state": "sharded",
        }
        return self.given.get(name, defaults.get(name))

    @property
    def ranks(self) -> int:
        return self.data * self.context * self.tensor * self.stages

    @property
    def sequences(self) -> int:
        return self.batch * self.data * self.accumulate

    @property
    def published_s(self) -> float:
        tokens = self.tflops * 1e12 / self.flops_per_token if self.tflops else self.tokens
        return self.step_s or self.sequences * self.sequence / (tokens * self.ranks)

    def plan(self, share: float, *, fuse: bool, **settings: Any) -> Plan:
        """A plan on the run's mesh."""
        # Where no device is named, PyTorch takes flash attention.
        kind = self.device["preset"] if self.attention == "cudnn" else "cuda"
        graph = captured(self.shape, self.sequences, self.sequence, kind)
        sizes = {"stages": self.stages, "data": self.data, "context": self.context, "tensor": self.tensor}
        mesh = {name: size for name, size in sizes.items() if size > 1 or name == "data"}
        machine = cluster(self.device, self.ranks, share, compiled=self.compiled)
        reduce_dtype = torch.float32 if self.reduces_wide else None
        return graph.plan(machine, mesh=mesh, fuse=fuse, reduce_dtype=reduce_dtype, **settings)

    def pipeline(self) -> dict[str, Any]:
        """In which order the run's stages run their micro-batches, and the blocks that chunks begin with: all have as many, or the
        first and the last have one less, in whose place are the embedding and the head."""
        if self.stages == 1:
            return {}
        parts, layers = self.stages * self.chunks, self.shape.layers
        each, apart = divmod(layers if layers % parts == 0 else layers + 2, parts)
        if apart:
            raise ValueError(f"{self.id}: {layers} layers in {parts} chunks")
        first = 0 if layers % parts == 0 else 1
        cuts = [f"blocks.{each * part - first}" for part in range(1, parts)]
        schedule = "1f1b" if self.chunks == 1 else "interleaved"
        return {"schedule": schedule, "chunks": self.chunks, "cuts": cuts, "memory_limit": "4TiB"}

    def pins(self) -> dict[str, dict[str, str]]:
        """The run's plan."""
        batch = {"data": "shard(0)"} | ({"context": "shard(1)"} if self.context > 1 else {})
        over = [axis for axis in ("data", "context") if axis == "data" or self.context > 1]
        state = dict.fromkeys(over, "replicate" if self.state == "whole" else "shard(0)")
        pins = {"batch.*": batch, "params.*": state, "optimizer.*": state}
        if self.tensor == 1:
            return pins
        pins["batch.*"] = batch | {"tensor": "replicate"}
        pins["outputs.blocks.*"] = {"tensor": "replicate" if self.whole_sequence else "shard(1)"}
        # With the batch whole along the tensor axis, products use weights as they are stored there: columns, then rows. Along the data
        # axis, which is the outer one, the other dimension is stored in parts, or heads would be dealt out in blocks.
        for dim, names in enumerate((("q", "k", "v", "gate", "up", "head", "embedding"), ("o", "down"))):
            stored = dict.fromkeys(over, "replicate" if self.state == "whole" else f"shard({1 - dim})")
            stored["tensor"] = f"shard({dim})"
            pins |= {f"params.*{name}.weight": stored for name in names}
        if self.shape.tied:
            del pins["params.*head.weight"]
        if not self.shape.gated:
            del pins["params.*gate.weight"]
        return pins

    def planned(self, share: float) -> Figures:
        """The figures of the run's plan; where the loss is not compiled, also of the plan in which nothing is."""
        figures = self.figures(share, fuse=self.compiled)
        return Figures(figures, self.figures(share, fuse=False) if self.plain_loss else figures)

    def figures(self, share: float, *, fuse: bool) -> dict[str, Any]:
        """The figures of the run's plan."""
        # What the run's blocks do is captured; nothing else runs again so that a prediction keeps the limit.
        recompute = "none" if self.shape.recompute == "none" else None
        settings = {
            "micro_batches": self.accumulate,
            "pins": self.pins(),
            "recompute": recompute,
            "offload": "none",
            **self.pipeline(),
        }
        pinned = functools.partial(self.plan, share, fuse=fuse, **settings)
        try:
            return pinned().figures()
        except ResourceError:  # by what is predicted, the run would not fit
            return pinned(memory_limit="4TiB").figures()

    def freely(self, share: float) -> dict[str, Any]:
        """The figures of the plan that the search chooses on the same mesh."""
        micro_batches = None if self.accumulate == 1 else self.accumulate
        return self.plan(share, fuse=self.compiled, micro_batches=micro_batches).figures()

    def seconds(self, planned: Figures) -> float:
        """A step as the run's framework takes it: it waits for all collectives of activations along the tensor axis, and copies what they
        move, or, where these are asynchronous, for what pieces of products do not hide. A distributed optimizer gathers parameters once,
        behind the first micro-batch, and reduces gradients once, behind the last; without one gradients are summed at the end."""
        figures = planned.run
        collectives = figures["collectives"]
        along = [one for one in collectives if (one["axis"], one["of"]) == ("tensor", "activations")]
        behind = [one for one in collectives if one["axis"] == "data" and self.state != "sharded"]
        waited = sum(one["ms"] for one in along) / 1e3
        waited += sum(one["ms"] for one in behind) / 1e3 if self.state == "whole" else 0.0
        if self.batch_first:
            moved = sum(one["bytes"] for one in along if one["kind"] in {"all_gather", "reduce_scatter"})
            waited += self.walked(moved + moved)
        if self.asynchronous:
            waited *= 1 - HIDDEN
        exposed = sum(one["exposed_ms"] for one in along + behind) / 1e3
        more = self.whole_heads_s(along) if self.whole_heads else 0.0
        more += loss_s(planned.plain) - loss_s(figures) - (self.sums_s() if self.state == "optimizer" else 0.0)
        return figures["step_ms"] / 1e3 - exposed + waited + more

    def sums_s(self) -> float:
        """What it takes to add up gradients of blocks behind the products that make them, in 16 bits: Megatron's products add to them."""
        elements = self.shape.layers * self.shape.block / (self.tensor * self.stages)
        return (self.accumulate - 1) * self.walked(3 * 2 * elements)

    def reserved(self, planned: Figures) -> float:
        """Bytes that PyTorch's allocator holds: FSDP sums gradients on a stream of its own, where they stay until the update; it gathers
        what a unit has into one tensor on another, and copies parameters out of that. The unit of embedding, last norm and head is
        gathered for the whole step, blocks two at a time."""
        held, shape, tokens = planned.plain["reserved"], self.shape, self.batch * self.sequence
        if not self.source.startswith("titan"):
            return held["together"]
        root = 2 * 2 * shape.vocabulary * shape.width / self.tensor
        blocks = 2 * 2 * shape.block / self.tensor
        nbytes = held["operations"] + held["gradients"] + max(root, blocks) + root + blocks
        # Along two axes the plan keeps weights of blocks gathered until backward, which FSDP gathers again.
        kept = [one for one in planned.plain["held"] if one["category"] == "temporary"]
        if self.tensor > 1:
            nbytes -= sum(one["bytes"] for one in kept if one["module"].rpartition(".")[2] in PRODUCTS)
        # What the head reads is gathered by ranks first, and copied: the gap is too small for logits.
        if self.batch_first:
            nbytes += 2 * tokens * shape.width
        # PyTorch keeps all that a policy names, also the last product of a block, which nothing of backward reads.
        if shape.recompute == "selective" and not self.compiled:
            nbytes += 2 * shape.layers * tokens * shape.width
        # Of a loss over a sharded vocabulary backward holds one tensor more in f32.
        if self.tensor > 1 and (self.plain_loss or not self.compiled):
            nbytes += 4 * tokens * shape.vocabulary / self.tensor
        return nbytes

    def walked(self, nbytes: float, rate: str = "memory_bandwidth") -> float:
        """Seconds of a kernel that reads and writes so many bytes."""
        return nbytes / (preset(self.device["preset"]) | self.device)[rate]

    def whole_heads_s(self, along: Sequence[dict[str, Any]]) -> float:
        """What it takes longer that queries and keys are whole on every rank from their norms on until attention: they are gathered along
        the third dimension, which copies them, all heads are rotated, and keys repeated, forward and where the block runs again."""
        shape, gathers = self.shape, [one for one in along if one["kind"] == "all_gather"]
        queries = 2.0 * self.batch * self.sequence * shape.heads * shape.head
        both = queries * (1 + shape.key_heads / shape.heads)
        gathered = both * sum(one["ms"] for one in gathers) / sum(one["bytes"] for one in gathers) / 1e3
        # Of queries and keys: times the cosine, negated by halves, joined, times the sine, added. Repeated keys are as large as queries.
        uneven = (2 + 1 + 2 + 2) * both + (both - queries) + queries
        computed = self.walked(uneven, "uneven_bandwidth") + self.walked(3 * both)
        once = gathered + self.walked(2 * both) + computed * (1 - 1 / self.tensor)
        return shape.layers * once * (1 if shape.recompute == "none" else 2)


def loss_s(figures: dict[str, Any]) -> float:
    """Seconds of what is in no module, which is the loss."""
    parts = [one for one in figures["modules"] if one["module"] == "" and one["part"] != "update"]
    return sum(one["ms"] for one in parts) / 1e3


def run_of(given: dict[str, Any], content: dict[str, Any]) -> Run:
    """A row of the file, with its device and the shape of its model."""
    computes = {
        key: given[key] for key in ("recompute", "repeats_keys", "one_norm", "written_attention") if key in given
    }
    shape = Shape(**content["models"][given["model"]], narrow=given["precision"] == "fp8", **computes)
    return Run(given, content["devices"][given["device"]], shape)


#: A run with the logarithms of shares of the rates, and of predicted over published time under each.
Fit = tuple[Run, list[tuple[float, float]]]


def fitted(runs: Sequence[Run]) -> tuple[float, list[Fit]]:
    """The share of the rates under which the geometric mean of predicted over published time is one, and what was computed for it."""
    share, fits = 0.7, [(run, []) for run in runs]
    for round_ in range(ROUNDS):
        for run, known in fits:
            known.append((math.log(share), math.log(run.seconds(run.planned(share)) / run.published_s)))
        mean = statistics.fmean(known[-1][1] for _, known in fits)
        if round_ == 0:
            share *= math.exp(mean / 0.8) if abs(mean) > 0.02 else 1.02
        elif abs(mean) < 1e-3:
            break
        else:
            share = math.exp(solved(fits))
    return share, fits


def line(fit: Fit) -> tuple[float, float]:
    """A run's logarithm of predicted over published time as a line over that of the share, through the last two: at 0, and the slope."""
    (x, y), (x_now, y_now) = fit[1][-2:]
    slope = (y_now - y) / (x_now - x)
    return y_now - slope * x_now, slope


def solved(fits: Sequence[Fit]) -> float:
    """The logarithm of the share under which the mean of these lines is 0."""
    lines = [line(fit) for fit in fits]
    return -sum(at_0 for at_0, _ in lines) / sum(slope for _, slope in lines)


def checked(fits: Sequence[Fit]) -> dict[str, float]:
    """The errors of every second run under the share that is fitted to the others, by run."""
    if len(fits) < 2:
        return {}
    at = solved(fits[::2])
    found = {}
    for run, known in fits[1::2]:
        at_0, slope = line((run, known))
        found[f"{run.id}, {run.precision}"] = math.exp(at_0 + slope * at) - 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part", nargs="?", default="", help="only runs whose device, precision and id have this in them"
    )
    parser.add_argument("--free", action="store_true", help="plan freely too")
    parser.add_argument("--unfitted", action="store_true", help="runs that nothing is fitted to")
    wanted = parser.parse_args()
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    rows = content["runs"]
    if wanted.unfitted:
        rows = tomllib.loads(Path(__file__).with_name("published_unfitted.toml").read_text())["runs"]
    groups: dict[str, list[Run]] = {}
    for given in rows:
        if wanted.part in f"{given['device']} {given['precision']} {given['id']}":
            groups.setdefault(given["device"], []).append(run_of(given, content))
    print("| run | published s | predicted s | error | GiB: published | reserved | alive | planned freely s | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    errors, of_memory, of_others = [], [], {}
    for device, runs in groups.items():
        start = time.process_time()
        share = content["devices"][device]["share"]
        if not wanted.unfitted:
            whole = [run for run in runs if run.stages == 1]
            share, fits = fitted([run for run in whole if run.context == run.tensor == 1] or whole or runs)
            of_others |= checked(fits)
        title = f"{content['devices'][device]['title']}, {share:.3f} of the preset's rates"
        print(f"| **{title}** | | | | | | | | {time.process_time() - start:.0f} |", flush=True)
        for run in runs:
            error, of_held = report(run, share, free=wanted.free)
            errors.append(error)
            of_memory += of_held
    print(f"\nmean error of the step time {said(errors)}; of memory {said(of_memory)}")
    if of_others:
        print(f"fitted to every other run without tensor parallelism, of the others: {said(list(of_others.values()))}")
        print("; ".join(f"{run} {error:+.1%}" for run, error in of_others.items()))


def report(run: Run, share: float, *, free: bool) -> tuple[float, list[float]]:
    """Prints a run's line; gives the errors of its step time, and of its memory where that was published."""
    start = time.process_time()
    planned = run.planned(share)
    took = time.process_time() - start
    predicted, held = run.seconds(planned), run.reserved(planned) / 2**30
    error = predicted / run.published_s - 1
    freely = format(run.freely(share)["step_ms"] / 1e3, ".3f") if free else ""
    print(
        f"| {run.id}, {run.precision} | {run.published_s:.3f} | {predicted:.3f} | {error:+.1%} | "
        f"{run.memory_gib or ''} | {held:.1f} | {planned.plain['peak_bytes'] / 2**30:.1f} | {freely} | {took:.1f} |",
        flush=True,
    )
    return error, [held / run.memory_gib - 1] if run.memory_gib else []


def said(errors: Sequence[float]) -> str:
    """The mean and the worst of errors, in words."""
    absolute = [abs(error) for error in errors]
    return f"{statistics.fmean(absolute):.1%}, worst {max(absolute):.1%}" if absolute else "not known"


if __name__ == "__main__":
    main()
