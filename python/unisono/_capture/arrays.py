"""Arrays of NumPy's that are drawn at each step: what stands for one while a step is traced, and what takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unisono._capture.bounds import bounds_of
from unisono._capture.looked_up import span_of
from unisono._capture.number import Number
from unisono._capture.places import user_line
from unisono.errors import StepError

#: Functions of PyTorch's that make a tensor of an array.
MAKING = ("tensor", "as_tensor", "asarray", "from_numpy")


class DrawnArray:
    """Stands for an array that is drawn at each step.

    Attributes:
        tensor: the same in the graph.
        shape: its shape.
        ndim: how many dimensions it has.
        size: how many entries it has.
        dtype: NumPy's type of these.
    """

    def __init__(self, tensor: torch.Tensor, like: Any, name: str) -> None:
        """Takes the tensor in the graph, an array like it, and the name of the function that gives it."""
        self.tensor, self._name = tensor, name
        self.shape, self.ndim, self.size, self.dtype = like.shape, like.ndim, like.size, like.dtype

    def __len__(self) -> int:
        return len(self.tensor)

    def _refused(self, *_arguments: Any, **_named: Any) -> Any:
        raise StepError(
            f"the step computes with the array that `{self._name}` draws",
            code="U0119",
            place=user_line(),
            cause="the step's Python code runs once, while the step is captured, and the array is another one at each call",
            hint="make a tensor of it first (`torch.tensor(array)`), and compute with that; or draw with torch (`torch.rand`)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refused()

    __bool__ = __iter__ = __getitem__ = __setitem__ = __array__ = __float__ = __int__ = __index__ = __eq__ = _refused  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __invert__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __neg__ = __abs__ = __contains__ = _refused
    __hash__ = None  # type: ignore[assignment]


def indexed_by(index: Any, index_of: Callable[[Number], Any]) -> Any:
    """An index with tensors in the place of arrays, and of numbers and of beginnings of slices for which ``index_of`` gives one."""
    if type(index) is tuple:
        return tuple(indexed_by(one, index_of) for one in index)
    if type(index) is Number:
        return index_of(index)
    return index.tensor.clone() if type(index) is DrawnArray else bounds_of(span_of(index, index_of), index_of)


def taking(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, which takes arrays that are drawn too."""

    def make(data: Any, *more: Any, **named: Any) -> Any:
        if type(data) is not DrawnArray:
            return real(data, *more, **named)
        dtype, device = named.pop("dtype", None), named.pop("device", None)
        if more or {key for key, one in named.items() if one not in (None, False)}:
            return data._refused()
        return data.tensor.clone().to(device=device, dtype=dtype)

    return make
