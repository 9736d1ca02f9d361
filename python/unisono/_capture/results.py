"""What operations give on tensors without data, asked of PyTorch once for operands of the same types.

PyTorch keeps such results too, under keys that ask each operand for everything that a tensor can be; a step mostly has tensors of which
fewer things decide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from unisono._capture.types import TensorType

_SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class _View:
    """What shares the memory of the first operand."""

    kind: TensorType
    offset: int


#: The first operand itself.
_SAME = object()
#: By operation and types of operands: what stands for each tensor that it gives, put together as that is.
_known: dict[Any, Any] = {}
#: More are not kept.
_MOST = 1 << 15


def result(
    mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, ask: Callable[[], Any] | None = None, under: Any = None
) -> Any:
    """What an operation gives whose operands are tensors of ``mode`` or none.

    ``ask`` says it the first time, by default PyTorch, and may say something else for another ``under``.
    """
    ask = ask or functools.partial(func, *args, **kwargs)
    key = _key_of(func, args, kwargs, under) if _decided_by_types(func) else None
    if key is None:
        return ask()
    known = _known.get(key)
    if known is None:
        made = _asked(mode, ask)
        _keep(key, made, args, kwargs)
        return made
    if known is _SAME:
        return args[0]
    with torch._C._DisableTorchDispatch():
        return _again(mode, known, args)


def new(
    mode: FakeTensorMode, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> FakeTensor:
    """A tensor without data; no mode is asked."""
    with torch._C._DisableTorchDispatch():
        return _new(mode, shape, strides, dtype, device)


def _new(
    mode: FakeTensorMode, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> FakeTensor:
    return FakeTensor(mode, torch.empty_strided(shape, strides, dtype=dtype, device="meta"), device)


def _asked(mode: FakeTensorMode, ask: Callable[[], Any]) -> Any:
    """What PyTorch says, which need not be kept by PyTorch, too."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        return ask()
    finally:
        mode.cache_enabled = before


def _key_of(func: Any, args: Any, kwargs: Any, under: Any) -> Any:
    """What an operation gives depends on this, as far as it is known without data; ``None`` where that is more than types."""
    key: list[Any] = [func, torch.get_default_dtype(), under]
    if not _describe(args, key):
        return None
    if kwargs:
        key.extend(kwargs)
        if not _describe(kwargs.values(), key):
            return None
    return tuple(key)


def _describe(values: Iterable[Any], key: list[Any]) -> bool:
    """Adds to a key what decides of each value, or says that more decides."""
    for one in values:
        if type(one) is FakeTensor:
            if not _is_plain(one):
                return False
            key.append((one.dtype, one.shape, one.stride(), one.fake_device, one.storage_offset()))
        elif isinstance(one, _SIMPLE):
            key.append((type(one), one))
        elif isinstance(one, list | tuple):
            parts: list[Any] = []
            if not _describe(one, parts):
                return False
            key.append(tuple(parts))
        else:
            return False
    return True


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
    """Whether the types of its operands decide what an operation gives: tensors, or the operand that it changes."""
    returns, schema, tags = func._schema.returns, func._schema, func.tags
    tensors = all(str(one.type) in ("Tensor", "List[Tensor]") for one in returns)
    by_data = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    plain = not schema.is_mutable or _is_in_place(func)
    return func.namespace == "aten" and bool(returns) and tensors and not by_data and plain


@functools.cache
def _is_in_place(func: torch._ops.OpOverload) -> bool:
    """Whether an operation writes into its first operand, which it gives, and does nothing else."""
    schema = func._schema
    written = [at for at, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write]
    plain = written == [0] and len(schema.returns) == 1 and torch.Tag.inplace_view not in func.tags
    return plain and func.namespace == "aten" and schema.name.endswith("_")


def _keep(key: Any, made: Any, args: Any, kwargs: Any) -> None:
    """Keeps what was made, if its tensors are each the first operand, in its memory, or new in memory of their own."""
    given = [one for one in _tensors((*args, *kwargs.values())) if isinstance(one, FakeTensor)]
    first = args[0] if args and isinstance(args[0], FakeTensor) else None
    if made is first and first is not None:
        _put(key, _SAME)
        return
    tensors = list(_tensors([made]))
    if not tensors or key[0]._schema.is_mutable or not all(map(_is_plain, tensors)):
        return
    memory, taken = None if first is None else _memory(first), {*map(_memory, given)}
    for one in tensors:
        if _memory(one) not in taken and one.storage_offset() == 0:
            taken.add(_memory(one))
        elif _memory(one) != memory or any(one is other for other in given):
            return
    _put(key, _described(made, memory))


def _described(made: Any, memory: int | None) -> Any:
    """What stands for tensors, of which some are in a memory; for what is no tensor, that itself."""
    if isinstance(made, torch.Tensor):
        return _View(TensorType(made), int(made.storage_offset())) if _memory(made) == memory else TensorType(made)
    if isinstance(made, list | tuple):
        parts = [_described(one, memory) for one in made]
        return parts if isinstance(made, list) else tuple(parts)
    return made


def _put(key: Any, what: Any) -> None:
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = what


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for one in values:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _again(mode: FakeTensorMode, known: Any, args: Any) -> Any:
    """Tensors like those that were made before; no mode is asked."""
    if isinstance(known, TensorType):
        return _new(mode, known.shape, known.strides, known.dtype, known.device)
    if isinstance(known, _View):
        kind = known.kind
        made = torch.empty(0, dtype=kind.dtype, device="meta")
        made.set_(args[0].untyped_storage(), known.offset, kind.shape, kind.strides)
        return FakeTensor(mode, made, kind.device)
    return type(known)(_again(mode, one, args) for one in known) if isinstance(known, list | tuple) else known
