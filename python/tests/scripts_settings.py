"""Scripts in which schedulers and people change settings of optimizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, begun, ended, pair, seen, simple
from user_scripts import script


def with_scheduler(parallelize, make_optimizer, make_scheduler):
    model = Net()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    batch = pair()
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)
    losses = []
    for _ in range(6):
        losses.append(step(*batch))
        scheduler.step()
    step.sync()
    return losses, seen(model, optimizer), [dict(group, params=None) for group in optimizer.param_groups]


@script
def one_cycle_with_adam(parallelize):
    return with_scheduler(
        parallelize,
        lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=8),
    )


@script
def one_cycle_with_momentum(parallelize):
    return with_scheduler(
        parallelize,
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=8),
    )


@script
def settings_that_people_change(parallelize):
    model, optimizer, batch, step = begun(parallelize)
    losses = []
    for number in range(5):
        optimizer.param_groups[0]["weight_decay"] = 0.1 * number
        optimizer.param_groups[0]["betas"] = (0.9, 0.999 - 0.01 * max(number - 1, 0))
        losses.append(step(*batch))
    return ended(step, losses, model, optimizer)


def within(parallelize, make_scheduler, order):
    model = Net()
    optimizer = adam(model)
    scheduler = make_scheduler(optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if order == "before":
            scheduler.step()
        optimizer.step()
        if order == "with the loss":
            scheduler.step(loss.item())
        elif order == "after":
            scheduler.step()
        return loss.detach()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [[step(*batch), optimizer.param_groups[0]["lr"]] for _ in range(5)]
    step.sync()
    return found, seen(model, optimizer), scheduler.last_epoch


@script
def a_scheduler_within_the_step(parallelize):
    return within(parallelize, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=8), "after")


@script
def a_scheduler_within_the_step_that_reads_the_loss(parallelize):
    make = torch.optim.lr_scheduler.ReduceLROnPlateau
    return within(parallelize, lambda o: make(o, patience=0, threshold=10.0), "with the loss")


@script
def rates_that_the_step_reads_around_its_scheduler(parallelize):
    model, told = Net(), []
    optimizer = torch.optim.SGD(
        [{"params": model.a.parameters()}, {"params": model.b.parameters(), "lr": 0.02}], lr=0.01, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.02, 0.03], total_steps=8)

    def rates():
        return [group[key] for group in optimizer.param_groups for key in ("lr", "momentum")]

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        before = rates(), scheduler.get_last_lr()
        scheduler.step()
        told.append(f"{scheduler.get_last_lr()[1]:.5f} {optimizer.param_groups[0]['lr'] * 2:.5f}")
        return loss.detach(), before, rates(), scheduler.get_last_lr()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [step(*batch) for _ in range(5)]
    step.sync()
    return found, told, seen(model, optimizer)


@script
def rates_of_a_scheduler_outside_the_step(parallelize):
    model = Net()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), scheduler.get_last_lr()[0]

    batch = pair()
    step, found = parallelize(step, model=model, optimizer=optimizer, example=batch), []
    for _ in range(4):
        found.append(step(*batch))
        scheduler.step()
    step.sync()
    return found, seen(model, optimizer)


@script
def a_scheduler_before_the_update(parallelize):
    return within(parallelize, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5), "before")
