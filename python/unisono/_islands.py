"""Graphs of AOTAutograd's of which a part cannot be compiled: operations with sizes or numbers that depend on data, such as those of
`nonzero`, calls of graphs, such as `torch.cond`, and operations that write. They run in stages that take turns: those of operations
that are compiled, and those of all others, which PyTorch runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.effects import with_effects

_Run = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class _Stage:
    """Operations that run together: what they read and make of others, and what nobody needs behind them."""

    run: _Run
    reads: list[torch.fx.Node]
    makes: list[torch.fx.Node]
    ends: list[torch.fx.Node]


class Staged:
    """A graph, stage by stage. It is called with a list, which it empties."""

    def __init__(self, graph: torch.fx.Graph, stages: list[_Stage]) -> None:
        self._inputs = graph.find_nodes(op="placeholder")
        self._outputs: Sequence[Any] = graph.output_node().args[0]  # type: ignore[assignment]
        self._stages = stages

    def __call__(self, arguments: list[Any]) -> list[Any]:
        values = dict(zip(self._inputs, arguments, strict=True))
        arguments.clear()
        for stage in self._stages:
            given = [values[node] for node in stage.reads]
            for node in stage.ends:
                del values[node]
            values.update(zip(stage.makes, stage.run(given), strict=True))
        return [values[one] if isinstance(one, torch.fx.Node) else one for one in self._outputs]


def sizes_of_inputs(module: torch.fx.GraphModule) -> set[Any]:
    """The symbols of sizes that depend on data elsewhere, and that a forward graph, or a joint one, is given with its inputs."""
    inputs = [node for node in module.graph.find_nodes(op="placeholder") if "tangents" not in node.name]
    return {symbol for node in inputs for symbol in _symbols(node.meta.get("val"))}


def staged(
    module: torch.fx.GraphModule, compiler: Callable[[torch.fx.GraphModule], _Run], known: set[Any]
) -> Staged | None:
    """The graph in stages, of which ``compiler`` makes what runs those without sizes that depend on data, ``known`` ones aside; ``None``
    where all of it can be compiled.
    """
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    apart: set[torch.fx.Node] = set()
    for node in nodes:
        if _is_apart(node, known) or _is_part_of(node, apart):
            apart.add(node)
    if not apart:
        return None
    apart |= {node for node in nodes if node.target is with_effects or _is_part_of(node, apart)}
    stage_of: dict[torch.fx.Node, int] = {}
    # The stages of the last operation that writes, of the last that draws, and of the last of all.
    written = drawn = last = 0
    for node in nodes:
        earliest = max((stage_of[one] for one in node.all_input_nodes if one in stage_of), default=written)
        earliest = max(earliest, written, drawn if _draws(node) else 0, last if _writes(node) else 0)
        # Stages that PyTorch runs are the odd ones.
        stage_of[node] = earliest + (earliest % 2 != (node in apart))
        last = max(last, stage_of[node])
        drawn = stage_of[node] if _draws(node) else drawn
        written = stage_of[node] if _writes(node) else written
    members: list[list[torch.fx.Node]] = [[] for _ in range(max(stage_of.values()) + 1)]
    for node in nodes:
        members[stage_of[node]].append(node)
    stages: list[_Stage] = []
    needed = set(module.graph.output_node().all_input_nodes)
    for at in reversed(range(len(members))):
        if not members[at]:
            continue
        own = set(members[at])
        reads = list(dict.fromkeys(one for node in members[at] for one in node.all_input_nodes if one not in own))
        reads = [one for one in reads if one.op != "get_attr"]
        makes = [node for node in members[at] if node in needed]
        part = _module_of(module, members[at], reads, makes)
        run = _by_pytorch(part) if at % 2 else compiler(part)
        stages.append(_Stage(run, reads, makes, [one for one in reads if one not in needed]))
        needed |= set(reads)
    return Staged(module.graph, stages[::-1])


def _by_pytorch(module: torch.fx.GraphModule) -> _Run:
    def run(given: list[Any]) -> Any:
        arguments = tuple(given)
        given.clear()
        return module(*arguments)

    return run


def _module_of(
    module: torch.fx.GraphModule,
    members: Sequence[torch.fx.Node],
    reads: Sequence[torch.fx.Node],
    makes: Sequence[torch.fx.Node],
) -> torch.fx.GraphModule:
    """The operations of a stage by themselves."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in reads:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in members:
        copied(node)
    graph.output([copies[node] for node in makes])
    return torch.fx.GraphModule(module, graph)


def _is_apart(node: torch.fx.Node, known: set[Any]) -> bool:
    """Whether an operation has to do with sizes or numbers that depend on data, writes, or calls something else than an operation."""
    if node.target is with_effects:
        return False
    values = [node.meta.get("val"), *(one.meta.get("val") for one in node.all_input_nodes)]
    calls = isinstance(node.target, torch._ops.HigherOrderOperator)
    return calls or _writes(node) or any(_symbols(value) - known for value in values)


def _is_part_of(node: torch.fx.Node, apart: set[torch.fx.Node]) -> bool:
    """Whether a node takes one of several results of an operation that is apart."""
    return node.target is operator.getitem and node.args[0] in apart


def _symbols(value: Any) -> set[Any]:
    """Those of sizes and numbers that depend on data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if isinstance(value, list | tuple):
        return {symbol for one in value for symbol in _symbols(one)}
    has_sizes = isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    return set(free_unbacked_symbols(value)) if has_sizes else set()


def _writes(node: torch.fx.Node) -> bool:
    """Whether an operation changes a tensor, or more than tensors: nothing passes it."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    return node.target is with_effects


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operation may draw random numbers."""
    may = isinstance(node.target, torch._ops.HigherOrderOperator)
    return may or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
