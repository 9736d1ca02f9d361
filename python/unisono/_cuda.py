"""Kernels on CUDA: the libraries that they need, where PyTorch's wheels bring these, and the stream that they run on."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from unisono import _native
from unisono.errors import HardwareError


@dataclass(frozen=True)
class Libraries:
    """The files of a compiler, of what it rests on, and of a driver."""

    compiler: Path
    before: tuple[Path, ...]
    driver: Path


#: What stands in for the libraries of CUDA on other kinds of devices: for tests, which have none of CUDA.
STAND_INS: dict[str, Libraries] = {}


def device_of(device: torch.device) -> _native.CudaDevice | str:
    """The libraries for kernels on a device, or why there are no kernels there."""
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    return _opened(device.type, index)


def is_meant(device: torch.device) -> bool:
    """Whether kernels are meant for a device, so that it is worth a word where there are none."""
    return device.type == "cuda"


@functools.cache
def _opened(kind: str, index: int) -> _native.CudaDevice | str:
    libraries, architecture = STAND_INS.get(kind), "sm_90"
    if libraries is None:
        if kind != "cuda" or torch.version.hip is not None:
            return f"there are no kernels for {kind} here" if kind != "cuda" else "there are no kernels for ROCm"
        libraries = libraries_of_cuda()
        major, minor = torch.cuda.get_device_capability(index)
        architecture = f"sm_{major}{minor}"
    try:
        return _native.CudaDevice(kind, index, architecture, libraries.compiler, libraries.before, libraries.driver)
    except HardwareError as error:
        return str(error)


def libraries_of_cuda() -> Libraries:
    """Those that PyTorch's wheels bring, or else what the loader finds under their names."""
    release = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{release}"
    for folder in _folders():
        if (folder / name).exists():
            before = sorted(
                file for file in folder.glob(f"libnvrtc-builtins.so.{release}*") if ".alt." not in file.name
            )
            return Libraries(folder / name, tuple(before), Path("libcuda.so.1"))
    return Libraries(Path(name), (), Path("libcuda.so.1"))


def _folders() -> list[Path]:
    """Where wheels put libraries of CUDA."""
    found = importlib.util.find_spec("nvidia")
    packages = [Path(path) for path in found.submodule_search_locations or []] if found else []
    return [
        Path(torch.__file__).parent / "lib",
        *(folder for path in packages for folder in sorted(path.glob("*/lib"))),
    ]


#: Other threads, such as those that watch over collectives, may ask a device what they like while a graph is captured.
CAPTURE_ERRORS = "thread_local"


class Graph(torch.cuda.CUDAGraph):
    """A graph that begins as ``torch.accelerator.Graph`` does, which PyTorch has from 2.13 on."""

    def capture_begin(self) -> None:  # type: ignore[override]
        """Begins on the current stream."""
        super().capture_begin(capture_error_mode=CAPTURE_ERRORS)


def stream_of(kind: str, index: int) -> int:
    """The driver's handle of PyTorch's current stream on a device."""
    if kind == "cuda":
        return torch.cuda.current_stream(index).cuda_stream
    return torch.accelerator.current_stream(torch.device(kind, index)).stream_id
