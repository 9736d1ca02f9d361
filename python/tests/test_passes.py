"""Captured training steps give the same bits after the passes, and are smaller."""

import msgpack
import pytest
import torch
import torch.nn.functional as F
from machines import machine
from ranks import run_ranks
from torch import nn

import unisono
from unisono._interpret import interpret

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW in groups": lambda p: torch.optim.AdamW([{"params": p[:3]}, {"params": p[3:], "weight_decay": 0.3}]),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, not fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
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
    changed, done = graph.native.run_passes()
    inputs = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    before, after = run(graph.decoded(), inputs), run(msgpack.unpackb(changed.message())["graph"], inputs)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert done[0][1] == len(graph.decoded()["nodes"])
    assert done[-1][2] < 0.8 * done[0][1]


def test_the_optimizer_of_all_parameters_is_one_node():
    changed, _ = capture_of("AdamW").native.run_passes()
    ops = [line for line in changed.text().splitlines() if "= aten::_f" in line]
    assert [line.split(" = ")[1].split("(")[0] for line in ops] == [
        "aten::_foreach_norm.Scalar",
        "aten::_foreach_mul.Tensor",
        "aten::_foreach_add.Scalar",
        "aten::_fused_adamw.tensor_lr",
    ]


# So slow a device that every split of work pays.
CLUSTER = machine(memory_bandwidth=1e8, flops=1e8, latency_ns=1.0, bandwidth=1e12, operation_ns=1.0)
FAMILIES = {
    "batch sharding": {"batch.*": "shard(0)", "params.*": "replicate"},
    "sharded state": {"batch.*": "shard(0)", "params.*weight": "shard(0)"},
}


def collectives(graph):
    lines = graph.text().splitlines()
    return sum("= _c10d_functional::" in line and "wait_tensor" not in line for line in lines)


def rank_inputs(graph, rank):
    generator = torch.Generator().manual_seed(rank)
    for item in graph["inputs"]:
        kind = graph["values"][item["value"]]["type"]
        if kind["dtype"] == "i64":
            yield torch.randint(0, 5, kind["shape"], generator=generator)
        else:
            yield torch.rand(kind["shape"], generator=generator)


@pytest.mark.parametrize(
    "direct", [{}, {"a": {"ranks": 2, "all_reduce": 1 << 20, "all_gather": 500, "reduce_scatter": 1 << 20}}]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_planned_ranks_give_the_same_bits_with_fewer_collectives(family, direct):
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(torch.rand(8, 16),))
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family].items()}
    plan = graph.native.plan(CLUSTER, msgpack.packb({"mesh": {"a": 2}, "pins": pins}))
    before = [graph.native.rank_graph(plan, rank) for rank in range(2)]
    settings = msgpack.packb({"direct": direct})
    after = [graph.run_passes(settings)[0] for graph in before]
    assert collectives(after[0]) < collectives(before[0]) / 2
    decoded = [[msgpack.unpackb(graph.message())["graph"] for graph in graphs] for graphs in (before, after)]
    inputs = [list(rank_inputs(graph, rank)) for rank, graph in enumerate(decoded[0])]
    for old, new in zip(*(run_ranks(graphs, inputs) for graphs in decoded), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old[0], new[0], strict=True))
        assert old[1].keys() == new[1].keys()
        assert all(torch.equal(tensor, new[1][position]) for position, tensor in old[1].items())
