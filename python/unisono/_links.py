"""What collectives take between ranks, measured in groups of several shapes and for messages of several sizes.

A shape says how a group lies on the nodes: ``(2, 4)`` is two ranks of each of four nodes, ``(2, 1)`` two ranks of one node; where all ranks
are of one node, ``(2,)`` is two ranks. All ranks are measured at once, in as many groups of a shape as they make, because that is how the
axes of a mesh use them.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from unisono import _devices, _native, _timing, errors
from unisono._ranks import Ranks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Sizes of messages, in bytes: in `unisono profile --links` on a host and on an accelerator, and where a session measures what it needs.
_SIZES = tuple(256 * 8**k for k in range(6))
_LARGE_SIZES = tuple(256 * 8**k for k in range(8))
QUICK_SIZES = (1 << 10, 1 << 16, 1 << 22)

#: Kinds of collectives that every group has, and that of two ranks alone.
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
_TRANSFER = "transfer"
#: Those of which the levels' coefficients are fitted: the rings.
_RINGS = ("all_reduce", "all_gather", "reduce_scatter")

#: How long the calls of one kind and size take in a round, in seconds, and how many there are at most.
_ROUND, _MOST_CALLS = 0.01, 20
#: The bandwidth of what takes no time that can be measured.
_BOUNDLESS = 1e12

Shape = tuple[int, ...]
#: A mesh, and the axis of it whose groups have a shape.
Place = tuple[Mapping[str, int], str]
#: Seconds by bytes of the tensor.
Rows = dict[int, float]
#: Rows by kind of collective.
Measured = dict[str, Rows]


@dataclass(frozen=True)
class Layout:
    """How ranks lie on nodes, which hold as many each, one after the other."""

    ranks: int
    nodes: int = 1

    @property
    def of_node(self) -> int:
        """How many ranks a node holds."""
        return self.ranks // self.nodes

    @property
    def has_levels(self) -> bool:
        """Whether some groups of ranks share a node and others do not."""
        return 1 < self.nodes < self.ranks

    def shapes(self) -> list[Shape]:
        """Groups of one node, of one rank of each node, and of as many ranks of each node."""
        if not self.has_levels:
            return [(count,) for count in _divisors(self.ranks)]
        inside = _divisors(self.of_node)
        within = [(count, 1) for count in inside]
        between = [(1, count) for count in _divisors(self.nodes)]
        return [*within, *between, *((count, self.nodes) for count in inside)]

    def shape_of(self, ranks: int, stride: int) -> Shape | None:
        """The shape of an axis of a mesh of all ranks; none where its nodes are not alike."""
        if not self.has_levels:
            return (ranks,)
        if self.of_node % stride and stride % self.of_node:
            return None
        members = min(max(self.of_node // stride, 1), ranks)
        return (members, ranks // members) if ranks % members == 0 else None

    def places(self) -> dict[Shape, Place]:
        """All shapes, each on a mesh of its own."""
        return {shape: (self.mesh(shape), "group") for shape in self.shapes()}

    def along(self, mesh: Mapping[str, int]) -> dict[str, Shape]:
        """The shape of the groups along each axis of a mesh of all ranks, the innermost first; without axes whose nodes are not alike."""
        shapes: dict[str, Shape] = {}
        stride = 1
        for axis, size in reversed(list(mesh.items())):
            shape = self.shape_of(size, stride)
            if size > 1 and shape is not None:
                shapes[axis] = shape
            stride *= size
        return shapes

    def axes(self, mesh: Mapping[str, int]) -> dict[Shape, Place]:
        """The shapes of the axes of a mesh of all ranks, each on its innermost axis."""
        places: dict[Shape, Place] = {}
        for axis, shape in self.along(mesh).items():
            places.setdefault(shape, (mesh, axis))
        return places

    def mesh(self, shape: Shape) -> dict[str, int]:
        """A mesh of all ranks whose axis ``group`` has groups of a shape."""
        size = int(np.prod(shape))
        within = self.of_node // shape[0] if self.has_levels and shape[1] > 1 else 1
        axes = {"beside": self.ranks // size // within, "group": size, "within": within}
        return {axis: size for axis, size in axes.items() if size > 1}


def _divisors(number: int) -> list[int]:
    return [count for count in range(2, number + 1) if number % count == 0]


def layout_of(ranks: Ranks, nodes: int | None = None) -> Layout:
    """How the ranks lie on nodes: as is said, or as ``torchrun`` started them."""
    if nodes is not None:
        return on_nodes(ranks.count, nodes)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count))
    place = torch.tensor([local, int(os.environ.get("LOCAL_RANK", ranks.rank))])
    places = [one.tolist() for one in ranks.gathered(place)] if ranks.count > 1 else [place.tolist()]
    is_even = all(place == [local, rank % local] for rank, place in enumerate(places)) and ranks.count % local == 0
    return Layout(ranks.count, ranks.count // local if is_even else 1)


def on_nodes(ranks: int, nodes: int) -> Layout:
    """So many ranks on so many nodes.

    Raises:
        ConfigurationError: the nodes would not hold as many ranks each.
    """
    if ranks % nodes:
        raise errors.ConfigurationError(
            f"{ranks} ranks on {nodes} nodes",
            code="U0205",
            hint="nodes hold as many ranks each: say a number of nodes that divides the number of ranks",
        )
    return Layout(ranks, nodes)


def all_sizes(device: torch.device) -> tuple[int, ...]:
    """The sizes of messages that `unisono profile --links` measures on a device."""
    return _SIZES if device == _devices.HOST else _LARGE_SIZES


@dataclass
class Found:
    """What was measured by shape, and how far apart repeats were, as a part of their median."""

    layout: Layout
    groups: dict[Shape, Measured]
    spread: float = 0.0

    def group_lines(self) -> list[str]:
        """The tables of the groups in a cluster description."""
        lines: list[str] = []
        for shape, kinds in self.groups.items():
            lines += ["", "[[groups]]", f"shape = {list(shape)}"]
            lines += [f"{kind} = {{ {_curve(kind, rows, shape)} }}" for kind, rows in kinds.items()]
        return lines

    def lines(self) -> list[str]:
        """The tables of a cluster description: links or a network by levels, and the groups."""
        first = _network_lines(self) if self.layout.has_levels else ["[links]", *self.link_lines()]
        return [*first, *self.group_lines()]

    def link_lines(self) -> list[str]:
        """The coefficients of all ranks."""
        kinds = self.groups[self.layout.ranks,]
        return [f"{kind} = {{ {_line(kind, kinds[kind], self.layout.ranks)[0]} }}" for kind in _KINDS[:4]]


def measure(
    ranks: Ranks,
    device: torch.device,
    layout: Layout,
    places: Mapping[Shape, Place],
    sizes: Sequence[int],
    tell: Callable[[str], None] = lambda _: None,
) -> Found:
    """Measures groups of some shapes. All ranks must ask for the same."""
    found, spreads = Found(layout, {}), []
    for shape, place in places.items():
        tell(f"links: {_words(shape)}")
        group = _Group(ranks, device, place)
        runs = {(kind, size): group.run(kind, size) for kind in group.kinds() for size in group.sizes(sizes)}
        once = _timing.rounds(ranks, device, runs, dict.fromkeys(runs, 1), 1)
        often = [min(max(int(_ROUND / max(times[0], 1e-9)), 1), _MOST_CALLS) for times in once.values()]
        calls = dict(zip(runs, ranks.tell(often), strict=True))
        kinds: Measured = {}
        for (kind, size), times in _timing.rounds(ranks, device, runs, calls, _timing.ROUNDS).items():
            taken = sorted(ranks.tell(times))
            kinds.setdefault(kind, {})[size] = statistics.median(taken)
            # Without the slowest rounds: a single moment in which something else ran is in no median.
            spreads.append((taken[len(taken) // 2 + 1] - taken[0]) / statistics.median(taken))
        found.groups[shape] = kinds
    found.spread = statistics.median(spreads) if spreads else 0.0
    return found


def _words(shape: Shape) -> str:
    if len(shape) == 1:
        return f"groups of {shape[0]}"
    inside, nodes = shape
    return f"groups of {inside} of a node" if nodes == 1 else f"groups of {inside} of each of {nodes} nodes"


class _Group:
    """This rank's group of a shape, with what its collectives read and write."""

    def __init__(self, ranks: Ranks, device: torch.device, place: Place) -> None:
        named: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009 - not in torch's type stubs
        self.group = named(ranks.groups(place[0], device.type)[place[1]])
        self.members = dist.get_process_group_ranks(self.group)
        self.count, self.place = len(self.members), self.members.index(ranks.rank)
        self.device = device
        self.sent = self.received = torch.empty(0)

    def kinds(self) -> tuple[str, ...]:
        return (*_KINDS, _TRANSFER) if self.count == 2 else _KINDS

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        """Sizes of tensors that ranks can have equal parts of, of elements of four bytes; the largest first needs memory for it."""
        elements = [max(size // 4 // self.count, 1) * self.count for size in sizes]
        self.sent = torch.zeros(max(elements), device=self.device)
        self.received = torch.zeros_like(self.sent)
        return [4 * count for count in elements]

    def run(self, kind: str, size: int) -> Callable[[], object]:
        """One collective on a tensor of so many bytes."""
        # Newer releases of PyTorch have other names for these two.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        elements, group = size // 4, self.group
        full, other = self.sent[:elements], self.received[:elements]
        part = other[: elements // self.count]
        one_to_one: list[list[int]] = [[0] * self.count, [0] * self.count]
        one_to_one[0][(self.place - 1) % self.count] = one_to_one[1][(self.place + 1) % self.count] = elements
        return {
            "all_reduce": lambda: dist.all_reduce(full, group=group),
            "all_gather": lambda: all_gather(full, part, group=group),
            "reduce_scatter": lambda: reduce_scatter(part, full, group=group),
            "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
            "permute": lambda: dist.all_to_all_single(other, full, *one_to_one, group=group),
            _TRANSFER: lambda: dist.broadcast(full, self.members[0], group=group),
        }[kind]


def _line(kind: str, rows: Rows, ranks: int) -> tuple[str, float]:
    """The coefficients of a latency and a bandwidth for what a rank sends, and their median error."""
    sent = np.array(list(rows), float) * _native.collective_sent(kind, ranks)
    seconds = np.array(list(rows.values()))
    columns = np.stack([np.ones(len(sent)), sent], 1)
    latency, byte = _native.least_squares((columns / seconds[:, None]).tolist(), [1.0] * len(sent))
    if byte <= 0:
        byte = 1 / _BOUNDLESS
    error = float(np.median(np.abs(columns @ np.array([latency, byte]) / seconds - 1)))
    return f"latency_ns = {latency * 1e9:.1f}, bandwidth = {1 / byte:.4e}", error


def _curve(kind: str, rows: Rows, shape: Shape) -> str:
    line, error = _line(kind, rows, int(np.prod(shape)))
    measured = ", ".join(f"[{size}, {seconds * 1e9:.1f}]" for size, seconds in sorted(rows.items()))
    return f"{line}, error = {error:.3f}, measured = [{measured}]"


#: A device for descriptions of which only the network counts.
_ANY_DEVICE = """version = 1
[device]
name = "any"
memory_bytes = 1
memory_bandwidth = 1.0
operation_ns = 0.0
matmul_flops = { f32 = 1.0 }
"""


def _network_lines(found: Found) -> list[str]:
    """A network of two levels, whose coefficients are the least squares of relative errors of rings that lie on one of them."""
    columns, seconds = [], []
    for shape, kinds in found.groups.items():
        inside, nodes = shape
        if inside > 1 and nodes > 1:
            continue
        count, level = (inside, 0) if nodes == 1 else (nodes, 1)
        for kind, rows in kinds.items():
            for size, taken in rows.items() if kind in _RINGS else ():
                row = [1.0, 0.0, 0.0, 0.0, 0.0]
                row[1 + 2 * level] = (count - 1) * (2 if kind == "all_reduce" else 1)
                row[2 + 2 * level] = size * _native.collective_sent(kind, count)
                columns.append(np.array(row) / taken)
                seconds.append(taken)
    start, *levels = _native.least_squares([row.tolist() for row in columns], [1.0] * len(seconds))
    ranks = {"node": found.layout.of_node, "fabric": found.layout.ranks}
    lines = ["[network]", f"start_ns = {start * 1e9:.1f}", "tree_share = 0.0"]
    for (name, count), hop, byte in zip(ranks.items(), levels[::2], levels[1::2], strict=True):
        bandwidth = 1 / max(byte, 1 / _BOUNDLESS)
        lines += ["", "[[network.levels]]", f'name = "{name}"', f"ranks = {count}", f"bandwidth = {bandwidth:.4e}"]
        # One protocol for all sizes: what differs is in the groups.
        lines += [f"{small}hop_ns = {hop * 1e9:.1f}" for small in ("", "small_")]
        lines.append(f"small_bandwidth = {bandwidth:.4e}")
    lines.insert(3, f"error = {_error(found, lines):.3f}")
    return lines


def _error(found: Found, lines: Sequence[str]) -> float:
    """The median of how far the levels alone are from what was measured."""
    text = _ANY_DEVICE + "\n".join(lines)
    wrong = []
    for shape, kinds in found.groups.items():
        mesh = list(found.layout.mesh(shape).items())
        for kind, rows in kinds.items():
            for size, seconds in rows.items():
                wrong.append(abs(_native.collective_ns(text, mesh, "group", kind, size) / (seconds * 1e9) - 1))
    return statistics.median(wrong)


#: The head of a table of a description.
_TABLE = re.compile(r'^\[\[?[A-Za-z"]', re.MULTILINE)
#: Where operations begin.
_OPERATIONS = "\n[device.operations"


def with_links(text: str, lines: Sequence[str]) -> str:
    """A description with what was measured between ranks, in place of what it says of that."""
    return inserted(without(text, "links|network|groups|in_steps"), lines)


def without(text: str, names: str) -> str:
    """A description without tables of some names, of which ``names`` is a regular expression."""
    starts = [match.start() for match in _TABLE.finditer(text)]
    head = text[: starts[0]] if starts else text
    tables = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    named = re.compile(rf"\[\[?({names})\b")
    return head + "".join(table for table in tables if not named.match(table))


def inserted(text: str, lines: Sequence[str]) -> str:
    """A description with further lines before its operations."""
    head, operations, rest = text.partition(_OPERATIONS)
    return f"{head.rstrip()}\n\n" + "\n".join(lines).strip() + "\n" + operations + rest


def completed(text: str, mesh: Mapping[str, int], ranks: Ranks, device: torch.device) -> str:
    """A measured description with groups as the axes of a mesh have them, or as those of any mesh where it has none.

    Those that are not known are measured now.
    """
    if ranks.count == 1:
        return text
    said = tomllib.loads(text)
    layout = layout_in(said, ranks.count)
    places = layout.axes(mesh) if mesh else layout.places()
    known = {tuple(group["shape"]) for group in said.get("groups", [])}
    wanted = {shape: place for shape, place in places.items() if shape not in known}
    # One axis of all ranks is what the links say.
    if not wanted or (not known and list(wanted) == [(ranks.count,)]):
        return text
    return inserted(text, measure(ranks, device, layout, wanted, QUICK_SIZES).group_lines())


def layout_in(said: Mapping[str, Any], ranks: int) -> Layout:
    """How a description has ranks on nodes."""
    levels = said.get("network", {}).get("levels", [])
    return Layout(ranks, ranks // levels[0]["ranks"] if levels else 1)


def alone() -> list[str]:
    """The links of a single rank, which uses none."""
    return [f"{kind} = {{ latency_ns = 1000.0, bandwidth = 1e12 }}" for kind in _KINDS[:4]]
