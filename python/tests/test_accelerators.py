"""What a step needs of an accelerator, proved without one: on ``meta`` tensors, on fakes of CUDA, and on a backend under another name."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import launch
import machines
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import unisono
from unisono import _agreement, _devices, _graphs, _native, _profile, errors
from unisono._capture.inputs import constant
from unisono._capture.optimizer import create_state
from unisono._executor import Executor, draws_numbers, lower_graph
from unisono._message import pack, unpack
from unisono._ranks import Ranks

META = torch.device("meta")


def training(device="cpu", optimizer=torch.optim.SGD, width=8):
    """A small step, and its model and optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8)).to(device)
    made = optimizer(model.parameters(), lr=0.1)

    def train_step(x):
        made.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        made.step()
        return loss

    return train_step, model, made


def parallel(**settings):
    train_step, model, optimizer = training()
    x = torch.linspace(-1, 1, 64).view(8, 8)
    step = unisono.parallelize(
        train_step, model=model, optimizer=optimizer, example=(x,), cluster=machines.DEAR_COMPUTING, **settings
    )
    return step, x


# The device of a program.


def captured_for_cuda():
    train_step, model, optimizer = training("meta")
    return unisono.capture(
        train_step, model=model, optimizer=optimizer, example=(torch.zeros(8, 8, device="meta"),), device="cuda"
    )


def test_a_program_for_a_device_has_no_buffers_of_the_host_and_runs_on_that_device():
    graph = captured_for_cuda()
    program = lower_graph(graph.native, device=META)
    assert program.buffer_bytes() == 0
    assert lower_graph(graph.native).buffer_bytes() > 0
    assert ".out(" not in str(program)
    run = Executor(program)
    inputs = {item["name"]: graph.decoded()["values"][item["value"]]["type"] for item in graph.decoded()["inputs"]}
    made = {name: torch.empty(known["shape"], device=META) for name, known in inputs.items()}
    run.bind([tensor for name, tensor in made.items() if name.startswith("params.")])
    (loss,) = run([torch.tensor(0.1, dtype=torch.float64), made["batch.x"]])
    assert (loss.device, loss.shape) == (META, torch.Size([]))


def test_learning_rates_are_on_the_host_and_so_is_what_is_computed_of_them_alone():
    weight = nn.Parameter(torch.empty(4, device="meta"))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad * (optimizer.param_groups[0]["lr"] * 0.5 + 1))
        return loss

    model = nn.ParameterList([weight])
    example = (torch.zeros(4, device="meta"),)
    text = unisono.capture(step, model=model, optimizer=optimizer, example=example, device="cuda").text()
    numbers = re.findall(r"^.*: f64\[\].*$", text, re.MULTILINE)
    assert len(numbers) > 1
    assert not any("cuda" in line for line in numbers), text
    assert "f32[4] cuda:0 = batch" in text


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_attention_draws_numbers_only_where_it_drops_some(dropped):
    def step(q):
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=dropped, is_causal=True)

    q = torch.zeros(2, 2, 16, 16, dtype=torch.bfloat16, device="meta")
    graph = unisono.capture(step, example=(q,), device="cuda").native
    assert "flash" in graph.text()
    assert draws_numbers(graph) == (dropped > 0)


def test_graphs_end_before_the_process_groups_whose_collectives_they_hold():
    order = []

    class One:
        def forget(self):
            order.append("graph")

    one = One()
    _graphs._alive.add(one)
    _graphs._behind_graphs(lambda: order.append("group"))()
    assert order == ["graph", "group"]


def test_device_arguments_become_the_rank_s_own():
    def step(x):
        return torch.arange(8, device=x.device, dtype=torch.float32) * x + torch.ones(8, device=x.device)

    graph = unisono.capture(step, example=(torch.zeros(8, device="meta"),), device="cuda")
    assert "device(cuda:0)" in graph.text()
    text = str(lower_graph(graph.native, device="cuda:5"))
    assert "cuda:5" in text
    assert "cuda:0" not in text


def test_a_graph_may_be_on_a_kind_of_device_that_no_table_names():
    message = unpack(captured_for_cuda().message)
    for value in message["graph"]["values"]:
        value["type"]["device"]["kind"] = "mychip"
    text = _native.Graph(pack(message)).text()
    assert "mychip:0" in text
    assert "cuda" not in text


def test_state_on_two_devices_is_refused_by_name():
    with FakeTensorMode():
        tensors = [("params.a", torch.empty(2)), *((f"params.{i}", torch.empty(2, device=f"cuda:{i}")) for i in (0, 1))]
    with pytest.raises(errors.StepError, match=r"`params.1` is on cuda:1, and `params.0` on cuda:0") as caught:
        _devices.device_of((name, tensor.device) for name, tensor in tensors)
    assert caught.value.code == "U0129"
    assert _devices.device_of((name, tensor.device) for name, tensor in tensors[:2]) == torch.device("cuda:0")


def test_state_without_values_is_refused():
    train_step, model, optimizer = training("meta")
    with pytest.raises(errors.StepError, match=r"`0.weight` is on `meta`") as caught:
        unisono.parallelize(train_step, model=model, optimizer=optimizer, example=(torch.zeros(8, 8),))
    assert caught.value.code == "U0130"


# Process groups.


@pytest.fixture(scope="module")
def pretended(tmp_path_factory):
    """What two processes print that have one device of a kind of its own."""
    ended = launch.run("pretended:networks_of_ranks", 2, tmp_path_factory.mktemp("pretended"), 60)
    assert [one.status for one in ended] == [0, 0], ended[0].err + ended[1].err
    return [one.out.splitlines() for one in ended]


def test_a_group_connects_hosts_and_devices_where_pytorch_knows_how(pretended):
    assert pretended[0][:2] == ["gloo", "cpu:gloo,mychip:mynet"]
    assert pretended[0][2] == "('cpu', 'mychip') 0"


def test_a_rank_without_a_device_of_its_own_is_refused(pretended):
    assert "[U0322] rank 1 of this machine has no device: there is 1 of kind mychip" in pretended[1][1]


def test_without_an_accelerator_the_group_is_gloo_s():
    assert _devices.networks(None) == "gloo"
    assert _devices.networks("cuda") == "cpu:gloo,cuda:nccl"


def test_in_a_group_without_a_network_for_hosts_ranks_have_one_of_their_own(tmp_path):
    ended = launch.run("accelerator_ranks:train_in_a_group_without_hosts", 2, tmp_path, 120)
    assert [one.status for one in ended] == [0, 0], ended[0].err + ended[1].err
    step, x = parallel()
    lines = ended[0].out.splitlines()
    assert ended[1].out.splitlines() == lines
    assert [line.split()[1] for line in lines] == ["True", "True"]
    assert step.plan is not None
    assert x is not None


# What capture decides for a device.


def test_step_counts_are_on_the_device_where_one_kernel_does_the_update():
    with FakeTensorMode():
        parameters = [nn.Parameter(torch.empty(4, device="cuda"))]
        for settings, device in (({}, "cuda"), ({"fused": True}, "cuda"), ({"fused": False}, "cpu")):
            optimizer = torch.optim.AdamW(parameters, **settings)
            create_state(optimizer)
            (state,) = optimizer.state.values()
            assert state["step"].device.type == device, settings


def test_step_counts_that_are_there_already_are_moved_too():
    with FakeTensorMode():
        parameter = nn.Parameter(torch.empty(4, device="cuda"))
        optimizer = torch.optim.AdamW([parameter])
        optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": parameter, "exp_avg_sq": parameter}
        create_state(optimizer)
        assert optimizer.state[parameter]["step"].device.type == "cuda"


def test_libraries_that_hide_what_they_write_are_off_while_a_step_is_captured():
    seen = set()

    def look():
        seen.add((torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled))

    def step(x):
        look()
        return x + 1

    before = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
    unisono.capture(step, example=(torch.zeros(2),))
    assert seen == {(False, False)}
    assert (torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled) == before == (True, True)


def test_constants_of_other_ranks_are_on_the_kind_of_device_that_they_have_on_rank_0():
    made = constant(None, "constants.0", torch.float32, [2, 3], META, [])
    assert (made.tensor.device, made.tensor.shape) == (META, torch.Size([2, 3]))


# Random numbers.


def test_a_device_s_generator_is_compared_too(monkeypatch):
    class Module:
        @staticmethod
        def get_rng_state(device):
            return torch.tensor([1], dtype=torch.uint8)

    monkeypatch.setattr(torch, "get_device_module", lambda _: Module)
    assert list(_devices.generator_states(torch.device("cuda:0"))) == ["cpu", "cuda"]
    assert list(_devices.generator_states(_devices.HOST)) == ["cpu"]
    error = _agreement._disagreement([_agreement.generator("cuda")], [1])
    assert "generator of cuda is in another state on rank 1" in str(error)


def test_ranks_on_devices_of_several_models_do_not_draw(monkeypatch):
    step, _ = parallel()
    captured = step._captured[0]
    captured.device = torch.device("cuda:0")
    monkeypatch.setattr(_devices, "model_of", lambda _: "a model")
    monkeypatch.setattr(Ranks, "agree", lambda _, text: False)
    captured._require_devices_alike()
    captured._draws = True
    with pytest.raises(errors.HardwareError, match="a model") as caught:
        captured._require_devices_alike()
    assert caught.value.code == "U0324"


# What takes time on a device shows later.


class Lagging:
    """A device that does what it is asked some time after it was asked: it can be waited for, and points in its queue be timed."""

    def __init__(self, monkeypatch):
        self.waits = 0
        monkeypatch.setattr(_devices, "synchronise", self.synchronise)
        monkeypatch.setattr(_devices, "mark", lambda _: time.perf_counter_ns())
        monkeypatch.setattr(_devices, "nanoseconds_between", lambda one, other: other - one)

    def synchronise(self, device):
        self.waits += 1


def test_a_timeline_is_by_the_device_s_clock(monkeypatch):
    step, x = parallel()
    step(x)
    captured = step._captured[0]
    captured.device, lagging = torch.device("cuda:0"), Lagging(monkeypatch)
    found = step.timeline(x)
    assert [name for name, *_ in found] == [name for name, _ in captured.executor.program.instructions()]
    starts = [start for *_, start, _ in found]
    assert starts == sorted(starts)
    assert all(duration > 0 for *_, duration in found)
    assert lagging.waits == 1


def test_wall_time_includes_what_a_device_is_still_to_do(monkeypatch):
    lagging = Lagging(monkeypatch)
    assert unisono.parallel._measure.nanoseconds(lambda: None, torch.device("cuda:0")) >= 0
    assert lagging.waits == 2


def test_the_peak_of_a_device_is_that_of_its_own_allocator(monkeypatch):
    allocated = iter([100])
    monkeypatch.setattr(_devices, "synchronise", lambda _: None)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda _: next(allocated))
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda _: 350)
    assert unisono.parallel._measure.peak_growth(lambda: None, torch.device("cuda:0"), repeats=1) == 250


def test_what_fails_on_a_device_is_at_or_before_the_line_that_is_named():
    error = errors.StepError("`aten::mm` failed", code="U0310", place="train.py:3", cause="an illegal access")
    told = _devices.at_or_before(error, torch.device("cuda:0"))
    assert "at or before this one" in str(told)
    assert (told.place, told.cause) == (error.place, error.cause)
    assert _devices.at_or_before(error, _devices.HOST) is error


def test_a_device_without_memory_is_an_error_of_resources_with_what_the_plan_says(monkeypatch):
    step, x = parallel(memory_limit="1 MB")

    def synchronise(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(_devices, "synchronise", synchronise)
    monkeypatch.setattr(_devices, "given_out", lambda _: 3 << 20)
    figures = step._captured[0].plan.figures() | {"runners_up": [{"label": "another", "peak_bytes": 512}]}
    monkeypatch.setattr(type(step._captured[0].plan), "figures", lambda _: figures)
    step.synchronous()
    with pytest.raises(errors.ResourceError) as caught:
        step(x)
    assert caught.value.code == "U0315"
    said = r"2\.00 GiB.*\n  where the plan has .* at the peak of a rank: .*; held there: .*\n  where the device has given out 3\.0 MiB"
    assert re.search(said, caught.value.cause)
    assert "a lower `memory_limit=` (another was considered and takes 0.0 MiB)" in caught.value.hint


def test_in_synchronous_steps_the_instruction_itself_fails(monkeypatch):
    step, x = parallel()
    step(x)
    instructions = step._captured[0].executor.program.instructions()
    count = iter(range(len(instructions)))

    def synchronise(_):
        if next(count) == 3:
            raise RuntimeError("an illegal access")

    monkeypatch.setattr(_devices, "synchronise", synchronise)
    step.synchronous()
    with pytest.raises(errors.StepError) as caught:
        step(x)
    assert caught.value.message == f"`{instructions[3][0]}` failed"
    assert caught.value.place == instructions[3][1]
    assert "an illegal access" in str(caught.value)
    step.synchronous(False)
    step(x)


def test_a_machine_s_devices_are_measured_in_the_types_that_they_are_used_in():
    text = _profile.describe(Ranks(), META, memory_bytes=1 << 30)
    assert 'name = "meta"' in text
    rates = text.partition("[device.matmul_flops]")[2].partition("[links]")[0].split("\n")
    assert [line.partition(" ")[0] for line in rates if line] == ["f32", "bf16", "f16"]
    assert _profile.identity(META) != _profile.identity()


def test_nothing_asks_for_cuda_by_name_where_a_step_runs():
    """Names of accelerators are for what is captured for one that is not there, for PyTorch's own names, and for kernels of one."""
    package = Path(unisono.__file__).parent
    allowed = {
        "kernels.py",
        "attention.py",
        "surroundings.py",
        "__init__.py",
        "_commands.py",
        "_devices.py",
        "_cuda.py",
    }
    naming = [
        file.name
        for file in [*package.glob("*.py"), *(package / "_capture").glob("*.py")]
        if '"cuda' in file.read_text() or "torch.cuda" in file.read_text()
    ]
    assert set(naming) <= allowed, naming


def test_the_command_says_that_it_measures_accelerators():
    command = [sys.executable, "-m", "unisono", "profile", "--help"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "accelerators" in out
