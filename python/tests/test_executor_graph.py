"""Captured steps run in the executor as they do node by node."""

from __future__ import annotations

import msgpack
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono._executor import Executor, lower_graph
from unisono._interpret import interpret

STATE = ("parameter", "buffer", "optimizer", "constant")


class Net(nn.Module):
    """A bit of everything: embedding, batch and layer norm, convolution, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.bn, self.ln = nn.BatchNorm1d(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 11)

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed(x_BT)
        x_BTD = x_BTD + self.bn(self.conv(x_BTD.transpose(1, 2))).transpose(1, 2)
        q, k, v = self.qkv(self.ln(x_BTD)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        a_BTD = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(F.gelu(x_BTD + a_BTD))


OPTIMIZERS = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def captured(make_optimizer):
    """A captured step, and the values of its inputs."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make_optimizer(model.parameters())

    def step(x_BT, y_BT):
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x_BT, y_BT = torch.randint(0, 11, (3, 5)), torch.randint(0, 11, (3, 5))
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x_BT, y_BT))
    values = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    return graph, values


@pytest.mark.parametrize("passes", [False, True], ids=["as captured", "after passes"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_is_bitwise_equal_to_node_by_node(name, passes):
    graph, values = captured(OPTIMIZERS[name])
    native = graph.native.run_passes()[0] if passes else graph.native
    decoded = msgpack.unpackb(native.message())["graph"]
    is_state = [item["class"] in STATE for item in decoded["inputs"]]
    state = [value.clone() for value, is_one in zip(values, is_state, strict=True) if is_one]
    batch = [value for value, is_one in zip(values, is_state, strict=True) if not is_one]
    run = Executor(lower_graph(native))
    run.bind(state)
    for _ in range(4):
        found = run(batch)
        expected, updates = interpret(decoded, values)
        for position, value in updates.items():
            values[position] = value
        ours = iter(state)
        whole = [next(ours) if is_one else value for value, is_one in zip(values, is_state, strict=True)]
        names = ["return", *(item["name"] for item in decoded["inputs"])]
        for what, a, b in zip(names, [*found, *whole], [*expected, *values], strict=True):
            assert torch.equal(a, b), what


def test_state_is_left_as_it_was_by_a_step_that_fails():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x_BT, y_BT):
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x_BT, y_BT = torch.randint(0, 11, (3, 5)), torch.randint(0, 11, (3, 5))
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x_BT, y_BT))
    decoded = graph.decoded()
    items = list(zip(decoded["inputs"], graph.capture.inputs.inputs, strict=True))
    state = [item.tensor.detach().clone() for entry, item in items if entry["class"] in STATE]
    rest = [item.tensor.detach() for entry, item in items if entry["class"] not in STATE]
    run = Executor(lower_graph(graph.native.run_passes()[0]))
    run.bind(state)
    run(rest)
    before = [one.clone() for one in state]
    wrong = [one + 100 if one is y_BT or torch.equal(one, y_BT) else one for one in rest]
    with pytest.raises(unisono.errors.StepError, match="nll_loss") as caught:
        run(wrong)
    assert "test_executor_graph.py" in (caught.value.place or "")
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
    run(rest)
    assert not torch.equal(state[0], before[0])
