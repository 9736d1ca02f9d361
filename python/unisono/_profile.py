"""Measuring a machine: the coefficients that the planner computes costs from."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import unisono
from unisono import _calls, _devices, _links, _native, _operations, _standard_steps, _timing
from unisono._capture.wire import TORCH_DTYPES
from unisono._in_steps import InSteps
from unisono._placements import STAGES
from unisono._ranks import Ranks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Elements of the message beside which products are measured.
_LARGE = 1 << 20
#: Elements of a large copy between a device and its host.
_LINK = 1 << 22

#: How often each thing is measured to see whether it is still as it was.
_ROUNDS_OF_CHECK = 2
#: By which factor a figure may be off until the machine counts as another one.
_ALIKE = 1.6
#: How far apart repeats may be, as a part of their median, until the machine counts as busy, and is measured again at the next start.
_UNSTEADY = 0.5
#: How much longer than a collective the operations beside it take where it is measured how they slow each other.
_LONGER = 1.5
#: How often a step is planned with what is known by then, to find calls that are not known yet.
_MOST_PLANS = 4
#: How long the operations of a step are measured at most, in seconds, but for one program that takes longer.
_SECONDS = 10.0
#: The same in `unisono profile`, for each step.
_SECONDS_OF_PROFILE = 60.0


def cache_folder() -> Path:
    """Where measurements and plans are kept."""
    return Path.home() / ".cache" / "unisono"


def describe(
    ranks: Ranks,
    device: torch.device = _devices.HOST,
    memory_bytes: int | None = None,
) -> str:
    """Measures a device of this machine with all ranks taking part, and returns the cluster description (TOML), the same on every rank."""
    return ranks.tell("\n".join([*_device_lines(ranks, device, memory_bytes), "", *_link_lines(ranks, device)]) + "\n")


def _device_lines(ranks: Ranks, device: torch.device, memory_bytes: int | None = None) -> list[str]:
    times, spread = _times(ranks, device)
    bandwidth, overhead, rates = _figures(times, device)
    overlaps = _overlaps(ranks, device, times)
    return [
        "# A machine as the planner sees it, measured by `unisono profile`.",
        "version = 1",
        "",
        "[device]",
        f'name = "{_devices.model_of(device)}"',
        f"memory_bytes = {memory_bytes or _memory(ranks, device)}",
        f"memory_bandwidth = {bandwidth:.4e}",
        f"operation_ns = {overhead:.1f}",
        f"overlap_factor = {overlaps.get('products', 1.0):.3f}",
        *_call_lines(ranks, device),
        *_host_link(ranks, device),
        f"spread = {spread:.3f}",
        f"measured_on = {json.dumps(_measured_on(device))}",
        "",
        "[device.matmul_flops]",
        *(f"{name} = {rate:.4e}" for name, rate in rates.items()),
        *(["", "[device.overlap]"] if overlaps else []),
        *(f"{name} = {{ operation = {factor:.3f}, collective = {factor:.3f} }}" for name, factor in overlaps.items()),
    ]


def _link_lines(ranks: Ranks, device: torch.device) -> list[str]:
    """What lies between all ranks; of groups of other shapes only what the levels of nodes need."""
    layout = _links.layout_of(ranks)
    if ranks.count == 1:
        return ["[links]", *_links.alone()]
    if layout.has_levels:
        places = layout.axes({"between": layout.nodes, "within": layout.of_node})
        return _links.measure(ranks, device, layout, places, _links.QUICK_SIZES).lines()
    places = layout.axes({"ranks": ranks.count})
    return ["[links]", *_links.measure(ranks, device, layout, places, _links.QUICK_SIZES).link_lines()]


def _sizes(device: torch.device) -> tuple[int, int, list[str]]:
    """The side of the matrices that are multiplied, the elements that are copied, and the types of products."""
    return (512, 1 << 22, ["f32"]) if device == _devices.HOST else (4096, 1 << 26, ["f32", "bf16", "f16"])


def _times(ranks: Ranks, device: torch.device, rounds: int = _timing.ROUNDS) -> tuple[dict[str, float], float]:
    """Seconds of a copy, of a small operation and of products by element type, and the median of how far apart their rounds were."""
    size, elements, types = _sizes(device)
    block = torch.randn(elements, device=device)
    copy, tiny = torch.empty_like(block), torch.ones(8, device=device)
    matrices = {name: torch.randn(size, size, device=device).to(TORCH_DTYPES[name]) for name in types}
    products = {name: functools.partial(torch.mm, matrix, matrix) for name, matrix in matrices.items()}
    found: dict[str, float] = {}
    spreads = []
    small = {"operation": lambda: tiny.add(1)}
    for runs, calls in (({"copy": lambda: copy.copy_(block)}, 16), (small, 10_000), (products, 16)):
        taken = _timing.rounds(ranks, device, runs, dict.fromkeys(runs, calls), rounds)
        found |= {key: statistics.median(times) for key, times in taken.items()}
        spreads += [(max(times) - min(times)) / found[key] for key, times in taken.items()]
    return found, statistics.median(spreads)


def _figures(times: Mapping[str, float], device: torch.device) -> tuple[float, float, dict[str, float]]:
    """Bytes a second of memory, nanoseconds of an operation, and floating-point operations a second by element type."""
    size, elements, types = _sizes(device)
    rates = {name: 2 * size**3 / times[name] for name in types}
    return 2 * elements * 4 / times["copy"], times["operation"] * 1e9, rates


def _call_lines(ranks: Ranks, device: torch.device) -> list[str]:
    """What the host takes around the program of a step; nothing where it does that while a device still runs the step before."""
    times = _calls.measured(ranks) if device == _devices.HOST else None
    return [] if times is None else [f"call_ns = {times.each:.1f}", f"call_tensor_ns = {times.tensor:.1f}"]


def _host_link(ranks: Ranks, device: torch.device) -> list[str]:
    """What copies between a device and pinned memory of its host take; nothing for a host, or without such memory."""
    if device == _devices.HOST:
        return []
    runs: dict[str, Callable[[], object]] = {}
    for size, elements in (("small", 1), ("large", _LINK)):
        try:
            here, there = torch.zeros(elements, pin_memory=True), torch.zeros(elements, device=device)
        except RuntimeError:
            return []
        runs[f"{size} out"] = functools.partial(here.copy_, there, non_blocking=True)
        runs[f"{size} back"] = functools.partial(there.copy_, here, non_blocking=True)
    taken = _timing.typical(ranks, device, runs, 4)
    latency = max(taken["small out"], taken["small back"])
    longest = max(taken["large out"] - taken["small out"], taken["large back"] - taken["small back"], 1e-9)
    return [
        f"host_bandwidth = {4 * (_LINK - 1) / longest:.4e}",
        f"host_latency_ns = {latency * 1e9:.1f}",
        # The rest of it is for everything else.
        f"host_memory_bytes = {_memory(ranks, _devices.HOST) // 2}",
    ]


def _memory(ranks: Ranks, device: torch.device) -> int:
    if device != _devices.HOST:
        return _devices.memory_of(device)
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024 // ranks.count


def _overlaps(ranks: Ranks, device: torch.device, times: Mapping[str, float]) -> dict[str, float]:
    """By how much operations and a collective beside them are slower, by what operations are limited by; nothing for one rank.

    Both run until the operations are done, which the collective is before. It then took this factor longer, and so did the part of the
    operations beside it.

    Args:
        ranks: all of them take part.
        device: the device.
        times: what a product and a copy take alone, in seconds.
    """
    if ranks.count == 1:
        return {}
    size, elements, _ = _sizes(device)
    matrix, block = torch.randn(size, size, device=device), torch.randn(elements, device=device)
    copy = torch.empty_like(block)
    values, group = torch.zeros(_LARGE, device=device), ranks.group(device.type)

    def collective() -> Any:
        return dist.all_reduce(values, group=group, async_op=True)

    def repeated(operation: Callable[[], object], count: int, beside: bool) -> None:
        started = collective() if beside else None
        for _ in range(count):
            operation()
        if started is not None:
            started.wait()

    operations: dict[str, tuple[Callable[[], object], float]] = {
        "products": (lambda: torch.mm(matrix, matrix), times["f32"]),
        "bytes": (lambda: copy.copy_(block), times["copy"]),
    }
    alone = _timing.typical(ranks, device, {"": lambda: collective().wait()}, 4)[""]
    runs: dict[Any, Callable[[], object]] = {"collective": lambda: collective().wait()}
    for name, (operation, taken) in operations.items():
        # So many that they take longer than the collective by half.
        count = int(ranks.tell(max(1, round(_LONGER * alone / taken))))
        runs |= {(name, beside): functools.partial(repeated, operation, count, beside) for beside in (False, True)}
    taken = _timing.typical(ranks, device, runs, 4)
    longer = {name: taken[name, True] - taken[name, False] for name in operations}
    return {name: max(1.0, 1 + more / taken["collective"]) for name, more in longer.items()}


def description(ranks: Ranks, device: torch.device = _devices.HOST) -> str:
    """A device of this machine, described: the kept description, or a new measurement, which is kept.

    A kept measurement is tried again in part; where the machine is no longer as it was, or was busy then, it is measured anew.
    """
    measured = _measured(ranks, device)
    text = ranks.tell(_native.kept_machine(cache_folder(), measured) if ranks.rank == 0 else None)
    changed = None if text is None else _changed(text, ranks, device)
    if text is None or changed is not None:
        if changed:
            _warn(ranks, f"this machine {changed} as when it was measured, and is measured again")
        text = describe(ranks, device)
        _keep(ranks, device, text)
    return text


def completed(text: str, graph: _native.Graph, mesh: Mapping[str, int], ranks: Ranks, device: torch.device) -> str:
    """A measured description with what the calls of a step's programs and the collectives along a mesh's axes take, measured now as far as
    they are not known, and kept. Without axes, collectives are measured for those of any mesh.
    """
    if not _is_measured(text):
        return text
    computing = {axis: size for axis, size in mesh.items() if axis != STAGES} or {"ranks": ranks.count}
    more = ranks.tell(_links.completed(text, mesh, ranks, device))
    more = with_operations(more, graph, computing, ranks, device, _SECONDS)
    if more != text:
        if _device(more)["spread"] > _UNSTEADY:
            _warn(ranks, "this machine was busy while it was measured: predictions are rough until the next start")
        _keep(ranks, device, more)
    return more


def given(text: str, ranks: Ranks, device: torch.device) -> str:
    """A description that the user gives, for a run here: says so where it was measured on another machine or with another PyTorch."""
    try:
        described = tomllib.loads(text).get("device")
    except tomllib.TOMLDecodeError:  # whoever reads all of it says where
        return text
    said = described.get("measured_on") if isinstance(described, dict) else None
    here = _measured_on(device)
    if said is not None and said != here:
        _warn(
            ranks,
            f"the cluster description was measured on another machine, {said}; this is {here}: predictions are of that one",
        )
    return text


def _measured_on(device: torch.device) -> str:
    """What makes measurements differ, in one line."""
    return ", ".join(line.partition(": ")[2] or line for line in identity(device).splitlines())


def _warn(ranks: Ranks, message: str) -> None:
    if ranks.rank == 0:
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def with_operations(
    text: str, graph: _native.Graph, mesh: Mapping[str, int], ranks: Ranks, device: torch.device, seconds: float
) -> str:
    """A description with what the calls of a step's programs take, and their collectives there, measured now as far as it does not say; the
    same on every rank.
    """
    end = time.monotonic() + seconds
    # What is known now can make other plans better, with calls that are not known yet.
    for _ in range(_MOST_PLANS):
        said = tomllib.loads(text)
        known, in_steps = _operations.Measured.of(said["device"]), InSteps.of(said, _links.layout_in(said, ranks.count))
        place = _operations.Place(ranks, device, mesh, text)
        programs = list(_operations.programs(graph, text, mesh, place.rank))
        if not _operations.measure(known, in_steps, programs, place, end - time.monotonic()):
            break
        head = in_steps.written(text).partition("\n[device.operations")[0].rstrip()
        head = _with_spread(head, known.spread)
        text = ranks.tell("\n".join([head, *known.lines()]) + "\n")
    return text


def profiled_links(
    ranks: Ranks, device: torch.device, known: str | None, nodes: int | None, tell: Callable[[str], None]
) -> str:
    """What `unisono profile --links` writes: a description with what collectives take in groups of many shapes.

    Args:
        ranks: the ranks, all of which measure.
        device: the device.
        known: a description that was measured before, of which everything else stays.
        nodes: how many nodes the ranks are on; as ``torchrun`` started them, if it is not said.
        tell: is told what is measured next.
    """
    layout = _links.layout_of(ranks, nodes)
    if known is None:
        tell("rates")
        known = "\n".join(_device_lines(ranks, device)) + "\n"
    if ranks.count == 1:
        return ranks.tell(_links.with_links(known, ["[links]", *_links.alone()]))
    found = _links.measure(ranks, device, layout, layout.places(), _links.all_sizes(device), tell)
    text = _links.with_links(known, found.lines())
    if _is_measured(text):
        text = _with_spread(text, max(_device(text)["spread"], found.spread))
    return ranks.tell(text)


def profiled(
    ranks: Ranks, device: torch.device, known: str | None, graph: bytes | None, tell: Callable[[str], None]
) -> str:
    """What `unisono profile` writes: a measured description with the operations of a captured step, or of standard ones.

    Args:
        ranks: the ranks, all of which measure.
        device: the device.
        known: a description that was measured before; what it says is not measured again.
        graph: a captured step.
        tell: is told what is measured next.
    """
    tell("rates and links")
    text = known or describe(ranks, device)
    mesh = {"ranks": ranks.count}
    if graph is not None:
        tell("the operations of the step")
        return with_operations(text, _native.Graph(graph), mesh, ranks, device, _SECONDS_OF_PROFILE)
    types = [TORCH_DTYPES[name] for name in _sizes(device)[2] if name != "f16"]
    for name, (step, settings) in _standard_steps.steps(device, types):
        tell(name)
        text = with_operations(text, unisono.capture(step, **settings).native, mesh, ranks, device, _SECONDS_OF_PROFILE)
    return text


def _with_spread(text: str, spread: float) -> str:
    return re.sub(r"^spread = .*$", f"spread = {spread:.3f}", text, flags=re.MULTILINE)


def _device(text: str) -> dict[str, Any]:
    """The device of a description."""
    return tomllib.loads(text)["device"]


def _is_measured(text: str) -> bool:
    """Whether a description was measured, and not written by hand."""
    return "spread" in _device(text)


def _changed(text: str, ranks: Ranks, device: torch.device) -> str | None:
    """What is no longer as a description says, in words, or no words where it was measured on a busy machine; the same on every rank."""
    said = _device(text)
    if not _is_measured(text):
        return None
    if said["spread"] > _UNSTEADY:
        return ""
    off = _differences(said, ranks, device)
    # Once may be a moment in which something else ran.
    off = off and _differences(said, ranks, device)
    return off[0] if off else None


def _differences(said: Mapping[str, Any], ranks: Ranks, device: torch.device) -> list[str]:
    """What a device does much faster or slower than was said of it; the same on every rank."""
    bandwidth, overhead, rates = _figures(_times(ranks, device, _ROUNDS_OF_CHECK)[0], device)
    known = said["matmul_flops"]
    ratios = {
        "reads and writes": bandwidth / said["memory_bandwidth"],
        "begins operations": said["operation_ns"] / overhead,
        **{f"multiplies {name}": rate / known[name] for name, rate in rates.items() if name in known},
    }
    off = [f"{what} {ratio:.2f} times as fast" for what, ratio in ratios.items() if not 1 / _ALIKE < ratio < _ALIKE]
    return ranks.tell(off)


def _keep(ranks: Ranks, device: torch.device, text: str) -> None:
    measured = _measured(ranks, device)
    if ranks.rank == 0:
        _native.keep_machine(cache_folder(), measured, text)


def _measured(ranks: Ranks, device: torch.device) -> tuple[int, int, str]:
    """What a kept measurement is of; every rank must ask."""
    layout = _links.layout_of(ranks)
    nodes = f"\n{layout.nodes} nodes" if layout.has_levels else ""
    return ranks.count, torch.get_num_threads(), identity(device) + nodes


def identity(device: torch.device = _devices.HOST) -> str:
    """What makes measurements differ beside ranks and threads: a home folder may be that of several machines."""
    processors = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")}
    lines = [platform.machine(), *sorted(processors), f"{os.cpu_count()} cores", f"torch {torch.__version__}"]
    return "\n".join(lines if device == _devices.HOST else [*lines, _devices.model_of(device)])
