"""Every layer and loss of `torch.nn`, in training: its operations and their backward have rows, whose strategies give the whole result."""

from __future__ import annotations

import itertools
import warnings

import msgpack
import pytest
import torch
import torch.utils._pytree as pytree
from rule_exam import ask, message, rows
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.testing._internal.common_modules import module_db

from unisono import _native
from unisono._capture.rewrites import Rewrites

#: Parameters of these have no shape yet, or sizes follow from values: capture has tests of its own for both.
LEFT_OUT = {"nn.CTCLoss", "nn.GaussianNLLLoss", *(info.name for info in module_db if "Lazy" in info.name)}
#: What runs replicated, because it draws for all elements at once.
WITHOUT_A_RULE = {"aten::rrelu_with_noise_functional", "aten::bernoulli.p", "aten::rand", "aten::exponential"}
MODULES = [info for info in module_db if info.name not in LEFT_OUT]


def traced(info, sample):
    """The graph of a module's results and their gradients, with the tensors that it reads."""
    torch.manual_seed(0)
    given = sample.constructor_input
    module = info.module_cls(*given.args, **given.kwargs).double().train()
    names = [name for name, _ in module.named_parameters()]
    buffers = [name for name, _ in module.named_buffers()]
    leaves, spec = pytree.tree_flatten((sample.forward_input.args, sample.forward_input.kwargs))
    inputs = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    state = [one.detach().clone() for one in (*module.parameters(), *module.buffers())]
    # A target has no gradient.
    wanted = [x.is_floating_point() and (at == 0 or "Loss" not in info.name) for at, x in enumerate(inputs)]

    def both(*tensors):
        own = [
            one.detach().requires_grad_(one.is_floating_point() and (at >= len(inputs) or wanted[at]))
            for at, one in enumerate(tensors[: len(inputs) + len(names)])
        ]
        kept = [one.clone() for one in tensors[len(own) :]]
        filled = iter(own[: len(inputs)])
        args, kwargs = pytree.tree_unflatten([next(filled) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
        parameters = dict(zip((*names, *buffers), (*own[len(inputs) :], *kept), strict=True))
        with torch.enable_grad(), Rewrites():
            made = torch.func.functional_call(module, parameters, args, kwargs)
            made = [x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            loss = sum(one.sin().sum() for one in made)
            leaves_ = [one for one in own if one.requires_grad]
            return [loss.detach(), *torch.autograd.grad(loss, leaves_, allow_unused=True)]

    return message(both, [*inputs, *state])


@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.name)
def test_the_operations_of_a_module_in_training_can_be_sharded(info):
    known, without = rows(), set()
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=True)
    asked = False
    for sample in itertools.islice(samples, 4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                bytes_, tensors = traced(info, sample)
            except DataDependentOutputException:
                continue  # it reads a number: averages over all batches
        canonical, _, _ = _native.Graph(bytes_).exam(2)
        for operator in msgpack.unpackb(canonical.message())["graph"]["ops"]:
            row = known.get(operator["name"])
            if row is None or not row["has_rule"]:
                without.add(operator["name"])
        if not asked and not without:
            ask(bytes_, tensors, 2)
            asked = True
    assert without <= WITHOUT_A_RULE
