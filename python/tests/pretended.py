"""An accelerator that is not there, on PyTorch's backend for backends of others, under a name that no table has.

Its tensors are kept on the host, where only its own kernels see them; those refuse tensors of the host that have dimensions, and devices of
other ranks, as a device would read from a wrong address.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils._pytree as pytree
from machines import DEAR_COMPUTING
from torch import nn
from torch.distributed import ProcessGroupGloo

import unisono
from unisono import _devices, errors

NAME, NETWORK = "mychip", "mynet"
#: Operations that take tensors of the host to the device and back.
_COPIES = ("aten::copy_", "aten::_to_copy")


def own() -> str:
    """The device of this rank."""
    return f"{NAME}:{os.environ.get('LOCAL_RANK', '0')}"


class Chip(torch.Tensor):
    """A tensor on the device of this rank.

    Attributes:
        host: the tensor of the host that has its values.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> Chip:
        """Takes a tensor of the host for the values."""
        # Without an offset all tensors are at address 0, where the executor takes no view for known: what it makes lacks this class.
        layout = {"strides": host.stride(), "dtype": host.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, host.size(), device=own(), **layout)
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation."""
        return _run(func, *args, **(kwargs or {}))

    def untyped_storage(self) -> Any:
        """The memory that has its values."""
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        """The address of its values."""
        return self.host.data_ptr()


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    leaves = pytree.tree_leaves((args, kwargs))
    for leaf in leaves:
        _require_own(op, leaf)
    chips = {id(leaf.host): leaf for leaf in leaves if isinstance(leaf, Chip)}
    to_host = any(isinstance(leaf, torch.device) and leaf.type == "cpu" for leaf in leaves)

    def within(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return _devices.HOST
        return leaf.host if isinstance(leaf, Chip) else leaf

    def made(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if to_host:
            return leaf.clone() if id(leaf) in chips else leaf
        return chips[id(leaf)] if id(leaf) in chips else Chip(leaf)

    given, named = pytree.tree_map(within, (args, kwargs))
    found = op(*given, **named)
    if op._schema.name == "aten::copy_" and not isinstance(args[0], Chip):
        return args[0]
    return pytree.tree_map(made, found)


def _require_own(op: Any, leaf: Any) -> None:
    is_host = isinstance(leaf, torch.Tensor) and not isinstance(leaf, Chip)
    if is_host and leaf.dim() and op._schema.name not in _COPIES:
        raise RuntimeError(f"{op}: a tensor of the host of shape {list(leaf.shape)} in a kernel of {own()}")
    if isinstance(leaf, torch.device) and leaf.type == NAME and leaf.index is not None and str(leaf) != own():
        raise RuntimeError(f"{op}: {leaf} in a kernel of {own()}")


class _Module(torch.utils.backend_registration._DummyBackendModule):
    """What PyTorch asks of the device; it draws from the processor's generator."""

    def __init__(self, count: int) -> None:
        self._count = count

    def device_count(self) -> int:
        return self._count

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_device_name(self, device: Any = None) -> str:
        return "a chip of ours"


def register(count: int = 1) -> torch.library.Library:
    """Makes this process have such devices; the result keeps them."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module(count))
    library = torch.library.Library("_", "IMPL", "PrivateUse1")
    library.fallback(_run, "PrivateUse1")
    return library


def _register_network() -> None:
    # What is exchanged are the values, on the host.
    dist.Backend.register_backend(NETWORK, lambda *given: ProcessGroupGloo(*given), devices=[NAME])


def networks_of_ranks() -> None:
    """Prints what a process group is made with on rank 0, and the error of the rank that has no device."""
    kept = register()
    print(_devices.networks(_devices.accelerator()))
    _register_network()
    try:
        print(_devices.networks(_devices.take_own()))
    except errors.HardwareError as error:
        print(error)
    print(_devices.casting(), os.environ["LOCAL_RANK"])
    del kept


def faults() -> None:
    """Prints what kernels say of a tensor of the host and of another rank's device."""
    kept = register(2)
    made = Chip(torch.ones(2))
    print((made * torch.tensor(2.0)).host.tolist())
    for wrong in (lambda: made * torch.ones(2), lambda: torch.ones(2, device=f"{NAME}:1")):
        try:
            wrong()
        except RuntimeError as error:
            print(error)
    del kept


# Models.


def convolutions() -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Convolution, batch norm, pooling, dropout."""
    parts = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
    ]
    model = nn.Sequential(*parts, nn.Linear(8 * 16, 8))
    return model, lambda x, y: F.cross_entropy(model(x), y), (torch.randn(4, 3, 8, 8), torch.randint(0, 8, (4,)))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.norm = nn.Embedding(64, 16), nn.Embedding(8, 16), nn.LayerNorm(16)
        self.inside, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places(torch.arange(8, device=x.device))
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.inside(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + F.gelu(self.out(mixed)))


def attention() -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A layer of a GPT."""
    model = _Attention()
    batch = torch.randint(0, 64, (4, 8)), torch.randint(0, 64, (4, 8))
    return model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), batch


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) * 0.1), nn.Parameter(torch.randn(4, 32, 16) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        best, chosen = scores.topk(2, -1)
        share = torch.zeros_like(scores).scatter(-1, chosen, best)
        return torch.einsum("be,ebd->bd", share, torch.bmm(torch.bmm(x.expand(4, -1, -1), self.up).relu(), self.down))


def experts() -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Experts of which each row takes two."""
    model = _Experts()
    return model, lambda x, y: F.mse_loss(model(x), y), (torch.randn(8, 16), torch.randn(8, 16))


MODELS = (convolutions, attention, experts)


def onto(model: nn.Module) -> None:
    """Puts the parameters and buffers of a model on the device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Chip(parameter.detach().clone()))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Chip(buffer.clone())


def _trained(make: Callable[..., Any], place: Callable[[torch.Tensor], torch.Tensor], on_chip: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, loss_of, batch = make()
    if on_chip:
        onto(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    batch = tuple(place(one) for one in batch)
    step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=batch, cluster=DEAR_COMPUTING)
    losses = [step(*batch) for _ in range(3)]
    step.sync()
    device = str(step._captured[0].device)
    values = [getattr(one.detach(), "host", one.detach()) for one in (*losses, *model.parameters(), *model.buffers())]
    return {"device": device, "values": values, "by_python": step._captured[0].executor.program.counts()[3]}


def compare_all() -> None:
    """Trains each model on the processor and on the device, and writes how they differ."""
    kept = register(int(os.environ["WORLD_SIZE"]))
    _register_network()
    found: dict[str, Any] = {}
    for make in MODELS:
        try:
            there = _trained(make, Chip, on_chip=True)
            here = _trained(make, lambda tensor: tensor, on_chip=False)
            pairs = zip(there["values"], here["values"], strict=True)
            worst = max(float((one - other).abs().max()) for one, other in pairs)
            found[make.__name__] = {"worst": worst, "device": there["device"], "by_python": there["by_python"]}
        except Exception:
            found[make.__name__] = {"error": traceback.format_exc()}
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    del kept
