"""Whether the ranks of a mesh issue the same collectives in the same order, so that none waits for another for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from unisono._placements import STAGES, coordinates
from unisono._ranks import Ranks

_NONE = "0" * 32


def prints_of(order: Mapping[str, str], mesh: Mapping[str, int]) -> list[str]:
    """The fingerprints of a graph's ``issue_order()``: of all its collectives, and of those along each axis."""
    return [order.get("", _NONE), *(order.get(f"axis:{axis}", _NONE) for axis in mesh)]


def alike(everyone: Sequence[Sequence[str]], mesh: Mapping[str, int]) -> bool:
    """Whether these fingerprints of all ranks say so: those of a group start the same collectives with the same sizes.

    Ranks at one place along the innermost axis have the same program, but for pipeline stages, which have programs of their own. At another
    place, where shards may be of another size, collectives along the axes outside may be others.
    """
    known: dict[tuple[object, ...], str] = {}
    innermost = next((axis for axis in reversed([*mesh]) if axis != STAGES), STAGES)
    for rank, (whole, *along) in enumerate(everyone):
        place = coordinates(mesh, rank)
        seen = [known.setdefault(("", place.get(STAGES), place[innermost]), whole) == whole]
        for axis, own in zip(mesh, along, strict=True):
            group = tuple((name, at) for name, at in place.items() if name != axis or axis == STAGES)
            seen.append(known.setdefault((axis, group), own) == own)
        if not all(seen):
            return False
    return True


def same_order(ranks: Ranks, order: Mapping[str, str], mesh: Mapping[str, int]) -> bool:
    """Whether all ranks of this rank's pipeline stage start the same collectives in the same order, as do those of every other.

    A collective: every rank passes the ``issue_order()`` of its graph.
    """
    if ranks.count == 1:
        return True
    mine = torch.tensor([list(one.encode()) for one in prints_of(order, mesh)], dtype=torch.uint8)
    return alike([[bytes(row).decode() for row in one.tolist()] for one in ranks.gathered(mine)], mesh)
