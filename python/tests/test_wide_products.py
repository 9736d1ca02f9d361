"""Products in 16 bits are computed in `f32` where the processor has no instructions for them."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from backend import compiled, fresh

import unisono
from unisono import _backend, _devices
from unisono._executor import Executor, lower_graph


def heads(*lengths: int) -> tuple[torch.Tensor, ...]:
    """Tensors `[batch, heads, length, features]` that are slices of one, as a projection gives queries, keys and values."""
    made = torch.randn(2, lengths[0], len(lengths), 3, 16)
    return tuple(one.transpose(1, 2) for one in made.unbind(2))


#: Functions that multiply, with what they read.
PRODUCTS = {
    "matrices": (lambda a, b: a @ b.t(), lambda: (torch.randn(48, 64), torch.randn(32, 64))),
    "batches": (torch.bmm, lambda: (torch.randn(3, 32, 16), torch.randn(3, 16, 24))),
    "linear": (F.linear, lambda: (torch.randn(4, 16, 64), torch.randn(32, 64), torch.randn(32))),
    "added batches": (torch.baddbmm, lambda: (torch.randn(3, 32, 24), torch.randn(3, 32, 16), torch.randn(3, 16, 24))),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        lambda: (torch.randn(2, 8, 12, 12), torch.randn(16, 8, 3, 3), torch.randn(16)),
    ),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), lambda: heads(32, 32, 32)),
    "long attention": (F.scaled_dot_product_attention, lambda: heads(80, 80, 80)),
}


def with_gradients(function):
    """What a function gives, and the gradients of its operands where all of the result's are alike."""

    def both(*operands: torch.Tensor) -> list[torch.Tensor]:
        leaves = [one.detach().requires_grad_() for one in operands]
        made = function(*leaves)
        return [made.detach(), *torch.autograd.grad(made, leaves, torch.full_like(made, 0.25))]

    return both


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_as_exact_as_their_type(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    function, operands = with_gradients(PRODUCTS[name][0]), tuple(one.to(dtype) for one in PRODUCTS[name][1]())
    graph = unisono.capture(function, example=operands).native.with_wide_products(["bf16", "f16"])
    run = Executor(lower_graph(graph, fuse=True))
    run.bind([])
    found, eager, exact = run(list(operands)), function(*operands), function(*(one.double() for one in operands))
    for one, its, right in zip(found, eager, exact, strict=True):
        assert one.dtype == dtype
        assert one.stride() == its.stride() or name == "convolution"
        error, of_eager = (float((made.double() - right).abs().max()) for made in (one, its))
        # One rounding, or what PyTorch does to it.
        assert error <= max(float(right.abs().max()) * torch.finfo(dtype).eps / 2, 1.05 * of_eager)
    left = [line for line in graph.text().splitlines() if re.search(r" = aten::\S*(mm|conv|attention)\S*\(", line)]
    assert left
    assert all(": f32" in line and ": bf16" not in line for line in left), left


class Network(torch.nn.Module):
    """Two layers with a norm between, on tokens of 32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.silu(self.norm(self.first(x))))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without instructions for products in 16 bits."""
    monkeypatch.setattr(_devices, "narrow_types", lambda: ("bf16", "f16"))


def test_a_compiled_model_computes_its_products_in_f32(narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = []
    monkeypatch.setattr(_backend, "Executor", lambda program: programs.append(str(program)) or Executor(program))
    torch.manual_seed(0)
    model, x = Network().bfloat16(), torch.randn(64, 32, dtype=torch.bfloat16)
    expected = with_gradients(model)(x)
    with fresh():
        function = compiled(model)
        leaf = x.clone().requires_grad_()
        made = function(leaf)
        (slope,) = torch.autograd.grad(made, [leaf], torch.full_like(made, 0.25))
    for one, other in zip([made, slope], expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    assert len(programs) == 2
    assert all("mm.out" in text and "buffer of bfloat16" not in text for text in programs)


def test_with_the_bits_of_eager_pytorch_products_stay(narrow: None) -> None:
    torch.manual_seed(0)
    model, x = Network().bfloat16(), torch.randn(64, 32, dtype=torch.bfloat16)
    with fresh():
        assert torch.equal(compiled(model, options={"match_eager": True})(x), model(x))


def test_a_step_computes_its_products_in_f32_and_is_predicted_so(narrow: None) -> None:
    torch.manual_seed(0)
    model, x = Network().bfloat16(), torch.randn(4096, 32, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=(x,), cluster="cpu:1", fuse=True)
    losses = [float(step(x)) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    assert "wide_products" in step.rank_graph.text()
    assert 'narrow = ["bf16", "f16"]' in step.plan.text
    measured = max(step.measure(x, repeats=1)["peak_bytes"])
    assert abs(step.plan.prediction["peak_bytes"] - measured) <= 0.05 * measured
