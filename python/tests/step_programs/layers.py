"""Habits of models: what happens to the hidden values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from step_programs.program import WIDTH, Program, habit


@habit
def linear(p: Program) -> None:
    layer, act = p.add(nn.Linear(WIDTH, WIDTH)), p.rng.choice([F.relu, F.gelu, torch.tanh, F.silu, torch.sigmoid])
    p.layers.append(lambda h: act(layer(h)))


@habit
def nested(p: Program) -> None:
    inner = nn.Sequential(nn.Linear(WIDTH, 8), nn.ModuleDict({"norm": nn.LayerNorm(8)})["norm"], nn.Linear(8, WIDTH))
    block = p.add(nn.Sequential(inner, nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH))))
    p.layers.append(lambda h: h + block(h))


@habit
def batch_norm(p: Program) -> None:
    p.layers.append(p.add(nn.BatchNorm1d(WIDTH)))


@habit
def dropout(p: Program) -> None:
    p.layers.append(p.add(nn.Dropout(p.rng.choice([0.1, 0.5]))))


@habit
def dropout_of_a_transpose(p: Program) -> None:
    p.layers.append(lambda h: F.dropout(h.T, 0.3).T)


@habit
def noise(p: Program) -> None:
    draw = p.rng.choice([torch.randn_like, torch.rand_like, lambda h: torch.rand(h.shape, dtype=h.dtype)])
    p.layers.append(lambda h: h + 0.1 * draw(h))


@habit
def noise_in_place(p: Program) -> None:
    fill = p.rng.choice(
        [torch.Tensor.exponential_, torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.bernoulli_]
    )
    p.layers.append(lambda h: h * (1 + 0.1 * fill(torch.empty_like(h.T)).T))


@habit
def checkpointed(p: Program) -> None:
    block = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.ReLU()))
    reentrant = p.rng.random() < 0.3 and bool(p.layers)
    p.layers.append(lambda h: checkpoint(block, h, use_reentrant=reentrant) + 0.0 * torch.rand_like(h))


@habit
def checkpointed_twice(p: Program) -> None:
    block = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)))

    def outer(h: torch.Tensor) -> torch.Tensor:
        return F.dropout(checkpoint(block, h, use_reentrant=False) * torch.rand_like(h), 0.1)

    p.layers.append(lambda h: checkpoint(outer, h, use_reentrant=False))


@habit
def writes_in_place(p: Program) -> None:
    choice = p.rng.randrange(4)

    def change(h: torch.Tensor) -> torch.Tensor:
        h = h.clone()
        if choice == 0:
            h[:, 0] = h[:, 1] * 2
        elif choice == 1:
            h[1:].mul_(0.5)
        elif choice == 2:
            F.relu_(h)
        else:
            h.T[2].zero_()
        return h

    p.layers.append(change)


@habit
def views(p: Program) -> None:
    p.layers.append(lambda h: h.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH).roll(1, 1))


@habit
def detached(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = layer(h).softmax(-1)
        return h * target

    p.layers.append(change)


@habit
def frozen(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    layer.weight.requires_grad_(False)
    p.layers.append(layer)


@habit
def own_gradient(p: Program) -> None:
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradients[0] * (1 + 0.1 * x)

    p.layers.append(Clamp.apply)


@habit
def early_return(p: Program) -> None:
    layer, on = p.add(nn.Linear(WIDTH, WIDTH)), p.rng.random() < 0.5

    def change(h: torch.Tensor) -> torch.Tensor:
        if not on or not p.model.training:
            return h
        return layer(h)

    p.layers.append(change)


@habit
def recurrent_layers(p: Program) -> None:
    kind = p.rng.choice([nn.LSTM, nn.LSTM, nn.GRU, nn.RNN])
    several = {"num_layers": 2, "dropout": 0.3} if kind is nn.LSTM and p.rng.random() < 0.5 else {}
    layer = p.add(kind(3, WIDTH, batch_first=True, **several))
    p.layers.append(lambda h: layer(h.view(-1, 2, 3))[0][:, -1] if not p.cast else h)


@habit
def attention(p: Program) -> None:
    first = p.rng.random() < 0.5
    if p.rng.random() < 0.5:
        block = p.add(nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.2, batch_first=first))
        p.layers.append(lambda h: block(h[None])[0])
    else:
        layer = p.add(nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=first))
        p.layers.append(lambda h: h + layer(h[None], h[None], h[None], need_weights=False)[0][0])


@habit
def convolution(p: Program) -> None:
    layer = p.add(nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Dropout1d(0.2)))
    p.layers.append(lambda h: h + layer(h[:, None]).mean(1))


@habit
def embedding(p: Program) -> None:
    table = p.add(nn.Embedding(5, WIDTH))
    p.layers.append(lambda h: h + table((h.detach()[:, 0] > 0).long()))


@habit
def normed_weights(p: Program) -> None:
    norm = p.rng.choice([nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
    p.layers.append(p.add(norm(nn.Linear(WIDTH, WIDTH))))


@habit
def tied_weights(p: Program) -> None:
    one, other = p.add(nn.Linear(WIDTH, WIDTH)), p.add(nn.Linear(WIDTH, WIDTH))
    other.weight = one.weight
    p.layers.append(lambda h: other(torch.tanh(one(h))))


@habit
def selecting_and_scattering(p: Program) -> None:
    def change(h: torch.Tensor) -> torch.Tensor:
        best, chosen = h.topk(2, dim=1)
        spread = torch.zeros_like(h).scatter_add(1, chosen, best)
        return torch.where(h > 0, spread, h.masked_fill(h < -1, 0.0)) + h.sort(1)[0].cumsum(1) * 0.1

    p.layers.append(change)


@habit
def modes_within(p: Program) -> None:
    layer = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))

    def change(h: torch.Tensor) -> torch.Tensor:
        layer.eval()
        with torch.set_grad_enabled(False):
            target = layer(h)
        layer.train()
        return layer(h) - target

    p.layers.append(change)


@habit
def inference_within(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = layer(h).tanh_()
        return h + target.clone()

    p.layers.append(change)


@habit
def own_slope(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        point = h.detach().clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(layer(point).square().sum(), point, create_graph=True)
        return h + 0.1 * slope

    p.layers.append(change)


@habit
def of_each_sample(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def one(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, (row,)).square().sum()

    def change(h: torch.Tensor) -> torch.Tensor:
        parameters = dict(layer.named_parameters())
        slopes = torch.func.vmap(torch.func.grad(one, argnums=1), in_dims=(None, 0))(parameters, h)
        return h + 0.05 * torch.tanh(slopes)

    if not p.cast:
        p.layers.append(change)


@habit
def parametrized(p: Program) -> None:
    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).T

    layer = p.add(nn.Linear(WIDTH, WIDTH))
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    p.layers.append(layer)


@habit
def hard_choices(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, 3))
    table = p.add(nn.Embedding(3, WIDTH))
    hard = p.rng.random() < 0.5
    p.layers.append(lambda h: h + F.gumbel_softmax(layer(h).float(), hard=hard).to(h.dtype) @ table.weight.to(h.dtype))  # type: ignore[union-attr, operator]


@habit
def several_hidden_steps(p: Program) -> None:
    cell = p.add(nn.GRUCell(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        hidden, seen = torch.zeros_like(h), []
        for _ in range(3):
            hidden = cell(h, hidden)
            seen.append(hidden)
        return torch.stack(seen, 1)[:, -2:].mean(1)

    if not p.cast:
        p.layers.append(change)


@habit
def moving_codes(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    model: Any = p.model
    model.register_buffer("codes", torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH))
    model.register_buffer("used", torch.ones(3))

    def change(h: torch.Tensor) -> torch.Tensor:
        flat = h.detach().to(dtype)
        nearest = F.one_hot((flat[:, None] - model.codes).square().sum(-1).argmin(1), 3).to(dtype)
        if model.training:
            model.used.mul_(0.9).add_(nearest.sum(0), alpha=0.1)
            model.codes.data.copy_(0.9 * model.codes + 0.1 * nearest.T @ flat / model.used[:, None])
        return h + 0.1 * (nearest @ model.codes - flat).to(h.dtype)

    p.layers.append(change)
