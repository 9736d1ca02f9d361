"""Scripts whose steps draw from generators of their own."""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair
from torch import nn
from user_scripts import script


@script
def a_generator_of_the_step_draws_by_every_function(parallelize):
    model = Net()
    optimizer = adam(model)
    g = torch.Generator().manual_seed(5)

    def step(x, y):
        optimizer.zero_grad()
        noise = torch.rand(x.shape, generator=g) + torch.randn(x.shape[1], generator=g, dtype=torch.float64).float()
        order = torch.randperm(len(x), generator=g)
        picked = torch.multinomial(x.exp(), 2, generator=g).float().mean()
        level = torch.randint(2, 5, (len(x), 1), generator=g) + torch.empty(1).uniform_(1, 2, generator=g)
        kept = torch.bernoulli(torch.full_like(x, 0.8), generator=g)
        spread = torch.normal(x.t(), 0.1, generator=g).t() + torch.empty(8, len(x)).normal_(generator=g).t()
        odd = torch.zeros(len(x), 8)
        odd[:, ::2].exponential_(2.0, generator=g)
        loss = F.mse_loss(model((x + noise)[order] * kept / level + 0.1 * (spread + odd + picked)), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), level, order, torch.rand(2)

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [step(*batch) for _ in range(3)]
    return ended(step, (found, g.get_state()), model, optimizer)


class Noisy(nn.Module):
    """A dropout and a noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.random = Net(), torch.Generator().manual_seed(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.rand(x.shape, generator=self.random) < 0.7
        nn.init.xavier_uniform_(torch.empty(3, 2), generator=self.random)
        return self.net(torch.where(mask, x / 0.7, 0))


@script
def generators_of_a_module_and_of_settings_are_seeded_and_set_between_steps(parallelize):
    model = Noisy()
    optimizer = adam(model)
    settings = types.SimpleNamespace(random=[torch.Generator().manual_seed(1)])

    def step(x, y, loud=torch.Generator().manual_seed(11)):  # noqa: B008
        optimizer.zero_grad()
        noise = torch.randn(x.shape, generator=settings.random[0]) * torch.rand(1, generator=loud)
        loss = F.mse_loss(model(x + 0.1 * noise), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), noise

    batch = pair()
    parallel = parallelize(step, model=model, optimizer=optimizer, example=batch)
    found = [parallel(*batch), parallel(*batch)]
    found.append(torch.rand(3, generator=model.random))
    model.random.manual_seed(2)
    found.append(parallel(*batch))
    settings.random[0] = torch.Generator().manual_seed(3)
    found += [parallel(*batch), parallel(*batch)]
    states = [model.random.get_state(), settings.random[0].get_state(), step.__defaults__[0].get_state()]
    return ended(parallel, (found, states), model, optimizer)


@script
def a_generator_is_seeded_and_set_back_in_the_step(parallelize):
    model = Net()
    optimizer = adam(model)
    g, fixed = torch.Generator().manual_seed(5), torch.Generator()
    start = torch.Generator().manual_seed(9).get_state()

    def step(x, y, scored):
        optimizer.zero_grad()
        before = g.get_state()
        first = torch.rand(x.shape, generator=g)
        g.set_state(before)
        again = torch.rand(x.shape, generator=g)
        more = torch.rand(x.shape, generator=fixed.manual_seed(4))
        fixed.set_state(start)
        loss = F.mse_loss(model(x + first + torch.randn(x.shape, generator=fixed)), y)
        loss.backward()
        if loss < 1.2:
            optimizer.step()
            g.manual_seed(1)
        return loss.detach(), first, again, more, scored

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=(*batch, 1))
    found = [step(*batch, 1) for _ in range(3)]
    return ended(step, (found, g.get_state(), fixed.get_state()), model, optimizer)
