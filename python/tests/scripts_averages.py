"""Scripts that keep an average of the model, whose decay follows from a count."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair
from user_scripts import script


@script
def an_average_that_warms_up_takes_a_step_in_the_step(parallelize):
    from diffusers.training_utils import EMAModel

    model = Net()
    optimizer = adam(model)
    average = EMAModel(model.parameters(), decay=0.9, use_ema_warmup=True, power=0.75)
    plain = EMAModel(model.parameters(), update_after_step=1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        average.step(model.parameters())
        if torch.isfinite(loss):
            optimizer.step()
            plain.step(model.parameters())
        return loss.detach()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = []
    for number in range(6):
        found.append(step(*batch if number != 3 else (batch[0] * float("nan"), batch[1])))
        found.append((average.cur_decay_value, average.optimization_step, plain.cur_decay_value))
    step.sync()
    return ended(step, (found, average.shadow_params, plain.shadow_params), model, optimizer)


@script
def averages_of_torch_are_updated_in_the_step(parallelize):
    averaged, decay = torch.optim.swa_utils.AveragedModel, torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    model = Net()
    optimizer = adam(model)
    moving, equal = averaged(model, multi_avg_fn=decay), averaged(model, use_buffers=True)

    def trained(average):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            return loss.detach()

        return step

    batch = pair()
    first = parallelize(trained(moving), model=model, optimizer=optimizer, example=batch)
    found = [first(*batch) for _ in range(3)]
    first.sync()
    second = parallelize(trained(equal), model=model, optimizer=optimizer, example=batch)
    found += [second(*batch) for _ in range(3)]
    second.sync()
    return ended(second, (found, moving.state_dict(), equal.state_dict()), model, optimizer)
