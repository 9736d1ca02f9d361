"""Hooks that the user has registered on parameters, while traced twins stand in the parameters' place."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from unisono.errors import UnsupportedError

#: Hooks that PyTorch makes of several parameters' own autograd nodes; those of the twins are others.
_OF_NODES = os.path.join("torch", "autograd", "graph.py")


@contextmanager
def on_twins(
    pairs: Iterable[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]],
    inside: Callable[[], AbstractContextManager[Any]],
) -> Iterator[None]:
    """Lets the hooks of parameters be called for their twins.

    Args:
        pairs: the name of each parameter, what has its hooks, its twin, and the user's object.
        inside: what hooks run in, in which the user's own parameters stand for their twins.
    """
    with ExitStack() as stack:
        for name, hooked, twin, parameter in pairs:
            twin._unisono_hooked_as = hooked  # type: ignore[attr-defined]
            for hook in _hooks(hooked, "_backward_hooks"):
                _refuse_foreign(hook, name)
                stack.callback(twin.register_hook(functools.partial(_call, inside, hook)).remove)
            for hook in _hooks(hooked, "_post_accumulate_grad_hooks"):
                _refuse_foreign(hook, name)
                called = functools.partial(_call_with, inside, hook, parameter)
                stack.callback(twin.register_post_accumulate_grad_hook(called).remove)
        yield


def _hooks(parameter: torch.Tensor, kind: str) -> list[Callable[..., Any]]:
    return list((getattr(parameter, kind, None) or {}).values())


def _call(inside: Callable[[], AbstractContextManager[Any]], hook: Callable[..., Any], gradient: torch.Tensor) -> Any:
    with inside():
        return hook(gradient)


def _call_with(
    inside: Callable[[], AbstractContextManager[Any]],
    hook: Callable[..., Any],
    parameter: torch.Tensor,
    _twin: torch.Tensor,
) -> None:
    with inside():
        hook(parameter)


def _refuse_foreign(hook: Callable[..., Any], name: str) -> None:
    function = hook.func if isinstance(hook, functools.partial) else hook
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename.endswith(_OF_NODES):
        raise UnsupportedError(
            f"`{name}` has a hook for several gradients at once (`register_multi_grad_hook`)",
            code="U0116",
            cause="it waits for autograd nodes of the user's own parameters, which a captured step does not run",
            hint="register one hook on each parameter (`register_hook`, `register_post_accumulate_grad_hook`)",
        )
