"""What a rule claims about one call, as questions that can be asked of the operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unisono import _native
from unisono._capture.calls import tensors_of
from unisono._capture.wire import name_of, parameters, plain, tensor_type
from unisono._message import pack, unpack
from unisono._placements import shard, unshard
from unisono._rules import Rule


@dataclass(frozen=True)
class Question:
    """A way to shard one call: is what its shards give, put together, what the whole gives?

    Attributes:
        ranks: over how many ranks.
        operands: the placement of each tensor among the arguments.
        results: the placement of each tensor that is returned.
    """

    ranks: int
    operands: list[str]
    results: list[str]

    def operands_of(self, args: Sequence[Any], rank: int) -> list[Any]:
        """The arguments of one rank."""
        placements = iter(self.operands)
        return [
            shard(one, next(placements), rank, self.ranks) if isinstance(one, torch.Tensor) else one for one in args
        ]

    def combined(self, number: int, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """What must be the whole of a result, of which each rank has a part."""
        placement = self.results[number]
        if placement == "replicate":
            return parts
        return [sum(parts[1:], parts[0]) if placement == "partial(sum)" else unshard(parts, placement)]

    def sharded_sizes(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """The sizes of the dimensions that are sharded."""
        pairs = zip(self._dims(), tensors, strict=True)
        return [tensor.shape[dim] for dim, tensor in pairs if dim is not None]

    def dimension(self, rule: Rule, tensors: Sequence[torch.Tensor]) -> str:
        """The name of the dimension that is sharded."""
        pairs = zip(self._dims(), tensors, strict=True)
        number, dim, rank = next((n, dim, one.dim()) for n, (dim, one) in enumerate(pairs) if dim is not None)
        return (rule.names(number, rank) or [])[dim]

    def _dims(self) -> list[int | None]:
        """The dimension of each operand and result that is sharded."""
        both = (*self.operands, *self.results)
        return [int(one[len("shard(") : -1].split(",")[0]) if one.startswith("shard(") else None for one in both]

    def in_blocks(self) -> Question:
        """The same with shards of two blocks each."""
        sides = (self.operands, self.results)
        doubled = [[one.replace(")", ", 2)") if one.startswith("shard(") else one for one in side] for side in sides]
        return Question(self.ranks, *doubled)


def questions(
    target: torch._ops.OpOverload, rule: str, args: Sequence[Any], made: Sequence[torch.Tensor], ranks: int
) -> Iterator[Question]:
    """All that a rule, as crate ``aten`` reads it, claims about a call with such arguments and results."""
    graph = _native.Graph(pack({"version": 2, "graph": _graph(target, rule, args, made)}))
    tensors = [*tensors_of(args), *made]
    for one in unpack(graph.exam(ranks)[1]):
        question = Question(ranks, one["operands"], one["results"])
        sizes = question.sharded_sizes(tensors)
        if sizes:
            yield question
        if sizes and all(size % (2 * ranks) == 0 for size in sizes):
            yield question.in_blocks()


def _graph(
    target: torch._ops.OpOverload, rule: str, args: Sequence[Any], made: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """A graph of one call, with the field names of crate ``ir``."""
    operands = tensors_of(args)
    count = iter(range(len(operands)))
    encoded = [
        {"value": next(count)} if isinstance(value, torch.Tensor) else plain(value, kind)
        for value, (*_, kind) in zip(args, parameters(target), strict=True)
    ]
    values = [{"type": tensor_type(one), "def": {"input": at}} for at, one in enumerate(operands)]
    values += [{"type": tensor_type(one), "def": {"result": [0, at]}} for at, one in enumerate(made)]
    results = list(range(len(operands), len(values)))
    schema = str(target._schema)
    node = {"op": 0, "args": encoded, "returns": [{"value": at} for at in results], "part": 0}
    return {
        "ops": [{"name": name_of(target), "schema": schema[schema.index("(") :], "rule": rule}],
        "inputs": [{"class": "constant", "name": f"constants.{at}", "value": at} for at in range(len(operands))],
        "values": values,
        "nodes": [{**node, "place": None, "module": None}],
        "order": [0],
        "returns": results,
        "updates": [],
        "places": [],
        "modules": [],
        "parts": [{"kind": "forward"}],
    }
