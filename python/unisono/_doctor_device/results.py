"""Whether a device computes what is expected: operators, steps, random numbers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono import _cuda, _devices
from unisono._capture.kernels import KERNELS
from unisono._doctor import FAILED, OK, WARNING
from unisono._doctor_device.rung import SKIPPED, Result, Tried, words
from unisono._doctor_device.steps import FUSED, OPERATORS, Training, training
from unisono._executor import Executor, load, lower_graph
from unisono.errors import InternalError

#: How far a result may be off, as a part of the largest number, until it is less exact than f32, and until it is wrong.
_EXACT, _WRONG = 1e-4, 2e-2
#: The same for what a few steps have changed, in which the optimizer magnifies rounding.
_SAME, _ANOTHER = 1e-2, 1e-1
#: The least change of a tensor that differences are compared with: a tenth of one update.
_LEAST_CHANGE = 1e-4
_TRAINED = 3
_DROPPED = 0.25
#: The steps whose graphs are compared: of attention, of convolutions.
_CAPTURED = ("llama", "convnet")
_LESS_EXACT = "products may be computed in a shorter format (TF32): `torch.set_float32_matmul_precision` and `torch.backends` say which"

#: With one rank nothing that is predicted decides anything.
_CLUSTER = """version = 1
[device]
name = "a device that is tried"
memory_bytes = 1000000000000
memory_bandwidth = 1e12
operation_ns = 1000.0
host_bandwidth = 1e10
host_latency_ns = 10000.0
host_memory_bytes = 1000000000000
[device.matmul_flops]
f32 = 1e13
[links]
""" + "".join(
    f"{kind} = {{ latency_ns = 1000.0, bandwidth = 1e12 }}\n"
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)


# Kernels.


def kernels(tried: Tried) -> Result:
    off, failed = dict[str, float](), dict[str, str]()
    for name in OPERATORS:
        try:
            off[name] = _off(name, tried.device)
        except Exception as error:
            failed[name] = words(error)
    try:
        problem = _dropout(tried.device)
    except Exception as error:
        problem = words(error)
    failed |= {"dropout": problem} if problem else {}
    failed |= {name: f"off by {by:.1e}" for name, by in off.items() if not by < _WRONG}
    if failed:
        return Result(FAILED, "; ".join(f"{name}: {text}" for name, text in failed.items()))
    worst = max(off, key=lambda name: off[name])
    text = f"{len(off)} operators forward and backward, and dropout: off by {off[worst]:.1e} at most ({worst})"
    return Result(OK, text) if off[worst] < _EXACT else Result(WARNING, text, _LESS_EXACT)


def _off(name: str, device: torch.device) -> float:
    """How far an operator in f32 is from the processor's in f64, forward and backward."""
    call, make = OPERATORS[name]
    torch.manual_seed(0)
    operands = make()
    weights = torch.randn(call(*operands).shape)
    found = _with_gradients(call, [one.to(device) for one in operands], weights.to(device))
    wide = [one.double() if one.is_floating_point() else one for one in operands]
    expected = _with_gradients(call, wide, weights.double())
    return max(_difference(one, other) for one, other in zip(found, expected, strict=True))


def _with_gradients(
    call: Callable[..., torch.Tensor], operands: list[torch.Tensor], weights: torch.Tensor
) -> list[torch.Tensor]:
    floats = [one.requires_grad_() for one in operands if one.is_floating_point()]
    made = call(*operands)
    return [made.detach(), *torch.autograd.grad(made, floats, weights)]


def _difference(found: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> float:
    """The largest difference, as a part of the largest number that is expected, or of ``scale``."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    if found.shape != expected.shape or not found.isfinite().all():
        return math.inf
    scale = float(expected.abs().max()) if scale is None else scale
    return float((found - expected).abs().max()) / max(scale, 1e-30)


def _dropout(device: torch.device) -> str | None:
    """What is wrong with dropout: which elements it drops is its own, but not how many and what becomes of the others."""
    made = F.dropout(torch.ones(100, 100, device=device), _DROPPED).cpu()
    kept = made[made != 0]
    if made.shape != (100, 100) or not 0.2 < 1 - kept.numel() / made.numel() < 0.3:
        return f"{made.numel() - kept.numel()} of {made.numel()} elements are dropped at {_DROPPED}"
    return None if torch.allclose(kept, torch.tensor(1 / (1 - _DROPPED))) else "what is kept is not scaled"


# Groups of operations as kernels.


def fused(tried: Tried) -> Result:
    """Whether kernels give the bits that they give on the processor: they are the same steps everywhere."""
    load()
    if tried.device != _devices.HOST and isinstance(reason := _cuda.device_of(tried.device), str):
        return Result(SKIPPED, reason)
    torch.manual_seed(0)
    others = list[str]()
    for name, (function, make) in FUSED.items():
        operands = make()
        try:
            found, expected = (_by_kernels(function, operands, device) for device in (tried.device, _devices.HOST))
        except Exception as error:
            others.append(f"{name}: {words(error)}")
            continue
        apart = [
            _difference(one, other) for one, other in zip(found, expected, strict=True) if not torch.equal(one, other)
        ]
        others += [f"{name}: off by {max(apart):.1e}"] if apart else []
    if others:
        return Result(FAILED, "; ".join(others))
    return Result(OK, f"{len(FUSED)} groups of operations: the bits of the processor")


def _by_kernels(
    function: Callable[..., Any], operands: tuple[torch.Tensor, ...], device: torch.device
) -> list[torch.Tensor]:
    inputs = [one.to(device) for one in operands]
    graph = unisono.capture(function, example=tuple(inputs)).native
    if len(graph.kernel_texts(cuda=True)) != 1:
        raise InternalError("operations that are to be one kernel are not")
    run = Executor(lower_graph(graph, device=device, fuse=True))
    run.bind([])
    return [one.cpu() for one in run(inputs)]


# Steps by the executor.


def step_of(name: str, tried: Tried, **settings: Any) -> Result:
    """Whether a step under some settings does what it does by plain PyTorch."""
    one, step, result = _compared(name, tried.device, settings)
    if not settings:
        tried.steps[name] = one, step
    return result


def _compared(name: str, device: torch.device, settings: dict[str, Any]) -> tuple[Training, Any, Result]:
    """A training, Unisono's step of it after a few steps, and how these compare with plain PyTorch's."""
    alone, ours = training(name, device), training(name, device)
    before = copy.deepcopy(alone.model.state_dict())
    step = _parallelized(ours, **settings)
    expected = [alone.step(*alone.batch).clone() for _ in range(_TRAINED)]
    found = [step(*ours.batch).clone() for _ in range(_TRAINED)]
    step.sync()
    off = {"loss": max(_difference(one, other) for one, other in zip(found, expected, strict=True))}
    now = ours.model.state_dict()
    for key, wanted in alone.model.state_dict().items():
        change = float((wanted - before[key]).abs().max().cpu())
        off[key] = _difference(now[key], wanted, max(change, _LEAST_CHANGE))
    worst = max(off, key=lambda key: off[key])
    text = f"after {_TRAINED} steps off by {off[worst]:.1e} of its change at most (`{worst}`), loss {float(expected[-1].cpu()):.4f}"
    if off[worst] < _SAME:
        return ours, step, Result(OK, text)
    return ours, step, Result(WARNING, text, _LESS_EXACT) if off[worst] < _ANOTHER else Result(FAILED, text)


def graphs_of(name: str, tried: Tried) -> Result:
    """Whether a step does the same as a graph of the device."""
    if tried.device == _devices.HOST:
        return Result(SKIPPED, "the processor has no graphs")
    _, step, result = _compared(name, tried.device, {"graphs": "auto"})
    return Result(SKIPPED, step.graphs()) if step.graphs().startswith("not") else result


def captured(tried: Tried) -> Result:
    """Whether steps that are captured for a device without it are those that are captured on it."""
    if tried.device.type not in KERNELS:
        return Result(SKIPPED, f"steps cannot be captured for {tried.device.type} where there is none")
    others = list[str]()
    for name in _CAPTURED:
        here, elsewhere = (
            _captured(name, device, tried.device.type) for device in (tried.device, torch.device("meta"))
        )
        apart = next(
            (pair for pair in itertools.zip_longest(here, elsewhere, fillvalue="") if pair[0] != pair[1]), None
        )
        others += [f"{name}: `{apart[0].strip()}` here, `{apart[1].strip()}` without the device"] if apart else []
    if others:
        return Result(FAILED, "; ".join(others))
    return Result(
        OK, f"{', '.join(_CAPTURED)}: the graphs that are captured for {tried.device.type} where there is none"
    )


def _captured(name: str, device: torch.device, kind: str) -> list[str]:
    """The text of a step's graph, without the number of the device."""
    one = training(name, device)
    target = {"device": kind} if device.type == "meta" else {}
    graph = unisono.capture(one.step, model=one.model, optimizer=one.optimizer, example=one.batch, **target)
    return re.sub(rf"\b{kind}:\d+", kind, graph.text()).splitlines()


def _parallelized(one: Training, **settings: Any) -> Any:
    with _alone():
        return unisono.parallelize(
            one.step, model=one.model, optimizer=one.optimizer, example=one.batch, cluster=_CLUSTER, **settings
        )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Within, this process is one rank for itself: other ranks of ``torchrun`` do not take part."""
    hidden = os.environ.pop("TORCHELASTIC_RUN_ID", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["TORCHELASTIC_RUN_ID"] = hidden


# Random numbers.


def random_numbers(tried: Tried) -> Result:
    masks = _masks(tried.device, plain=True)
    if not torch.equal(masks, _masks(tried.device, plain=True)):
        return Result(FAILED, "with the same seed PyTorch's own dropout drops other elements the second time")
    if torch.equal(masks, _masks(tried.device, plain=False)):
        return Result(OK, "same: dropout with a seed drops what plain PyTorch drops on this device")
    text = "differs: dropout with a seed drops other elements than plain PyTorch on this device"
    return Result(WARNING, text, 'for masks that are the same on any mesh, pass `rng="counter"` to `parallelize`')


def _masks(device: torch.device, *, plain: bool) -> torch.Tensor:
    """Which elements are dropped in steps with seeds of their own."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        made = F.dropout(model(x), _DROPPED)
        F.mse_loss(made, y).backward()
        optimizer.step()
        return made.detach()

    batch = torch.randn(32, 64).to(device), torch.zeros(32, 64).to(device)
    run = step if plain else _parallelized(Training(model, optimizer, step, batch))
    masks = []
    for seed in range(2):
        torch.manual_seed(seed)
        masks.append(run(*batch).cpu() == 0)
    return torch.stack(masks)
