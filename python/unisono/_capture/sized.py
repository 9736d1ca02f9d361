"""Operations that give as much as values say (``nonzero``, ``repeat_interleave``): those of a call's tensors are taken for granted.

The operation itself stays in the graph, with a result of the size that it has for the call which is captured.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from unisono._capture.expressions import Read, evaluate
from unisono._capture.premises import Premises
from unisono._capture.record import Recorder


class Sized:
    """Takes sizes, and numbers, for granted."""

    def __init__(self, premises: Premises) -> None:
        """Takes what is told of them."""
        self._premises = premises

    def result(self, func: Any, args: Any, kwargs: Any, meta: dict[str, Any]) -> list[Any] | None:
        """In a list, what an operation gives that depends on values; ``None`` where these follow from more than a call's tensors."""
        recorder, given = Recorder.current, self._premises.given
        if recorder is None:
            return None
        node = recorder.note(func, args, kwargs, meta)
        constant = given.constant(node) if torch.Tag.data_dependent_output not in func.tags else None
        if constant is not None:
            return [recorder.stand_for(constant, node)]
        row = given.row_of(node)
        if row is None or torch.Tag.data_dependent_output in func.tags:
            recorder.graph.erase_node(node)
            return None if row is None else [self._taken(["given", "number", row])]
        made = recorder.stand_for(given.values.made(row), node)
        for one in pytree.tree_leaves(made):
            within = given.row_of(recorder.node_of(one)) if isinstance(one, torch.Tensor) else None
            if within is not None:
                self._taken(["given", "shape", within])
        return [made]

    def _taken(self, expression: list[Any]) -> Any:
        value = evaluate(expression, Read(given=self._premises.given.values.read))
        self._premises.take(expression, value)
        return value

    def selects(self, index: Any) -> bool:
        """Whether an index has masks, and how much each of them selects is known."""
        parts = index if isinstance(index, tuple) else (index,)
        masks = [one for one in parts if isinstance(one, torch.Tensor) and one.dtype == torch.bool and one.dim() > 0]
        return bool(masks) and all(map(self._is_known, masks))

    def _is_known(self, mask: torch.Tensor) -> bool:
        recorder, given = Recorder.current, self._premises.given
        node = recorder.node_of(mask) if recorder is not None else None
        return given.row_of(node) is not None or given.constant(node) is not None


def positions(index: Any) -> tuple[Any, ...]:
    """The same index with the positions that its masks select in their place."""
    found: list[Any] = []
    for one in index if isinstance(index, tuple) else (index,):
        is_mask = isinstance(one, torch.Tensor) and one.dtype == torch.bool and one.dim() > 0
        found.extend(one.nonzero(as_tuple=True) if is_mask else [one])
    return tuple(found)
