"""What operations give on tensors without data, asked of PyTorch once for operands of the same types.

PyTorch keeps such results too, under keys that ask each operand for everything that a tensor can be; a step mostly has tensors of which
fewer things decide.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from unisono._capture.types import TensorType

_SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
#: By operation and types of operands: the type of what it gives, or of each of the tensors that it gives.
_known: dict[Any, TensorType | tuple[TensorType, ...]] = {}
#: More are not kept.
_MOST = 1 << 15


def result(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives that changes nothing, whose operands are tensors of ``mode`` or none."""
    key = key_of(func, args, kwargs) if _decided_by_types(func) else None
    if key is None:
        return func(*args, **kwargs)
    types = _known.get(key)
    if types is None:
        made = _asked(mode, func, args, kwargs)
        _keep(key, made, (*args, *kwargs.values()))
        return made
    with torch._C._DisableTorchDispatch():
        return _new(mode, types) if isinstance(types, TensorType) else tuple(_new(mode, one) for one in types)


def _asked(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """What PyTorch says, which need not be kept by PyTorch, too."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        return func(*args, **kwargs)
    finally:
        mode.cache_enabled = before


def key_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives depends on this, as far as it is known without data; ``None`` where that is more than types."""
    key: list[Any] = [func, torch.get_default_dtype()]
    for one in (*args, *kwargs, *kwargs.values()):
        if isinstance(one, torch.Tensor):
            if not _is_plain(one):
                return None
            key.append(TensorType(one))
        elif isinstance(one, _SIMPLE):
            key.append((type(one), one))
        elif isinstance(one, list | tuple) and all(isinstance(part, _SIMPLE) for part in one):
            key.append(tuple((type(part), part) for part in one))
        else:
            return None
    return tuple(key)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor without data is all that its type says."""
    return (
        type(tensor) is FakeTensor
        and tensor.constant is None
        and tensor.layout is torch.strided
        and not tensor.is_complex()
        and not tensor.is_neg()
    )


@functools.cache
def _decided_by_types(func: torch._ops.OpOverload) -> bool:
    """Whether an operation gives new tensors, which its operands' types decide."""
    returns, tags = func._schema.returns, func.tags
    tensors = all(str(one.type) == "Tensor" and one.alias_info is None for one in returns)
    by_data = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    return func.namespace == "aten" and bool(returns) and tensors and not by_data and not func._schema.is_mutable


def _keep(key: Any, made: Any, given: Any) -> None:
    """Keeps the types of what was made, if they are all that it is: new tensors, each with memory of its own."""
    tensors = [made] if isinstance(made, torch.Tensor) else list(made)
    if not all(isinstance(one, torch.Tensor) and _is_plain(one) and one.storage_offset() == 0 for one in tensors):
        return
    memories = [one.untyped_storage()._cdata for one in (*tensors, *given) if isinstance(one, FakeTensor)]
    if not memories or len({*memories[: len(tensors)]} - {*memories[len(tensors) :]}) < len(tensors):
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = TensorType(made) if made is tensors[0] else tuple(map(TensorType, tensors))


def _new(mode: FakeTensorMode, kind: TensorType) -> FakeTensor:
    like = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device="meta")
    return FakeTensor(mode, like, kind.device)
