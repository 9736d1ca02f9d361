"""Choices that a step makes by values (``if torch.isfinite(loss): optimizer.step()``): each way is traced, and both become one graph.

The merged graph computes all ways and chooses with ``torch.where`` what is returned and what becomes of state. Random numbers are drawn
once: ways that draw differently are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
import torch.fx.traceback as fx_traceback
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx.experimental.proxy_tensor import make_fx

from unisono._capture.places import read_back

_COPY = torch.ops.aten.copy_.default
#: A step that asks more than this in a row is refused.
MOST_QUESTIONS = 3


@dataclass
class Questions:
    """What a step asks of values in one way through it.

    Attributes:
        answers: what the first questions are answered with; those after them with yes.
        asked: the values that decided, and where.
    """

    answers: tuple[bool, ...] = ()
    asked: list[tuple[torch.Tensor, str | None]] = field(default_factory=list)

    def decide(self, value: torch.Tensor, place: str | None) -> bool:
        """Answers a question."""
        if len(self.asked) >= MOST_QUESTIONS or value.numel() != 1:
            raise read_back(place)
        self.asked.append((value.detach().reshape(()) != 0, place))
        number = len(self.asked) - 1
        return self.answers[number] if number < len(self.answers) else True


@dataclass
class Way:
    """One way through a step.

    Attributes:
        graph: its functional graph: what it returns, what it reads, then what decided, then new values of inputs.
        tensors: how many outputs are what it returns and leaves.
        reads: how many outputs behind them are read.
        places: where it asked, for each question.
        replaced: the positions of the inputs that the last outputs are new values of.
        answers: the answers that led here.
    """

    graph: torch.fx.GraphModule
    tensors: int
    reads: int
    places: list[str | None]
    replaced: list[int]
    answers: tuple[bool, ...]


def merged(ways: Sequence[Way], fakes: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, list[int]]:
    """One graph of all ways, and the positions of the inputs that its last outputs are new values of.

    Its outputs are those of the first way, chosen; then for each way all that it reads, and what decided in it.
    """
    replaced = sorted({position for way in ways for position in way.replaced})

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        draws: list[Any] = []
        results = [_Results(way, inputs, draws, first=way is ways[0]) for way in ways]
        written = sorted({position for one in results for position in one.new})
        chosen = _chosen(results, 0, [*range(ways[0].tensors)], lambda one, number: one.outputs[number])
        values = _chosen(results, 0, written, lambda one, number: one.new.get(number, inputs[number]))
        read = [output for one in results for output in one.outputs[one.way.tensors :]]
        for position, value in zip(written, values, strict=True):
            if position not in replaced:
                inputs[position].copy_(value)
        return [*chosen, *read, *(values[written.index(position)] for position in replaced)]

    with torch.no_grad(), torch._C._DisableAutocast(), fx_traceback.preserve_node_meta():
        plain = [fake.detach() for fake in fakes]
        graph = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*plain)
    return _simplified(graph), replaced


class _Results:
    """What one way gives, and the new values of inputs by their positions."""

    def __init__(self, way: Way, inputs: Sequence[torch.Tensor], draws: list[Any], *, first: bool) -> None:
        self.way = way
        runner = _Runner(way, draws, first=first)
        outputs = runner.run(*inputs)
        count = len(outputs) - len(way.replaced)
        self.outputs = outputs[:count]
        self.new = runner.new | dict(zip(way.replaced, outputs[count:], strict=True))
        self.decided = self.outputs[way.tensors + way.reads :]


class _Runner(torch.fx.Interpreter):
    """Runs a way's graph: what it writes into inputs is noted, and what another way has drawn is not drawn again."""

    def __init__(self, way: Way, draws: list[Any], *, first: bool) -> None:
        super().__init__(way.graph)
        self._way, self._draws, self._first, self._drawn = way, draws, first, 0
        inputs = [node for node in way.graph.graph.nodes if node.op == "placeholder"]
        self._inputs = {node: position for position, node in enumerate(inputs)}
        self.new: dict[int, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "output" and self._drawn != len(self._draws):
            raise read_back(self._way.places[0])
        if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload):
            return super().run_node(n)
        if n.target is _COPY and n.args[0] in self._inputs:
            value = self.fetch_args_kwargs_from_env(n)[0][1]
            self.new[self._inputs[n.args[0]]] = value  # type: ignore[index]
            return value
        if torch.Tag.nondeterministic_seeded not in n.target.tags:
            return super().run_node(n)
        if self._first:
            self._draws.append((n.target, super().run_node(n)))
        elif self._drawn >= len(self._draws) or self._draws[self._drawn][0] is not n.target:
            raise read_back(self._way.places[0])
        self._drawn += 1
        return self._draws[self._drawn - 1][1]


def _chosen(
    results: Sequence[_Results], depth: int, numbers: Sequence[int], get: Callable[[_Results, int], torch.Tensor]
) -> list[torch.Tensor]:
    """What the ways that agree so far give, chosen by what they ask next."""
    if len(results) == 1:
        return [get(results[0], number) for number in numbers]
    yes = [one for one in results if one.way.answers[depth]]
    no = [one for one in results if not one.way.answers[depth]]
    pairs = zip(_chosen(yes, depth + 1, numbers, get), _chosen(no, depth + 1, numbers, get), strict=True)
    condition = results[0].decided[depth]
    return [one if one is other else torch.where(condition, one, other) for one, other in pairs]


def _simplified(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with what is computed twice computed once, and without choices between the same."""
    while True:
        graph = torch.fx.GraphModule(graph, fx_graph_cse(graph.graph))
        chosen = [n for n in graph.graph.nodes if n.target is torch.ops.aten.where.self and n.args[1] is n.args[2]]
        if not chosen:
            return graph
        for node in chosen:
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
        graph.recompile()
