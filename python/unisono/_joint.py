"""What is rewritten in the graph of forward and backward together, before AOTAutograd takes it apart.

A cross entropy keeps two numbers for each row instead of the logarithms of all probabilities, as a step that is captured whole does:
backward makes them again from the logits, in the 16 bits that these may have.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_arg

from unisono import _devices

_aten = torch.ops.aten
#: Shorter rows are PyTorch's, as long as nothing else is fused with them.
_FEWEST = 256
_MEAN, _SUM = 1, 2
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)


class _Loss(NamedTuple):
    """The operations of a cross entropy of logits in rows, forward and backward."""

    logs: Node
    forward: Node
    slope: Node
    backward: Node


def rewrite(module: torch.fx.GraphModule) -> None:
    """Rewrites a joint graph in place."""
    found = [loss for node in module.graph.nodes if (loss := _loss_of(node)) is not None]
    for loss in found:
        _rewrite(module.graph, loss)
    if found:
        module.graph.eliminate_dead_code()
        module.recompile()


def _loss_of(logs: Node) -> _Loss | None:
    """The cross entropy that takes these logarithms, if nothing else does."""
    if logs.target is not _aten._log_softmax.default or not _are_rows(logs.meta["val"]):
        return None
    x: Any
    x, dim, _ = logs.args
    users = list(_users(logs))
    by_target = {user.target: user for user in users}
    forward = by_target.get(_aten.nll_loss_forward.default)
    slope = by_target.get(_aten.nll_loss_backward.default)
    backward = by_target.get(_aten._log_softmax_backward_data.default)
    if forward is None or slope is None or backward is None or len(users) != 3:
        return None
    target: Any
    _, target, weight, reduction, ignored = forward.args
    alike = slope.args[2:6] == (target, weight, reduction, ignored) and backward.args[0] is slope
    is_known = dim in (1, -1) and weight is None and reduction in (_MEAN, _SUM) and isinstance(target, Node)
    if not alike or not is_known or _value(x).dtype != torch.float32 or _value(target).dim() != 1:
        return None
    return _Loss(logs, forward, slope, backward)


def _are_rows(logs: torch.Tensor) -> bool:
    words = logs.shape[-1] if logs.dim() == 2 else 0
    return logs.device == _devices.HOST and isinstance(words, int) and words >= _FEWEST


def _users(node: Node) -> Iterator[Node]:
    """What reads a value, through other names of it."""
    for user in node.users:
        if user.target is _aten.detach.default:
            yield from _users(user)
        else:
            yield user


def _value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _rewrite(graph: torch.fx.Graph, loss: _Loss) -> None:
    logs, forward, slope, backward = loss
    x: Any = logs.args[0]
    mode = x.meta["val"].fake_mode
    make = _Maker(graph, forward, mode)
    most = make(_aten.amax.default, x, [1], True)
    powers = make(_aten.exp.default, make(_aten.sub.Tensor, x, most))
    rest = make(_aten.log.default, make(_aten.sum.dim_IntList, powers, [1], True))
    made, count = _losses(make, forward, most, rest)
    for user in list(forward.users):
        user.replace_all_uses_with(count if user.args[1] else made)
    make = _Maker(graph, slope, mode)
    again = make(_aten.sub.Tensor, make(_aten.sub.Tensor, x, most), rest)
    slope.update_arg(1, again)
    backward.update_arg(1, again)


def _losses(make: _Maker, forward: Node, most: Node, rest: Node) -> tuple[Node, Node]:
    """The loss, and how many rows it has."""
    logs: Any
    logs, target, _, reduction, ignored = forward.args
    # PyTorch refuses targets that are none.
    picked = make(_aten.nll_loss_forward.default, _before(make, logs.args[0]), target, None, 0, ignored)
    picked = make(operator.getitem, picked, 0)
    if _value(picked).dtype != torch.float32:
        picked = make(_aten._to_copy.default, picked, dtype=torch.float32)
    above = make(_aten.add.Tensor, make(_aten.squeeze.dim, most, 1), picked)
    losses = make(_aten.add.Tensor, above, make(_aten.squeeze.dim, rest, 1))
    losses = make(_aten.masked_fill.Scalar, losses, make(_aten.eq.Scalar, target, ignored), 0.0)
    count = make(_aten.sum.default, make(_aten.ne.Scalar, target, ignored), dtype=torch.float32)
    total = make(_aten.sum.default, losses)
    return (make(_aten.div.Tensor, total, count) if reduction == _MEAN else total), count


def _before(make: _Maker, x: Node) -> Node:
    """The same rows before they became ``float32``, where no more than views is between."""
    at: Any = x
    views: list[Node] = []
    while at.target in _VIEWS:
        views.append(at)
        at = at.args[0]
    if at.target is not _aten._to_copy.default or _value(at.args[0]).dtype not in (torch.bfloat16, torch.float16):
        return x
    source: Any = at.args[0]
    if not _value(source).is_contiguous():
        return x
    for view in reversed(views):
        source = make(_aten.view.default, source, view.args[1])
    return source


class _Maker:
    """Adds operations in front of one, as if they stood there in the user's code."""

    def __init__(self, graph: torch.fx.Graph, behind: Node, mode: FakeTensorMode) -> None:
        self._graph, self._behind, self._mode = graph, behind, mode

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self._graph.inserting_before(self._behind):
            node = self._graph.call_function(target, args, kwargs)
        kept = ("stack_trace", "seq_nr", "partitioner_tag", "nn_module_stack", "source_fn_stack")
        node.meta = {name: self._behind.meta[name] for name in kept if name in self._behind.meta}
        values: Any = map_arg((args, kwargs), _value)
        with self._mode:
            node.meta["val"] = target(*values[0], **values[1])
        return node
