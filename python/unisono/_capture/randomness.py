"""Random numbers while a step is traced: what is drawn in which order, and what is drawn again from a state that was kept.

A captured step draws from PyTorch's generator as eager code does, one operation after the other. A state of the generator that the step
keeps and restores, as activation checkpointing does, is a point among those draws: what is drawn from there on is what was drawn before, if
it is asked for in the same way, so that it is not drawn but used again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from unisono._capture.generators import Generators, memory_of
from unisono._capture.orders import Orders
from unisono._capture.places import user_line
from unisono.errors import StepError, UnsupportedError

_aten = torch.ops.aten
_RANDOM_BETWEEN = getattr(_aten.random_, "from")
#: Random functions of the shape of an operand alone, and what fills a tensor with the same numbers.
_LIKE: dict[Any, Any] = {
    _aten.rand_like.default: _aten.uniform_.default,
    _aten.randn_like.default: _aten.normal_.default,
    _aten.randint_like.default: _aten.random_.to,
    _aten.randint_like.low_dtype: _RANDOM_BETWEEN,
}
#: Random functions that draw only under a condition: the name of an argument, and what it must be.
_CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "dropout_p": lambda probability: probability > 0,
    "train": lambda train: train is not False,
    "training": bool,
}


@dataclass(eq=False)
class _Point:
    """A state of the generator: what has been drawn from there, by how it was asked for."""

    drawn: dict[Any, tuple[Any, _Point]] = field(default_factory=dict)


@functools.cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class _Generator(torch.Generator):
    """Stands for PyTorch's generator while a step is traced."""

    draws: Draws

    def get_state(self) -> torch.Tensor:
        return self.draws.kept_state()

    def set_state(self, new_state: torch.Tensor) -> Any:
        self.draws.restore(new_state)
        return self

    def manual_seed(self, seed: int) -> Any:
        raise self.draws.reseeded(f"torch.manual_seed({seed})")

    def seed(self) -> int:
        raise self.draws.reseeded("torch.seed()")


class Draws(TorchDispatchMode):
    """Keeps account of random operations, and lets those that a restored state asks for again give what they gave."""

    def __init__(self, generators: Generators, orders: Orders) -> None:
        """Starts at the state that the generator has when the step begins.

        Args:
            generators: the user's.
            orders: is told like which tensors numbers are drawn.
        """
        super().__init__()
        self._orders = orders
        self._generators, self._own = generators, {memory_of(torch.default_generator)}
        self._point = self._newest = _Point()
        self._kept: dict[int, tuple[torch.Tensor, _Point]] = {}
        self._restored: str | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Accounts for what is drawn until it is left."""
        generator = _Generator()
        generator.draws = self
        self._own.add(memory_of(generator))
        with (
            mock.patch("torch.random.default_generator", generator),
            mock.patch("torch.default_generator", generator),
        ):
            yield
        if self._point is not self._newest:
            raise StepError(
                "the step leaves PyTorch's generator in a state that it had before, and has drawn from since",
                code="U0114",
                place=self._restored,
                cause="each step would draw the numbers of the step before again",
                hint="draw from such a state outside of the step, and pass what is drawn as an argument",
            )

    def wants(self, func: Any, args: Any) -> bool:
        """Whether an operation is to run under this mode: it is random, or an operand is a state of the generator."""
        if _is_random(func):
            return True
        return bool(self._kept) and any(id(leaf) in self._kept for leaf in pytree.tree_iter(args))

    def kept_state(self) -> torch.Tensor:
        """A tensor that stands for the state of the generator."""
        with _disable_current_modes():
            token = torch.empty(0, dtype=torch.uint8)
        self._kept[id(token)] = (token, self._point)
        return token

    def restore(self, state: torch.Tensor) -> None:
        """Goes back to a state that was kept within the step."""
        place = user_line()
        if id(state) not in self._kept:
            raise StepError(
                "the step sets the state of PyTorch's generator to one that it has not read itself",
                code="U0114",
                place=place,
                cause="numbers drawn from there on would be the same at every step",
                hint="set the generator's state outside of the step, or pass what is drawn from it as an argument",
            )
        self._restored = place
        self._point = self._kept[id(state)][1]

    def reseeded(self, call: str) -> StepError:
        """The error for a step that seeds the generator."""
        return StepError(
            f"the step calls `{call}`",
            code="U0114",
            place=user_line(),
            cause="numbers drawn from there on would be the same at every step",
            hint="seed outside of the step; draw numbers that are to be the same at every step once, and pass them as an argument",
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # all of a recording does, at once

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation; a random one as it was run before from this state of the generator, if it was."""
        kwargs = kwargs or {}
        if self._kept and any(id(leaf) in self._kept for leaf in pytree.tree_iter((args, kwargs))):
            raise StepError(
                "the step computes with the state of a random number generator", code="U0114", place=user_line()
            )
        if _is_random(func):
            self._orders.drawn(args)
        given = kwargs.get("generator")
        if given is not None and memory_of(given) not in self._own:
            return self._from_another(func, args, kwargs)
        if given is not None:
            kwargs = {**kwargs, "generator": None}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        key, point = _key(func, args, kwargs), self._point
        if key in point.drawn:
            result, self._point = point.drawn[key]
            return self._again(func, args, result)
        if point is not self._newest:
            raise StepError(
                f"`{func}` draws other numbers from a state of the generator that has been drawn from before",
                code="U0114",
                place=user_line(),
                cause="the same state of the generator serves two different draws, and a captured step draws once from each",
                hint="draw with the same operation, shape and type both times, or draw once and use the numbers twice",
            )
        result = _drawn(func, args, kwargs)
        point.drawn[key] = result, _Point()
        self._point = self._newest = point.drawn[key][1]
        if not _fills(func) and not self._kept:
            return result  # nothing can ask for it again
        return args[0].copy_(result) if _fills(func) else pytree.tree_map_only(torch.Tensor, torch.clone, result)

    def _from_another(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a random operation gives that draws from a generator of the user's."""
        stand_in = self._generators.of(kwargs["generator"])
        if not func._schema.is_mutable:
            return stand_in.draw(func, args, kwargs, None)
        if not _fills(func):
            raise UnsupportedError(f"`{func}` with a generator is not supported", code="U0108", place=user_line())
        return args[0].copy_(stand_in.draw(func, args, kwargs, args[0]))

    @staticmethod
    def _again(func: Any, args: Any, result: Any) -> Any:
        """What an operation gave before, as the step may change it."""
        if _fills(func):
            return args[0].copy_(result)
        if func._schema.is_mutable or (_reads_values(func, args) and not _is_recomputing()):
            raise StepError(
                f"`{func}` draws from a state of the generator for the second time",
                code="U0114",
                place=user_line(),
                cause="its numbers depend on an operand, which may be another one now",
                hint="draw once and use the numbers twice",
            )
        if func is _aten.native_dropout.default:
            # The mask says what is dropped: the product need not be held.
            mask = torch.clone(result[1])
            return _aten.native_dropout_backward.default(args[0], mask, _scale(args[1])), mask
        return pytree.tree_map_only(torch.Tensor, torch.clone, result)


def _scale(probability: float) -> float:
    """What dropout multiplies elements by that it keeps."""
    return 1 / (1 - probability) if probability < 1 else 0.0


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation draws from PyTorch's own generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags or func is _aten._fused_sdp_choice.default:
        return False
    given = {
        argument.name: args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        for position, argument in enumerate(func._schema.arguments)
    }
    conditions = (holds(given[name]) for name, holds in _CONDITIONS.items() if name in given)
    return given.get("generator") is None and all(conditions)


def _fills(func: Any) -> bool:
    """Whether an operation does nothing but fill its first operand."""
    changed = [argument for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write]
    return changed == list(func._schema.arguments[:1])


def _reads_values(func: Any, args: Any) -> bool:
    return func not in _LIKE and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_iter(args))


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    """How numbers are asked for: operation, arguments, and what operands are but for their values."""

    def described(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor)
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device) if is_tensor else (type(leaf), leaf)

    leaves, spec = pytree.tree_flatten((args, kwargs))
    return func, str(spec), tuple(described(leaf) for leaf in leaves)


def _drawn(func: Any, args: Any, kwargs: Any) -> Any:
    """What a random operation gives, in tensors that the step does not have.

    Fills write numbers in the order of memory: they fill memory that has this order whatever becomes of the operand's, and that depends
    on nothing.
    """
    if func in _LIKE:
        return _filled(_LIKE[func], _aten.empty_like.default(args[0], **kwargs), args[1:], {})
    if _fills(func):
        return _filled(func, args[0], args[1:], kwargs)
    return func(*args, **kwargs)


def _filled(fill: Any, like: torch.Tensor, settings: Any, named: Any) -> torch.Tensor:
    order = sorted(range(like.dim()), key=lambda dim: -like.stride(dim))
    back = [order.index(dim) for dim in range(like.dim())]
    in_order = order == sorted(order)
    made = _aten.empty.memory_format([like.shape[dim] for dim in order], dtype=like.dtype, device=like.device)

    if fill is _RANDOM_BETWEEN and settings[1] is not None:
        # Its name is a keyword of Python, which cannot stand in the code that PyTorch makes of a graph.
        low, high = settings
        return _filled(_aten.random_.to, like, (high - low,), named).add_(low)

    def ordered(leaf: torch.Tensor) -> torch.Tensor:
        return leaf if in_order else leaf.expand(like.shape).permute(order)

    if in_order:
        return fill(made, *settings, **named)
    if fill is _aten.normal_.default:
        # The one kernel that draws otherwise where memory is not row-major.
        return fill(made.permute(back), *settings, **named)
    settings, named = pytree.tree_map_only(torch.Tensor, ordered, (settings, named))
    return fill(made, *settings, **named).permute(back)


def _is_recomputing() -> bool:
    """Whether checkpointing is running a part of the step again, on the operands that it had before."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/utils/checkpoint.py"):
            return True
        frame = frame.f_back
    return False
