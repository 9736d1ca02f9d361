"""A device of our own for tests: four of them, over memory of the host, that find what is not ordered.

It registers itself as PyTorch's ``PrivateUse1`` (sources in ``clocked_device/``). Kernels are the processor's and run at once; what streams
would leave open is found by vector clocks, so that nothing depends on time:

- an access to memory that is not ordered after a launch of another stream fails with the names of both operations,
- so does memory that is given out again while another stream uses it, without a wait or ``record_stream``,
- a kernel refuses tensors of the host (but single numbers), tensors of the host in lists, and tensors of two devices,
- how often the host waits is counted (:func:`waits`), by what it waits for,
- memory is filled with NaN when it is given out, and again when it is freed.

Its network copies through gloo on a stream of its own; what it reads it holds until it is waited for.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
import sysconfig
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compiled
import torch
import torch.distributed as dist

from unisono import _cuda

NAME, NETWORK = "clocked", "clockednet"
DEVICES = 4

_SOURCES = Path(__file__).parent / "clocked_device"
_TORCH = Path(torch.__file__).parent
_FLAGS = ("-std=c++20", "-fPIC", "-w")
#: How much the compiler is to do for a source; the network's is mostly PyTorch's headers.
_OPTIMISED = {"network.cpp": "-O0"}


def lacking() -> str | None:
    """What is not here to build it with."""
    if sys.platform != "linux":
        return "the test device is built on Linux only"
    if shutil.which("g++") is None:
        return "there is no g++ to build the test device with"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there are no headers of Python to build the test device with"
    return None


def built() -> Path:
    """The library, built once for these sources and this PyTorch."""
    parts = [torch.__version__, sysconfig.get_config_var("SOABI"), str(_TORCH), *_FLAGS, str(_OPTIMISED)]
    return compiled.once("clocked_device", _SOURCES, parts, _build)


def _build(sources: list[Path], made: Path) -> None:
    includes = ["-isystem", _TORCH / "include", "-isystem", sysconfig.get_path("include")]
    names = {file: made.with_name(file.stem + ".o") for file in sources}

    def compile_one(file: Path) -> None:
        compiled.run("g++", *_FLAGS, _OPTIMISED.get(file.name, "-O1"), "-c", file, "-o", names[file], *includes)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(compile_one, sources))
    libraries = _TORCH / "lib"
    linked = [f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ltorch_python", f"-Wl,-rpath,{libraries}"]
    compiled.run("g++", "-shared", *names.values(), "-o", made, *linked)
    for file in names.values():
        file.unlink()


def register(library: str, name: str = NAME) -> None:
    """Makes this process have the devices, and their network, from what :func:`built` gives; once in a process."""
    location = importlib.util.spec_from_file_location("clocked_device", library)
    assert location is not None and location.loader is not None
    loaded = importlib.util.module_from_spec(location)
    location.loader.exec_module(loaded)
    torch.utils.rename_privateuse1_backend(name)  # pyright: ignore[reportPrivateImportUsage]
    torch._register_device_module(name, _module())
    torch.ops.clocked.register_graphs()

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        # One thread, as `_ranks` has it for the host's groups.
        options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._devices, options._threads = [dist.ProcessGroupGloo.create_default_device()], 1
        options._timeout = timeout
        return loaded.network(dist.ProcessGroupGloo(store, rank, size, options))

    dist.Backend.register_backend(NETWORK, create, devices=[name])


def _module() -> types.ModuleType:
    """What PyTorch asks of a device in Python."""
    ops: Any = torch.ops.clocked
    made: Any = types.ModuleType("clocked")

    def number(device: Any) -> int:
        index = None if device is None else torch.device(device).index
        return torch.accelerator.current_device_index() if index is None else index

    def manual_seed_all(seed: int) -> None:
        for device in range(DEVICES):
            ops.seed(device, seed)

    made.device_count = lambda: DEVICES
    made.is_available = made.is_initialized = lambda: True
    made._is_in_bad_fork = lambda: False
    made.current_device = torch.accelerator.current_device_index
    made.set_device = torch.accelerator.set_device_index
    made.current_stream = torch.accelerator.current_stream
    made.stream = lambda stream: stream
    made.Stream, made.Event = torch.Stream, torch.Event
    made.synchronize = torch.accelerator.synchronize
    made.manual_seed_all = manual_seed_all
    made.get_rng_state = lambda device=None: ops.generator_state(number(device))
    made.set_rng_state = lambda state, device=None: ops.set_generator_state(number(device), state)
    made.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    made.get_device_name = lambda device=None: "a device with clocks"
    return made


def run_kernels_by(processor: str, library: str, name: str = NAME) -> ctypes.CDLL:
    """Makes kernels of CUDA run on the devices, through what ``processor.built`` gives: launches are on their streams."""
    _cuda.STAND_INS[name] = _cuda.Libraries(Path(processor), (), Path(processor))
    driver = ctypes.CDLL(processor)
    driver.processor_observe(ctypes.cast(ctypes.CDLL(library).clocked_launch, ctypes.c_void_p))
    driver.processor_launches.restype = ctypes.c_uint64
    return driver


def waits() -> dict[str, int]:
    """How often the host has waited for a device since :func:`forget`, by what it waited for."""
    return torch.ops.clocked.waits()


def copies_from_host() -> int:
    """How often something was copied from the host to a device since :func:`forget`."""
    return torch.ops.clocked.copies_from_host()


def faults() -> list[str]:
    """What was not ordered since :func:`forget`; each has also been an error."""
    return torch.ops.clocked.faults()


def forget() -> None:
    """Begins to count again."""
    torch.ops.clocked.forget()
