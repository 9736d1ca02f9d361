"""Scripts of ways to train that differ from one loss and one update: penalties, several updates, copies, queues."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import adam, ended
from torch import nn
from torch.func import functional_call, grad, vmap
from user_scripts import script


def _mlp(given: int = 8, made: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, 16), nn.ReLU(), nn.Linear(16, made))


def _run(parallelize, model, optimizer, step, shapes):
    batches = [tuple(torch.randn(shape) for shape in shapes) for _ in range(3)]
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    found = [step(*batch) for batch in batches]
    return ended(step, found, model, optimizer[0] if isinstance(optimizer, list) else optimizer)


@script
def a_critic_with_a_gradient_penalty(parallelize):
    critic, generator = _mlp(8, 1), _mlp(4, 8)
    optimizers = [adam(critic), adam(generator)]

    def step(real, noise):
        fake = generator(noise).detach()
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        fooled = -critic(generator(noise)).mean()
        optimizers[1].zero_grad()
        fooled.backward()
        optimizers[1].step()
        return loss.item(), fooled.item()

    model = nn.ModuleDict({"critic": critic, "generator": generator})
    return _run(parallelize, model, optimizers, step, [(8, 8), (8, 4)])


@script
def gradients_of_each_sample_are_clipped(parallelize):
    model = _mlp()
    optimizer = adam(model)

    def loss_of(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, (x[None],))[0], y)

    def step(x, y):
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
        for name, parameter in model.named_parameters():
            norms = gradients[name].flatten(1).norm(dim=1)
            parameter.grad = torch.einsum("b,b...->...", (1 / (norms + 1e-6)).clamp(max=1.0), gradients[name]) / len(x)
        optimizer.step()
        return norms

    return _run(parallelize, model, optimizer, step, [(8, 8), (8, 4)])


@script
def an_update_within_the_update(parallelize):
    model = _mlp()
    optimizer = adam(model)

    def step(known, asked, xs, ys):
        parameters = dict(model.named_parameters())
        total = torch.zeros(())
        for x, y in ((known, asked), (xs, ys)):
            inner = F.mse_loss(functional_call(model, parameters, (x,)), y)
            slopes = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
            pairs = zip(parameters.items(), slopes, strict=True)
            total = total + F.mse_loss(functional_call(model, {n: p - 0.1 * s for (n, p), s in pairs}, (x + 1,)), y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return total.detach()

    return _run(parallelize, model, optimizer, step, [(8, 8), (8, 4), (8, 8), (8, 4)])


@script
def a_step_up_before_the_step_down(parallelize):
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            ups = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
            for parameter, up in zip(model.parameters(), ups, strict=True):
                parameter.add_(up)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter, up in zip(model.parameters(), ups, strict=True):
                parameter.sub_(up)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return _run(parallelize, model, optimizer, step, [(8, 8), (8, 4)])


class _Contrasted(nn.Module):
    """Keys of a slower copy, in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = _mlp(), _mlp()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, 16), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        queries = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            for parameter, slow in zip(self.query.parameters(), self.key.parameters(), strict=True):
                slow.data = slow.data * 0.9 + parameter.data * 0.1
            keys = F.normalize(self.key(other), dim=1)
        alike = torch.einsum("nc,nc->n", queries, keys)[:, None]
        logits = torch.cat([alike, queries @ self.queue.clone().detach()], 1) / 0.2
        self.queue[:, (self.place + torch.arange(len(x))) % 16] = keys.T
        self.place[0] = (self.place[0] + len(x)) % 16
        return logits


@script
def a_queue_of_keys_of_a_slower_copy(parallelize):
    model = _Contrasted()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step(x, other):
        loss = F.cross_entropy(model(x, other), torch.zeros(len(x), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return _run(parallelize, model, optimizer, step, [(8, 8), (8, 8)])


@script
def a_target_that_follows_by_its_state_dict(parallelize):
    model, target = _mlp(), _mlp()
    target.load_state_dict(model.state_dict())
    optimizer = adam(model)

    def step(x, other):
        with torch.no_grad():
            wanted = x[:, 0] + 0.9 * target(other).max(1).values
        loss = F.smooth_l1_loss(model(x).gather(1, (x[:, :1] > 0).long()).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-1, 1)
        optimizer.step()
        states = model.state_dict(), target.state_dict()
        target.load_state_dict({name: 0.1 * states[0][name] + 0.9 * states[1][name] for name in states[0]})
        return loss.detach()

    return _run(parallelize, model, optimizer, step, [(8, 8), (8, 8)]), target.state_dict()
