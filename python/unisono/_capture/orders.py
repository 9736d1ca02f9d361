"""The order in which images lie in memory, where random numbers are drawn in that order.

Kernels of convolutions and norms get row-major operands in a captured step, and give row-major results. In eager PyTorch the results
have their channels last where an operand has, and what is filled with random numbers like one of them (dropout, ``randn_like``) is
filled in that order. A step that does so is traced again, with results in the order of eager PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.known import writers
from unisono._capture.record import Recorder
from unisono._capture.types import TensorType, type_of

#: Operations whose kernels put channels last where an operand has them so.
_KEEP_CHANNELS_LAST = ("convolution", "native_batch_norm", "native_group_norm")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Reordered(Exception):  # noqa: N818
    """Random numbers are drawn in the order of memory of something that lies in memory otherwise than in eager PyTorch."""


class Orders:
    """What lies in memory otherwise than in eager PyTorch.

    Attributes:
        kept: whether results are put into the order of eager PyTorch.
    """

    def __init__(self) -> None:
        """Starts without anything."""
        self.kept = False
        self._moved: set[torch.fx.Node] = set()
        self._matters = False
        #: Whether oneDNN computes convolutions, which decides of the order of their results, when the step runs.
        self._has_onednn = torch._C._get_mkldnn_enabled()

    def result(self, func: Any, name: str, args: Any, made: Any) -> Any:
        """What an operation gives of operands that were made row-major; ``args`` are those of eager PyTorch."""
        first = made[0] if isinstance(made, list | tuple) else made
        if (
            name not in _KEEP_CHANNELS_LAST
            or first.dim() not in _CHANNELS_LAST
            or not self._has_channels_last(func, args)
        ):
            return made
        recorder = Recorder.current
        node = recorder.node_of(first) if recorder is not None else None
        if self.kept:
            first = first.clone(memory_format=_CHANNELS_LAST[first.dim()])
        elif node is not None:
            self._moved.add(node)
        return (first, *made[1:]) if isinstance(made, list | tuple) else first

    def _has_channels_last(self, func: Any, args: Any) -> bool:
        """Whether the first result of an operation has its channels last in eager PyTorch, and is not row-major too."""
        types = pytree.tree_map_only(torch.Tensor, type_of, args)
        before, mode = torch._C._get_mkldnn_enabled(), FakeTensorMode()
        mode.cache_enabled = False
        torch._C._set_mkldnn_enabled(self._has_onednn)
        try:
            with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast(), mode:
                made = func(*pytree.tree_map_only(TensorType, TensorType.stand_in, types))
        finally:
            torch._C._set_mkldnn_enabled(before)
        first = made[0] if isinstance(made, list | tuple) else made
        return first.is_contiguous(memory_format=_CHANNELS_LAST[first.dim()]) and not first.is_contiguous()

    def drawn(self, args: Any) -> None:
        """Notes that random numbers are drawn like some tensors: those of two dimensions lie in memory as in eager PyTorch."""
        recorder = Recorder.current
        if not self._moved or self._matters or recorder is None:
            return
        tensors = (one for one in pytree.tree_iter(args) if isinstance(one, torch.Tensor) and one.dim() > 2)
        todo, met = [node for one in tensors if (node := recorder.node_of(one)) is not None], set[torch.fx.Node]()
        while todo and not self._matters:
            node = todo.pop()
            if node not in met:
                met.add(node)
                self._matters = node in self._moved
                todo += [*node.all_input_nodes, *writers(node)]

    def require(self) -> None:
        """Raises :class:`Reordered` where the step has to be traced again, with results in the order of eager PyTorch."""
        self._moved.clear()
        if self._matters and not self.kept:
            self.kept = True
            raise Reordered
