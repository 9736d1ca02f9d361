"""Hooks of parameters and modules do in a captured step what they do in eager PyTorch, and gradients can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import Training, compare
from torch import nn

import unisono
from unisono.errors import StepError, UnsupportedError


def training(register: Callable[[nn.Module, Any], Any], steps_itself: bool = True, **others: Any) -> Training:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    register(model, optimizer)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if steps_itself:
            optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randn(3, 6),) for _ in range(4)], **others)


def test_hooks_of_gradients_are_called_in_order_and_return_others():
    def register(model, optimizer):
        weight = model[0].weight
        weight.register_hook(lambda gradient: gradient * 3)
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01) + weight * 0.1)
        model[2].bias.register_hook(lambda gradient: None)

    compare(lambda: training(register))


def test_hooks_that_were_removed_are_not_called():
    compare(lambda: training(lambda model, _: model[0].weight.register_hook(lambda gradient: gradient * 0).remove()))


def test_hooks_of_accumulated_gradients_change_them_in_place():
    def register(model, optimizer):
        def hook(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.mul_(0.5).add_(parameter.detach(), alpha=0.1)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)

    compare(lambda: training(register))


def test_one_optimizer_for_each_parameter_steps_in_the_backward_pass():
    def make() -> Training:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
        optimizers = {parameter: torch.optim.AdamW([parameter], lr=0.01) for parameter in model.parameters()}

        def hook(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(hook)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        batches = [(torch.randn(3, 6),) for _ in range(4)]
        return Training(model, list(optimizers.values()), step, batches)

    compare(make)


def test_hooks_of_modules_and_of_results_are_called():
    def register(model, optimizer):
        model[1].register_full_backward_hook(lambda module, given, made: (given[0] * 2,))
        model[0].register_forward_pre_hook(lambda module, arguments: (arguments[0] * 2,))
        model[0].register_forward_hook(lambda module, arguments, result: result.register_hook(torch.neg) and None)

    compare(lambda: training(register))


def test_a_hook_that_reads_a_value_is_refused_by_its_line():
    given = training(lambda model, _: model[0].weight.register_hook(lambda g: g if g.norm() > 1 else g * 2))
    with pytest.raises(StepError) as caught:
        unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.code == "U0101"
    assert caught.value.place.startswith(__file__)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_of_several_gradients_is_refused(mode):
    def register(model, _):
        torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda gradients: None, mode=mode)

    given = training(register)
    with pytest.raises(UnsupportedError) as caught:
        unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.code == "U0116"
    assert "params.0.weight" in caught.value.message


def test_gradients_are_there_after_each_step_where_they_are_asked_for():
    def make() -> Training:
        made = training(lambda model, _: None, settings={"keep_grads": True})
        made.visible = lambda: [parameter.grad for parameter in made.model.parameters()]
        return made

    compare(make)


def test_gradients_stay_as_they_were_where_they_are_not_asked_for():
    given = training(lambda model, _: None)
    step = unisono.parallelize(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    step(*given.batches[0])
    assert all(parameter.grad is None for parameter in given.model.parameters())
