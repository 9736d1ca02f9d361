"""The state of a session: the tensors that its captured steps share, this rank's shards of them, and where the user has them.

State that only an update reads may be on the host: its shard is in pinned memory there, and the user's tensor has no memory until `sync`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unisono import _devices, _host
from unisono._capture.inputs import StepInput
from unisono._capture.optimizer import state_of
from unisono._placements import Layout, full_tensor, is_held, local_shape, own_local, to_local
from unisono._ranks import Ranks
from unisono._user_tensors import UserTensor, close_doors


@dataclass
class Held:
    """One tensor of state: where it is placed, this rank's shard, and the user's own tensor while its values are elsewhere."""

    item: StepInput
    layout: Layout
    shard: torch.Tensor
    user: UserTensor | None
    on_host: bool = False

    def shape_and_stride(self) -> tuple[torch.Size, tuple[int, ...]]:
        """Those of the whole tensor."""
        if self.user is not None:
            return self.user.size, self.user.stride
        return self.item.tensor.size(), self.item.tensor.stride()


class State:
    """The state that captured steps share.

    Attributes:
        version: another number whenever a shard is another tensor than before.
        synced: whether the user's own tensors have the values.
    """

    def __init__(
        self, ranks: Ranks, mesh: Mapping[str, int], model: nn.Module | None, optimizers: Sequence[Optimizer]
    ) -> None:
        """Starts without any tensor."""
        self._ranks, self._mesh, self._model, self._optimizers = ranks, mesh, model, optimizers
        self._held: dict[Any, Held] = {}
        self._doors: list[RemovableHandle] = []
        self.version, self.synced, self._lent = 0, True, False

    def __contains__(self, item: StepInput) -> bool:
        """Whether a tensor is state already."""
        return _key(item) in self._held

    def place(self, item: StepInput, layout: Layout, *, on_host: bool = False) -> torch.Tensor:
        """This rank's shard of a tensor as it is to be placed; a collective where it is placed otherwise."""
        held = self._held.get(_key(item))
        if held is None:
            held = self._held[_key(item)] = self._taken(item, layout, on_host=on_host)
        elif held.layout != layout or held.on_host != on_host:
            self._move(held, layout, on_host=on_host)
        elif held.user is None and held.shard.data_ptr() != held.item.tensor.data_ptr() and not held.item.number:
            held.shard = item.tensor.detach()
            self.version += 1
        return held.shard

    def shard(self, item: StepInput, layout: Layout) -> torch.Tensor:
        """A shard of a tensor of state for a step that only reads it: the shard that there is, or else a copy."""
        held = self._held[_key(item)]
        is_so = held.layout == layout and not held.on_host
        return held.shard if is_so else to_local(self.value(held), layout, self._mesh, self._ranks.rank)

    def layouts(self) -> dict[str, Layout]:
        """How each tensor of state is placed, by its name."""
        return {held.item.name: held.layout for held in self._held.values()}

    def held(self) -> list[Held]:
        """All tensors of state."""
        return list(self._held.values())

    def find(self, tensor: torch.Tensor) -> Held | None:
        """The state that a tensor of the user's is, if it is any."""
        return self._held.get(id(tensor))

    def number(self, parameter: torch.Tensor, key: str) -> Held | None:
        """The state that an optimizer keeps as a Python number, if it is any."""
        return self._held.get((id(parameter), key))

    def value(self, held: Held) -> torch.Tensor:
        """The whole tensor; a collective where it is sharded."""
        if held.user is None:
            return held.shard
        shard = self.local(held).to(held.item.tensor.device, copy=True) if held.on_host else held.shard
        if self._ranks.count == 1:
            return shard
        shards = self.gathered(held.item.name, shard, held.layout, held.shape_and_stride()[0])
        return held.user.in_order(full_tensor(shards, held.layout, self._mesh))

    def local(self, held: Held) -> torch.Tensor:
        """This rank's shard, whose values can be read now, wherever it is."""
        if held.on_host:
            _devices.synchronise(held.item.tensor.device)
        return held.shard

    def take_written(self) -> None:
        """Takes over what was written into the user's tensors while they had the values."""
        if self.synced:
            for held in self._held.values():
                if held.user is not None and held.user.was_written:
                    written = to_local(held.item.tensor.detach(), held.layout, self._mesh, self._ranks.rank)
                    self.local(held).copy_(written)

    def needs_all(self, held: Held) -> bool:
        """Whether the user's tensor has the whole values now, so that new ones are to be whole."""
        return self.synced and held.user is not None

    def write(self, held: Held, local: torch.Tensor) -> None:
        """Writes new values of this rank's shard."""
        if held.shard.data_ptr() != local.data_ptr():
            self.local(held).copy_(local)
        if self.synced and held.user is None:
            self._give(held)

    def write_all(self, held: Held, value: torch.Tensor) -> None:
        """Writes new values of a whole tensor that the user has too."""
        held.item.tensor.detach().copy_(value)
        self.local(held).copy_(to_local(value, held.layout, self._mesh, self._ranks.rank))

    def tensors(self) -> list[torch.Tensor]:
        """This rank's shards of all tensors."""
        return [held.shard for held in self._held.values()]

    def renew(self, item: StepInput, shard: torch.Tensor) -> None:
        """Takes another tensor for the shard of one, where the user has replaced the memory."""
        self._held[_key(item)].shard = shard
        self.version += 1

    def keep_only(self, items: Sequence[StepInput]) -> None:
        """Forgets the tensors that no step has any more."""
        kept = {_key(item) for item in items}
        self._held = {key: held for key, held in self._held.items() if key in kept}

    def give_up(self) -> None:
        """Lets go of what the user's tensors hold; what was written into them since the last step is taken over."""
        if not self.synced:
            return
        self.take_written()
        for user in self._users():
            user.give_up()
        self._close()
        self.synced = False

    @torch.no_grad()
    def sync(self) -> None:
        """Puts the values into the user's tensors."""
        for held in self._held.values():
            if held.user is not None:
                held.user.restore(self.value(held))
                self._write_number(held.item)
            else:
                self._give(held)
        self._open()
        self.synced = True

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lets the user's tensors be looked at as ordinary ones, without their values, while another step is captured."""
        if self.synced:
            yield
            return
        self._open()
        self._lent = True
        for user in self._users():
            user.lend()
        try:
            yield
        finally:
            self._lent = False
            for user in self._users():
                user.give_up()
            self._close()

    def _users(self) -> list[UserTensor]:
        return [held.user for held in self._held.values() if held.user is not None]

    def _taken(self, item: StepInput, layout: Layout, *, on_host: bool) -> Held:
        shard = own_local(item.tensor.detach(), layout, self._mesh, self._ranks.rank)
        shard = _host.like(shard) if on_host else shard
        return Held(item, layout, shard, self._user(item, layout, on_host=on_host), on_host)

    def _user(self, item: StepInput, layout: Layout, *, on_host: bool) -> UserTensor | None:
        is_elsewhere = on_host or (layout and self._ranks.count > 1)
        made = UserTensor(item.tensor, item.name, on_host=on_host) if is_elsewhere else None
        if made is not None and not self.synced and not self._lent:
            made.give_up()
            self._close()
        return made

    @torch.no_grad()
    def _move(self, held: Held, layout: Layout, *, on_host: bool) -> None:
        value = self.value(held) if not self.synced or held.user is None else held.item.tensor.detach()
        shard = own_local(value, layout, self._mesh, self._ranks.rank)
        if held.user is not None and not self.synced:
            held.user.restore(value)
        own = held.item.tensor.detach()
        if on_host:
            shard = _host.like(shard)
        elif not layout and own.dtype == shard.dtype:
            shard = own
        held.shard, held.layout, held.on_host = shard, layout, on_host
        held.user = self._user(held.item, layout, on_host=on_host)
        self.version += 1

    def gathered(
        self, name: str, shard: torch.Tensor, layout: Layout | None = None, shape: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """The shards of all ranks; a collective. On stages that do not hold a tensor of this layout and global shape, anything."""
        if layout is None:
            sizes = [shard.shape] * self._ranks.count
        else:
            sizes = [local_shape(shape, layout, self._mesh, rank) for rank in range(self._ranks.count)]
            if not is_held(layout, self._mesh, self._ranks.rank):
                shard = shard.new_empty(sizes[self._ranks.rank])
        # What is sent is of one size: that of the largest shard, which is the first one.
        if any(size != sizes[0] for size in sizes):
            largest = shard.new_zeros(sizes[0])
            _first(largest, shard.shape).copy_(shard)
            shard = largest
        try:
            return [_first(one, size) for one, size in zip(self._ranks.gathered(shard), sizes, strict=True)]
        except RuntimeError as error:
            raise self._ranks.blamed(f"all_gather of `{name}` failed", None, str(error)) from None

    def _give(self, held: Held) -> None:
        """Puts the values of what is replicated where the user has it."""
        if held.shard.data_ptr() != held.item.tensor.data_ptr():
            held.item.tensor.copy_(held.shard)
        self._write_number(held.item)

    def _write_number(self, item: StepInput) -> None:
        """State that the optimizer keeps as a Python number is written as one."""
        if item.cls == "optimizer" and item.owner is not None:
            parameter, key = item.owner
            state = state_of(self._optimizers, parameter)
            if key in state and not isinstance(state[key], torch.Tensor):
                state[key] = item.tensor.item()

    def _close(self) -> None:
        if (
            not self._doors
            and self._model is not None
            and any(held.user and held.layout for held in self._held.values())
        ):
            self._doors = close_doors(self._model)

    def _open(self) -> None:
        for door in self._doors:
            door.remove()
        self._doors = []


def _first(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """So many of the first elements along each dimension."""
    return tensor[tuple(slice(size) for size in sizes)]


def _key(item: StepInput) -> Any:
    """What a tensor is known by: itself, or for a number of the optimizer's, which has a new stand-in at each capture, its place."""
    if item.cls == "optimizer" and item.owner is not None and item.number:
        return id(item.owner[0]), item.owner[1]
    return id(item.tensor)
