"""Parts of tensors between bounds that the step computes (``x[:, :, a:b, c:d] = x[order, :, a:b, c:d]``), as cutmix and cutout write them.

How large such a part is nobody knows beforehand. It is written as a mask over the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from unisono._capture.looked_up import parts_of
from unisono._capture.number import Number
from unisono._capture.places import user_line
from unisono.errors import StepError


@dataclass(frozen=True)
class Bounds:
    """A slice along a dimension.

    Attributes:
        said: how its two bounds are computed, which says which slices are the same.
        start: the first place, as an integer or a tensor without dimensions; ``None`` for the first one of all.
        stop: the one behind the last, likewise.
    """

    said: tuple[Any, Any]
    start: Any
    stop: Any

    def within(self, size: int, device: torch.device) -> torch.Tensor:
        """Which of so many places are within, ``[size]``, as Python says of lists."""
        places = torch.arange(size, device=device)
        mask = torch.ones(size, dtype=torch.bool, device=device)
        for bound, compare in ((self.start, torch.ge), (self.stop, torch.lt)):
            if bound is not None:
                place = torch.as_tensor(bound, device=device)
                mask = mask & compare(places, torch.where(place < 0, place + size, place))
        return mask


def bounds_of(part: Any, tensor_of: Callable[[Number], Any]) -> Any:
    """A slice with numbers among its bounds, with ``tensor_of`` of these; anything else as it is."""
    if not isinstance(part, slice) or part.step is not None or Number not in (type(part.start), type(part.stop)):
        return part
    found = [tensor_of(one) if type(one) is Number else one for one in (part.start, part.stop)]
    if any(type(one) is Number for one in found):
        return part
    said = tuple(one.expression if type(one) is Number else one for one in (part.start, part.stop))
    return Bounds(said, *found)  # type: ignore[arg-type]


def has_bounds(index: Any) -> bool:
    """Whether an index has such slices."""
    return any(type(one) is Bounds for one in parts_of(index))


def _whole(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, dict[int, Bounds]]:
    """What an index gives without its bounds, and the dimensions of that in which these are."""
    parts = parts_of(index)
    whole = tensor[tuple(slice(None) if type(one) is Bounds else one for one in parts)]
    dims = [one for one in parts if type(one) is not int]
    if not all(
        isinstance(one, slice | Bounds) or (isinstance(one, torch.Tensor) and one.dim() == 1) for one in dims
    ) or (sum(isinstance(one, torch.Tensor) for one in dims) > 1):
        raise _refused()
    return whole, {dim: one for dim, one in enumerate(dims) if type(one) is Bounds}


class Part:
    """Stands for a part of a tensor: it can be written to the same part of another one."""

    def __init__(self, tensor: torch.Tensor, index: Any) -> None:
        """Takes the tensor, and an index with bounds."""
        self.whole, self.bounds = _whole(tensor, index)

    def _refused(self, *_given: Any, **_named: Any) -> NoReturn:
        raise _refused()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused()

    __bool__ = __iter__ = __getitem__ = __setitem__ = __len__ = __float__ = __eq__ = _refused  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refused
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, _args: Any = (), _kwargs: Any = None) -> NoReturn:
        raise _refused()


def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Writes a part of another tensor, or one number, between bounds."""
    parts = parts_of(index)
    if any(isinstance(one, torch.Tensor) for one in parts):
        raise _refused()
    whole, bounds = _whole(tensor, index)
    if isinstance(value, Part):
        said = [{dim: one.said for dim, one in each.items()} for each in (bounds, value.bounds)]
        if said[0] != said[1] or value.whole.shape != whole.shape:
            raise _refused()
        new = value.whole
    elif isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.dim() == 0):
        new = torch.as_tensor(value, device=whole.device)
    else:
        raise _refused()
    mask = torch.ones((), dtype=torch.bool, device=whole.device)
    for dim, one in bounds.items():
        mask = mask & one.within(whole.shape[dim], whole.device).reshape(-1, *(1,) * (whole.dim() - dim - 1))
    whole.copy_(torch.where(mask, new.to(whole.dtype), whole))


def _refused() -> StepError:
    return StepError(
        "the step does more with a part of a tensor between bounds that it computes or draws than to write it to the same part",
        code="U0101",
        place=user_line(),
        cause="the step is captured once as a graph, and how large the part is differs from call to call; a part can be written: "
        "`x[:, a:b] = y[:, a:b]`, `x[:, a:b] = 0`",
        hint="use a mask over the whole tensor: `inside = (torch.arange(n) >= a) & (torch.arange(n) < b)`",
    )
