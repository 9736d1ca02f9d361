"""What goes wrong within functions that `torch.compile(.., backend="unisono")` has made is caught as it is in eager PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from backend import compiled, fresh

from unisono.errors import StepError


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


FAILING = {
    "a row that is not there": (lambda x, at: x[at] * 2, (torch.ones(4, 5), torch.tensor([9]))),
    "a word that is not there": (lambda x, at: F.embedding(at, x) * 2, (torch.ones(4, 5), torch.tensor([9]))),
    "a matrix without a factor": (lambda x: torch.linalg.cholesky(x) * 2, (-torch.eye(3),)),
    "a matrix without an inverse": (lambda x: torch.linalg.inv(x) * 2, (torch.zeros(3, 3),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", FAILING)
def test_an_operation_that_fails_raises_what_eager_pytorch_raises(what, dynamic):
    function, inputs = FAILING[what]
    with pytest.raises(Exception) as eager:  # noqa: PT011 - whatever it is
        function(*inputs)
    with pytest.raises(type(eager.value)) as found:
        compiled(function, dynamic=dynamic)(*inputs)
    assert isinstance(found.value, StepError)
    assert str(eager.value).split(":")[0] in str(found.value)


def test_a_function_works_after_one_of_its_operations_failed():
    function = compiled(lambda x, at: x[at] * 2)
    with pytest.raises(IndexError):
        function(torch.ones(4, 5), torch.tensor([9]))
    torch.testing.assert_close(function(torch.ones(4, 5), torch.tensor([1])), torch.full((1, 5), 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_functions_with_checks_are_programs_with_their_gradients(dynamic):
    def function(x):
        whole = x @ x.mT + 2 * torch.eye(len(x))
        return torch.linalg.inv(whole) + torch.linalg.cholesky(whole), torch.linalg.solve(whole, x).tanh()

    call = compiled(function, dynamic=dynamic)
    for size in (3, 5):
        x = torch.randn(size, 4, generator=torch.Generator().manual_seed(size)).requires_grad_()
        for found, expected in zip(call(x), function(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        gradients = [torch.autograd.grad(sum(one.sum() for one in made(x)), x)[0] for made in (call, function)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
