"""Captured steps under settings drawn at random: meshes with pipeline stages and without, micro-batches, schedules, pins, forbidden
collectives, memory limits. What is planned gives what one device gives; the rest is refused before anything runs.

``python python/tests/any_settings.py FIRST COUNT [full]`` asks more of them than the tests do, at all effort if that is said.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgpack
import stage_ranks
import torch
from machines import machine
from side_by_side import train

import unisono
from unisono import _native
from unisono.errors import UnisonoError

#: A machine on which all takes its time, one that is eager to cut, and one that is not; each with a link to the host and without.
MACHINES = [
    machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1e3, bandwidth=1e9),
    machine(memory_bandwidth=1e8, flops=1e8, latency_ns=100.0, bandwidth=1e11, operation_ns=10.0),
    machine(memory_bandwidth=1e11, flops=1e11, latency_ns=20000.0, bandwidth=1e9, operation_ns=100.0),
]
RATES = "[device.matmul_flops]"
HOST = "host_bandwidth = 1e10\nhost_latency_ns = 1000\nhost_memory_bytes = 1000000000\n"

#: Schedules with how many chunks a stage has under them.
SCHEDULES = [("gpipe", 1), ("gpipe", 2), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)]
#: A draw that takes longer is named.
SLOW_S = 20.0
KINDS = ["all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True)
class Asked:
    """A step, what one device makes of it, and the batches."""

    graph: unisono.StepGraph
    batches: list[list[torch.Tensor]]
    returned: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]


@functools.cache
def asked(name: str) -> Asked:
    """A step of the tests of stages, captured."""
    one, many = stage_ranks.made(name)
    graph = unisono.capture(many.step, model=many.model, optimizer=many.optimizer, example=many.batches[0])
    torch.manual_seed(7)
    returned = [torch.utils._pytree.tree_leaves(one.step(*batch))[0] for batch in many.batches]
    leaves = [torch.utils._pytree.tree_leaves(batch) for batch in many.batches]
    batches = [[leaf for leaf in batch if isinstance(leaf, torch.Tensor)] for batch in leaves]
    return Asked(graph, batches, returned, {name: one.detach() for name, one in one.model.named_parameters()})


def any_mesh(rng: random.Random) -> dict[str, int]:
    """Up to four stages, and up to eight ranks along up to three axes."""
    stages = rng.choice((1, 1, 2, 2, 3, 4))
    left = rng.choice((2, 3, 4, 4, 6, 8) if stages == 1 else (1, 2, 3, 4, 4, 6))
    mesh = {"stages": stages} if stages > 1 else {}
    for axis in "abc":
        if left > 1:
            mesh[axis] = rng.choice([one for one in range(2, left + 1) if left % one == 0])
            left //= mesh[axis]
    return mesh


def any_settings(rng: random.Random, effort: str) -> dict[str, Any]:
    mesh = any_mesh(rng)
    axes, is_staged = [axis for axis in mesh if axis != "stages"], "stages" in mesh
    settings: dict[str, Any] = {"mesh": mesh, "effort": effort, "fuse": rng.random() < 0.3}
    if is_staged or rng.random() < 0.6:
        settings["micro_batches"] = rng.choice((1, 2, 2, 4, 4, 8))
    if rng.random() < 0.4:
        settings["recompute"] = rng.choice(("none", "full"))
    if rng.random() < 0.3:
        settings["offload"] = rng.choice(("none", "full"))
    if is_staged and rng.random() < 0.5:
        settings["schedule"], settings["chunks"] = rng.choice(SCHEDULES)
    if axes and rng.random() < 0.4:
        pins = rng.sample(["batch.*", "params.*", "params.*.weight", "optimizer.*"], 2)
        placements = ("replicate", "shard(0)", "shard(0)", "shard(1)")
        settings["pins"] = {pattern: {rng.choice(axes): rng.choice(placements)} for pattern in pins}
    if axes and rng.random() < 0.3:
        settings["forbid"] = {rng.choice([*axes, "*"]): rng.sample(KINDS, rng.choice((1, 2)))}
    return settings


def any_plan(rng: random.Random, graph: unisono.StepGraph, effort: str) -> tuple[_native.Plan, dict[str, Any]]:
    """A plan by settings drawn at random, some of them under a limit that is less than what they take without one."""
    settings, cluster = any_settings(rng, effort), rng.choice(MACHINES)
    if rng.random() < 0.5:
        cluster = cluster.replace(RATES, HOST + RATES)
    plan = graph.native.plan(cluster, msgpack.packb(settings))
    if rng.random() < 0.4:
        peak = msgpack.unpackb(plan.content())["prediction"]["peak_bytes"]
        settings["memory_limit"] = int(peak * rng.uniform(0.4, 1.0))
        plan = graph.native.plan(cluster, msgpack.packb(settings))
        taken = msgpack.unpackb(plan.content())["prediction"]["peak_bytes"]
        assert taken <= settings["memory_limit"], (settings, taken)
    return plan, settings


def ask(seed: int, effort: str = "quick") -> str | None:
    """Asks one step under one draw of settings; why it was refused, or nothing."""
    rng = random.Random(seed)
    name = rng.choice(list(stage_ranks.STEPS))
    step = asked(name)
    try:
        plan, settings = any_plan(rng, step.graph, effort)
    except UnisonoError as refused:
        return str(refused).splitlines()[0]
    torch.manual_seed(7)
    returned, parameters = train(step.graph, plan, step.batches, rng)
    says = f"seed {seed}, {name} under {settings}"
    for mine, theirs in zip(returned, step.returned, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5, msg=lambda m: f"{says}\n{m}")
    for key, theirs in step.parameters.items():
        torch.testing.assert_close(parameters[key], theirs, atol=2e-5, rtol=1e-5, msg=lambda m: f"{says}: {key}\n{m}")  # noqa: B023
    return None


if __name__ == "__main__":
    begin, count = int(sys.argv[1]), int(sys.argv[2])
    effort = sys.argv[3] if len(sys.argv) > 3 else "quick"
    refused, wrong = 0, []
    for number in range(begin, begin + count):
        started = time.process_time()
        try:
            refused += ask(number, effort) is not None
        except BaseException as error:
            wrong.append(number)
            print(f"{number}: {type(error).__name__} {str(error)[:600]}", flush=True)
        if (taken := time.process_time() - started) > SLOW_S:
            print(f"{number}: {taken:.0f} CPU s", flush=True)
    print(f"{count} draws, {refused} refused, {len(wrong)} wrong: {wrong[:20]}")
