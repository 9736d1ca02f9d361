"""Several ranks in one process: their graphs run in lock-step, node by node, with collectives computed on the spot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgpack
import torch
from rank_programs import RankProgram

import unisono
from unisono import _native, _rows
from unisono._issue_order import alike, prints_of


def coordinates(mesh: dict[str, int], rank: int) -> dict[str, int]:
    """The position of a rank along each axis, the last one fastest."""
    found = {}
    for axis, size in reversed(mesh.items()):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in mesh}


def train(
    graph: unisono.StepGraph,
    plan: _native.Plan,
    mesh: dict[str, int],
    batches: Sequence[Sequence[torch.Tensor]],
    passes: bool,
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trains a captured step by a plan on ranks in lock-step, after the passes or before them.

    Returns what each step returns (the same on every rank) and the whole parameters after the last.
    """
    ranks = math.prod(mesh.values())
    before = [graph.native.rank_graph(plan, rank) for rank in range(ranks)]
    # Small collectives are direct, large ones are not.
    limits = {"all_reduce": 4096, "all_gather": 4096, "reduce_scatter": 4096}
    direct = {axis: {"ranks": size, **limits} for axis, size in mesh.items()}
    content = msgpack.unpackb(plan.content())
    asked = {name: value for name, value in content["passes"].items() if name == "reduce_dtype"}
    passed = [one.run_passes(msgpack.packb({"direct": direct} | asked))[0] for one in before]
    assert alike([prints_of(one.issue_order(), mesh) for one in passed], mesh), (
        "ranks would wait for each other for ever"
    )
    # What runs again is said by its position in the program of the first rank; which collectives are direct, by size.
    indirect = [one.run_passes(msgpack.packb(asked))[0].message() for one in before]
    names = [operators(msgpack.unpackb(one)["graph"]) for one in indirect]
    assert all(one == names[0] for one in names), "ranks have different operations"
    run = [graph.native.without_empty_parts(one) for one in (passed if passes else before)]
    programs = [RankProgram(msgpack.unpackb(one.message())["graph"]) for one in run]
    items, placements = graph.capture.inputs.inputs, content["inputs"]
    placed = [placements.get(item.name, {}) for item in items]

    def part(position: int, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        for axis, coordinate in coordinates(mesh, rank).items():
            tensor = cut(tensor, placed[position].get(axis, "replicate"), coordinate, mesh[axis])
        return tensor

    held = [[part(p, item.tensor.detach().clone(), rank) for p, item in enumerate(items)] for rank in range(ranks)]
    returned = []
    for batch in batches:
        for position, tensor in zip(graph.capture.inputs.leaves, batch, strict=True):
            assert position is not None
            for rank, state in enumerate(held):
                state[position] = part(position, tensor, rank)
        results = run_programs(programs, held, mesh=mesh)
        assert all(torch.equal(mine[0], results[0][0][0]) for mine, _ in results)
        returned.append(results[0][0][0])
        for state, (_, updates) in zip(held, results, strict=True):
            for position, tensor in updates.items():
                # As the executor writes it: into the memory of the state.
                state[position] = torch.empty_like(state[position]).copy_(tensor)
    parameters = {item.name.removeprefix("params."): i for i, item in enumerate(items) if item.cls == "parameter"}
    return returned, {
        name: full_tensor([state[i] for state in held], placed[i], mesh) for name, i in parameters.items()
    }


def operators(graph: dict[str, Any]) -> list[str]:
    """The names of a graph's operators, in its order."""
    return [graph["ops"][graph["nodes"][node]["op"]]["name"] for node in graph["order"]]


def run_ranks(
    graphs: list[dict[str, Any]],
    inputs: list[list[torch.Tensor]],
    layouts: bool = True,
    mesh: dict[str, int] | None = None,
    in_groups: Sequence[int] = (),
) -> list[tuple[list[torch.Tensor], dict[int, torch.Tensor]]]:
    """Runs one graph per rank and returns ``(returns, updates)`` of each; ``layouts`` where inputs lie in memory as their types say.

    Without a ``mesh`` all ranks lie along one axis. The inputs ``in_groups`` have as many rows as each rank has.
    """
    return run_programs([RankProgram(graph) for graph in graphs], inputs, layouts, mesh, in_groups)


@torch.no_grad()
def run_programs(
    programs: list[RankProgram],
    inputs: list[list[torch.Tensor]],
    layouts: bool = True,
    mesh: dict[str, int] | None = None,
    in_groups: Sequence[int] = (),
) -> list[tuple[list[torch.Tensor], dict[int, torch.Tensor]]]:
    """The same of graphs that have been prepared."""
    ranks = [program.run(tensors, layouts, in_groups) for program, tensors in zip(programs, inputs, strict=True)]
    events = [next(rank) for rank in ranks]
    while any(name != "done" for name, _ in events):
        ready = [members for members in _meeting(events, mesh) if len({events[rank][0] for rank in members}) == 1]
        assert ready, f"ranks disagree on the next collective: {[(name, made[-1]) for name, made in events]}"
        for members in ready:
            made = collective(events[members[0]][0], [events[rank][1] for rank in members])
            for rank, result in zip(members, made, strict=True):
                events[rank] = ranks[rank].send(result)
    return [result for _, result in events]


def _meeting(events: Sequence[Any], mesh: dict[str, int] | None) -> list[list[int]]:
    """The groups all of whose ranks have come to a collective of it."""
    axes = {arguments[-1] for name, arguments in events if name != "done"}
    groups = [
        (axis, one) for axis in sorted(axes) for one in groups_along(len(events), axis.removeprefix("axis:"), mesh)
    ]
    return [one for axis, one in groups if all(events[rank][1][-1] == axis for rank in one)]


def groups_along(count: int, axis: str, mesh: dict[str, int] | None) -> list[list[int]]:
    """The ranks that have collectives with each other along an axis."""
    if mesh is None:
        return [list(range(count))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(count):
        others = tuple(place for name, place in coordinates(mesh, rank).items() if name != axis)
        groups.setdefault(others, []).append(rank)
    return list(groups.values())


def collective(name: str, arguments: list[list[Any]]) -> list[torch.Tensor]:
    """What each rank of a group has of a collective of all."""
    tensors = [a[0] for a in arguments]
    assert all(t.is_contiguous() for t in tensors), name
    count = len(tensors)
    if name == "exchange_rows":
        sizes = [
            _rows.splits(bounds.tolist(), exchange, size, rank) for _, bounds, exchange, size, rank, _ in arguments
        ]
        return _exchanged(tensors, sizes)
    if name.startswith("all_reduce"):
        stacked = torch.stack(tensors)
        result = stacked.sum(0) if arguments[0][1] == "sum" else stacked.amax(0)
        return [result.clone() for _ in tensors]
    if name.startswith("all_gather"):
        return [torch.cat(tensors) for _ in tensors]
    if name.startswith("reduce_scatter"):
        return list(torch.stack(tensors).sum(0).chunk(count))
    assert name.startswith("all_to_all"), name
    return _exchanged(tensors, [(sent, received) for _, received, sent, *_ in arguments])


def _exchanged(tensors: list[torch.Tensor], sizes: list[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """What each rank has when each has sent so many rows to each, and received so many."""
    pieces = [tensor.split(sent) for tensor, (sent, _) in zip(tensors, sizes, strict=True)]
    received = [[pieces[source][rank] for source in range(len(tensors))] for rank in range(len(tensors))]
    for parts, (_, expected) in zip(received, sizes, strict=True):
        assert [len(part) for part in parts] == expected
    return [torch.cat(parts) for parts in received]


def cut(tensor: torch.Tensor, placement: str, rank: int, ranks: int) -> torch.Tensor:
    """One rank's part of a tensor, in memory in the order of the whole."""
    if placement == "replicate":
        return tensor
    dim, blocks, chunk = _sharding(placement)
    block = tensor.shape[dim] // blocks
    sizes = _sizes(block, chunk, ranks)
    start = sum(sizes[:rank])
    part = torch.cat([tensor.narrow(dim, at * block + start, sizes[rank]) for at in range(blocks)], dim)
    ordered = torch.empty_like(tensor.narrow(dim, 0, part.shape[dim]))
    return ordered.copy_(part)


def _sharding(placement: str) -> tuple[int, int, int]:
    """Dimension, blocks, and what a rank has of a block where it is not the usual."""
    numbers = placement.removeprefix("shard(").removesuffix(")").split(", ")
    dim, blocks, chunk = map(int, numbers + ["1", "0"][len(numbers) - 1 :])
    return dim, blocks, chunk


def _sizes(block: int, chunk: int, ranks: int) -> list[int]:
    """What each rank has of a block: as much as ``torch.chunk`` gives it, or chunks of another size."""
    chunks = [len(one) for one in torch.arange(block).split(chunk)] if chunk else []
    chunks = chunks or [len(one) for one in torch.arange(block).chunk(ranks)]
    return chunks + [0] * (ranks - len(chunks))


def whole(parts: list[torch.Tensor], placement: str) -> torch.Tensor:
    """The tensor that the ranks' parts make."""
    if placement == "replicate":
        for part in parts[1:]:
            torch.testing.assert_close(part, parts[0], rtol=0, atol=0)
        return parts[0]
    dim, blocks, _ = _sharding(placement)
    sizes = [part.shape[dim] // blocks for part in parts]
    pieces = [
        part.narrow(dim, at * size, size) for at in range(blocks) for part, size in zip(parts, sizes, strict=True)
    ]
    return torch.cat(pieces, dim)


def full_tensor(parts: list[torch.Tensor], layout: dict[str, str], mesh: dict[str, int]) -> torch.Tensor:
    """The tensor that the parts of all ranks of a mesh make, the innermost axis first."""
    for axis, size in reversed(mesh.items()):
        placement = layout.get(axis, "replicate")
        parts = [whole(parts[first : first + size], placement) for first in range(0, len(parts), size)]
    return parts[0]
