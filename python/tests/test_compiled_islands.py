"""Functions of which a part cannot be compiled (sizes or numbers that depend on data, calls of graphs, operations that write), in one
graph, give what they give in eager PyTorch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backend import compiled, fresh
from torch.utils.checkpoint import checkpoint

from unisono import _islands


def routed(x_ND: torch.Tensor, w_DD: torch.Tensor) -> torch.Tensor:
    """Some rows by themselves, as experts have them."""
    chosen = (x_ND.sin() + x_ND).sum(-1) > 0
    moved = F.gelu(x_ND[chosen]) @ w_DD
    return (torch.zeros_like(x_ND).index_put((chosen,), moved) * x_ND.cos()).tanh()


def numbers_of(x_ND: torch.Tensor, w_DD: torch.Tensor) -> torch.Tensor:
    """A number that is known from data, and random numbers before and behind it."""
    scaled = F.dropout(x_ND, 0.5) * (x_ND.detach().abs().mean().item() + 1)
    return F.dropout(scaled.sin() @ w_DD, 0.5).cos()


@pytest.mark.parametrize("function", [routed, numbers_of])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_numbers_that_depend_on_data_are_those_of_each_call(function, dynamic):
    w = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    with fresh(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(function, fullgraph=True, dynamic=dynamic)
        for seed in range(4):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) - seed * 0.3
            found, expected = [], []
            for results, one in ((found, run), (expected, function)):
                leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
                torch.manual_seed(seed)
                results.append(one(*leaves))
                results.extend(torch.autograd.grad(results[0].sum(), leaves))
            torch.testing.assert_close(found, expected)


def test_what_has_no_such_sizes_is_compiled_around_what_has(monkeypatch):
    parts: list[list[str]] = []
    staged = _islands.staged

    def noted(module, compiler, known):
        def note(part):
            parts.append([str(node.target) for node in part.graph.nodes if node.op == "call_function"])
            return compiler(part)

        return staged(module, note, known)

    monkeypatch.setattr(_islands, "staged", noted)
    x, w = torch.randn(6, 8), torch.randn(8, 8)
    with torch.no_grad(), fresh():
        torch.testing.assert_close(compiled(routed, fullgraph=True)(x, w), routed(x, w))
    assert ["aten.tanh.default" in part for part in parts] == [True, False]
    assert ["aten.gt.Scalar" in part for part in parts] == [False, True]
    assert not any("nonzero" in target or "gelu" in target for part in parts for target in part)


def chosen(x_ND: torch.Tensor, w_DD: torch.Tensor) -> torch.Tensor:
    """A graph that is one of two."""
    made = torch.cond(x_ND.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x_ND,))
    return (made * 2).tanh() @ w_DD


def made_again(x_ND: torch.Tensor, w_DD: torch.Tensor) -> torch.Tensor:
    """Dropout that backward draws again, as forward did, between some that it does not."""
    for _ in range(2):
        hidden = checkpoint(lambda x: F.dropout(F.gelu(F.dropout(x, 0.2)) @ w_DD, 0.5), x_ND, use_reentrant=False)
        x_ND = F.dropout(x_ND + hidden, 0.1)
    return x_ND


@pytest.mark.parametrize("function", [chosen, made_again])
def test_calls_of_graphs_and_random_numbers_that_are_drawn_again_are_as_in_eager_pytorch(function):
    with fresh():
        run = compiled(function, fullgraph=True)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            x, w = torch.randn(6, 8, generator=generator) + seed - 1, torch.randn(8, 8, generator=generator)
            found, expected = [], []
            for results, one in ((found, run), (expected, function)):
                leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
                torch.manual_seed(seed)
                results.append(one(*leaves))
                results.extend(torch.autograd.grad(results[0].square().mean(), leaves))
                results.append(torch.rand(3))
            torch.testing.assert_close(found, expected)


def test_nothing_passes_an_operation_that_writes():
    with torch.library._scoped_library("unisono_test", "FRAGMENT") as library:
        library.define("scale_(Tensor(a!) x, float value) -> ()")

        def scale_(x, value):
            x.mul_(value)

        library.impl("scale_", scale_, "CompositeExplicitAutograd")

        def function(x, y):
            before, made = y.sum(), x.sin() * 2
            torch.ops.unisono_test.scale_(made, 3.0)
            rows = made[y[:, 0] > 0].exp()
            torch.ops.unisono_test.scale_(y, 2.0)
            return before, made, made.t() + 1, rows, y * 2, F.dropout(rows, 0.5)

        for seed in range(2):
            x, y = (torch.randn(6, 6, generator=torch.Generator().manual_seed(seed + at)) for at in range(2))
            written = y.clone()
            torch.manual_seed(0)
            expected = function(x, written)
            with fresh(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
                torch.manual_seed(0)
                found = compiled(function, fullgraph=True)(x, y)
            torch.testing.assert_close([*found, y], [*expected, written])
