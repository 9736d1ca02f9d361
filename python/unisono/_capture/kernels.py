"""Shape functions that PyTorch lacks for the optimizer kernels that take the learning rate as a tensor."""

from __future__ import annotations

import functools

import torch

_IN_PLACE = ("_fused_adamw_.tensor_lr", "_fused_adam_.tensor_lr", "_fused_sgd_.tensor_lr", "_fused_adagrad_.tensor_lr")


@functools.cache
def register() -> torch.library.Library:
    """Registers them, once per process, where this PyTorch has none. The result keeps the registration alive."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name in _IN_PLACE:
        exists = torch._C._dispatch_has_kernel(f"aten::{name}")
        if exists and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, lambda *_args, **_kwargs: None)
    return library
