"""Bad input to a session: each gets an error with a code, the reason and a hint; nothing runs on stale or foreign data, nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launch
import pytest
import steps
import torch
from torch import nn

import unisono
from unisono import _native
from unisono.errors import CaptureNotice, ConfigurationError, ResourceError, StepError
from unisono.plans import Plan


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def parallelize(training, **settings):
    standing = {"cluster": steps.EAGER_TO_CUT, "example": training.batches[0], "on_change": "refuse"}
    settings = standing | settings
    return unisono.parallelize(training.step, model=training.model, optimizer=training.optimizer, **settings)


def small():
    """A training whose step also takes a number."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.99))

    def step(x, scale):
        optimizer.zero_grad()
        loss = model(x).square().mean() * scale
        loss.backward()
        optimizer.step()
        return loss.detach()

    return steps.Training(model, optimizer, step, [(torch.randn(8, 4), 2.0) for _ in range(6)])


# Calls that are not like the captured one.


@pytest.mark.parametrize(
    ("arguments", "what", "before"),
    [
        ((torch.zeros(6, 4), 2.0), "`batch.x` is torch.float32 of shape [6, 4]", "shape [8, 4]"),
        ((torch.zeros(8, 4, dtype=torch.float64), 2.0), "`batch.x` is torch.float64", "torch.float32"),
        (([[0.0]], 2.0), "the step is called as `step([[..]], ..)`", "it was `step(.., ..)`"),
        ((7, 2.0), "`batch.x` is a int", "torch.float32 of shape [8, 4]"),
        ((torch.zeros(8, 4), 3.0), "argument `scale` is 3.0", "it was 2.0"),
    ],
)
def test_a_call_unlike_the_captured_one_says_what_changed_and_leaves_the_state(arguments, what, before):
    training = small()
    step = parallelize(training)
    step(*training.batches[0])
    step.sync()
    weight = training.model.weight.detach().clone()
    with pytest.raises(StepError) as caught:
        step(*arguments)
    assert caught.value.code == "U0122"
    assert what in caught.value.message
    assert before in caught.value.cause
    assert caught.value.hint
    step.sync()
    assert torch.equal(training.model.weight, weight)
    step(*training.batches[1])


@pytest.mark.filterwarnings("error")
def test_learning_rates_stay_live_under_a_scheduler():
    alone, together = small(), small()
    step = parallelize(together)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, T_max=6) for training in (alone, together)
    ]
    for batch in alone.batches:
        torch.testing.assert_close(step(*batch), alone.step(*batch), rtol=1e-5, atol=1e-7)
        for schedule in schedules:
            schedule.step()
    step.sync()
    torch.testing.assert_close(together.model.weight, alone.model.weight, rtol=1e-5, atol=1e-7)
    assert together.optimizer.param_groups[0]["lr"] == alone.optimizer.param_groups[0]["lr"] < 0.1


def test_another_setting_of_the_optimizer_is_refused():
    training = small()
    step = parallelize(training)
    training.optimizer.param_groups[0]["betas"] = (0.5, 0.99)
    with pytest.raises(StepError, match=r"`betas` of parameter group 0 is \(0.5, 0.99\)") as caught:
        step(*training.batches[0])
    assert "(0.9, 0.99)" in (caught.value.cause or "")


def test_a_state_that_the_optimizer_loads_between_steps_is_refused():
    training = small()
    step = parallelize(training)
    step(*training.batches[0])
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    with pytest.raises(StepError, match="Adam has another state") as caught:
        step(*training.batches[0])
    assert "before `parallelize`" in (caught.value.hint or "")


def test_a_second_capture_that_fails_says_why_and_leaves_gradients_as_they_were():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = (model(x) @ torch.ones(4, len(x))).sum()
        assert len(x) == 3, "three rows"
        loss.backward()
        optimizer.step()
        return loss.detach()

    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=(torch.ones(3, 4),), cluster=steps.EAGER_TO_CUT
    )
    parallel(torch.ones(3, 4))
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(AssertionError, match="three rows"):
        parallel(torch.ones(2, 4))
    assert model.weight.grad is None


def other_modes(model: nn.Sequential) -> dict[str, tuple[contextlib.AbstractContextManager[Any], str]]:
    """What changes a mode, and what is said of it."""
    return {
        "model": (_called(model.eval), "the model was switched between training and evaluation"),
        "module": (_called(model[1].eval), "`1` was switched between training and evaluation"),
        "frozen": (_called(lambda: model[0].weight.requires_grad_(False)), "`params.0.weight` is frozen"),
        "autocast": (torch.autocast("cpu", torch.bfloat16), "autocast for cpu is torch.bfloat16"),
    }


@contextlib.contextmanager
def _called(change: Callable[[], Any]) -> Iterator[None]:
    change()
    yield


@pytest.mark.parametrize("which", ["model", "module", "frozen", "autocast"])
def test_another_mode_of_the_model_is_refused(which):
    training = steps.mlp(count=1)
    assert isinstance(training.model, nn.Sequential)
    step = parallelize(training)
    step(*training.batches[0])
    change, said = other_modes(training.model)[which]
    with change, pytest.raises(StepError, match=re.escape(said)) as caught:
        step(*training.batches[0])
    assert "change it back" in (caught.value.hint or "")


weight = 0.5


def weighted(x: torch.Tensor) -> torch.Tensor:
    return x * weight


class Annealed:
    """A trainer whose step reads numbers of its own, of the model and of a function's module."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.beta, self.epoch = 0.1, 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return (weighted(self.model(x)) * self.beta).sum()


@pytest.mark.parametrize("which", ["self.beta", "weight"])
def test_a_number_that_the_step_reads_from_outside_and_that_changes_is_named(which, monkeypatch):
    trainer, batch = Annealed(), torch.ones(2, 4)
    settings = {"model": trainer.model, "example": (batch,), "cluster": steps.EAGER_TO_CUT, "on_change": "refuse"}
    step = unisono.parallelize(trainer.step, **settings)
    step(batch)
    trainer.epoch += 1  # which the step does not read
    step(batch)
    if which == "weight":
        monkeypatch.setitem(globals(), "weight", 0.75)
    else:
        trainer.beta = 0.2
    was, now = ("0.5", "0.75") if which == "weight" else ("0.1", "0.2")
    with pytest.raises(StepError, match=f"`{which}` is {now}") as caught:
        step(batch)
    assert was in (caught.value.cause or "")
    assert "argument of the step" in (caught.value.hint or "")


def test_a_second_capture_says_why_and_how_long_it_took_at_the_users_line():
    training = small()
    step = parallelize(training, on_change="capture")
    batch = (torch.zeros(6, 4), 2.0)
    with pytest.warns(
        CaptureNotice, match=r"again in \d+\.\d s: `batch.x` is torch.float32 of shape \[6, 4\]"
    ) as caught:
        step(*batch)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNotice)
        step(*batch)
        step(*training.batches[0])


@pytest.mark.parametrize(("setting", "value"), [("on_change", "maybe"), ("captures", 0)])
def test_settings_of_captures_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(ConfigurationError, match=f"`{setting}` is {value!r}"):
        parallelize(small(), **{setting: value})


# Plans and cluster descriptions.


def test_a_plan_runs_again_from_its_text_and_from_its_file(tmp_path):
    training = small()
    plan = parallelize(training).plan
    plan.save(tmp_path / "plan.toml")
    for again in (plan, plan.text, tmp_path / "plan.toml", str(tmp_path / "plan.toml")):
        assert parallelize(small(), plan=again).plan.fingerprint == plan.fingerprint


def test_a_plan_of_another_step_is_refused():
    plan = parallelize(steps.mlp(count=1)).plan
    with pytest.raises(ConfigurationError, match="for another training step") as caught:
        parallelize(small(), plan=plan)
    assert caught.value.code == "U0203"
    assert caught.value.hint


def test_a_plan_for_other_ranks_is_refused():
    plan = Plan(parallelize(small()).plan.text.replace("ranks = 1", "ranks = 2"))
    with pytest.raises(ConfigurationError, match=r"the plan is for mesh \{'ranks': 2\}") as caught:
        parallelize(small(), plan=plan)
    assert caught.value.code == "U0203"


def test_a_plan_whose_direct_collectives_are_for_other_ranks_is_refused():
    direct = "[passes]\ndirect = { ranks = { ranks = 3, all_reduce = 9, all_gather = 0, reduce_scatter = 0 } }"
    text = parallelize(small()).plan.text.replace("[passes]", direct)
    with pytest.raises(
        ConfigurationError, match="direct collectives for 3 ranks along `ranks`, which has 1 in the plan"
    ) as caught:
        parallelize(small(), plan=text)
    assert caught.value.hint is not None
    assert "`ranks = 1`" in caught.value.hint


def test_a_misspelt_setting_of_a_plan_is_named_with_the_one_that_was_meant():
    text = parallelize(small()).plan.text.replace("bucket_limit", "buket_limit")
    with pytest.raises(ConfigurationError, match="unknown field `buket_limit`") as caught:
        parallelize(small(), plan=text)
    assert caught.value.hint == "did you mean `bucket_limit`?"


@pytest.mark.parametrize(("text", "part"), [("version = 4\nmesch = 2\n", "mesch"), ("not\na plan", "not a plan")])
def test_a_malformed_plan_is_refused_with_its_line(text, part):
    with pytest.raises(ConfigurationError, match=part) as caught:
        parallelize(small(), plan=text)
    assert caught.value.code == "U0011"
    assert caught.value.place.startswith("the plan:")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("memory_bandwidth", "memory_bandwith", "did you mean `memory_bandwidth`?"),
        ("memory_bandwidth = 1e+08", "memory_bandwidth = -1", "unisono profile"),
        ("version = 1", "version = 9", "unisono profile"),
        ("[links]", "[links", "unisono profile"),
    ],
)
def test_a_malformed_cluster_description_is_refused(old, new, part):
    with pytest.raises(ConfigurationError) as caught:
        parallelize(small(), cluster=steps.EAGER_TO_CUT.replace(old, new))
    assert caught.value.code == "U0201"
    assert caught.value.place.startswith("the cluster description")
    assert part in caught.value.hint


@pytest.mark.parametrize("setting", ["plan", "cluster"])
def test_a_file_that_is_not_there_is_named(setting):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml") as caught:
        parallelize(small(), **{setting: "nowhere.toml"})
    assert caught.value.code == "U0010"


# Pins, memory, meshes.


@pytest.mark.parametrize(
    ("pins", "part", "hint"),
    [
        ({"params.wieght": {"ranks": "replicate"}}, "matches no input", "did you mean `params.weight`?"),
        ({"params.*": {"rank": "replicate"}}, "names an axis `rank`", "did you mean `ranks`?"),
        ({"params.weight": {"ranks": "shard(5)"}}, "cannot be `shard(5)`", "pin another dimension"),
        ({"params.weight": {"ranks": "partial(sum)"}}, "inputs are not partial", "shard(DIM)"),
        ({"params.weight": {"ranks": "split"}}, "split", "pins map name patterns"),
        ({"params.weight": "shard(0)"}, "the pin of `params.weight` is 'shard(0)'", "pins map name patterns"),
        ({"params.weight": {"ranks": 0}}, "the pin of `params.weight` along `ranks` is 0", "pins map name patterns"),
        (["params.weight"], "`pins` is ['params.weight']", "pins map name patterns"),
    ],
)
def test_a_pin_that_cannot_be_kept_is_refused(pins, part, hint):
    with pytest.raises(ConfigurationError) as caught:
        parallelize(small(), pins=pins)
    assert caught.value.code == "U0202"
    assert part in caught.value.message
    assert hint in caught.value.hint


def test_a_memory_limit_that_no_plan_keeps_says_how_much_the_smallest_needs():
    with pytest.raises(ResourceError, match="no plan fits into 10 bytes") as caught:
        parallelize(small(), memory_limit=10)
    assert caught.value.code == "U0204"
    assert re.match(r"the smallest plan found needs \d+ bytes: .* state", caught.value.cause)


@pytest.mark.parametrize(
    ("mesh", "part"),
    [({"a": 3}, "`a` of 3. has 3 ranks, but 1 process runs"), ({"a": 2, "b": 1}, "has 2 ranks"), ({}, "`mesh` is {}")],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, part):
    with pytest.raises(ConfigurationError, match=part) as caught:
        parallelize(small(), mesh=mesh)
    assert caught.value.code == "U0205"


def test_an_impossible_pin_is_refused_on_every_rank_and_nobody_waits(tmp_path):
    pins = {"params.6.weight": {"a": "shard(7)"}}
    for rank, one in enumerate(launch.run("session_faults:refuse", 2, tmp_path, 60, pins=pins, mesh={"a": 2})):
        assert one.status == 1, f"rank {rank}: {one.status}"
        assert "[U0202] `params.6.weight` of shape [8, 64] cannot be `shard(7)` over 2 ranks" in one.err


# PyTorch.


def test_a_torch_that_is_not_there_is_a_hardware_error(tmp_path):
    code = f"from unisono import _native; _native.load_torch({str(tmp_path)!r}, '2.9.0')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "HardwareError: [U0300]" in done.stderr
    assert "import torch before" in done.stderr


def test_a_library_without_the_symbols_is_refused_by_the_first_one_missing(tmp_path):
    (tmp_path / "libtorch_cpu.so").symlink_to(Path(_native.__file__))
    code = f"from unisono import _native; _native.load_torch({str(tmp_path)!r}, '2.9.0')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "HardwareError: [U0301] PyTorch 2.9.0 does not offer the function `aoti_torch" in done.stderr
    assert "pip install" in done.stderr


def test_ranks_that_would_issue_collectives_in_different_orders_run_without_the_passes_and_say_so(tmp_path):
    for rank, one in enumerate(launch.run("session_faults:run_in_disagreement", 2, tmp_path, 90)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        told = json.loads((tmp_path / f"said{rank}.json").read_text())
        assert [text for text in told["said"] if "different orders" in text]
        assert told["passes"] == []
        assert told["losses"][1] == pytest.approx(told["losses"][0], rel=1e-5)


# Errors of the step's own code.


def test_an_error_of_the_steps_own_code_is_raised_on_every_rank_as_eager_pytorch_raises_it(tmp_path):
    for rank, one in enumerate(launch.run("session_faults:run_into_an_error_of_its_own", 2, tmp_path, 90)):
        assert one.status == 1, f"rank {rank}: {one.err[-2000:]}"
        told = (tmp_path / f"told{rank}.txt").read_text()
        assert told.endswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 6x2)\n")
        files = re.findall(r'File "([^"]*)", line \d+, in (\w+)', told)
        assert [name for file, name in files if file.endswith("session_faults.py")] == [
            "run_into_an_error_of_its_own",
            "step",
            "scores",
        ]
        assert not [file for file, _ in files if "_capture" in file or "torch" in file]


# Ranks that do not do the same.


def test_a_rank_that_calls_sync_alone_is_named_within_seconds(tmp_path):
    for rank, one in enumerate(launch.run("session_faults:sync_alone", 2, tmp_path, 120)):
        assert one.status == 1, f"rank {rank}: {one.err[-2000:]}"
    told = json.loads((tmp_path / "alone0.json").read_text())
    assert told["code"] == "U0123"
    assert "rank 0 is to call `sync`, while rank 1 is in step 2" in told["message"]
    assert "on every rank" in told["hint"]
    assert told["seconds"] < 15


@pytest.mark.parametrize(
    ("shapes", "messages"),
    [
        ([[8, 8, 8], [6, 6, 6]], {1: "for a tensor of shape [6, 4], while rank 0 is in step 4"}),
        ([[6], [12]], {1: "capture the step again"}),
        (
            [[6, 12, 6, 8], [6, 12, 8, 6]],
            {rank: f"for a tensor of shape [{6 + 2 * rank}, 4], while rank {1 - rank} is to run" for rank in range(2)},
        ),
    ],
    ids=["one switches", "one is captured", "both switch"],
)
def test_ranks_that_go_on_with_other_shapes_are_named_within_seconds(tmp_path, shapes, messages):
    for one in launch.run("session_faults:switch_apart", 2, tmp_path, 120, shapes=shapes):
        assert one.status == 1, one.err[-2000:]
    for rank, message in messages.items():
        told = json.loads((tmp_path / f"apart{rank}.json").read_text())
        assert told["code"] == "U0123" and message in told["message"], told
        assert told["seconds"] < 15


# A rank that is gone.


@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["in a step", "between steps"])
def test_when_a_rank_is_killed_the_others_end_naming_it_the_collective_and_the_line(tmp_path, pause):
    with launch.Processes("session_faults:run_until_killed", 3, tmp_path, pause=pause) as running:
        for rank in range(3):
            running.wait_until(rank, "step 3\n", 90)
        start = time.monotonic()
        os.kill(running.processes[1].pid, signal.SIGKILL)
        ended = running.ended(15)
        assert time.monotonic() - start < 15
    for rank in (0, 2):
        assert ended[rank].status == 1
        error = json.loads((tmp_path / f"error{rank}.json").read_text())
        assert error["code"] == "U0320"
        assert "1" in error["message"].split(":")[0]
        assert re.search(r": (all_reduce|all_gather|reduce_scatter|all_to_all)\w* \(.*reshard ", error["message"])
        assert Path(error["place"].split(":")[0]).name == "steps.py"


def test_an_operation_that_finds_no_memory_says_what_the_plan_has_and_what_holds_it():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x).expand(10**12, 1024, 4) * x.sum()).sum()  # more than addresses reach
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(1024, 4)
    large = unisono.parallelize(step, model=model, optimizer=optimizer, example=x, cluster=steps.EAGER_TO_CUT)
    with pytest.raises(ResourceError, match=r"\[U0315\] `aten::mul.Tensor` failed") as caught:
        large(x)
    assert "TiB at the peak of a rank:" in caught.value.cause
    assert "TiB temporary of the step itself" in caught.value.cause
    assert caught.value.place.startswith(__file__)
    assert "memory_limit" in caught.value.hint
