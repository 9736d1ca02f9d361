"""What happens between two steps to tensors that the step has from outside of the model: other values, other tensors in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from unisono._capture.inputs import StepInput
from unisono._capture.paths import Path, follow, put, shown
from unisono._placements import Layout, part_of
from unisono._user_tensors import elsewhere
from unisono.errors import StepError


class Constant:
    """A tensor that the step only reads: its values are taken over when they change, and so is another tensor in its place."""

    def __init__(self, root: Any, item: StepInput, part: torch.Tensor, layout: Layout) -> None:
        """Takes the tensor as it is, and this rank's part of it."""
        self._root, self._item, self._part, self._layout = root, item, part, layout
        self._tensor, self._version = item.tensor, item.tensor._version
        self._shared = part.data_ptr() == item.tensor.data_ptr() and not layout

    def take_over(self, mesh: Mapping[str, int], rank: int) -> torch.Tensor | None:
        """Brings the part up to date; another one where the user's memory must not be written into."""
        current = [follow(self._root, path) for path in self._item.paths]
        found = next((one for one in current if one is not self._tensor), self._tensor)
        if found is self._tensor and self._tensor._version == self._version:
            return None
        if any(one is not found for one in current) or not _is_like(found, self._tensor):
            raise _changed(self._item.paths, found, self._tensor)
        fresh = None
        if found is not self._tensor and self._shared:
            fresh = self._part = self._part.clone()
            self._shared = False
        if not self._shared:
            self._part.copy_(part_of(found.detach(), self._layout, mesh, rank))
        self._tensor, self._version = found, found._version
        return fresh


class Replaced:
    """State that the step puts anew where the user has it, at every step."""

    def __init__(self, root: Any, item: StepInput, part: torch.Tensor, layout: Layout) -> None:
        """Takes this rank's part of it, in memory of its own."""
        self._root, self.item, self.part, self.layout = root, item, part, layout
        self._path, self._given, self._version = item.paths[0], item.tensor, item.tensor._version

    def take_over(self, mesh: Mapping[str, int], rank: int) -> None:
        """Takes what the user has put in its place, or written into it, since the last step."""
        found = follow(self._root, self._path)
        if found is self._given and found._version == self._version:
            return
        if not _is_like(found, self.item.tensor):
            raise _changed((self._path,), found, self.item.tensor)
        self.part.copy_(part_of(found.detach(), self.layout, mesh, rank))

    def give(self, whole: torch.Tensor | None) -> None:
        """Puts a tensor where the user has it: its values, or what stands for them while each rank has its part only."""
        self._given = elsewhere(self.item.tensor, shown(self._path)) if whole is None else whole
        self._version = self._given._version
        put(self._root, self._path, self._given)


class Between:
    """All tensors that a step has from outside of the model."""

    def __init__(
        self,
        root: Any,
        state: Sequence[tuple[StepInput, Layout, torch.Tensor]],
        replaced: set[Path],
        left: Sequence[Path],
        gradients: Sequence[str],
    ) -> None:
        """Takes the state as it is bound.

        Args:
            root: what paths start from.
            state: inputs, their layouts, and this rank's parts.
            replaced: the paths to state that the step replaces.
            left: where what the step returns behind its own is to be put.
            gradients: the parameters that get gradients, which the step returns behind that.
        """
        parameters = {item.name: item.tensor for item, _, _ in state if item.cls == "parameter"}
        self._gradients = [parameters[name] for name in gradients]
        self._root, self._left = root, list(left)
        self._constants = [
            (position, Constant(root, item, part, layout))
            for position, (item, layout, part) in enumerate(state)
            if item.cls == "constant" and item.paths
        ]
        self._replaced = [
            Replaced(root, item, part, layout)
            for item, layout, part in state
            if item.cls == "buffer" and item.paths and item.paths[0] in replaced
        ]

    @torch.no_grad()
    def before_step(self, mesh: Mapping[str, int], rank: int) -> dict[int, torch.Tensor]:
        """Takes over what has changed; parts that are to be bound anew, by their position in the state."""
        for one in self._replaced:
            one.take_over(mesh, rank)
        fresh = {position: constant.take_over(mesh, rank) for position, constant in self._constants}
        return {position: part for position, part in fresh.items() if part is not None}

    @torch.no_grad()
    def after_step(self, returned: list[torch.Tensor], ranks: int) -> list[torch.Tensor]:
        """Puts what the step keeps and leaves where the user has it; what is left of what it returned."""
        for one in self._replaced:
            one.give(one.part.clone() if ranks == 1 or not one.layout else None)
        own = len(returned) - len(self._left) - len(self._gradients)
        gradients = own + len(self._left)
        for path, tensor in zip(self._left, returned[own:gradients], strict=True):
            put(self._root, path, tensor)
        for parameter, gradient in zip(self._gradients, returned[gradients:], strict=True):
            parameter.grad = gradient
        return returned[:own]

    def sync(self, whole: Callable[[StepInput, Layout, torch.Tensor], torch.Tensor]) -> None:
        """Gives the user the values of all that the step replaces."""
        for one in self._replaced:
            one.give(whole(one.item, one.layout, one.part))


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
