"""The executor beside what one would use instead, in one process, by CPU time and with one thread.

python benches/executor.py calls     # one operation: C++ without boxing, both routes, Python
python benches/executor.py step      # a whole training step: eager, FX, Inductor
python benches/executor.py memory    # growth over 3,000 steps and over failing ones
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgpack
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python" / "tests")]

import gpt_step  # noqa: E402
from fx_program import trace  # noqa: E402

import unisono  # noqa: E402
from unisono._executor import Executor, lower, lower_graph  # noqa: E402
from unisono._interpret import interpret  # noqa: E402
from unisono._program import ProgramBuilder, Slot  # noqa: E402

aten = torch.ops.aten


def fastest(cases: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float) -> dict[str, float]:
    """The least CPU seconds of one call of each, over rounds that take turns."""
    counts, best = {}, {}
    for name, call in cases.items():
        for _ in range(3):
            call()
        start = time.process_time()
        call()
        counts[name] = max(1, int(seconds / max(time.process_time() - start, 1e-6)))
        best[name] = float("inf")
    for _ in range(rounds):
        for name, call in cases.items():
            start = time.process_time()
            for _ in range(counts[name]):
                call()
            best[name] = min(best[name], (time.process_time() - start) / counts[name])
    return best


# One operation -------------------------------------------------------------------------------------------------------

CHAIN = 1000
CALLS = {
    "view": lambda x: aten.view.default(x, [8, 8]),
    "relu": aten.relu.default,
    "mul": lambda x: aten.mul.Tensor(x, x),
    "mm": lambda x: aten.mm.default(x, x),
    "add": lambda x: aten.add.Tensor(x, x),
    "norm": lambda x: aten.native_layer_norm.default(x, [8], None, None, 1e-5)[0],
}


#: Operations that go by the dispatcher and take nothing but tensors: their overload, and how many they take.
DISPATCHED = {"relu": (b"", 1), "mul": (b"Tensor", 2), "mm": (b"", 2)}


def chain(name: str, *, view: bool = False, rewrite: bool = False) -> Executor:
    """A program of one operation after the other, perhaps with a view of each result between; rewritten as a step's is, or not."""
    x = torch.zeros(8, 8)
    builder = ProgramBuilder()
    slot = builder.slot(x)
    builder.inputs.append(slot)
    calls = {
        "view": (aten.view.default, lambda s: [s, [8, 8]]),
        "relu": (aten.relu.default, lambda s: [s]),
        "mul": (aten.mul.Tensor, lambda s: [s, s]),
        "mm": (aten.mm.default, lambda s: [s, s]),
        "add": (aten.add.Tensor, lambda s: [s, s]),
        "norm": (aten.native_layer_norm.default, lambda s: [s, [8], None, None, 1e-5]),
    }
    op, args = calls[name]
    for _ in range(CHAIN):
        target = builder.slot(x)
        builder.call(op, args(Slot(slot)), {}, [target, None, None] if name == "norm" else [target])
        slot = target
        if view:
            target = builder.slot(x)
            builder.call(aten.t.default, [Slot(slot)], {}, [target])
            slot = target
    builder.returns.append(slot)
    executor = Executor(lower(builder.spec(), rewrite=rewrite))
    executor.bind([])
    return executor


def floor() -> ctypes.CDLL:
    """The chains in C++, compiled against this PyTorch."""
    home = Path(torch.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="unisono-"), "floor.so")
    command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{home}/include", str(HERE / "executor_floor.cpp")]
    command += ["-o", str(target), f"-L{home}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))


def bench_calls() -> None:
    library = floor()
    x = torch.zeros(8, 8)
    (capsule,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([x])
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    raw = ctypes.c_void_p(pointer(capsule, None))
    print("| operation | route | C++ ns | Rust ns | torch.ops ns | Rust / C++ | Rust / torch.ops |")
    print("|---|---|---|---|---|---|---|")
    for name, python in CALLS.items():
        run = chain(name)
        direct = getattr(library, f"run_{name}")

        def by_python(python=python):
            y = x
            with torch.no_grad():
                for _ in range(CHAIN):
                    y = python(y)

        cases = {"c": lambda direct=direct: direct(raw, CHAIN), "rust": lambda run=run: run([x]), "python": by_python}
        if name == "view":
            cases["same"] = lambda: library.run_metadata(raw, CHAIN)
        elif name in DISPATCHED:
            overload, operands = DISPATCHED[name]
            called = (f"aten::{name}".encode(), overload, operands)
            cases["same"] = lambda called=called: library.run_dispatched(raw, CHAIN, *called)
        best = {case: 1e9 * value / CHAIN for case, value in fastest(cases, rounds=25, seconds=0.01).items()}
        views, dispatcher, *_ = run.program.counts()
        route = "metadata" if views else "dispatcher" if dispatcher else "proxy"
        c, rust, ops = best["c"], best["rust"], best["python"]
        print(f"| {name} | {route} | {c:.0f} | {rust:.0f} | {ops:.0f} | {rust / c:.2f} | {rust / ops:.2f} |")
        if "same" in best:
            of = rust / best["same"]
            print(
                f"| {name}, the same function of libtorch's called from C++ | | {best['same']:.0f} | {rust:.0f} | | {of:.2f} | |"
            )


def bench_buffers() -> None:
    """What buffers that stay save: a result is not allocated, and its view not made, at each step."""
    x = torch.zeros(8, 8)
    print("\n| operation | allocated ns | in a buffer ns | with a view ns | in a buffer, with a view ns |")
    print("|---|---|---|---|---|")
    for name in ("mul", "mm", "add"):
        runs = {
            (view, rewrite): chain(name, view=view, rewrite=rewrite)
            for view in (False, True)
            for rewrite in (False, True)
        }
        cases = {str(key): (lambda run=run: run([x])) for key, run in runs.items()}
        best = fastest(cases, rounds=25, seconds=0.01)
        print(f"| {name} | " + " | ".join(f"{1e9 * value / CHAIN:.0f}" for value in best.values()) + " |")


# A whole step --------------------------------------------------------------------------------------------------------


STATE = ("parameter", "buffer", "optimizer", "constant")


def captured(size: int, length: int, *, fuse: bool = False):
    """A captured step as an executor, with its graph, the state that is bound and what is passed at each step."""
    torch.manual_seed(0)
    model, batch = gpt_step.GPT(), gpt_step.batch(size, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt_step.LR)
    graph = unisono.capture(gpt_step.step(model, optimizer), model=model, optimizer=optimizer, example=batch)
    native, _ = graph.native.run_passes()
    start = time.process_time()
    run = Executor(lower_graph(native.for_kernels(), fuse=True) if fuse else lower_graph(native))
    build = time.process_time() - start
    decoded = msgpack.unpackb(native.message())["graph"]
    values = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    is_state = [item["class"] in STATE for item in decoded["inputs"]]
    state = [value for value, one in zip(values, is_state, strict=True) if one]
    run.bind(state)
    rest = [value for value, one in zip(values, is_state, strict=True) if not one]
    return run, decoded, values, rest, build


def equal_to_interpreter(size: int, length: int) -> None:
    run, decoded, values, rest, _ = captured(size, length)
    other = [value.clone() for value in values]
    for _ in range(5):
        found = run(rest)
        expected, updates = interpret(decoded, other)
        for position, value in updates.items():
            other[position] = value
        assert all(torch.equal(a, b) for a, b in zip([*found, *values], [*expected, *other], strict=True))


def bench_step(size: int, length: int, *, inductor: bool) -> None:
    equal_to_interpreter(size, length)
    run, decoded, _, rest, build = captured(size, length)
    kernels, *_ = captured(size, length, fuse=True)
    nodes = len(decoded["order"])
    views, dispatcher, proxy, _, python, once = run.program.counts()
    all_views = str(run.program).count(" by view")
    print(
        f"\n{size} x {length} tokens: {nodes} nodes, lowered and linked in {1e3 * build:.0f} CPU ms "
        f"({1e3 * build / nodes:.3f} ms each): {views} of {all_views} views at each step, {dispatcher} calls by dispatcher, "
        f"{proxy} by proxy, {python} by Python, {once} run once; bitwise equal to node by node over 5 steps"
    )
    torch.manual_seed(0)
    model, inputs = gpt_step.GPT(), list(gpt_step.batch(size, length))
    flat = gpt_step.FlatStep(model, fused=True)
    flat_state = flat.state()
    graph = trace(flat, inputs, flat_state)

    def by_fx():
        with torch.no_grad():
            graph(*flat_state, *inputs)

    eager, fused = (gpt_step.eager_step(gpt_step.GPT(), fused=fused) for fused in (None, True))
    cases: dict[str, Callable[[], object]] = {"Unisono": lambda: run(rest), "Unisono, kernels": lambda: kernels(rest)}
    cases |= {"FX graph module, fused AdamW": by_fx}
    cases["eager, AdamW"] = lambda: eager(*inputs)
    cases["eager, fused AdamW"] = lambda: fused(*inputs)
    if inductor:
        cases["Inductor, whole step"] = inductor_step(model, inputs)
    best = fastest(cases, rounds=8, seconds=0.15)
    print("\n| | CPU ms | Unisono / this | with kernels / this |")
    print("|---|---|---|---|")
    for name, value in best.items():
        own = [best[one] / value for one in ("Unisono", "Unisono, kernels")]
        print(f"| {name} | {1e3 * value:.2f} | {own[0]:.2f} | {own[1]:.2f} |")


def inductor_step(model: torch.nn.Module, inputs: list[torch.Tensor]) -> Callable[[], object]:
    """The whole step as one graph, with elementwise AdamW, because Inductor refuses the fused operation in it."""
    flat = gpt_step.FlatStep(model, fused=False)
    state = flat.state()
    graph = trace(flat, inputs, state)
    start = time.process_time()
    compiled = torch.compile(graph, fullgraph=True)
    with torch.no_grad():
        compiled(*state, *inputs)
    print(f"Inductor has compiled for {time.process_time() - start:.0f} CPU s (this process)", file=sys.stderr)

    def step():
        with torch.no_grad():
            return compiled(*state, *inputs)

    return step


# Memory --------------------------------------------------------------------------------------------------------------


class _Malloc(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def in_use() -> int:
    """Bytes that malloc has handed out."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Malloc
    info = mallinfo()
    return info.uordblks + info.hblkhd


def bench_memory() -> None:
    run, _, _, inputs, _ = captured(1, 8)
    wrong = [one if one.is_floating_point() else one + 1000 for one in inputs]
    for what, step, steps in (("steps", lambda: run(inputs), 3000), ("failing steps", lambda: fails(run, wrong), 500)):
        for _ in range(50):
            step()
        before = in_use()
        for _ in range(steps):
            step()
        growth = in_use() - before
        print(f"{steps} {what}: malloc in use grew by {growth} B ({1000 * growth / steps:.0f} B per 1,000)")


def fails(run: Executor, inputs: list[torch.Tensor]) -> None:
    try:
        run(inputs)
    except Exception:
        return
    raise AssertionError("a target out of range was taken")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calls", "step", "memory"], nargs="+")
    parser.add_argument("--no-inductor", action="store_true", help="leave the slow compilation out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    what = arguments.what
    if "calls" in what:
        bench_calls()
        bench_buffers()
    if "step" in what:
        for size, length in ((1, 8), (8, 32)):
            bench_step(size, length, inductor=not arguments.no_inductor)
    if "memory" in what:
        bench_memory()


if __name__ == "__main__":
    main()
