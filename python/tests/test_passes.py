"""Captured training steps give the same bits after the passes, and are smaller."""

import msgpack
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono import _native
from unisono._interpret import interpret

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW in groups": lambda p: torch.optim.AdamW([{"params": p[:3]}, {"params": p[3:], "weight_decay": 0.3}]),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, not fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


def capture_of(name):
    torch.manual_seed(0)
    layers = [nn.Embedding(11, 8), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 11)]
    model = nn.Sequential(*layers)
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS[name](parameters)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss

    x, y = torch.randint(0, 11, (2, 6))
    return unisono.capture(step, model=model, optimizer=optimizer, example=(x, y))


def run(graph, inputs, steps=3):
    """What the steps return and leave, with the dropout masks of one seed."""
    torch.manual_seed(7)
    inputs = list(inputs)
    found = []
    for _ in range(steps):
        returns, updates = interpret(graph, inputs)
        for position, tensor in updates.items():
            inputs[position] = tensor
        found += returns
    return found + inputs


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_gives_the_same_bits_after_the_passes(name):
    graph = capture_of(name)
    changed, done = _native.run_passes(graph.message)
    inputs = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    before, after = run(graph.decoded(), inputs), run(msgpack.unpackb(changed)["graph"], inputs)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert done[0][1] == len(graph.decoded()["nodes"])
    assert done[-1][2] < 0.8 * done[0][1]


def test_the_optimizer_of_all_parameters_is_one_node():
    changed, _ = _native.run_passes(capture_of("AdamW").message)
    ops = [line for line in _native.graph_text(changed).splitlines() if "= aten::_f" in line]
    assert [line.split(" = ")[1].split("(")[0] for line in ops] == [
        "aten::_foreach_norm.Scalar",
        "aten::_foreach_mul.Tensor",
        "aten::_foreach_add.Scalar",
        "aten::_fused_adamw.tensor_lr",
    ]
