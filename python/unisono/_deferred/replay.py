"""Recorded operations, done: those that wanted memory needs, in their order, each tensor let go of as soon as nothing needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from unisono import _devices
from unisono._deferred.record import Given, Operation, Record, View
from unisono.errors import StepError


@torch.no_grad()
def replay(record: Record, wanted: Collection[int], deliver: Callable[[int, torch.UntypedStorage], None]) -> None:
    """Makes wanted memory, and hands each over when nothing is done to it any more.

    Every random number is drawn, in the order in which one device draws them, whether its tensor is wanted or not. PyTorch's generator is
    left as it is; what it would be behind them is noted in the record.

    Args:
        record: the operations.
        wanted: the numbers of the memory.
        deliver: called with each number and what was made; nothing else holds it then.
    """
    with _generators(record.start):
        _run(record, _needed(record, wanted, draw_from=0), set(wanted), deliver)
        record.end = _devices.generator_states(_devices.current())


@contextmanager
def _generators(states: dict[str, torch.Tensor]) -> Iterator[None]:
    """Sets the states of PyTorch's generators, and sets them back."""
    device = _devices.current()
    before = _devices.generator_states(device)
    _devices.set_generator_states(device, states)
    try:
        yield
    finally:
        _devices.set_generator_states(device, before)


@torch.no_grad()
def values_of(record: Record, tensor: torch.Tensor) -> torch.Tensor:
    """The values of a recorded tensor as it is now, for code that looks at them.

    Random numbers that they depend on are drawn, and drawn again by :func:`replay`; the generators are left as they are.
    """
    view = record.view(tensor)
    count = len(record.operations)
    needed = _needed(record, {view.memory}, draw_from=count)
    random = [index for index in needed if record.operations[index].is_random]
    drawn, states = record.drawn
    if random:
        if random[0] < drawn:
            drawn, states = 0, record.start
        needed = _needed(record, {view.memory}, draw_from=drawn)
    found: list[torch.Tensor] = []
    with _generators(states):
        _run(record, needed, {view.memory}, lambda _, storage: found.append(view.of(storage).clone()))
        if random:
            record.drawn = count, _devices.generator_states(_devices.current())
    return found[0]


def _needed(record: Record, wanted: Collection[int], draw_from: int) -> list[int]:
    """The operations that are needed for the values of some memory, and all that draw random numbers from one of them on."""
    alive, found = set(wanted), []
    for index, operation in reversed(list(enumerate(record.operations))):
        is_alive = not alive.isdisjoint(operation.writes)
        if not is_alive and not (operation.is_random and index >= draw_from):
            continue
        found.append(index)
        # What only draws for those that draw after it needs memory, not values.
        alive -= operation.fills
        alive |= operation.reads
    return found[::-1]


def _run(
    record: Record,
    indices: list[int],
    wanted: set[int],
    deliver: Callable[[int, torch.UntypedStorage], None],
) -> None:
    operations = [record.operations[index] for index in indices]
    done, over = _ends(operations)
    memory: dict[int, torch.UntypedStorage] = {}
    for index, operation in enumerate(operations):
        for number in operation.fills & _arguments(operation):
            if number not in memory:
                memory[number] = torch.UntypedStorage(record.bytes(number), device=record.device(number))
        _call(operation, memory)
        for number in over[index]:
            del memory[number]
        for number in done[index]:
            made = memory.pop(number)
            if number in wanted:
                deliver(number, made)
            del made


def _ends(operations: list[Operation]) -> tuple[list[list[int]], list[list[int]]]:
    """For each operation, the memory that nothing touches behind it, and that of which the next one that does needs no value."""
    done: list[list[int]] = []
    over: list[list[int]] = []
    fills_next: dict[int, bool] = {}
    for operation in reversed(operations):
        touched = sorted(operation.touched())
        done.append([number for number in touched if number not in fills_next])
        over.append([number for number in touched if fills_next.get(number)])
        fills_next |= {number: number in operation.fills for number in touched}
    return done[::-1], over[::-1]


def _arguments(operation: Operation) -> set[int]:
    given = pytree.tree_leaves((operation.args, operation.kwargs))
    return {one.memory for one in given if isinstance(one, View)}


def _call(operation: Operation, memory: dict[int, torch.UntypedStorage]) -> None:
    def real(one: Any) -> Any:
        if isinstance(one, View):
            return one.of(memory[one.memory])
        if isinstance(one, Given):
            return _unchanged(one, operation).tensor
        return one

    args, kwargs = pytree.tree_map(real, (operation.args, operation.kwargs))
    made = operation.func(*args, **kwargs)
    results = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
    for view, tensor in zip(operation.results, results, strict=True):
        if view.memory not in memory:
            memory[view.memory] = _laid_out(tensor, view).untyped_storage()


def _laid_out(tensor: torch.Tensor, view: View) -> torch.Tensor:
    """A tensor in memory as it was on `meta`."""
    if (tensor.stride(), tensor.storage_offset()) == (view.stride, view.offset):
        return tensor
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=tensor.device).copy_(tensor)


def _unchanged(given: Given, operation: Operation) -> Given:
    if given.tensor._version != given.version:
        raise StepError(
            f"a tensor of shape {list(given.tensor.shape)} has been written since it went into the initialisation of a model",
            code="U0130",
            place=operation.place,
            cause="what `unisono.deferred_init` records is done later, with the values that the tensor has then",
            hint="pass a clone of it",
        )
    return given
