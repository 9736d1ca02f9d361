"""Training steps and groups of operations on an accelerator, beside plain PyTorch and `torch.compile`, in one process.

python benches/device.py steps             # whole steps: time, time of the host, memory, what was predicted; losses compared
python benches/device.py groups            # groups of operations as kernels
python benches/device.py rows              # single operations on rows of several lengths, as kernels that move as much
python benches/device.py times             # which kernels a step takes how long for
python benches/device.py predicted --preset h100   # what a preset says of the steps, on a machine without the device
python benches/device.py ... --inductor    # beside `torch.compile` too, which compiles for minutes
python benches/device.py ... --json FILE   # the figures, for programs

Times are medians of 15 steps, from where the device is idle until it is idle again. "host" is how long the call takes.
Bytes are those that PyTorch's allocator counts. `--device cpu` tries the script where there is no accelerator.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import kernels

import unisono
from unisono import _devices
from unisono._executor import Executor, lower_graph

WARM, ROUNDS = 3, 15


@dataclass
class Sizes:
    """Of a LLaMA, and of its batch."""

    width: int
    layers: int
    heads: int
    words: int
    batch: int
    length: int
    dtype: torch.dtype


#: The first two are small enough for launches to decide, the others large enough for operations to.
STEPS = {
    "tiny, 1 x 8": Sizes(64, 8, 4, 256, 1, 8, torch.float32),
    "tiny, 8 x 32": Sizes(64, 8, 4, 256, 8, 32, torch.float32),
    "f32, 512 wide": Sizes(512, 6, 8, 8192, 8, 512, torch.float32),
    "bf16, 2048 wide": Sizes(2048, 4, 16, 32000, 4, 2048, torch.bfloat16),
    "bf16, 4096 wide": Sizes(4096, 2, 32, 32000, 2, 4096, torch.bfloat16),
}
Step = Callable[[], torch.Tensor]


def made(sizes: Sizes, device: torch.device, wrap: Callable[[nn.Module], Any] = lambda model: model) -> Any:
    """A model, its optimizer (PyTorch's fused AdamW), its step, and a batch; the same numbers each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=sizes.words,
        hidden_size=sizes.width,
        intermediate_size=-(-sizes.width * 8 // 3 // 64) * 64,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=sizes.length,
        use_cache=False,
    )
    with device:
        model = LlamaForCausalLM(config).to(sizes.dtype).train()
        ids, labels = torch.randint(0, sizes.words, (2, sizes.batch, sizes.length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, fused=True)
    called = wrap(model)

    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = called(input_ids=ids, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return model, optimizer, step, (ids, labels)


def plain(sizes: Sizes, device: torch.device, **compiled: Any) -> Step:
    """The step of plain PyTorch, or with the model compiled."""
    wrap = (lambda model: torch.compile(model, **compiled)) if compiled else (lambda model: model)
    _, _, step, batch = made(sizes, device, wrap)
    return lambda: step(*batch)


def ours(sizes: Sizes, device: torch.device, kept: dict[str, Any], **settings: Any) -> Step:
    """The step of Unisono."""
    model, optimizer, step, batch = made(sizes, device)
    parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=batch, **settings)
    kept["step"], kept["batch"] = parallel, batch

    def run() -> torch.Tensor:
        return parallel(*batch).clone()

    return run


def cases(
    sizes: Sizes, device: torch.device, options: argparse.Namespace, kept: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Step]]]:
    """What is compared, and how each is made."""
    yield "eager", lambda: plain(sizes, device)
    for name, settings in (
        ("Unisono", {}),
        ("Unisono, fuse", {"fuse": True}),
        ("Unisono, graphs", {"graphs": "auto"}),
        ("Unisono, fuse, graphs", {"fuse": True, "graphs": "auto"}),
        ("Unisono, measured", {"cluster": None}),
        *([("Unisono, described", {"cluster": options.cluster})] if options.cluster else []),
    ):
        cluster = {} if device == _devices.HOST else {"cluster": preset(device)}
        yield name, lambda settings=cluster | settings: ours(sizes, device, kept, **settings)
    for partition in ("min_cut", "default"):
        name = "compile, Unisono" if partition == "min_cut" else "compile, Unisono, all kept"
        compiled = {"backend": "unisono", "options": {"partition": partition}}
        yield name, lambda compiled=compiled: plain(sizes, device, dynamic=False, **compiled)
    if options.inductor:
        yield "compile", lambda: plain(sizes, device, dynamic=False)
        yield "compile, reduce-overhead", lambda: plain(sizes, device, dynamic=False, mode="reduce-overhead")


def preset(device: torch.device) -> str:
    """The description of one device of this kind."""
    return "h200:1" if "H200" in _devices.model_of(device) else "h100:1"


def ended(step: Step, device: torch.device) -> tuple[float, float, torch.Tensor]:
    """Seconds until a step is done, and until it has been issued; its loss."""
    _devices.synchronise(device)
    start = time.perf_counter()
    loss = step()
    issued = time.perf_counter()
    _devices.synchronise(device)
    return time.perf_counter() - start, issued - start, loss


def allocated(device: torch.device) -> int:
    """Bytes that the device's allocator has given out."""
    gc.collect()
    return 0 if device == _devices.HOST else torch.accelerator.memory_allocated(device)


def growth(step: Step, device: torch.device) -> int:
    """The most bytes that it gives out during a step beyond those."""
    return 0 if device == _devices.HOST else _devices.peak_growth(device, step)


def of_step(name: str, sizes: Sizes, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured of one model."""
    found: dict[str, dict[str, Any]] = {}
    for case, make in cases(sizes, device, options, kept := {}):
        if options.cases and case not in options.cases:
            continue
        kept.clear()
        try:
            step, before = None, allocated(device)
            began = time.perf_counter()
            step = make()
            losses = [float(step()) for _ in range(WARM)]
            row: dict[str, Any] = {"made_s": time.perf_counter() - began, "losses": losses}
            taken = [ended(step, device)[:2] for _ in range(ROUNDS)]
            row |= {
                "ms": 1e3 * statistics.median(t for t, _ in taken),
                "host_ms": 1e3 * statistics.median(t for _, t in taken),
            }
            row["peak_mib"] = (allocated(device) - before + growth(step, device)) / 2**20
            if "step" in kept:
                prediction = kept["step"].plan.prediction
                row |= {"predicted_ms": prediction["step_ns"] / 1e6, "predicted_mib": prediction["peak_bytes"] / 2**20}
                row["graphs"] = kept["step"].graphs()
                if options.timelines:
                    kept["step"].write_timelines(
                        options.timelines / f"{name} {case}".replace(",", "").replace(" ", "_"), *kept["batch"]
                    )
            found[case] = row
        except Exception:
            traceback.print_exc()
            found[case] = {"error": traceback.format_exc().strip().splitlines()[-1]}
        step = None
        kept.clear()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        say(name, case, found[case], found.get("eager", {}))
    return found


def say(name: str, case: str, row: dict[str, Any], eager: dict[str, Any]) -> None:
    """One line of the table."""
    if "error" in row:
        print(f"| {name} | {case} | {row['error'][:300]} |", flush=True)
        return
    off = max(
        abs(one - other) / abs(other)
        for one, other in zip(row["losses"], eager.get("losses", row["losses"]), strict=True)
    )
    ratio = row["ms"] / eager["ms"] if "ms" in eager else 1.0
    cells = [
        f"{row['ms']:.2f}",
        f"{ratio:.2f}",
        f"{row['host_ms']:.2f}",
        f"{row['peak_mib']:.0f}",
        f"{off:.1e}",
        f"{row['made_s']:.1f}",
    ]
    cells += [f"{row['predicted_ms']:.2f}", f"{row['predicted_mib']:.0f}"] if "predicted_ms" in row else ["", ""]
    print(f"| {name} | {case} | {' | '.join(cells)} |", flush=True)


def steps(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    print("| step | case | ms | of eager | host ms | MiB | loss off | made s | predicted ms | predicted MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    return {
        name: of_step(name, sizes, device, options)
        for name, sizes in STEPS.items()
        if not options.only or name in options.only
    }


def predicted(_device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    print("| step | predicted ms | MiB | with kernels: ms | MiB |")
    print("|---|---|---|---|---|")
    found = {}
    for name, sizes in STEPS.items():
        model, optimizer, step, example = made(sizes, torch.device("meta"))
        graph = unisono.capture(step, model=model, optimizer=optimizer, example=example, device=options.preset)
        plans = [graph.plan(f"{options.preset}:1", fuse=fuse).prediction for fuse in (False, True)]
        cells = [cell for one in plans for cell in (f"{one['step_ns'] / 1e6:.2f}", f"{one['peak_bytes'] / 2**20:.0f}")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        found[name] = plans
    return found


def span(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one of many calls that follow each other: of the device, or of the host where that is what takes longer."""
    for _ in range(3):
        run()
    calls, best = 1, float("inf")
    while True:
        _devices.synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        _devices.synchronise(device)
        taken = time.perf_counter() - start
        if taken > 0.01:
            break
        calls *= 4
    for _ in range(4):
        _devices.synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        _devices.synchronise(device)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def groups(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Groups of operations, in microseconds a call, and how fast they move the bytes that have to be moved."""
    columns = ["eager", *(["Inductor"] if options.inductor else []), "Unisono"]
    print("| group | type | MB | " + " | ".join(f"{one}, us" for one in columns) + " | Unisono, GB/s | of eager |")
    print("|---" * (5 + len(columns)) + "|")
    found = {}
    for name, (function, kinds) in kernels.GROUPS.items():
        for dtype in (torch.float32, torch.bfloat16) if not options.only or name in options.only else ():
            for elements in (1 << 18, 1 << 24, 1 << 26):
                try:
                    row = of_group(name, function, operands(kinds, elements, dtype, device), device, options.inductor)
                except Exception:
                    traceback.print_exc()
                    row = {"error": traceback.format_exc().strip().splitlines()[-1]}
                megabytes = elements * dtype.itemsize / 2**20
                found[f"{name}, {dtype}, {megabytes:.0f}"] = row
                text = row.get("error") or " | ".join(
                    [
                        *(f"{1e6 * row[one]:.1f}" for one in columns),
                        f"{row['bytes'] / row['Unisono'] / 1e9:.0f}",
                        f"{row['Unisono'] / row['eager']:.2f}",
                    ]
                )
                print(f"| {name} | {str(dtype)[6:]} | {megabytes:.1f} | {text} |", flush=True)
    return found


def operands(kinds: str, elements: int, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """What a group is called with; statistics of rows are f32 on devices."""
    made = zip(kinds, kernels.tensors(kinds, elements, dtype), strict=True)
    return [(one.float() if kind == "n" else one).to(device) for kind, one in made]


def of_group(
    name: str, function: Callable[..., Any], inputs: list[torch.Tensor], device: torch.device, inductor: bool
) -> dict[str, Any]:
    graph = unisono.capture(function, example=tuple(inputs))
    run = Executor(lower_graph(graph.native, device=device, fuse=True))
    run.bind([])
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(run(inputs), expected, strict=True):
        is_narrow = one.dtype == torch.bfloat16
        # PyTorch rounds to 16 bits what it adds up in sums of columns.
        near = max(5e-2, 2e-2 * float(other.abs().max())) if is_narrow and other.numel() else 5e-2
        torch.testing.assert_close(one, other, rtol=2e-2 if is_narrow else 1e-3, atol=near)
    rivals: dict[str, Callable[[], object]] = {"eager": lambda: function(*inputs), "Unisono": lambda: run(inputs)}
    if inductor:
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=False)
        rivals["Inductor"] = lambda: compiled(*inputs)
    moved = sum(one.numel() * one.element_size() for one in [*inputs, *(one for one in expected if one is not None)])
    with torch.no_grad():
        return {"bytes": moved, **{rival: span(call, device) for rival, call in rivals.items()}}


def doubled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A group that moves as much as its operation does, which alone might stay PyTorch's."""
    return lambda x, *rest: function(x * 2, *rest)


#: Operations on rows, with how many tensors they read.
ROWS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "softmax": (lambda x: torch.softmax(x, -1), 1),
    "softmax backward": (lambda x, y: torch.ops.aten._softmax_backward_data(x, y, -1, x.dtype), 2),
    "log softmax": (lambda x: torch.log_softmax(x, -1), 1),
    "log softmax backward": (lambda x, y: torch.ops.aten._log_softmax_backward_data(x, y, -1, x.dtype), 2),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, [x.shape[-1]]), 1),
    "RMS norm": (lambda x: torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], None, 1e-6)[0], 1),
    "SiLU": (torch.nn.functional.silu, 1),
    "GELU (tanh)": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 1),
}
LENGTHS, ELEMENTS = (1024, 2048, 4096, 8192, 32000, 50257), 1 << 26


def rows(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Single operations, in microseconds a call, beside kernels of as many bytes."""
    print("| operation | type | rows | eager, us | kernel, us | of eager | kernel, GB/s |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    elements = ELEMENTS if device.type == "cuda" else 1 << 18
    for name, (function, reads) in ROWS.items():
        for dtype in (torch.float32, torch.bfloat16) if not options.only or name in options.only else ():
            for length in LENGTHS if "LU" not in name else LENGTHS[2:3]:
                shape = (elements // length, length)
                inputs = [torch.randn(shape, device=device, dtype=dtype) for _ in range(reads)]
                row = of_rows(function, inputs, device)
                found[f"{name}, {dtype}, {length}"] = row
                cells = [
                    f"{1e6 * row['eager']:.1f}",
                    f"{1e6 * row['kernel']:.1f}",
                    f"{row['kernel'] / row['eager']:.2f}",
                ]
                text = " | ".join([*cells, f"{row['bytes'] / row['kernel'] / 1e9:.0f}"])
                print(f"| {name} | {str(dtype)[6:]} | {shape[0]} x {length} | {text} |", flush=True)
    return found


def of_rows(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], device: torch.device
) -> dict[str, float]:
    group = doubled(function)
    run = Executor(lower_graph(unisono.capture(group, example=tuple(inputs)).native, device=device, fuse=True))
    run.bind([])
    torch.testing.assert_close(run(inputs)[0], group(*inputs), rtol=2e-2, atol=5e-2)
    moved = (len(inputs) + 1) * inputs[0].numel() * inputs[0].element_size()
    rivals = {"eager": lambda: function(*inputs), "kernel": lambda: run(inputs)}
    return {"bytes": moved, **{rival: span(call, device) for rival, call in rivals.items()}}


def times(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """The kernels of a step, in milliseconds, by name: how long they take, and how often they run."""
    from torch.profiler import ProfilerActivity, profile

    found = {}
    chosen = {name: sizes for name, sizes in STEPS.items() if not options.only or name in options.only}
    for name, sizes in chosen.items():
        for case, make in cases(sizes, device, options, {}):
            if options.cases and case not in options.cases:
                continue
            step = make()
            for _ in range(WARM):
                step()
            _devices.synchronise(device)
            with profile(activities=[ProfilerActivity.CUDA]) as taken:
                for _ in range(ROUNDS):
                    step()
                _devices.synchronise(device)
            each = [
                (one.self_device_time_total / 1e3 / ROUNDS, one.count / ROUNDS, one.key) for one in taken.key_averages()
            ]
            each.sort(reverse=True)
            found[f"{name}, {case}"] = each
            print(f"{name}, {case}: {sum(one[0] for one in each):.2f} ms of kernels", flush=True)
            for ms, count, kernel in each[:40]:
                print(f"{ms:9.3f} {count:6.1f} {kernel[:120]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "groups", "rows", "times", "predicted"], nargs="+")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--device", default=_devices.accelerator() or "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--preset", default="h100", help="what `predicted` is for")
    parser.add_argument(
        "--timelines", type=Path, metavar="FOLDER", help="write each step as it was predicted and as it ran"
    )
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="predict by this description too")
    parser.add_argument("--only", nargs="+", help="these steps or groups")
    parser.add_argument("--columns", type=int, default=kernels.COLUMNS, help="the length of rows of groups")
    parser.add_argument("--cases", nargs="+", help="these cases of steps")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    kernels.COLUMNS = arguments.columns
    device = torch.device(arguments.device)
    device = _devices.HOST if device == _devices.HOST else _devices.current()
    print(f"{_devices.model_of(device)}, PyTorch {torch.__version__}\n")
    kinds = {"steps": steps, "groups": groups, "rows": rows, "times": times, "predicted": predicted}
    found = {what: kinds[what](device, arguments) for what in arguments.what}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
