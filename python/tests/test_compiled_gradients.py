"""Random functions of many operations on rows, compiled and trained: as near the right values and gradients as eager PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from backend import compiled, fresh

FUNCTIONS, TOGETHER = 48, 6
SHAPES = [(4, 6), (33, 70), (7, 128), (2, 5, 16), (1, 9), (17, 130)]
#: How many times farther than eager PyTorch's a result may be from that in ``float64``, beside ``EXACT`` of its greatest element.
FARTHER, EXACT = 10.0, 1e-5

Tensors = list[torch.Tensor]
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Tensors]

OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "softplus": F.softplus,
    "sin": torch.sin,
    "relu": lambda x: x.relu() + 0.1,
    "square root": lambda x: (x.square() + 1).rsqrt() * x,
    "masked": lambda x: x.masked_fill(x > 1.5, 0.5),
    "clamp": lambda x: x.clamp(-1, 1.5),
    "softmax": lambda x: x.softmax(-1) * 3,
    "softmax of columns": lambda x: x.softmax(0) * 4,
    "log softmax": lambda x: x.log_softmax(-1) * 0.3,
    "less its mean": lambda x: x - x.mean(-1, keepdim=True),
    "less its greatest": lambda x: x - x.amax(-1, keepdim=True) * 0.3,
    "variance": lambda x: x + x.var(-1, keepdim=True) * 0.2,
    "norm": lambda x: F.normalize(x, dim=-1) * 2,
    "sums so far": lambda x: x.cumsum(0) * 0.2,
    "mean of all": lambda x: x * torch.sigmoid(x.mean()),
    "turned around": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "rolled": lambda x: x.roll(1, -1),
    "padded": lambda x: F.pad(x[..., 1:], (0, 1)),
    "halves turned": lambda x: torch.cat([-x[..., 1:], x[..., :1]], -1),
}
OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "quotient": lambda x, y: x / (y.abs() + 1),
    "gate": lambda x, y: F.silu(x) * y,
    "greater": torch.maximum,
    "chosen": lambda x, y: torch.where(x > y, x, y * 2),
    "columns": lambda x, y: x + y.mean(0),
    "every second": lambda x, y: torch.cat([x, y], -1)[..., ::2],
}
RETURNED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x,
    lambda x: x.sum(0),
    lambda x: x.amax(-1),
    lambda x: x[..., 1:],
    lambda x: x.transpose(0, -1),
]


def made(rng: random.Random) -> Function:
    """Some operations on rows, a square weight and a scale, and on what was made of them; the last value and a few others returned."""
    steps = []
    for made_before in range(1, 1 + rng.randint(4, 24)):
        names = [*OF_ONE, *OF_TWO, "product with the weight", "layer norm", "RMS norm"]
        of = made_before - 1 if rng.random() < 0.5 else rng.randrange(made_before)
        give = rng.choice(RETURNED) if rng.random() < 0.15 else None
        steps.append((rng.choice(names), of, rng.randrange(made_before), give))

    def function(rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> Tensors:
        others: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "product with the weight": lambda x: x @ weight,
            "layer norm": lambda x: F.layer_norm(x, scale.shape, scale),
            "RMS norm": lambda x: F.rms_norm(x, scale.shape, scale),
        }
        values, returned = [rows], []
        for name, first, second, give in steps:
            one = (OF_ONE | others).get(name)
            values.append(one(values[first]) if one else OF_TWO[name](values[first], values[second]))
            if give is not None:
                returned.append(give(values[-1]))
        return [*returned, values[-1]]

    return function


def trained(function: Function, inputs: Tensors, weights: Tensors, dtype: torch.dtype) -> list[torch.Tensor | None]:
    """What a function returns of inputs of this type, and their gradients for a sum of that under some weights."""
    leaves = [one.to(dtype).requires_grad_() for one in inputs]
    returned = function(*leaves)
    torch.stack([(one.double() * weight).sum() for one, weight in zip(returned, weights, strict=True)]).sum().backward()
    return [*(one.detach() for one in returned), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("first", range(0, FUNCTIONS, TOGETHER))
def test_random_functions_and_their_gradients_are_as_near_the_right_ones_as_eager_pytorchs(first):
    for seed in range(first, first + TOGETHER):
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        function, shape = made(rng), rng.choice(SHAPES)
        width = shape[-1]
        sizes = [shape, (width, width), (width,)]
        inputs = [torch.randn(size, generator=generator) for size in sizes]
        inputs[1] /= width**0.5
        weights = [torch.randn(one.shape, generator=generator).double() for one in function(*inputs)]
        right, eager = (trained(function, inputs, weights, dtype) for dtype in (torch.float64, torch.float32))
        with fresh():
            found = trained(compiled(function, dynamic=rng.random() < 0.25), inputs, weights, torch.float32)
        for at, (exact, known, one) in enumerate(zip(right, eager, found, strict=True)):
            if exact is None or known is None or one is None:
                assert exact is known is one is None, f"seed {seed}, {at}"
                continue
            assert (one.dtype, one.shape) == (known.dtype, known.shape), f"seed {seed}, {at}"
            greatest = exact.abs().max() + 1e-3
            far, known_far = ((other.double() - exact).abs().max() / greatest for other in (one, known))
            assert far <= EXACT + FARTHER * known_far, f"seed {seed}, {at}: {far:.1e}, eager {known_far:.1e}"
