"""Scripts in which an update depends on what was computed."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair, seen
from torch.utils._pytree import tree_leaves
from user_scripts import script


def scaled(parallelize, make_optimizer, clip):
    model = Net()
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    batches = [pair() for _ in range(6)]
    batches[3][1][0, 0] = float("inf")
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    losses, scales = [], []
    for batch in batches:
        losses.append(step(*batch))
        scales.append(scaler.get_scale())
    step.sync()
    return losses, scales, seen(model, optimizer), scaler.state_dict()


@script
def a_scaler_that_skips_an_update(parallelize):
    return scaled(parallelize, adam, clip=False)


@script
def a_scaler_with_clipping_and_a_fused_optimizer(parallelize):
    return scaled(parallelize, lambda m: torch.optim.AdamW(m.parameters(), 0.01, eps=1e-3, fused=True), clip=True)


@script
def checks_that_end_the_training(parallelize):
    """Checks of values with exceptions of their own kinds, one of which fails in the end; what is printed before it is printed."""
    model = Net()
    optimizer = adam(model)

    class DivergedError(RuntimeError):
        pass

    def step(x, y):
        assert x.abs().max() < 1e6 and not y.isnan().any(), "the batch is broken"
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(f"loss is {value}")
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        return value

    batches = [pair() for _ in range(4)]
    batches[3][1][0, 0] = float("inf")
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    losses = [step(*batch) for batch in batches[:3]]
    step.sync()
    at_last = [one.detach().clone() for one in tree_leaves(seen(model, optimizer)) if isinstance(one, torch.Tensor)]
    try:
        step(*batches[3])
    except RuntimeError as error:
        losses.append(str(error))
    return losses, at_last


@script
def an_update_only_where_the_loss_is_finite(parallelize):
    model = Net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if torch.isfinite(loss):
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm.item() > 0.5:
                optimizer.step()
                return loss.detach(), "clipped", loss.item()
            optimizer.step()
            return loss.detach(), "updated", 0.0
        print("skipped", loss.item())
        return loss.detach(), "skipped", -1.0

    batches = [pair() for _ in range(6)]
    batches[2][1][0, 0] = float("inf")
    batches[4][1][0, 0] = float("nan")
    batches[5] = (batches[5][0], model(batches[5][0]).detach())
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    found = [step(*batch) for batch in batches]
    return ended(step, found, model, optimizer)
