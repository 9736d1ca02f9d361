"""The ranks of a run: the process group, what rank 0 tells the others, and who is still alive."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from unisono import _devices, errors
from unisono._meeting import meeting
from unisono._message import pack, unpack
from unisono._placements import STAGES, coordinates
from unisono._users_errors import UsersError

#: What the host's own process groups are called as a backend of PyTorch's.
_OWN_GLOO = "unisono_gloo"

#: How long a process that closed its connections may take to end.
_SECONDS_TO_END = 3.0


class Ranks:
    """The ranks of a run, one or many.

    Attributes:
        rank: this process's number.
        count: how many processes there are.
        meeting: where they meet, if there are several.
    """

    def __init__(self, *, alone: bool = False) -> None:
        """Joins the process group: the user's, or a new one where the process was started by ``torchrun``.

        Args:
            alone: joins none; this process is the only rank, whatever others there are.
        """
        if not alone and dist.is_available() and not dist.is_initialized() and "TORCHELASTIC_RUN_ID" in os.environ:
            dist.init_process_group(_devices.networks(_devices.take_own()))
            atexit.register(_leave)
        self.joined = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.joined else 0
        self.count = dist.get_world_size() if self.joined else 1
        self._groups: dict[Any, dict[str, str]] = {}
        self._networks = _networks() if self.joined else {}
        # The host's collectives go through a group of one's own, unless the user has another network for them than gloo.
        own = self.joined and self._networks.get("cpu", "gloo") == "gloo"
        self._host = dist.new_group(backend=_own_gloo()) if own else None
        self.meeting = meeting() if self.count > 1 else None
        self._processes = self._introduce()

    def meet(self) -> None:
        """Waits for all ranks."""
        if self.count > 1:
            dist.barrier(self.group("cpu"))

    def come_together(self, what: str, why: str = "") -> None:
        """Waits for all ranks to be about to do the same; names those that are elsewhere."""
        if self.meeting is not None:
            self.meeting.come(what, why, self.lost)

    def group(self, kind: str) -> Any:
        """The process group of all ranks for tensors on a kind of device; of one's own for the host's.

        Raises:
            HardwareError: the user's group has no network for such devices.
        """
        if self._host is not None and kind == "cpu":
            return self._host
        if self._networks and kind not in self._networks:
            has = ",".join(f"{device}:{network}" for device, network in self._networks.items())
            raise errors.HardwareError(
                f"the process group has no network for tensors on {kind}: it has `{has}`",
                code="U0323",
                hint=f"begin it with one, as in `torch.distributed.init_process_group('cpu:gloo,{kind}:BACKEND')`, or not at all",
            )
        return dist.group.WORLD

    def network(self, kind: str) -> str:
        """What connects the devices of a kind."""
        return self._networks.get(kind, "gloo")

    def groups(self, mesh: Mapping[str, int], kind: str = "cpu") -> dict[str, str]:
        """The name of this rank's process group along each axis of a mesh, for tensors on a kind of device.

        Every rank must ask for the same meshes in the same order.
        """
        if not self.joined:
            return dict.fromkeys(mesh, "")
        everyone = self.group(kind)
        if len(mesh) == 1 or self.count == 1:
            name: str = everyone.group_name
            return dict.fromkeys(mesh, name)
        key = (tuple(mesh.items()), everyone is self._host)
        if key not in self._groups:
            self._groups[key] = {axis: self._group_along(mesh, axis, everyone) for axis in mesh}
        return self._groups[key]

    def transfers(
        self, mesh: Mapping[str, int], routes: Sequence[tuple[int, int]], kind: str = "cpu"
    ) -> dict[str, str]:
        """The names of the groups in which this rank's pipeline stage sends to another or receives from it, by their symbolic names.

        Each direction has a group of its own, so that a stage that waits for one keeps the other free. A collective: every rank passes the
        routes that it takes part in.
        """
        stages = mesh.get(STAGES, 1)
        if not self.joined or stages == 1:
            return {}
        used = torch.zeros(stages, stages, dtype=torch.uint8)
        for source, target in routes:
            used[source, target] = 1
        pipelines: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.count):
            others = tuple(place for name, place in coordinates(mesh, rank).items() if name != STAGES)
            pipelines.setdefault(others, []).append(rank)
        backend = _own_gloo() if self.group(kind) is self._host else None
        mine: dict[str, str] = {}
        for source, target in torch.stack(self.gathered(used)).amax(0).nonzero().tolist():
            for number, ranks in enumerate(pipelines.values()):
                key = (tuple(mesh.items()), source, target, number, kind)
                if key not in self._groups:
                    members = sorted((ranks[source], ranks[target]))
                    group = dist.new_group(members, backend=backend)
                    name = group.group_name if self.rank in members else ""  # type: ignore[union-attr]
                    self._groups[key] = {"": name}
                if self._groups[key][""]:
                    mine[f"axis:{STAGES}:{source}>{target}"] = self._groups[key][""]
        return mine

    def gloo_of(self, names: Sequence[str]) -> list[Any]:
        """What the host's collectives go through in groups of these names, and in the one of all ranks, as far as it is gloo."""
        named: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009 - not in torch's type stubs
        groups = [*map(named, names), self.group("cpu")]
        found = [one._get_backend(_devices.HOST) for one in groups if _devices.HOST in one._device_types]
        return [one for one in dict.fromkeys(found) if isinstance(one, dist.ProcessGroupGloo)]

    def _group_along(self, mesh: Mapping[str, int], axis: str, everyone: Any) -> str:
        if mesh[axis] == self.count:
            return everyone.group_name
        mine = ""
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.count):
            others = tuple(place for name, place in coordinates(mesh, rank).items() if name != axis)
            members.setdefault(others, []).append(rank)
        for ranks in members.values():
            group = dist.new_group(ranks, backend=_own_gloo() if everyone is self._host else None)
            if self.rank in ranks:
                mine = group.group_name  # type: ignore[union-attr]
        return mine

    def tell(self, message: Any, source: int = 0) -> Any:
        """Gives every rank what rank ``source`` passes: plain data. An exception of Unisono's that it passes is raised on every rank."""
        if self.count > 1:
            packed = pack(_plain(message)) if self.rank == source else b""
            size = torch.tensor([len(packed)])
            dist.broadcast(size, source, self.group("cpu"))
            data = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == source:
                data.copy_(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
            dist.broadcast(data, source, self.group("cpu"))
            if self.rank != source:
                message = _restored(unpack(data.numpy().tobytes()))
        if isinstance(message, errors.UnisonoError | UsersError):
            raise message
        return message

    def share_generators(self, device: torch.device) -> None:
        """Gives PyTorch's own generators, of the processor and of a device, the states that they have on rank 0."""
        mine = _devices.generator_states(device)
        told = self.tell({kind: state.tolist() for kind, state in mine.items()})
        _devices.set_generator_states(device, {kind: torch.tensor(told[kind], dtype=torch.uint8) for kind in mine})

    def raise_together(self, error: errors.UnisonoError | None) -> None:
        """Raises on every rank what the first rank has to raise that has anything."""
        failed = (
            self.gathered(torch.tensor([error is not None])) if self.count > 1 else [torch.tensor(error is not None)]
        )
        for rank, has in enumerate(failed):
            if has:
                self.tell(error, rank)

    def same_everywhere(self, tensors: list[torch.Tensor]) -> None:
        """Gives the tensors the values that rank 0 has."""
        if self.count > 1:
            for tensor in tensors:
                values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                dist.broadcast(values, 0, self.group(tensor.device.type))

    def agree(self, fingerprint: str) -> bool:
        """Whether all ranks pass the same, of the same length."""
        mine = torch.tensor(list(fingerprint.encode()), dtype=torch.uint8)
        return self.count == 1 or all(torch.equal(mine, other) for other in self.gathered(mine))

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that the ranks pass, in their order; all of one shape."""
        parts = [torch.empty_like(part) for _ in range(self.count)]
        dist.all_gather(parts, part.contiguous(), self.group(part.device.type))
        return parts

    def lost(self) -> list[int]:
        """The ranks on this machine whose processes are gone."""
        mine = socket.gethostname()
        return [rank for rank, (host, pid) in enumerate(self._processes) if host == mine and not _is_alive(pid)]

    def state_of(self, rank: int) -> ProcessState:
        """What is known of a rank's process."""
        host, pid = self._processes[rank]
        here = host == socket.gethostname()
        return ProcessState(pid, None if here else host, _state(pid) if here else "")

    def blamed(self, what: str, place: str | None, cause: str | None) -> errors.ResourceError:
        """The error for a collective that failed, naming the ranks whose processes are gone (which may take a moment)."""
        end = time.monotonic() + _SECONDS_TO_END
        while not (lost := [rank for rank in self.lost() if rank != self.rank]) and time.monotonic() < end:
            time.sleep(0.05)
        names = ", ".join(map(str, lost))
        gone = (
            f"rank {names} is gone"
            if len(lost) == 1
            else f"ranks {names} are gone"
            if lost
            else "a rank is out of reach"
        )
        return errors.ResourceError(
            f"{gone}: {what}",
            code="U0320",
            place=place,
            cause=cause or "its process ended while the others were in a step",
            hint="look at the end of that rank's log: it was killed, ran out of memory, or met an error of its own",
        )

    def _introduce(self) -> list[tuple[str, int]]:
        if self.count == 1:
            return [(socket.gethostname(), os.getpid())]
        name = socket.gethostname().encode()[:120]
        card = torch.zeros(128, dtype=torch.uint8)
        card[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        card[120:] = torch.frombuffer(bytearray(os.getpid().to_bytes(8, "little")), dtype=torch.uint8)
        cards = [card.numpy().tobytes() for card in self.gathered(card)]
        return [(card[:120].rstrip(b"\0").decode(), int.from_bytes(card[120:], "little")) for card in cards]


def _own_gloo() -> str:
    """The backend of gloo groups with one thread each.

    PyTorch gives a gloo group two threads, which both write the name of the last collective without a lock, and so damage the heap where
    two collectives end at once (docs/reports/gloo-worker-threads.md); the number cannot be said to ``new_group``.
    """
    if _OWN_GLOO not in dist.Backend.backend_list:
        dist.Backend.register_backend(_OWN_GLOO, _with_one_thread, devices=["cpu"])
    return _OWN_GLOO


def _with_one_thread(store: Any, rank: int, size: int, timeout: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._devices, options._threads, options._timeout = [dist.ProcessGroupGloo.create_default_device()], 1, timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


@dataclass(frozen=True)
class ProcessState:
    """What is known of a process: its number, its machine if that is another, and the letter that the system has for its state."""

    pid: int
    host: str | None
    letter: str

    @property
    def is_still(self) -> bool:
        """Whether it is here, and does not run."""
        return self.host is None and self.letter in _STATES

    @property
    def is_stopped(self) -> bool:
        """Whether it is here, and somebody stopped it."""
        return self.host is None and self.letter in ("T", "t")

    def __str__(self) -> str:
        """In words."""
        if self.host is not None:
            return f"its process {self.pid} is on {self.host}"
        return f"its process {self.pid} {_STATES.get(self.letter, 'runs, and does not answer')}"


#: What states of processes that do not run are, in words.
_STATES = {
    "": "has ended",
    "Z": "has ended",
    "X": "has ended",
    "T": "is stopped",
    "t": "is held by a debugger",
    "D": "waits for a disk",
}


def _state(pid: int) -> str:
    """The letter that the system has for the state of a process; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    return _state(pid) not in ("", "Z", "X")


def _leave() -> None:
    """Ends the process group that was begun here: its threads must not outlive the interpreter, which would abort the process.

    After an error those of devices are left alone, since ending them waits for collectives that may never end.
    """
    failed = hasattr(sys, "last_value")
    if dist.is_initialized() and not (failed and set(_networks()) != {"cpu"}):
        dist.destroy_process_group()


def _networks() -> dict[str, str]:
    """The networks of the process group of all ranks, by kind of device."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    return {kind: network for kind, _, network in pairs}


_FIELDS = ("code", "message", "place", "cause", "hint")


def _plain(message: Any) -> Any:
    if isinstance(message, UsersError):
        return {"__users__": message.plain()}
    if isinstance(message, errors.UnisonoError):
        return {"__error__": type(message).__name__, **{field: getattr(message, field) for field in _FIELDS}}
    return message


def _restored(message: Any) -> Any:
    if isinstance(message, dict) and "__users__" in message:
        return UsersError(**message["__users__"])
    if isinstance(message, dict) and "__error__" in message:
        kind = getattr(errors, message.pop("__error__"))
        return kind(message.pop("message"), **message)
    return message
