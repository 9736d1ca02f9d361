"""Patterns of the user's own: what is written in one way in a step, and runs in another that gives the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from unisono import _devices, _native
from unisono.errors import ConfigurationError

#: How far apart, beside the greatest number of a tensor, both ways may be on an example.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8, torch.bfloat16: 3e-2, torch.float16: 4e-3}

Function = Callable[..., Any]


@dataclass(frozen=True)
class Pattern:
    """What is looked for and what stands for it, as functions of the same tensors."""

    name: str
    search: Function
    replace: Function
    examples: tuple[tuple[torch.Tensor, ...], ...]
    backward: bool


_registered: dict[str, Pattern] = {}


def register_pattern(
    name: str,
    search: Function,
    replace: Function,
    *,
    examples: Sequence[Sequence[torch.Tensor]],
    backward: bool = True,
) -> None:
    """Has steps that are captured from now on run ``replace`` where they do what ``search`` does.

    Both are functions of the same tensors that give a tensor or several. They are captured as steps are, with their backward, so that
    a pattern is what this PyTorch makes of its code: a place in a step is replaced where its operations are those of ``search`` for
    the sizes, strides and numbers there, and where nothing else reads what they make in between.

    Args:
        name: what it is called; a pattern of that name is replaced.
        search: what is looked for.
        replace: what stands for it.
        examples: tensors that both are called with, one list for each way in which these may lie in memory: PyTorch takes other
            operations for tensors with other strides. Sizes do not matter.
        backward: whether gradients of what is floating-point are part of the pattern, as in training, or not, as in evaluation.

    Raises:
        ConfigurationError: the two do not give the same on an example, or cannot be captured.
    """
    pattern = Pattern(name, search, replace, tuple(tuple(example) for example in examples), backward)
    for example in pattern.examples:
        _require_same(pattern, example)
        _captured(pattern, example)
    _registered[name] = pattern


def forget_pattern(name: str) -> None:
    """Has steps that are captured from now on stay as they are where they do what a pattern looks for."""
    _registered.pop(name, None)


def applied(message: bytes) -> bytes:
    """A captured graph with what registered patterns make of it."""
    if not _registered:
        return message
    graph = _native.Graph(message)
    count = 0
    for pattern in _registered.values():
        searches = [_captured(pattern, example)[0] for example in pattern.examples]
        graph, found = graph.replaced(searches, lambda types, pattern=pattern: _made(pattern, types))
        count += found
    return graph.message() if count else message


def _made(
    pattern: Pattern, types: Sequence[tuple[str, list[int], list[int], str]]
) -> tuple[_native.Graph, _native.Graph] | None:
    """What is looked for, and what stands for it, for tensors of these types; nothing where the functions do not take them."""
    device = next((kind for *_, kind in types if kind != "cpu"), "cpu")
    place = "cpu" if device == "cpu" else "meta"
    tensors = [
        torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=place)
        for dtype, shape, strides, _ in types
    ]
    count = len(pattern.examples[0])
    try:
        return _captured(pattern, tensors[:count], tensors[count:], device)
    except RuntimeError:
        return None


def _captured(
    pattern: Pattern,
    example: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor] | None = None,
    device: str | None = None,
) -> tuple[_native.Graph, _native.Graph]:
    """Both functions as graphs, with their backward for gradients that lie as given, or as the results do."""
    from unisono._call import Caller
    from unisono._capture import capture_step

    if gradients is None:
        gradients = _results(pattern.search, example) if pattern.backward else ()
    inputs = (*example, *gradients)

    def graph(function: Function) -> _native.Graph:
        call = _both_ways(function, len(example)) if pattern.backward else _called(function)
        captured = capture_step(
            call, model=None, optimizers=(), call=Caller(call).of_example(inputs).on(_devices.HOST), device=device
        )
        return _native.Graph(captured.message)

    return graph(pattern.search), graph(pattern.replace)


def _results(function: Function, example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that lie as what a function gives, without values of it."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = _tuple(function(*[mode.from_tensor(one.detach()) for one in example]))
    return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device) for one in made]


def _tuple(made: Any) -> tuple[torch.Tensor, ...]:
    return (made,) if isinstance(made, torch.Tensor) else tuple(made)


def _both_ways(function: Function, count: int) -> Function:
    """A function of tensors and of gradients of what the function makes of them: what it makes, and the gradients of the tensors."""

    def both(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves = [one.detach().requires_grad_(one.is_floating_point()) for one in given[:count]]
            made = _tuple(function(*leaves))
        wanted = [one for one in leaves if one.requires_grad]
        return (*made, *torch.autograd.grad(made, wanted, given[count:]))

    return both


def _called(function: Function) -> Function:
    """A function whose signature does not matter."""

    def call(*given: torch.Tensor) -> Any:
        return function(*given)

    return call


def _require_same(pattern: Pattern, example: Sequence[torch.Tensor]) -> None:
    """Refuses functions that differ on an example."""
    gradients = [torch.randn_like(one) for one in _results(pattern.search, example)] if pattern.backward else []
    given = (*example, *gradients)
    ways = [_both_ways(one, len(example)) if pattern.backward else one for one in (pattern.search, pattern.replace)]
    expected, found = ([made.detach() for made in _tuple(way(*given))] for way in ways)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        bound = _TOLERANCE.get(one.dtype, 0.0) * float(one.abs().max() if one.numel() else 0)
        same = one.dtype == other.dtype and one.shape == other.shape and float((one - other).abs().max()) <= bound
        if not same:
            raise ConfigurationError(
                f"the pattern `{pattern.name}` does not give the same: result {number} on an example",
                code="U0012",
                hint="a pattern may change the order in which numbers are added up, and nothing else",
            )
