"""Functions made at random that view, copy and write into tensors and return some: compiled, these share memory as in eager PyTorch."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import pytest
import torch
from backend import compiled, fresh

from unisono import _backend

FUNCTIONS, TOGETHER = 200, 25
SIZE = 4

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OPERATIONS: dict[str, Operation] = {
    "transpose": lambda x, _: x.t(),
    "transpose and back": lambda x, _: x.t().t(),
    "view": lambda x, _: x.view(SIZE, SIZE) if x.is_contiguous() else x,
    "another view": lambda x, _: x.reshape(-1).view(SIZE, SIZE),
    "unsqueeze and back": lambda x, _: x.unsqueeze(0).squeeze(0),
    "detach": lambda x, _: x.detach(),
    "contiguous": lambda x, _: x.contiguous(),
    "rows that repeat": lambda x, _: x[:1].expand(SIZE, SIZE),
    "relu": lambda x, _: x.relu(),
    "times one": lambda x, _: x * 1,
    "over one": lambda x, _: x / 1.0,
    "clone": lambda x, _: x.clone(),
    "cast": lambda x, _: x.to(torch.float32),
    "copying cast": lambda x, _: x.to(torch.float32, copy=True),
    "halves": lambda x, y: torch.cat([x[:2], y[2:]]),
    "sum": lambda x, y: x + y.sum(),
    "constant": lambda x, _: x + torch.tensor([[1.0, 2, 3, 4]]),
    "constant alone": lambda _x, _y: torch.tensor([[0.5] * SIZE] * SIZE),
    "full": lambda _x, _y: torch.full((SIZE, SIZE), 1.5),
    "range": lambda _x, _y: torch.arange(float(SIZE * SIZE)).view(SIZE, SIZE),
    "copy over": lambda x, y: x.relu().copy_(y),
    "in place": lambda x, _: x.add_(1),
    "in place of a new one": lambda x, y: x.mul(1).add_(y),
}


def made(seed: int) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """The function of a seed: some operations on two tensors and on what was made of them, and some of these returned."""
    rng = random.Random(seed)
    steps = [
        (OPERATIONS[rng.choice(list(OPERATIONS))], rng.randrange(2 + at), rng.randrange(2 + at))
        for at in range(rng.randint(2, 9))
    ]
    returned = [rng.randrange(2 + len(steps)) for _ in range(rng.randint(1, 5))]

    def function(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        tensors = [a, b]
        for operation, first, second in steps:
            tensors.append(operation(tensors[first], tensors[second]))
        return [tensors[at] for at in returned]

    return function


def seen(function: Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]], seed: int) -> list[torch.Tensor]:
    """All that is given and returned, after each of two calls and each time that something returned has been written into."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    found = []
    for _ in range(2):
        returned = function(a, b)
        everything = [*returned, a, b]
        found += [one.clone() for one in everything]
        for number, one in enumerate(returned):
            if one.stride(0) != 0:  # PyTorch writes into no tensor that repeats
                one.mul_(number + 2)
            found += [one.clone() for one in everything]
    return found


@pytest.mark.parametrize("first", range(0, FUNCTIONS, TOGETHER))
def test_what_random_functions_return_shares_memory_as_in_eager_pytorch(first):
    for seed in range(first, first + TOGETHER):
        function = made(seed)
        try:
            expected = seen(function, seed)
        except RuntimeError:  # it writes into a tensor that repeats
            continue
        with fresh():
            found = seen(compiled(function), seed)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda text, s=seed: f"seed {s}: {text}")


def test_a_size_that_is_a_product_of_three_is_computed() -> None:
    """PyTorch writes such products with one `operator.mul`, which takes two, and loses the third size when it writes the graph as code."""
    graph = torch.fx.Graph()
    sizes = [graph.placeholder(name) for name in "abc"]
    graph.output(graph.call_function(operator.mul, (*sizes, *sizes[:1])))
    module = torch.fx.GraphModule({}, graph)
    _backend._take_products_apart(module)
    assert module(2, 3, 5) == torch.fx.Interpreter(module).run(2, 3, 5) == 60
