"""What single operations take, measured where they run: in the programs of a step under a few plans, without their collectives.

Each program runs a few times with every instruction timed. What one call takes is put down beside what it does (floating-point operations,
bytes, tensors), and each operator gets coefficients for calls that were not measured.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from unisono import _devices, _native
from unisono._capture.wire import TORCH_DTYPES
from unisono._executor import Executor, lower_graph
from unisono._message import pack, unpack
from unisono._ranks import Ranks
from unisono.errors import UnisonoError

#: How often a program runs before it is timed, and how often then.
_WARM, _ROUNDS = 2, 5
#: Which numbers tensors of state and of the batch are filled with: no further from 0 than this, so that nothing grows in a few steps.
_SMALL = 0.02
#: The part of the free memory that a program's measurement may take.
_SHARE = 0.5

#: An operator with overload, and the main element type of a call.
Kind = tuple[str, str]
#: Floating-point operations, bytes, and tensors of a call.
Amounts = tuple[float, int, int]


@dataclass(frozen=True)
class Rates:
    """What is known of a device without its operations: where few sizes were measured, others are taken to tend to it.

    Attributes:
        operation_ns: nanoseconds of an operation on hardly any data.
        bandwidth: bytes a second.
        flops: floating-point operations a second of products, by element type.
    """

    operation_ns: float
    bandwidth: float
    flops: Mapping[str, float]


@dataclass
class Measured:
    """What was measured: nanoseconds of calls, and how far apart repeats of a program were, as a part of their median."""

    rates: Rates
    calls: dict[Kind, dict[Amounts, float]] = field(default_factory=dict)
    spread: float = 0.0

    @classmethod
    def of(cls, device: Mapping[str, Any]) -> Measured:
        """What the ``device`` table of a cluster description says."""
        rates = Rates(device["operation_ns"], device["memory_bandwidth"], device["matmul_flops"])
        found = cls(rates, spread=device.get("spread", 0.0))
        for operator, fits in device.get("operations", {}).items():
            for dtype, fit in fits.items():
                rows = {(float(flops), size, count): nanos for flops, size, count, nanos in fit["measured"]}
                found.calls[operator, dtype] = rows
        return found

    def lacks(self, graph: _native.Graph) -> bool:
        """Whether a graph has calls that nothing is known of."""
        wanted = (call for call in graph.amounts() if call is not None)
        return any((flops, *rest) not in self.calls.get((op, dtype), {}) for op, dtype, flops, *rest in wanted)

    def lines(self) -> Iterator[str]:
        """The tables of a cluster description."""
        for (operator, dtype), rows in sorted(self.calls.items()):
            yield f'\n[device.operations."{operator}".{dtype}]'
            yield from (f"{name} = {value!r}" for name, value in fitted(rows, dtype, self.rates).items() if value)
            yield "measured = ["
            for (flops, size, count), nanos in sorted(rows.items()):
                yield f"  [{flops!r}, {size}, {count}, {nanos:.1f}],"
            yield "]"


def fitted(rows: Mapping[Amounts, float], dtype: str, rates: Rates) -> dict[str, float]:
    """Coefficients of an operator from the nanoseconds of its calls; their names are those of a cluster description."""
    calls = [(*amounts, nanos) for amounts, nanos in rows.items()]
    known = (rates.operation_ns, rates.bandwidth, rates.flops.get(dtype), min(rates.flops.values()))
    found = dict(_native.fitted(calls, known))
    return {**found, "cached_bytes": int(found["cached_bytes"])}


def programs(graph: _native.Graph, cluster: str, mesh: Mapping[str, int]) -> Iterator[_native.Graph]:
    """What rank 0 runs of a step under plans of different families, without collectives: the calls that a search may meet."""
    whole, cut = dict.fromkeys(mesh, "replicate"), dict.fromkeys(mesh, "shard(0)")
    families = [{}, {"batch.*": cut}, {"batch.*": whole, "params.*": cut}, {"batch.*": cut, "params.*": cut}]
    for pins in families if max(mesh.values(), default=1) > 1 else families[:1]:
        try:
            settings = {"mesh": dict(mesh), "pins": pins, "effort": "quick"}
            plan = graph.plan(cluster, pack(settings))
        except UnisonoError:  # nothing to cut
            continue
        yield graph.program(plan, 0)[0].without_collectives()


def measure(
    known: Measured, graphs: Iterable[_native.Graph], ranks: Ranks, device: torch.device, seconds: float
) -> bool:
    """Adds what calls of graphs take that nothing is known of, all ranks running theirs at once. All ranks must pass as many graphs.

    Stops before a graph when `seconds` are over and something is known, and leaves out graphs that need too much memory.

    Returns:
        Whether anything was added.
    """
    end, added = time.monotonic() + seconds, False
    states = _devices.generator_states(device)
    try:
        for graph in graphs:
            fits = _bytes_of(graph) * ranks.count <= _SHARE * _free(device)
            wanted = known.lacks(graph) and fits and (time.monotonic() < end or not known.calls)
            if not ranks.tell(wanted):
                continue
            running = _Running(graph, ranks, device)
            if not running.warmed():
                continue
            calls, spread = running.recorded()
            for kind, rows in calls.items():
                known.calls.setdefault(kind, {}).update(rows)
            known.spread = max(known.spread, spread)
            added = True
    finally:
        _devices.set_generator_states(device, states)
    return added


def _free(device: torch.device) -> int:
    """Bytes that are free for this process's machine, or on its device."""
    if device.type == "cpu":
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return _devices.memory_of(device)


def _bytes_of(graph: _native.Graph) -> int:
    """About what a program takes: its inputs twice, since it may write them anew, and the largest of what it makes."""
    message = unpack(graph.message())["graph"]
    sizes = [_size(value["type"]) for value in message["values"]]
    return 2 * sum(sizes[item["value"]] for item in message["inputs"]) + 4 * max(sizes, default=0)


def _size(kind: Mapping[str, Any]) -> int:
    return int(np.prod(kind["shape"])) * TORCH_DTYPES[kind["dtype"]].itemsize


class _Running:
    """A program on tensors of its own."""

    def __init__(self, graph: _native.Graph, ranks: Ranks, device: torch.device) -> None:
        self.graph, self.ranks, self.device = graph, ranks, device

    def warmed(self) -> bool:
        """Runs the program for the first times; whether all ranks could: its numbers are not the step's, and a matrix may be singular."""
        failed = None
        try:
            self.program = lower_graph(self.graph, device=self.device)
            self.executor = Executor(self.program)
            state, self.inputs = _filled(self.graph, self.device)
            self.executor.bind(state)
            for _ in range(_WARM):
                self.executor(self.inputs)
            _devices.synchronise(self.device)
        except (UnisonoError, RuntimeError) as error:
            failed = error
        everyone = self.ranks.gathered(torch.tensor([failed is None])) if self.ranks.count > 1 else [failed is None]
        if failed is not None:
            words = f"a program of the step could not be measured, so that predictions are rougher: {failed}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return all(everyone)

    def recorded(self) -> tuple[dict[Kind, dict[Amounts, float]], float]:
        """The nanoseconds of each call, the mean over ranks, and how far apart the rounds were."""
        rounds, walls = [], []
        for _ in range(_ROUNDS):
            _meet(self.ranks)
            met = time.perf_counter()
            _meet(self.ranks)
            start = time.perf_counter()
            _, records = self.executor.record(self.inputs, self.device)
            _devices.synchronise(self.device)
            alone = time.perf_counter() - start
            # Until the last rank is done, where ranks share cores and get them in turns, less what it takes to meet.
            _meet(self.ranks)
            walls.append(max(alone, time.perf_counter() - start - (start - met)) * 1e9)
            rounds.append(records)
        by_node = _medians(self.program.nodes(), rounds)
        wall = statistics.median(walls)
        factor = max(1.0, wall / max(sum(by_node.values()), 1.0)) if self.ranks.count > 1 else 1.0
        found: defaultdict[Kind, defaultdict[Amounts, list[float]]] = defaultdict(lambda: defaultdict(list))
        for position, call in enumerate(self.graph.amounts()):
            if call is not None:
                operator, dtype, flops, size, count = call
                # What has no instruction of a step was done once, before the first.
                found[operator, dtype][flops, size, count].append(by_node.get(position, 0.0) * factor)
        calls = {
            kind: {amounts: statistics.median(nanos) for amounts, nanos in rows.items()} for kind, rows in found.items()
        }
        spread = (sorted(walls)[_ROUNDS // 2 + 1] - min(walls)) / wall
        return _mean(calls, self.ranks), self.ranks.tell(spread)


def _medians(nodes: list[int | None], rounds: list[list[tuple[int, int, int]]]) -> dict[int, float]:
    """The median over rounds of what all instructions of each operation take, by its position in the program."""
    taken: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(rounds))
    for number, records in enumerate(rounds):
        for index, _, duration in records:
            node = nodes[index]
            if node is not None:
                taken[node][number] += duration
    return {node: statistics.median(nanos) for node, nanos in taken.items()}


def _meet(ranks: Ranks) -> None:
    if ranks.count > 1:
        dist.barrier(ranks.group("cpu"))


def _mean(calls: dict[Kind, dict[Amounts, float]], ranks: Ranks) -> dict[Kind, dict[Amounts, float]]:
    """The mean over ranks of what rank 0 has measured and all others have too."""
    if ranks.count == 1:
        return calls
    keys = [(kind, amounts) for kind, rows in calls.items() for amounts in rows]
    keys = [((op, dtype), (flops, size, count)) for (op, dtype), (flops, size, count) in ranks.tell(keys)]
    mine = torch.tensor([calls.get(kind, {}).get(amounts, float("nan")) for kind, amounts in keys])
    means = torch.stack(ranks.gathered(mine)).nanmean(0).tolist()
    found: dict[Kind, dict[Amounts, float]] = {}
    for (kind, amounts), nanos in zip(keys, means, strict=True):
        found.setdefault(kind, {})[amounts] = nanos
    return found


def _filled(graph: _native.Graph, device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors for the inputs of a graph: those of its state, and those that are passed at each step."""
    message = unpack(graph.message())["graph"]
    state, inputs = [], []
    for item in message["inputs"]:
        lives_on = item["class"] in ("parameter", "buffer", "optimizer", "constant")
        # Products of numbers of one sign take less power, and are faster than those of a step. Second moments and variances have none.
        signed = item["class"] in ("parameter", "batch")
        (state if lives_on else inputs).append(_tensor(message["values"][item["value"]]["type"], device, signed))
    return state, inputs


def _tensor(kind: Mapping[str, Any], device: torch.device, signed: bool) -> torch.Tensor:
    dtype, shape, strides = TORCH_DTYPES[kind["dtype"]], kind["shape"], kind["strides"]
    place = _devices.HOST if kind["device"]["kind"] == "cpu" else device
    size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if all(shape) else 0
    if dtype.is_floating_point:
        numbers = torch.rand(size, device=place) * _SMALL
        return (numbers - _SMALL / 2 if signed else numbers).to(dtype).as_strided(shape, strides)
    return torch.zeros(size, dtype=dtype, device=place).as_strided(shape, strides)
