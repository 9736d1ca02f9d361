"""The `unisono` command on a training step: capture, profile, plan, explain, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import steps

import unisono
from unisono import _native

SCRIPT = """
import steps
import torch

def make_step():
    training = steps.mlp(count=1)
    return {"train_step": training.step, "model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}

def misspelt():
    return make_step() | {"exmple": ()}

def nothing():
    return None
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOME": str(folder), "PYTHONPATH": str(Path(__file__).parent)}
    line = [sys.executable, "-m", "unisono", *arguments]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_step_is_captured_planned_explained_and_the_plan_runs(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "cluster.toml").write_text(steps.EAGER_TO_CUT)
    captured = command(tmp_path, "capture", "train.py:make_step", "-o", "step.txt")
    assert (captured.returncode, captured.stdout) == (0, ""), captured.stderr
    training = steps.mlp(count=1)
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    assert (tmp_path / "step.txt").read_text() == graph.text()

    (tmp_path / "step.bin").write_bytes(graph.message)
    plans = []
    for form in ("step.txt", "step.bin"):
        planned = command(tmp_path, "plan", form, "--ranks", "1", "--cluster", "cluster.toml")
        assert planned.returncode == 0, planned.stderr
        plans.append(planned.stdout)
    assert plans[0] == plans[1]
    (tmp_path / "plan.toml").write_text(plans[0])
    explained = command(tmp_path, "explain", "step.txt", "plan.toml")
    assert explained.stdout == graph.native.explain(_native.Plan(plans[0]))
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        plan=tmp_path / "plan.toml",
        cluster=steps.EAGER_TO_CUT,
    )
    assert step.plan.text == plans[0]


@pytest.mark.parametrize(
    ("function", "code", "part"),
    [
        ("train.py:misspelt", "U0012", "unknown key `exmple`"),
        ("train.py:nothing", "U0120", "returns a NoneType"),
        ("train.py:absent", "U0120", "has no function `absent`"),
        ("absent.py:make_step", "U0010", "no such file"),
        ("train.py", "U0120", "names no function"),
    ],
)
def test_a_function_that_makes_no_step_is_refused(tmp_path, function, code, part):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = command(tmp_path, "capture", function)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error[{code}]: " in done.stderr
    assert part in done.stderr
    assert "hint: " in done.stderr


def test_a_step_is_captured_and_planned_for_devices_that_are_not_here(tmp_path):
    (tmp_path / "train.py").write_text(
        "import steps\n\n"
        "def make_step():\n"
        "    training = steps.gpt(count=1)\n"
        "    return {'train_step': training.step, 'model': training.model, 'optimizer': training.optimizer,"
        " 'example': training.batches[0]}\n"
    )
    (tmp_path / "cluster.toml").write_text(steps.EAGER_TO_CUT)
    captured = command(tmp_path, "capture", "train.py:make_step", "--device", "cuda", "-o", "step.txt")
    assert captured.returncode == 0, captured.stderr
    assert "aten::_scaled_dot_product_efficient_attention" in (tmp_path / "step.txt").read_text()
    planned = command(tmp_path, "plan", "step.txt", "--ranks", "4", "--cluster", "cluster.toml")
    assert planned.returncode == 0, planned.stderr


def test_a_machine_is_profiled_for_a_step_and_planned_for(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert command(tmp_path, "capture", "train.py:make_step", "-o", "step.txt").returncode == 0
    done = command(tmp_path, "profile", "step.txt", "--ranks", "2", "-o", "cluster.toml")
    assert done.returncode == 0, done.stderr
    assert "measuring with 2 rank(s) ...\n  rates and links\n  the operations of the step\n" in done.stderr
    text = (tmp_path / "cluster.toml").read_text()
    links = dict(re.findall(r"^(\w+) = \{ latency_ns = ([\d.]+)", text, re.MULTILINE))
    assert set(links) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    # a gloo collective of two processes takes microseconds at least
    assert all(float(latency) > 1000 for latency in links.values())
    assert '[device.operations."aten::addmm".f32]' in text
    planned = command(tmp_path, "plan", "step.txt", "--ranks", "2", "--cluster", "cluster.toml", "-o", "plan.toml")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("plan ")
    assert (tmp_path / "plan.toml").exists()
    again = command(tmp_path, "profile", "step.txt", "--ranks", "2", "--known", "cluster.toml")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(text.partition("spread")[0]), "rates are not measured twice"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["no_step.txt"], "U0010"), (["--known", "no_cluster.toml"], "U0010"), (["damaged.txt"], "U0011")],
)
def test_what_cannot_be_profiled_is_an_error_by_name(tmp_path, arguments, code):
    (tmp_path / "damaged.txt").write_text("unisono graph 2\nv0 = nothing\n")
    done = command(tmp_path, "profile", *arguments)
    assert done.returncode == 1
    assert f"error[{code}]" in done.stderr
    assert arguments[-1] in done.stderr


def test_a_number_of_ranks_that_is_none_is_a_usage_error(tmp_path):
    done = command(tmp_path, "profile", "--ranks", "none")
    assert done.returncode == 2
    assert "none is no number of ranks" in done.stderr
