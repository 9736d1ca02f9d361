"""The device that steps run on: the processor, or whatever accelerator PyTorch has, by PyTorch's own name for it.

Nothing here knows the name of an accelerator: CUDA, ROCm, XPU, MPS, or a backend that calls itself what it likes.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from unisono.errors import HardwareError, StepError, UnisonoError

HOST = torch.device("cpu")


def accelerator() -> str | None:
    """The kind of accelerator that this process has, if it has any."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


def casting() -> tuple[str, ...]:
    """The kinds of devices for which PyTorch may cast automatically here."""
    own = accelerator()
    return ("cpu",) if own is None else ("cpu", own)


def device_of(devices: Iterable[tuple[str, torch.device]]) -> torch.device:
    """The device of a step, from those of the tensors that it has as state, by name; the host's may be beside an accelerator's.

    Raises:
        StepError: the tensors are on two accelerators.
    """
    device, first = HOST, ""
    for name, own in devices:
        if device == HOST:
            device, first = own, name
        elif own not in (device, HOST):
            raise StepError(
                f"`{name}` is on {own}, and `{first}` on {device}",
                code="U0129",
                cause="a rank runs a step on one device",
                hint="put model, optimizer and batch on one device, and start one rank for each device",
            )
    return device


def take_own() -> str | None:
    """Makes the device of this rank's number on its machine (``LOCAL_RANK``) the current one; its kind, if there are any.

    Raises:
        HardwareError: there are fewer devices than ranks.
    """
    kind = accelerator()
    if kind is None:
        return None
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.accelerator.device_count()
    if number >= count:
        raise HardwareError(
            f"rank {number} of this machine has no device: there {'is' if count == 1 else 'are'} {count} of kind {kind}",
            code="U0322",
            cause="each rank runs on a device of its own",
            hint="start as many ranks on a machine as it has devices; where each process sees its own device only, call "
            "`torch.distributed.init_process_group` before `parallelize`",
        )
    torch.accelerator.set_device_index(number)
    return kind


@functools.cache
def narrow_types() -> tuple[str, ...]:
    """The element types of 16 bits that this processor has no instructions for products in, so that PyTorch takes several times as long for
    them as in `f32`. Nothing is known of other processors than x86-64.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return ()
    library = torch.ops.mkldnn
    supported = {"bf16": library._is_mkldnn_bf16_supported(), "f16": library._is_mkldnn_fp16_supported()}
    return tuple(name for name, is_supported in supported.items() if not is_supported)


def current() -> torch.device:
    """The accelerator that is current in this process, or the processor where there is none."""
    kind = accelerator()
    return HOST if kind is None else torch.device(kind, torch.accelerator.current_device_index())


def network_of(kind: str | None) -> str | None:
    """What connects devices of a kind, as far as PyTorch knows."""
    return None if kind is None else dist.Backend.default_device_backend_map.get(kind)


def networks(kind: str | None) -> str:
    """What a process group is made with that connects hosts, and devices of a kind where PyTorch knows how."""
    network = network_of(kind)
    return "gloo" if network is None else f"cpu:gloo,{kind}:{network}"


def synchronise(device: torch.device) -> None:
    """Waits until everything that was issued to a device is done; what has failed there raises here."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def place_of(tensor: torch.Tensor, device: torch.device) -> torch.device:
    """Where a tensor of a batch is when a step on a device runs: one of the host goes there, unless it is a number, which kernels take."""
    stays = device.type in ("cpu", "meta") or tensor.device != HOST or not tensor.dim() or tensor.requires_grad
    return tensor.device if stays or tensor.layout != torch.strided else device


def given_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of a batch at its place; from the host through pinned memory, so that nobody waits and it may be written into at once."""
    if place_of(tensor, device) == tensor.device:
        return tensor
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor).to(device, non_blocking=True)


def lacking_type(types: Iterable[tuple[str, str | None]], device: torch.device) -> HardwareError | None:
    """What is wrong with a step for a device that lacks an element type; each comes with the user's line that needs it, if one does."""
    for name, place in types if device.type not in ("cpu", "meta") else ():
        try:
            torch.zeros(1, dtype=getattr(torch, name), device=device)
        except (RuntimeError, TypeError) as error:
            return HardwareError(
                f"{device.type} has no {name}, which the step computes with",
                code="U0326",
                place=place,
                cause=str(error).splitlines()[0],
                hint="convert the model, its inputs or this operation to a type that the device has",
            )
    return None


def whole_numbers(values: Iterable[int], device: torch.device) -> torch.Tensor:
    """Whole numbers as a tensor of a device, which they reach as arguments of kernels: a copy from the host would wait for the device."""
    return torch.stack([torch.full((), value, dtype=torch.int64, device=device) for value in values])


def generator_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of PyTorch's own generators, of the processor and of a device, by the kind of device."""
    found = {"cpu": torch.get_rng_state()}
    if device.type not in ("cpu", "meta"):
        found[device.type] = _module(device).get_rng_state(device)
    return found


def set_generator_states(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    """Sets what :func:`generator_states` gave."""
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        _module(device).set_rng_state(states[device.type], device)


def are_same_states(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    """Whether :func:`generator_states` gave the same twice."""
    return some.keys() == others.keys() and all(torch.equal(state, others[kind]) for kind, state in some.items())


def draw(device: torch.device, count: int) -> None:
    """Draws some numbers from PyTorch's own generators, of the processor and of a device."""
    for where in (HOST, device) if device.type not in ("cpu", "meta") else (HOST,):
        torch.empty(count, device=where).uniform_()


def model_of(device: torch.device) -> str:
    """What a device is called by its maker, as far as its module says; else its kind."""
    name = getattr(_module(device), "get_device_name", None) if device.type not in ("cpu", "meta") else None
    return device.type if name is None else str(name(device))


def at_or_before(error: UnisonoError, device: torch.device) -> UnisonoError:
    """The error of an operation, with a word on what a device has not said yet when the next operation is issued."""
    if device == HOST or error.code != "U0310":
        return error
    return type(error)(
        error.message,
        code=error.code,
        place=error.place,
        cause=error.cause,
        hint=f"what fails on {device.type} shows at a later line: it is at or before this one. `step.synchronous(True)` finds the line"
        + (f"; {error.hint}" if error.hint else ""),
    )


def mark(device: torch.device) -> torch.Event:
    """A point in what is issued to a device now."""
    made = torch.Event(device, enable_timing=True)
    made.record()
    return made


def nanoseconds_between(one: torch.Event, other: torch.Event) -> int:
    """What lies between two points that the device has passed."""
    return int(one.elapsed_time(other) * 1e6)


def peak_growth(device: torch.device, run: Callable[[], object]) -> int:
    """The most bytes that a device's allocator had given out during a call beyond those of its beginning."""
    synchronise(device)
    before = torch.accelerator.memory_allocated(device)
    torch.accelerator.reset_peak_memory_stats(device)
    run()
    synchronise(device)
    return torch.accelerator.max_memory_allocated(device) - before


def given_out(device: torch.device) -> int | None:
    """The bytes that a device's allocator has given out now; ``None`` for the host."""
    return None if device == HOST else torch.accelerator.memory_allocated(device)


def memory_of(device: torch.device) -> int:
    """The bytes of memory that a device has."""
    return int(torch.accelerator.get_memory_info(device)[1])


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
