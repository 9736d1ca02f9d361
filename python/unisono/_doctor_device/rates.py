"""How fast a device is, and what a step takes of its memory and time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unisono import _devices, _measure
from unisono._doctor import FAILED, OK, WARNING
from unisono._doctor_device.rung import SKIPPED, Result, Tried, on_the_host, words

#: What a measurement takes at least, in seconds; the most bytes and the largest side of a matrix in it.
_LONG, _BYTES, _SIDE = 0.05, 1 << 28, 8192
#: How far a peak of memory may be off.
_PEAK = 0.2


# Bandwidths.


def bandwidths(tried: Tried) -> Result:
    device = tried.device
    there = device == _devices.HOST
    figures: dict[str, Callable[[], str]] = {
        "copy": lambda: f"{_copied(device, device, 2):.1f} GB/s",
        **({} if there else {"host to device": lambda: f"{_copied(_devices.HOST, device, 1):.1f} GB/s"}),
        **({} if there else {"device to host": lambda: f"{_copied(device, _devices.HOST, 1):.1f} GB/s"}),
        "f32 products": lambda: _multiplied(device, torch.float32),
        "bf16 products": lambda: _multiplied(device, torch.bfloat16),
    }
    said, failed = [], False
    for name, measure in figures.items():
        try:
            said.append(f"{name} {measure()}")
        except Exception as error:
            said.append(f"{name}: {words(error)}")
            failed = True
    return Result(FAILED if failed else OK, ", ".join(said))


def _copied(source: torch.device, target: torch.device, times: int) -> float:
    """Gigabytes a second that a copy moves, each counted so many times."""

    def copy_of(size: int) -> Callable[[], object]:
        one, other = (
            on_the_host(size // 4) if at == _devices.HOST != device else torch.zeros(size // 4, device=at)
            for at in (source, target)
        )
        return lambda: other.copy_(one, non_blocking=True)

    device = target if source == _devices.HOST else source
    size, seconds = _taken(copy_of, 1 << 16, _BYTES, device)
    return times * size / seconds / 1e9


def _multiplied(device: torch.device, dtype: torch.dtype) -> str:
    """Floating-point operations a second of a product of matrices."""

    def product_of(side: int) -> Callable[[], object]:
        one = torch.ones(side, side, device=device, dtype=dtype)
        return lambda: torch.mm(one, one)

    side, seconds = _taken(product_of, 128, _SIDE, device)
    rate = 2 * side**3 / seconds / 1e9
    return f"{rate:.3g} GFLOP/s" if rate < 1000 else f"{rate / 1000:.3g} TFLOP/s"


def _taken(
    make: Callable[[int], Callable[[], object]], size: int, most: int, device: torch.device
) -> tuple[int, float]:
    """A size at which calls take long enough to be measured, and the seconds of one."""
    calls, run = 1, make(size)

    def seconds() -> float:
        return _measure.nanoseconds(lambda: [run() for _ in range(calls)], device) / 1e9

    run()
    while seconds() < _LONG:
        if size < most:
            size, run = 2 * size, make(2 * size)
            run()  # the first call of a size may choose its kernel
        else:
            calls *= 2
    return size, min(seconds() for _ in range(3)) / calls


# Memory and time of a step.


def memory(tried: Tried) -> Result:
    if tried.device != _devices.HOST:
        try:
            torch.accelerator.max_memory_allocated(tried.device)
        except RuntimeError as error:
            return Result(SKIPPED, f"its allocator reports no peak: {words(error)}")
    one, step = tried.steps["gpt"]
    (found,), predicted = step.measure(*one.batch, repeats=1)["peak_bytes"], step.plan.prediction["peak_bytes"]
    off = found / predicted - 1
    text = f"peak {found / 2**20:.2f} MiB, predicted {predicted / 2**20:.2f} MiB: {100 * off:+.1f} %"
    if abs(off) < _PEAK:
        return Result(OK, text)
    return Result(WARNING, text, "leave as much room under `memory_limit=` on this device")


def timeline(tried: Tried) -> Result:
    one, step = tried.steps["gpt"]
    wall = min(_measure.nanoseconds(lambda: step(*one.batch), tried.device) for _ in range(3))
    records = step.timeline(*one.batch)
    if not records or any(duration < 0 for *_, duration in records):
        return Result(FAILED, "an instruction ends before it begins")
    total = max(start + duration for *_, start, duration in records)
    name, _, _, most = max(records, key=lambda record: record[3])
    text = f"{len(records)} instructions end after {total / 1e6:.2f} ms, a step takes {wall / 1e6:.2f} ms"
    return Result(OK, f"{text}; longest `{name}`, {most / 1e6:.2f} ms")
