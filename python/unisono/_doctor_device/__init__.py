"""What ``unisono doctor --device`` tries on a device, rung by rung: :data:`RUNGS` lists them, and a further one is a row there."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable, Iterator

import torch

from unisono import _devices, _doctor, _native
from unisono._doctor import FAILED, OK, WARNING, Finding
from unisono._doctor_device import order, rates, results
from unisono._doctor_device.rung import SKIPPED, Rung, Tried, words
from unisono._doctor_device.steps import STEPS
from unisono.errors import HardwareError

_WRONG_RESULTS = "update its driver or its PyTorch: plain PyTorch computes it otherwise than on processors"
_NOT_AS_PLAIN = "send us this report; until then train with plain PyTorch on this device"

RUNGS = (
    Rung("kernels", results.kernels, _WRONG_RESULTS),
    Rung("fused kernels", results.fused, "leave `fuse` off on this device, and send us this report"),
    *(Rung(f"step {name}", functools.partial(results.step_of, name), _NOT_AS_PLAIN) for name in STEPS),
    Rung("step llama, fused", functools.partial(results.step_of, "llama", fuse=True), _NOT_AS_PLAIN),
    Rung("step gpt, offloaded", functools.partial(results.step_of, "gpt", offload="full"), _NOT_AS_PLAIN),
    Rung("step gpt, a graph", functools.partial(results.graphs_of, "gpt"), "leave `graphs` off on this device"),
    Rung("capture", results.captured, "capture on the device itself, and send us this report"),
    Rung(
        "random numbers",
        results.random_numbers,
        "update its driver or its PyTorch: a run cannot be repeated until then",
    ),
    Rung("streams", order.streams, "update its driver or its PyTorch: collectives run on streams of their own"),
    Rung("collectives", order.collectives, "look at the network of the devices; steps on several of them need it"),
    Rung(
        "bandwidths",
        rates.bandwidths,
        "update its driver or its PyTorch: what could not be measured cannot be used in steps",
    ),
    Rung("memory", rates.memory, _NOT_AS_PLAIN, needs="step gpt"),
    Rung(
        "timeline", rates.timeline, "`step.timeline` and `step.measure` will not work on this device", needs="step gpt"
    ),
)


def findings(kind: str, tell: Callable[[str], object]) -> Iterator[Finding]:
    """What is found on a device, as it is found. Under ``torchrun`` the first rank speaks, and the others join where it needs them.

    Args:
        kind: the kind of device, as PyTorch calls it; empty for the accelerator that is there.
        tell: is told what is tried next.
    """
    device, found = _found(kind)
    if int(os.environ.get("RANK", "0")) > 0 and order.under_torchrun():
        if device is None:
            yield found
        else:
            _join(device, tell)
        return
    yield Finding("unisono", OK, f"{_native.__version__}, {platform.platform()}")
    yield from _doctor.libraries()
    yield found
    tried = None if device is None else Tried(device)
    statuses: dict[str, str] = {}
    for number, rung in enumerate(RUNGS if tried else (), 1):
        assert tried is not None
        tell(f"{number} of {len(RUNGS)}: {rung.name}")
        finding = _climbed(rung, tried, statuses)
        statuses[rung.name] = finding.status
        yield finding


def _join(device: torch.device, tell: Callable[[str], object]) -> None:
    """What ranks behind the first do. None ends with an error, at which ``torchrun`` would end the first before its report is complete."""
    try:
        order.collectives_of_ranks(device.type)
    except Exception as error:
        tell(f"rank {os.environ['RANK']}: {words(error)}")


def _climbed(rung: Rung, tried: Tried, statuses: dict[str, str]) -> Finding:
    if rung.needs is not None and statuses[rung.needs] not in (OK, WARNING):
        return Finding(rung.name, SKIPPED, f"needs `{rung.needs}`, which failed")
    try:
        result = rung.run(tried)
    except Exception as error:
        return Finding(rung.name, FAILED, words(error), getattr(error, "hint", None) or rung.hint)
    return Finding(
        rung.name, result.status, result.text, result.hint or (rung.hint if result.status == FAILED else None)
    )


def _found(kind: str) -> tuple[torch.device | None, Finding]:
    """The device that is asked for, if it is there, and what is said of it."""
    try:
        device = _device(kind)
        if device == _devices.HOST:
            return device, Finding("device", OK, f"cpu, {platform.machine()}, {torch.get_num_threads()} threads")
        return device, Finding("device", OK, f"{device}, {_described(device)}")
    except HardwareError as error:
        return None, Finding("device", FAILED, error.message, error.hint)
    except Exception as error:
        return None, Finding(
            "device", FAILED, words(error), "look at its driver, and at the PyTorch that is to have it"
        )


def _device(kind: str) -> torch.device:
    own = _devices.accelerator()
    try:
        asked = torch.device(kind or own or "")
    except RuntimeError:
        asked = None
    if asked is not None and asked.type == _devices.HOST.type:
        return _devices.HOST
    if asked is None or asked.type != own:
        built = torch.version.cuda or torch.version.hip
        wanted = f"no device `{kind}` is there" if kind else "no accelerator is there"
        has = f"this PyTorch{f' (built for {built})' if built else ''} sees " + (
            f"`{own}`" if own else "processors only"
        )
        raise HardwareError(
            f"{wanted}: {has}",
            hint="install the driver, and the PyTorch that is built for the device or the package that registers it; "
            "`--device cpu` tries the same on the processor",
        )
    if asked.index is not None:
        torch.accelerator.set_device_index(asked.index)
    elif order.under_torchrun():
        _devices.take_own()
    return _devices.current()


def _described(device: torch.device) -> str:
    """Its model, how many there are, and its memory where that is known."""
    text = f"{_devices.model_of(device)}, {torch.accelerator.device_count()} of this kind"
    with contextlib.suppress(Exception):
        text += f", {_devices.memory_of(device) / 2**30:.1f} GiB"
    return text
