"""Scripts in which gradients live longer than a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair, seen
from torch import nn
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


@script
def convolutions_of_what_has_its_channels_last_in_memory(parallelize):
    before, after = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
    model = nn.ModuleList([before, nn.Linear(32, 32), after])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(images):
        optimizer.zero_grad()
        pixels = model[1](before(images).flatten(2).transpose(1, 2))  # as attention over pixels leaves them
        loss = after(pixels.transpose(1, 2).view(-1, 32, 4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    images = torch.randn(16, 3, 4, 4)
    step = parallelize(train_step, model=model, optimizer=optimizer, example=(images,))
    losses = [step(images), step(images)]
    step.sync()
    return losses, model.state_dict()


def _with_sparse_gradients(parallelize, make):
    model = nn.ModuleDict(
        {"words": nn.Embedding(10, 8, padding_idx=0, sparse=True), "kinds": nn.Embedding(4, 8, sparse=True)}
    )
    optimizer = make(model)

    def step(tokens, kinds, y):
        optimizer.zero_grad()
        hidden = model["words"](tokens).mean(1) + F.embedding(kinds, model["kinds"].weight, sparse=True)
        loss = F.mse_loss(hidden, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(torch.randint(0, 10, (6, 3)), torch.randint(0, 4, (6,)), torch.randn(6, 8)) for _ in range(3)]
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    losses = [step(*batch) for batch in batches]
    step.sync()
    state = [one.to_dense() for values in optimizer.state.values() for one in values.values() if torch.is_tensor(one)]
    return losses, model.state_dict(), state


@script
def gradients_of_embeddings_are_sparse_in_sgd(parallelize):
    return _with_sparse_gradients(parallelize, lambda model: torch.optim.SGD(model.parameters(), lr=1.0))


@script
def gradients_of_embeddings_are_sparse_in_sgd_with_momentum(parallelize):
    return _with_sparse_gradients(
        parallelize, lambda model: torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    )


@script
def gradients_of_embeddings_are_sparse_in_adagrad(parallelize):
    return _with_sparse_gradients(parallelize, lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1))


def _used_by_turns(parallelize, uses, trained=()):
    """Gradients are set to zero in place, so that a layer that is not used goes on by its momentum once it has one."""
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def step(x, y, use):
        optimizer.zero_grad(set_to_none=False)
        hidden = model[0](x)
        if use:
            hidden = model[1](hidden)
        loss = F.mse_loss(model[2](hidden), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    parallel = parallelize(step, model=model, optimizer=optimizer, example=(*batch, uses[0]))
    losses = []
    for number, use in enumerate(uses):
        losses.append(parallel(*batch, use))
        model[0].requires_grad_(number not in trained)
    parallel.sync()
    return losses, model.state_dict()


@script
def a_layer_that_is_never_used_has_no_gradient_to_set_to_zero(parallelize):
    return _used_by_turns(parallelize, (False, False, False))


@script
def a_layer_is_used_from_the_second_step_on(parallelize):
    return _used_by_turns(parallelize, (False, True, False, True, False))


@script
def a_layer_is_not_used_for_a_while(parallelize):
    return _used_by_turns(parallelize, (True, False, False, True))


@script
def a_layer_is_frozen_whose_gradient_is_set_to_zero(parallelize):
    return _used_by_turns(parallelize, (True, True, True, True, True), trained=(1, 2))
