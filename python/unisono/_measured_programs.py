"""Programs of a step run on tensors of their own, with every instruction timed: what each operation and each collective takes."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unisono import _devices, _native
from unisono._capture.wire import TORCH_DTYPES
from unisono._executor import Executor, lower_graph
from unisono._message import unpack
from unisono._ranks import Ranks
from unisono.errors import UnisonoError

#: How often a program runs before it is timed, and how often then.
_WARM, _ROUNDS = 2, 7
#: Which numbers tensors of state and of the batch are filled with: no further from 0 than this, so that nothing grows in a few steps.
_SMALL = 0.02

#: An operator with overload, and the main element type of a call.
Kind = tuple[str, str]
#: Floating-point operations, bytes, and tensors of a call.
Amounts = tuple[float, int, int]
#: A kind of collective, an axis of the mesh, and bytes.
Collective = tuple[str, str, int]


@dataclass(frozen=True)
class Computed:
    """What was measured of a program without collectives, the mean over ranks, in nanoseconds.

    Attributes:
        calls: of each operation, by what it does.
        whole: of all of it, on this rank.
        spread: how far apart the rounds were, as a part of their median.
    """

    calls: dict[Kind, dict[Amounts, float]]
    whole: float
    spread: float


@dataclass(frozen=True)
class Exchanged:
    """What was measured of the collectives of a program, the mean over ranks, in nanoseconds.

    Attributes:
        collectives: of each collective, from when the last rank comes to it, with what operations take longer because of it.
        late: by axis, for each collective the time since ranks last met, and how much later than a rank the last one comes to it.
        spread: how far apart the rounds were, as a part of their median.
    """

    collectives: dict[Collective, float]
    late: dict[str, list[tuple[float, float]]]
    spread: float


class Running:
    """A program on tensors of its own. All ranks run theirs at once."""

    def __init__(
        self, graph: _native.Graph, ranks: Ranks, device: torch.device, groups: Mapping[str, str] | None = None
    ) -> None:
        """Takes a program without collectives, or with ``groups``: the names of process groups by the graph's symbolic ones."""
        self.graph, self.ranks, self.device, self._groups = graph, ranks, device, groups

    def warmed(self) -> bool:
        """Runs the program for the first times; whether all ranks could: its numbers are not the step's, and a matrix may be singular."""
        failed = None
        try:
            self.program = lower_graph(self.graph, self._groups, device=self.device)
            self.executor = Executor(self.program)
            state, self.inputs = filled(self.graph, self.device)
            self.executor.bind(state)
            for _ in range(_WARM):
                self.executor(self.inputs)
            _devices.synchronise(self.device)
        except (UnisonoError, RuntimeError) as error:
            if self._groups is not None:  # others wait for it, and are to end too
                raise
            failed = error
        everyone = self.ranks.gathered(torch.tensor([failed is None])) if self.ranks.count > 1 else [failed is None]
        if failed is not None:
            words = f"a program of the step could not be measured, so that predictions are rougher: {failed}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return all(everyone)

    def computed(self) -> Computed:
        """Runs a program without collectives some times more, and says what its operations took."""
        walls, timed = self._recorded()
        whole = float(np.median(walls))
        # What no instruction says is in between, and so is what a rank waits for a core.
        factor = max(1.0, whole / max(timed.computing(()), 1.0)) if self.ranks.count > 1 else 1.0
        calls: defaultdict[tuple[Kind, Amounts], list[float]] = defaultdict(list)
        for position, call in enumerate(self.graph.amounts()):
            if call is not None:
                operator, dtype, flops, size, count = call
                # What has no instruction of a step was done once, before the first.
                calls[(operator, dtype), (flops, size, count)].append(timed.typical(position) * factor)
        found: defaultdict[Kind, dict[Amounts, float]] = defaultdict(dict)
        for (operation, amounts), nanos in _mean(calls, self.ranks).items():
            found[operation][amounts] = nanos
        return Computed(dict(found), whole, self._spread(walls))

    def exchanged(self, alone: float) -> Exchanged:
        """Runs a program with its collectives some times more, and says what these took.

        Args:
            alone: what the program takes without them, in nanoseconds.
        """
        walls, timed = self._recorded()
        collectives = self.graph.collectives() or []
        waits, before = timed.exchanges([positions for *_, positions in collectives])
        computing = float(np.median(walls - waits.sum(0)))
        taken, late = self._met(collectives, waits, before)
        # Behind a collective operations find less in caches, and what it has brought in none; and where ranks share cores, one has more of
        # them while others wait. That is of collectives, in proportion to what they take.
        mine = torch.tensor([computing - alone, float(np.median(waits.sum(0)))])
        longer, waiting = torch.stack(self.ranks.gathered(mine)).sum(0).tolist()
        factor = max(0.0, 1.0 + longer / max(waiting, 1.0))
        return Exchanged({key: nanos * factor for key, nanos in taken.items()}, late, self._spread(walls))

    def _recorded(self) -> tuple[np.ndarray, _Timed]:
        """What each of some rounds took until the last rank was done, in nanoseconds, and what its instructions took."""
        rounds, walls = [], []
        for _ in range(_ROUNDS):
            self.ranks.meet()
            met = time.perf_counter()
            self.ranks.meet()
            start = time.perf_counter()
            _, records = self.executor.record(self.inputs, self.device)
            _devices.synchronise(self.device)
            alone = time.perf_counter() - start
            # Until the last rank is done, where ranks share cores and get them in turns, less what it takes to meet.
            self.ranks.meet()
            wall = max(alone, time.perf_counter() - start - (start - met)) * 1e9
            # Before the first instruction and behind the last one is what it takes to give and to record them.
            walls.append(wall - max(0.0, alone * 1e9 - _spanned(records)))
            rounds.append(records)
        return np.array(walls), _Timed(self.program.nodes(), rounds)

    def _spread(self, walls: np.ndarray) -> float:
        return self.ranks.tell(float((np.sort(walls)[_ROUNDS // 2 + 1] - walls.min()) / np.median(walls)))

    def _met(
        self, collectives: Sequence[tuple[str, str, int, list[int]]], waits: np.ndarray, before: np.ndarray
    ) -> tuple[dict[Collective, float], dict[str, list[tuple[float, float]]]]:
        """What collectives take from when the last rank comes to them, and how late that is, of what each rank has measured."""
        if not collectives:
            return {}, {}
        everyone = [torch.stack(self.ranks.gathered(torch.from_numpy(own))).numpy() for own in (waits, before)]
        last = everyone[0].min(0)
        # Since ranks met for the collective before: the rest of it, and what they have computed.
        since = everyone[1] + np.concatenate([np.zeros_like(last[:1]), last[:-1]])
        late, since = _typical((everyone[0] - last).mean(0)), _typical(since.mean(0))
        taken: defaultdict[Collective, list[float]] = defaultdict(list)
        points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for number, ((kind, axis, size, _), nanos) in enumerate(zip(collectives, _typical(last), strict=True)):
            if nanos > 0:
                taken[kind, axis, size].append(float(nanos))
                points[axis].append((float(since[number]), float(late[number])))
        return {key: statistics.median(times) for key, times in taken.items()}, dict(points)


def _typical(times: np.ndarray) -> np.ndarray:
    """The medians over rounds, so that their sum is that of a typical round: some are long in each, and not the same ones."""
    medians = np.median(times, axis=1)
    return medians * (np.median(times.sum(0)) / max(medians.sum(), 1.0))


class _Timed:
    """What instructions took in some rounds, by the position of their operation in the program, in nanoseconds."""

    def __init__(self, nodes: list[int | None], rounds: list[list[tuple[int, int, int]]]) -> None:
        #: Of each operation and round the start, the end, and how long it was worked on, which may be in several parts.
        self._spans: dict[int, np.ndarray] = {}
        #: When each round began.
        self._begins = np.array([min((start for _, start, _ in records), default=0) for records in rounds], float)
        for number, records in enumerate(rounds):
            for index, start, duration in records:
                node = nodes[index]
                if node is not None:
                    span = self._spans.setdefault(node, np.tile([[np.inf], [0.0], [0.0]], len(rounds)))[:, number]
                    span[:] = min(span[0], start), max(span[1], start + duration), span[2] + duration

    def __contains__(self, position: int) -> bool:
        return position in self._spans

    def typical(self, position: int) -> float:
        """The median of an operation."""
        return float(np.median(self._spans[position][2])) if position in self else 0.0

    def computing(self, collectives: Sequence[tuple[str, str, int, list[int]]]) -> float:
        """The sum of all operations that are none of these."""
        between = {at for *_, positions in collectives for at in positions}
        return sum(self.typical(position) for position in self._spans if position not in between)

    def exchanges(self, collectives: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """For collectives, by the positions of what starts them and waits for them, what a rank spends in each, and before it since the one
        before or the beginning: two arrays by collective and round.
        """
        shape = len(collectives), len(self._begins)
        waits, before, last = np.zeros(shape), np.zeros(shape), self._begins
        for number, positions in enumerate(collectives):
            if not any(at in self for at in positions):
                continue  # done once, before the first
            spans = np.stack([self._spans[at] for at in positions if at in self])
            waits[number], before[number] = spans[:, 2].sum(0), np.maximum(spans[:, 0].min(0) - last, 0.0)
            last = spans[:, 1].max(0)
        return waits, before


def _spanned(records: list[tuple[int, int, int]]) -> float:
    """The nanoseconds from the begin of the first instruction of a round to the end of the last one."""
    begin = min((start for _, start, _ in records), default=0)
    return max((start + duration for _, start, duration in records), default=0) - begin


def _mean(times: Mapping[Any, list[float]], ranks: Ranks) -> dict[Any, float]:
    """By key the median of nanoseconds, the mean over ranks of what rank 0 has measured and all others have too."""
    typical = {key: statistics.median(nanos) for key, nanos in times.items()}
    if ranks.count == 1:
        return typical
    keys = [_hashable(key) for key in ranks.tell(list(typical))]
    mine = torch.tensor([typical.get(key, float("nan")) for key in keys])
    return dict(zip(keys, torch.stack(ranks.gathered(mine)).nanmean(0).tolist(), strict=True))


def _hashable(key: Any) -> Any:
    return tuple(_hashable(one) for one in key) if isinstance(key, (list, tuple)) else key


def filled(graph: _native.Graph, device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
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


def bytes_of(graph: _native.Graph) -> int:
    """About what a program takes: its inputs twice, since it may write them anew, and the largest of what it makes."""
    message = unpack(graph.message())["graph"]
    sizes = [_size(value["type"]) for value in message["values"]]
    return 2 * sum(sizes[item["value"]] for item in message["inputs"]) + 4 * max(sizes, default=0)


def _size(kind: Mapping[str, Any]) -> int:
    return int(np.prod(kind["shape"])) * TORCH_DTYPES[kind["dtype"]].itemsize
