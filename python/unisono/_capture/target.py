"""The device that a step is captured for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from unisono._capture.results import new

_PROCESSOR = torch.device("cpu")
#: How often memory is referred to that one tensor has: by that, and by the object that Python has for the memory.
_USES_OF_ONE = 2


@dataclass(frozen=True)
class Target:
    """The kind of device that a step is captured for.

    Attributes:
        kind: what PyTorch calls it.
        elsewhere: whether the step's own tensors are on another device, or on none (``meta``). Then tensors of the processor, without
            data, stand for the target's, because PyTorch's autograd asks the drivers of all others.
        capability: the compute capability of a GPU of NVIDIA's, where it is known: PyTorch chooses kernels by it.
    """

    kind: str = "cpu"
    elsewhere: bool = False
    capability: tuple[int, int] | None = None

    def stand_in(self, mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor without data that a tensor is traced as."""
        if not self.elsewhere or tensor.device == _PROCESSOR:
            return _like(mode, tensor) if _is_alone(tensor) else mode.from_tensor(tensor, static_shapes=True)
        made = new(mode, tensor.shape, tensor.stride(), tensor.dtype, _PROCESSOR)
        return made.requires_grad_(tensor.requires_grad)

    def traced_on(self, device: torch.device) -> torch.device:
        """The device on which what is on ``device`` is traced."""
        return _PROCESSOR if self.elsewhere and device.type in ("meta", self.kind) else device

    def shown(self, device: torch.device) -> torch.device:
        """The device that stands in the graph for one that was traced."""
        return torch.device(self.kind) if self.elsewhere else device


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all that its type says, in memory of its own, of which it is the whole."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_complex():
        return False
    if tensor.is_meta or not tensor.is_leaf or tensor.grad is not None or tensor.is_neg() or tensor.is_quantized:
        return False
    storage = tensor.untyped_storage()
    is_whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    return is_whole and torch._C._storage_Use_Count(storage._cdata) == _USES_OF_ONE  # type: ignore[attr-defined]


def _like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = new(mode, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True  # type: ignore[attr-defined]
    return made.requires_grad_(tensor.requires_grad)
