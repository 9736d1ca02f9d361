"""The capture of a step as a whole: its graph and how to talk to it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch.utils._pytree as pytree
from torch import nn
from torch.optim import Optimizer

from unisono._capture.inputs import StepInputs, collect
from unisono._capture.kept import Kept
from unisono._capture.optimizer import create_state, guarded_settings
from unisono._capture.places import user_place
from unisono._capture.side_effects import warned_of
from unisono._capture.trace import Traced, trace
from unisono._capture.wire import Encoder
from unisono.errors import StepError, UnisonoError

#: A step keeps in one trace what the trace before it has not kept; more often than this it does not end.
_MOST_TRACES = 6


@dataclass
class Capture:
    """A captured step.

    Attributes:
        message: the graph as MessagePack, as crate ``ir`` reads it.
        inputs: the inputs, in the order of the graph's inputs.
        returns: how the step's return value is put together.
        return_constants: leaves of the return value that are no tensors, by position.
        settings: the optimizer's settings that became constants of the graph.
        kept: what the step keeps outside of the model; what it leaves there is returned behind what it returns itself.
    """

    message: bytes
    inputs: StepInputs
    returns: pytree.TreeSpec
    return_constants: dict[int, Any]
    settings: list[dict[str, Any]]
    kept: Kept


def capture_step(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    example: Any,
    keep_gradients: bool = False,
) -> Capture:
    """Captures one call of ``train_step``; see :func:`unisono.capture`."""
    for optimizer in optimizers:
        try:
            create_state(optimizer)
        except UnisonoError as error:
            _find_call(error, optimizer, train_step, model, optimizers, example)
            raise
    settings = guarded_settings(optimizers)
    with warned_of(train_step, model):
        traced, encoder, inputs, kept = _traced(train_step, model, optimizers, example, keep_gradients)
    for item in inputs.inputs:
        if item.cls == "constant":
            item.paths = tuple(kept.paths_to(item.tensor))
    return Capture(encoder.bytes(), inputs, traced.returns, traced.return_constants, settings, kept)


def _traced(
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    example: Any,
    keep_gradients: bool,
) -> tuple[Traced, Encoder, StepInputs, Kept]:
    """Traces the step until all that it keeps is known."""
    kept = Kept(train_step, model, optimizers, keep_gradients=keep_gradients)
    may_be_there = True
    try:
        for _ in range(_MOST_TRACES):
            inputs = collect(train_step, model, optimizers, example, [*kept.replaced, *kept.written])
            traced = trace(train_step, model, optimizers, inputs, kept=kept, gradients_may_be_there=may_be_there)
            kept.mark()
            if traced is None:
                continue
            encoder = Encoder(traced, inputs)
            if not encoder.reads_stale_gradients:
                return traced, encoder, inputs, kept
            _refuse_stale_gradients(inputs, traced)
            may_be_there = False
            kept.start_again()
    finally:
        kept.restore()
    raise StepError(
        "what the step keeps in variables, attributes or containers is another at every step",
        code="U0115",
        cause=f"it was traced {_MOST_TRACES} times, and each time it replaced a tensor that it had not replaced before",
        hint="keep tensors that live from step to step as buffers of the model (`register_buffer`)",
    )


def _find_call(
    error: UnisonoError,
    optimizer: Optimizer,
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    example: Any,
) -> None:
    """Gives an error of one of the optimizers the place where the step calls it, if it does."""

    def called(*_arguments: Any, **_settings: Any) -> None:
        file, line = user_place(sys._getframe(1))
        error.place = f"{file}:{line}"
        raise error

    # Gradients are not asked for: they may be what cannot be traced.
    quick = mock.patch.object(optimizer, "step", called), mock.patch("torch.Tensor.backward")
    with quick[0], quick[1], contextlib.suppress(Exception):
        inputs = collect(train_step, model, optimizers, example)
        trace(train_step, model, optimizers, inputs, gradients_may_be_there=True)


def _refuse_stale_gradients(inputs: StepInputs, traced: Traced) -> None:
    """Refuses a step that adds to the gradients it finds, unless it finds none and leaves none."""
    there = [i.name for i in inputs.inputs if i.cls == "parameter" and i.tensor.grad is not None]
    if there or not traced.ends_without_gradients:
        raise StepError(
            "the step adds to gradients that an earlier step left",
            code="U0109",
            cause="gradients would have to be carried from step to step; they are not state of the captured step",
            hint="call `optimizer.zero_grad()` at the beginning of the step; accumulate over micro-batches within one step",
        )
