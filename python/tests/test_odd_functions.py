"""Functions made at random, compiled, give what they give in eager PyTorch: results and their strides, gradients, inputs that they write
into, and what shares memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backend import compiled, fresh
from odd_functions import OddFunction

from unisono.errors import CompileNotice

TOGETHER = 16
Seen = list[tuple[str, Any]]


def seeds() -> range:
    """The functions that are tried; `UNISONO_FUZZ` in the environment of the test gives others: `1000..2000`."""
    first, last = os.environ.get("UNISONO_FUZZ", f"0..{3 * TOGETHER}").split("..")
    return range(int(first), int(last))


@pytest.mark.parametrize("first", seeds()[::TOGETHER])
def test_a_random_function_is_compiled_to_what_it_is_in_eager_pytorch(first):
    for seed in range(first, min(first + TOGETHER, seeds().stop)):
        odd = OddFunction(seed)
        wrong = what_is_wrong(odd)
        assert wrong is None, f"{wrong}\n{odd}"


def what_is_wrong(odd: OddFunction) -> str | None:
    """How the compiled function differs from eager PyTorch, and from what AOTAutograd alone makes of it."""
    expected = seen_or_error(odd, odd.function())
    with fresh():
        found = seen_or_error(odd, compiled(odd.function(), **odd.settings))
    wrong = difference(odd, found, expected)
    if wrong is None or isinstance(found, CompileNotice):
        return wrong
    with fresh():
        settings = {name: value for name, value in odd.settings.items() if name != "options"}
        functional = seen_or_error(odd, torch.compile(odd.function(), backend="aot_eager", **settings))
    return wrong if difference(odd, found, functional) else None


def seen_or_error(odd: OddFunction, function: Callable[..., list[torch.Tensor]]) -> Seen | Exception:
    try:
        return [one for call in range(2) for one in seen(odd, function, call)]
    except Exception as error:  # whatever PyTorch raises
        return error


def seen(odd: OddFunction, function: Callable[..., list[torch.Tensor]], call: int) -> Seen:
    """All that can be seen of a call."""
    arguments = odd.arguments(call)
    torch.manual_seed(odd.seed + call)
    with odd.outside():
        returned = function(*arguments)
    everything = [*returned, *arguments]
    found: Seen = [("value", one.detach().clone()) for one in everything]
    found.append(("shared memory", [[_share(one, other) for other in everything] for one in everything]))
    found += [("strides", _strides(one)) for one in returned]
    found += [("needs a gradient", one.requires_grad) for one in returned]
    leaves = [one for one in arguments if one.requires_grad]
    parts = [one for one in returned if one.requires_grad]
    if leaves and parts:
        total = torch.stack([(one.abs() if one.is_complex() else one).double().sin().sum() for one in parts]).sum()
        found += [("gradient", one) for one in torch.autograd.grad(total, leaves, allow_unused=True)]
    return found


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    some = bool(one.numel() and other.numel())
    return some and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _strides(one: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1 and one.numel()]


def _greatest(x: torch.Tensor) -> float:
    """The greatest finite number of a tensor."""
    sizes = (x.abs() if x.is_complex() else x).double().abs().nan_to_num(0, 0, 0)
    return sizes.max().item() if x.numel() else 0.0


def difference(odd: OddFunction, found: Seen | Exception, expected: Seen | Exception) -> str | None:
    if isinstance(found, Exception) or isinstance(expected, Exception):
        alike = isinstance(found, Exception) and isinstance(expected, Exception)
        return None if alike and not isinstance(found, CompileNotice) else f"{found!r:.600} for {expected!r:.300}"
    bound = 8e-2 if odd.has_16_bits else 3e-5
    for at, ((what, one), (_, other)) in enumerate(zip(found, expected, strict=True)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            greatest = _greatest(other.detach())
            try:
                torch.testing.assert_close(one, other, rtol=bound, atol=bound * max(greatest, 1e-3), equal_nan=True)
            except AssertionError as error:
                return f"{what} {at}: {error}"
        elif one is not other and (isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor) or one != other):
            return f"{what} {at}: {one} for {other}"
    return None
