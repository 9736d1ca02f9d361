"""A slow executor of graphs, node by node in Python: the oracle of the tests.

Works on the message form of a graph (see crate ``ir``), global or local; collectives run through ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unisono._capture.wire import TORCH_DTYPES
from unisono._reference import call, operation

_FORMATS = {
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


def interpret(
    graph: dict[str, Any], inputs: Sequence[torch.Tensor], groups: dict[str, str] | None = None
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
    """Runs a graph once.

    Args:
        graph: the decoded message.
        inputs: one tensor for each input of the graph; none is changed.
        groups: the name of the process group for each symbolic group name, such as ``axis:a``.

    Returns:
        What the graph returns, and the new value of each input that it updates, by the input's number.
    """
    values: dict[int, torch.Tensor] = {}
    for item, tensor in zip(graph["inputs"], inputs, strict=True):
        values[item["value"]] = tensor
    with torch.no_grad():
        for number in graph["order"]:
            node = graph["nodes"][number]
            op = operation(graph["ops"][node["op"]]["name"])
            results = call(op, arguments(node, values, groups or {}))
            bind(node["returns"], results, values)
    returns = [values[value] for value in graph["returns"]]
    return returns, {position: values[value] for position, value in graph["updates"]}


def arguments(node: Any, values: dict[int, torch.Tensor], groups: dict[str, str]) -> list[Any]:
    """The arguments of a node, in the order of the schema."""
    return [_decode(arg, values, groups) for arg in node["args"]]


def _decode(arg: Any, values: dict[int, torch.Tensor], groups: dict[str, str]) -> Any:
    if arg == "none":
        return None
    ((kind, content),) = arg.items()
    match kind:
        case "value":
            return values[content]
        case "values":
            return [None if value is None else values[value] for value in content]
        case "str":
            return groups.get(content, content)
        case _:
            return constant(kind, content)


def constant(kind: str, content: Any) -> Any:
    """An argument of a node that is no tensor."""
    match kind:
        case "dtype":
            return TORCH_DTYPES[content]
        case "layout":
            return getattr(torch, content)
        case "memory_format":
            return _FORMATS[content]
        case "device":
            return torch.device(content["kind"], content["index"]) if content["kind"] != "cpu" else torch.device("cpu")
        case _:
            return content


def bind(returns: list[Any], results: Any, values: dict[int, torch.Tensor]) -> None:
    """Puts the results of a node among the values."""
    if len(returns) == 1:
        results = [results]
    for encoded, result in zip(returns, results if results is not None else (), strict=True):
        if encoded == "none":
            continue
        (kind, content), *_ = encoded.items()
        if kind == "value":
            values[content] = result
        else:
            values.update(zip(content, result, strict=True))
