"""What is loaded, set and patched for the whole process, as far as it steers what a step is captured as."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree

from unisono import _devices, _rules
from unisono._capture.digest import Unknowable, Walk
from unisono._capture.origins import PACKAGES, PURE, STDLIB, origin, origin_of_file

#: Beginnings of environment variables that PyTorch and its libraries read.
_ENVIRONMENT = ("TORCH_", "PYTORCH_", "ATEN_", "CUDA_", "CUBLAS_", "NVIDIA_", "MKL", "OMP_")
#: What only counts what has been done.
_COUNTERS = frozenset(("cache_hits", "cache_misses", "next_id", "DESCRIBER_NEXT_ID"))
#: Modules of PyTorch whose values are addresses, or keys drawn anew in each process.
_WITHOUT_MEANING = ("torch._C", "torch.distributed._composable")


def surroundings() -> str:
    """The number of all that.

    Raises:
        Unknowable: something of it is not known.
    """
    walk = Walk(set())
    walk.add(_settings())
    for line in _loaded():
        walk.note(line)
    _note_patches(walk)
    return walk.finished()


def _settings() -> list[Any]:
    """What is set for the whole process and steers PyTorch."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        raise Unknowable("a mode that is entered, or a default device")
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    hooks = [
        value
        for name, value in sorted(vars(sys.modules["torch.nn.modules.module"]).items())
        if name.startswith("_global_")
    ]
    optimizers = [v for n, v in sorted(vars(sys.modules["torch.optim.optimizer"]).items()) if n.startswith("_global_")]
    casts = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _devices.casting()]
    return [
        sys.version,
        platform.node(),
        [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)],
        [_devices.accelerator(), dist.is_initialized() and dist.get_world_size()],
        sys.flags.optimize,
        torch.__version__ + str(torch.version.git_version),
        torch.get_default_dtype(),
        [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        casts,
        torch.is_autocast_cache_enabled(),
        [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()],
        [torch.get_float32_matmul_precision(), torch._C._get_deterministic_fill_uninitialized_memory()],
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        torch._C._get_sdp_priority_order(),
        [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch._C._get_mkldnn_enabled()],
        [torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy],
        torch._C._autograd._top_saved_tensors_default_hooks(True),  # type: ignore[attr-defined]
        sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in pytree.SUPPORTED_NODES),
        # Our own are made for programs that have been lowered, and change no capture.
        sorted(name for name in torch.library._impls if not name.startswith(("unisono/", "unisono_python/"))),
        hooks,
        optimizers,
        _rules.registered(),
    ]


def _loaded() -> Iterator[str]:
    """What is loaded: sources of the user's by their content, files of packages by their size and date."""
    for name, module in sorted(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if not isinstance(file, str) or not os.path.isfile(file):
            continue
        where = origin_of_file(file)
        if where in ("user", "unisono") and file.endswith(".py"):
            with open(file, "rb") as source:
                yield f"{name} {file} {hashlib.blake2b(source.read(), digest_size=16).hexdigest()}"
        elif not file.startswith(STDLIB) or PACKAGES in file:
            found = os.stat(file)
            yield f"{name} {file} {found.st_size} {found.st_mtime_ns}"


def _note_patches(walk: Walk) -> None:
    """Takes in what stands in PyTorch's modules and classes: plain values, and names of its own functions; the user's are walked."""
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_WITHOUT_MEANING) or type(module) is not types.ModuleType:
            continue
        if name in PURE or name.partition(".")[0] == "torch":
            _note_names(walk, name, vars(module), seen)


def _note_names(walk: Walk, owner: str, names: Any, seen: set[int]) -> None:
    for key, value in list(names.items()):
        kind = type(value)
        if key in _COUNTERS:
            continue
        if kind in (bool, int, float, str):
            walk.note(owner, key, repr(value))
        elif kind is types.FunctionType:
            if origin_of_file(value.__code__.co_filename) == "user" and not value.__code__.co_filename.startswith("<"):
                walk.note(owner, key)
                walk.add(value)
            else:
                walk.note(owner, key, value.__qualname__)
        elif kind in (staticmethod, classmethod):
            _note_names(walk, owner, {key: value.__func__}, seen)
        elif issubclass(kind, type):
            _note_class(walk, owner, key, value, seen)
        elif origin(kind.__module__) == "user":
            walk.note(owner, key)
            walk.add(value)


def _note_class(walk: Walk, owner: str, key: str, value: type, seen: set[int]) -> None:
    walk.note(owner, key, value.__qualname__)
    if id(value) in seen:
        return
    seen.add(id(value))
    if origin(value.__module__) == "user":
        walk.add(value)
    elif value.__module__.partition(".")[0] == "torch" and not any(
        base.__module__.startswith("sympy") for base in value.__mro__
    ):
        _note_names(
            walk, value.__qualname__, {k: v for k, v in vars(value).items() if k not in ("__doc__", "__module__")}, seen
        )
