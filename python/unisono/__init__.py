"""Write a PyTorch training step for one device; it runs on many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unisono import errors
from unisono._native import __version__

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unisono.graph import StepGraph

__all__ = ["__version__", "capture", "errors"]


def capture(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    example: Any,
) -> StepGraph:
    """Captures one training step (forward, loss, backward, clipping, optimizer) as a flat, functional graph.

    The step's Python code runs once, on tensors without data; model and optimizer are left as they are, except that the optimizer gets
    the state that its first step would create.

    Inputs of the graph are named ``params.<name>``, ``buffers.<name>``, ``optimizer.<parameter>.<key>``, ``hyper.<group>.lr``,
    ``batch.<argument path>`` and ``constants.<number>``.

    Args:
        train_step: a function that does one step with ``model`` and ``optimizer``; it may close over them.
        model: the module that the step trains.
        optimizer: any optimizer of ``torch.optim`` that needs no closure.
        example: the tuple of arguments that the step is called with; only shapes, types and devices of its tensors matter.

    Returns:
        The graph.

    Raises:
        StepError: the step's control flow or shapes depend on data, or it changes something that cannot be an update of state.
        UnsupportedError: the step contains something that cannot be captured yet.
    """
    from unisono._capture import capture_step
    from unisono.graph import StepGraph

    return StepGraph(capture_step(train_step, model=model, optimizer=optimizer, example=example))
