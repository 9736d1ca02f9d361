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
