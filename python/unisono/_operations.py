"""What single operations take, measured where they run: in the programs of a step under a few plans, without their collectives.

Each program runs a few times with every instruction timed. What one call takes is put down beside what it does (floating-point operations,
bytes, tensors), and each operator gets coefficients for calls that were not measured: the least squares of relative errors over
coefficients that are not negative.
"""

from __future__ import annotations

import itertools
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
#: Sizes of caches that are tried, in bytes; 0 where a byte takes as long in any amount.
_CACHES = (0, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
#: By how much a coefficient more must make the error smaller.
_WORTH = 0.95
#: The mean square of relative errors below which only rounding is left.
_EXACT = 1e-12
#: Measured sizes that are apart by less than this factor say little of others: a smaller and a larger call are supposed then, which count
#: so much beside a measured one. The larger one is so many times as large, and has so many bytes at least.
_RANGE, _SUPPOSED, _FAR, _LARGE = 16, 0.1, 64, 1 << 26
#: How many times as long as one on hardly any data a call takes whose time is that of its data.
_BY_DATA = 5
#: How much worse coefficients may tell what was measured that are right for larger calls.
_AS_GOOD = 2.0
#: The part of a device's rate of products from which on a call is held up by its products.
_NEAR = 0.5
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

    def of(self, amounts: Amounts, dtype: str) -> float:
        """Nanoseconds of a call."""
        flops, size, _ = amounts
        rate = self.flops.get(dtype) or min(self.flops.values())
        return self.operation_ns + max(size / self.bandwidth, flops / rate) * 1e9


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
    timed = {amounts: nanos for amounts, nanos in rows.items() if nanos > 0}
    if not timed:
        return {}
    free, least = _fitted_from(timed, dtype, rates), _least_flop(timed, rates.flops.get(dtype))
    bounded = _fitted_from(timed, dtype, rates, least) if least else free
    return (bounded if bounded.left <= free.left * _AS_GOOD else free).coefficients


@dataclass(frozen=True)
class _Fit:
    """Coefficients of an operator by their names, and the mean square of the relative errors that they leave."""

    coefficients: dict[str, float]
    left: float


def _fitted_from(timed: Mapping[Amounts, float], dtype: str, rates: Rates, least_flop: float = 0.0) -> _Fit:
    """The coefficients that tell calls best, of which a floating-point operation takes so many nanoseconds at least."""
    amounts, nanos = np.array(list(timed), float), np.array(list(timed.values()))
    supposed = _supposed(timed, dtype, rates)
    told = np.array([*timed, *supposed])
    times = np.array([*timed.values(), *supposed.values()])
    weights = np.array([1.0] * len(timed) + [_SUPPOSED] * len(supposed))
    least = np.array([0.0, least_flop, 0.0, 0.0, 0.0])
    best = None
    for cache in _CACHES:
        columns = _columns(told, cache)
        wanted = weights * (1 - columns @ least / times)
        coefficients, error = least_squares(columns * (weights / times)[:, None], wanted)
        if best is None or error < best.left * _WORTH:
            coefficients = coefficients + least
            start, flop, byte, uncached, tensor = (float(f"{number:.4g}") for number in coefficients)
            wrong = np.abs(_columns(amounts, cache) @ coefficients / nanos - 1)
            found = {
                "start_ns": start,
                "flop_ps": _picos(flop),
                "byte_ps": _picos(byte),
                "cached_bytes": cache if uncached else 0,
                "uncached_byte_ps": _picos(uncached),
                "tensor_ps": _picos(tensor),
                "error": round(float(np.median(wrong)), 3),
            }
            best = _Fit(found, error)
    assert best is not None
    return best


def _least_flop(timed: Mapping[Amounts, float], rate: float | None) -> float:
    """The least nanoseconds of a floating-point operation in any call, where some call comes near to a device's rate of products.

    That of the fastest call: calls that were measured may be told well by their bytes alone, and larger ones would be much too fast.
    """
    fastest = max(flops / nanos for (flops, _, _), nanos in timed.items())
    return 1 / fastest if rate is not None and fastest * 1e9 > _NEAR * rate else 0.0


def _columns(amounts: np.ndarray, cache: int) -> np.ndarray:
    """What each coefficient is multiplied by."""
    beyond = np.maximum(0, amounts[:, 1] - cache) if cache else np.zeros(len(amounts))
    # The tensors of a call tell nothing where all calls have as many.
    tensors = amounts[:, 2] if np.ptp(amounts[:, 2]) else np.zeros(len(amounts))
    return np.stack([np.ones(len(amounts)), amounts[:, 0], amounts[:, 1], beyond, tensors], 1)


def _supposed(rows: Mapping[Amounts, float], dtype: str, rates: Rates) -> dict[Amounts, float]:
    """Calls much smaller and much larger than those that were measured, where these are nearly of one size.

    A call that takes much longer than an operation on hardly any data takes that long for its data; another for its start.
    """
    sizes = [max(size, 1) for _, size, _ in rows]
    if max(sizes) >= _RANGE * min(sizes):
        return {}
    (flops, size, count), nanos = max(rows.items(), key=lambda row: row[0][1])
    factor = max(_FAR, _LARGE / max(size, 1))
    small, large = (0.0, 0, count), (flops * factor, int(size * factor), count)
    if nanos > _BY_DATA * rates.operation_ns:
        return {small: rates.operation_ns, large: (nanos - rates.operation_ns) * factor}
    return {small: nanos, large: rates.of(large, dtype)}


def _picos(nanos: float) -> float:
    return float(f"{nanos * 1e3:.4g}")


def least_squares(columns: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, float]:
    """Coefficients, none negative, with which the columns come nearest to what is wanted, and the mean square of what is left; as few as
    serve."""
    scale = columns.max(0, initial=0)
    scaled = columns / np.where(scale > 0, scale, 1)
    found, least = np.zeros(len(scale)), float(np.mean(wanted**2))
    for size in range(1, min(columns.shape) + 1):
        for chosen in map(list, itertools.combinations(np.flatnonzero(scale), size)):
            some, *_ = np.linalg.lstsq(scaled[:, chosen], wanted, rcond=None)
            error = float(np.mean((scaled[:, chosen] @ some - wanted) ** 2))
            if least > _EXACT and error < least * _WORTH and (some >= 0).all():
                found, least = np.zeros(len(scale)), error
                found[chosen] = some / scale[chosen]
    return found, least


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
