"""The command, the fit and the telemetry."""

import json
import subprocess
import sys

import numpy as np
import pytest

from unisono import errors
from unisono.data import (
    BatchSampler,
    Cost,
    JsonLines,
    balance,
    fit_cost,
    log_to_tensorboard,
    measure_lengths,
    record_step,
    transformer_cost,
)

PROBLEM = {"lengths": [5, 5, 4, 4, 3, 3, 3], "ranks": 3, "cost": {"linear": 1}}


def test_the_command_and_the_function_give_the_same_plan(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    command = [sys.executable, "-m", "unisono", "balance", str(path), "--json"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    called = balance(PROBLEM)
    assert printed["makespan"] == 9
    assert {**printed, "solve_ms": 0} == {**called, "solve_ms": 0}


def test_a_bad_problem_raises_with_the_key():
    with pytest.raises(errors.ConfigurationError, match="unknown key `rank`") as caught:
        balance({**PROBLEM, "rank": 3})
    assert "`ranks`" in caught.value.hint


def test_arrays_are_lists_and_what_is_no_json_is_named():
    lengths = np.asarray(PROBLEM["lengths"])
    assert balance({**PROBLEM, "lengths": lengths, "ranks": np.int64(3)})["makespan"] == 9
    with pytest.raises(errors.ConfigurationError, match=r"`lengths\[1\]` is nan"):
        balance({**PROBLEM, "lengths": [3, float("nan")]})
    with pytest.raises(errors.ConfigurationError, match="`ranks` is"):
        balance({**PROBLEM, "ranks": object()})


def test_the_fit_recovers_measured_coefficients_as_a_cost():
    rng = np.random.default_rng(0)
    batches = [rng.integers(10, 5000, 6).tolist() for _ in range(20)]
    seconds = [sum(2e-6 * n + 1e-9 * n * n + 1e-4 for n in batch) * rng.normal(1, 0.001) for batch in batches]
    fit = fit_cost(zip(batches, seconds, strict=True))
    assert fit.linear == pytest.approx(2e-6, rel=0.1)
    assert fit.quadratic == pytest.approx(1e-9, rel=0.05)
    assert fit.r_squared > 0.999
    assert fit.cost().linear == round(fit.linear * 1e15)
    with pytest.raises(errors.ConfigurationError, match="0 measurements"):
        fit_cost([])


def test_the_cost_of_a_transformer_has_the_ratio_of_its_operations():
    cost = transformer_cost(4096)
    assert (cost.linear, cost.quadratic) == (6 * 4096, 1)
    assert transformer_cost(4096, causal=True).linear == 12 * 4096


def test_records_go_to_json_lines_and_to_a_summary_writer(tmp_path):
    step = next(BatchSampler([9, 4, 7, 3, 8, 1], batch_size=6, cost=Cost(1), ranks=2, rank=0).plans())
    record = record_step(step, 0.25, tokens_cap=50)
    assert record.predicted == (16.0, 16.0)
    assert (record.measured, record.measured_imbalance, record.bound, record.tokens_max) == ((0.25,), 1.0, 1.0, 16)
    log = JsonLines(tmp_path / "log.jsonl")
    log.write(record)
    log.write(record)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["hash"] == f"{step.hash:016x}"

    class Writer:
        def __init__(self):
            self.scalars = {}

        def add_scalar(self, tag, value, step):
            self.scalars[tag] = (value, step)

    writer = Writer()
    log_to_tensorboard(writer, record)
    assert writer.scalars["balance/seconds/rank0"] == (0.25, 0)


def test_a_long_scan_of_lengths_reports_progress_on_stderr(capsys, monkeypatch):
    times = iter(np.arange(0, 100, 0.4))
    monkeypatch.setattr("unisono.data._lengths.time.monotonic", lambda: next(times))
    lengths = measure_lengths([[1], [1, 2], [1, 2, 3]] * 5, len)
    assert lengths.tolist() == [1, 2, 3] * 5
    captured = capsys.readouterr()
    assert "scanning lengths: 15 of 15 (100 %)" in captured.err
    assert captured.out == ""
