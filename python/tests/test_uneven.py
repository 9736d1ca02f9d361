"""Ranks that do not divide what they share."""

from __future__ import annotations

import copy
import math

import launch
import pytest
import torch
import uneven_graphs
import uneven_ranks
from mesh_ranks import make_step
from ranks import train
from steps import EAGER_TO_CUT
from torch import nn

import unisono
from unisono._issue_order import alike, prints_of
from unisono._message import pack

CASES = [(ranks, f"{model}, {family}") for ranks in (2, 3, 4) for model, family in uneven_ranks.cases(ranks)]


def test_where_a_dimension_repeats_those_of_one_element_do_not_turn_results():
    assert uneven_graphs.ask(2330, axes=1)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each rank found in each case; the processes start once."""
    return launch.found_by_ranks("uneven_ranks:compare_all", tmp_path_factory.mktemp)


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_five_steps_are_as_on_one_device(compared, ranks, case):
    for found in (rank[case] for rank in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["returned"] < 1e-5
        assert found["state"] < 1e-5, found["worst"]
        assert found["optimizer"] < 2e-5


@pytest.mark.parametrize("ranks", [2, 3])
def test_pins_shard_what_the_ranks_do_not_divide(compared, ranks):
    found = compared(ranks)[0]
    assert {"batch.x", "batch.y", "batch.weight"} <= set(found["odd_means, batch cut"]["plan"])
    cut = found["odd_gpt, state cut"]["plan"]
    assert cut["params.head.weight"] == {"a": "shard(0)"}
    assert sum(name.startswith("params.") for name in cut) > 20


def require_equal_to_one_device(graph, plan, mesh, batches, passes, model):
    """Trains on ranks in lock-step and the model on one device, and compares losses and parameters."""
    losses, after = train(graph, plan, mesh, batches, passes=passes)
    eager, _ = make_step(model)
    for loss, batch in zip(losses, batches, strict=True):
        torch.testing.assert_close(loss, eager(*batch).detach(), rtol=1e-5, atol=1e-7)
    for name, found in after.items():
        torch.testing.assert_close(found, model.get_parameter(name).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("passes", [False, True])
def test_ranks_with_more_and_less_have_collectives_of_unequal_sizes_along_another_axis(passes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8))
    reference = copy.deepcopy(model)

    mesh, batches = {"a": 2, "b": 2}, [tuple(torch.randn(2, 7, 8)) for _ in range(3)]
    pins = {"batch.*": {"a": "replicate", "b": "shard(0)"}, "params.*.weight": {"a": "shard(0)"}}
    step, optimizer = make_step(model)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    plan = graph.native.plan(EAGER_TO_CUT, pack({"mesh": mesh, "pins": pins}))
    orders = [graph.native.rank_graph(plan, rank).issue_order() for rank in range(4)]
    assert orders[0]["axis:a"] != orders[1]["axis:a"]
    assert orders[0]["axis:a"] == orders[2]["axis:a"]
    require_equal_to_one_device(graph, plan, mesh, batches, passes, reference)


def test_ranks_are_alike_where_those_of_each_group_are():
    mesh = {"a": 2, "b": 2}

    def orders(along_a, along_b, whole="wwww"):
        each = zip(whole, along_a, along_b, strict=True)
        return [prints_of({"": one, "axis:a": a, "axis:b": b}, mesh) for one, a, b in each]

    # Ranks 0 and 2, and 1 and 3, are together along `a`; 0 and 1, and 2 and 3, along `b`.
    assert alike(orders("xyxy", "zzvv"), mesh)
    assert not alike(orders("xxyy", "zzzz"), mesh)
    assert not alike(orders("xxxx", "zvzv"), mesh)
    assert not alike(orders("xyxy", "zzvv", "wwwu"), mesh)
    # What is small enough to be sent directly at one place of `b` may be too large at another.
    assert alike(orders("xyxy", "zzvv", "wuwu"), mesh)
    stages = {"stages": 2, "b": 2}
    each = [prints_of({"": one, "axis:b": one}, stages) for one in "wwuu"]
    assert alike(each, stages)
    assert not alike([each[0], each[2], each[0], each[2]], stages)


class _Images(nn.Module):
    """Operations whose kernels refuse a batch of nothing: convolutions, norms of groups, pools and attention."""

    def __init__(self):
        super().__init__()
        self.into, self.norm, self.qkv = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Linear(8, 24)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        y = nn.functional.max_pool2d(nn.functional.silu(self.norm(self.into(x))), 2)
        tokens = y.flatten(2).transpose(1, 2)
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(tokens).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = (tokens + mixed).transpose(1, 2).unflatten(-1, y.shape[2:])
        return self.out(nn.functional.interpolate(y, scale_factor=2.0))


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize(("batch", "mesh"), [(6, {"a": 4}), (5, {"a": 4}), (3, {"a": 2, "b": 4})], ids=str)
def test_ranks_without_a_sample_run_no_operation_that_refuses_nothing(batch, mesh, passes):
    torch.manual_seed(0)
    model = _Images()
    reference = copy.deepcopy(model)
    batches = [tuple(torch.randn(2, batch, 3, 8, 8)) for _ in range(3)]
    cut, whole = dict.fromkeys(mesh, "replicate") | {[*mesh][-1]: "shard(0)"}, dict.fromkeys(mesh, "replicate")
    step, optimizer = make_step(model)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    plan = graph.native.plan(EAGER_TO_CUT, pack({"mesh": mesh, "pins": {"batch.*": cut, "params.*": whole}}))
    ranks = math.prod(mesh.values())
    programs = [graph.native.program(plan, rank)[0] for rank in range(ranks)]
    assert "aten::convolution(" in programs[0].text()
    assert "aten::convolution(" not in programs[-1].text()
    assert alike([prints_of(program.issue_order(), mesh) for program in programs], mesh)
    require_equal_to_one_device(graph, plan, mesh, batches, passes, reference)


class _FromTokens(nn.Module):
    """Images that are made of tokens, as encoders of images do, and operations whose kernels ask how they lie."""

    def __init__(self):
        super().__init__()
        self.into, self.mix, self.out = nn.Linear(6, 8), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 3)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        image = self.into(x).transpose(1, 2).reshape(len(x), 8, 4, 4)
        pooled = (
            nn.functional.max_pool2d(image, 2)
            + nn.functional.avg_pool2d(image, 2)
            + nn.functional.adaptive_avg_pool2d(image, 2)
        )
        larger = nn.functional.interpolate(pooled, scale_factor=2.0, mode="bilinear") + nn.functional.interpolate(
            pooled, scale_factor=2.0
        )
        padded = nn.functional.pad(image, (0, 0, 1, 1)) + nn.functional.pad(image, (0, 0, 1, 1), mode="reflect")
        doubled = torch.cat([image, image], 1)[:, ::2]
        mixed = self.norm(self.mix(image)) + larger + padded[:, :, 1:5] + doubled
        return self.out(mixed.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("batch", [2, 3])
def test_images_of_one_sample_that_are_made_of_tokens_lie_as_kernels_make_them(batch, passes):
    torch.manual_seed(0)
    model = _FromTokens()
    reference = copy.deepcopy(model)
    step, optimizer = make_step(model)
    batches = [(torch.randn(batch, 16, 6), torch.randn(batch, 16, 3)) for _ in range(2)]
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    plan = graph.native.plan(EAGER_TO_CUT, pack({"mesh": {"a": 2}, "pins": {"batch.*": {"a": "shard(0)"}}}))
    require_equal_to_one_device(graph, plan, {"a": 2}, batches, passes, reference)


class _Turned(nn.Module):
    """A part of each head's features turned as complex numbers, in the way of DeepSeek's models."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(6, 24), nn.Linear(24, 3)
        self.register_buffer("turns", torch.polar(torch.ones(5, 2), torch.randn(5, 2)))

    def forward(self, x):
        kept, turned = self.into(x).unflatten(-1, (3, 8)).split([4, 4], -1)
        pairs = torch.view_as_complex(turned.unflatten(-1, (2, 2)))
        turned = torch.view_as_real(pairs * self.turns[:, None]).flatten(-2)
        again = torch.view_as_real(pairs).sum(-1)
        return self.out(torch.cat([kept, turned], -1).flatten(2)) + again.mean(2)[..., :1]


@pytest.mark.parametrize("passes", [False, True])
def test_complex_views_of_parts_lie_where_the_parts_do(passes):
    torch.manual_seed(0)
    model = _Turned()
    reference = copy.deepcopy(model)
    step, optimizer = make_step(model)
    batches = [(torch.randn(3, 5, 6), torch.randn(3, 5, 3)) for _ in range(2)]
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    plan = graph.native.plan(EAGER_TO_CUT, pack({"mesh": {"a": 2}, "pins": {"batch.*": {"a": "shard(0)"}}}))
    require_equal_to_one_device(graph, plan, {"a": 2}, batches, passes, reference)
