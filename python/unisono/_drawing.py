"""Random numbers from a generator whose state is a tensor: an operation that gives what is drawn, and the state after it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unisono import _reference
from unisono._program import ProgramBuilder, Slot

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define("draw(Tensor state, str call, Tensor[] operands) -> (Tensor, Tensor)")


def described(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fills: torch.Tensor | None) -> tuple[str, Any]:
    """One call of a random operation as a text, and the tensors that it reads.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its arguments by name, the generator among them.
        fills: the operand that it fills, if it does: of that only how it lies in memory counts.
    """
    builder, operands = ProgramBuilder(), []

    def encoded(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value is not fills:
            operands.append(value)
        return Slot(0 if value is fills else len(operands))

    builder.call(func, [encoded(arg) for arg in args], {key: encoded(arg) for key, arg in kwargs.items()}, [])
    like = None
    if fills is not None:
        device = [fills.device.type, fills.device.index]
        like = [list(fills.shape), list(fills.stride()), str(fills.dtype).removeprefix("torch."), device]
    (generator,) = builder.objects
    (call,) = builder.spec()["calls"]
    name = str(func._schema).partition("(")[0]
    device = str(kwargs["generator"].device)
    return json.dumps(
        {"op": name, "args": call["args"], "like": like, "generator": generator, "device": device}
    ), operands


def _made(call: str, operands: Sequence[torch.Tensor], generator: torch.Generator | None) -> torch.Tensor:
    """What a described call gives, in row-major order where it fills an operand."""
    given = json.loads(call)
    tensors = [_filled(given["like"]), *operands]
    objects = {given["generator"]: generator}
    args = [_reference.decode(arg, tensors.__getitem__, objects) for arg in given["args"]]
    made = _reference.call(_reference.operation(given["op"]), args)
    return made if given["like"] is None else made.contiguous()


def _filled(like: Any) -> torch.Tensor | None:
    if like is None:
        return None
    shape, strides, dtype, (kind, index) = like
    device = torch.device(kind) if index is None else torch.device(kind, index)
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)


@torch.library.impl(_LIBRARY, "draw", "CompositeExplicitAutograd")
def _draw(state: torch.Tensor, call: str, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(json.loads(call)["device"])
    generator.set_state(state)
    return _made(call, operands, generator), generator.get_state()


@torch.library.register_fake("unisono::draw", lib=_LIBRARY)
def _types(state: torch.Tensor, call: str, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return _made(call, operands, None), torch.empty_like(state)
