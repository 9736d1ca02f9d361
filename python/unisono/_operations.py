"""What single operations take, and collectives between them, measured where they run: in the programs of a step under a few plans.

Each program runs a few times with every instruction timed. What one call takes is put down beside what it does (floating-point operations,
bytes, tensors), and each operator gets coefficients for calls that were not measured.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from unisono import _devices, _native
from unisono._in_steps import InSteps
from unisono._issue_order import same_order
from unisono._measured_programs import Amounts, Kind, Running, bytes_of
from unisono._message import pack
from unisono._ranks import Ranks
from unisono.errors import UnisonoError

#: The part of the free memory that a program's measurement may take.
_SHARE = 0.5


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

    def add(self, calls: Mapping[Kind, Mapping[Amounts, float]]) -> None:
        """Adds what calls took. Each program was measured at a moment of its own, so what is known already counts as much."""
        for kind, rows in calls.items():
            known = self.calls.setdefault(kind, {})
            known.update({amounts: (known.get(amounts, nanos) + nanos) / 2 for amounts, nanos in rows.items()})

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


class Programs(NamedTuple):
    """What ranks run of a step under one plan.

    Attributes:
        alone: the program of rank 0 without collectives.
        whole: this rank's program.
    """

    alone: _native.Graph
    whole: _native.Graph


def programs(graph: _native.Graph, cluster: str, mesh: Mapping[str, int], rank: int = 0) -> Iterator[Programs]:
    """What runs of a step under plans of different families: the calls that a search may meet."""
    whole, cut = dict.fromkeys(mesh, "replicate"), dict.fromkeys(mesh, "shard(0)")
    families = [{}, {"batch.*": cut}, {"batch.*": whole, "params.*": cut}, {"batch.*": cut, "params.*": cut}]
    for pins in families if max(mesh.values(), default=1) > 1 else families[:1]:
        try:
            settings = {"mesh": dict(mesh), "pins": pins, "effort": "quick"}
            plan = graph.plan(cluster, pack(settings))
        except UnisonoError:  # nothing to cut
            continue
        whole = graph.program(plan, rank)[0]
        first = whole if rank == 0 else graph.program(plan, 0)[0]
        yield Programs(first.without_collectives(), whole)


@dataclass(frozen=True)
class Place:
    """Where programs are measured.

    Attributes:
        ranks: the ranks, all of which take part.
        device: the device.
        mesh: the axes of the ranks, or of those of one pipeline stage.
        text: the cluster description, which says what collectives take alone.
    """

    ranks: Ranks
    device: torch.device
    mesh: Mapping[str, int]
    text: str

    @property
    def rank(self) -> int:
        """The number of this rank in the mesh; all stages run the same programs."""
        return self.ranks.rank % math.prod(self.mesh.values())

    def together(self, program: _native.Graph) -> _native.Graph | None:
        """A rank's program as it runs with its collectives, one after the other; ``None`` where it cannot be measured so."""
        # On an accelerator nothing that ranks share is in the way, and what collectives take there is measured alone.
        # Groups are those of all ranks: what the ranks of a stage exchange is measured alone too.
        is_of_a_stage = math.prod(self.mesh.values()) != self.ranks.count
        if self.ranks.count == 1 or self.device != _devices.HOST or is_of_a_stage:
            return None
        # What the router of experts gives to whom does not follow from made-up numbers.
        collectives = program.collectives()
        kinds = [] if collectives is None else [(kind, axis) for kind, axis, *_ in collectives]
        # Each with that of the same number on all other ranks, some of which may have more where shards are unequal.
        are_alike = self.ranks.agree(hashlib.blake2b(repr(kinds).encode(), digest_size=8).hexdigest())
        are_alike = same_order(self.ranks, program.issue_order(), self.mesh) and are_alike
        return program.waiting_at_once() if kinds and are_alike else None

    def groups(self) -> dict[str, str]:
        """The names of process groups by the symbolic ones of programs."""
        return {f"axis:{axis}": name for axis, name in self.ranks.groups(self.mesh, self.device.type).items()}


def measure(known: Measured, in_steps: InSteps, found: Iterable[Programs], place: Place, seconds: float) -> bool:
    """Adds what calls of programs take that nothing is known of, all ranks running theirs at once. All ranks must pass as many programs.

    Stops before a program when `seconds` are over and something is known, and leaves out programs that need too much memory.

    Returns:
        Whether anything was added.
    """
    ranks, device = place.ranks, place.device
    end, added = time.monotonic() + seconds, False
    states = _devices.generator_states(device)
    try:
        for alone, whole in found:
            together = place.together(whole)
            fits = bytes_of(alone) * ranks.count <= _SHARE * _free(device)
            lacks = known.lacks(alone) or (together is not None and in_steps.lacks(together, place.mesh))
            wanted = lacks and fits and (time.monotonic() < end or not known.calls)
            if not ranks.tell(wanted):
                continue
            # Without collectives first: what fails on made-up numbers is to leave no rank waiting for another.
            running = Running(alone, ranks, device)
            if not running.warmed():
                continue
            computed = running.computed()
            known.add(computed.calls)
            known.spread = max(known.spread, computed.spread)
            if together is not None:
                running = Running(together, ranks, device, place.groups())
                running.warmed()
                exchanged = running.exchanged(computed.whole)
                in_steps.add(exchanged, place.text, place.mesh)
                known.spread = max(known.spread, exchanged.spread)
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
