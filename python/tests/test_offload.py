"""What of forward is on the host until backward: the values are the same to the bit, and less is held on the device."""

from __future__ import annotations

import pytest
import steps
from eager import Training, compare
from test_recompute import SLICED, blocks, skips

import unisono
from unisono.errors import ConfigurationError, ResourceError


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (blocks, {}),
        (skips, {}),
        (steps.llama, {}),
        (steps.gpt_adamw, {}),
        (blocks, SLICED),
        (blocks, {"recompute": "full"}),
    ],
)
def test_a_step_with_results_on_the_host_gives_what_eager_gives(make, settings):
    def offloading():
        made = make()
        return Training(made.model, made.optimizer, made.step, made.batches, settings={"offload": "full"} | settings)

    step = compare(offloading)
    assert step.plan.prediction["offloaded_bytes"] > 0


def plan(graph, cluster="h100:1", **settings):
    return graph.plan(cluster, mesh={"ranks": 1}, micro_batches=1, **settings)


@pytest.fixture(scope="module")
def graph():
    made = blocks(batch=4096)
    return unisono.capture(made.step, model=made.model, optimizer=made.optimizer, example=made.batches[0])


def test_a_memory_limit_puts_results_on_the_host_where_there_is_a_link_to_it(graph):
    free = plan(graph)
    assert "offloaded_bytes" not in free.prediction and "offload" not in free.passes
    limit = int(free.prediction["peak_bytes"] * 0.5)
    limited = plan(graph, memory_limit=limit, recompute="none")
    assert limited.prediction["offloaded_bytes"] > 0 and limited.prediction["peak_bytes"] <= limit
    assert "of what forward leaves are on the host until backward" in limited.explain()
    both = plan(graph, memory_limit=limit)
    assert both.prediction["step_ns"] <= limited.prediction["step_ns"]
    again = plan(graph, memory_limit=limit, offload="none")
    assert "offloaded_bytes" not in again.prediction
    assert both.prediction["step_ns"] <= again.prediction["step_ns"]


def test_a_plan_says_what_is_on_the_host_and_is_read_back(graph):
    full = plan(graph, offload="full")
    text = full.text
    assert 'offload = "' in text
    assert unisono.plans.Plan(text, graph.native).text == text


def test_what_is_no_setting_is_refused(graph):
    with pytest.raises(ConfigurationError, match="`offload` is 'half'"):
        plan(graph, offload="half")


def test_a_limit_that_only_the_host_could_keep_says_so_where_none_is_described(graph, tmp_path):
    described = tmp_path / "cluster.toml"
    described.write_text('preset = "h100:1"\n[device]\nhost_memory_bytes = 1000\n')
    limit = int(plan(graph).prediction["peak_bytes"] * 0.5)
    with pytest.raises(ResourceError, match="no plan fits into") as refused:
        plan(graph, described, memory_limit=limit, recompute="none")
    assert refused.value.code == "U0204"
    assert "bytes of memory of the host needs" in refused.value.cause and "but 1000 are given" in refused.value.cause
    assert "`host_memory_bytes`" in refused.value.hint
