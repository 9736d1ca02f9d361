"""Programs from small functions, traced by ``make_fx``; shared by the executor's tests and benchmarks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, Slot


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor] = ()) -> Any:
    """The graph module of ``function(*state, *inputs)``."""
    return make_fx(function, tracing_mode="fake")(*state, *inputs)


def from_fx(gm: torch.fx.GraphModule, state: int = 0) -> tuple[ProgramBuilder, list[torch.Tensor]]:
    """A program of a graph whose first ``state`` placeholders are state, and the constants that come after them."""
    builder = ProgramBuilder()
    slots: dict[torch.fx.Node, Any] = {}
    constants: list[torch.Tensor] = []
    for index, node in enumerate(node for node in gm.graph.nodes if node.op == "placeholder"):
        slots[node] = builder.slot(node.meta["val"])
        (builder.state if index < state else builder.inputs).append(slots[node])
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = getattr(gm, node.target)
            slots[node] = builder.slot(value)
            builder.state.append(slots[node])
            constants.append(value)
        elif node.op == "call_function" and node.target is operator.getitem:
            slots[node] = slots[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            slots[node] = _call(builder, slots, node)
        elif node.op == "output":
            returns = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
            builder.returns.extend(slots[one] for one in returns if one is not None)
    return builder, constants


def _call(builder: ProgramBuilder, slots: dict[torch.fx.Node, Any], node: torch.fx.Node) -> Any:
    def value(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Slot(slots[arg])
        return [value(one) for one in arg] if isinstance(arg, (list, tuple)) else arg

    returns = node.target._schema.returns
    found = node.meta.get("val")
    results = [found] if len(returns) == 1 else list(found or ())
    outputs = [_output(builder, str(one.type), result) for one, result in zip(returns, results, strict=True)]
    place = ("step.py", len(slots))
    builder.call(
        node.target, [value(a) for a in node.args], {k: value(v) for k, v in node.kwargs.items()}, outputs, place
    )
    return outputs[0] if len(returns) == 1 else outputs


def _output(builder: ProgramBuilder, ty: str, value: Any) -> Any:
    if ty == "List[Tensor]":
        return [builder.slot(one) for one in value]
    return builder.slot(value) if isinstance(value, torch.Tensor) else builder.slot() if ty == "Tensor" else None


def executor(function: Callable[..., Any], inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor] = ()) -> Any:
    """A traced function as an executor with its state bound, and its program's data."""
    builder, constants = from_fx(trace(function, inputs, state), len(state))
    spec = builder.spec()
    made = Executor(lower(spec), objects=builder.objects)
    made.bind([*state, *constants])
    return made, {**spec, "objects": builder.objects}, constants
