"""Large results lie in memory that is kept when they end, and nobody can tell but by the time that they take."""

from __future__ import annotations

import gc

import pytest
import torch

import unisono
from unisono import _native
from unisono._executor import Executor, lower_graph

#: 36 MB as `float32`, which glibc would give back to the system.
SIZE = 3000
LARGE = SIZE * SIZE * 4


@pytest.fixture(autouse=True)
def _nothing_else():
    torch._dynamo.reset()
    gc.collect()
    assert _native.kept_bytes() == (0, 0)
    yield
    torch._dynamo.reset()


def given(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in shapes]


def narrow(x_NK, y_KN):
    """A large result and another one that is made of it, of which only sums come out."""
    z_NN = x_NK @ y_KN
    return torch.relu(z_NN @ y_KN.t()).sum(), z_NN.sum()


def program(function, inputs, **settings) -> Executor:
    made = Executor(lower_graph(unisono.capture(function, example=tuple(inputs)).native, **settings))
    made.bind([])
    return made


def test_a_step_leaves_memory_to_the_next_one_and_a_program_that_ends_leaves_none():
    inputs = given((SIZE, 4), (4, SIZE))
    run = program(narrow, inputs)
    expected = narrow(*inputs)
    for _ in range(3):
        torch.testing.assert_close(tuple(run(inputs)), expected)
        assert _native.kept_bytes() == (0, LARGE)
    del run
    assert _native.kept_bytes() == (0, 0)


def test_programs_leave_memory_to_each_other():
    inputs = given((SIZE, 4), (4, SIZE))
    runs = [program(narrow, inputs) for _ in range(2)]
    for run in runs:
        run(inputs)
    assert _native.kept_bytes() == (0, LARGE)
    del runs[0], run
    assert _native.kept_bytes() == (0, LARGE)


def test_what_a_program_gives_is_pytorchs_own_memory_and_stays_as_it_is():
    inputs = given((SIZE, 4), (4, SIZE))
    run = program(lambda x, y: (x @ y * 2 + 1, (x @ y).sum()), inputs, fuse=True)
    first = run(inputs)[0]
    kept = first.clone()
    run([inputs[0] + 1, inputs[1]])
    assert torch.equal(first, kept) and first.untyped_storage().resizable()


def test_under_a_memory_limit_nothing_is_kept():
    inputs = given((SIZE, 4), (4, SIZE))
    run = program(narrow, inputs, buffer_bytes=1 << 20)
    run(inputs)
    assert _native.kept_bytes() == (0, 0)


def test_while_memory_is_measured_nothing_is_kept():
    inputs = given((SIZE, 4), (4, SIZE))
    run = program(narrow, inputs)
    run(inputs)
    with _native.PausedKeeping():
        assert _native.kept_bytes() == (0, 0)
        run(inputs)
        assert _native.kept_bytes() == (0, 0)
    run(inputs)
    assert _native.kept_bytes() == (0, LARGE)


def product(x_NK, y_KN):
    return (x_NK @ y_KN).exp().square().sum()


def trained(function, inputs):
    leaves = [one.clone().requires_grad_() for one in inputs]
    loss = function(*leaves)
    return loss, leaves


def test_what_forward_leaves_to_backward_is_kept_and_free_again_behind_it():
    inputs = [one * 0.1 for one in given((SIZE, 4), (4, SIZE))]
    compiled = torch.compile(product, backend="unisono", dynamic=False)
    for _ in range(3):
        loss, leaves = trained(compiled, inputs)
        assert _native.kept_bytes()[0] == LARGE
        loss.backward()
        used, free = _native.kept_bytes()
        assert used == 0 and free in (LARGE, 2 * LARGE)
        expected, others = trained(product, inputs)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for found, one in zip(leaves, others, strict=True):
            torch.testing.assert_close(found.grad, one.grad)
            assert found.grad.untyped_storage().resizable()


def test_backward_may_run_twice_and_steps_may_overlap():
    inputs = [one * 0.1 for one in given((SIZE, 4), (4, SIZE))]
    compiled = torch.compile(product, backend="unisono", dynamic=False)
    loss, leaves = trained(compiled, inputs)
    loss.backward(retain_graph=True)
    once = [leaf.grad.clone() for leaf in leaves]
    other, others = trained(compiled, [one * 2 for one in inputs])
    loss.backward()
    for leaf, first in zip(leaves, once, strict=True):
        torch.testing.assert_close(leaf.grad, 2 * first)
    other.backward()
    expected, plain = trained(product, [one * 2 for one in inputs])
    expected.backward()
    for found, one in zip(others, plain, strict=True):
        torch.testing.assert_close(found.grad, one.grad)


def test_what_a_hook_keeps_of_what_backward_reads_stays_as_it_is():
    inputs = [one * 0.1 for one in given((SIZE, 4), (4, SIZE))]
    compiled = torch.compile(product, backend="unisono", dynamic=False)
    seen = []

    def pack(tensor):
        if tensor.nbytes >= LARGE:
            seen.append((tensor, tensor.clone()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = trained(compiled, inputs)
    loss.backward()
    for _ in range(2):
        trained(compiled, [one * 3 for one in inputs])[0].backward()
    assert seen and all(torch.equal(tensor, copy) for tensor, copy in seen)
