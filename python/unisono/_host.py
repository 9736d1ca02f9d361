"""Copies between a device and its host, which a step starts and goes on beside: the operations of the executor.

Each direction has a stream of its own, behind what was issued before. A copy holds what it reads until it is waited for, so that its
memory is not given out again before. On the processor a copy is a second tensor in the same memory.
"""

from __future__ import annotations

import functools

import torch

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define("to_host(Tensor self) -> Tensor")
_LIBRARY.define("to_host_over(Tensor self, Tensor value) -> Tensor")
_LIBRARY.define("to_host_over_(Tensor(a!) self, Tensor value) -> Tensor(a!)")
_LIBRARY.define("from_host(Tensor self, Device device) -> Tensor")
_LIBRARY.define("wait_copy(Tensor self) -> Tensor")

#: What was started and not waited for, by the memory that it writes: when it is done, and what it reads.
_under_way: dict[int, tuple[torch.Event, torch.Tensor]] = {}


def forget() -> None:
    """Lets go of copies that nobody will wait for, because the step that started them has failed."""
    _under_way.clear()


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the host with the values of one, which copies to and from its device may go on beside steps: in pinned memory."""
    return _empty(tensor, tensor).copy_(tensor)


def _empty(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Memory of the host for a value, of the sizes and strides of another tensor."""
    pinned = value.device.type not in ("cpu", "meta")
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=pinned)


@functools.cache
def _stream(device: torch.device, direction: str) -> torch.Stream:
    """The stream of copies in one direction."""
    del direction
    return torch.Stream(device=device)


def _start(source: torch.Tensor, target: torch.Tensor, device: torch.device, direction: str) -> torch.Tensor:
    stream = _stream(device, direction)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        target.copy_(source, non_blocking=True)
        _under_way[target.untyped_storage().data_ptr()] = stream.record_event(), source
    return target


@torch.library.impl(_LIBRARY, "to_host", "CompositeExplicitAutograd")
def _to_host(self: torch.Tensor) -> torch.Tensor:
    return _out(self, _empty(self, self))


@torch.library.impl(_LIBRARY, "to_host_over", "CompositeExplicitAutograd")
def _to_host_over(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _out(value, _empty(self, value))


@torch.library.impl(_LIBRARY, "to_host_over_", "CompositeExplicitAutograd")
def _to_host_over_in_place(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _out(value, self)


def _out(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    is_apart = value.device.type not in ("cpu", "meta") and value.numel()
    return _start(value, target, value.device, "out") if is_apart else target.copy_(value)


@torch.library.impl(_LIBRARY, "from_host", "CompositeExplicitAutograd")
def _from_host(self: torch.Tensor, device: torch.device) -> torch.Tensor:
    made = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device=device)
    return _start(self, made, made.device, "back") if made.device != self.device and self.numel() else made.copy_(self)


@torch.library.impl(_LIBRARY, "wait_copy", "CompositeExplicitAutograd")
def _wait_copy(self: torch.Tensor) -> torch.Tensor:
    event, source = _under_way.pop(self.untyped_storage().data_ptr(), (None, self))
    if event is not None:
        device = source.device if source.device.type != "cpu" else self.device
        torch.accelerator.current_stream(device).wait_event(event)
    return self


# What they give of tensors without data.


@torch.library.impl(_LIBRARY, "to_host", "Meta")
@torch.library.impl(_LIBRARY, "from_host", "Meta")
def _copy_of_meta(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    del device
    return torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="meta")


@torch.library.impl(_LIBRARY, "to_host_over", "Meta")
def _over_meta(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    del value
    return torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="meta")


@torch.library.impl(_LIBRARY, "to_host_over_", "Meta")
def _over_meta_in_place(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    del value
    return self


@torch.library.impl(_LIBRARY, "wait_copy", "Meta")
def _wait_of_meta(self: torch.Tensor) -> torch.Tensor:
    return self
