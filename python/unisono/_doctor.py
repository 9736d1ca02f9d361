"""What ``unisono doctor`` looks at: one finding for each thing that a run needs, with what to do where it is not well."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from unisono import _devices, _executor, _native
from unisono._profile import cache_folder
from unisono.errors import UnisonoError

OK, WARNING, FAILED = "ok", "warning", "failed"
#: The releases of PyTorch that are tested: the first, and the first that is not.
_FIRST, _BEHIND = (2, 11), (2, 16)
_RELEASES = "pip install 'torch>=2.11,<2.16'"
#: What two processes may take to meet and add up a tensor, in seconds.
_SECONDS = 60.0
#: Least free space that is well, in bytes.
_FREE, _SHARED = 1 << 30, 64 << 20
#: How much is written to see how fast a folder is, in bytes, and the least speed that is well, in bytes per second.
_WRITTEN, _SPEED = 8 << 20, 20e6
#: How often the clocks of ranks are compared; the time on the network is least in the best of them.
_ROUNDS = 20
#: By how much clocks of ranks may differ before what ranks note cannot be laid side by side, in seconds.
_APART = 0.05


@dataclass(frozen=True)
class Finding:
    """What one look has found.

    Attributes:
        name: what was looked at.
        status: ``ok``, ``warning`` or ``failed``; of a device also ``skipped``.
        text: what was found.
        hint: what to do about it.
    """

    name: str
    status: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        """A line for people, and one for the hint."""
        hint = f"\n{'':<29}hint: {self.hint}" if self.hint else ""
        return f"{self.name:<20}{self.status:<9}{self.text}{hint}"


def findings() -> Iterator[Finding]:
    """All findings, one after the other as they are made."""
    yield Finding("unisono", OK, _native.__version__)
    yield from libraries()
    for look in (_gloo, _device, _cores, _kernels, _folders, _shared_memory, _clock):
        yield from look()


def libraries() -> Iterator[Finding]:
    """PyTorch, and what steps call of it."""
    for look in (_torch, _functions, _routes):
        yield from look()


def _torch() -> Iterator[Finding]:
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    text = f"{torch.__version__}, Python {sys.version.split()[0]}"
    if release < _FIRST:
        yield Finding("torch", FAILED, f"{text}: the oldest that is supported is 2.11", _RELEASES)
    elif release >= _BEHIND:
        yield Finding("torch", WARNING, f"{text}: newer than what was tested", _RELEASES)
    else:
        yield Finding("torch", OK, text)


def _functions() -> Iterator[Finding]:
    """The functions of libtorch's C interface."""
    try:
        _executor.load()
    except UnisonoError as error:
        yield Finding("functions", FAILED, error.message, error.hint or _RELEASES)
        return
    count, absent = _native.torch_functions()
    without = f", without {', '.join(absent)}, in place of which others are used" if absent else ""
    yield Finding("functions", OK, f"{count - len(absent)} of {count}{without}")


def _routes() -> Iterator[Finding]:
    """The routes to operations, each tried on one."""
    try:
        problems = _executor.self_test()
    except (UnisonoError, RuntimeError) as error:
        problems = {"dispatcher": str(error), "proxy": str(error)}
    for route, problem in problems.items():
        yield Finding(route, FAILED, problem, _RELEASES) if problem else Finding(route, OK, "passes")


_ADDS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
assert x.eq(3).all(), x
dist.destroy_process_group()
"""


def _gloo() -> Iterator[Finding]:
    """Whether two processes of this machine add up a tensor by gloo."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        hint = "install a PyTorch with torch.distributed: the one of pip has it"
        yield Finding("gloo", FAILED, "this PyTorch has no gloo, by which ranks on processors communicate", hint)
        return
    start = time.monotonic()
    problem = two_processes(_ADDS, _SECONDS)
    if problem:
        hint = "let processes connect to each other on 127.0.0.1; set GLOO_SOCKET_IFNAME=lo if the host's name leads elsewhere"
        yield Finding("gloo", FAILED, f"two local processes cannot add up a tensor: {problem}", hint)
    else:
        taken = time.monotonic() - start
        yield Finding("gloo", OK, f"two local processes have added up a tensor, {taken:.1f} s from their start")


def two_processes(script: str, seconds: float) -> str | None:
    """Runs a script in two processes as ranks of one group; what went wrong, or ``None``."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    meeting |= {"TORCHELASTIC_RUN_ID": "doctor", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    end = time.monotonic() + seconds
    try:
        for process in processes:
            _, said = process.communicate(timeout=max(end - time.monotonic(), 0.1))
            if process.returncode:
                return (said.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        return f"nothing came within {seconds:.0f} s"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return None


def _device() -> Iterator[Finding]:
    """Accelerators, and the networks between them."""
    kind = _devices.accelerator()
    networks = [name for name in ("gloo", "nccl", "xccl", "mpi", "ucc") if torch.distributed.is_backend_available(name)]
    if kind is None:
        built = torch.version.cuda or torch.version.hip
        hint = "if there is one, its driver is missing or too old for this PyTorch" if built else None
        text = "no accelerator is there: steps run on the processor"
        yield Finding("devices", OK, text + (f" (this PyTorch is built for {built})" if built else ""), hint)
    else:
        count, name = torch.accelerator.device_count(), _devices.model_of(torch.device(kind, 0))
        yield Finding("devices", OK, f"{count} of {kind}, {name}")
    needed = _devices.network_of(kind)
    missing = needed is not None and needed not in networks
    hint = f"install a PyTorch with {needed}: ranks on {kind} need it" if missing else None
    yield Finding("networks", WARNING if missing else OK, ", ".join(networks) or "none", hint)


def _cores() -> Iterator[Finding]:
    """Threads that compute at the same time, and cores for them."""
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    text = f"{cores} cores, {threads} threads" + (f" in each of {ranks} ranks" if ranks > 1 else "")
    if ranks * threads > cores:
        each = max(cores // ranks, 1)
        yield Finding("threads", WARNING, f"{text}: they take turns", f"set OMP_NUM_THREADS={each}")
    else:
        yield Finding("threads", OK, text)


def _kernels() -> Iterator[Finding]:
    """Whether compiled loops (``fuse=True``) can run."""
    tier, refused = _native.kernel_tier()
    if refused:
        text = "this host forbids executable memory: with `fuse=True` loops are interpreted, which takes longer"
        yield Finding("compiled loops", WARNING, text, "leave `fuse` off, or allow it (SELinux: `execmem`)")
    elif tier == "interpreter":
        text = "this processor lacks AVX2: with `fuse=True` loops are interpreted, which takes longer"
        yield Finding("compiled loops", WARNING, text, "leave `fuse` off")
    else:
        yield Finding("compiled loops", OK, tier)


def _folders() -> Iterator[Finding]:
    """The folders that are written: plans and measurements are kept in one, the other is for files of a moment."""
    keeps = "without it the machine is measured, and each step planned, at every start"
    yield _folder("cache", cache_folder(), WARNING, f"make it writable: {keeps}")
    yield _folder("temporary", Path(tempfile.gettempdir()), FAILED, "set TMPDIR to a folder that can be written")


def _folder(name: str, folder: Path, status: str, hint: str) -> Finding:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    try:
        if there == folder or os.access(there, os.W_OK):
            speed = _speed(there)
        else:
            return Finding(name, status, f"`{folder}` cannot be made in `{there}`", hint)
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(name, status, f"`{folder}` cannot be written: {error.strerror}", hint)
    text = f"`{folder}`, {free / 2**30:.1f} GiB free, {speed / 1e6:.0f} MB/s"
    if free < _FREE:
        return Finding(name, WARNING, text, "make room: less than 1 GiB is left")
    if speed < _SPEED:
        return Finding(name, WARNING, text, "use a faster disk for it, not a network folder")
    return Finding(name, OK, text)


def _speed(folder: Path) -> float:
    """Bytes per second that are written into a new file of a folder."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".unisono-doctor-") as file:
        start = time.monotonic()
        file.write(bytes(_WRITTEN))
        file.flush()
        os.fsync(file.fileno())
        return _WRITTEN / max(time.monotonic() - start, 1e-6)


def _shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Memory that processes share, through which a ``DataLoader`` hands over batches."""
    if not folder.is_dir():
        hint = "give the container one (`--shm-size=8g`), or use `num_workers=0`"
        yield Finding(
            "shared memory", WARNING, f"there is no `{folder}`, which a `DataLoader` with workers needs", hint
        )
        return
    used = shutil.disk_usage(folder)
    text = f"{used.free / 2**20:.0f} of {used.total / 2**20:.0f} MiB free"
    small = used.free < _SHARED
    hint = "enlarge it (`--shm-size=8g` of a container): workers of a `DataLoader` hand over batches in it"
    yield Finding("shared memory", WARNING if small else OK, text, hint if small else None)


def _clock(now: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """The clock that steps are measured by."""
    read = [now() for _ in range(1000)]
    if any(later < earlier for earlier, later in itertools.pairwise(read)):
        hint = "it is the host's: choose another clock source, such as `tsc`"
        yield Finding("clock", FAILED, "the monotonic clock goes backwards", hint)
        return
    resolution = time.get_clock_info("monotonic").resolution
    yield Finding("clock", OK if resolution <= 1e-6 else WARNING, f"steps of {resolution * 1e9:.0f} ns")


def clocks_of_ranks() -> list[Finding] | None:
    """How far the clocks of ranks are apart, where ``torchrun`` started several; ``None`` on all but the first, which speaks for all."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return []
    from unisono._ranks import Ranks

    ranks = Ranks()
    apart = min(_spread(ranks.gathered) for _ in range(_ROUNDS))
    return [between_ranks(apart, ranks.count)] if ranks.rank == 0 else None


def _spread(gathered: Callable[[torch.Tensor], list[torch.Tensor]]) -> float:
    """Between which seconds the ranks have read their clocks, just after all have met."""
    gathered(torch.zeros(1))
    read = torch.cat(gathered(torch.tensor([time.time()], dtype=torch.float64)))
    return float(read.max() - read.min())


def between_ranks(apart: float, ranks: int) -> Finding:
    """What was found of the clocks of several ranks, which differ by so many seconds at most."""
    text = f"those of {ranks} ranks differ by {apart * 1e3:.2f} ms at most"
    hint = "synchronise the machines (chrony, PTP): until then, times that different ranks note cannot be compared"
    return Finding("clocks", WARNING, text, hint) if apart > _APART else Finding("clocks", OK, text)
