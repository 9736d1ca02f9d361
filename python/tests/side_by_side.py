"""Ranks of pipeline stages, and of other axes with them, in one process: their programs run side by side, and wait for each other as over
gloo.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import msgpack
import torch
from rank_programs import RankProgram
from ranks import collective, coordinates, cut, full_tensor, groups_along

import unisono
from unisono import _host, _native  # noqa: F401 (the operations of copies)
from unisono._placements import holders


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
        for rank, (program, given) in enumerate(zip(self.programs, inputs, strict=True)):
            for tensor, item in zip(given, program.graph["inputs"], strict=True):
                assert list(tensor.shape) == program.graph["values"][item["value"]]["type"]["shape"], item["name"]
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
            assert given[0].is_contiguous()
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
        if comes:
            assert (sent[count - 1].shape, sent[count - 1].dtype) == (tensor.shape, tensor.dtype)
            tensor = sent[count - 1].clone()
        return self._go_on(rank, tensor)


def train(
    graph: unisono.StepGraph, plan: _native.Plan, batches: Sequence[Sequence[torch.Tensor]], rng: random.Random
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trains a captured step by a plan; what each step returns, the same on all ranks, and the whole parameters after the last."""
    content = msgpack.unpackb(plan.content())
    mesh = {axis: size for axis, size in content["mesh"].items() if axis != "micro_batches"}
    flat = {axis: size for axis, size in mesh.items() if axis != "stages"}
    within, stages = math.prod(flat.values()), mesh.get("stages", 1)
    items = graph.capture.inputs.inputs
    placed = [content["inputs"].get(item.name, {}) for item in items]
    held_by = content["stages"]["state"] if stages > 1 else {}
    on = [held_by.get(item.name, list(range(stages))) for item in items]
    assert all(holders(f"stage({', '.join(map(str, one))})") == one for one in on)

    def part(position: int, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        where = coordinates(mesh, rank)
        if where.get("stages", 0) not in on[position]:
            return tensor.new_empty(0)
        for axis, size in flat.items():
            tensor = cut(tensor, placed[position].get(axis, "replicate"), where[axis], size)
        return tensor

    programs = [graph.native.program(plan, rank)[0].message() for rank in range(stages * within)]
    ranks = Ranks([RankProgram(msgpack.unpackb(one)["graph"], waits=True) for one in programs], mesh, rng)
    held = [
        [part(p, item.tensor.detach().clone(), rank) for p, item in enumerate(items)] for rank in range(len(programs))
    ]
    returned = []
    for batch in batches:
        for position, tensor in zip(graph.capture.inputs.leaves, batch, strict=True):
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
