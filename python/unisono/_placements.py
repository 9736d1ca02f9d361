"""Sharding tensors as placements say, and gathering them again."""

from __future__ import annotations

from collections.abc import Mapping

import torch

#: A placement for each mesh axis along which a tensor is not replicated.
Layout = Mapping[str, str]


def coordinates(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    """The position of a rank along each axis of a mesh, the last one fastest."""
    found = {}
    for axis, size in reversed(list(mesh.items())):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in mesh}


def _parsed(placement: str) -> tuple[int, int]:
    dim, _, blocks = placement.removeprefix("shard(").removesuffix(")").partition(", ")
    return int(dim), int(blocks or 1)


def is_plain(layout: Layout) -> bool:
    """Whether every shard is one piece of the global tensor, and not several blocks."""
    return all(placement == "replicate" or _parsed(placement)[1] == 1 for placement in layout.values())


def plain(layout: Layout) -> Layout:
    """The layout with one piece of the same dimension for each shard."""
    return {axis: p if p == "replicate" else f"shard({_parsed(p)[0]})" for axis, p in layout.items()}


def shard(tensor: torch.Tensor, placement: str, rank: int, ranks: int) -> torch.Tensor:
    """One rank's local tensor of a global one.

    The tensor itself where it is replicated, else dense, with its dimensions in the order in memory of the global tensor; a view where the
    shard is contiguous there.
    """
    if placement == "replicate" or ranks == 1:
        return tensor
    dim, blocks = _parsed(placement)
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    at = order.index(dim)
    opened = tensor.permute(order).unflatten(at, (blocks, ranks, tensor.shape[dim] // blocks // ranks))
    local = opened.select(at + 1, rank).flatten(at, at + 1).contiguous()
    return local.permute([order.index(dim) for dim in range(tensor.dim())])


def to_local(tensor: torch.Tensor, layout: Layout, mesh: Mapping[str, int], rank: int) -> torch.Tensor:
    """One rank's local tensor, as :func:`shard` gives it along each axis of the mesh, the outer one first."""
    for axis, coordinate in coordinates(mesh, rank).items():
        tensor = shard(tensor, layout.get(axis, "replicate"), coordinate, mesh[axis])
    return tensor


def own_local(tensor: torch.Tensor, layout: Layout, mesh: Mapping[str, int], rank: int) -> torch.Tensor:
    """One rank's local tensor, as :func:`to_local` gives it, in memory of its own; the tensor itself where it is replicated."""
    local = to_local(tensor, layout, mesh, rank)
    shares = local.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return local.clone() if shares and local.numel() < tensor.numel() else local


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
    dim, blocks = _parsed(placement)
    opened = [local.unflatten(dim, (blocks, local.shape[dim] // blocks)) for local in shards]
    return torch.stack(opened, dim + 1).flatten(dim, dim + 2)
