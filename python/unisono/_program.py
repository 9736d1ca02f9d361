"""Builds what the executor runs: operations with arguments in the order of their schemas, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class ProgramBuilder:
    """Collects operations over numbered slots into a program's data.

    Attributes:
        objects: arguments that only Python can pass, by the names that stand for them.
    """

    def __init__(self) -> None:
        """Starts with no slot."""
        self.shapes: list[dict[str, Any] | None] = []
        self.state: list[int] = []
        self.inputs: list[int] = []
        self.updates: list[dict[str, int]] = []
        self.returns: list[int] = []
        self.objects: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._places: dict[tuple[str, int], int] = {}
        self._schemas: dict[str, int] = {}

    def slot(self, like: torch.Tensor | None = None) -> int:
        """A new slot, for tensors of the element type, sizes and strides of ``like``."""
        shape = None
        if like is not None:
            sizes, strides = ([int(number) for number in numbers] for numbers in (like.shape, like.stride()))
            shape = {"dtype": _name(like.dtype), "sizes": sizes, "strides": strides}
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def call(
        self,
        op: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Sequence[Any],
        place: tuple[str, int] | None = None,
        *,
        writes_state: bool = False,
    ) -> None:
        """Adds a call of ``op``; in the arguments, :class:`Slot` objects stand for tensors.

        Args:
            op: the operation overload.
            args: positional arguments.
            kwargs: keyword arguments; defaults are filled in.
            outputs: for each return a slot, a list of slots and ``None``, or ``None`` where it is not used.
            place: file and line in the user's code.
            writes_state: whether it may write a new value of state where the state is.
        """
        schema = op._schema
        values = list(args)
        for argument in schema.arguments[len(values) :]:
            values.append(kwargs.get(argument.name, argument.default_value))
        encoded = [self._encode(v, str(a.type)) for v, a in zip(values, schema.arguments, strict=True)]
        call = {"op": self._schema(str(schema)), "args": encoded, "outputs": [_output(output) for output in outputs]}
        if writes_state:
            call["writes_state"] = True
        if place is not None:
            call["place"] = self._places.setdefault(place, len(self._places))
        self._calls.append(call)

    def update(self, state: int, value: int) -> None:
        """Writes the tensor of slot ``value`` into the state slot ``state`` at the end of each step."""
        self.updates.append({"state": state, "value": value})

    def spec(self) -> dict[str, Any]:
        """The program's data."""
        return {
            "slots": len(self.shapes),
            "schemas": list(self._schemas),
            "state": self.state,
            "inputs": self.inputs,
            "calls": self._calls,
            "updates": self.updates,
            "returns": self.returns,
            "shapes": self.shapes,
            "places": [{"file": file, "line": line} for file, line in self._places],
        }

    def _schema(self, text: str) -> int:
        return self._schemas.setdefault(text, len(self._schemas))

    def _encode(self, value: Any, ty: str) -> Any:
        if value is None:
            return "none"
        if isinstance(value, Slot):
            return {"tensor": value.number}
        if isinstance(value, (list, tuple)):
            return self._encode_list(value, ty)
        if isinstance(value, torch.device):
            return {"device": {"kind": value.type, "index": value.index}}
        for kind, name in _NAMED.items():
            if isinstance(value, kind):
                return {name: _name(value)}
        if isinstance(value, (bool, str)):
            return {"bool" if isinstance(value, bool) else "str": value}
        if isinstance(value, (int, torch.SymInt)):
            # a single number may stand for a list of one
            return {"ints": [int(value)]} if "List[int]" in ty else {"int": int(value)}
        if isinstance(value, (float, torch.SymFloat)):
            return {"float": float(value)}
        return self._opaque(value)

    def _encode_list(self, values: Sequence[Any], ty: str) -> Any:
        if "Tensor" in ty:
            gaps = "Optional[Tensor]" in ty.removeprefix("Optional[")
            slots = [None if value is None else value.number for value in values]
            return {"optional_tensors" if gaps or None in slots else "tensors": slots}
        for kinds, name in (((bool,), "bools"), ((int, torch.SymInt), "ints"), ((str,), "strs")):
            wanted = "float" not in ty or name == "bools"
            if wanted and values and all(isinstance(value, kinds) for value in values):
                return {name: [value if isinstance(value, (bool, str)) else int(value) for value in values]}
        if not values:
            return {"bools" if "bool" in ty else "floats" if "float" in ty else "strs" if "str" in ty else "ints": []}
        if all(isinstance(value, (int, float)) for value in values):
            return {"floats": [float(value) for value in values]}
        return self._opaque(values)

    def _opaque(self, value: Any) -> Any:
        name = f"{type(value).__name__}_{len(self.objects)}"
        self.objects[name] = value
        return {"opaque": name}


class Slot:
    """A tensor among the arguments of an operation, by its slot."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        """Takes the slot's number."""
        self.number = number


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _output(output: Any) -> Any:
    if output is None:
        return "ignored"
    return {"tensor": output} if isinstance(output, int) else {"tensors": list(output)}


def slots(numbers: Iterable[int]) -> list[Slot]:
    """A :class:`Slot` for each number."""
    return [Slot(number) for number in numbers]
