"""Scripts in which gradients live longer than a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair, seen
from user_scripts import script


def looping(parallelize, zero, **settings):
    """The step leaves gradients; ``zero`` is called with the optimizer before each step, and its number."""
    model = Net()
    optimizer = adam(model)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch, **settings)
    losses, gradients = [], []
    for number in range(5):
        zero(optimizer, number)
        losses.append(step(*batch))
        gradients.append([p.grad.clone() for p in model.parameters()])
    step.sync()
    return losses, gradients, seen(model, optimizer)


@script
def gradients_zeroed_in_the_loop(parallelize):
    return looping(parallelize, lambda optimizer, number: optimizer.zero_grad())


@script
def gradients_zeroed_in_place_in_the_loop(parallelize):
    return looping(parallelize, lambda optimizer, number: optimizer.zero_grad(set_to_none=False))


@script
def gradients_never_zeroed(parallelize):
    return looping(parallelize, lambda optimizer, number: None)


@script
def gradients_zeroed_every_other_step(parallelize):
    return looping(parallelize, lambda optimizer, number: number % 2 or optimizer.zero_grad())


@script
def accumulation_across_steps(parallelize):
    model = Net()
    optimizer = adam(model)

    def step(x, y, update):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        if update:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    batches = [pair() for _ in range(6)]
    step = parallelize(step, model=model, optimizer=optimizer, example=(*batches[0], False))
    losses = [step(*batch, number % 2 == 1) for number, batch in enumerate(batches)]
    return ended(step, losses, model, optimizer)
