"""Rewrites that happen while a step is traced, before functionalisation sees the operations.

List operations become one operation per tensor, so that each parameter can be placed by itself; a pass groups them again for the
executor. Operations that change an operand without saying so in their schema become ones that say so.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._prims_common import make_contiguous_strides_for
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from unisono._capture import alignments, multiplied, scaling, spectra
from unisono._capture.orders import Orders
from unisono._capture.settings import Comparisons

#: Fused optimizer kernels, which take one list entry per parameter, with the functional operation and the positions of the arguments
#: that it returns anew: parameters (first), then state; gradients (second) are only changed by a loss scale.
_FUSED = {
    "_fused_adamw_": (torch.ops.aten._fused_adamw, (0, 2, 3, 4)),
    "_fused_adam_": (torch.ops.aten._fused_adam, (0, 2, 3, 4)),
    "_fused_sgd_": (torch.ops.aten._fused_sgd, (0, 2)),
    "_fused_adagrad_": (torch.ops.aten._fused_adagrad, (0, 2)),
}

#: Operations whose results are row-major in PyTorch's kernels and in the operands' order in its shape functions. On row-major operands both
#: agree, so that tensors lie in memory as the graph says. And group norms, whose kernels tell the order of memory by all strides of an
#: operand, also by those of dimensions of size 1, which ranks and operations in place have otherwise than the graph says.
_ROW_MAJOR = {
    "_log_softmax_backward_data",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "convolution",
    "convolution_backward",
    "elu_backward",
    "glu_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "huber_loss_backward",
    "log_sigmoid_forward",
    "mse_loss_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d",
    "reflection_pad3d_backward",
    "replication_pad2d_backward",
    "replication_pad3d",
    "replication_pad3d_backward",
    "rrelu_with_noise",
    "smooth_l1_loss_backward",
    "softplus_backward",
}


#: CTC loss, whose results are as large as values say.
_ALIGNMENTS = {"_ctc_loss": alignments.likelihoods, "_ctc_loss_backward": alignments.gradient}

_OTHERS = {
    "bincount",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_amp_update_scale_",
    "_efficientzerotensor",
    "as_strided",
    "as_strided_",
    "new_empty_strided",
}


class Rewrites(TorchDispatchMode):
    """Applies the rewrites to every operation that runs under it."""

    def __init__(self, orders: Orders | None = None) -> None:
        """Takes what is told of results that lie in memory otherwise than in eager PyTorch."""
        super().__init__()
        self._orders = orders or Orders()

    @staticmethod
    @functools.cache
    def wants(func: Any) -> bool:
        """Whether something may stand for an operation."""
        name = func._schema.name.removeprefix("aten::")
        return (
            name in _FUSED
            or name in _ROW_MAJOR
            or name in _OTHERS
            or name in _ALIGNMENTS
            or name.startswith("_foreach_")
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # all of a recording does, at once

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation, or what stands for it."""
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in _FUSED:
            functional, changed = _FUSED[name]
            for position in range(len(args[0])):
                single = [[arg[position]] if isinstance(arg, list | tuple) and arg else arg for arg in args]
                results = getattr(functional, func._schema.overload_name or "default")(*single, **kwargs)
                returned = dict(zip(_returned(func), results, strict=True))
                for argument in changed:
                    for old, new in zip(single[argument], returned[argument], strict=True):
                        torch.ops.aten.copy_.default(old, new)
            return None
        if name == "_amp_foreach_non_finite_check_and_unscale_":
            return scaling.check_and_unscale(*args)
        if name in _ALIGNMENTS and func._overloadname == "Tensor":
            return _ALIGNMENTS[name](*args)
        if name == "bincount":
            return _counted(func, *args, **kwargs)
        if name == "_amp_update_scale_":
            return scaling.update_scale(*args)
        if name == "_efficientzerotensor":  # without memory, which only PyTorch's own dispatcher knows of
            return torch.ops.aten.zeros.default(*args, **kwargs)
        if name.startswith("_foreach_"):
            return _one_at_a_time(func, name.removeprefix("_foreach_"), args, kwargs)
        if name == "new_empty_strided":
            return _new_empty(func, *args, **kwargs)
        if name == "as_strided":
            return _strided(func, *args, **kwargs)
        if name == "as_strided_" and _lies_so(*args, **kwargs):
            return args[0]
        if name in _ROW_MAJOR:
            given, args = args, pytree.tree_map(_row_major, args)
            made = _normalised(func, args, kwargs)
            is_other = any(map(operator.is_not, pytree.tree_iter(given), pytree.tree_iter(args)))
            return self._orders.result(func, name, given, made) if is_other else made
        return func(*args, **kwargs)


def _normalised(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives; batch norm by the operation that says which averages it writes."""
    if func is torch.ops.aten.native_batch_norm.default and args[5] and args[3] is not None:
        return torch.ops.aten._native_batch_norm_legit.default(*args)
    return func(*args, **kwargs)


def _counted(func: Any, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """How often each number is there, as sums at places where it is said how many there are: a number beyond is an error in the step."""
    if not minlength:
        return func(x, weights, minlength)
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.to(torch.float64)
    return weights.new_zeros((minlength,)).index_add(0, x.to(torch.int64), weights)


def _new_empty(func: Any, like: torch.Tensor, size: Any, stride: Any, **kwargs: Any) -> torch.Tensor:
    """A tensor without values yet, by operations that can be sharded where it has no gaps; backward of writing into slices makes it."""
    order = sorted(range(len(size)), key=lambda dim: -stride[dim])
    shape = [size[dim] for dim in order]
    if [stride[dim] for dim in order] != list(make_contiguous_strides_for(shape)):
        return func(like, size, stride, **kwargs)
    made = torch.ops.aten.new_empty.default(like, shape, **kwargs)
    if order == list(range(len(size))):
        return made
    return torch.ops.aten.permute.default(made, [order.index(dim) for dim in range(len(size))])


def _strided(func: Any, x: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    """A view by strides as one that permutes dimensions, where it is no more than that; the backward of pooling makes such.

    Or as the diagonal of a matrix, as which ``fill_diagonal_`` has it.
    """
    is_here = offset in (None, x.storage_offset())
    if x.dim() == 2 and is_here and [*size] == [min(x.shape)] and [*stride] == [sum(x.stride())] and size[0] > 1:
        return torch.ops.aten.diagonal.default(x)
    order = sorted((dim for dim in range(len(size)) if size[dim] != 1), key=lambda dim: -stride[dim])
    shape = [size[dim] for dim in order]
    has_all = math.prod(size) == x.numel() and is_here and x.is_contiguous()
    if not has_all or [stride[dim] for dim in order] != list(make_contiguous_strides_for(shape)):
        return func(x, size, stride, offset)
    back = sorted(range(len(order)), key=order.__getitem__)
    permuted = torch.ops.aten.permute.default(torch.ops.aten.view.default(x, shape), back)
    return torch.ops.aten.view.default(permuted, size)


def _lies_so(x: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> bool:
    """Whether a tensor has these sizes and strides, but for dimensions of size 1; pooling says such where channels lie last."""
    lies = all(own == other for one, own, other in zip(size, x.stride(), stride, strict=False) if one != 1)
    return lies and list(x.shape) == list(size) and offset in (None, x.storage_offset())


def _row_major(leaf: Any) -> Any:
    """A tensor with the strides of row-major memory, also where other strides mean the same (dimensions of size 1)."""
    if not isinstance(leaf, torch.Tensor) or leaf.stride() == make_contiguous_strides_for(leaf.shape):
        return leaf
    return leaf.clone(memory_format=torch.contiguous_format)


def _returned(func: Any) -> list[int]:
    """The arguments of an in-place operation that its functional form returns, in order: those that it may change."""
    arguments = enumerate(func._schema.arguments)
    return [position for position, argument in arguments if argument.alias_info and argument.alias_info.is_write]


def _one_at_a_time(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A list operation as one operation per tensor, or as it is where there is no such operation."""
    overload = func._schema.overload_name
    single = _single_operation(name, overload)
    if single is None:
        return func(*args, **kwargs)
    count = len(args[0])
    lists = [list(arg) if isinstance(arg, list | tuple) and len(arg) == count else [arg] * count for arg in args]
    # Factors stand in the order of a list operation's arguments, and have names in those of one tensor.
    plain = [one for one in single._schema.arguments if not one.kwarg_only]
    names = [one.name for one in single._schema.arguments if one.kwarg_only][: max(0, len(lists) - len(plain))]
    calls = (
        (each[: len(plain)], dict(zip(names, each[len(plain) :], strict=True))) for each in zip(*lists, strict=True)
    )
    results = [single(*each, **kwargs, **named) for each, named in calls]
    return results if func._schema.returns else None


#: What is of one tensor and a number by another name.
_WITH_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def _single_operation(name: str, overload: str) -> Any:
    """The operation on one tensor that ``_foreach_<name>.<overload>`` applies to each, or ``None``."""
    if name in ("norm", "powsum"):
        return torch.ops.aten.linalg_vector_norm.default if name == "norm" else None
    if name.rstrip("_") in _WITH_NUMBERS and overload in ("Scalar", "ScalarList"):
        return getattr(torch.ops.aten, name.replace(name.rstrip("_"), _WITH_NUMBERS[name.rstrip("_")])).default
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return None
    wanted = {"List": "Tensor", "ScalarList": "Scalar", "ScalarAndTensor": "Scalar"}.get(overload, overload)
    # `pow.Scalar` takes the number first.
    first = (wanted, f"Tensor_{wanted}") if overload == "ScalarAndTensor" else (f"Tensor_{wanted}", wanted)
    for candidate in (*first, "default", "Tensor") if wanted == "Scalar" else (*first, "Tensor", "default"):
        if candidate in packet.overloads():
            return getattr(packet, candidate)
    return None


#: What stands for functions of PyTorch's: it is given these, and their arguments.
_INSTEAD = (
    dict.fromkeys(alignments.FUNCTIONS, alignments.by_tensors)
    | dict.fromkeys(spectra.FUNCTIONS, spectra.of_windows)
    | dict.fromkeys(multiplied.FUNCTIONS, multiplied.of_halves)
)


class LiveScalars(TorchFunctionMode):
    """Lets a tensor stand where PyTorch wants a number: as the factor of an addition (``p.add_(g, alpha=-lr)``), and where settings decide.

    The learning rate is such a tensor while a step is traced, so that it stays an input. As in PyTorch's own kernels, nothing is rounded
    to a half-precision type but the result. And lets other functions stand for some.
    """

    def __init__(self, comparisons: Comparisons) -> None:
        """Takes what answers questions about settings."""
        super().__init__()
        self._comparisons = comparisons

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function, its factor multiplied in where it is a tensor."""
        kwargs = kwargs or {}
        if func in _INSTEAD:
            return _INSTEAD[func](func, *args, **kwargs)
        answer = self._comparisons.answer(getattr(func, "__name__", ""), args)
        if answer is not None:
            return answer
        factor = kwargs.get("alpha", kwargs.get("value"))
        name = getattr(func, "__name__", "").rstrip("_")
        if name == "lerp":
            return func(
                *(_of_type(one, args[0]) for one in args),
                **{key: _of_type(one, args[0]) for key, one in kwargs.items()},
            )
        if not isinstance(factor, torch.Tensor) or name not in ("add", "sub", "addcdiv", "addcmul"):
            return func(*args, **kwargs)
        common = torch.result_type(args[0], args[1])
        wide = torch.float32 if common in (torch.bfloat16, torch.float16) else common
        first, *others = (operand.to(wide) for operand in args)
        if name in ("add", "sub"):
            # The one factor that PyTorch rounds to the type of the operands, however narrow.
            product = others[0] * (factor.to(common) if common != wide else factor)
        else:
            product = (others[0] / others[1] if name == "addcdiv" else others[0] * others[1]) * factor
        if wide != args[0].dtype:
            result = first - product if name == "sub" else first + product
            return args[0].copy_(result) if func.__name__.endswith("_") else result.to(common)
        if name in ("add", "sub"):
            return func(args[0], product)
        return args[0].add_(product) if func.__name__.endswith("_") else args[0].add(product)


def _of_type(one: Any, x: torch.Tensor) -> Any:
    """A number in double precision as a tensor of another one's type, beside which functions take no other."""
    is_number = isinstance(one, torch.Tensor) and one is not x and not one.dim() and one.dtype == torch.float64
    return one.to(x.device, x.dtype) if is_number and x.dtype not in (torch.float16, torch.bfloat16) else one
