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
from unisono._capture.optimizer import create_state, guarded_settings
from unisono._capture.places import user_place
from unisono._capture.side_effects import warned_of
from unisono._capture.trace import Traced, trace
from unisono._capture.wire import Encoder
from unisono.errors import StepError, UnisonoError


@dataclass
class Capture:
    """A captured step.

    Attributes:
        message: the graph as MessagePack, as crate ``ir`` reads it.
        inputs: the inputs, in the order of the graph's inputs.
        returns: how the step's return value is put together.
        return_constants: leaves of the return value that are no tensors, by position.
        settings: the optimizer's settings that became constants of the graph.
    """

    message: bytes
    inputs: StepInputs
    returns: pytree.TreeSpec
    return_constants: dict[int, Any]
    settings: list[dict[str, Any]]


def capture_step(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    example: Any,
) -> Capture:
    """Captures one call of ``train_step``; see :func:`unisono.capture`."""
    for optimizer in optimizers:
        try:
            create_state(optimizer)
        except UnisonoError as error:
            _find_call(error, optimizer, train_step, model, optimizers, example)
            raise
    settings = guarded_settings(optimizers)
    inputs = collect(train_step, model, optimizers, example)
    with warned_of(train_step, model):
        traced = trace(train_step, model, optimizers, inputs, gradients_may_be_there=True)
        encoder = Encoder(traced, inputs)
        if encoder.reads_stale_gradients:
            traced, encoder, inputs = _without_gradients(train_step, model, optimizers, example, traced)
    return Capture(encoder.bytes(), inputs, traced.returns, traced.return_constants, settings)


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


def _without_gradients(
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    example: Any,
    before: Traced,
) -> tuple[Traced, Encoder, StepInputs]:
    """The capture of a step that adds to the gradients it finds: legal if it finds none and leaves none."""
    inputs = collect(train_step, model, optimizers, example)
    there = [i.name for i in inputs.inputs if i.cls == "parameter" and i.tensor.grad is not None]
    if there or not before.ends_without_gradients:
        raise StepError(
            "the step adds to gradients that an earlier step left",
            code="U0109",
            cause="gradients would have to be carried from step to step; they are not state of the captured step",
            hint="call `optimizer.zero_grad()` at the beginning of the step; accumulate over micro-batches within one step",
        )
    traced = trace(train_step, model, optimizers, inputs, gradients_may_be_there=False)
    return traced, Encoder(traced, inputs), inputs
