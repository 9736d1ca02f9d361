"""The user's own tensors as those that a step is traced with.

Code tells parameters apart by what they are: ``id(p) in frozen``, ``p is self.head``, a weak reference. So the object that the user has is
the one that is traced: for the time of a trace it has another's content, no data, and the other one has the data.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

#: Hooks that PyTorch keeps with the object, and calls by what it has for content.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def in_their_place(
    tensors: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], positions: Iterable[int]
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Within, the tensors at some positions have no data.

    Those that C++ refers to weakly, and those of classes with another layout, stay as they are.

    Yields:
        What is traced, and what has the data, by position.
    """
    traced, own = [*fakes], [*tensors]
    with ExitStack() as stack:
        for at in positions:
            if not any(own[at] is one for one in traced) and _exchange(own[at], fakes[at]):
                stack.callback(_exchange, own[at], fakes[at])
                traced[at], own[at] = own[at], traced[at]
        yield traced, own


def _exchange(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Exchanges the content of two tensors, class, attributes and hooks with it; whether that was possible.

    As ``torch.utils.swap_tensors``, which refuses weak references to the objects: here they are to stay, as everything goes back.
    """
    if any(copyreg._slotnames(type(part)) for part in (one, other)):  # type: ignore[attr-defined]
        return False
    try:
        torch._C._swap_tensor_impl(one, other)  # type: ignore[attr-defined]
    except RuntimeError:
        return False
    try:
        _exchange_attribute(one, other, "__class__")
    except TypeError:
        torch._C._swap_tensor_impl(one, other)  # type: ignore[attr-defined]
        return False
    for name in ("__dict__", *_HOOKS):
        _exchange_attribute(one, other, name)
    return True


def _exchange_attribute(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    of_one, of_other = getattr(one, name), getattr(other, name)
    if of_one is not of_other:
        setattr(one, name, of_other)
        setattr(other, name, of_one)
