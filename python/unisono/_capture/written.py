"""What a step that was recorded writes into: arguments, buffers, tensors that are no inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.fx

from unisono._capture.inputs import StepInputs
from unisono._capture.known import writers
from unisono._capture.places import place_of, read_back
from unisono._capture.record import Recorder


def note_arguments(graph: torch.fx.GraphModule, inputs: StepInputs, known: list[int]) -> bool:
    """Notes the arguments that a graph without changes in place puts other values into; whether there are more than were known."""
    leaf_at = {position: leaf for leaf, position in enumerate(inputs.leaves) if position is not None}
    position_of = {node: at for at, node in enumerate(node for node in graph.graph.nodes if node.op == "placeholder")}
    copied = [node.args[0] for node in graph.graph.nodes if node.target is torch.ops.aten.copy_.default]
    found = {leaf_at[at] for one in copied if (at := position_of.get(one)) in leaf_at} - {*known}
    known.extend(sorted(found))
    return bool(found)


def require_that_it_stays(recorder: Recorder, replaced: Sequence[torch.Tensor]) -> None:
    """Refuses a step that goes on with the values of a buffer, and changes them for the next one."""
    for node, tensor in recorder.buffers.items():
        if id(tensor) in recorder.asked and (any(writers(node)) or any(tensor is one for one in replaced)):
            raise read_back(recorder.asked[id(tensor)][1])


def written_by(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.Tensor, str | None]]:
    """The tensors of the user's that are no inputs and that a graph writes into, with the places that do."""
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for argument, given in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for one in given if isinstance(given, list | tuple) else [given]:
                    source = _source(one)
                    if source.op == "get_attr":
                        yield getattr(graph, str(source.target)), place_of(node)


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, or itself."""
    while node.op == "call_function":
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        if len(returns) != 1 or returns[0].alias_info is None or not isinstance(node.args[0], torch.fx.Node):
            break
        node = node.args[0]
    return node
