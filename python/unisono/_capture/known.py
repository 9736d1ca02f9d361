"""Values that are known while a step is traced: those that follow from constants of its code, and from tensors that it only reads.

A module may ask something of a tensor that it has made itself, as ``nn.Transformer`` does of a mask (is it the causal one?). Nothing but
the code decides the answer, so it is computed there and then. So it is where tensors from outside decide too: those are looked at before
each step from then on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.record import Recorder

_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


def value_of(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What ``func`` gives for tensors that are being traced, or ``None`` where that depends on an input of the step."""
    recorder = Recorder.current
    if recorder is None:
        return None

    def node_of(leaf: Any) -> Any:
        return recorder.node_of(leaf) or leaf if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = pytree.tree_map(node_of, (args, kwargs or {}))
    leaves = pytree.tree_leaves((args, kwargs))
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    sources = _sources(wanted, outside=True)
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(isinstance(leaf, FakeTensor) for leaf in given) or sources is None or _changed_elsewhere(sources):
        return None
    read = (node for node in sources if node.op == "get_attr" and not is_lifted(node))
    given += [getattr(recorder.root, str(node.target)) for node in read]
    if any(tensor.is_meta for tensor in given):
        return None
    recorder.note_asked(given)
    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        values: dict[torch.fx.Node, Any] = {}
        for node in (node for node in recorder.graph.nodes if node in sources):
            values[node] = _computed(node, values, recorder.root)
        args, kwargs = map_arg((args, kwargs), values.__getitem__)
        return func(*args, **kwargs)


def follows_from_constants(tensor: torch.Tensor, *, outside: bool = False, buffers: bool = False) -> bool:
    """Whether a tensor that is being traced is the same at every step: it follows from constants of the step's code alone.

    With ``outside``, from tensors too that the step only reads; with ``buffers``, from buffers of the model that it does not write into,
    which are looked at before each step from then on.
    """
    recorder = Recorder.current
    node = recorder.node_of(tensor) if recorder is not None else None
    if recorder is None or node is None:
        return False
    sources = _sources([node], outside=outside, inputs=recorder.buffers if buffers else ())
    if sources is None or _changed_elsewhere(sources):
        return False
    read = [node for node in sources if node in recorder.buffers]
    if any(any(writers(node)) for node in read):
        return False
    recorder.note_asked(recorder.buffers[node] for node in read)
    return True


def certain(asked: torch.Tensor) -> bool | None:
    """What is true of a uniform random number whatever it is, as of one that is less than 0; ``None`` where it depends on it.

    Models that drop layers ask so, with a probability of 0 too.
    """
    node = Recorder.current.node_of(asked) if Recorder.current is not None else None
    if node is None or node.target not in _OF_UNIT:
        return None
    number, bound = node.args
    if not isinstance(number, torch.fx.Node) or number.target not in _UNIFORM or not isinstance(bound, int | float):
        return None
    never, always = _OF_UNIT[node.target]
    return False if never(bound) else True if always(bound) else None


#: Operations that draw numbers from 0 on and below 1.
_UNIFORM = (torch.ops.aten.rand.default, torch.ops.aten.rand_like.default)
#: Comparisons with a bound: for which bounds they hold for none of these numbers, and for which for all.
_OF_UNIT: dict[Any, tuple[Callable[[float], bool], Callable[[float], bool]]] = {
    torch.ops.aten.lt.Scalar: (lambda bound: bound <= 0, lambda bound: bound >= 1),
    torch.ops.aten.le.Scalar: (lambda bound: bound < 0, lambda bound: bound >= 1),
    torch.ops.aten.gt.Scalar: (lambda bound: bound >= 1, lambda bound: bound < 0),
    torch.ops.aten.ge.Scalar: (lambda bound: bound >= 1, lambda bound: bound <= 0),
}


def _computed(node: torch.fx.Node, values: dict[torch.fx.Node, Any], root: torch.nn.Module) -> Any:
    if node.op == "get_attr":
        return getattr(root, str(node.target)).clone()
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _sources(
    wanted: list[torch.fx.Node], *, outside: bool = False, inputs: Container[torch.fx.Node] = ()
) -> set[torch.fx.Node] | None:
    """All nodes that these depend on, themselves included; ``None`` where one is random, another input than these, or a tensor from outside
    without ``outside``.
    """
    found: set[torch.fx.Node] = set()
    todo = list(wanted)
    while todo:
        node = todo.pop()
        if node in found:
            continue
        if not (_is_constant(node) or node in inputs or (outside and node.op == "get_attr")):
            return None
        found.add(node)
        todo.extend(node.all_input_nodes)
    return found


def _is_constant(node: torch.fx.Node) -> bool:
    if node.op == "get_attr":
        return is_lifted(node)
    if node.op != "call_function":
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


def is_lifted(node: torch.fx.Node) -> bool:
    """Whether the code writes a tensor down, such as `torch.tensor([1, 2])`; one from outside is not lifted into the trace."""
    return bool(node.users) and all(user.target in _LIFTS for user in node.users)


def _changed_elsewhere(sources: set[torch.fx.Node]) -> bool:
    """Whether an operation that is not among them may change what one of them made, itself or through a view."""
    return any(writer not in sources for node in sources for writer in writers(node))


def writers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The operations that write into what a node gives, itself or through views."""
    todo, seen = [node], {node}
    while todo:
        one = todo.pop()
        for user in one.users:
            if user in seen:
                continue
            seen.add(user)
            if user.target is operator.getitem:
                todo.append(user)
            elif isinstance(user.target, torch._ops.OpOverload):
                if one in _written(user):
                    yield user
                elif any(returned.alias_info is not None for returned in user.target._schema.returns):
                    todo.append(user)


def _written(node: torch.fx.Node) -> list[Any]:
    """The arguments that an operation writes into, also those in lists."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given = [*zip(node.target._schema.arguments, node.args, strict=False)]
    given += [(one, node.kwargs[one.name]) for one in node.target._schema.arguments if one.name in node.kwargs]
    written = [one for argument, one in given if argument.alias_info is not None and argument.alias_info.is_write]
    return [part for one in written for part in (one if isinstance(one, list | tuple) else [one])]
