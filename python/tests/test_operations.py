"""What single operations take is measured in the programs of a step, fitted, kept, and used by the planner."""

from __future__ import annotations

import dataclasses
import random
import re
import sys
import warnings

import pytest
import steps
import torch

import unisono
from unisono import _calls, _devices, _native, _operations, _profile
from unisono._in_steps import InSteps
from unisono._links import Layout
from unisono._measured_programs import Running
from unisono._message import pack, unpack
from unisono._operations import Measured
from unisono._ranks import Ranks
from unisono.errors import UnsupportedError
from unisono.plans import Plan

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A machine as if it had been measured, of which no operation is known.
RATES = """\
# A machine.
version = 1

[device]
name = "cpu"
memory_bytes = 1000000000
memory_bandwidth = 1e10
operation_ns = 1000.0
spread = 0.010

[device.matmul_flops]
f32 = 1e11

[links]
all_reduce = { latency_ns = 1000.0, bandwidth = 1e9 }
all_gather = { latency_ns = 1000.0, bandwidth = 1e9 }
reduce_scatter = { latency_ns = 1000.0, bandwidth = 1e9 }
all_to_all = { latency_ns = 1000.0, bandwidth = 1e9 }
"""
RATES_OF_DEVICE = _operations.Rates(1000.0, 1e10, {"f32": 1e11})


@pytest.fixture(scope="module")
def graph():
    training = steps.mlp(count=1)
    step = {"model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}
    return unisono.capture(training.step, **step).native


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of our own for what is kept, with machines that do not change."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_profile, "_differences", lambda *_: [])
    return tmp_path


def completed(graph, text=RATES, ranks=2):
    return _profile.completed(text, graph, {"ranks": ranks}, Ranks(), _devices.HOST)


@pytest.mark.parametrize(
    "planted",
    [
        {"start_ns": 2000.0, "byte_ps": 40.0},
        {"flop_ps": 10.0, "byte_ps": 60.0},
        {"start_ns": 500.0, "flop_ps": 8.0},
        {"start_ns": 300.0, "byte_ps": 20.0, "cached_bytes": 1 << 20, "uncached_byte_ps": 80.0},
        {"start_ns": 4000.0, "byte_ps": 20.0, "tensor_ps": 90_000.0},
    ],
    ids=str,
)
def test_coefficients_that_measurements_were_made_from_are_found(planted):
    draw = random.Random(0)
    rows = {}
    for _ in range(40):
        size = int(2 ** draw.uniform(10, 25))
        flops, tensors = float(int(size * 2 ** draw.uniform(2, 8))), draw.randint(2, 200)
        nanos = planted.get("start_ns", 0.0) + 1e-3 * (
            planted.get("flop_ps", 0) * flops
            + planted.get("byte_ps", 0) * size
            + planted.get("uncached_byte_ps", 0) * max(0, size - planted.get("cached_bytes", 0))
            + planted.get("tensor_ps", 0) * tensors
        )
        rows[flops, size, tensors] = nanos
    found = _operations.fitted(rows, "f32", RATES_OF_DEVICE)
    error = found.pop("error")
    assert error <= 0.001
    assert {name: value for name, value in found.items() if value} == pytest.approx(planted, rel=0.02)


def test_coefficients_are_never_negative_and_noise_is_said():
    draw = random.Random(1)
    rows = {(0.0, 1000 * n, 2): 5000.0 * draw.uniform(0.5, 1.5) / n for n in range(1, 20)}
    found = _operations.fitted(rows, "f32", RATES_OF_DEVICE)
    assert all(value >= 0 for value in found.values())
    assert found["error"] > 0.1


@pytest.mark.parametrize(("size", "nanos"), [(16, 3000.0), (1 << 20, 400_000.0)])
def test_from_a_single_size_small_calls_tend_to_the_start_and_large_ones_to_bytes(size, nanos):
    found = _operations.fitted({(0.0, size, 2): nanos}, "f32", RATES_OF_DEVICE)

    def predicted(size):
        return found["start_ns"] + 1e-3 * (
            found["byte_ps"] * size + found["uncached_byte_ps"] * max(0, size - found["cached_bytes"])
        )

    assert predicted(size) == pytest.approx(nanos, rel=0.1)
    assert predicted(1 << 30) / predicted(1 << 29) == pytest.approx(2, rel=0.1)
    assert 200 < predicted(0) < 4000 or size > 1 << 16


def test_every_call_of_a_step_is_known_afterwards(graph, home, monkeypatch):
    monkeypatch.setattr(_profile, "_MOST_PLANS", 1)
    text = completed(graph)
    known = Measured.of(tomllib.loads(text)["device"])
    programs = list(_operations.programs(graph, RATES, {"ranks": 2}))
    for program in programs:
        assert Measured(RATES_OF_DEVICE).lacks(program.alone)
        assert not known.lacks(program.alone)
    place = _operations.Place(Ranks(), _devices.HOST, {"ranks": 2}, RATES)
    assert not _operations.measure(known, InSteps(Layout(1)), programs, place, 10), "nothing is measured twice"
    assert {operator for operator, _ in known.calls} >= {"aten::addmm", "aten::mm"}
    assert text.startswith(RATES.partition("spread")[0])


def test_what_is_measured_is_what_is_predicted(graph, home):
    text = completed(graph, ranks=1)
    plan = graph.plan(text, pack({"mesh": {"ranks": 1}}))
    program, _ = graph.program(plan, 0)
    known = Measured.of(tomllib.loads(text)["device"]).calls
    calls = [call for call in program.amounts() if call is not None]
    expected = sum(known[operator, dtype][tuple(amounts)] for operator, dtype, *amounts in calls)
    predicted = re.search(r"step_ns = (\d+)", plan.text())
    assert predicted
    assert int(predicted[1]) == pytest.approx(expected, abs=len(calls))


def test_what_the_host_does_around_a_program_is_of_the_step(graph):
    with_calls = RATES.replace("spread", "call_ns = 100000.0\ncall_tensor_ns = 1000.0\nspread")
    settings = {"mesh": {"ranks": 1}}
    plans = [Plan(graph.plan(text, pack(settings)), graph, text, settings=settings) for text in (RATES, with_calls)]
    without, found = (plan.prediction for plan in plans)
    inputs = unpack(graph.message())["graph"]["inputs"]
    state = sum(item["class"] in ("parameter", "buffer", "optimizer") for item in inputs)
    assert state > 0
    assert found["call_ns"] == 100_000 + 1_000 * state
    assert found["step_ns"] == without["step_ns"] + found["call_ns"]
    assert "us on the host around them" in plans[1].explain()
    assert "around them" not in plans[0].explain()


def test_what_the_host_does_around_a_program_is_measured_and_the_users_random_numbers_stay():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        times = _calls.measured(Ranks())
    assert torch.equal(torch.rand(3), expected)
    assert times is not None
    assert times.each > 0
    assert 0 <= times.tensor < times.each


def test_under_a_hook_that_no_step_can_be_captured_with_nothing_is_measured_of_it(monkeypatch):
    def refuse(*_):
        raise UnsupportedError("no step is captured", code="U0101")

    monkeypatch.setattr(_calls, "_around", refuse)
    assert _calls.measured(Ranks()) is None


def test_a_description_written_by_hand_stays_as_it_is(graph, home):
    by_hand = RATES.replace("spread = 0.010\n", "")
    assert completed(graph, by_hand) == by_hand


def test_a_program_for_which_there_is_no_memory_is_left_out(graph, home, monkeypatch):
    monkeypatch.setattr(_operations, "_free", lambda _: 1000)
    assert completed(graph) == RATES


def test_a_program_that_fails_on_made_up_numbers_is_said_and_left_out(home, monkeypatch):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        loss = torch.linalg.cholesky(model(x).T @ model(x) + torch.eye(4)).sum() + torch.linalg.inv(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    step = {"model": model, "optimizer": optimizer, "example": (torch.eye(4),)}
    singular = unisono.capture(train_step, **step).native
    monkeypatch.setattr(torch, "rand", torch.zeros)
    with pytest.warns(RuntimeWarning, match="could not be measured"):
        found = completed(singular)
    assert found == RATES


def test_random_numbers_of_the_user_are_as_they_were(graph, home):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    completed(graph)
    assert torch.equal(torch.rand(3), expected)


def test_a_busy_machine_is_said_and_measured_again_at_the_next_start(graph, home, monkeypatch):
    computed = Running.computed
    monkeypatch.setattr(Running, "computed", lambda self: dataclasses.replace(computed(self), spread=0.9))
    measured = []
    monkeypatch.setattr(_profile, "describe", lambda *_: measured.append(1) or RATES)
    with pytest.warns(RuntimeWarning, match="busy"):
        busy = completed(graph, _profile.description(Ranks()))
    assert tomllib.loads(busy)["device"]["spread"] == 0.9
    assert _native.kept_machine(_profile.cache_folder(), _profile._measured(Ranks(), _devices.HOST)) == busy
    assert _profile.description(Ranks()) == RATES
    assert len(measured) == 2
    assert _profile.description(Ranks()) == RATES
    assert len(measured) == 2, "a quiet measurement is kept"


def test_a_machine_that_is_another_now_is_said_and_measured_again(home, monkeypatch):
    _profile._keep(Ranks(), _devices.HOST, RATES)
    monkeypatch.setattr(_profile, "describe", lambda *_: RATES.replace("1e11", "2e11"))
    moments = iter([["multiplies f32 2.00 times as fast"], []])
    monkeypatch.setattr(_profile, "_differences", lambda *_: next(moments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _profile.description(Ranks()) == RATES, "a moment is not enough"
    monkeypatch.setattr(_profile, "_differences", lambda *_: ["multiplies f32 2.00 times as fast"])
    with pytest.warns(RuntimeWarning, match=r"multiplies f32 2\.00 times as fast as when it was measured"):
        assert "2e11" in _profile.description(Ranks())


def test_differences_are_of_what_a_device_does_now():
    text = _profile.describe(Ranks())
    said = tomllib.loads(text)["device"]
    rate = said["matmul_flops"]["f32"]
    slow = said | {"matmul_flops": {"f32": rate / 1000}, "operation_ns": said["operation_ns"] / 1000}
    found = _profile._differences(slow, Ranks(), _devices.HOST)
    assert any(re.match(r"multiplies f32 \d{3,}", one) for one in found)
    assert any(re.match(r"begins operations 0\.00", one) for one in found)
