"""Timelines of what ran say which figures of a cluster description are wrong, and what right ones are."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import launch
import pytest
import steps
import torch
from torch.profiler import ProfilerActivity, profile

import unisono
from unisono import _operations, _refit
from unisono.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder with the timelines of two steps on two ranks, and what a refit said on each rank."""
    folder = tmp_path_factory.mktemp("refit")
    for ended in launch.run("refit_ranks:write", 2, folder, seconds=280):
        assert ended.status == 0, ended.err[-3000:]
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def runs(on_two_ranks) -> list[list[Path]]:
    """The timelines of two steps."""
    folder, _ = on_two_ranks
    return [[folder / str(number) / "measured"] for number in range(2)]


@pytest.fixture(scope="module")
def mended(runs) -> str:
    """A description that tells these timelines."""
    return _refit.refitted(steps.EAGER_TO_CUT, runs).cluster


def scaled(description: str, factors: dict[tuple[str, str], float]) -> str:
    """A description in which calls of some operators and element types take so many times as long."""
    measured = _operations.Measured.of(tomllib.loads(description)["device"])
    for kind, factor in factors.items():
        measured.calls[kind] = {amounts: nanos * factor for amounts, nanos in measured.calls[kind].items()}
    head, behind = description.partition("\n[device.operations")[0], description[description.index("\n[links") :]
    return "\n".join([head, *measured.lines(), behind])


def test_every_rank_is_told_what_is_wrong_and_the_plan_by_what_is_right(on_two_ranks):
    _, (first, second) = on_two_ranks
    assert first == second
    figures, replanned = first["figures"], first["replanned"]
    # The description is of a machine that does not exist: something of it is wrong.
    assert figures["ranks"] == 2
    assert figures["terms"]
    assert figures["error_now"] < figures["error"]
    assert {"label", "before_ms", "now_ms", "still", "best"} == set(replanned)
    assert "wrong in the description:" in first["text"]
    assert replanned["label"] in first["text"]


def test_what_operations_took_is_in_the_description(mended, runs):
    operations = tomllib.loads(mended)["device"]["operations"]
    assert {"aten::mm", "aten::relu", "aten::native_batch_norm_backward"} & set(operations)
    found = _refit.refitted(mended, runs)
    assert found.figures["terms"] == []
    assert "nothing that the description says is wrong" in found.text


def test_each_operator_that_was_measured_wrongly_is_named(mended, runs):
    # Calls that differ among themselves say nothing, which they may on a machine that does other things too.
    seen = {kind["what"] for kind in _refit.refitted(mended, runs).figures["kinds"]}
    kinds = _operations.Measured.of(tomllib.loads(mended)["device"]).calls
    kinds = [(name, dtype) for name, dtype in kinds if f"{name} of {dtype}" in seen]
    assert kinds
    for name, dtype in kinds:
        for factor, slower in ((2.0, 0.5), (0.5, 2.0)):
            found = _refit.refitted(scaled(mended, {(name, dtype): factor}), runs)
            named = {term["name"]: term["slower"] for term in found.figures["terms"]}
            assert named == {f"device.operations.{name}.{dtype}": pytest.approx(slower, rel=0.05)}


def test_each_link_that_is_wrong_is_named(mended, runs):
    # By more than collectives differ among themselves on a machine that does other things too.
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        link = tomllib.loads(mended)["links"][kind]
        head, section, behind = mended.partition(f"[links.{kind}]")
        for key, value in (("latency_ns", link["latency_ns"] * 200), ("bandwidth", link["bandwidth"] / 200)):
            assert f"{key} = {link[key]!r}\n" in behind, behind[:200]
            behind = behind.replace(f"{key} = {link[key]!r}\n", f"{key} = {value!r}\n", 1)
        named = {term["name"] for term in _refit.refitted(head + section + behind, runs).figures["terms"]}
        assert named
        assert named <= {f"links.{kind}.latency_ns", f"links.{kind}.bandwidth"}


@functools.cache
def step_and_graph() -> tuple[Any, unisono.graph.StepGraph]:
    """A training, and its step as a graph."""
    training = steps.mlp(count=1)
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    return training, graph


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of a step of plain PyTorch."""
    training, _ = step_and_graph()
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    training.step(*training.batches[0])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        training.step(*training.batches[0])
    profiler.export_chrome_trace(str(file))
    return file


def test_calls_of_a_step_are_found_in_a_trace_of_plain_pytorch(trace):
    _, graph = step_and_graph()
    found = _refit.refitted(steps.EAGER_TO_CUT, [[trace]], graph.native)
    operations = tomllib.loads(found.cluster)["device"]["operations"]
    # So few calls are of each that none are left out.
    for name in ("aten::mm", "aten::addmm", "aten::native_batch_norm_backward", "aten::threshold_backward"):
        assert "f32" in operations[name], sorted(operations)
    # What PyTorch does beside the step's operations: memory, views, copies, and updates of single parameters.
    beside = ["empty", "empty_strided", "as_strided", "view", "detach", "to", "copy_", "zero_", "add_"]
    assert set(found.figures["unknown_ns"]) <= {f"aten::{name}" for name in beside}
    rows = operations["aten::addmm"]["f32"]["measured"]
    # Two products of 16 x 64 by 64 x 8 and an addition, of f32, in four tensors.
    assert [row[:3] for row in rows] == [[2.0 * 16 * 64 * 8, 4 * (8 + 16 * 64 + 64 * 8 + 16 * 8), 4]]


def command(folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unisono", "profile", *map(str, arguments)]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_mends_a_description_and_plans_again(trace, tmp_path):
    _, graph = step_and_graph()
    (tmp_path / "step.txt").write_text(graph.text())
    (tmp_path / "cluster.toml").write_text(steps.EAGER_TO_CUT)
    known = ("--from", trace, "--known", "cluster.toml", "--ranks", 2)
    done = command(tmp_path, "step.txt", *known, "-o", "mended.toml", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["terms"]
    assert said["replanned"]["before_ms"] > 0
    again = command(tmp_path, "step.txt", "--from", trace, "--known", "mended.toml")
    assert again.returncode == 0, again.stderr
    assert "nothing that the description says is wrong" in again.stderr
    assert "[device.operations" in again.stdout


def test_what_cannot_be_told_is_an_error_by_name(on_two_ranks, trace, tmp_path):
    folder, _ = on_two_ranks
    with pytest.raises(ConfigurationError, match="was predicted") as predicted:
        _refit.refitted(steps.EAGER_TO_CUT, [[folder / "0" / "predicted"]])
    with pytest.raises(ConfigurationError, match="no operation and no collective") as unknown:
        _refit.refitted(steps.EAGER_TO_CUT, [[trace]])
    assert "unisono capture" in str(unknown.value)
    assert predicted.value.code == unknown.value.code == "U0505"
    other = unisono.capture(lambda x: x.sin(), example=(torch.ones(3),))
    with pytest.raises(ConfigurationError, match="no operation and no collective") as shapes:
        _refit.refitted(steps.EAGER_TO_CUT, [[trace]], other.native)
    assert "record_shapes" in str(shapes.value)
    done = command(tmp_path, "--from", trace)
    assert done.returncode == 2
    assert "--known" in done.stderr
    done = command(tmp_path, "--from", "nothing.json", "--known", "h100:1x8")
    assert done.returncode == 1
    assert "nothing.json" in done.stderr
