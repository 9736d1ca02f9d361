"""The inputs of a step: every tensor that it reads from outside, with its class and its name."""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from unisono._call import Call, Caller
from unisono._capture import averages
from unisono._capture.expressions import Expression, Read, evaluate
from unisono._capture.generators import generator_at
from unisono._capture.paths import Path, dotted, follow, shown
from unisono._capture.premises import before
from unisono._capture.settings import is_count, live_settings, tensor_of
from unisono._capture.target import Target
from unisono._tree import PLAIN
from unisono.errors import StepError


@dataclass
class StepInput:
    """One tensor that the step reads from outside.

    Attributes:
        cls: ``parameter``, ``buffer``, ``optimizer``, ``constant``, ``batch`` or ``hyper``.
        name: unique, as described at :func:`unisono.capture`.
        tensor: the user's own tensor; for a number, a 0-dim stand-in.
        owner: for optimizer state, the parameter and the key in its state; for a hyperparameter, the number of its group and the key.
        paths: where the step has it from, if that is not the model, an optimizer or an argument. A ``hyper`` that has one is the state
            of the random number generator that is there, or the decay of an average.
        number: whether the user has a number there, for which ``tensor`` is a stand-in.
        expression: how a number that is known before the step is computed.
    """

    cls: str
    name: str
    tensor: torch.Tensor
    owner: tuple[Any, Any] | None = None
    paths: tuple[Path, ...] = ()
    number: bool = False
    expression: Expression | None = None

    @property
    def is_gradient(self) -> bool:
        """Whether it is the gradient of a parameter, where the step goes on with gradients that are there."""
        return bool(self.paths) and self.paths[0][-1] == ("attr", "grad")


@dataclass
class StepInputs:
    """All inputs of a step, in the order of the graph's inputs, and how the step's arguments are put together."""

    inputs: list[StepInput] = field(default_factory=list)
    #: Arguments that are no tensors, by path: they become constants of the graph.
    constants: dict[str, Any] = field(default_factory=dict)
    #: The call that they are of.
    call: Call | None = None
    #: Position of each argument leaf among ``inputs``, or ``None`` for a constant.
    leaves: list[int | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    #: The positions of those that are numbers, and may be others at each call.
    varying: frozenset[int] = frozenset()
    #: What the step is captured for.
    target: Target = field(default_factory=Target)

    def add(self, item: StepInput) -> int:
        """Appends an input and returns its position."""
        self.inputs.append(item)
        return len(self.inputs) - 1


def collect(
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    call: Call,
    kept: Sequence[Path] = (),
    live: Sequence[str] = (),
    read: Sequence[Sequence[Path]] = (),
    scalars: Sequence[Expression] = (),
    counted: Sequence[Path] = (),
    followed: Container[int] = (),
) -> StepInputs:
    """All inputs of ``train_step``: parameters, buffers, optimizer state, settings, kept tensors, what is read, numbers, the batch.

    ``kept`` are paths to tensors that are state, ``live`` settings of optimizers that are inputs, ``read`` for each generator and decay of
    an average that the step reads all paths to it, ``scalars`` numbers that it computes tensors with, of arguments and of what is at the
    ``counted`` places. Counts in the state of optimizers that are ``followed``, by their ``id``, are such places themselves.
    """
    found = StepInputs()
    names = _add_model(found, model)
    _add_optimizers(found, optimizers, names, live, followed)
    root = {"step": train_step, "model": model}
    _add_kept(found, root, kept)
    _add_read(found, root, read)
    _add_scalars(found, scalars, before(root, counted, call.leaves))
    _add_arguments(found, train_step, call)
    return found


def _add_model(found: StepInputs, model: nn.Module | None) -> dict[int, str]:
    """Adds parameters and buffers; returns the parameters' names by ``id``."""
    names: dict[int, str] = {}
    if model is None:
        return names
    _refuse_made(model)
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        found.add(StepInput("parameter", f"params.{name}", parameter))
    for name, buffer in model.named_buffers():
        found.add(StepInput("buffer", f"buffers.{name}", buffer))
    return names


#: What PyTorch calls modules that distribute what is in them, and parameters that are parts.
_DISTRIBUTED = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "DTensor"}


def _refuse_made(model: nn.Module) -> None:
    for name, part in (*model.named_modules(), *model.named_parameters(), *model.named_buffers()):
        if isinstance(part, torch.Tensor) and is_lazy(part):
            raise StepError(
                f"`{name}` of the model has no shape yet: it is made lazily, in the first call of its module",
                code="U0130",
                cause="all shapes of a captured step are known beforehand",
                hint="call the model once before (`model(..)`)",
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise StepError(
                f"{f'`{name}` of the model' if name else 'the model'} is scripted: it is compiled already",
                code="U0127",
                cause="TorchScript keeps parameters where no others can be put in their place",
                hint="pass the plain module, as it was before `torch.jit.script` or `torch.jit.trace`; functions may be scripted",
            )
        kinds = (kind for kind in type(part).__mro__ if kind.__module__.startswith("torch."))
        found = next((kind.__name__ for kind in kinds if kind.__name__ in _DISTRIBUTED), None)
        if found is not None:
            raise StepError(
                f"{f'`{name}` of the model' if name else 'the model'} is a {found}: it is distributed already",
                code="U0127",
                cause="what a step captures is the program of one device, which is then sharded over all",
                hint="pass the plain module, as it was before it was wrapped, sharded or parallelized",
            )


def _add_optimizers(
    found: StepInputs,
    optimizers: tuple[Optimizer, ...],
    names: dict[int, str],
    live: Sequence[str],
    followed: Container[int],
) -> None:
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    owners: dict[int, Optimizer] = {}
    for index, (optimizer, group) in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                names[id(parameter)] = f"group{index}.{position}"
                found.add(StepInput("parameter", f"params.{names[id(parameter)]}", parameter))
            name = names[id(parameter)]
            if id(parameter) in owners:
                _refuse_shared(name, owners[id(parameter)], optimizer)
            owners[id(parameter)] = optimizer
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, bool) or not isinstance(value, torch.Tensor | int | float):
                    continue
                if id(optimizer) in followed and is_count(key, value):
                    continue
                tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=_wide(value))
                is_number = not isinstance(value, torch.Tensor)
                found.add(StepInput("optimizer", f"optimizer.{name}.{key}", tensor, (parameter, key), number=is_number))
    for index, (_, group) in enumerate(groups):
        for key in live_settings(group, live):
            found.add(StepInput("hyper", f"hyper.{index}.{key}", tensor_of(group, key), (index, key)))


def _add_kept(found: StepInputs, root: Any, paths: Sequence[Path]) -> None:
    """Adds tensors that the step keeps outside of the model."""
    taken: dict[str, int] = {}
    for path in paths:
        name = _another(f"kept.{dotted(path)}", taken)
        tensor = follow(root, path)
        if not isinstance(tensor, torch.Tensor):
            raise StepError(
                f"`{shown(path)}` is a tensor on rank 0, and none here",
                code="U0123",
                cause="the step keeps a tensor there",
                hint="make all that the step uses alike on every rank",
            )
        found.add(StepInput("buffer", name, tensor, paths=(path,)))


def _add_read(found: StepInputs, root: Any, read: Sequence[Sequence[Path]]) -> None:
    taken: dict[str, int] = {}
    for paths in read:
        kind = "averages" if is_decay(paths) else "generators"
        name = _another(f"{kind}.{dotted(paths[0])}", taken)
        found.add(StepInput("hyper", name, read_at(root, paths), paths=tuple(paths)))


def _add_scalars(found: StepInputs, scalars: Sequence[Expression], read: Read) -> None:
    for number, expression in enumerate(scalars):
        tensor = scalar_of(evaluate(expression, read))
        found.add(StepInput("hyper", f"numbers.{number}", tensor, number=True, expression=expression))


def scalar_of(value: float) -> torch.Tensor:
    """A number as a tensor that an operation takes for it."""
    return torch.tensor(value, dtype=_wide(value))


def is_decay(paths: Sequence[Path]) -> bool:
    """Whether what is read at each step is the decay of an average, and not the state of a generator."""
    return paths[0][-1] == averages.DECAY


def read_at(root: Any, paths: Sequence[Path]) -> torch.Tensor:
    """The decay of an average, or the state of a generator, as it is now."""
    if is_decay(paths):
        return averages.decay_of(follow(root, paths[0][:-1]))
    return generator_at(root, paths).get_state()


def _another(name: str, taken: dict[str, int]) -> str:
    """A name that none before it had."""
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}.{taken[name]}"


def constant(
    root: Any, name: str, dtype: torch.dtype, shape: list[int], device: torch.device, paths: list[Path]
) -> StepInput:
    """A constant that another rank has found, with this rank's own tensor where there is one."""
    found = [follow(root, path) for path in paths]
    known = dtype, shape, device.type
    same = [
        one for one in found if isinstance(one, torch.Tensor) and (one.dtype, list(one.shape), one.device.type) == known
    ]
    if not found or len(same) < len(found) or any(one is not same[0] for one in same):
        return StepInput("constant", name, torch.empty(shape, dtype=dtype, device=device))
    return StepInput("constant", name, same[0], paths=tuple(paths))


def _refuse_shared(name: str, one: Optimizer, other: Optimizer) -> None:
    raise StepError(
        f"`params.{name}` belongs to two optimizers, {type(one).__name__} and {type(other).__name__}",
        code="U0125",
        cause="`optimizer.<parameter>.<key>` names the state of one",
        hint="give each parameter to one optimizer, and each optimizer once",
    )


def _wide(value: float) -> torch.dtype:
    return torch.int64 if isinstance(value, int) else torch.float64


def _add_arguments(found: StepInputs, train_step: Callable[..., Any], call: Call) -> None:
    found.call = call
    for name, leaf in Caller(train_step).names(call):
        found.paths.append(name)
        if isinstance(leaf, torch.Tensor):
            found.leaves.append(found.add(StepInput("batch", f"batch.{name}", leaf)))
        elif isinstance(leaf, (*PLAIN, enum.Enum)):
            found.leaves.append(None)
            found.constants[name] = leaf
        else:
            raise StepError(
                f"argument `{name}` is a {type(leaf).__name__}",
                code="U0121",
                cause="a step's arguments are tensors, numbers, strings and containers of them",
                hint="turn it into a tensor, or let the step close over it if it never changes",
            )
