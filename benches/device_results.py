"""What an accelerator computes, beside plain PyTorch on it and beside the processor.

python benches/device_results.py models                              # the models of small_models.toml: three steps beside plain PyTorch's
python benches/device_results.py bits                                # kernels of all formulas and of random programs: the processor's bits
torchrun --nproc-per-node 2 benches/device_results.py ranks          # plans of two ranks on ONE device, which NCCL takes for two machines
torchrun --nproc-per-node 2 benches/device_results.py ranks --device cpu

Models and ranks are compared with AdamW whose epsilon is far above the rounding of gradients. The exit status is 1 where something is off.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python" / "tests")]

import device as of_device  # noqa: E402
import small_models  # noqa: E402
import test_kernels  # noqa: E402

import unisono  # noqa: E402
from unisono import _devices  # noqa: E402
from unisono._executor import Executor, lower_graph  # noqa: E402
from unisono.errors import UnisonoError  # noqa: E402

STEPS, PROGRAMS = 3, 150
#: How far a loss, and a tensor of state as a part of its change, may be off.
LOSS, STATE = 1e-4, 1e-2
#: One rank of two on one device: NCCL refuses that on one machine, and takes hosts of other names for others.
ON_ONE_DEVICE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


# Models.


def training(
    name: str, device: torch.device
) -> tuple[Any, torch.optim.Optimizer, Callable[..., torch.Tensor], dict[str, Any]]:
    """A model on a device, its optimizer, its step, and what that is called with."""
    model, inputs = small_models.build(name)
    model.to(device)
    inputs = {key: one.to(device) if isinstance(one, torch.Tensor) else one for key, one in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(inputs: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = small_models.loss(model, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return model, optimizer, step, inputs


def losses(step: Callable[..., torch.Tensor], *batch: Any) -> list[float]:
    """Those of a few steps, each of which draws by a seed of its own."""
    found = []
    for number in range(STEPS):
        torch.manual_seed(number)
        found.append(float(step(*batch)))
    return found


def off(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


def of_model(name: str, device: torch.device) -> tuple[bool, str]:
    alone, _, eager, inputs = training(name, device)
    before = {key: one.clone() for key, one in alone.state_dict().items()}
    expected = losses(eager, inputs)
    model, optimizer, step, inputs = training(name, device)
    parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=(inputs,), cluster="h100:1")
    loss = off(losses(parallel, inputs), expected)
    parallel.sync()
    now, worst = model.state_dict(), 0.0
    for key, wanted in alone.state_dict().items():
        if wanted.is_floating_point():
            change = max(float((wanted - before[key]).abs().max()), 1e-4)
            worst = max(worst, float((wanted - now[key]).abs().max()) / change)
    return loss < LOSS and worst < STATE, f"loss off by {loss:.1e}, state by {worst:.1e} of its change"


def models(device: torch.device, part: str) -> Iterator[bool]:
    for name in small_models.names(part):
        try:
            well, said = of_model(name, device)
        except UnisonoError as error:
            well, said = False, str(error).replace("\n", " ")
        print(f"{'ok ' if well else 'OFF'} {name}: {said}", flush=True)
        yield well


# Kernels.


def executed(
    function: Callable[..., Any], inputs: list[torch.Tensor], device: torch.device
) -> tuple[list[torch.Tensor], bool]:
    """What a function gives with its groups as kernels, and whether nothing but kernels computes it."""
    found, run = test_kernels.executed(function, tuple(one.to(device) for one in inputs), device=device)
    computes = [name for name in test_kernels.names(run) if not name.startswith("kernel")]
    return [one.cpu() for one in found], not any("sum" in name or "mul" in name for name in computes)


def scaled(given: Any) -> Any:
    """Half of each number, so that there is a group where there is one operation."""
    if isinstance(given, tuple | list):
        return tuple(map(scaled, given))
    return given * 0.5 if isinstance(given, torch.Tensor) and given.is_floating_point() else given


def programs() -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    for name, calls in test_kernels.SAMPLES.items():
        for number, call in enumerate(calls):
            for dtype in (torch.float32, torch.bfloat16):
                inputs = [test_kernels.numbers(seed, dtype) for seed in range(test_kernels.operands(call))]
                yield f"{name} {number} {dtype}", lambda *given, call=call: scaled(call(*map(scaled, given))), inputs
    for seed in range(PROGRAMS):
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(size, generator=generator) for size in ((2, 3, 32), (3, 2, 32), (2, 3, 1))]
        inputs.append(torch.rand((2, 3, 32), generator=generator) < 0.5)
        yield f"random program {seed}", test_kernels.random_program(seed), inputs


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = one.shape == other.shape and torch.equal(one.isnan(), other.isnan())
    return alike and torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5).to(one.dtype))


def bits(device: torch.device, part: str) -> Iterator[bool]:
    count = Counter[str]()
    for name, function, inputs in programs():
        if part not in name:
            continue
        try:
            (found, alone), (expected, _) = (executed(function, inputs, at) for at in (device, _devices.HOST))
        except (UnisonoError, RuntimeError) as error:
            count["not run: tensors of two devices"] += 1
            print(f"{name}: {str(error).splitlines()[0][:200]}")
            continue
        well = all(map(same_bits, found, expected))
        kind = "the same bits" if well else "other bits, with operations of PyTorch's among them"
        if not well and (alone or not all(map(close, found, expected))):
            kind = "OFF"
            print(f"OFF {name}", flush=True)
        count[kind] += 1
        yield kind != "OFF"
    if part in "sigmoid":
        yield sigmoid(device)
    print(", ".join(f"{number} {kind}" for kind, number in count.items()))


def sigmoid(device: torch.device) -> bool:
    """Whether a quarter of all numbers give the processor's bits; on a processor a few of them."""
    count = 1 << (26 if device.type == "cuda" else 12)
    graph = unisono.capture(lambda x: torch.sigmoid(x) * x, example=(torch.zeros(count),)).native
    there, here = (Executor(lower_graph(graph, device=at, fuse=True)) for at in (device, _devices.HOST))
    there.bind([])
    here.bind([])
    off, step = 0, 2**32 // (16 * count)
    for part in range(16):
        bits = (torch.arange(count) + part * count) * step + part % step
        x = bits.to(torch.uint32).view(torch.float32)
        off += not same_bits(there([x.to(device)])[0], here([x])[0])
    print(f"sigmoid: other bits in {off} of 16 parts of {16 * count} numbers")
    return off == 0


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other.to(one.dtype), rtol=1e-3, atol=1e-3, equal_nan=True)


# Ranks.


def pinned(batch: str, state: str) -> dict[str, Any]:
    return {"pins": {name: {"ranks": state} for name in ("params.*", "optimizer.*")} | {"batch.*": {"ranks": batch}}}


FAMILIES: dict[str, dict[str, Any]] = {
    "free": {},
    "batch cut": pinned("shard(0)", "replicate"),
    "state cut": pinned("shard(0)", "shard(0)"),
    "tensors cut": pinned("replicate", "shard(0)"),
    "four micro-batches": {"micro_batches": 4},
    "two stages": {"mesh": {"stages": 2}, "micro_batches": 2},
    "offloaded": {"offload": "full"},
    "batch cut, graphs": {"graphs": "auto", **pinned("shard(0)", "replicate")},
    "state cut, graphs and kernels": {"graphs": "auto", "fuse": True, **pinned("shard(0)", "shard(0)")},
    "tensors cut, graphs": {"graphs": "auto", **pinned("replicate", "shard(0)")},
    "counter, kernels": {"rng": "counter", "fuse": True},
}
SIZES = of_device.Sizes(256, 2, 4, 1024, 8, 64, torch.float32)


def ranks(device: torch.device, part: str) -> Iterator[bool]:
    torch.manual_seed(0)
    model, _, step, batch = of_device.made(SIZES, device)
    expected = losses(step, *batch)
    final = {key: one.detach().clone() for key, one in model.state_dict().items()}
    for name, settings in FAMILIES.items():
        if part not in name:
            continue
        model, optimizer, step, batch = of_device.made(SIZES, device)
        given = {"mesh": {"ranks": 2}, "cluster": "h100:1x2", **settings}
        parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=batch, **given)
        loss = off(losses(parallel, *batch), expected)
        parallel.sync()
        worst = max(float((one - final[key]).abs().max()) for key, one in model.state_dict().items())
        well = loss < LOSS and worst < 1e-5
        if dist.get_rank() == 0:
            print(
                f"{'ok ' if well else 'OFF'} {name}: loss off by {loss:.1e}, state by {worst:.1e}; {parallel.graphs()}",
                flush=True,
            )
        yield well


def joined(device: torch.device) -> None:
    """Makes this process one of two ranks on the one device."""
    rank = int(os.environ["RANK"])
    os.environ.update(ON_ONE_DEVICE | {"NCCL_HOSTID": str(rank)})
    network = "" if device == _devices.HOST else f",{device.type}:{_devices.network_of(device.type)}"
    dist.init_process_group(f"cpu:gloo{network}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["models", "bits", "ranks"])
    parser.add_argument("--device", default=_devices.accelerator() or "cpu")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has this in its name")
    arguments = parser.parse_args()
    device = _devices.HOST if arguments.device == "cpu" else _devices.current()
    if arguments.what == "ranks":
        joined(device)
    said = list({"models": models, "bits": bits, "ranks": ranks}[arguments.what](device, arguments.only))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.exit(not all(said))


if __name__ == "__main__":
    main()
