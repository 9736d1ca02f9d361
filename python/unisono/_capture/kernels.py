"""The kernels of devices, as far as it depends on them what a step is captured as."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from unisono import _native
from unisono._capture import attention, products, recurrent
from unisono._capture.casts import Casts
from unisono._capture.paths import names_of
from unisono._capture.places import user_line
from unisono._capture.target import Target
from unisono.errors import ConfigurationError, UnsupportedError

_IN_PLACE = ("_fused_adamw_.tensor_lr", "_fused_adam_.tensor_lr", "_fused_sgd_.tensor_lr", "_fused_adagrad_.tensor_lr")
#: Shape functions that PyTorch may lack, that of LSTM cells, of which PyTorch's fails without biases, and that of products of groups.
_SHAPES: dict[str, Callable[..., object]] = {
    **dict.fromkeys(_IN_PLACE, lambda *_args, **_kwargs: None),
    "_thnn_fused_lstm_cell": recurrent.lstm_cell_shapes,
    "_thnn_fused_gru_cell": recurrent.gru_cell_shapes,
    "_thnn_fused_gru_cell_backward": recurrent.gru_cell_backward_shapes,
    "_grouped_mm": products.shapes,
}
#: Those of which PyTorch's own knows less than its kernels.
_WIDER = {"_thnn_fused_lstm_cell", "_grouped_mm"}


@functools.cache
def register() -> torch.library.Library:
    """Registers shape functions that PyTorch lacks: of optimizer kernels that take the learning rate as a tensor, and of cells.

    Once per process, where this PyTorch has none. The result keeps the registration alive.
    """
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name, shapes in _SHAPES.items():
        exists = torch._C._dispatch_has_kernel(f"aten::{name}")
        is_known = exists and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta")
        if exists and (name in _WIDER or not is_known):
            library.impl(name, shapes, allow_override=True)
    return library


#: What computes derivatives forward.
_FORWARD = frozenset(("jvp", "jacfwd", "hessian", "linearize", "make_dual", "hvp"))


def load_forward_derivatives(functions: Iterable[Any]) -> None:
    """Loads what PyTorch needs for derivatives forward, where functions name such.

    It compiles that from the text of its own functions when it is first used, and while a step is traced others stand for some of these.
    """
    if any(
        isinstance(one, types.FunctionType) and not _FORWARD.isdisjoint(names_of(one.__code__)) for one in functions
    ):
        forward_ad._maybe_load_decompositions()


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout as one kernel, where it is one."""
    if train and 0 < p < 1 and input.numel() > 0:
        return torch.ops.aten.native_dropout(input, p, train)[0]
    return torch.ops.aten.dropout.default.decompose(input, p, train)


@dataclass(frozen=True)
class Kernels:
    """What is particular to a kind of device.

    Attributes:
        fuses_optimizers: whether an optimizer's whole update is one kernel there.
        instead: what operations that PyTorch makes of others are there, by name, unless it is what they are on processors.
        own: operations that have a kernel there, with a derivative, and are made of others on processors.
        attends: what attention is there, given the compute capability, unless it is what it is on processors.
    """

    fuses_optimizers: bool = False
    instead: Mapping[str, Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    attends: Callable[..., torch.Tensor] | None = None


#: One row for each kind of device that a step can be captured for where there is none.
KERNELS = {
    "cpu": Kernels(fuses_optimizers=True),
    "cuda": Kernels(
        fuses_optimizers=True,
        instead={
            "dropout": _dropout,
            "lstm.input": recurrent.lstm,
            "lstm_cell": recurrent.lstm_cell,
            "gru.input": recurrent.gru,
            "gru_cell": recurrent.gru_cell,
        },
        own=("_fused_rms_norm",),
        attends=attention.on_cuda,
    ),
}


def fuses(target: Target, parameter: torch.Tensor) -> bool:
    """Whether an optimizer's update of a parameter is one kernel: where the device is, PyTorch says so itself."""
    if target.elsewhere:
        return KERNELS.get(target.kind, Kernels()).fuses_optimizers
    return _has_fused_kernels(parameter.device.type)


@functools.cache
def _has_fused_kernels(kind: str) -> bool:
    if kind not in _get_fused_kernels_supported_devices():
        return False
    key = torch._C._dispatch_key_for_device(kind)
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_IN_PLACE[0]}", key)


@contextlib.contextmanager
def chosen(target: Target) -> Iterator[None]:
    """Lets PyTorch take the target's kernels, and refuses what would be the processor's."""
    if not target.elsewhere or target.kind == "cpu":
        yield
        return
    if torch.is_autocast_enabled("cpu"):
        raise _casting(target)
    with torch.library._scoped_library("aten", "IMPL") as library, Casts(target.kind).replaced():
        row = KERNELS[target.kind]
        for name, function in row.instead.items():
            library.impl(name, function, "AutogradCPU")
        if row.attends is not None:
            attends = functools.partial(row.attends, target.capability)
            library.impl("scaled_dot_product_attention", attends, "AutogradCPU")
        for name in row.own:
            # An operation with a kernel is differentiated as one. Nobody gets to the kernel: tensors have no data.
            library.impl(name, getattr(torch.ops.aten, name).default.decompose, "CPU")
        yield


def _casting(target: Target) -> UnsupportedError:
    return UnsupportedError(
        f"automatic casts that were entered around the capture are the processor's, and the step is captured for {target.kind}",
        code="U0128",
        place=user_line(),
        hint="enter `torch.autocast` within the step",
    )


def target_of(device: str | None, tensors: Iterable[torch.Tensor]) -> Target:
    """What a step on these tensors is captured for: ``device``, by default the tensors', and processors where they are nowhere.

    A device is a kind, or a preset of a cluster with GPUs of NVIDIA's, such as ``"h100"``.
    """
    kinds = [tensor.device.type for tensor in tensors]
    home = "meta" if "meta" in kinds else next(iter(kinds), "cpu")
    presets = {name: capability for name, capability in _native.preset_capabilities() if capability is not None}
    capability = presets.get((device or "").partition(":")[0])
    kind = "cuda" if capability is not None else device or ("cpu" if home == "meta" else home)
    if device is not None and kind != home and kind not in KERNELS:
        raise ConfigurationError(
            f"`device={device!r}`: nothing is known of the kernels of such devices, and none is here",
            code="U0012",
            hint=f"it is one of {', '.join(map(repr, [*KERNELS, *presets]))}",
        )
    return Target(kind, elsewhere=kind != home, capability=capability or _capability_here(kind))


def _capability_here(kind: str) -> tuple[int, int] | None:
    """The compute capability of this machine's GPU, if it has one of NVIDIA's."""
    is_there = kind == "cuda" and torch.version.hip is None and torch.cuda.is_available()
    return torch.cuda.get_device_capability() if is_there else None
