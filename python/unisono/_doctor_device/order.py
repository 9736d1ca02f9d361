"""Whether work on a device is ordered, and whether devices reach each other."""

from __future__ import annotations

import os
import time

import torch

from unisono import _devices, _doctor
from unisono._doctor import FAILED, OK, WARNING
from unisono._doctor_device.rung import SKIPPED, Result, Tried, on_the_host, words

#: The side of the matrices of streams, a power of two, so that products with its reciprocal are exact.
_SIDE = 512
#: What two processes may take to try the network, in seconds.
_SECONDS = 120.0


def under_torchrun() -> bool:
    """Whether this process is one of several ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


# Streams.


def streams(tried: Tried) -> Result:
    if tried.device == _devices.HOST:
        return Result(SKIPPED, "the processor has no streams")
    device, own = tried.device, torch.accelerator.current_stream()
    side = torch.Stream(device=device)
    x, host = torch.ones(_SIDE, _SIDE, device=device), on_the_host(_SIDE * _SIDE).view(_SIDE, _SIDE)
    first, last = _events(device)
    first.record()
    y = _after_a_while(x * 2)
    side.wait_stream(own)
    with side:
        z = _after_a_while(y + x)
        host.copy_(z, non_blocking=True)
        last.record()
    last.synchronize()
    if not host.eq(3).all():
        return Result(FAILED, "a copy to the host after work on a side stream is not what was computed there")
    own.wait_event(last)
    if not (z + y).cpu().eq(5).all():
        return Result(FAILED, "work that waits for an event of another stream does not see what was computed there")
    _devices.synchronise(device)
    said = "a copy and an event are ordered behind a side stream"
    try:
        taken = first.elapsed_time(last)
    except RuntimeError as error:
        return Result(WARNING, f"{said}; events have no times: {words(error)}", "`step.timeline` needs times of events")
    return Result(OK, f"{said}, {taken:.3f} ms between two events")


def _after_a_while(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, one number in all elements, after products that take long enough for work that does not wait to be too early."""
    mean = torch.full_like(x, 1 / _SIDE)
    for _ in range(20):
        x = x @ mean
    return x


def _events(device: torch.device) -> tuple[torch.Event, torch.Event]:
    """Two events, with times where the device has any."""
    try:
        return torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    except RuntimeError:
        return torch.Event(device), torch.Event(device)


# Collectives.


def collectives(tried: Tried) -> Result:
    kind, start = tried.device.type, time.monotonic()
    if under_torchrun():
        return Result(OK, collectives_of_ranks(kind))
    count = 1 if tried.device == _devices.HOST else torch.accelerator.device_count()
    if count < 2:
        return Result(SKIPPED, "not tried: there is one device here; under `torchrun` all ranks try them")
    script = f"from unisono._doctor_device import order; order.one_of_two({kind!r})"
    problem = _doctor.two_processes(script, _SECONDS)
    if problem:
        return Result(FAILED, problem)
    return Result(OK, f"{_of_network(kind, 2)}, {time.monotonic() - start:.1f} s from the start of two processes")


def _of_network(kind: str, ranks: int) -> str:
    network = _devices.network_of(kind) or "gloo"
    return f"all_reduce, all_gather and reduce_scatter of {ranks} ranks by {network} are the host's sums"


def one_of_two(kind: str) -> None:
    """What each of the two processes does: it ends with one line on what is wrong."""
    try:
        collectives_of_ranks(kind)
    except Exception as error:
        raise SystemExit(words(error)) from None


def collectives_of_ranks(kind: str) -> str:
    """What all ranks find of the collectives that steps use, on devices of a kind.

    Raises:
        RuntimeError: what one of them finds wrong, on all.
    """
    from unisono._ranks import Ranks

    ranks, functional = Ranks(), torch.ops._c10d_functional
    device = _devices.HOST if kind == _devices.HOST.type else _devices.current()
    group, n = ranks.group(device.type).group_name, ranks.count
    # Whole numbers, which have no rounding.
    each = [torch.arange(4.0 * n) * (rank + 1) for rank in range(n)]
    mine, total = each[ranks.rank].to(device), torch.stack(each).sum(0)
    found = {
        "all_reduce": (functional.all_reduce(mine, "sum", group), total),
        "all_gather": (functional.all_gather_into_tensor(mine, n, group), torch.cat(each)),
        "reduce_scatter": (functional.reduce_scatter_tensor(mine, "sum", n, group), total.chunk(n)[ranks.rank]),
    }
    wrong = [name for name, (one, want) in found.items() if not torch.equal(functional.wait_tensor(one).cpu(), want)]
    problem = f"{', '.join(wrong)} on rank {ranks.rank}: other values than the host's sums" if wrong else None
    for rank in range(n):
        said = ranks.tell(problem, rank)
        if said is not None:
            raise RuntimeError(said)
    return _of_network(kind, n)
