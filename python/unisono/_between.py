"""What happens between two steps to tensors that the step has from outside of the model: other values, other tensors in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unisono._capture.inputs import StepInput
from unisono._capture.paths import Path, follow, put, shown
from unisono._placements import Layout, to_local
from unisono._user_tensors import elsewhere
from unisono.errors import StepError

#: What puts shards together again.
Full = Callable[[StepInput, Layout, torch.Tensor], torch.Tensor]


class Constant:
    """A tensor that the step only reads: its values are taken over when they change, and so is another tensor in its place."""

    def __init__(self, root: Any, item: StepInput, shard: torch.Tensor, layout: Layout) -> None:
        """Takes the tensor as it is, and this rank's shard of it."""
        self._root, self.item, self._shard, self._layout = root, item, shard, layout
        self._tensor, self._version = item.tensor, item.tensor._version
        self._shared = shard.data_ptr() == item.tensor.data_ptr() and not layout

    def look(self) -> torch.Tensor:
        """The tensor that is there now; refuses what the step is not made for."""
        current = [follow(self._root, path) for path in self.item.paths]
        found = next((one for one in current if one is not self._tensor), self._tensor)
        if found is not self._tensor and (
            any(one is not found for one in current) or not _is_like(found, self._tensor)
        ):
            raise _changed(self.item.paths, found, self._tensor)
        return found

    def take_over(self, found: torch.Tensor, mesh: Mapping[str, int], rank: int) -> torch.Tensor | None:
        """Brings the shard up to date; another one where the user's memory must not be written into."""
        if found is self._tensor and self._tensor._version == self._version:
            return None
        fresh = None
        if found is not self._tensor and self._shared:
            fresh = self._shard = self._shard.clone()
            self._shared = False
        if not self._shared:
            self._shard.copy_(to_local(found.detach(), self._layout, mesh, rank))
        self._tensor, self._version = found, found._version
        return fresh


class Replaced:
    """State that the step puts anew where the user has it, at every step."""

    def __init__(self, root: Any, item: StepInput, shard: torch.Tensor, layout: Layout) -> None:
        """Takes this rank's shard of it, in memory of its own."""
        self._root, self.item, self.shard, self.layout = root, item, shard, layout
        self.path, self._given, self._version = item.paths[0], item.tensor, item.tensor._version
        self.dropped = False

    def look(self) -> None:
        """Refuses what the user has put in its place, if the step is not made for it."""
        found = follow(self._root, self.path)
        if found is not self._given and not _is_like(found, self.item.tensor) and not (self.dropped and found is None):
            raise _changed((self.path,), found, self.item.tensor)

    def take_over(self, mesh: Mapping[str, int], rank: int) -> None:
        """Takes what the user has put in its place, or written into it, since the last step."""
        found = follow(self._root, self.path)
        if found is not None and not self._is_as_given(found):
            self.shard.copy_(to_local(found.detach(), self.layout, mesh, rank))

    def _is_as_given(self, found: Any) -> bool:
        return found is self._given and found._version == self._version

    def adopt(self, other: Replaced) -> bool:
        """Goes on with the shard of another captured step that had the same before, if it is placed alike."""
        if other.layout != self.layout or not _is_like(other.shard, self.shard):
            return False
        self.shard, self._given, self._version = other.shard, other._given, other._version
        return True

    def drop(self) -> None:
        """Takes away what the user has, as the step does."""
        self.dropped = True
        put(self._root, self.path, None)

    def give_back(self, full: Full) -> None:
        """Puts its values where the user has it, unless the user has put others there since the last step."""
        if not self.dropped:
            values = full(self.item, self.layout, self.shard)
            if self._is_as_given(follow(self._root, self.path)):
                self.give(values)

    def give(self, full: torch.Tensor | None) -> None:
        """Puts a tensor where the user has it: its values, or what stands for them while each rank has its shard only."""
        self._given = elsewhere(self.item.tensor, shown(self.path)) if full is None else full
        self._version = self._given._version
        put(self._root, self.path, self._given)


class Between:
    """All tensors that a step has from outside of the model."""

    def __init__(
        self,
        root: Any,
        state: Sequence[tuple[StepInput, Layout, torch.Tensor]],
        replaced: set[Path],
        left: Sequence[Path],
        gradients: Sequence[str],
        dropped: Sequence[Path] = (),
    ) -> None:
        """Takes the state as it is bound.

        Args:
            root: what paths start from.
            state: inputs, their layouts, and this rank's shards.
            replaced: the paths to state that the step replaces.
            left: where what the step returns behind its own is to be put.
            gradients: the parameters that get gradients, which the step returns behind that.
            dropped: paths to gradients that the step takes away.
        """
        parameters = {item.name: item.tensor for item, _, _ in state if item.cls == "parameter"}
        self._gradients = [parameters[name] for name in gradients]
        self._root, self._left, self._dropped = root, list(left), list(dropped)
        self._constants = [
            (position, Constant(root, item, shard, layout))
            for position, (item, layout, shard) in enumerate(state)
            if item.cls == "constant" and item.paths
        ]
        self._replaced = [
            (position, Replaced(root, item, shard, layout))
            for position, (item, layout, shard) in enumerate(state)
            if item.cls == "buffer" and item.paths and item.paths[0] in replaced
        ]

    def look(self) -> list[torch.Tensor]:
        """The constants that there are now; refuses what has become something that the step is not made for."""
        for _, one in self._replaced:
            one.look()
        return [constant.look() for _, constant in self._constants]

    def adopt(self, other: Between, full: Full) -> dict[int, torch.Tensor]:
        """Goes on where another captured step is; shards that are to be bound anew, by their position in the state."""
        mine = {one.path: (position, one) for position, one in self._replaced}
        fresh = {}
        for _, theirs in other._replaced:
            position, one = mine.get(theirs.path, (0, None))
            if other._root == self._root and one is not None and one.adopt(theirs):
                fresh[position] = one.shard
            elif theirs.layout:
                theirs.give_back(full)
        return fresh

    @torch.no_grad()
    def before_step(self, found: Sequence[torch.Tensor], mesh: Mapping[str, int], rank: int) -> dict[int, torch.Tensor]:
        """Takes over what has changed; shards that are to be bound anew, by their position in the state."""
        for _, one in self._replaced:
            one.take_over(mesh, rank)
        pairs = zip(self._constants, found, strict=True)
        fresh = {position: constant.take_over(one, mesh, rank) for (position, constant), one in pairs}
        return {position: shard for position, shard in fresh.items() if shard is not None}

    @torch.no_grad()
    def after_step(self, returned: list[torch.Tensor], ranks: int) -> list[torch.Tensor]:
        """Puts what the step keeps and leaves where the user has it; what is left of what it returned."""
        for _, one in self._replaced:
            one.dropped = False
            one.give(one.shard.clone() if ranks == 1 or not one.layout else None)
        own = len(returned) - len(self._left) - len(self._gradients)
        gradients = own + len(self._left)
        for path, tensor in zip(self._left, returned[own:gradients], strict=True):
            put(self._root, path, tensor)
        for parameter, gradient in zip(self._gradients, returned[gradients:], strict=True):
            parameter.grad = gradient
        for _, one in self._replaced:
            if one.path in self._dropped:
                one.drop()
        return returned[:own]

    def replaced(self) -> list[tuple[str, torch.Tensor]]:
        """What the step replaces, but for gradients, as the user has it now, by its name."""
        kept = [one for _, one in self._replaced if not one.dropped and not one.item.is_gradient]
        return [(one.item.name, follow(self._root, one.path)) for one in kept]

    def sync(self, full: Full) -> None:
        """Gives the user the values of all that the step replaces."""
        for _, one in self._replaced:
            one.give_back(full)


def _is_like(found: Any, expected: torch.Tensor) -> bool:
    if not isinstance(found, torch.Tensor):
        return False
    return (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)


def _changed(paths: Sequence[Path], found: Any, before: torch.Tensor) -> StepError:
    is_tensor = isinstance(found, torch.Tensor)
    now = f"a tensor of {found.dtype} of shape {list(found.shape)}" if is_tensor else f"a {type(found).__name__}"
    if _is_like(found, before):
        now = "another tensor, while the step has the same one from elsewhere too"
    names = " and ".join(f"`{shown(path)}`" for path in paths)
    return StepError(
        f"{names} {'is' if len(paths) == 1 else 'are'} {now}",
        code="U0122",
        cause=f"it was a tensor of {before.dtype} of shape {list(before.shape)} when the step was captured",
        hint="keep its shape and type, or call `sync` and then `parallelize` again",
    )
