"""Devices that are there by name only, without a kernel and without a compiler: what processes ask of PyTorch about their devices.

What steps do on a device is tested on ``clocked.py``'s.
"""

from __future__ import annotations

import os

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.utils import backend_registration

from unisono import _devices, errors

NAME, NETWORK = "mychip", "mynet"


class _Module(backend_registration._DummyBackendModule):
    """What PyTorch asks of the device."""

    def device_count(self) -> int:
        return 1


def networks_of_ranks() -> None:
    """Prints what a process group is made with on rank 0, and the error of the rank that has no device."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    print(_devices.networks(_devices.accelerator()))
    dist.Backend.register_backend(NETWORK, lambda *given: ProcessGroupGloo(*given), devices=[NAME])
    try:
        print(_devices.networks(_devices.take_own()))
    except errors.HardwareError as error:
        print(error)
    print(_devices.casting(), os.environ["LOCAL_RANK"])
