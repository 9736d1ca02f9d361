"""Captured steps under settings drawn at random: meshes with pipeline stages and without, micro-batches, schedules, pins, forbidden
collectives, memory limits. What is planned gives what one device gives; the rest is refused before anything runs.

``python python/tests/any_settings.py FIRST COUNT`` asks more of them than the tests do.
"""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import stage_ranks
import torch
from machines import machine
from rank_programs import RankProgram
from ranks import collective, coordinates, cut, full_tensor, groups_along

import unisono
from unisono import _host, _native  # noqa: F401 (the operations of copies)
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


def any_settings(rng: random.Random) -> dict[str, Any]:
    mesh = any_mesh(rng)
    axes, is_staged = [axis for axis in mesh if axis != "stages"], "stages" in mesh
    settings: dict[str, Any] = {"mesh": mesh, "effort": "quick", "fuse": rng.random() < 0.3}
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


def any_plan(rng: random.Random, graph: unisono.StepGraph) -> tuple[_native.Plan, dict[str, Any]]:
    """A plan by settings drawn at random, some of them under a limit that is less than what they take without one."""
    settings, cluster = any_settings(rng), rng.choice(MACHINES)
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


class Ranks:
    """Programs of ranks in one process, each with a generator of its own: collectives on the spot, and what is sent between stages when it
    is waited for.
    """

    def __init__(self, programs: Sequence[RankProgram], mesh: dict[str, int], rng: random.Random) -> None:
        self.programs, self.mesh, self.rng = programs, mesh, rng
        self.generators = [torch.get_rng_state() for _ in programs]
        self.where = [coordinates(mesh, rank) for rank in range(len(programs))]

    @torch.no_grad()
    def run(self, inputs: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
        """What each rank returns and updates; fails where they wait for each other without end, or something that was sent is left."""
        self.running = [program.run(given, True, ()) for program, given in zip(self.programs, inputs, strict=True)]
        self.events: list[Any] = [None] * len(self.running)
        # By what a transfer gives: its group, which of the group's it is, whether it comes here, and the tensor.
        self.transfers: list[dict[int, tuple[Any, int, bool, torch.Tensor]]] = [{} for _ in self.running]
        self.sent: dict[Any, list[torch.Tensor]] = {}
        self.begun: dict[Any, int] = {}
        for rank in range(len(self.running)):
            self._go_on(rank, None)
        while open_ := [rank for rank, (name, _) in enumerate(self.events) if name != "done"]:
            # Who comes first is never to matter.
            moved = [self._moves(rank) for rank in self.rng.sample(open_, len(open_))]
            assert any(moved), f"ranks wait for each other for ever: {[self.events[rank][0] for rank in open_]}"
        assert not any(self.transfers), "what was sent or received is not waited for"
        assert {group: len(tensors) for group, tensors in self.sent.items()} == self.begun
        return [result for _, result in self.events]

    def _go_on(self, rank: int, result: Any) -> bool:
        torch.set_rng_state(self.generators[rank])
        self.events[rank] = self.running[rank].send(result)
        self.generators[rank] = torch.get_rng_state()
        return True

    def _moves(self, rank: int) -> bool:
        name, given = self.events[rank]
        if name == "done":
            return False
        if name == "broadcast":
            return self._go_on(rank, self._transfer(rank, given[0].clone(), given[-1]))
        if name == "wait_tensor":
            return self._waits(rank, given[0])
        axis = given[-1].removeprefix("axis:")
        members = next(one for one in groups_along(len(self.running), axis, self.mesh) if rank in one)
        events = [self.events[member] for member in members]
        if any(event != name or arguments[-1:] != given[-1:] for event, arguments in events):
            return False
        made = collective(name, [arguments for _, arguments in events])
        return all(self._go_on(member, result) for member, result in zip(members, made, strict=True))

    def _transfer(self, rank: int, tensor: torch.Tensor, symbol: str) -> torch.Tensor:
        """Begins to send or to receive."""
        group = symbol, tuple(place for axis, place in self.where[rank].items() if axis != "stages")
        comes = int(symbol.rpartition(":")[2].split(">")[0]) != self.where[rank]["stages"]
        if comes:
            self.begun[group] = count = self.begun.get(group, 0) + 1
        else:
            self.sent.setdefault(group, []).append(tensor)
            count = len(self.sent[group])
        self.transfers[rank][id(tensor)] = group, count, comes, tensor
        return tensor

    def _waits(self, rank: int, tensor: torch.Tensor) -> bool:
        """Goes on where what a rank waits for is there; what is no transfer is."""
        transfer = self.transfers[rank].get(id(tensor))
        if transfer is None:
            return self._go_on(rank, tensor)
        group, count, comes, _ = transfer
        sent = self.sent.get(group, [])
        if (len(sent) if comes else self.begun.get(group, 0)) < count:
            return False
        del self.transfers[rank][id(tensor)]
        return self._go_on(rank, sent[count - 1].clone() if comes else tensor)


def train(step: Asked, plan: _native.Plan, rng: random.Random) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """What each step returns, the same on all ranks, and the whole parameters after the last."""
    content = msgpack.unpackb(plan.content())
    mesh = {axis: size for axis, size in content["mesh"].items() if axis != "micro_batches"}
    flat = {axis: size for axis, size in mesh.items() if axis != "stages"}
    within, stages = math.prod(flat.values()), mesh.get("stages", 1)
    items = step.graph.capture.inputs.inputs
    placed = [content["inputs"].get(item.name, {}) for item in items]
    held_by = content["stages"]["state"] if stages > 1 else {}
    on = [held_by.get(item.name, list(range(stages))) for item in items]

    def part(position: int, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        where = coordinates(mesh, rank)
        if where.get("stages", 0) not in on[position]:
            return tensor.new_empty(0)
        for axis, size in flat.items():
            tensor = cut(tensor, placed[position].get(axis, "replicate"), where[axis], size)
        return tensor

    programs = [step.graph.native.program(plan, rank)[0].message() for rank in range(stages * within)]
    ranks = Ranks([RankProgram(msgpack.unpackb(one)["graph"], waits=True) for one in programs], mesh, rng)
    held = [
        [part(p, item.tensor.detach().clone(), rank) for p, item in enumerate(items)] for rank in range(len(programs))
    ]
    returned = []
    for batch in step.batches:
        for position, tensor in zip(step.graph.capture.inputs.leaves, batch, strict=True):
            assert position is not None
            for rank, state in enumerate(held):
                state[position] = part(position, tensor, rank)
        results = ranks.run(held)
        assert all(torch.equal(mine[0], results[0][0][0]) for mine, _ in results)
        returned.append(results[0][0][0])
        for state, (_, updates) in zip(held, results, strict=True):
            for position, tensor in updates.items():
                state[position] = torch.empty_like(state[position]).copy_(tensor)

    def whole(position: int) -> torch.Tensor:
        first = on[position][0] * within
        parts = [held[rank][position] for rank in range(first, first + within)]
        return full_tensor(parts, placed[position], flat)

    parameters = {item.name.removeprefix("params."): p for p, item in enumerate(items) if item.cls == "parameter"}
    return returned, {name: whole(position) for name, position in parameters.items()}


def ask(seed: int) -> str | None:
    """Asks one step under one draw of settings; why it was refused, or nothing."""
    rng = random.Random(seed)
    name = rng.choice(list(stage_ranks.STEPS))
    step = asked(name)
    try:
        plan, settings = any_plan(rng, step.graph)
    except UnisonoError as refused:
        return str(refused).splitlines()[0]
    torch.manual_seed(7)
    returned, parameters = train(step, plan, rng)
    says = f"seed {seed}, {name} under {settings}"
    for mine, theirs in zip(returned, step.returned, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5, msg=lambda m: f"{says}\n{m}")
    for key, theirs in step.parameters.items():
        torch.testing.assert_close(parameters[key], theirs, atol=2e-5, rtol=1e-5, msg=lambda m: f"{says}: {key}\n{m}")  # noqa: B023
    return None


if __name__ == "__main__":
    begin, count = int(sys.argv[1]), int(sys.argv[2])
    refused, wrong = 0, []
    for number in range(begin, begin + count):
        try:
            refused += ask(number) is not None
        except BaseException as error:
            wrong.append(number)
            print(f"{number}: {type(error).__name__} {str(error)[:600]}", flush=True)
    print(f"{count} draws, {refused} refused, {len(wrong)} wrong: {wrong[:20]}")
