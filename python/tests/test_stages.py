"""A step in pipeline stages gives what it gives on one device, wherever it is cut."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time

import launch
import msgpack
import pytest
import stage_ranks
import stages
import torch

import unisono
from unisono import _native
from unisono.errors import ConfigurationError, ResourceError

#: Schedules with how many chunks a stage has under them.
SCHEDULES = [
    ("gpipe", 1),
    ("gpipe", 2),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("dualpipe-v", 2),
]

#: How many ways to cut each step are tried.
CUTS = 12


def captured(name):
    one, many = stage_ranks.made(name)
    return one, many, unisono.capture(many.step, model=many.model, optimizer=many.optimizer, example=many.batches[0])


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["gpt", "mlp", "tied", "norms", "llama"])
def test_a_step_can_be_cut_at_any_operation(name, count):
    one, many, graph = captured(name)
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in many.batches]
    leaves = [
        [leaf for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)] for batch in batches
    ]
    torch.manual_seed(7)
    expected = [torch.utils._pytree.tree_leaves(one.step(*batch))[0] for batch in batches]
    length, chance = stages.forward_length(graph), random.Random(count)
    for number in range(CUTS):
        schedule, chunks = chance.choice(SCHEDULES)
        cuts = sorted(chance.sample(range(1, length), count * chunks - 1))
        settings = {"cuts": cuts, "schedule": schedule, "chunks": chunks, "recompute": ("none", "full")[number % 2]}
        plan = stages.plan(graph, count, (1, 2, 4)[number % 3], **settings)
        torch.manual_seed(7)
        returned, parameters = stages.train(graph, plan, leaves)
        for mine, theirs in zip(returned, expected, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5), (settings, mine, theirs)
        for key, theirs in one.model.named_parameters():
            assert torch.allclose(parameters[key], theirs, atol=2e-5), (settings, key)


def predicted(plan):
    return msgpack.unpackb(plan.content())["prediction"]


@pytest.mark.parametrize("name", ["gpt_adamw", "llama", "tied"])
def test_what_a_memory_limit_asks_of_stages_runs_again_within_them(name):
    one, many, graph = captured(name)
    settings = {"schedule": "1f1b", "chunks": 1}
    settings["cuts"] = msgpack.unpackb(stages.plan(graph, 2, 4, **settings).content())["stages"]["cuts"]
    full = predicted(stages.plan(graph, 2, 4, recompute="full", **settings))
    assert full["recomputed_ns"] > 0
    # Without a limit buffers that stay take more.
    limit = full["peak_bytes"] * 95 // 100
    with pytest.raises(ResourceError, match="no plan fits"):
        stages.plan(graph, 2, 4, memory_limit=limit, recompute="none", **settings)
    plan = stages.plan(graph, 2, 4, memory_limit=limit, **settings)
    assert predicted(plan)["peak_bytes"] <= limit
    assert predicted(plan)["recomputed_ns"] > 0
    assert _native.Plan(plan.text()).text() == plan.text()
    leaves = [[batch] if isinstance(batch, torch.Tensor) else list(batch) for batch in many.batches]
    torch.manual_seed(7)
    expected = [torch.utils._pytree.tree_leaves(one.step(*batch))[0] for batch in leaves]
    torch.manual_seed(7)
    returned, _ = stages.train(graph, plan, leaves)
    for mine, theirs in zip(returned, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "mesh", "settings"),
    [
        ("gpt_adamw,llama,tied,norms,mlp", {"stages": 2}, {"micro_batches": 4}),
        ("tied,norms", {"stages": 2, "data": 2}, {"micro_batches": 2, "schedule": "gpipe"}),
        ("tied", {"data": 1, "stages": 4}, {"cuts": ["layers.1", "layers.2", "layers.3"]}),
        ("tied", {"stages": 4}, {"schedule": "interleaved", "micro_batches": 8}),
        ("gpt_adamw", {"stages": 4}, {"schedule": "zb-h2", "micro_batches": 4}),
        ("tied,llama", {"stages": 4}, {"schedule": "zb-v", "micro_batches": 4}),
        ("tied", {"stages": 2, "data": 2}, {"schedule": "dualpipe-v", "micro_batches": 4}),
        ("tied,llama", {"stages": 2}, {"micro_batches": 4, "recompute": "full"}),
    ],
)
def test_stages_on_ranks_give_what_one_device_gives(names, mesh, settings, tmp_path):
    ranks = 1
    for size in mesh.values():
        ranks *= size
    ended = launch.run("stage_ranks:train", ranks, tmp_path, seconds=240, names=names, mesh=mesh, **settings)
    assert [one.status for one in ended] == [0] * ranks, "\n".join(one.err for one in ended)
    for rank in range(ranks):
        found = json.loads((tmp_path / f"stages{rank}.json").read_text())
        for name in names.split(","):
            assert found[name]["off"] < 1e-5, name
            assert found[name]["stages"]["schedule"] == settings.get("schedule", found[name]["stages"]["schedule"])
            assert found[name]["micro_batches"] >= 2


#: A machine on which collectives are joined across what is sent to other stages where nothing forbids it.
SLOW_COMPUTING = stages.machine(memory_bandwidth=1e10, flops=1e10, latency_ns=100, bandwidth=1e8)


@pytest.mark.parametrize(
    ("cuts", "schedule", "micro_batches"), [([36, 127, 142], "interleaved", 4), ([18, 33, 122], "zb-v", 4)]
)
def test_what_is_sent_between_stages_keeps_its_order_where_collectives_are_joined(
    cuts, schedule, micro_batches, tmp_path
):
    _, _, graph = captured("llama")
    mesh, file = {"stages": 2, "inner": 2}, tmp_path / "plan.toml"
    settings = {"mesh": mesh, "cuts": cuts, "schedule": schedule, "chunks": 2, "micro_batches": micro_batches}
    plan = graph.native.plan(SLOW_COMPUTING, msgpack.packb({**settings, "effort": "quick"}))
    file.write_text(plan.text())
    asked = {"names": "llama", "mesh": mesh, "plan": str(file), "cluster": SLOW_COMPUTING}
    ended = launch.run("stage_ranks:train", 4, tmp_path, seconds=240, **asked)
    assert [one.status for one in ended] == [0] * 4, "\n".join(one.err for one in ended)
    for rank in range(4):
        found = json.loads((tmp_path / f"stages{rank}.json").read_text())["llama"]
        assert found["off"] < 1e-5 and found["stages"]["schedule"] == schedule


@pytest.mark.parametrize("killed", range(3))
def test_when_a_stage_is_killed_the_others_end_naming_it(tmp_path, killed):
    with launch.Processes("stage_ranks:run_until_killed", 3, tmp_path) as running:
        for rank in range(3):
            running.wait_until(rank, "step 3\n", 90)
        start = time.monotonic()
        os.kill(running.processes[killed].pid, signal.SIGKILL)
        ended = running.ended(15)
        assert time.monotonic() - start < 15
    for rank in {0, 1, 2} - {killed}:
        assert ended[rank].status == 1, ended[rank].err
        error = json.loads((tmp_path / f"error{rank}.json").read_text())
        assert error["code"] == "U0320"
        assert str(killed) in error["message"].split(":")[0]
        assert re.search(r": transfer \(transfer .* from stage \d to stage \d", error["message"]), error["message"]


#: A machine whose ranks take long to send anything to each other.
SLOW_LINKS = stages.machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1e3, bandwidth=2e7)


def test_the_number_of_stages_is_found_where_the_mesh_is():
    _, _, graph = captured("gpt_adamw")
    planned = [{"ranks": 4}, {"mesh": {"ranks": 4}}, {"mesh": {"outer": 2, "inner": 2}}]
    plans = [msgpack.unpackb(graph.native.plan(SLOW_LINKS, msgpack.packb(settings)).content()) for settings in planned]
    found, *others = [plan["prediction"]["step_ns"] for plan in plans]
    assert plans[0]["mesh"]["stages"] > 1, plans[0]["label"]
    assert found < min(others)


def test_ranks_run_the_stages_that_are_found(tmp_path):
    ended = launch.run(
        "stage_ranks:train", 4, tmp_path, seconds=240, names="gpt_adamw", mesh="auto", cluster=SLOW_LINKS
    )
    assert [one.status for one in ended] == [0] * 4, "\n".join(one.err for one in ended)
    for rank in range(4):
        found = json.loads((tmp_path / f"stages{rank}.json").read_text())["gpt_adamw"]
        assert found["off"] < 1e-5
        assert found["stages"] is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cuts": ["layers.7"]}, "did you mean `layers"),
        ({"cuts": [100_000]}, "the forward part has"),
        ({"cuts": [3, 5]}, "2 cuts for 2 stages"),
        ({"micro_batches": 3}, "cannot be sliced into 3|nothing that this step computes"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_the_reason(settings, said):
    _, _, graph = captured("tied")
    with pytest.raises(ConfigurationError, match=said):
        graph.plan(stages.MACHINE, mesh={"stages": 2}, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stages": 0}, "`stages` is 0"),
        ({"stages": True}, "`stages` is True"),
        ({"stages": 2, "mesh": {"data": 1}}, "beside a mesh"),
        ({"stages": 2}, "1 ranks in 2 stages"),
        ({"chunks": 2}, "no stages"),
    ],
)
def test_a_number_of_stages_that_cannot_be_is_refused(settings, said):
    training, _ = stage_ranks.made("mlp")
    with pytest.raises(ConfigurationError, match=said):
        unisono.parallelize(
            training.step,
            model=training.model,
            optimizer=training.optimizer,
            example=training.batches[0],
            cluster=SLOW_LINKS,
            **settings,
        )
