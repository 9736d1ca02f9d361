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
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg

from unisono._capture.functional import result_of
from unisono._capture.guards import MOST_GUARDS, Choices, Guards
from unisono._capture.places import drawn_by_choice, read_back, too_many_choices

_COPY, _WHERE = torch.ops.aten.copy_.default, torch.ops.aten.where.self
#: A step that asks more than this in a row, beside what only ends it, is refused.
MOST_QUESTIONS = 3


@dataclass
class Questions:
    """What a step asks of values in one way through it.

    Attributes:
        answers: what the first questions are answered with; those after them so that the step goes on, or with yes.
        guards: what is known of how it goes on.
        asked: the values that decided, and where.
        given: the answers.
    """

    answers: tuple[bool, ...] = ()
    guards: Guards = field(default_factory=Guards)
    asked: list[tuple[torch.Tensor, str | None]] = field(default_factory=list)
    given: list[bool] = field(default_factory=list)

    def decide(self, value: torch.Tensor, place: str | None) -> bool:
        """Answers a question."""
        number = len(self.asked)
        if value.numel() != 1:
            raise read_back(place)
        if number >= MOST_QUESTIONS + MOST_GUARDS:
            raise too_many_choices(place)
        answer = self.answers[number] if number < len(self.answers) else self.guards.answer(self.choices(), place)
        self.asked.append((value.detach().reshape(()) != 0, place))
        self.given.append(answer)
        return answer

    def choices(self) -> Choices:
        """Where it has asked, and what was answered."""
        return tuple((place, answer) for (_, place), answer in zip(self.asked, self.given, strict=True))


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


def merged(ways: Sequence[Way]) -> tuple[torch.fx.GraphModule, list[int]]:
    """One graph of all ways, and the positions of the inputs that its last outputs are new values of.

    Its outputs are those of the first way, chosen; then for each way all that it reads, and what decided in it.
    """
    replaced = sorted({position for way in ways for position in way.replaced})
    return _Merged(ways).run(replaced), replaced


class _Merged:
    """The graph of all ways: what several of them compute is computed once."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.inputs = [self.graph.node_copy(node) for node in ways[0].graph.graph.nodes if node.op == "placeholder"]
        #: What the first way draws, in its order.
        self.draws: list[torch.fx.Node] = []
        self._constants: dict[int, torch.fx.Node] = {}
        #: By operation and operands.
        self._known: dict[Any, torch.fx.Node] = {}
        self._ways = ways

    def run(self, replaced: Sequence[int]) -> torch.fx.GraphModule:
        inputs = self.inputs
        results = [_Results(way, self, first=way is self._ways[0]) for way in self._ways]
        written = sorted({position for one in results for position in one.new})
        _require_like(results)
        chosen = self._chosen(results, 0, [*range(self._ways[0].tensors)], lambda one, number: one.outputs[number])
        values = self._chosen(results, 0, written, lambda one, number: one.new.get(number, inputs[number]))
        read = [output for one in results for output in one.outputs[one.way.tensors :]]
        for position, value in zip(written, values, strict=True):
            if position not in replaced:
                self.add(_COPY, (inputs[position], value), {}, inputs[position].meta)
        self.graph.output([*chosen, *read, *(values[written.index(position)] for position in replaced)])
        return _LazyGraphModule(self.root, self.graph)

    def constant(self, tensor: Any, meta: dict[str, Any]) -> torch.fx.Node:
        """A tensor from outside, by which ways do not differ."""
        if id(tensor) not in self._constants:
            name = f"constant_{len(self._constants)}"
            object.__setattr__(self.root, name, tensor)  # not a parameter of the module, even if it is one
            made = self._constants[id(tensor)] = self.graph.create_node("get_attr", name)
            made.meta = dict(meta)
        return self._constants[id(tensor)]

    def add(self, target: Any, args: Any, kwargs: Any, meta: dict[str, Any]) -> torch.fx.Node:
        """An operation, or the same one that is there already."""
        key = None if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) else _key(target, args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        made = self.graph.call_function(target, args, kwargs)
        made.meta = dict(meta)
        if key is not None:
            self._known[key] = made
        elif getattr(getattr(target, "_schema", None), "is_mutable", False):
            self._known.clear()
        return made

    def _chosen(
        self, results: Sequence[_Results], depth: int, numbers: Sequence[int], get: Callable[[_Results, int], Any]
    ) -> list[torch.fx.Node]:
        """What the ways that agree so far give, chosen by what they ask next."""
        if len(results) == 1:
            return [get(results[0], number) for number in numbers]
        if len({one.way.answers[depth] for one in results}) == 1:  # the other answer ends the step
            return self._chosen(results, depth + 1, numbers, get)
        yes = [one for one in results if one.way.answers[depth]]
        no = [one for one in results if not one.way.answers[depth]]
        pairs = zip(self._chosen(yes, depth + 1, numbers, get), self._chosen(no, depth + 1, numbers, get), strict=True)
        condition = results[0].decided[depth]
        return [one if one is other else self._either(condition, one, other) for one, other in pairs]

    def _either(self, condition: torch.fx.Node, one: torch.fx.Node, other: torch.fx.Node) -> torch.fx.Node:
        args = (condition, one, other)
        return self.add(_WHERE, args, {}, {"val": result_of(_WHERE, args, {})})


class _Results:
    """What one way gives, and the new values of inputs by their positions, as nodes of the merged graph."""

    def __init__(self, way: Way, into: _Merged, *, first: bool) -> None:
        self.way, self._into, self._first, self._drawn = way, into, first, 0
        self.new: dict[int, torch.fx.Node] = {}
        self._here: dict[torch.fx.Node, Any] = {}
        placeholders = [node for node in way.graph.graph.nodes if node.op == "placeholder"]
        self._positions = {node: position for position, node in enumerate(placeholders)}
        self._here.update(zip(placeholders, into.inputs, strict=True))
        for node in way.graph.graph.nodes:
            if node.op == "get_attr":
                self._here[node] = into.constant(getattr(way.graph, node.target), node.meta)
            elif node.op == "call_function":
                self._here[node] = self._call(node)
        if self._drawn != len(into.draws):
            raise drawn_by_choice(way.places[0])
        outputs = [self._here[node] for node in way.graph.graph.output_node().args[0]]  # type: ignore[union-attr, index]
        count = len(outputs) - len(way.replaced)
        self.outputs = outputs[:count]
        self.new |= dict(zip(way.replaced, outputs[count:], strict=True))
        self.decided = self.outputs[way.tensors + way.reads :]

    def _call(self, node: torch.fx.Node) -> torch.fx.Node:
        """An operation in the merged graph; what a way writes into inputs is noted, and what another has drawn is not drawn again."""
        if node.target is _COPY and node.args[0] in self._positions:
            value = self._here[node.args[1]]  # type: ignore[index]
            self.new[self._positions[node.args[0]]] = value  # type: ignore[index]
            return value
        args, kwargs = map_arg((node.args, node.kwargs), self._here.__getitem__)
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            return self._into.add(node.target, args, kwargs, node.meta)
        draws = self._into.draws
        if self._first:
            draws.append(self._into.add(node.target, args, kwargs, node.meta))
        elif self._drawn >= len(draws) or draws[self._drawn].target is not node.target:
            raise drawn_by_choice(self.way.places[0])
        self._drawn += 1
        return draws[self._drawn - 1]


def _require_like(results: Sequence[_Results]) -> None:
    """Refuses ways that return tensors of different types or shapes, which no choice can give."""
    for one in results[1:]:
        for ours, first in zip(one.outputs[: one.way.tensors], results[0].outputs[: one.way.tensors], strict=True):
            types = [(node.meta["val"].dtype, tuple(node.meta["val"].shape)) for node in (ours, first)]
            if types[0] != types[1]:
                raise read_back(results[0].way.places[0])


def _key(target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives follows from this; ``None`` if it writes into something, or from more."""
    if getattr(getattr(target, "_schema", None), "is_mutable", False):
        return None

    def described(one: Any) -> Any:
        return tuple(map(described, one)) if isinstance(one, list | tuple) else (type(one), one)

    key = target, described(args), tuple((name, described(one)) for name, one in sorted(kwargs.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
