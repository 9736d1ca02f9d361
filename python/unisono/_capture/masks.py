"""Masks of attention that say nothing but "causal", or nothing at all.

A model that is compiled writes down the mask that it leaves out otherwise, because it may not ask what the mask holds. Where that follows
from the step's code alone it is known, and attention takes what says the same: a kernel skips what it need not look at, and no rank holds a
mask of all queries and keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from unisono._capture.known import value_of
from unisono._capture.record import Recorder

#: The most elements of a mask that are looked at: some times as many bytes are made for it, for a moment.
_MOST = 1 << 28
_CAUSAL, _NOTHING, _OTHER = "causal", "nothing", "other"
#: Views that may give the very tensor that they are of.
_VIEWS = {torch.ops.aten.slice.Tensor, torch.ops.aten.expand.default, torch.ops.aten.alias.default}


class Masks(TorchFunctionMode):
    """Has attention without a mask captured where the mask says nothing else."""

    def __init__(self) -> None:
        """Knows of no mask yet."""
        super().__init__()
        self._known: dict[torch.fx.Node, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function, attention without a mask that it need not have."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            args, kwargs = self._without(*args, **kwargs)
        return func(*args, **kwargs)

    def _without(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """The arguments of attention, positional and named."""
        given = (query, key, value, attn_mask, *args), kwargs
        is_causal = args[1] if len(args) > 1 else kwargs.get("is_causal", False)
        if not isinstance(attn_mask, torch.Tensor) or is_causal or attn_mask.numel() > _MOST:
            return given
        says = self._says(attn_mask)
        if says == _OTHER:
            return given
        dropout = args[0] if args else kwargs.get("dropout_p", 0.0)
        others = {name: one for name, one in kwargs.items() if name not in ("dropout_p", "is_causal")}
        return (query, key, value, None, dropout, says == _CAUSAL), others

    def _says(self, mask: torch.Tensor) -> str:
        node = Recorder.current.node_of(mask) if Recorder.current is not None else None
        if node is None:
            return _OTHER
        node = _looked_at(node)
        if node not in self._known:
            try:
                self._known[node] = value_of(_said, (mask,), {}) or _OTHER
            except RuntimeError:  # no room to look at it
                self._known[node] = _OTHER
        return self._known[node]


def _looked_at(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor that a view of all of it looks at."""
    operands = node.all_input_nodes
    if node.target in _VIEWS and len(operands) == 1 and _type(operands[0]) == _type(node):
        return _looked_at(operands[0])
    return node


def _type(node: torch.fx.Node) -> tuple[Any, ...]:
    made = node.meta["val"]
    return tuple(made.shape), made.dtype


def _said(mask: torch.Tensor) -> str:
    """What a mask ``[.., queries, keys]`` says: what is true is looked at, or what has nothing added."""
    if mask.dtype == torch.bool:
        seen, hidden = mask, ~mask
    else:
        # No score comes near to the least number, with which a mask says the same as with minus infinity.
        seen, hidden = mask == 0, mask <= torch.finfo(mask.dtype).min
    if bool(seen.all()):
        return _NOTHING
    queries, keys = mask.shape[-2:]
    if queries != keys:
        return _OTHER
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return _CAUSAL if bool((seen == causal).all() and (hidden == ~causal).all()) else _OTHER
