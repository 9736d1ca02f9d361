"""Sharding tensors as placements say, and gathering them again."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

#: The mesh axis of pipeline stages: a placement ``stage(0, 2)`` along it says which of them hold a tensor.
STAGES = "stages"

#: A placement for each mesh axis along which a tensor is not replicated.
Layout = Mapping[str, str]


def coordinates(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    """The position of a rank along each axis of a mesh, the last one fastest."""
    found = {}
    for axis, size in reversed(list(mesh.items())):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in mesh}


@dataclass(frozen=True)
class _Sharding:
    """What ``shard(DIM, BLOCKS, CHUNK)`` says: of each of its equal blocks a dimension is dealt out in chunks, as ``torch.chunk`` does."""

    dim: int
    blocks: int = 1
    #: What a rank has of a block, as long as there is any; 0 for the size of a block over the number of ranks, rounded up.
    chunk: int = 0

    def part(self, size: int, rank: int, ranks: int) -> tuple[int, int]:
        """Where in each block of a dimension of this size a rank's shard begins, and how long it is."""
        block = size // self.blocks
        chunk = self.chunk or -(-block // ranks)
        start = min(rank * chunk, block)
        return start, min(chunk, block - start)


@functools.cache
def _parsed(placement: str) -> _Sharding:
    numbers = placement.removeprefix("shard(").removesuffix(")").split(",")
    return _Sharding(*(int(number) for number in numbers))


def holders(placement: str) -> list[int] | None:
    """The stages that hold a tensor of which a placement along the axis of stages says so; ``None`` for another placement."""
    if not placement.startswith("stage("):
        return None
    return [int(stage) for stage in placement.removeprefix("stage(").removesuffix(")").split(",")]


def is_plain(layout: Layout) -> bool:
    """Whether every rank has one piece of the global tensor, as ``DTensor`` deals them out: no blocks or other chunks, and not none."""
    return all(
        p == "replicate" or (holders(p) is None and _parsed(p) == _Sharding(_parsed(p).dim)) for p in layout.values()
    )


def plain(layout: Layout) -> Layout:
    """The layout with one piece of the same dimension for each shard, on every stage."""
    return {
        axis: p if p == "replicate" else f"shard({_parsed(p).dim})" for axis, p in layout.items() if holders(p) is None
    }


def without_stages(layout: Layout) -> Layout:
    """The layout on a stage that holds the tensor."""
    return {axis: p for axis, p in layout.items() if holders(p) is None}


def is_held(layout: Layout, mesh: Mapping[str, int], rank: int) -> bool:
    """Whether a rank is on a stage that holds a tensor."""
    on = holders(layout.get(STAGES, "replicate"))
    return on is None or coordinates(mesh, rank)[STAGES] in on


def shard(tensor: torch.Tensor, placement: str, rank: int, ranks: int) -> torch.Tensor:
    """One rank's local tensor of a global one.

    The tensor itself where it is replicated, else dense, with its dimensions in the order in memory of the global tensor; a view where the
    shard is contiguous there. Without an element on a stage that does not hold it.
    """
    if placement == "replicate" or ranks == 1:
        return tensor
    on = holders(placement)
    if on is not None:
        return tensor if rank in on else tensor.new_empty(0)
    one = _parsed(placement)
    if one.dim == 0 and one.blocks == 1 and tensor.is_contiguous():  # what most batches are, at each step
        return tensor.narrow(0, *one.part(tensor.shape[0], rank, ranks))
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    at = order.index(one.dim)
    opened = tensor.permute(order).unflatten(at, (one.blocks, tensor.shape[one.dim] // one.blocks))
    local = opened.narrow(at + 1, *one.part(tensor.shape[one.dim], rank, ranks)).flatten(at, at + 1).contiguous()
    return local.permute([order.index(dim) for dim in range(tensor.dim())])


def to_local(tensor: torch.Tensor, layout: Layout, mesh: Mapping[str, int], rank: int) -> torch.Tensor:
    """One rank's local tensor, as :func:`shard` gives it along each axis of the mesh, the outer one first."""
    if not is_held(layout, mesh, rank):
        return tensor.new_empty(0)
    for axis, coordinate in coordinates(mesh, rank).items():
        tensor = shard(tensor, layout.get(axis, "replicate"), coordinate, mesh[axis])
    return tensor


def own_local(tensor: torch.Tensor, layout: Layout, mesh: Mapping[str, int], rank: int) -> torch.Tensor:
    """One rank's local tensor, as :func:`to_local` gives it, in memory of its own; the tensor itself where it is replicated."""
    local = to_local(tensor, layout, mesh, rank)
    shares = local.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    gives_up = local.numel() < tensor.numel() or bool(layout)
    return local.clone() if shares and gives_up else local


def local_shape(shape: Sequence[int], layout: Layout, mesh: Mapping[str, int], rank: int) -> torch.Size:
    """The shape of a global tensor's local one, on a stage that holds it; rank 0 has the largest."""
    sizes = list(shape)
    for axis, coordinate in coordinates(mesh, rank).items():
        placement = without_stages(layout).get(axis, "replicate")
        if placement != "replicate":
            one = _parsed(placement)
            sizes[one.dim] = one.blocks * one.part(sizes[one.dim], coordinate, mesh[axis])[1]
    return torch.Size(sizes)


def full_tensor(shards: list[torch.Tensor], layout: Layout, mesh: Mapping[str, int]) -> torch.Tensor:
    """The global tensor from the local ones of all ranks of the mesh, the innermost axis first."""
    for axis, size in reversed(list(mesh.items())):
        placement = layout.get(axis, "replicate")
        shards = [unshard(shards[first : first + size], placement) for first in range(0, len(shards), size)]
    return shards[0]


def unshard(shards: list[torch.Tensor], placement: str) -> torch.Tensor:
    """The global tensor from the local ones of all ranks."""
    if placement == "replicate" or len(shards) == 1:
        return shards[0]
    on = holders(placement)
    if on is not None:
        return shards[on[0]]
    one = _parsed(placement)
    opened = [local.unflatten(one.dim, (one.blocks, local.shape[one.dim] // one.blocks)) for local in shards]
    return torch.cat(opened, one.dim + 1).flatten(one.dim, one.dim + 1)


@dataclass(frozen=True)
class Piece:
    """A piece of a global tensor: where it begins there and in this rank's local tensor, and how large it is."""

    offsets: tuple[int, ...]
    local_offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, local: torch.Tensor) -> torch.Tensor:
        """The piece, a view of this rank's local tensor."""
        for dim, (start, size) in enumerate(zip(self.local_offsets, self.sizes, strict=True)):
            local = local.narrow(dim, start, size)
        return local


def pieces(shape: Sequence[int], layout: Layout, mesh: Mapping[str, int], rank: int) -> list[Piece]:
    """The pieces of a global tensor that make one rank's local one."""
    if not is_held(layout, mesh, rank):
        return []
    spans = [[(0, size)] for size in shape]
    for axis, coordinate in coordinates(mesh, rank).items():
        placement = layout.get(axis, "replicate")
        if placement != "replicate" and axis != STAGES:
            one = _parsed(placement)
            size = sum(size for _, size in spans[one.dim])
            first, part = one.part(size, coordinate, mesh[axis])
            starts = [block * (size // one.blocks) + first for block in range(one.blocks)]
            spans[one.dim] = [span for start in starts for span in _within(spans[one.dim], start, part)]
    ends = [[0, *itertools.accumulate(size for _, size in dim)] for dim in spans]
    found = []
    for chosen in itertools.product(*(range(len(dim)) for dim in spans)):
        picked = [spans[dim][number] for dim, number in enumerate(chosen)]
        local_offsets = tuple(ends[dim][number] for dim, number in enumerate(chosen))
        found.append(Piece(tuple(start for start, _ in picked), local_offsets, tuple(size for _, size in picked)))
    return found


def _within(spans: Sequence[tuple[int, int]], start: int, length: int) -> list[tuple[int, int]]:
    """What of spans, laid side by side, is between `start` and `start + length`: where each begins, and how long it is."""
    found: list[tuple[int, int]] = []
    at = 0
    for begin, size in spans:
        low, high = max(start, at), min(start + length, at + size)
        if low < high:
            found.append((begin + low - at, high - low))
        at += size
    return found
