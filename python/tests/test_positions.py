"""What a tensor has at positions along a dimension, and gradients that are added there: computed without PyTorch where elements are few."""

from __future__ import annotations

import re

import pytest
import torch
from backend import compiled, fresh

import unisono
from unisono._executor import lower_graph

X = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
AT = torch.tensor([[1, -1, 0], [2, 1, 1]])
#: What is chosen of a tensor, and whether gradients of it are added here: not where positions have two dimensions.
CASES = {
    "last dimension": (lambda x, at: x[..., [-2]], True),
    "first dimension, some twice": (lambda x, at: x[at[1]], True),
    "middle dimension": (lambda x, at: x[:, at[0]], True),
    "positions of two dimensions": (lambda x, at: x[:, at], False),
    "of a tensor by columns": (lambda x, at: x.transpose(0, 2)[:, :, at[1]], True),
    "positions that lie apart": (lambda x, at: x[at[:, 1]], True),
    "no positions": (lambda x, at: x[:, at[0, :0]], True),
    "of what repeats": (lambda x, at: x[:1].expand(3, 3, 5)[at[0]], True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_chosen_and_its_gradient_are_those_of_eager_pytorch(name: str, dtype: torch.dtype) -> None:
    function, _ = CASES[name]
    leaves = [X.to(dtype).requires_grad_() for _ in range(2)]
    with fresh():
        found, expected = compiled(function)(leaves[0], AT), function(leaves[1], AT)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
    weights = torch.arange(expected.numel(), dtype=torch.float32).reshape(expected.shape).to(dtype)
    (found,) = torch.autograd.grad(found, leaves[0], weights)
    (expected,) = torch.autograd.grad(expected, leaves[1], weights)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("made", [X > 0, (X * 9).long()])
def test_truth_values_and_whole_numbers_are_chosen(made: torch.Tensor) -> None:
    with fresh():
        assert torch.equal(compiled(lambda x, at: x[:, at])(made, AT[0]), made[:, AT[0]])


@pytest.mark.parametrize("name", CASES)
def test_few_elements_are_chosen_and_added_without_pytorch(name: str) -> None:
    function, adds = CASES[name]

    def both(x, at, weights):
        x = x.detach().requires_grad_()
        made = function(x, at)
        return made, torch.autograd.grad(made, x, weights)[0]

    graph = unisono.capture(both, example=(X, AT, torch.ones_like(function(X, AT))))
    text = str(lower_graph(graph.native))
    assert re.findall(r"aten::index\.Tensor\(.* by (\w+)", text) == ["own"]
    assert re.findall(r"aten::index_put_?\(.* by (\w+)", text) == ["own" if adds else "dispatcher"]


@pytest.mark.parametrize("at", [4, -5])
def test_a_position_that_is_not_there_is_an_index_error(at: int) -> None:
    with fresh():
        run = compiled(lambda x, at: x[at] * 2)
        run(X, torch.tensor([3]))
        with pytest.raises(IndexError, match=f"index {at} is out of bounds for dimension 0 with size 4"):
            run(X, torch.tensor([at]))
