"""Rows of experts, of which each rank has those of its own: the operations of the executor.

How many rows a rank has is known when the router has run. The host reads it once for each layer, as ``bounds``: where the rows of each rank
begin, in the order of the experts, and where the last ones end. All else is computed of these on the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define("group_bounds(Tensor offsets, int ranks, int size) -> Tensor")
_LIBRARY.define("own_rows(Tensor(a) self, Tensor bounds, int dim, int rank) -> Tensor(a)")
_LIBRARY.define("among_zeros(Tensor self, Tensor bounds, int dim, int rank, int size) -> Tensor")
_LIBRARY.define("deal_columns(Tensor self, int dim, int ranks) -> Tensor")
_LIBRARY.define("join_columns(Tensor self, int dim, int ranks) -> Tensor")
_LIBRARY.define("for_each_rank(Tensor self, int ranks) -> Tensor")
_LIBRARY.define("exchange_rows(Tensor self, Tensor bounds, str exchange, int size, int rank, str group_name) -> Tensor")
_LIBRARY.define(
    "product_of_groups(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"
)

#: The size of a dimension that is as long as the offsets say.
_ANY = -1


def splits(bounds: Sequence[int], exchange: str, size: int, rank: int) -> tuple[list[int], list[int]]:
    """How many rows a rank sends to each and receives from each.

    Args:
        bounds: where the rows of each rank's groups begin, and where the last ones end.
        exchange: what is exchanged for what, as the graph says it.
        size: how many rows there are in all, where that is known before.
        rank: the rank.
    """
    ranks = len(bounds) - 1
    of_each = [end - start for start, end in itertools.pairwise(bounds)]
    own = [of_each[rank]] * ranks
    if exchange == "groups to whole":
        return own, of_each
    if exchange == "whole to groups":
        return of_each, own
    shard = -(-size // ranks)
    shards = [min(number * shard, size) for number in range(ranks + 1)]
    to_groups = _common(shards[rank : rank + 2], bounds)
    to_shards = _common(bounds[rank : rank + 2], shards)
    return (to_groups, to_shards) if exchange == "shards to groups" else (to_shards, to_groups)


def _common(own: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """How much of each interval between bounds lies within an own one."""
    first, last = own
    return [max(0, min(end, last) - max(start, first)) for start, end in itertools.pairwise(bounds)]


@torch.library.impl(_LIBRARY, "group_bounds", "CompositeExplicitAutograd")
def _group_bounds(offsets: torch.Tensor, ranks: int, size: int) -> torch.Tensor:
    ends = [0, *offsets.tolist()]
    groups = -(-len(offsets) // ranks)
    bounds = [ends[min(number * groups, len(offsets))] for number in range(ranks + 1)]
    if size != _ANY:
        # What no group has belongs to the last.
        bounds[ranks] = size
    return torch.tensor(bounds)


@torch.library.impl(_LIBRARY, "own_rows", "CompositeExplicitAutograd")
def _own_rows(self: torch.Tensor, bounds: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
    start, end = bounds.tolist()[rank : rank + 2]
    return self.narrow(dim, start, end - start)


@torch.library.impl(_LIBRARY, "among_zeros", "CompositeExplicitAutograd")
def _among_zeros(self: torch.Tensor, bounds: torch.Tensor, dim: int, rank: int, size: int) -> torch.Tensor:
    where = bounds.tolist()
    shape = list(self.shape)
    shape[dim] = where[-1] if size == _ANY else size
    made = self.new_zeros(shape)
    made.narrow(dim, where[rank], self.shape[dim]).copy_(self)
    return made


@torch.library.impl(_LIBRARY, "deal_columns", "CompositeExplicitAutograd")
def _deal_columns(self: torch.Tensor, dim: int, ranks: int) -> torch.Tensor:
    return torch.cat(self.chunk(ranks, dim))


@torch.library.impl(_LIBRARY, "join_columns", "CompositeExplicitAutograd")
def _join_columns(self: torch.Tensor, dim: int, ranks: int) -> torch.Tensor:
    return torch.cat(self.split([self.shape[0] // ranks] * ranks), dim)


@torch.library.impl(_LIBRARY, "for_each_rank", "CompositeExplicitAutograd")
def _for_each_rank(self: torch.Tensor, ranks: int) -> torch.Tensor:
    return torch.cat([self] * ranks)


@torch.library.impl(_LIBRARY, "exchange_rows", "CompositeExplicitAutograd")
def _exchange_rows(
    self: torch.Tensor, bounds: torch.Tensor, exchange: str, size: int, rank: int, group_name: str
) -> torch.Tensor:
    sent, received = splits(bounds.tolist(), exchange, size, rank)
    return torch.ops._c10d_functional.all_to_all_single(self, received, sent, group_name)


@torch.library.impl(_LIBRARY, "product_of_groups", "CompositeExplicitAutograd")
def _product_of_groups(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product of groups; of no rows at all without the kernel, which refuses them on CUDA (pytorch#192497)."""
    if self.numel():
        return torch.ops.aten._grouped_mm(self, mat2, offs, bias, out_dtype)
    groups = () if mat2.dim() == 3 or offs is None else (len(offs),)
    return self.new_zeros((*groups, self.shape[0], mat2.shape[-1]), dtype=out_dtype)
