"""What is rewritten before it becomes kernels gives what it gave."""

from __future__ import annotations

import copy

import pytest
import steps
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono import _devices
from unisono._executor import Executor, lower_graph
from unisono._message import pack
from unisono.errors import ConfigurationError

CLUSTER = steps.EAGER_TO_CUT


class Words(nn.Module):
    """Logits of words, in a type of their own or in ``float32``."""

    def __init__(self, words: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 32, dtype=dtype)
        self.head = nn.Linear(32, words, dtype=dtype)

    def forward(self, ids, targets, **settings):
        logits = self.head(self.table(ids))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), **settings)


def trained(model, batch, settings, parallel: bool, steps: int = 2):
    """Losses and parameters after some steps, and the step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def train_step(ids, targets):
        optimizer.zero_grad()
        loss = model(ids, targets, **settings)
        loss.backward()
        optimizer.step()
        return loss

    step = train_step
    if parallel:
        step = unisono.parallelize(
            train_step, model=model, optimizer=optimizer, example=batch, fuse=True, cluster=CLUSTER
        )
    losses = [step(*batch).detach() for _ in range(steps)]
    if parallel:
        step.sync()
    return torch.stack(losses), [one.detach().clone() for one in model.parameters()], step


def batch_of(words, ignored=0):
    torch.manual_seed(1)
    ids, targets = torch.randint(0, words, (2, 4, 16))
    targets[:, :ignored] = -100
    return ids, targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum"}], ids=["mean", "sum"])
@pytest.mark.parametrize("ignored", [0, 5])
def test_a_cross_entropy_keeps_two_numbers_of_each_row(dtype, settings, ignored):
    torch.manual_seed(0)
    model, batch = Words(500, dtype), batch_of(500, ignored)
    losses, parameters, _ = trained(copy.deepcopy(model), batch, settings, parallel=False)
    found, made, step = trained(model, batch, settings, parallel=True)
    text = step.rank_graph.text()
    assert "aten::_log_softmax(" not in text
    assert "aten::amax" in text
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, losses, rtol=tolerance, atol=tolerance)
    for one, expected in zip(made, parameters, strict=True):
        torch.testing.assert_close(one, expected, rtol=tolerance, atol=tolerance)


def test_logits_in_16_bits_are_in_no_other_tensor_and_the_loss_is_as_exact(monkeypatch):
    monkeypatch.setattr(_devices, "narrow_types", tuple)
    torch.manual_seed(0)
    model, batch = Words(500, torch.bfloat16), batch_of(500)
    losses, _, _ = trained(copy.deepcopy(model), batch, {}, parallel=False, steps=1)
    found, _, step = trained(model, batch, {}, parallel=True, steps=1)
    torch.testing.assert_close(found, losses, rtol=1e-6, atol=1e-6)
    text = step.kernels()
    assert text.count("read a0: bf16 {8000, 500, 1}") == 2
    assert "f32 {8000, 500, 1}" not in text


def test_a_shard_of_the_batch_is_rewritten_too_where_ranks_count_together():
    model, (ids, targets) = Words(500, torch.bfloat16), batch_of(500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(ids, targets):
        optimizer.zero_grad()
        loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        return loss

    graph = unisono.capture(train_step, model=model, optimizer=optimizer, example=(ids, targets)).native
    pins = {"batch.*": {"a": "shard(0)"}, "params.*": {"a": "replicate"}}
    plan = graph.plan(CLUSTER, pack({"mesh": {"a": 2}, "pins": pins}))
    program = graph.program(plan, 0)[0]
    assert "= aten::_log_softmax(" in program.text()
    text = program.for_kernels().text()
    assert "= aten::_log_softmax(" not in text
    assert text.count("all_reduce") == program.text().count("all_reduce")


def test_a_target_that_is_none_is_refused_as_by_pytorch():
    model, (ids, targets) = Words(50, torch.float32), batch_of(50)
    step = trained(model, (ids, targets), {}, parallel=True, steps=1)[2]
    with pytest.raises(Exception, match="out of bounds"):
        step(ids, torch.full_like(targets, 50))


def test_a_loss_of_no_targets_is_no_number():
    model, (ids, targets) = Words(50, torch.float32), batch_of(50)
    losses, _, _ = trained(model, (ids, torch.full_like(targets, -100)), {}, parallel=True, steps=1)
    assert losses.isnan().all()


def test_logits_that_are_infinite_or_no_numbers_give_what_pytorch_gives():
    def losses(x, t):
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(x * 1.0, t)
        return loss, torch.autograd.grad(loss, x)[0]

    for special in (float("inf"), float("-inf"), float("nan"), 3e38):
        x, t = torch.randn(8, 64), torch.arange(8)
        x[2, 5], x[3, 3] = special, special
        graph = unisono.capture(losses, example=(x, t)).native
        run = Executor(lower_graph(graph.for_kernels(), fuse=True))
        run.bind([])
        for found, expected in zip(run([x, t]), losses(x, t), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)


# Patterns of the user's own.


def written_out(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
    return (weights @ v).transpose(1, 2).contiguous()


def in_one(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


class Attention(nn.Module):
    def __init__(self, scale: float | None = None, shown: bool = False) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.scale, self.shown = scale, shown

    def forward(self, x):
        q, k, v = self.into(x).view(*x.shape[:2], 3, 2, 16).unbind(2)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) * (self.scale or q.shape[-1] ** -0.5), dim=-1)
        made = self.out((weights @ v).transpose(1, 2).contiguous().flatten(2))
        return made.square().mean() + (weights.square().sum() * 1e-3 if self.shown else 0.0)


def attention_step(module, parallel: bool):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(2, 24, 32, generator=torch.Generator().manual_seed(3))
    if not parallel:
        return [float(train_step(x).detach()) for _ in range(3)], ""
    step = unisono.parallelize(train_step, model=module, optimizer=optimizer, example=(x,), cluster=CLUSTER)
    return [float(step(x)) for _ in range(3)], step.rank_graph.text()


@pytest.fixture
def attention():
    packed = torch.randn(2, 5, 3, 2, 16)
    unisono.register_pattern("attention", written_out, in_one, examples=[packed.unbind(2)])
    yield
    unisono.forget_pattern("attention")


def test_attention_written_out_is_one_operation_each_way(attention):
    torch.manual_seed(0)
    module = Attention()
    expected, _ = attention_step(copy.deepcopy(module), parallel=False)
    found, text = attention_step(module, parallel=True)
    assert "aten::_softmax(" not in text
    assert text.count("= aten::_scaled_dot_product") == 2
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{"scale": 0.3}, {"shown": True}], ids=["another scale", "weights are read"])
def test_what_is_not_quite_the_pattern_stays(attention, settings):
    torch.manual_seed(0)
    module = Attention(**settings)
    expected, _ = attention_step(copy.deepcopy(module), parallel=False)
    found, text = attention_step(module, parallel=True)
    assert "aten::_softmax(" in text
    assert "= aten::_scaled_dot_product" not in text
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_pattern_that_is_forgotten_is_looked_for_no_more(attention):
    unisono.forget_pattern("attention")
    assert "aten::_softmax(" in attention_step(Attention(), parallel=True)[1]


def test_a_pattern_that_does_not_give_the_same_is_refused():
    x = torch.randn(4, 6)
    with pytest.raises(ConfigurationError, match="does not give the same: result 0"):
        unisono.register_pattern("wrong", torch.sin, torch.cos, examples=[(x,)])

    def scaled(x):
        return x.detach() + 0.5 * (x - x.detach())

    with pytest.raises(ConfigurationError, match="does not give the same: result 1"):
        unisono.register_pattern("gradients", lambda x: x * 1.0, scaled, examples=[(x,)])


def test_patterns_without_backward_are_for_steps_without_gradients():
    def search(x):
        return torch.exp(x) / (1 + torch.exp(x))

    unisono.register_pattern("logistic", search, torch.sigmoid, examples=[(torch.randn(3, 4),)], backward=False)
    try:
        x = torch.randn(5, 7)
        graph = unisono.capture(lambda x: search(x) * 2, example=(x,)).native
        assert graph.operators().count("aten::sigmoid") == 1
        assert "aten::exp" not in graph.text()
        run = Executor(lower_graph(graph))
        run.bind([])
        torch.testing.assert_close(run([x])[0], search(x) * 2)
    finally:
        unisono.forget_pattern("logistic")
