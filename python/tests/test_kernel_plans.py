"""Plans of steps whose groups run as kernels say what these take."""

from __future__ import annotations

import pytest
import steps
import torch

import unisono


def made(fuse, **settings):
    torch.manual_seed(0)
    training = steps.llama(count=1, batch=16)
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        cluster=steps.EAGER_TO_CUT,
        fuse=fuse,
        **settings,
    )
    return step, training.batches[0]


@pytest.fixture(scope="module")
def plain():
    return made(fuse=False)[0]


@pytest.fixture(scope="module")
def fused():
    return made(fuse=True)


def test_a_kernel_is_one_launch_that_moves_what_it_reads_and_makes(plain, fused):
    step, _ = fused
    assert step.plan.prediction["step_ns"] < 0.95 * plain.plan.prediction["step_ns"]
    assert step.plan.prediction["peak_bytes"] < plain.plan.prediction["peak_bytes"]
    assert "kernels   groups of operations count as one" in step.plan.explain()
    assert "kernels   groups" not in plain.plan.explain()
    assert "kernels = true" in step.plan.text
    assert "kernels" not in plain.plan.text


def test_what_stays_within_a_kernel_is_not_predicted_to_take_memory(fused):
    step, batch = fused
    measured = max(step.measure(*batch, repeats=1)["peak_bytes"])
    predicted = step.plan.prediction["peak_bytes"]
    assert abs(predicted - measured) <= max(0.05 * measured, 1 << 20)


def test_the_expected_timeline_has_kernels_where_the_program_does(fused):
    step, _ = fused
    kernels = sum(name.startswith("kernel") for name, _ in step._captured[0].executor.program.instructions())
    assert kernels > 5
    assert step._captured[0].simulated_json().count('"unisono::kernel') == kernels


def test_stages_are_predicted_with_their_kernels_too():
    training = steps.llama(count=1, batch=16)
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    settings = {"mesh": {"stages": 2}, "micro_batches": 4, "schedule": "1f1b"}
    plain, fused = (graph.plan(steps.EAGER_TO_CUT, fuse=fuse, **settings) for fuse in (False, True))
    assert fused.stages["cuts"] == plain.stages["cuts"]
    assert fused.prediction["step_ns"] < 0.95 * plain.prediction["step_ns"]
    for of_plain, of_fused in zip(plain.stages["predicted"], fused.stages["predicted"], strict=True):
        assert of_fused["busy_ns"] < of_plain["busy_ns"]
        assert of_fused["peak_bytes"] < of_plain["peak_bytes"]
    # Predicted and drawn are one simulation.
    assert fused.figures()["step_ms"] == pytest.approx(fused.prediction["step_ns"] / 1e6)
