"""Attention of short sequences, which is computed beside kernels, gives what PyTorch's does."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import unisono
from unisono._executor import Executor, lower_graph

BATCH, HEADS, FEATURES = 2, 3, 24

#: Queries, keys, whether causal, the shape of what is added to scores, and the factor of scores.
CASES = [
    (32, 32, True, None, None),
    (21, 19, True, None, None),
    (21, 19, False, (BATCH, HEADS, 21, 19), 0.4),
    (5, 40, False, (1, 40), None),
    (7, 7, False, (BATCH, 1, 7, 7), -0.3),
    (1, 33, False, (BATCH, 1, 1, 33), None),
]


def operands(queries: int, keys: int, seed: int = 0) -> list[torch.Tensor]:
    """Query, key and value ``[batch, heads, length, features]``, heads beside each other in memory, and the result's gradient."""
    generator = torch.Generator().manual_seed(seed * 10_000 + queries * 100 + keys)

    def heads(length: int) -> torch.Tensor:
        numbers = torch.randn(BATCH, length, HEADS * FEATURES, generator=generator)
        return numbers.view(BATCH, length, HEADS, FEATURES).transpose(1, 2)

    return [heads(queries), heads(keys), heads(keys), heads(queries)]


def attended(q, k, v, slope, *mask, **options) -> list[torch.Tensor]:
    """The result of attention, and the gradients of query, key and value."""
    leaves = [one.detach().requires_grad_() for one in (q, k, v)]
    made = F.scaled_dot_product_attention(*leaves, *mask, **options)
    return [made.detach(), *torch.autograd.grad(made, leaves, slope)]


def by_kernels(*inputs: torch.Tensor, own: int = 2, **options) -> list[torch.Tensor]:
    """The same in a program with kernels, where so many of forward and backward are computed beside them."""

    def function(*tensors):
        return attended(*tensors, **options)

    run = Executor(lower_graph(unisono.capture(function, example=inputs).native, fuse=True))
    run.bind([])
    calls = [line for line in str(run.program).splitlines() if "scaled_dot_product" in line]
    assert sum(" by own" in line for line in calls) == own, calls
    return run(list(inputs))


def is_near(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for name, one, other in zip(("result", "query", "key", "value"), found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_are_as_exact_as_pytorch_s(case) -> None:
    queries, keys, causal, shape, scale = case
    options = {"is_causal": causal, "scale": scale}
    squares = torch.zeros(2, 4, dtype=torch.float64)
    for seed in range(4):
        inputs = operands(queries, keys, seed)
        if shape is not None:
            inputs.append(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
        exact = attended(*[one.double() for one in inputs], **options)
        for of, made in enumerate((by_kernels(*inputs, **options), attended(*inputs, **options))):
            squares[of] += torch.stack([(one - right).square().mean() for one, right in zip(made, exact, strict=True)])
    own, pytorch = squares.sqrt()
    assert (own <= 1.5 * pytorch).all(), own / pytorch


@pytest.mark.parametrize("edge", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", range(4))
def test_numbers_that_are_not_finite_go_where_pytorch_s_go(edge: float, where: int) -> None:
    inputs = operands(8, 8)
    inputs[where] = inputs[where].clone()
    inputs[where][0, 1, 3, 2] = edge
    for causal in (True, False):
        found, fused = by_kernels(*inputs, is_causal=causal), attended(*inputs, is_causal=causal)
        # With AVX-512 the fused one gives a query that is NaN a finite result.
        with sdpa_kernel(SDPBackend.MATH):
            written_out = attended(*inputs, is_causal=causal)
        # PyTorch multiplies 0 with NaN for pairs that a causal mask hides, and has other NaN of infinite scores in backward.
        exact = 4 if math.isnan(edge) and not causal else 1
        for one, *others in zip(found[:exact], fused, written_out, strict=False):
            assert any(torch.equal(one.isfinite(), other.isfinite()) for other in others)


def test_products_that_are_finite_when_they_are_scaled_do_not_overflow() -> None:
    inputs = operands(8, 8)
    inputs[0] = inputs[0] * 1e37
    assert by_kernels(*inputs, scale=1e-37)[0].isfinite().all()


def test_a_query_that_sees_no_key_has_what_pytorch_gives_it() -> None:
    mask = torch.zeros(8, 8)
    mask[3] = -math.inf
    inputs = [*operands(8, 8), mask]
    is_near(by_kernels(*inputs), attended(*inputs))


def test_rows_whose_numbers_lie_apart_are_read_too() -> None:
    q, k, v, slope = operands(16, 16)
    apart = (q, *(one.transpose(2, 3).contiguous().transpose(2, 3) for one in (k, v)))
    graph = unisono.capture(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, example=apart)
    run = Executor(lower_graph(graph.native, fuse=True))
    run.bind([])
    assert " by own" in str(run.program)
    torch.testing.assert_close(run(list(apart))[0], attended(q, k, v, slope)[0], atol=1e-5, rtol=1e-5)


def test_long_sequences_stay_pytorch_s() -> None:
    inputs = operands(64, 64)
    is_near(by_kernels(*inputs, own=0), attended(*inputs))


def test_the_bits_of_eager_pytorch_are_its_own() -> None:
    inputs = operands(16, 16)
    graph = unisono.capture(attended, example=tuple(inputs))
    run = Executor(lower_graph(graph.native, fuse=True, match_eager=True))
    run.bind([])
    assert all(torch.equal(*pair) for pair in zip(run(inputs), attended(*inputs), strict=True))
