"""Published training runs, predicted from presets beside what was published: `published.toml` has the runs with their sources.

    python benches/published.py [PART OF A RUN'S ID]

Each model is captured at its real size, of parameters on `meta`: f32 parameters that are cast to bf16 where they are used, fused AdamW,
clipping, and blocks checkpointed as the run did. The plan is pinned to the run's: its mesh and micro-batches, the batch over the data
axis, sharded state, and along a tensor axis products by features and the sequence sharded between blocks. What a framework does otherwise
than the program that is captured is said row by row: whether its operations are compiled, which kernel attention is, whether collectives
along the tensor axis pass behind pieces of products. Of all that a preset says one number is fitted for each device: what part of the
rates of products and attention is reached. The last columns plan the same global batch on the same devices freely, on the run's mesh,
within the device's memory, under the same number.
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

from published_models import Shape, captured

from unisono._arguments import cluster_text
from unisono.errors import ResourceError
from unisono.plans import Plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROUNDS = 4
#: What part of their time asynchronous collectives along a tensor axis pass behind products: torchtitan published three pairs of runs with
#: and without (70B in 2024 and 2025, 8B in 2025), whose steps differ by some 20, 55 and 36 % of what these collectives take.
HIDDEN = 0.37
RANKS_OF_A_NODE = 8


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
class Run:
    """A published run."""

    given: dict[str, Any]
    device: dict[str, Any]
    shape: Shape

    def __getattr__(self, name: str) -> Any:
        defaults = {
            "tensor": 1,
            "accumulate": 1,
            "attention": "flash",
            "compiled": True,
            "asynchronous": False,
            "state": "sharded",
        }
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

    def plan(self, share: float, **settings: Any) -> Plan:
        """A plan on the run's mesh."""
        # Where no device is named, PyTorch takes flash attention.
        kind = self.device["preset"] if self.attention == "cudnn" else "cuda"
        graph = captured(self.shape, self.sequences, self.sequence, kind)
        mesh = {"data": self.data, **({"tensor": self.tensor} if self.tensor > 1 else {})}
        machine = cluster(self.device, self.ranks, share, compiled=self.compiled)
        return graph.plan(machine, mesh=mesh, fuse=self.compiled, **settings)

    def pins(self) -> dict[str, dict[str, str]]:
        """The run's plan."""
        sharded = {"data": "shard(0)"}
        pins = {"batch.*": sharded, "params.*": sharded, "optimizer.*": sharded}
        if self.tensor == 1:
            return pins
        pins["batch.*"] = sharded | {"tensor": "replicate"}
        pins["outputs.blocks.*"] = {"tensor": "shard(1)"}
        # With the batch whole along the tensor axis, products use weights as they are stored there: columns, then rows. Along the data
        # axis, which is the outer one, the other dimension is stored in parts, or heads would be dealt out in blocks.
        for dim, names in enumerate((("q", "k", "v", "gate", "up", "head", "embedding"), ("o", "down"))):
            stored = {"data": f"shard({1 - dim})", "tensor": f"shard({dim})"}
            pins |= {f"params.*{name}.weight": stored for name in names}
        if self.shape.tied:
            del pins["params.*head.weight"]
        if not self.shape.gated:
            del pins["params.*gate.weight"]
        return pins

    def planned(self, share: float) -> dict[str, Any]:
        """The figures of the run's plan."""
        pinned = functools.partial(self.plan, share, micro_batches=self.accumulate, pins=self.pins())
        try:
            return pinned().figures()
        except ResourceError:  # by what is predicted, the run would not fit
            return pinned(memory_limit="4TiB").figures()

    def freely(self, share: float) -> dict[str, Any]:
        """The figures of the plan that the search chooses on the same mesh."""
        return self.plan(share, micro_batches=None if self.accumulate == 1 else self.accumulate).figures()

    def seconds(self, figures: dict[str, Any]) -> float:
        """A step as the run's framework takes it: it waits for all collectives of activations along the tensor axis, or, where these
        are asynchronous, for what pieces of products do not hide. A distributed optimizer gathers parameters once, behind the first
        micro-batch, and reduces gradients once, behind the last."""
        collectives = figures["collectives"]
        along = [one for one in collectives if (one["axis"], one["of"]) == ("tensor", "activations")]
        behind = [one for one in collectives if one["axis"] == "data" and self.state == "optimizer"]
        waited = sum(one["ms"] for one in along) * (1 - HIDDEN if self.asynchronous else 1)
        return (figures["step_ms"] - sum(one["exposed_ms"] for one in along + behind) + waited) / 1e3


def run_of(given: dict[str, Any], content: dict[str, Any]) -> Run:
    """A row of the file, with its device and the shape of its model."""
    computes = {key: given[key] for key in ("recompute", "repeats_keys", "one_norm") if key in given}
    shape = Shape(**content["models"][given["model"]], narrow=given["precision"] == "fp8", **computes)
    return Run(given, content["devices"][given["device"]], shape)


def fitted(runs: Sequence[Run]) -> float:
    """The share of the rates under which the geometric mean of predicted over published time is one."""
    share, known = 0.7, []
    for _ in range(ROUNDS):
        ratio = statistics.fmean(math.log(run.seconds(run.planned(share)) / run.published_s) for run in runs)
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
    groups: dict[str, list[Run]] = {}
    for given in content["runs"]:
        if wanted.part in f"{given['device']} {given['precision']} {given['id']}":
            groups.setdefault(given["device"], []).append(run_of(given, content))
    print("| run | published s | predicted s | error | peak GiB: published | predicted | planned freely s | CPU s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    errors = []
    for device, runs in groups.items():
        start = time.process_time()
        share = fitted([run for run in runs if run.tensor == 1] or runs)
        title = f"{content['devices'][device]['title']}, {share:.3f} of the preset's rates"
        print(f"| **{title}** | | | | | | | {time.process_time() - start:.0f} |", flush=True)
        for run in runs:
            start = time.process_time()
            figures = run.planned(share)
            took = time.process_time() - start
            predicted = run.seconds(figures)
            error = predicted / run.published_s - 1
            errors.append(error)
            free = run.freely(share) if wanted.free else None
            print(
                f"| {run.id}, {run.precision} | {run.published_s:.3f} | {predicted:.3f} | {error:+.1%} | "
                f"{run.memory_gib or ''} | {figures['peak_bytes'] / 2**30:.1f} | "
                f"{'' if free is None else format(free['step_ms'] / 1e3, '.3f')} | {took:.1f} |",
                flush=True,
            )
    absolute = [abs(error) for error in errors]
    print(f"\nmean error {statistics.fmean(absolute):.1%}, worst {max(absolute):.1%}")


if __name__ == "__main__":
    main()
