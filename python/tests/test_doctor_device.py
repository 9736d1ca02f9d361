"""`unisono doctor --device` tries a device rung by rung, names the rung that finds a fault, and ends with the status that it asks for."""

from __future__ import annotations

import json

import clocked
import launch
import processor
import pytest
import torch
import torch.nn.functional as F

from unisono import _commands, _devices, _doctor, _doctor_device, _executor
from unisono._doctor_device import order, rates
from unisono._doctor_device.rung import Result, Rung, Tried
from unisono.errors import HardwareError

BEFORE = ["unisono", "torch", "functions", "dispatcher", "proxy", "device"]
RUNGS = [rung.name for rung in _doctor_device.RUNGS]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Rates are measured for a moment only."""
    monkeypatch.setattr(rates, "_LONG", 1e-4)


def only(monkeypatch, *names):
    monkeypatch.setattr(_doctor_device, "RUNGS", [rung for rung in _doctor_device.RUNGS if rung.name in names])


def found(capsys, *arguments):
    """The exit status, the findings by name, and what is said meanwhile."""
    status = _commands.doctor(["--device", *arguments, "--json"])
    said = capsys.readouterr()
    return status, {one["name"]: one for one in json.loads(said.out)}, said.err


# On the processor.


def test_on_processors_every_rung_is_well_or_says_why_it_does_not_apply(capsys):
    status, findings, said = found(capsys, "cpu")
    assert status == 0, findings
    assert list(findings) == [*BEFORE, *RUNGS]
    statuses = {name: one["status"] for name, one in findings.items()}
    skipped = [name for name, one in statuses.items() if one == "skipped"]
    assert skipped == ["step gpt, a graph", "streams", "collectives"]
    assert {statuses[name] for name in {"device", *RUNGS} - {*skipped}} == {"ok"}, findings
    assert "the processor has no streams" in findings["streams"]["text"]
    assert "not tried: there is one device" in findings["collectives"]["text"]
    assert "GB/s" in findings["bandwidths"]["text"]
    progress = [line for line in said.splitlines() if f" of {len(RUNGS)}: " in line]
    assert progress == [f"{number} of {len(RUNGS)}: {name}" for number, name in enumerate(RUNGS, 1)]


def test_people_are_told_line_by_line(capsys, monkeypatch):
    only(monkeypatch, "kernels", "streams")
    assert _commands.doctor(["--device", "cpu"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines] == [*BEFORE, "kernels", "streams"]
    assert lines[-2].split()[1:4] == ["ok", "7", "operators"]
    assert "1 of 2: kernels" in said.err
    assert "of 2" not in said.out


# Faults.


def test_a_kernel_that_gives_wrong_values_is_named(capsys, monkeypatch):
    right = F.layer_norm

    def wrong(x, *rest):
        made = right(x, *rest)
        return made * 1.05 if x.dtype == torch.float32 else made

    monkeypatch.setattr(F, "layer_norm", wrong)
    only(monkeypatch, "kernels", "step mlp")
    status, findings, _ = found(capsys, "cpu")
    assert status == 1
    assert findings["kernels"]["status"] == "failed"
    assert findings["kernels"]["text"].startswith("layer norm: off by ")
    assert "driver" in findings["kernels"]["hint"]
    assert findings["step mlp"]["status"] == "ok"


def test_an_operator_that_a_device_lacks_is_named(capsys, monkeypatch):
    def lacks(*_, **__):
        raise NotImplementedError("Could not run 'aten::convolution'\nwith a long list")

    monkeypatch.setattr(F, "conv2d", lacks)
    only(monkeypatch, "kernels")
    status, findings, _ = found(capsys, "cpu")
    assert status == 1
    assert findings["kernels"]["text"] == "convolution: NotImplementedError: Could not run 'aten::convolution'"


def test_steps_that_differ_from_plain_pytorch_fail_and_what_needs_them_says_so(capsys, monkeypatch):
    consume = _executor.Executor.consume
    monkeypatch.setattr(
        _executor.Executor, "consume", lambda self, inputs: [one * 1.5 for one in consume(self, inputs)]
    )
    only(monkeypatch, "step gpt", "streams", "memory", "timeline")
    status, findings, _ = found(capsys, "cpu")
    assert status == 1
    assert findings["step gpt"]["status"] == "failed"
    assert "`loss`" in findings["step gpt"]["text"]
    for name in ("memory", "timeline"):
        assert (findings[name]["status"], findings[name]["text"]) == ("skipped", "needs `step gpt`, which failed")
    assert "the processor has no streams" in findings["streams"]["text"]


def test_a_rung_that_raises_does_not_stop_the_next_ones(capsys, monkeypatch):
    def raises(_):
        raise RuntimeError("an illegal access\nwas encountered")

    rungs = [Rung("first", raises, "look at the driver"), Rung("second", lambda _: Result("ok", "well"), "")]
    monkeypatch.setattr(_doctor_device, "RUNGS", rungs)
    status, findings, _ = found(capsys, "cpu")
    assert status == 1
    first = findings["first"]
    assert (first["text"], first["hint"]) == ("RuntimeError: an illegal access", "look at the driver")
    assert findings["second"]["status"] == "ok"


@pytest.mark.parametrize(("problem", "status"), [(None, "ok"), ("all_reduce on rank 1: other values", "failed")])
def test_two_devices_of_one_machine_are_connected(monkeypatch, problem, status):
    scripts = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(_doctor, "two_processes", lambda script, _: scripts.append(script) or problem)
    result = order.collectives(Tried(torch.device("xpu:0")))
    assert result.status == status
    assert (problem or "of 2 ranks by xccl") in result.text
    assert scripts == ["from unisono._doctor_device import order; order.one_of_two('xpu')"]


def test_each_of_two_processes_ends_with_one_line_on_what_is_wrong(monkeypatch):
    def lacks(kind):
        raise HardwareError(f"the process group has no network for tensors on {kind}", code="U0323", hint="begin it")

    monkeypatch.setattr(order, "collectives_of_ranks", lacks)
    with pytest.raises(SystemExit, match=r"^\[U0323\] the process group has no network for tensors on xpu$"):
        order.one_of_two("xpu")


def test_a_rank_without_a_device_of_its_own_says_so_and_one_that_fails_lets_the_first_go_on(capsys, monkeypatch):
    def fails(kind):
        raise RuntimeError("the network is down")

    for name, value in {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(order, "collectives_of_ranks", fails)
    assert _commands.doctor(["--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "rank 1: RuntimeError: the network is down\n")
    status, findings, _ = found(capsys, "abacus")
    assert status == 1
    assert list(findings) == ["device"]


def test_a_peak_of_memory_that_is_not_as_predicted_is_warned_of():
    class Step:
        def measure(self, *_, repeats):
            return {"peak_bytes": [3 << 20]}

    class Batch:
        batch = ()

    Step.plan = type("Plan", (), {"prediction": {"peak_bytes": 2 << 20}})
    result = rates.memory(Tried(_devices.HOST, {"gpt": (Batch, Step())}))
    assert (result.status, result.text) == ("warning", "peak 3.00 MiB, predicted 2.00 MiB: +50.0 %")


# What is not there.


@pytest.mark.parametrize(("asked", "words"), [((), "no accelerator is there"), (("xpu",), "no device `xpu` is there")])
def test_without_an_accelerator_it_says_so_and_what_to_do(capsys, monkeypatch, asked, words):
    monkeypatch.setattr(_devices, "accelerator", lambda: None)
    status, findings, _ = found(capsys, *asked)
    assert status == 1
    assert list(findings) == BEFORE
    assert findings["device"]["status"] == "failed"
    assert findings["device"]["text"].startswith(words)
    assert "`--device cpu`" in findings["device"]["hint"]


def test_a_kind_that_pytorch_does_not_know_is_not_there(capsys):
    status, findings, _ = found(capsys, "abacus")
    assert status == 1
    assert findings["device"]["text"].startswith("no device `abacus` is there")


# On the test device.


@pytest.mark.timeout(600)
def test_every_rung_passes_on_the_devices_of_two_ranks_and_the_first_speaks(tmp_path):
    lacking = clocked.lacking()
    if lacking is not None:
        pytest.skip(lacking)
    library = str(clocked.built())
    settings = {"library": library, "kernels": str(processor.built())}
    first, second = launch.run("test_doctor_device:as_a_rank", 2, tmp_path, 280, **settings)
    assert (first.status, second.status) == (0, 0), first.err[-3000:] + second.err[-3000:]
    *findings, faults = [json.loads(line) for line in first.out.splitlines()]
    assert [one["name"] for one in findings] == [*BEFORE, *RUNGS]
    others = {one["name"]: one for one in findings if one["status"] != "ok" and one["name"] != "torch"}
    assert list(others) == ["capture"], others
    assert others["capture"]["text"] == "steps cannot be captured for clocked where there is none"
    texts = {one["name"]: one["text"] for one in findings}
    assert "clocked:0, a device with clocks, 4 of this kind" in texts["device"]
    assert "of 2 ranks by clockednet" in texts["collectives"]
    assert "host to device" in texts["bandwidths"]
    assert faults == []
    assert second.out == "[]\n"


def as_a_rank(library, kernels):
    """What each of two ranks runs."""
    clocked.register(library)
    torch.ops.clocked.fuse_optimizers()
    clocked.run_kernels_by(kernels, library)
    rates._LONG = 1e-4
    for finding in _doctor_device.findings("", lambda _: None):
        print(json.dumps(vars(finding)))
    print(json.dumps(clocked.faults()))
