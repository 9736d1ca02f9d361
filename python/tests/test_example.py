"""The example runs as it stands, on one rank and under torchrun, and measurements of a step are what was predicted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import steps
import torch
from torch import nn

import unisono
from unisono import _native, _profile

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt.py"


def losses(folder, ranks, *launcher):
    """The losses that the example prints within three steps, planned for a machine that stands where a measured one would be kept."""
    kept, measured = folder / ".cache" / "unisono", (ranks, 1, _profile.identity())
    _native.keep_machine(kept, measured, steps.EAGER_TO_CUT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    command = [sys.executable, *launcher, str(EXAMPLE), "--steps", "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert _native.kept_machine(kept, measured) == steps.EAGER_TO_CUT
    return [float(loss) for loss in re.findall(r"^step +\d+  loss ([\d.]+)$", done.stdout, re.MULTILINE)], done.stdout


def test_the_example_learns_the_same_on_one_rank_and_on_two(tmp_path):
    alone, text = losses(tmp_path, 1)
    assert len(alone) == 1
    assert "def " in text
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert losses(tmp_path, 2, *launcher)[0] == pytest.approx(alone, abs=2e-4)  # four decimals are printed


@pytest.fixture
def step_and_batch():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    batch = (torch.randn(512, 64),)
    step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=batch, cluster=steps.EAGER_TO_CUT)
    return step, batch


def test_a_step_says_what_it_took_to_make_it(step_and_batch):
    seconds = step_and_batch[0].seconds
    assert seconds.capture > 0
    assert 0 < seconds.plan < 2
    assert seconds.measurement < seconds.capture, "the description of the machine was given"


def test_a_measured_step_has_the_predicted_memory(step_and_batch):
    step, batch = step_and_batch
    measured, predicted = step.measure(*batch), step.plan.prediction
    assert [len(values) for values in measured.values()] == [1, 1, 1, 1]
    (state,), (buffers,), (peak,) = measured["state_bytes"], measured["buffer_bytes"], measured["peak_bytes"]
    assert state == predicted["state_bytes"]
    assert buffers == predicted["buffer_bytes"]
    assert 0.95 * predicted["peak_bytes"] <= peak <= 1.05 * predicted["peak_bytes"]
    assert measured["step_ns"][0] > 0


def test_memory_that_stays_for_small_results_is_measured_and_keeps_the_limit():
    def parallelized(memory_limit):
        training = steps.mlp(count=1)
        step = steps.parallelize(training, memory_limit=memory_limit)
        return step, training.batches[0]

    free, batch = parallelized(None)
    measured, predicted = free.measure(*batch), free.plan.prediction["peak_bytes"]
    (peak,), (kept,) = measured["peak_bytes"], measured["buffer_bytes"]
    assert 0 < kept < peak
    exact, batch = parallelized(predicted)
    assert exact.measure(*batch)["buffer_bytes"] == [kept]
    near, batch = parallelized(predicted - kept // 8)
    measured = near.measure(*batch)
    assert 0 < measured["buffer_bytes"][0] < kept
    assert measured["peak_bytes"][0] <= predicted - kept // 8


def test_measuring_trains_on(step_and_batch):
    step, batch = step_and_batch
    before = step(*batch).item()
    step.measure(*batch, repeats=2)
    assert step(*batch).item() < before


def test_the_step_that_was_measured_stands_beside_the_one_that_was_predicted(step_and_batch, tmp_path):
    step, batch = step_and_batch
    step(*batch)
    step.write_timelines(tmp_path, *batch)
    command = [
        sys.executable,
        "-m",
        "unisono",
        "trace",
        "diff",
        tmp_path / "predicted",
        tmp_path / "measured",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["prediction"]
    # the simulated step is that of the plan, to the nanosecond that each event is rounded to
    assert found["step"]["predicted"] == pytest.approx(step.plan.prediction["step_ns"] / 1e3, abs=1)
    assert found["step"]["measured"] > 0
    calls = {row["operation"]: row["calls"] for row in found["operations"]}
    for operation in ("aten::mm", "aten::addmm", "aten::gelu", "aten::gelu_backward"):
        predicted, measured = calls[operation]
        assert predicted == measured > 0, operation
    events = json.loads((tmp_path / "measured" / "rank0.json").read_text())["traceEvents"]
    assert any(event["args"].get("Unisono place", "").startswith(__file__) for event in events if event["ph"] == "X")


def test_random_masks_do_not_depend_on_whether_the_machine_had_to_be_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train_step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        batch = torch.ones(4, 8)
        step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=(batch,))
        runs.append([step(batch).item() for _ in range(3)])
    assert runs[0] == runs[1]
