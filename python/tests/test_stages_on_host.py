"""What pipeline stages have on the host: values are those of one device, and each stage keeps limits that it would not keep without."""

from __future__ import annotations

import json
import random

import launch
import msgpack
import pytest
import stages
import torch
from machines import machine
from test_stages import CUTS, SCHEDULES, captured

import unisono
from unisono import _native
from unisono.errors import ConfigurationError, ResourceError

#: A machine whose host is apart from its device, behind a link a tenth as wide as its memory.
LINKED = machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1e3, bandwidth=1e9).replace(
    "[device.matmul_flops]",
    "host_bandwidth = 1e9\nhost_latency_ns = 100.0\nhost_memory_bytes = 1000000000\n[device.matmul_flops]",
)


def leaves_of(training):
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in training.batches]
    leaves = torch.utils._pytree.tree_leaves
    return [[leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)] for batch in batches]


def predicted(plan):
    return msgpack.unpackb(plan.content())["prediction"]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["gpt_adamw", "mlp", "tied", "norms", "llama"])
def test_a_step_that_is_cut_anywhere_gives_the_same_with_everything_on_the_host(name, count):
    _, many, graph = captured(name)
    batches, length, chance = leaves_of(many), stages.forward_length(graph), random.Random(count)
    for number in range(CUTS // 2):
        schedule, chunks = chance.choice(SCHEDULES)
        cuts = sorted(chance.sample(range(1, length), count * chunks - 1))
        settings = {"cuts": cuts, "schedule": schedule, "chunks": chunks, "recompute": ("none", "full")[number % 2]}
        found = []
        for offload in ("none", ("optimizer", "full")[number % 3 > 0]):
            plan = stages.plan(graph, count, (2, 4)[number % 2], offload=offload, **settings)
            assert (predicted(plan).get("offloaded_bytes", 0) > 0) == (offload != "none"), settings
            assert _native.Plan(plan.text()).text() == plan.text()
            torch.manual_seed(7)
            found.append(stages.train(graph, plan, batches))
        (expected, parameters), (returned, others) = found
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(returned, expected, strict=True)), settings
        assert all(torch.equal(others[key], theirs) for key, theirs in parameters.items()), settings


@pytest.mark.parametrize(
    ("names", "mesh", "settings"),
    [
        ("gpt_adamw,llama,tied,norms", {"stages": 2}, {"schedule": "1f1b", "offload": "optimizer"}),
        ("gpt_adamw,llama,tied,norms", {"stages": 2}, {"schedule": "1f1b", "offload": "full"}),
        ("tied,llama", {"stages": 2}, {"schedule": "interleaved", "offload": "full", "recompute": "full"}),
        ("tied", {"stages": 2, "data": 2}, {"schedule": "interleaved", "offload": "optimizer"}),
        ("tied,llama", {"stages": 2, "data": 2}, {"schedule": "1f1b", "offload": "full"}),
    ],
)
def test_stages_with_something_on_the_host_give_on_ranks_what_one_device_gives(names, mesh, settings, tmp_path):
    ranks = 2 * mesh.get("data", 1)
    asked = {"names": names, "mesh": mesh, "micro_batches": 4 if ranks == 2 else 2, **settings}
    ended = launch.run("stage_ranks:train", ranks, tmp_path, seconds=300, **asked)
    assert [one.status for one in ended] == [0] * ranks, "\n".join(one.err for one in ended)
    for rank in range(ranks):
        found = json.loads((tmp_path / f"stages{rank}.json").read_text())
        for name in names.split(","):
            assert found[name]["off"] < 1e-5, name
            assert len(found[name]["stages"]["host_state"]) == 2, name
            # What batch norm leaves is read by parts of other passes.
            is_left = settings["offload"] == "full" and name != "norms"
            assert ("offload" in found[name]["stages"]) == is_left, name


@pytest.mark.parametrize(
    ("name", "percent", "settings", "goes"),
    [
        ("gpt_adamw", 80, {"recompute": "none", "offload": "activations"}, {"offload"}),
        ("gpt_adamw", 70, {}, {"host_state"}),
        ("llama", 55, {"recompute": "none"}, {"offload", "host_state"}),
        ("tied", 60, {}, {"offload", "host_state"}),
    ],
)
def test_a_limit_puts_on_the_host_of_stages_what_keeps_it(name, percent, settings, goes, tmp_path):
    _, _, graph = captured(name)
    asked = {"mesh": {"stages": 2}, "micro_batches": 4, "schedule": "1f1b", "chunks": 1, "effort": "quick"}
    free = msgpack.unpackb(graph.native.plan(LINKED, msgpack.packb(asked)).content())
    assert not {"offload", "host_state"} & free["stages"].keys()
    limit = free["prediction"]["peak_bytes"] * percent // 100
    asked |= settings | {"cuts": free["stages"]["cuts"], "memory_limit": limit}
    with pytest.raises(ResourceError, match="no plan fits"):
        graph.native.plan(LINKED, msgpack.packb(asked | {"offload": "none"}))
    limited = graph.native.plan(LINKED, msgpack.packb(asked))
    content = msgpack.unpackb(limited.content())
    assert goes == {"offload", "host_state"} & content["stages"].keys()
    assert all(stage["peak_bytes"] <= limit for stage in content["stages"]["predicted"])
    assert content["prediction"]["host_bytes"] == max(s.get("host_bytes", 0) for s in content["stages"]["predicted"])
    file = tmp_path / "plan.toml"
    file.write_text(limited.text())
    on_ranks = {"names": name, "mesh": {"stages": 2}, "plan": str(file), "cluster": LINKED}
    ended = launch.run("stage_ranks:train", 2, tmp_path, seconds=240, **on_ranks)
    assert [one.status for one in ended] == [0, 0], "\n".join(one.err for one in ended)
    for rank in range(2):
        assert json.loads((tmp_path / f"stages{rank}.json").read_text())[name]["off"] < 1e-5


def test_a_plan_with_something_on_the_host_of_too_few_stages_is_refused():
    _, _, graph = captured("mlp")
    text = stages.plan(graph, 2, 2, offload="optimizer").text()
    lines = [line for line in text.splitlines() if line.startswith("host_state = ")]
    assert len(lines) == 1, text
    with pytest.raises(ConfigurationError, match="`host_state` of 1 stages in a plan of 2"):
        _native.Plan(text.replace(lines[0], 'host_state = ["1"]'))


@pytest.fixture(scope="module")
def wide():
    """Layers of the widths of a LLaMA of 7 billion parameters, on no device."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.RMSNorm(4096)
            self.gate, self.up = (torch.nn.Linear(4096, 11008, bias=False) for _ in range(2))
            self.down = torch.nn.Linear(11008, 4096, bias=False)

        def forward(self, x_TD):
            y_TD = self.norm(x_TD)
            return x_TD + self.down(torch.nn.functional.silu(self.gate(y_TD)) * self.up(y_TD))

    with torch.device("meta"):
        model = torch.nn.Sequential(*(Layer() for _ in range(4)))
        batch = torch.empty(16384, 4096)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x_TD, y_TD):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x_TD), y_TD)
        loss.backward()
        optimizer.step()
        return loss

    return unisono.capture(step, model=model, optimizer=optimizer, example=(batch, batch), device="h100")


def test_a_limit_that_no_stages_keep_alone_is_kept_with_a_host_and_said_stage_by_stage(wide, tmp_path):
    settings = {"mesh": {"stages": 2}, "micro_batches": 4, "schedule": "1f1b", "chunks": 1}
    free = wide.plan("h100:2", **settings)
    assert "on the host" not in free.explain()
    limit = free.prediction["peak_bytes"] // 2
    with pytest.raises(ResourceError, match="no plan fits into"):
        wide.plan("h100:2", memory_limit=limit, offload="none", **settings)
    limited = wide.plan("h100:2", memory_limit=limit, **settings)
    stages_of = limited.figures()["pipeline"]["stages"]
    assert all(stage["peak_bytes"] <= limit for stage in stages_of)
    assert limited.prediction["host_bytes"] == max(stage["host_bytes"] for stage in stages_of) > 0
    assert "; on the host " in limited.explain()
    read = unisono.plans.Plan(limited.text, wide.native)
    assert read.text == limited.text
    assert read.stages["host_state"] == limited.stages["host_state"]
    # Edited by hand: the second stage has nothing on its host.
    first, second = limited.stages["host_state"]
    edited = limited.text.replace(f'"{first}", "{second}"', f'"{first}", ""')
    assert unisono.plans.Plan(edited, wide.native).stages["host_state"] == [first, ""]
    described = tmp_path / "cluster.toml"
    described.write_text('preset = "h100:2"\n[device]\nhost_memory_bytes = 1000\n')
    with pytest.raises(ResourceError, match="no plan fits into") as refused:
        wide.plan(described, memory_limit=limit, **settings)
    assert "bytes of memory of the host needs" in refused.value.cause and "but 1000 are given" in refused.value.cause
