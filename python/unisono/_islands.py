"""Graphs of AOTAutograd's in which sizes or numbers depend on data, such as those of `nonzero`: stages that take turns, those of operations
without such sizes, which are compiled, and those of all others, which PyTorch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

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
    where no size does, or where stages would change an order that matters.
    """
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    apart = {node for node in nodes if _is_apart(node, known)}
    if not apart or any(_writes(node) for node in nodes):
        return None
    stage_of: dict[torch.fx.Node, int] = {}
    for node in nodes:
        earliest = max((stage_of[one] for one in node.all_input_nodes if one in stage_of), default=0)
        # Stages that PyTorch runs are the odd ones.
        stage_of[node] = earliest + (earliest % 2 != (node in apart))
    draws = [stage_of[node] for node in nodes if _draws(node)]
    if draws != sorted(draws):
        return None
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
    """Whether an operation has to do with sizes or numbers that depend on data."""
    values = [node.meta.get("val"), *(one.meta.get("val") for one in node.all_input_nodes)]
    return any(_symbols(value) - known for value in values)


def _symbols(value: Any) -> set[Any]:
    """Those of sizes and numbers that depend on data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if isinstance(value, list | tuple):
        return {symbol for one in value for symbol in _symbols(one)}
    has_sizes = isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    return set(free_unbacked_symbols(value)) if has_sizes else set()


def _writes(node: torch.fx.Node) -> bool:
    """Whether others can see when it runs."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.target._schema.is_mutable


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
