"""What is known of a tensor without its data."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


class TensorType:
    """Type, shape, strides and device of a tensor, at the moment when it was made."""

    __slots__ = ("device", "dtype", "shape", "strides")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Takes them from a tensor."""
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self.strides = tensor.stride()
        # `device` asks through all modes that are entered.
        self.device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device

    def _key(self) -> tuple[Any, ...]:
        return self.dtype, self.shape, self.strides, self.device

    def __eq__(self, other: object) -> bool:
        """Whether all of it is the same."""
        return isinstance(other, TensorType) and self._key() == other._key()

    def __hash__(self) -> int:
        """A hash of all of it."""
        return hash(self._key())

    def stand_in(self) -> torch.Tensor:
        """A tensor of this type."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


def type_of(made: Any) -> Any:
    """The types of what an operation gives, put together as that is; what is no tensor stays as it is."""
    if isinstance(made, torch.Tensor):
        return TensorType(made)
    if isinstance(made, list | tuple):
        return [type_of(part) for part in made]
    return made
