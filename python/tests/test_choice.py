"""``fuse="auto"``: groups that take longer as kernels than as PyTorch's operations stay these."""

from __future__ import annotations

import json

import launch
import pytest
import torch
import torch.nn.functional as F

import unisono
from unisono import _choice, _devices, _profile
from unisono._executor import Executor, lower_graph
from unisono.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_choice, "_known", {})


def gated(x, y):
    return F.silu(x) * y, (x @ y.T).exp().mul(2).neg()


INPUTS = (torch.randn(32, 64), torch.randn(32, 64))


def captured():
    return unisono.capture(gated, example=INPUTS).native


def instructions(graph, slower):
    run = Executor(lower_graph(graph, fuse=True, slower=slower))
    run.bind([])
    for found, expected in zip(run(list(INPUTS)), gated(*INPUTS), strict=True):
        torch.testing.assert_close(found, expected)
    return [name for name, _ in run.program.instructions()]


def test_what_was_measured_decides_and_the_reason_is_said(monkeypatch):
    graph = captured()
    names = [name for name, _ in graph.groups()]
    assert len(names) == 2
    times = dict(zip(names, [(3_000, 2_000), (2_000, 3_000)], strict=True))
    monkeypatch.setattr(_choice, "_tried", lambda group, **_: times[group.fingerprint()])
    slower = _choice.slower(graph, _devices.HOST)
    assert slower == {names[0]: "a kernel takes 3.0 us, PyTorch's operations 2.0 us"}
    assert sum(name.startswith("kernel") for name in instructions(graph, slower)) == 1
    assert sum(name.startswith("kernel") for name in instructions(graph, {})) == 2
    assert "a kernel takes 3.0 us" in graph.kernels(slower)
    assert "a kernel takes" not in graph.kernels()


def test_a_difference_within_what_times_vary_by_decides_nothing(monkeypatch):
    monkeypatch.setattr(_choice, "_tried", lambda _, **__: (1_040, 1_000))
    assert _choice.slower(captured(), _devices.HOST) == {}


def test_each_group_is_tried_and_either_way_gives_the_same():
    graph = captured()
    for name, group in graph.groups():
        kernel, operations = _choice._tried(group)
        assert kernel > 0, name
        assert operations > 0, name
    state = torch.get_rng_state()
    instructions(graph, _choice.slower(graph, _devices.HOST))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_group_alone_is_its_operations_with_the_views_between_them():
    def seen(x, y):
        return (torch.tanh(x).view(4, 8, 64) * y).exp()

    x, y = torch.randn(32, 64), torch.randn(4, 8, 64)
    ((_, group),) = unisono.capture(seen, example=(x, y)).native.groups()
    for fuse, kernels in ((False, 0), (True, 1)):
        run = Executor(lower_graph(group, fuse=fuse))
        run.bind([])
        torch.testing.assert_close(run([x, y])[0], seen(x, y))
        names = [name for name, _ in run.program.instructions()]
        assert sum(name.startswith("kernel") for name in names) == kernels
        assert fuse or "aten::view" in names


def test_what_was_measured_is_kept_for_later_starts_and_measured_again_where_it_is_damaged(monkeypatch):
    tried = []
    monkeypatch.setattr(_choice, "_tried", lambda group, **_: tried.append(group) or (3_000, 1_000))
    first = _choice.slower(captured(), _devices.HOST)
    assert (len(first), len(tried)) == (2, 2)
    monkeypatch.setattr(_choice, "_known", {})
    assert _choice.slower(captured(), _devices.HOST) == first
    assert len(tried) == 2
    (file,) = (_profile.cache_folder() / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    monkeypatch.setattr(_choice, "_known", {})
    assert _choice.slower(captured(), _devices.HOST) == first
    assert len(tried) == 4


def test_ranks_take_what_the_first_has_measured(tmp_path):
    for rank, one in enumerate(launch.run("choice_ranks:differently", 2, tmp_path, 90, where=str(tmp_path))):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
    first, second = (json.loads((tmp_path / f"choice{rank}.json").read_text()) for rank in range(2))
    assert first["loss"] == second["loss"]
    assert first["kernels"] == second["kernels"]
    assert first["kernels"].startswith("0 kernels")
    assert "a kernel takes 2.0 us" in first["kernels"]


@pytest.mark.parametrize("times", [(2_000, 1_000), (1_000, 2_000)])
def test_compiled_functions_choose_too(monkeypatch, times):
    torch._dynamo.reset()
    monkeypatch.setattr(_choice, "_tried", lambda _, **__: times)
    call = torch.compile(gated, backend="unisono", options={"fuse": "auto"})
    for found, expected in zip(call(*INPUTS), gated(*INPUTS), strict=True):
        torch.testing.assert_close(found, expected)


def test_other_devices_are_not_measured(monkeypatch):
    monkeypatch.setattr(_choice, "_tried", lambda _, **__: (2_000, 1_000))
    assert _choice.slower(captured(), torch.device("cuda", 0)) == {}


def test_a_choice_that_is_none_is_refused():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match="`fuse` is 'fast'"):
        unisono.parallelize(lambda: None, model=model, optimizer=None, example=(), fuse="fast")
    with pytest.raises(Exception, match="`fuse` is 'fast'"):
        torch.compile(gated, backend="unisono", options={"fuse": "fast"})(*INPUTS)
