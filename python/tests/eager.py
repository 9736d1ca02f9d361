"""One rank beside eager PyTorch: the same training twice from the same numbers, once by its captured step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import torch
import torch.utils._pytree as pytree
from machines import DEAR_COMPUTING
from ranks import train
from torch import nn

import unisono


@dataclass
class Training:
    """What a user has; ``between`` is called with the number of each step that is over."""

    model: nn.Module
    optimizer: Any
    step: Callable[..., Any]
    batches: list[tuple[Any, ...]]
    between: Callable[[int], Any] = lambda number: None
    #: What the user can read after each step beside the model.
    visible: Callable[[], Any] = lambda: None
    settings: dict[str, Any] = field(default_factory=dict)
    #: Whether nothing writes into what steps return.
    keeps_what_is_returned: bool = True


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors and numbers of a tree, as they are now."""
    leaves = (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor | int | float))
    return [torch.as_tensor(leaf).detach().clone() for leaf in leaves]


def run(training: Training, step: Callable[..., Any]) -> tuple[list[list[torch.Tensor]], dict[Any, torch.Tensor]]:
    """What each step returned and left visible, the model at the end and the next random number; and the state of optimizers, by name."""
    seen, raw = [], []
    for number, batch in enumerate(training.batches):
        raw.append(step(*batch))
        seen.append(tensors(raw[-1]) + tensors(training.visible()))
        seen.append(tensors(training.between(number)))
    optimizers = training.optimizer if isinstance(training.optimizer, list) else [training.optimizer]
    if step is not training.step:
        step.sync()  # type: ignore[attr-defined]
    seen.append(tensors(training.model.state_dict()))
    if training.keeps_what_is_returned:
        seen.extend(tensors(one) for one in raw)  # a later step must not write into it
    states = [(number, optimizer.state_dict()["state"]) for number, optimizer in enumerate(optimizers)]
    named = {
        (number, parameter, key): torch.as_tensor(value).clone()
        for number, state in states
        for parameter, values in state.items()
        for key, value in values.items()
        if value is not None
    }
    return [*seen, [torch.rand(3)]], named


def compare(make: Callable[[], Training], exactly: bool = False) -> Any:
    """Asserts that the captured step gives what eager PyTorch gives; returns the parallel step."""
    seeded = torch.default_generator.manual_seed  # `torch.manual_seed` looks at all kinds of devices
    seeded(3)
    training = make()
    seeded(0)
    expected, wanted_state = run(training, training.step)
    seeded(3)
    training = make()
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        seed=0,
        **{"cluster": DEAR_COMPUTING} | training.settings,
    )
    found, state = run(training, step)
    # A parameter without gradients has no state in eager PyTorch, and the captured step's is that of the beginning.
    found.append([state[name] for name in wanted_state])
    expected.append(list(wanted_state.values()))
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(ours) == len(theirs), f"part {number}"
        for one, wanted in zip(ours, theirs, strict=True):
            is_equal = torch.equal(one, wanted)
            if exactly:
                assert is_equal, f"part {number} of {len(found)}"
            elif not is_equal or one.dtype != wanted.dtype:
                torch.testing.assert_close(
                    one, wanted, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, n=number: f"part {n}: {m}"
                )
    return step


def compare_shards(given: Training, ranks: int) -> None:
    """Asserts that ranks in lock-step, each with a shard of every batch, return and learn what eager PyTorch does."""
    graph = unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    settings = {"mesh": {"a": ranks}, "pins": {"batch.*": {"a": "shard(0)"}}, "memory_limit": None}
    plan = graph.native.plan(DEAR_COMPUTING, msgpack.packb(settings))
    found, parameters = train(graph, plan, {"a": ranks}, given.batches, passes=True)
    expected = torch.stack([given.step(*batch) for batch in given.batches])
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-5, atol=1e-5)
    for name, parameter in given.model.named_parameters():
        torch.testing.assert_close(parameters[name], parameter.detach(), rtol=1e-5, atol=1e-5)
