"""Steps in 16 bits on several ranks: equal within their rounding, and gradients summed in the type that is asked for."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import pytest
import torch
from machines import DEAR_COMPUTING, machine
from ranks import train
from torch import nn

import unisono
from unisono.errors import ConfigurationError

BATCH = (torch.linspace(-1, 1, 24 * 16).view(24, 16), torch.linspace(1, -1, 24 * 8).sin().view(24, 8))
STEPS = 3
#: Half the distance between neighbouring numbers at 1.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))


def make_step(model: nn.Module, cast: Any = None):
    """A step whose products, or whose state too where ``cast`` is none, are in the type of the model's own state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
            found = model(x)
            loss = (found.float() - y.float()).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


def parameters(model, cast, batch, mesh=None, **settings) -> tuple[dict[str, torch.Tensor], set[str]]:
    """The parameters after some steps, eager or on ranks, and the types in which ranks sum."""
    model = copy.deepcopy(model)
    step, optimizer = make_step(model, cast)
    if mesh is None:
        for _ in range(STEPS):
            step(*batch)
        return {name: one.detach() for name, one in model.named_parameters()}, set()
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch)
    settings = {"mesh": mesh, "memory_limit": None} | settings
    plan = graph.native.plan(DEAR_COMPUTING, msgpack.packb(settings))
    return train(graph, plan, mesh, [batch] * STEPS, passes=True)[1], sums(graph, plan)


def sums(graph, plan) -> set[str]:
    """The element types of what backward and update of rank 0's program sum between ranks, of the gradients' shapes."""
    program = msgpack.unpackb(graph.native.program(plan, 0)[0].message())["graph"]
    found = set()
    for number in program["order"]:
        node = program["nodes"][number]
        kind = program["parts"][node["part"]]["kind"]
        if kind != "forward" and "reduce" in program["ops"][node["op"]]["name"]:
            made = program["values"][next(iter(node["returns"][0].values()))]["type"]
            found |= {made["dtype"]} if made["shape"] else set()
    return found


def error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference, in units of the largest entry of each parameter."""
    return max(
        ((found[name].double() - one.double()).abs().max() / one.double().abs().max()).item()
        for name, one in expected.items()
    )


@pytest.mark.parametrize("mesh", [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}], ids=["2", "3", "2 x 2"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("state", ["single", "half"])
def test_a_step_in_sixteen_bits_is_that_of_one_device_within_its_rounding(state, kind, mesh):
    model = perceptron()
    cast, batch = kind, BATCH
    if state == "half":
        model, cast, batch = model.to(kind), None, tuple(one.to(kind) for one in BATCH)
    expected, _ = parameters(model, cast, batch)
    found, types = parameters(model, cast, batch, mesh)
    assert types and types <= {"f32", "bf16", "f16"}
    assert error(found, expected) <= 4 * ROUNDING[kind]


@pytest.mark.parametrize("mesh", [{"a": 2}, {"a": 3}, {"a": 2, "b": 2}], ids=["2", "3", "2 x 2"])
def test_gradients_in_bfloat16_are_summed_in_single_precision_where_that_is_asked_for(mesh):
    model = perceptron().bfloat16()
    batch = tuple(one.bfloat16() for one in BATCH)
    pins = {"params.*": dict.fromkeys(mesh, "replicate"), "batch.*": {"a": "shard(0)"}}
    own, types = parameters(model, None, batch, mesh, pins=pins)
    wide, wider = parameters(model, None, batch, mesh, pins=pins, reduce_dtype="f32")
    assert "bf16" in types and "f32" not in types
    assert wider == {"f32"}
    assert {one.dtype for one in wide.values()} == {torch.bfloat16}
    expected, _ = parameters(model, None, batch)
    assert error(wide, expected) <= 4 * ROUNDING[torch.bfloat16]
    # Along one axis, what few ranks send each other directly is rounded once in any type.
    differs = any((own[name] != wide[name]).any() for name in own)
    assert differs or len(mesh) == 1, "sums of one rounding are those of several"


def test_gradients_in_single_precision_are_summed_in_bfloat16_where_that_is_asked_for():
    pins = {"params.*": {"a": "shard(0)"}, "batch.*": {"a": "shard(0)"}}
    expected, _ = parameters(perceptron(), None, BATCH)
    found, types = parameters(perceptron(), None, BATCH, {"a": 2}, pins=pins, reduce_dtype="bf16")
    assert types == {"bf16"}
    assert {one.dtype for one in found.values()} == {torch.float32}
    assert 1e-6 < error(found, expected) <= 4 * ROUNDING[torch.bfloat16]


def test_the_search_knows_what_sums_in_a_wider_type_take_and_does_not_put_them_off():
    model = perceptron().bfloat16()
    step, optimizer = make_step(model)
    batch = tuple(one.bfloat16() for one in BATCH)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch)
    slow = machine(memory_bandwidth=1e12, flops=1e9, latency_ns=1.0, bandwidth=1e6)
    pins = {"params.*": {"a": "replicate"}, "optimizer.*": {"a": "replicate"}, "batch.*": {"a": "shard(0)"}}
    own, wide = (graph.plan(slow, mesh={"a": 2}, pins=pins, reduce_dtype=kind) for kind in (None, "f32"))
    # Twice the bytes of gradients that are summed, and as many of parameters that are gathered.
    assert 1.4 < wide.prediction["bound_ns"] / own.prediction["bound_ns"] < 1.6
    # Momentum, in half precision, is added to what ranks have of a gradient before that is summed; the sum is in the wider type there too.
    assert sums(graph, wide.native) == {"f32"}


def test_sums_in_their_own_type_are_left_as_they_are():
    pins = {"params.*": {"a": "replicate"}, "batch.*": {"a": "shard(0)"}}
    plain, types = parameters(perceptron(), None, BATCH, {"a": 2}, pins=pins)
    asked, same = parameters(perceptron(), None, BATCH, {"a": 2}, pins=pins, reduce_dtype="f32")
    assert types == same == {"f32"}
    assert all(torch.equal(one, asked[name]) for name, one in plain.items())


@pytest.mark.parametrize("dtype", [torch.int32, "float8", 4])
def test_what_is_no_type_to_sum_in_is_refused(dtype):
    model = perceptron()
    step, optimizer = make_step(model)
    with pytest.raises(ConfigurationError, match=r"`reduce_dtype` is .*\n.*torch\.float32"):
        unisono.parallelize(step, model=model, optimizer=optimizer, example=BATCH, reduce_dtype=dtype)
