"""Plans for clusters that are not there: presets, their figures, what is refused."""

from __future__ import annotations

import json

import pytest
import steps
import torch
from test_config import parallel, written

import unisono
from unisono import _devices, _profile


def perceptron(casts=False, **settings):
    """Two wide products, which may cast their weights to half precision, and their optimizer."""

    class Product(torch.nn.Linear):
        def forward(self, x):
            weight = self.weight.bfloat16() if casts else self.weight
            return torch.nn.functional.linear(x, weight)

    with torch.device("meta"):
        model = torch.nn.Sequential(Product(1024, 4096, bias=False), torch.nn.GELU(), Product(4096, 1024, bias=False))
        batch = torch.empty(512, 1024, dtype=torch.bfloat16 if casts else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return unisono.capture(step, model=model, optimizer=optimizer, example=(batch, batch), device="cuda")


@pytest.mark.parametrize("setting", ["fused", "capturable"])
def test_settings_that_pytorch_refuses_on_meta_are_captured_as_where_the_device_is(setting):
    assert perceptron(**{setting: True}).text() == perceptron().text()


def test_parameters_that_are_cast_are_parameters():
    graph, mesh = perceptron(casts=True), {"data": 2, "tensor": 4}

    def collectives(**pins):
        return graph.plan("h100:8", mesh=mesh, pins=pins).figures()["collectives"]

    sharded = {"data": "shard(0)", "tensor": "shard(0)"}
    # With the batch whole along an axis, parameters stay sharded there, in whatever type an outer axis gathered them.
    found = collectives(**{"params.*": sharded, "batch.*": {"data": "shard(0)", "tensor": "replicate"}})
    assert any(one["of"] == "parameters" and one["axis"] == "data" for one in found)
    assert not any(one["of"] == "parameters" and one["axis"] == "tensor" for one in found)
    # They are gathered in the smaller type, and no gradient crosses the network in the larger one.
    found = collectives(**{"params.*": sharded, "batch.*": {"data": "shard(0)", "tensor": "shard(0)"}})
    numbers = 2 * 1024 * 4096
    for of in ("parameters", "gradients"):
        moved = sum(one["bytes"] for one in found if one["of"] == of and one["bytes"] > numbers / 8)
        assert 0 < moved <= 4 * 2 * numbers, of


@pytest.fixture(scope="module")
def graph():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x_BF, y_BF):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x_BF), y_BF)
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.empty(512, 1024, device="meta")
    return unisono.capture(step, model=model, optimizer=optimizer, example=(batch, batch), device="cuda")


def test_a_preset_is_a_description_whose_size_is_given():
    assert unisono.cluster("h100", nodes=2).count("ranks = 16") == 1
    assert unisono.cluster("h100", ranks=4).count("ranks = 4\n") == 1
    with pytest.raises(unisono.errors.ConfigurationError, match="no preset `h10`") as refused:
        unisono.cluster("h10")
    assert "did you mean `h100`?" in str(refused.value)
    with pytest.raises(unisono.errors.ConfigurationError, match="`1x9` is no size of a cluster of h100"):
        unisono.cluster("h100", ranks=9)


def test_a_step_is_planned_for_a_cluster_without_a_device_or_a_process_group(graph):
    plan = graph.plan("h100:2x8")
    assert plan.mesh == {"ranks": 16}
    figures = plan.figures()
    assert figures["ranks"] == 16 and figures["device"] == "H100-SXM-80GB"
    assert figures["peak_bytes"] == plan.prediction["peak_bytes"]
    assert figures["step_ms"] == pytest.approx(plan.prediction["step_ns"] / 1e6)
    assert figures["least_ms"] < figures["step_ms"]
    assert {"params.*.weight", "params.*.bias"} <= {one["names"] for one in figures["state"]}
    assert graph.plan(unisono.cluster("h100", nodes=2)).text == plan.text


def test_a_plan_is_predicted_with_groups_of_operations_as_kernels_where_that_is_asked_for(graph):
    plain, fused = (graph.plan("h100:2x8", fuse=fuse) for fuse in (False, True))
    assert fused.layouts == plain.layouts
    assert fused.figures()["compute_ms"] < plain.figures()["compute_ms"]


def test_a_mesh_lies_on_the_levels_in_its_order(graph):
    def communication(mesh):
        return graph.plan("h100:2x8", mesh=mesh, pins={"params.*": {"a": "shard(0)"}}).figures()["collectives"]

    def gathered(mesh):
        return sum(one["ms"] for one in communication(mesh) if one["axis"] == "a" and one["kind"] == "all_gather")

    # Along the outer axis neighbours are in different nodes, along the inner one in the same.
    assert gathered({"a": 2, "b": 8}) > 1.25 * gathered({"b": 8, "a": 2})


def test_the_planner_chooses_a_mesh_of_all_ranks(graph):
    plan = graph.plan("h100:2x2", mesh="auto")
    assert torch.tensor(list(plan.mesh.values())).prod() == 4


def test_what_cannot_be_planned_for_is_refused(graph, tmp_path):
    with pytest.raises(unisono.errors.ConfigurationError, match="a mesh of 32 ranks on a cluster of 16"):
        graph.plan("h100:2x8", mesh={"a": 32})
    measured = tmp_path / "machine.toml"
    measured.write_text(steps.EAGER_TO_CUT)
    with pytest.raises(unisono.errors.ConfigurationError, match="does not say how many ranks"):
        graph.plan(measured)
    assert graph.plan(measured, mesh={"a": 2}).mesh == {"a": 2}
    with pytest.raises(unisono.errors.ConfigurationError, match="cannot read"):
        graph.plan(tmp_path / "absent.toml")
    with pytest.raises(ValueError, match="no figures"):
        type(graph.plan(measured, mesh={"a": 2}))(graph.plan(measured, mesh={"a": 2}).text).figures()


def test_a_preset_is_named_in_a_file_of_settings(tmp_path):
    step = parallel(written(tmp_path, 'cluster = "cpu:1"\n'))
    assert step.plan.figures()["device"] == "CPU-32-cores"


@pytest.fixture(scope="module")
def two_axes():
    return perceptron().plan("h100:8", mesh={"data": 2, "tensor": 4})


def test_a_plan_says_where_time_and_memory_go(two_axes):
    text, figures = two_axes.explain(), two_axes.figures()
    assert figures["label"] in text and "operations by module" in text and "at the peak" in text
    assert all(one["label"] in text for one in figures["runners_up"])
    assert sum(one["exposed_ms"] for one in figures["collectives"]) == pytest.approx(figures["exposed_ms"], abs=1e-3)


def test_a_plan_says_why_it_is_not_another_one(two_axes):
    figures = two_axes.figures()
    for answer in (two_axes.why_not("zero-3 on data"), two_axes.why_not(1), two_axes.why_not({"data": 8})):
        found = answer.figures["plan"]
        assert found["slower_ms"] == pytest.approx(found["step_ms"] - figures["step_ms"])
        assert sum(one["ms"] for one in answer.figures["differences"]) == pytest.approx(found["slower_ms"], abs=1e-3)
        assert found["label"] in str(answer)
    pinned = two_axes.why_not(pins={"params.*": {"data": "replicate", "tensor": "replicate"}})
    assert "state sharded" not in pinned.figures["plan"]["label"].replace("optimizer state sharded", "")
    refused = two_axes.why_not(pins={"params.*": {"data": "shard(7)"}}).figures
    assert refused["plan"] is None and "binds nothing" in refused["refused"]["message"]
    with pytest.raises(unisono.errors.ConfigurationError, match="no plan is called"):
        two_axes.why_not("tensro")


def test_a_plan_says_what_more_of_something_would_give(two_axes):
    others = two_axes.sensitivity()
    assert [one["with"] for one in others] == ["links 2 times as fast", "a device 10 % faster"]
    assert all(one["saves"] >= 0 for one in others)


def test_a_description_of_another_machine_is_used_with_a_word():
    training = steps.mlp(count=1)
    described = steps.EAGER_TO_CUT.replace("[device]\n", '[device]\nmeasured_on = "a machine, torch 1.0"\n')
    with pytest.warns(RuntimeWarning, match="measured on another machine, a machine, torch 1.0; this is .*torch"):
        step = unisono.parallelize(
            training.step,
            model=training.model,
            optimizer=training.optimizer,
            example=training.batches[0],
            cluster=described,
        )
    assert step(*training.batches[0])["loss"] > 0


def test_a_description_of_this_machine_is_used_without_a_word(recwarn):
    training = steps.mlp(count=1)
    here = _profile._measured_on(_devices.HOST)
    described = steps.EAGER_TO_CUT.replace("[device]\n", f"[device]\nmeasured_on = {json.dumps(here)}\n")
    unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        cluster=described,
    )
    assert not [one for one in recwarn if "measured on" in str(one.message)]
