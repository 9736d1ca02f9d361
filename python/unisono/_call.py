"""Calls of a step: positional and keyword arguments in one form, and what two calls must have in common to be served by one capture."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from unisono import _devices
from unisono._tree import Structure, flatten, named_leaves, shown, unflatten
from unisono.errors import ConfigurationError

#: Maximum shapes in a message.
_MOST_SHAPES = 3


@dataclass
class Call:
    """One call of a step.

    Attributes:
        arguments: positional arguments and keyword arguments.
        leaves: what is in them, in order.
        structure: how they are put together.
        kinds: of each leaf its shape, type and device in the step if it is a tensor, else its type and value.
        values: what is in them with its values; ``None`` where no rank has all of them.
    """

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    leaves: list[Any]
    structure: Structure
    kinds: list[Any]
    values: list[Any] | None = None

    def is_like(self, other: Call, varying: Collection[int] = ()) -> bool:
        """Whether one captured step can serve both calls, whatever the numbers at ``varying`` positions are."""
        if self.structure != other.structure:
            return False
        if self.kinds == other.kinds:
            return True
        pairs = enumerate(zip(self.kinds, other.kinds, strict=True))
        return bool(varying) and all(one == same or (at in varying and one[0] is same[0]) for at, (one, same) in pairs)

    def other_numbers(self, other: Call) -> list[int]:
        """The positions of the numbers by which alone two calls differ; none where they differ by more."""
        if self.structure != other.structure:
            return []
        pairs = enumerate(zip(self.kinds, other.kinds, strict=True))
        differ = {at: one[0] is same[0] and one[0] in (int, float) for at, (one, same) in pairs if one != same}
        return [*differ] if all(differ.values()) else []

    def shown(self) -> str:
        """Its arguments and how they are put together, with dots for what is in them."""
        assert self.structure is not None
        given, named = self.structure[3]
        assert given is not None
        assert named is not None
        arguments = [shown(part) for part in given[3]]
        arguments += [f"{name}={shown(part)}" for name, part in zip(named[2], named[3], strict=True)]
        return f"step({', '.join(arguments)})"

    def described(self) -> str:
        """The shapes of its first tensors."""
        shapes = [str(list(leaf.shape)) for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        more = ", .." if len(shapes) > _MOST_SHAPES else ""
        return f"{'tensors' if len(shapes) != 1 else 'a tensor'} of shape {', '.join(shapes[:_MOST_SHAPES])}{more}"

    def together(self, ranks: int) -> Call:
        """The call of all ranks together, each of which gives as much of every tensor's first dimension; its tensors hold no values."""
        leaves = [
            leaf.new_empty((ranks * leaf.shape[0], *leaf.shape[1:]))
            if isinstance(leaf, torch.Tensor) and leaf.dim()
            else leaf
            for leaf in self.leaves
        ]
        return self._with(leaves, None)

    def on(self, device: torch.device) -> Call:
        """The call with what goes from the host to a device there already; such tensors hold no values."""
        leaves = [
            torch.empty_like(leaf, device=_devices.place_of(leaf, device))
            if isinstance(leaf, torch.Tensor) and _devices.place_of(leaf, device) != leaf.device
            else leaf
            for leaf in self.leaves
        ]
        return self._with(leaves, self.values)

    def _with(self, leaves: list[Any], values: list[Any] | None) -> Call:
        arguments = unflatten(self.structure, iter(leaves), self.arguments)
        return Call(arguments, leaves, self.structure, [_kind(leaf, _devices.HOST) for leaf in leaves], values)


class Caller:
    """What makes :class:`Call` of the arguments of one step."""

    def __init__(self, train_step: Callable[..., Any], home: torch.device = _devices.HOST) -> None:
        """Reads the signature of the step.

        Args:
            train_step: the step.
            home: the device that it runs on, which tensors of the host are given to.
        """
        self._signature, self._home = inspect.signature(train_step), home
        #: Where arguments go, by how many are not named, and the names of the others.
        self._orders: dict[tuple[int, tuple[str, ...]], tuple[list[int], dict[str, int]]] = {}

    def __call__(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """The call with these arguments; those that are named come where the signature has them."""
        if named:
            given = [*arguments, *named.values()]
            order = self._orders.get((len(arguments), tuple(named))) or self._ordered(len(arguments), tuple(named))
            arguments = tuple([given[index] for index in order[0]])
            named = {name: given[index] for name, index in order[1].items()}
        leaves, structure = flatten((arguments, named), opens_objects=True)
        return Call((arguments, named), leaves, structure, [_kind(leaf, self._home) for leaf in leaves], leaves)

    def _ordered(self, count: int, names: tuple[str, ...]) -> tuple[list[int], dict[str, int]]:
        bound = self._signature.bind(*range(count), **{name: count + at for at, name in enumerate(names)})
        order = self._orders[count, names] = list(bound.args), bound.kwargs
        return order

    def of_example(self, example: Any) -> Call:
        """The call of which ``example`` has the arguments: a tuple of them, one alone, a dictionary by their names, or a list."""
        misfits = []
        for arguments, named in _readings(example):
            try:
                self._signature.bind(*arguments, **named)
            except TypeError as error:
                misfits.append(error)
            else:
                return self(arguments, named)
        raise ConfigurationError(
            f"`example` does not fit the training step: {misfits[0]}",
            code="U0120",
            hint="`example` is the tuple of arguments that the step is called with, or a dictionary of them by their names",
        )

    def names(self, call: Call) -> Iterator[tuple[str, Any]]:
        """Each leaf with its name, which begins with that of its argument."""
        arguments, named = call.arguments
        bound = self._signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            yield from named_leaves(value, "" if kind is inspect.Parameter.VAR_KEYWORD else name)


def _readings(example: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments that an example can stand for, what it is most likely to mean first."""
    yield example if type(example) is tuple else (example,), {}
    if isinstance(example, dict) and all(isinstance(key, str) for key in example):
        yield (), example
    if isinstance(example, list | tuple):  # a `DataLoader` gives a list
        yield tuple(example), {}


def _kind(leaf: Any, home: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device if home == _devices.HOST else _devices.place_of(leaf, home)
    return type(leaf), leaf if type(leaf) is not float or not math.isnan(leaf) else "nan"
