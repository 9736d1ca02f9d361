"""What the ranks of ``test_clocked_device.py`` run."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clocked
import steps
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
import torch.utils._pytree as pytree
from machines import DEAR_COMPUTING
from session_ranks import FAMILIES, OFFLOADED, RECOMPUTED, SLICED, difference
from torch import nn

import unisono
from unisono import _devices, _profile
from unisono._doctor_device.steps import Experts
from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, Slot
from unisono._ranks import Ranks
from unisono.errors import UnisonoError

STEPS = 3

#: The family in which each rank is a stage of a pipeline.
STAGES = "stages"

#: How many blocks the model has that is to take little memory.
BLOCKS = 8

#: Devices with hosts beside them, whose links take so long that some results are rather made again.
LINKED = steps.machine(
    memory_bandwidth=1e11, flops=1e11, latency_ns=1000.0, bandwidth=1e10, operation_ns=100.0
).replace("[device.", "host_bandwidth = 2e9\nhost_latency_ns = 1000.0\nhost_memory_bytes = 1000000000\n[device.", 1)

#: Ends the name of a family in which state that only the update reads is on the host between steps.
STATE_ON_HOST = ", state on the host"

#: Ends the name of a family whose batches are on the host.
FROM_HOST = ", from the host"

# Trainings on whatever device their batches are on.


def mlp() -> steps.Training:
    """Linear layers, with AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    return _training(model, F.mse_loss, (torch.randn(8, 16), torch.randn(8, 16)))


def gpt() -> steps.Training:
    """The GPT of the example, with one block."""
    location = importlib.util.spec_from_file_location("gpt", Path(__file__).resolve().parents[2] / "examples/gpt.py")
    assert location is not None and location.loader is not None
    example = importlib.util.module_from_spec(location)
    location.loader.exec_module(example)
    example.LAYERS = 1
    torch.manual_seed(0)
    batch = tuple(torch.randint(0, example.BYTES, (4, 16)) for _ in range(2))
    return _training(example.GPT(), lambda made, y: F.cross_entropy(made.flatten(0, 1), y.flatten()), batch)


def convolutions() -> steps.Training:
    """Convolution, batch norm, pooling, dropout."""
    torch.manual_seed(0)
    parts = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
    ]
    model = nn.Sequential(*parts, nn.Linear(8 * 16, 8))
    return _training(model, F.cross_entropy, (torch.randn(4, 3, 8, 8), torch.randint(0, 8, (4,))))


def experts() -> steps.Training:
    """Experts of which each row takes two."""
    torch.manual_seed(0)
    return _training(Experts(16), F.mse_loss, (torch.randn(8, 16), torch.randn(8, 16)))


def llama() -> steps.Training:
    """transformers' LLaMA, with one layer."""
    return steps.llama(count=1, layers=1)


def autocast() -> steps.Training:
    """Linear layers whose products are in half precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def made(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return model(x).float()

    return _training(model, F.mse_loss, (torch.randn(8, 16), torch.randn(8, 16)), made)


TRAININGS = (mlp, gpt, llama, convolutions, experts)


def _training(
    model: nn.Module,
    loss_of: Callable[..., torch.Tensor],
    batch: tuple[torch.Tensor, ...],
    made_by: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> steps.Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=steps.EPSILON)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of((made_by or model)(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return steps.Training(model, optimizer, step, [batch])


# Comparisons.


def compare_all(
    library: str, cases: list[tuple[str, str]], name: str = clocked.NAME, fused: bool = False, processor: str = ""
) -> None:
    """Trains models on the processor by PyTorch and on the device by Unisono, in families of plans, and writes how they differ.

    With ``processor`` groups of operations run as kernels of CUDA, which it runs.
    """
    clocked.register(library, name)
    driver = clocked.run_kernels_by(processor, library, name) if processor else None
    if fused:
        torch.ops.clocked.fuse_optimizers()
    found: dict[str, Any] = {}
    makes = {make.__name__: make for make in (*TRAININGS, autocast)}
    for model, family in cases:
        try:
            found[f"{model}, {family}"] = compare(makes[model], family, driver)
        except Exception:
            found[f"{model}, {family}"] = {"error": traceback.format_exc()}
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def compare(make: Callable[[], steps.Training], family: str, driver: Any = None) -> dict[str, Any]:
    alone, together = make(), make()
    if family.endswith(SLICED):
        for training in (alone, together):
            # Enough for two slices on each of four ranks.
            training.batches = [tuple(torch.cat((one, one)) for one in batch) for batch in training.batches]
    device = torch.device(_devices.accelerator() or "cpu", int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device.index)
    # Modules change their parameters in place, as they do for devices that PyTorch knows, so that the optimizer has them.
    torch.__future__.set_swap_module_params_on_conversion(True)
    together.model.to(device)
    place = _devices.HOST if family.endswith(FROM_HOST) else device
    batch = tuple(one.to(place) for one in together.batches[0])
    ranks = int(os.environ["WORLD_SIZE"])
    settings = _settings(family.removesuffix(FROM_HOST), ranks) | {"fuse": driver is not None}
    step = steps.parallelize(together, example=batch, **settings)
    expected, returned = [], []
    for number in range(STEPS):
        torch.manual_seed(number)
        expected.append(alone.step(*alone.batches[0]))
        torch.manual_seed(number)
        if number == 1:
            clocked.forget()
        returned.append(step(*batch))
    waits, faults, copies = clocked.waits(), clocked.faults(), clocked.copies_from_host()
    step.sync()
    now, wanted = together.model.state_dict(), alone.model.state_dict()
    differences = {name: difference(now[name].cpu(), wanted[name]) for name in wanted}
    differences["returned"] = max(difference(one.cpu(), other) for one, other in zip(returned, expected, strict=True))
    worst = max(differences, key=lambda name: differences[name])
    return {
        "difference": differences[worst],
        "worst": worst,
        "waits": waits,
        "faults": faults,
        # Beside those of what is on the host until backward.
        "copies": copies / (STEPS - 1) - step.rank_graph.text().count("= unisono::from_host"),
        "offloaded": step.plan.prediction.get("offloaded_bytes", 0),
        "device": str(step._captured[0].device),
        "launches": driver.processor_launches() if driver is not None else 0,
        "collectives": step.plan.prediction["collectives"],
    }


def compile_one(library: str, processor: str) -> None:
    """Prints how a compiled module with kernels of CUDA differs from eager PyTorch on the processor, and what the device has seen."""
    clocked.register(library)
    driver = clocked.run_kernels_by(processor, library)
    torch.__future__.set_swap_module_params_on_conversion(True)

    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Softmax(-1))
        x = torch.randn(16, 32).to(device).requires_grad_()
        model.to(device)
        run = model if device == "cpu" else torch.compile(model, backend="unisono")
        for _ in range(2):
            clocked.forget()
            made = run(x)
            made.square().sum().backward()
        return [made.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]  # pyright: ignore[reportReturnType]

    expected, found = trained("cpu"), trained(clocked.NAME)
    print(f"waits: {clocked.waits()}")
    print(f"faults: {clocked.faults()}")
    differences = [difference(one.cpu(), other) for one, other in zip(found, expected, strict=True)]
    print(f"difference: {max(differences)}")
    launches = driver.processor_launches()
    print(f"launches: {launches}")
    # Now there is no compiler.
    os.environ["PATH"] = ""
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as said:
        found = trained(clocked.NAME)
    print(f"stays: {[str(one.message) for one in said if 'stay as they are' in str(one.message)][:1]}")
    differences = [difference(one.cpu(), other) for one, other in zip(found, expected, strict=True)]
    print(f"difference without: {max(differences)}")
    print(f"launches without: {driver.processor_launches() - launches}")


def _settings(family: str, ranks: int) -> dict[str, Any]:
    if family == STAGES:
        return {"mesh": {"stages": ranks}, "micro_batches": 2}
    name, _, form = family.partition(", ")
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[name].items()}
    forms: dict[str, Any] = {
        "": {},
        SLICED: {"micro_batches": 2},
        RECOMPUTED: {"recompute": "full"},
        OFFLOADED: {"offload": "full"},
        STATE_ON_HOST: {"offload": "optimizer"},
    }
    return {"mesh": {"a": ranks}, "pins": pins, **forms[form and f", {form}"]}


def hold_less(library: str) -> None:
    """Prints what training takes under a sixth of the memory that one rank takes without a limit, and how it differs."""
    hold(library, blocks, 1 / 6, ranks=2)


def hold_no_state(library: str) -> None:
    """The same on one rank, under three quarters of it, of which parameters, gradients and moments are nearly all."""
    hold(library, few, 3 / 4, ranks=1)


def hold(library: str, make: Callable[[], steps.Training], share: float, ranks: int) -> None:
    clocked.register(library)
    torch.__future__.set_swap_module_params_on_conversion(True)
    alone, together = make(), make()
    device = torch.device(clocked.NAME, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device.index)
    graph = unisono.capture(alone.step, model=alone.model, optimizer=alone.optimizer, example=alone.batches[0])
    limit = int(graph.plan(LINKED, mesh={"a": 1}).prediction["peak_bytes"] * share)
    together.model.to(device)
    batch = tuple(one.to(device) for one in together.batches[0])
    settings: Any = {"mesh": {"a": ranks}, "memory_limit": limit, "micro_batches": 1, "cluster": LINKED}
    step = unisono.parallelize(
        together.step, model=together.model, optimizer=together.optimizer, example=batch, **settings
    )
    returned = [step(*batch)]
    clocked.forget()
    returned += [step(*batch) for _ in range(STEPS - 1)]
    print("ordered:", clocked.waits(), clocked.faults())
    expected = [alone.step(*alone.batches[0]) for _ in range(STEPS)]
    measured = max(step.measure(*batch, repeats=2)["peak_bytes"])
    prediction = step.plan.prediction
    worst = max(difference(one.cpu(), other) for one, other in zip(returned, expected, strict=True))
    print("limit:", limit)
    print("predicted:", prediction["peak_bytes"])
    print("measured:", measured)
    print("offloaded:", prediction.get("offloaded_bytes", 0))
    print("recomputed:", prediction["recomputed_ns"])
    print("state on the host:", prediction.get("host_state_bytes", 0))
    print("difference:", worst)


def blocks(rows: int = 2048, width: int = 32) -> steps.Training:
    """Linear layers whose results take far more than their parameters."""
    torch.manual_seed(0)
    wide = 4 * width
    layers = [
        part for _ in range(BLOCKS) for part in (nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Tanh())
    ]
    return _training(nn.Sequential(*layers), F.mse_loss, (torch.randn(rows, width), torch.randn(rows, width)))


def few() -> steps.Training:
    """Linear layers whose parameters take far more than their results."""
    return blocks(rows=8, width=64)


# Faults that are planted, each of which is to be found.


def _word(act: Callable[[], object]) -> str:
    try:
        act()
    except (RuntimeError, UnisonoError) as error:
        return getattr(error, "cause", None) or str(error).splitlines()[0]
    return "nothing was found"


def faults_of_one_device(library: str) -> None:
    """Prints what is said of each fault that one rank can commit, and of its correct twin."""
    clocked.register(library)
    x, side = torch.ones(4, 4, device=clocked.NAME), torch.Stream(device=clocked.NAME)
    own = torch.accelerator.current_stream()

    def beside(act: Callable[[], Any]) -> Any:
        side.wait_stream(own)
        with side:
            return act()

    def reused(record: bool) -> torch.Tensor:
        operands = [torch.ones(64, device=clocked.NAME)]
        made = beside(lambda: operands[0] * 2)
        if record:
            operands[0].record_stream(side)
        operands.clear()
        torch.empty(8, device=clocked.NAME)
        own.wait_stream(side)
        return made

    def wait_and_read(made: torch.Tensor) -> torch.Tensor:
        own.wait_stream(side)
        return made + 1

    print("read:", _word(lambda: beside(lambda: x * 2) + 1))
    print("read after a wait:", _word(lambda: wait_and_read(beside(lambda: x * 2))))
    print("overwritten:", _word(lambda: (beside(lambda: x * 2), x.add_(1))))
    own.wait_stream(side)
    print("reused:", _word(lambda: reused(False)))
    own.wait_stream(side)
    print("reused after record_stream:", _word(lambda: reused(True)))
    print("two devices:", _word(lambda: x @ torch.ones(4, 4, device=f"{clocked.NAME}:1")))
    print("host:", _word(lambda: x @ torch.ones(4, 4)))
    print("host in a list:", _word(lambda: torch.cat([x, torch.ones(4, 4)])))
    print("number in a fused list:", _word(lambda: _fused_adamw(x, torch.tensor(1.0))))
    print("number:", _word(lambda: x * torch.tensor(2.0)))
    print(clocked.waits(), len(clocked.faults()))
    print("memory that was several tensors':", _touched_within(library))


def _touched_within(library: str) -> str:
    """What is found of kernels that read a tensor everywhere, which lies where many small ones were."""
    clocked.forget()
    launch = ctypes.CDLL(library).clocked_launch
    for _ in range(8):
        small = [torch.empty(500, device=clocked.NAME) for _ in range(64)]
        small.clear()
        large = torch.empty(16_000, device=clocked.NAME)
        for offset in range(0, large.nbytes, 64):
            addresses, written = (ctypes.c_void_p * 1)(large.data_ptr() + offset), (ctypes.c_bool * 1)(False)
            launch(ctypes.c_void_p(0), b"a kernel", ctypes.c_uint(1), addresses, written)
    return (clocked.faults() or ["nothing was found"])[0]


def _fused_adamw(x: torch.Tensor, step: torch.Tensor) -> None:
    state = [[torch.zeros_like(x)] for _ in range(3)]
    settings: Any = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch.ops.aten._fused_adamw_([x], *state, [], [step], amsgrad=False, maximize=False, **settings)


def faults_of_two_ranks(library: str) -> None:
    """Prints what is said of collectives that are not waited for, or not by those who touch what they use."""
    clocked.register(library)
    dist.init_process_group(_devices.networks(_devices.take_own()))
    x = torch.ones(4, device=_devices.current())

    def gather() -> tuple[torch.Tensor, Any]:
        made = torch.empty(8, device=x.device)
        return made, dist.all_gather_into_tensor(made, x, async_op=True)

    made, work = gather()
    print("read:", _word(lambda: made + 1))
    print("overwritten:", _word(lambda: x.add_(1)))
    work.wait()
    print("after a wait:", _word(lambda: (made + 1, x.add_(1))))
    sum_of_both = funcol.all_reduce(x, "sum", list(range(2)))
    print("functional:", clocked.waits(), (sum_of_both + 0).tolist())
    print("a program with waits:", _word(lambda: _gathering(True)([x])))
    print("a program without waits:", _word(lambda: _gathering(False)([x])))
    other = torch.ones(4, device=f"{clocked.NAME}:{1 - x.device.index}")
    print("another's device:", _word(lambda: dist.all_reduce(other)))
    dist.barrier()
    dist.destroy_process_group()


def _gathering(waits: bool) -> Executor:
    """A program of the executor that gathers what it is given and adds one to it, after a wait or without."""
    functional, builder = torch.ops._c10d_functional, ProgramBuilder()
    given, issued, waited, made = (builder.slot() for _ in range(4))
    builder.inputs.append(given)
    group = dist.group.WORLD
    assert group is not None
    builder.call(functional.all_gather_into_tensor.default, [Slot(given), 2, group.group_name], {}, [issued])
    if waits:
        builder.call(functional.wait_tensor.default, [Slot(issued)], {}, [waited])
    builder.call(torch.ops.aten.add.Scalar, [Slot(waited if waits else issued), 1], {}, [made])
    builder.returns.append(made)
    return Executor(lower(builder.spec(), _devices.current()))


def numbers(library: str) -> None:
    """Prints by how much a step that computes tensors with numbers, counted, given and read, differs from processors, and the faults."""
    clocked.register(library)

    def trained(device: str, parallel: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        averages = [one.detach().clone() for one in model.parameters()]
        seen = {"calls": 0, "last": 0.5}

        def step(x: torch.Tensor, number: int) -> torch.Tensor:
            seen["calls"] += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * min(1.0, seen["calls"] / 3)
            out = model(x / model(x).abs().max().item())
            mean = out.mean().item()
            filled = torch.full_like(x, 0.1 * number) + torch.tensor([mean, 1.0, 2.0, 0.0]).to(x.device)
            bounded = out.clamp(-1, max=mean).sum() + torch.where(x > mean, x, 0.1 * number).sum()
            loss = (out**2 * min(1.0, number / 4)).mean() / (1 + seen["last"]) + 0.1 * (bounded + (filled * out).sum())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for average, parameter in zip(averages, model.parameters(), strict=True):
                    average.mul_(1 - 1 / seen["calls"]).add_(parameter, alpha=1 / seen["calls"]).lerp_(
                        parameter, 0.1 * number
                    )
            seen["last"] = loss.item()
            return loss.detach()

        batches = [torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).to(device) for n in range(5)]
        run: Any = step
        if parallel:
            settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "cluster": DEAR_COMPUTING}
            run = unisono.parallelize(step, example=(batches[0], 0), **settings)
        losses = [run(batch, number) for number, batch in enumerate(batches)]
        if parallel:
            run.sync()
        return torch.cat([one.detach().cpu().reshape(-1) for one in (*losses, *model.parameters(), *averages)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        difference = (trained(clocked.NAME, True) - trained("cpu", False)).abs().max()
    print("difference:", "small" if difference < 1e-5 else difference)
    print("faults:", clocked.faults())


def counted(library: str) -> None:
    """Prints what of ordinary PyTorch has the host wait, and what memory holds that nobody has written."""
    clocked.register(library)
    x = torch.arange(4.0, device=clocked.NAME)
    acts: dict[str, Callable[[], object]] = {
        "item": lambda: x.sum().item(),
        "to the host": lambda: x.cpu(),
        "from the host": lambda: torch.ones(4).to(clocked.NAME),
        "from the host, not blocking": lambda: torch.ones(4).to(clocked.NAME, non_blocking=True),
        "from pinned memory, not blocking": lambda: torch.ones(4).pin_memory()[1:].to(clocked.NAME, non_blocking=True),
        "count": lambda: x.nonzero(),
        "mask": lambda: x[x > 1],
        "device": torch.accelerator.synchronize,
        "stream": torch.accelerator.current_stream().synchronize,
        "arithmetic": lambda: (x * 2 + x.view(2, 2).sum()).clamp_(max=3.0),
    }
    for name, act in acts.items():
        clocked.forget()
        act()
        print(f"{name}:", clocked.waits())
    print("copies:", clocked.copies_from_host())
    link = dict(line.split(" = ") for line in _profile._host_link(Ranks(), x.device))
    print("link:", *link, all(float(one) > 0 for one in link.values()))
    fresh = torch.empty(4, device=clocked.NAME)
    print("fresh:", fresh.isnan().all().item())
    print("on the device:", torch.accelerator.memory_allocated() > 0, torch.zeros(2, device=f"{clocked.NAME}:1").device)
    torch.manual_seed(1)
    drawn, again = torch.rand(4, device=clocked.NAME), torch.rand(4, device=clocked.NAME)
    torch.manual_seed(1)
    print("draws:", torch.equal(drawn, torch.rand(4, device=clocked.NAME)), torch.equal(drawn, again))
    print("of its own:", torch.equal(torch.rand(4), drawn.cpu()))


def draw_by_counter(library: str, processor: str = "") -> None:
    """Prints how a training with dropout by a counter differs between device and processor, and what has the host wait.

    With ``processor`` kernels of CUDA draw, which it runs.
    """
    clocked.register(library)
    if processor:
        clocked.run_kernels_by(processor, library)
    torch.__future__.set_swap_module_params_on_conversion(True)
    found = []
    for device in (_devices.HOST, _devices.current()):
        training = convolutions()
        training.model.to(device)
        batch = tuple(one.to(device) for one in training.batches[0])
        step = steps.parallelize(training, example=batch, rng="counter", fuse=bool(processor))
        step(*batch)
        clocked.forget()
        step(*batch)
        print(f"{device.type}:", clocked.waits(), clocked.faults())
        (drawn,) = (
            line for line in str(step._captured[0].executor.program).splitlines() if "unisono::random_at(" in line
        )
        print(f"drawn on {device.type}: {drawn.partition(' by ')[2].partition(';')[0].partition(' ')[0]}")
        step.sync()
        found.append([one.cpu() for one in training.model.state_dict().values()])
    print("difference:", max(difference(one, other) for one, other in zip(*found, strict=True)))


def save_and_load(library: str) -> None:
    """Prints the loss of a step, and of the same step after it has gone back to a checkpoint."""
    clocked.register(library)
    torch.__future__.set_swap_module_params_on_conversion(True)
    training, device = mlp(), torch.device(clocked.NAME, int(os.environ["LOCAL_RANK"]))
    training.model.to(device)
    batch = tuple(one.to(device) for one in training.batches[0])
    ranks = int(os.environ["WORLD_SIZE"])
    step = steps.parallelize(training, example=batch, **_settings("state cut", ranks))
    first = step(*batch).item()
    step.save("checkpoint")
    once = step(*batch).item()
    step.load("checkpoint")
    print("losses:", first != once, step(*batch).item() == once, clocked.faults())


def lack_a_type(library: str) -> None:
    """Prints what is said of steps for a device without double precision."""
    clocked.register(library)
    torch.ops.clocked.lack(torch.float64)
    torch.__future__.set_swap_module_params_on_conversion(True)

    torch.manual_seed(0)
    model = nn.Linear(16, 16).to(clocked.NAME)
    batch = (torch.randn(8, 16), torch.randn(8, 16))

    def widened(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x.double(), y.double())

    for loss in (widened, F.mse_loss):
        try:
            steps.parallelize(_training(model, loss, batch))(*batch)
            print("nothing: was refused")
        except UnisonoError as error:
            print(f"{error.code}: {error.message} {Path(str(error.place)).name} {error.cause}")


def train_without_a_network(library: str) -> None:
    """Prints what is said where the user's process group connects hosts alone, and state is on devices."""
    clocked.register(library)
    torch.__future__.set_swap_module_params_on_conversion(True)
    dist.init_process_group("cpu:gloo")
    training = mlp()
    training.model.to(torch.device(clocked.NAME, int(os.environ["LOCAL_RANK"])))
    try:
        steps.parallelize(training, mesh={"a": 2})(*training.batches[0])
    except UnisonoError as error:
        print(f"{error.code}: {error.message}")
    dist.destroy_process_group()


def replay(library: str) -> None:
    """Prints how trainings by graphs differ from those on processors, while batches, rates and a parameter's memory change."""
    clocked.register(library)
    torch.ops.clocked.fuse_optimizers()
    torch.__future__.set_swap_module_params_on_conversion(True)
    for make in (mlp, gpt, experts):
        alone, together = make(), make()
        together.model.to(clocked.NAME)
        step = steps.parallelize(together, graphs="auto")
        differences, replays = [], torch.ops.clocked.replays()
        for number in range(6):
            batch = [one * (1 + number) if one.is_floating_point() else one.roll(number) for one in alone.batches[0]]
            for training in (alone, together):
                training.optimizer.param_groups[0]["lr"] = 1e-3 * (1 + number)
                moved = next(training.model.parameters())
                moved.data = moved.data.clone() if number == 4 else moved.data
            clocked.forget()
            returned, expected = step(*batch), alone.step(*batch)
            waits, faults = clocked.waits(), clocked.faults()
            differences.append(difference(returned.cpu(), expected))
        step.sync()
        now = together.model.state_dict()
        differences += [difference(now[name].cpu(), wanted) for name, wanted in alone.model.state_dict().items()]
        print(
            f"{make.__name__}: {max(differences)}|{waits} {faults}|{torch.ops.clocked.replays() - replays}|{step.graphs()}"
        )


def refuse_graphs(library: str) -> None:
    """Prints why steps are no graphs of the device, and what it does not allow while it captures one."""
    clocked.register(library)
    torch.__future__.set_swap_module_params_on_conversion(True)
    for make, home in ((mlp, "cpu"), (convolutions, clocked.NAME), (mlp, clocked.NAME)):
        training = make()
        training.model.to(home)
        step = steps.parallelize(training, mesh={"a": int(os.environ["WORLD_SIZE"])}, graphs="auto")
        print(f"{make.__name__} on {home}:", step.graphs())
    x, side = torch.ones(4, device=clocked.NAME), torch.Stream(device=clocked.NAME)
    acts: dict[str, Callable[[], object]] = {
        "waiting": lambda: x.sum().item(),
        "copying": lambda: x.copy_(torch.ones(4)),
        "drawing": lambda: x.uniform_(),
        "arithmetic": lambda: x.add_(1).sum(),
    }
    for name, act in acts.items():
        print(f"{name}:", _word(lambda act=act: _captured(side, act)))
    print("as it was:", x.tolist())


def _captured(side: torch.Stream, act: Callable[[], object]) -> None:
    side.wait_stream(torch.accelerator.current_stream())
    graph: Any = torch.accelerator.Graph()
    with side:
        graph.capture_begin()
        try:
            act()
        finally:
            graph.capture_end()
    torch.accelerator.current_stream().wait_stream(side)


def train_eagerly(library: str) -> None:
    """Prints how PyTorch's own training on the device differs from that on the processor."""
    clocked.register(library)
    alone, there = convolutions(), convolutions()
    torch.__future__.set_swap_module_params_on_conversion(True)
    there.model.to(clocked.NAME)
    for number in range(STEPS):
        for training, device in ((alone, "cpu"), (there, clocked.NAME)):
            torch.manual_seed(number)
            training.step(*(one.to(device) for one in training.batches[0]))
    pairs = zip(pytree.tree_leaves(there.model.state_dict()), pytree.tree_leaves(alone.model.state_dict()), strict=True)
    print(max(difference(one.cpu(), other) for one, other in pairs), len(clocked.faults()))
