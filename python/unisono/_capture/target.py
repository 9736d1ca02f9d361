"""The device that a step is captured for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from unisono._capture.results import new

_PROCESSOR = torch.device("cpu")


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
            return mode.from_tensor(tensor, static_shapes=True)
        made = new(mode, tensor.shape, tensor.stride(), tensor.dtype, _PROCESSOR)
        return made.requires_grad_(tensor.requires_grad)

    def traced_on(self, device: torch.device) -> torch.device:
        """The device on which what is on ``device`` is traced."""
        return _PROCESSOR if self.elsewhere and device.type in ("meta", self.kind) else device

    def shown(self, device: torch.device) -> torch.device:
        """The device that stands in the graph for one that was traced."""
        return torch.device(self.kind) if self.elsewhere else device
