"""One rank's graph, node by node: what is the same at every run is decoded once, and what each node gives is held against its type."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unisono._interpret import bind, constant
from unisono._reference import by_position, operation

#: Operators that make rows of run-time sizes, with the exchanges that do.
_OF_ROWS = {"own_rows", "deal_columns", "join_columns", "for_each_rank", "shards to groups", "whole to groups"}
#: Operators that make of such rows what has a known size, where they are told it.
_OF_ALL = {"among_zeros", "groups to shards", "groups to whole"}


class RankProgram:
    """A graph that runs, and stops at each collective."""

    def __init__(self, graph: dict[str, Any], waits: bool = False) -> None:
        """Decodes the arguments of all nodes; where it stops at ``waits`` too, what is sent between stages may come late."""
        self.graph, self._waits = graph, waits
        operators = [_operator(one["name"]) for one in graph["ops"]]
        self._nodes = [_Node(operators[node["op"]], node) for node in map(graph["nodes"].__getitem__, graph["order"])]
        self._makes_rows = any(operator.makes_rows for operator in operators)
        self._types = [(one["type"]["shape"], one["type"]["strides"]) for one in graph["values"]]

    def run(self, inputs: Sequence[torch.Tensor], layouts: bool, in_groups: Sequence[int]) -> Generator[Any, Any, None]:
        """Yields ``(operator, arguments)`` at each collective and is sent its result; at last what is returned and updated."""
        graph, types = self.graph, self._types
        values = {item["value"]: tensor for item, tensor in zip(graph["inputs"], inputs, strict=True)}
        varying = {graph["inputs"][position]["value"] for position in in_groups}
        may_vary = self._makes_rows or bool(varying)
        for node in self._nodes:
            given = node.arguments
            for position, value in node.reads:
                given[position] = values[value]
            for position, several in node.lists:
                given[position] = [None if one is None else values[one] for one in several]
            operator, made = node.operator, node.makes
            if operator.call is not None:
                result = operator.call(given)
            elif operator.waits and not self._waits:
                result = given[0]
            else:
                result = yield operator.kind, [*given]
            if made is None:
                bind(node.encoded["returns"], result, values)
            else:
                values[made] = result
            if may_vary and _varies(node, varying):
                # What offsets divide the inner elements of has a matrix for each group.
                is_product = operator.name == "aten::_grouped_mm"
                varying.update(one for one in made_by(node.encoded) if not is_product or values[one].dim() == 2)
            elif made is not None:
                shape, strides = types[made]
                if list(result.shape) == shape and (not layouts or list(result.stride()) == strides):
                    continue
            check_types(graph, node.encoded, values, layouts, varying)
        yield "done", ([values[v] for v in graph["returns"]], {p: values[v] for p, v in graph["updates"]})


@dataclass(frozen=True)
class _Operator:
    """What all nodes of an operator have in common.

    Attributes:
        kind: its name without namespace.
        call: calls it with arguments in the order of its schema; none of a collective.
        waits: whether it waits for a collective.
        makes_rows: whether it may make something whose size is known at run time only.
    """

    name: str
    kind: str
    call: Callable[[list[Any]], Any] | None
    waits: bool
    makes_rows: bool


def _operator(name: str) -> _Operator:
    kind = name.partition("::")[2]
    is_exchange = name == "unisono::exchange_rows"
    is_collective = name.startswith("_c10d_functional::") or is_exchange
    called = None
    if not is_collective:
        # What the executor runs where there may be no rows.
        called = by_position(operation("unisono::product_of_groups" if name == "aten::_grouped_mm" else name))
    return _Operator(name, kind, called, kind == "wait_tensor", is_exchange or kind in _OF_ROWS | _OF_ALL)


class _Node:
    """A node with its arguments, but for the tensors that it reads.

    Attributes:
        arguments: in the order of the schema.
        reads: the positions of those that are tensors, with the values that they are.
        lists: the same of lists of tensors.
        makes: the value that it makes, if that is one.
    """

    __slots__ = ("arguments", "encoded", "lists", "makes", "operator", "reads")

    def __init__(self, operator: _Operator, node: dict[str, Any]) -> None:
        self.operator, self.encoded = operator, node
        self.arguments: list[Any] = []
        self.reads: list[tuple[int, int]] = []
        self.lists: list[tuple[int, list[int | None]]] = []
        for position, arg in enumerate(node["args"]):
            found = None
            if arg != "none":
                ((kind, content),) = arg.items()
                if kind == "value":
                    self.reads.append((position, content))
                elif kind == "values":
                    self.lists.append((position, content))
                else:
                    found = constant(kind, content)
            self.arguments.append(found)
        returns = node["returns"]
        is_one = len(returns) == 1 and returns[0] != "none"
        self.makes: int | None = returns[0].get("value") if is_one else None


def made_by(node: dict[str, Any]) -> Iterator[int]:
    """The values that a node makes."""
    for returned in node["returns"]:
        if returned != "none":
            made = next(iter(returned.values()))
            yield from made if isinstance(made, list) else [made]


def _varies(node: _Node, varying: set[int]) -> bool:
    """Whether a node may make something whose size is known at run time only."""
    kind = node.operator.kind
    if kind == "exchange_rows":
        kind = node.arguments[2]
    if kind in _OF_ALL:
        return {"int": -1} in node.encoded["args"]
    reads = [value for _, value in node.reads] + [one for _, several in node.lists for one in several]
    return kind in _OF_ROWS or not varying.isdisjoint(reads)


def check_types(
    graph: dict[str, Any], node: dict[str, Any], values: dict[int, torch.Tensor], layouts: bool, varying: set[int]
) -> None:
    """What the graph says of the shape and, if asked, the layout in memory of each result is so.

    One dimension of what is ``varying`` may have another size.
    """
    name = graph["ops"][node["op"]]["name"]
    for value in made_by(node):
        said, tensor = graph["values"][value]["type"], values[value]
        others = [dim for dim, size in enumerate(tensor.shape) if size != said["shape"][dim]]
        assert tensor.dim() == len(said["shape"]), (name, tensor.shape, said)
        assert len(others) <= (value in varying), (name, tensor.shape, said)
        if others:
            # As many as there are, they lie in memory in the order that is said.
            long = [dim for dim, size in enumerate(tensor.shape) if size > 1 and tensor.numel()]
            is_order = sorted(long, key=tensor.stride) == sorted(long, key=said["strides"].__getitem__)
            assert is_order or not layouts, (name, tensor.shape, tensor.stride(), said)
            continue
        strides = zip(tensor.stride(), said["strides"], said["shape"], strict=True)
        alike = tensor.numel() == 0 or all(made == stride for made, stride, size in strides if size > 1)
        assert alike or not layouts, (name, tensor.stride(), said)
