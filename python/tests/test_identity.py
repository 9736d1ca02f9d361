"""Code that tells tensors apart by what they are, not by what is in them, chooses in a captured step as in eager PyTorch."""

from __future__ import annotations

import types
import weakref

import eager
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

import unisono
from unisono.errors import StepError

#: What is known of a model before the capture, and how a parameter is told apart by it.
WAYS = {
    "ids": (lambda m: {id(p) for p in m[2].parameters()}, lambda p, known: id(p) in known),
    "names by ids": (lambda m: {id(p): n for n, p in m.named_parameters()}, lambda p, known: "bias" in known[id(p)]),
    "is": (lambda m: m[2].weight, lambda p, known: p is known),
    "is not": (lambda m: m[2].weight, lambda p, known: p is not known),
    "weak reference": (lambda m: weakref.ref(m[2].weight), lambda p, known: known() is p),
    "weak keys": (lambda m: WeakTensorKeyDictionary({m[2].weight: 1}), lambda p, known: p in known),
    "hash": (lambda m: hash(m[2].weight), lambda p, known: hash(p) == known),
    "address": (lambda m: {m[2].weight.data_ptr()}, lambda p, known: p.data_ptr() in known),
    "address of both": (lambda m: m[2].weight, lambda p, known: p.data_ptr() == known.data_ptr()),
    "memory": (lambda m: m[2].weight, lambda p, known: p.untyped_storage() == known.untyped_storage()),
    "address of memory": (
        lambda m: m[2].weight.untyped_storage().data_ptr(),
        lambda p, known: p.untyped_storage().data_ptr() == known,
    ),
    "is set to": (lambda m: m[2].weight, lambda p, known: p.is_set_to(known)),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def network():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batches():
    return [(torch.randn(7, 3),) for _ in range(3)]


@pytest.mark.parametrize("way", WAYS)
def test_a_choice_for_each_parameter_is_that_of_eager_pytorch(way):
    prepare, is_one = WAYS[way]

    def make():
        model, optimizer = network()
        known = prepare(model)

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            loss.backward()
            for p in model.parameters():
                if is_one(p, known):
                    p.grad.mul_(0.25)
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, batches())

    eager.compare(make)


class Chosen(torch.optim.Optimizer):
    """Takes smaller steps for some parameters."""

    def __init__(self, params, some):
        super().__init__(params, {"lr": 0.1})
        self.ids, self.some = {id(p) for p in some}, list(some)

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            scale = (0.5 if id(p) in self.ids else 1) * (0.5 if any(p is one for one in self.some) else 1)
            p.add_(p.grad, alpha=-self.param_groups[0]["lr"] * scale)


def test_an_optimizer_chooses_by_what_parameters_are():
    def make():
        model, _ = network()
        optimizer = Chosen(model.parameters(), [*model[2].parameters()])

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            loss.backward()
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, batches())

    eager.compare(make)


def test_state_is_kept_by_the_ids_of_parameters():
    def make():
        model, optimizer = network()
        moments = {id(p): torch.zeros_like(p) for p in model.parameters()}

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            loss.backward()
            for p in model.parameters():
                p.grad = moments[id(p)].mul_(0.9).add_(p.grad).clone()
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, batches(), visible=lambda: [*moments.values()])

    eager.compare(make)


def test_buffers_and_what_autograd_saves_are_what_they_are():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, known):
            ctx.save_for_backward(weight)
            ctx.known = known
            return x * (2 if weight is known else 1)

        @staticmethod
        def backward(ctx, gradient):
            (weight,) = ctx.saved_tensors
            return gradient * (2 if weight is ctx.known else 1), None, None

    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weight, mean = model[0].weight, model[1].running_mean

        def step(x):
            optimizer.zero_grad()
            made = Scaled.apply(model(x), model[0].weight, weight)
            loss = F.mse_loss(made, x @ torch.ones(3, 4))
            loss = loss + sum(model[1].bias.sum() for one in model.buffers() if one is mean)
            loss.backward()
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, batches())

    eager.compare(make)


def test_everything_is_as_before_behind_a_capture():
    model, optimizer = network()
    seen, parameters = [], [*model.parameters()]
    model[0].weight.register_hook(lambda gradient: seen.append("gradient"))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    model[0].weight.note = "kept"
    made = model(torch.randn(2, 3)).sum()  # its graph holds parameters
    before = [(id(p), type(p), p.data_ptr(), p.detach().clone()) for p in parameters]

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    unisono.capture(step, model=model, optimizer=optimizer, example=(torch.randn(7, 3),))
    assert all(one is p for one, p in zip(model.parameters(), parameters, strict=True))
    for p, (number, kind, address, values) in zip(parameters, before, strict=True):
        assert (id(p), type(p), p.data_ptr()) == (number, kind, address)
        assert torch.equal(p.detach(), values)
    assert vars(model[0].weight) == {"note": "kept"}
    seen.clear()
    made.backward()
    assert seen == ["gradient", "accumulated"]
    assert model[0].weight.grad is not None


def test_memory_that_is_more_than_told_apart_is_refused_at_its_line():
    model, optimizer = network()

    def step(x):
        model[0].weight.untyped_storage().resize_(0)
        return model(x).sum()

    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.randn(7, 3),))
    assert caught.value.code == "U0119" and "resize_" in caught.value.message
    assert caught.value.place == f"{__file__}:{step.__code__.co_firstlineno + 1}"


#: What a step keeps of its argument.
KEPT = {
    "an attribute": (lambda h, x: setattr(h, "x", x), lambda h: [h.x], lambda: {"x": None}),
    "an attribute that is read": (
        lambda h, x: (setattr(h, "sum", h.x.sum()), setattr(h, "x", x)),
        lambda h: [h.x, h.sum],
        lambda: {"x": torch.zeros(7, 3), "sum": torch.zeros(())},
    ),
    "an entry": (lambda h, x: h.entries.update(x=x), lambda h: [h.entries["x"]], lambda: {"entries": {}}),
    "a list": (lambda h, x: h.rows.append(x), lambda h: [*h.rows], lambda: {"rows": []}),
    "dictionaries": (lambda h, x: h.rows.append({"x": x}), lambda h: [r["x"] for r in h.rows], lambda: {"rows": []}),
}


@pytest.mark.parametrize("place", KEPT)
def test_an_argument_that_is_kept_is_the_one_of_each_call(place):
    keep, visible, begin = KEPT[place]

    def make():
        model, optimizer = network()
        holder = types.SimpleNamespace(**begin())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            keep(holder, x)
            return loss

        return eager.Training(model, optimizer, step, batches(), visible=lambda: visible(holder))

    eager.compare(make)
