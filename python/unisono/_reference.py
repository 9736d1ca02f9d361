"""The slow reference executor: a program's operations one by one through ``torch.ops``. The oracle of the fast one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Spec = Mapping[str, Any]


def operation(name: str) -> Any:
    """The operation ``ns::name`` or ``ns::name.overload``."""
    namespace, rest = name.split("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def decode(arg: Any, tensor: Any, objects: Mapping[str, Any] | None = None) -> Any:
    """The Python value of an encoded argument; ``tensor(slot)`` gives the tensor of a slot."""
    if arg == "none":
        return None
    ((kind, value),) = arg.items()
    if kind == "tensor":
        return tensor(value)
    if kind == "tensors":
        return [tensor(slot) for slot in value]
    if kind == "optional_tensors":
        return [None if slot is None else tensor(slot) for slot in value]
    if kind in ("dtype", "layout", "memory_format"):
        return getattr(torch, value)
    if kind == "device":
        return torch.device(value["kind"]) if value["index"] is None else torch.device(value["kind"], value["index"])
    if kind == "opaque":
        return (objects or {})[value]
    return value


def call(op: Any, args: Sequence[Any]) -> Any:
    """Calls ``op`` with arguments in the order of its schema."""
    return by_position(op)(args)


@functools.cache
def by_position(op: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that calls ``op`` with arguments in the order of its schema, some of which are given by name."""
    arguments = op._schema.arguments
    names = [one.name for one in arguments if one.kwarg_only]
    positional = len(arguments) - len(names)

    def called(args: Sequence[Any]) -> Any:
        assert len(args) == len(arguments), op
        return op(*args[:positional], **dict(zip(names, args[positional:], strict=True))) if names else op(*args)

    return called


def run(spec: Spec, state: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Runs one step of the program; writes new state into ``state`` and returns what the step returns."""
    slots: dict[int, Any] = dict(zip(spec["state"], state, strict=True))
    slots.update(zip(spec["inputs"], inputs, strict=True))
    operations = [operation(schema.split("(")[0]) for schema in spec["schemas"]]
    with torch.no_grad():
        for one in spec["calls"]:
            args = [decode(arg, slots.__getitem__, spec.get("objects")) for arg in one["args"]]
            _store(slots, one["outputs"], call(operations[one["op"]], args))
        values = [slots[update["value"]].clone() for update in spec.get("updates", ())]
        returns = [slots[slot].clone() for slot in spec["returns"]]
        for update, value in zip(spec.get("updates", ()), values, strict=True):
            slots[update["state"]].copy_(value)
    return returns


def _store(slots: dict[int, Any], outputs: Sequence[Any], result: Any) -> None:
    results = (result,) if len(outputs) == 1 else () if result is None else result
    for output, value in zip(outputs, results, strict=True):
        if output == "ignored":
            continue
        if "tensor" in output:
            slots[output["tensor"]] = value
        else:
            slots.update((slot, one) for slot, one in zip(output["tensors"], value, strict=True) if slot is not None)
