"""Losses under ``torch.compile(.., backend="unisono")``: cross entropies keep two numbers for each row, others what they kept before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backend import fresh

from unisono import _devices
from unisono._measure import peak_growth
from unisono.errors import UnisonoError


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    with fresh():
        yield


def given(rows=24, words=300, width=16, dtype=torch.float32):
    """Hidden states, the head's weight, and targets of which some are ignored."""
    hidden = (torch.randn(rows, width) * 0.5).to(dtype).requires_grad_()
    weight = torch.randn(words, width).to(dtype).requires_grad_()
    target = torch.randint(0, words, (rows,))
    target[::5] = -100
    return hidden, weight, target


def trained(loss, hidden, weight, target, scale=3.0):
    hidden.grad = weight.grad = None
    made = loss(hidden, weight, target)
    (made * scale).sum().backward()
    return made.detach(), hidden.grad, weight.grad


def assert_as_eager(loss, inputs, bound=1e-5, **settings):
    compiled = torch.compile(loss, backend="unisono", **settings)
    for found, expected in zip(trained(compiled, *inputs), trained(loss, *inputs), strict=True):
        scale = expected.abs().max() + 1e-6
        assert ((found.float() - expected.float()).abs() <= bound * scale).all()
    return compiled


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cross_entropy_of_a_head(dtype, reduction):
    def loss(hidden, weight, target):
        return F.cross_entropy((hidden @ weight.t()).float(), target, reduction=reduction)

    assert_as_eager(loss, given(dtype=dtype), bound=1e-5 if dtype == torch.float32 else 1e-2)


def test_logits_of_samples_are_seen_as_rows_and_other_numbers_of_samples_are_the_same_function():
    def loss(hidden, weight, target):
        logits = (hidden @ weight.t()).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))

    compiled = torch.compile(loss, backend="unisono")
    for samples in (4, 3, 2):
        hidden, weight, target = given(rows=samples * 6, dtype=torch.bfloat16)
        hidden = hidden.detach().view(samples, 6, -1).requires_grad_()
        inputs = hidden, weight, target.view(samples, 6)
        for found, expected in zip(trained(compiled, *inputs), trained(loss, *inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2 * expected.abs().max().item())


@pytest.mark.parametrize(
    "loss",
    [
        lambda h, w, t: F.cross_entropy(h @ w.t(), t, reduction="none"),
        lambda h, w, t: F.cross_entropy(h @ w.t(), t, label_smoothing=0.1),
        lambda h, w, t: F.cross_entropy(h @ w.t(), t, weight=torch.linspace(0.5, 1, 300)),
        lambda h, w, t: F.cross_entropy(h @ w.t(), t.clamp(min=7), ignore_index=7),
        lambda h, w, t: F.cross_entropy(h @ w[:20].t(), t.clamp(min=0) % 20),
        lambda h, w, t: (lambda logs: F.nll_loss(logs, t) + logs.pow(2).mean())(F.log_softmax(h @ w.t(), -1)),
        lambda h, w, t: (lambda x: F.cross_entropy(x, t) + F.cross_entropy(x, t.flip(0)))(h @ w.t()),
        lambda h, w, t: F.cross_entropy((h @ w.t()).t().contiguous().t(), t),
    ],
    ids=["rows", "smoothed", "weighted", "ignored", "short", "read twice", "two", "transposed"],
)
def test_losses_of_other_kinds(loss):
    assert_as_eager(loss, given())


def test_nothing_is_left_where_all_targets_are_ignored():
    def loss(hidden, weight, target):
        return F.cross_entropy(hidden @ weight.t(), target)

    hidden, weight, target = given()
    made = trained(torch.compile(loss, backend="unisono"), hidden, weight, torch.full_like(target, -100))
    assert made[0].isnan()


def test_a_target_that_is_no_class_is_refused():
    def loss(hidden, weight, target):
        return F.cross_entropy(hidden @ weight.t(), target)

    hidden, weight, target = given()
    compiled = torch.compile(loss, backend="unisono")
    trained(compiled, hidden, weight, target)
    with pytest.raises((IndexError, UnisonoError), match="out of bounds"):
        trained(compiled, hidden, weight, target + 300)


# Where products are computed in `f32`, the logits are there in `f32` while they are rounded.
@pytest.mark.parametrize(("narrow", "most"), [((), 2.2), (("bf16",), 3.2)])
def test_logarithms_of_probabilities_are_not_held(narrow, most, monkeypatch):
    monkeypatch.setattr(_devices, "narrow_types", lambda: narrow)

    def loss(hidden, weight, target):
        return F.cross_entropy((hidden @ weight.t()).float(), target)

    inputs = given(rows=256, words=8192, width=8, dtype=torch.bfloat16)
    compiled = assert_as_eager(loss, inputs, bound=2e-2)
    logits = 256 * 8192 * 2
    assert peak_growth(lambda: trained(loss, *inputs)) > 5 * logits
    # On some processors PyTorch's own product of 16 bits holds its result in `f32` beside it.
    hidden, weight, _ = inputs
    with torch.no_grad():
        product = peak_growth(lambda: hidden @ weight.t())
    assert peak_growth(lambda: trained(compiled, *inputs)) < max(most * logits, product + 0.2 * logits)
