"""Ordinary training steps of many kinds give on one rank, and on two in each family of plans, what eager PyTorch gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from machines import DEAR_COMPUTING
from ranks import train
from torch import nn
from torch.func import functional_call, hessian, vmap
from torch.utils.checkpoint import checkpoint

import unisono

FAMILIES: dict[str, dict[str, str]] = {
    "free": {},
    "batch": {"batch.*": "shard(0)"},
    "state": {"params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "tensors": {"batch.*": "replicate"},
}
STEPS = 2
#: The model, the batch, and what is done with both; the optimizer's step comes behind it.
Case = tuple[nn.Module, tuple[Any, ...], Callable[..., Any]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def backward(loss_of: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, *batch)
        loss.backward()
        return loss

    return run


mean_square = backward(lambda model, x, y: F.mse_loss(model(x), y))
cross_entropy = backward(lambda model, x, y: F.cross_entropy(model(x), y))


def vectors(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 16), torch.randn(size, 8)


def perceptron(into: int = 16, out: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(into, 32), nn.GELU(), nn.Linear(32, out))


class Module(nn.Module):
    """Modules by name, and a function that runs them."""

    def __init__(self, run: Callable[..., torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.run(self, *batch)


@case
def gradients_of_four_parts_accumulate():
    def run(model, x, y):
        total = 0.0
        for part, wanted in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = F.mse_loss(model(part), wanted) / 4
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return total

    return perceptron(), vectors(), run


@case
def a_dictionary_comes_and_goes():
    def run(model, batch):
        out = model(batch["x"])
        loss = F.mse_loss(out, batch["y"])
        loss.backward()
        return {"loss": loss, "norm": nn.utils.clip_grad_norm_(model.parameters(), 1.0), "mean": out.mean()}

    x, y = vectors()
    return perceptron(), ({"x": x, "y": y},), run


@case
def tied_weights_and_ignored_targets():
    model = Module(lambda m, x: m.head(F.relu(m.middle(m.embedding(x)))))
    model.embedding, model.middle, model.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
    model.head.weight = model.embedding.weight

    def loss(model, x, y):
        scores = model(x).flatten(0, 1)
        return F.cross_entropy(scores, y.flatten(), ignore_index=3, label_smoothing=0.1)

    return model, (torch.randint(0, 32, (8, 6)), torch.randint(0, 32, (8, 6))), backward(loss)


@case
def frozen_and_unused_parameters():
    model = Module(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Linear(16, 16), b=nn.Linear(16, 8), unused=nn.Linear(4, 4))
    model.a.requires_grad_(False)
    return model, vectors(), mean_square


@case
def convolutions_with_batch_norm():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model.extend(
        [nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    )
    return model, (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))), cross_entropy


@case
def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2))
    model.extend([nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Flatten(), nn.Linear(8 * 64, 10)])
    x = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last), (x, torch.randint(0, 10, (8,))), cross_entropy


@case
def transposed_scores():
    def loss(model, x, y):
        a, b = F.normalize(model(x), dim=-1), F.normalize(model(y), dim=-1)
        scores, pairs = 10 * a @ b.T, torch.arange(len(x))
        return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2

    return perceptron(), (torch.randn(8, 16), torch.randn(8, 16)), backward(loss)


@case
def a_loss_of_transposed_results():
    model = Module(lambda m, x: (m.weight.tanh() @ x.T).T)
    model.weight = nn.Parameter(torch.randn(8, 16))

    def loss(model, x, y):
        return (
            F.mse_loss(model(x), y) + F.huber_loss(model(x), y) + F.elu(model(x)).mean() + F.logsigmoid(model(x)).mean()
        )

    return model, vectors(), backward(loss)


@case
def long_short_term_memory():
    model = Module(
        lambda m, x: m.head(m.layer(x)[0][:, -1]), layer=nn.LSTM(16, 12, batch_first=True), head=nn.Linear(12, 8)
    )
    return model, (torch.randn(8, 5, 16), torch.randn(8, 8)), mean_square


@case
def gated_recurrent_units():
    model = Module(
        lambda m, x: m.head(m.layer(x)[0].mean(1)), layer=nn.GRU(16, 12, batch_first=True), head=nn.Linear(12, 8)
    )
    return model, (torch.randn(8, 5, 16), torch.randn(8, 8)), mean_square


@case
def a_transformer_that_asks_whether_its_mask_is_causal():
    def run(model, x):
        mask = nn.Transformer.generate_square_subsequent_mask(3)
        return model.head(model.layers(x, x[:, :3], tgt_mask=mask).mean(1))

    layers = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
    return Module(run, layers=layers, head=nn.Linear(16, 8)), (torch.randn(8, 5, 16), torch.randn(8, 8)), mean_square


@case
def attention_with_padding():
    def run(model, x):
        vectors = model.embedding(x)
        attended, _ = model.attention(vectors, vectors, vectors, key_padding_mask=x == 0, need_weights=False)
        return model.head(attended.mean(1))

    tokens = torch.randint(1, 32, (8, 6))
    tokens[::2, 4:] = 0
    parts = {
        "embedding": nn.Embedding(32, 16, padding_idx=0),
        "attention": nn.MultiheadAttention(16, 4, batch_first=True),
    }
    return Module(run, **parts, head=nn.Linear(16, 8)), (tokens, torch.randn(8, 8)), mean_square


@case
def a_checkpoint():
    model = Module(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False)), a=perceptron(16, 16), b=perceptron())
    return model, vectors(), mean_square


@case
def a_penalty_on_gradients():
    def loss(model, x, y):
        x = x.clone().requires_grad_(True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out, y) + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()

    return perceptron(), vectors(), backward(loss)


@case
def a_penalty_on_curvature():
    def loss(model, x, y):
        def field(point):
            return functional_call(model, dict(model.named_parameters()), (point,)).sum()

        curvature = vmap(hessian(field))(x).diagonal(dim1=-2, dim2=-1).sum(-1)  # derivatives forward, of derivatives
        return F.mse_loss(model(x), y) + 0.1 * (curvature - 1).pow(2).mean()

    return perceptron(), vectors(), backward(loss)


@case
def a_loss_that_is_made_in_the_step():
    def loss(model, x, y):
        criterion = nn.ModuleDict({"scale": nn.Linear(8, 8), "norm": nn.BatchNorm1d(8)}).requires_grad_(False)
        with torch.no_grad():
            criterion["scale"].weight.copy_(torch.eye(8) / 2)
            criterion["scale"].bias.fill_(0.1)
        criterion = criterion.to(x.device).double()
        return F.mse_loss(criterion["norm"](criterion["scale"](model(x).double())), y.double()).float()

    return perceptron(), vectors(), backward(loss)


@case
def delays_that_the_data_say():
    def loss(model, x, y):
        out = model(x)
        found = out.mean(0).topk(2)[1]
        rolled = sum(torch.roll(out, shifts=-int(found[i]), dims=1) * out[:, found[i]][:, None] for i in range(2))
        return F.mse_loss(rolled, y) + out[found[0] - 8, 1:].mean() + out[-1 - found[1]].square().mean()

    return perceptron(), vectors(), backward(loss)


@case
def a_moving_average_of_the_model():
    model = Module(lambda m, x: m.net(x), net=perceptron(), average=perceptron())
    model.average.requires_grad_(False)

    def run(model, x, y):
        loss = F.mse_loss(model(x), y) + F.mse_loss(model.net(x), model.average(x).detach())
        loss.backward()
        with torch.no_grad():
            for average, parameter in zip(model.average.parameters(), model.net.parameters(), strict=True):
                average.lerp_(parameter, 0.1)
        return loss

    return model, vectors(), run


@case
def a_choice_of_experts():
    def run(model, x):
        weights, chosen = model.gate(x).softmax(-1).topk(2)
        return (torch.einsum("bd,bkdo->bko", x, model.experts[chosen]) * weights[..., None]).sum(1)

    model = Module(run, gate=nn.Linear(16, 4))
    model.experts = nn.Parameter(torch.randn(4, 16, 8) * 0.1)
    return model, vectors(), mean_square


@case
def weight_norm():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(16, 32))
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(32, 8)), vectors(), mean_square


@case
def a_batch_that_ranks_do_not_divide():
    return perceptron(), vectors(7), mean_square


@case
def images_made_smaller_and_larger():
    def run(model, x):
        half = F.relu(model.down(x))
        return model.out(torch.cat([F.interpolate(model.up(half), scale_factor=2, mode="bilinear"), x], 1))

    parts = {"down": nn.Conv2d(3, 8, 3, 2, 1), "up": nn.Conv2d(8, 8, 3, 1, 1), "out": nn.Conv2d(11, 3, 1)}
    return Module(run, **parts), (torch.randn(8, 3, 8, 8), torch.randn(8, 3, 8, 8)), mean_square


@case
def one_dimensional_convolutions():
    model = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ELU(), nn.ConvTranspose1d(8, 4, 2, stride=2))
    model.extend([nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.LayerNorm(64), nn.PReLU(), nn.Linear(64, 8)])
    return model, (torch.randn(8, 4, 8), torch.randn(8, 8)), mean_square


@case
def sorting_rolling_and_masking():
    def loss(model, x, y):
        out = torch.roll(model(x).cumsum(-1).masked_fill(y < -1, 0.0), 1, 0)
        return (out.sort(-1)[0] - y).pow(2).mean() + torch.logsumexp(out, 0).mean() + out.var()

    return perceptron(), vectors(), backward(loss)


@case
def complex_rotations():
    def run(model, x):
        pairs = torch.view_as_complex(model.layer(x).unflatten(-1, (8, 2)))
        return torch.view_as_real(pairs * model.angles).flatten(-2).mean(1)

    model = Module(run, layer=nn.Linear(16, 16))
    model.register_buffer("angles", torch.polar(torch.ones(5, 8), torch.randn(5, 8)))
    return model, (torch.randn(8, 5, 16), torch.randn(8, 16)), mean_square


@case
def buffers_that_count():
    def run(model, x):
        model.count += 1
        out = model.net(x)
        model.history = torch.cat([model.history[1:], out.detach().mean(0, keepdim=True)])
        return out + model.history.mean(0) / model.count

    model = Module(run, net=perceptron())
    model.register_buffer("count", torch.tensor(0))
    model.register_buffer("history", torch.zeros(3, 8))
    return model, vectors(), mean_square


def with_optimizer(model: nn.Module, run: Callable[..., Any]) -> tuple[torch.optim.Optimizer, Callable[..., Any]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        returned = run(model, *batch)
        optimizer.step()
        return returned

    return optimizer, step


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf.detach().clone() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    expected = expected.detach()
    # What has no gradient but noise (the bias of keys) stays near zero.
    assert (found - expected).abs().max() <= 1e-5 * (expected.abs().max() + 1e-3), what


@pytest.mark.parametrize("name", CASES)
def test_a_step_gives_on_ranks_what_eager_gives(name):
    torch.manual_seed(0)
    model, batch, run = CASES[name]()
    reference, on_one = copy.deepcopy(model), copy.deepcopy(model)
    _, eager = with_optimizer(reference, run)
    expected = [tensors(eager(*batch)) for _ in range(STEPS)]

    optimizer, step = with_optimizer(on_one, run)
    parallel = unisono.parallelize(step, model=on_one, optimizer=optimizer, example=batch, cluster=DEAR_COMPUTING)
    for wanted in expected:
        for found, one in zip(tensors(parallel(*batch)), wanted, strict=True):
            assert_close(found, one, "a returned tensor on one rank")
    parallel.sync()
    for (key, found), wanted in zip(on_one.state_dict().items(), reference.state_dict().values(), strict=True):
        assert_close(found, wanted, f"{key} on one rank")

    optimizer, step = with_optimizer(model, run)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch)
    for ranks, family in [(ranks, family) for ranks in (2, 3) for family in FAMILIES]:
        pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family].items()}
        plan = graph.native.plan(
            DEAR_COMPUTING, msgpack.packb({"mesh": {"a": ranks}, "pins": pins, "memory_limit": None})
        )
        found, after = train(graph, plan, {"a": ranks}, [tensors(batch)] * STEPS, passes=True)
        for first, wanted in zip(found, expected, strict=True):
            assert_close(first, wanted[0], f"the first returned tensor of {family} on {ranks} ranks")
        for key, parameter in reference.named_parameters():
            if key in after:
                assert_close(after[key], parameter, f"{key} of {family} on {ranks} ranks")
