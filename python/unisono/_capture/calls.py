"""Calls of the user's own operations in a captured step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch.fx.node import map_arg

from unisono._capture.places import place_of
from unisono._capture.types import TensorType
from unisono._capture.wire import name_of, parameters


@dataclass(frozen=True)
class CustomCall:
    """A call of an operation that is not PyTorch's own.

    Attributes:
        target: the operation.
        args: its arguments in the order of its schema, with types in the place of tensors.
        place: ``file:line`` of the user's code.
        device: the device on which it can be tried out.
        elsewhere: whether it is to run on a device that is not here.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    place: str | None
    device: torch.device
    elsewhere: bool

    @property
    def name(self) -> str:
        """The operation's name as a graph has it."""
        return name_of(self.target)

    def key(self) -> Any:
        """Equal for calls of which one need not be examined if the other was."""
        return self.name, str(self.device), repr([_told(one) for one in self.args])

    def has_lists(self) -> bool:
        """Whether tensors stand in lists among what it takes or returns."""
        schema = self.target._schema
        kinds = [str(one.real_type) for one in (*schema.arguments, *schema.returns)]
        return any("Tensor" in kind and "List" in kind for kind in kinds)

    def present(self, args: Sequence[Any]) -> list[bool]:
        """For each argument that may be a tensor, whether it is one."""
        pairs = zip(args, parameters(self.target), strict=True)
        return [isinstance(one, torch.Tensor | TensorType) for one, (*_, kind) in pairs if "Tensor" in kind]

    def run(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that the operation returns for such arguments."""
        schema = self.target._schema.arguments
        plain = [value for value, one in zip(args, schema, strict=True) if not one.kwarg_only]
        named = {one.name: value for value, one in zip(args, schema, strict=True) if one.kwarg_only}
        return tensors_of(pytree.tree_leaves(self.target(*plain, **named)))

    def tensors(self) -> list[TensorType]:
        """The types of its tensors."""
        return [one for one in self.args if isinstance(one, TensorType)]


def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among arguments."""
    return [one for one in args if isinstance(one, torch.Tensor)]


def call_of(node: torch.fx.Node, elsewhere: bool) -> CustomCall:
    """The call that a traced node is; ``elsewhere`` says that its device is not here."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    args = []
    for position, (name, kwarg_only, default, _) in enumerate(parameters(target)):
        given = position < len(node.args) and not kwarg_only
        value = node.args[position] if given else node.kwargs.get(name, default)
        args.append(map_arg(value, lambda one: one.meta["val"]))
    devices = [one.device for one in args if isinstance(one, TensorType)]
    device = torch.device("cpu") if elsewhere or not devices else devices[0]
    return CustomCall(target, tuple(args), place_of(node), device, elsewhere)


@contextlib.contextmanager
def undisturbed(call: CustomCall) -> Iterator[None]:
    """What the operation draws and records here is not seen by the user."""
    with torch.no_grad(), torch.random.fork_rng(), torch.autocast(call.device.type, enabled=False):
        yield


def _told(argument: Any) -> Any:
    if isinstance(argument, TensorType):
        return argument.dtype, tuple(argument.shape), tuple(argument.strides)
    return argument
