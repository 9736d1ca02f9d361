"""Groups of operations as kernels beside eager PyTorch, and Inductor: nanoseconds of CPU per element, one thread.

python benches/kernels.py             # 64 KB, 1 MB and 64 MB, with memory as PyTorch allocates it and with memory that is kept
python benches/kernels.py --inductor  # with Inductor, which needs a C++ compiler and minutes
python benches/kernels.py --patterns  # what rewrites gain
python benches/kernels.py --cuda      # what NVRTC takes to compile the groups, and what they take of a device; needs no device

"call" is a call from Python as a user makes it; "kernel" is the time of the kernel alone, as the executor records it. Figures are the least
of many calls.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import unisono
from unisono import _cuda, _native
from unisono._executor import Executor, lower_graph
from unisono._measure import peak_growth

SIZES = {"64 KB": 1 << 14, "1 MB": 1 << 18, "64 MB": 1 << 24}
COLUMNS = 1024
#: glibc gives large blocks back to the system at once; with these it keeps them.
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
SECONDS = 0.4


def swiglu(gate, up):
    return F.silu(gate) * up


def swiglu_backward(grad, gate, up):
    return torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def gelu_tanh_backward(grad, x):
    return torch.ops.aten.gelu_backward(grad, x, approximate="tanh")


def gated_residual(x, y, gate_C):
    return x + y * gate_C


def rms_norm(x, weight_C):
    return weight_C * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def layer_norm(x, weight_C, bias_C):
    return torch.ops.aten.native_layer_norm(x, [COLUMNS], weight_C, bias_C, 1e-5)


def layer_norm_backward(grad, x, mean_R1, rstd_R1, weight_C):
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, [COLUMNS], mean_R1, rstd_R1, weight_C, weight_C, [True, True, True]
    )


def rms_norm_backward(grad, x, rstd_R1, weight_C):
    normed, scaled = x * rstd_R1, grad * weight_C
    back = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * rstd_R1
    return back.to(x.dtype), (grad * normed).sum(0).to(x.dtype)


def gelu_and_bias_backward(grad, x):
    back = torch.ops.aten.gelu_backward(grad, x, approximate="tanh")
    return back, back.sum(0)


def modulate(x, scale_C, shift_C):
    return F.layer_norm(x, [COLUMNS]) * (1 + scale_C) + shift_C


def softmax(x):
    return F.softmax(x, -1)


def softmax_backward(grad, output):
    return torch.ops.aten._softmax_backward_data(grad, output, -1, grad.dtype)


BETAS, LR, DECAY, EPS, STEP = (0.9, 0.999), 1e-3, 0.01, 1e-8, 10


def adamw(p, grad, m, v):
    m = torch.lerp(m, grad, 1 - BETAS[0])
    v = (v * BETAS[1]).addcmul(grad, grad, value=1 - BETAS[1])
    scale = math.sqrt(1 - BETAS[1] ** STEP)
    rate = LR / (1 - BETAS[0] ** STEP)
    return (p * (1 - LR * DECAY)).addcdiv(m, v.sqrt() / scale + EPS, value=-rate), m, v


def fused_adamw(p, grad, m, v):
    step = torch.tensor(float(STEP))
    torch._fused_adamw_(
        [p], [grad], [m], [v], [], [step],
        lr=LR, beta1=BETAS[0], beta2=BETAS[1], weight_decay=DECAY, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


#: Each group with what it is called with: a tensor, positive numbers, a row, or a number for each row.
GROUPS: dict[str, tuple[Callable, str]] = {
    "SwiGLU": (swiglu, "tt"),
    "SwiGLU backward": (swiglu_backward, "ttt"),
    "GELU (tanh)": (gelu_tanh, "t"),
    "GELU (tanh) backward": (gelu_tanh_backward, "tt"),
    "gated residual": (gated_residual, "ttr"),
    "AdamW": (adamw, "tttp"),
    "RMSNorm written out": (rms_norm, "tr"),
    "LayerNorm": (layer_norm, "trr"),
    "LayerNorm backward": (layer_norm_backward, "ttnnr"),
    "RMSNorm backward": (rms_norm_backward, "ttnr"),
    "GELU and bias backward": (gelu_and_bias_backward, "tt"),
    "LayerNorm and modulation": (modulate, "trr"),
    "softmax": (softmax, "t"),
    "softmax backward": (softmax_backward, "tp"),
}


def tensors(kinds: str, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shape = (elements // COLUMNS, COLUMNS)
    make = {"t": lambda: torch.randn(shape), "p": lambda: torch.rand(shape), "r": lambda: torch.randn(COLUMNS)}
    make["n"] = lambda: torch.rand(elements // COLUMNS, 1)
    return [make[kind]().to(dtype) for kind in kinds]


def least(call: Callable[[], object]) -> float:
    """The least CPU seconds of a call."""
    for _ in range(3):
        call()
    best, end = math.inf, time.process_time() + SECONDS
    while time.process_time() < end:
        start = time.process_time_ns()
        call()
        best = min(best, time.process_time_ns() - start)
    return best / 1e9


def kernel_seconds(run: Executor, inputs: list[torch.Tensor]) -> float:
    """The least seconds of all instructions of a program."""
    return min(sum(duration for *_, duration in run.record(inputs)[1]) for _ in range(30)) / 1e9


def measure(name: str, elements: int, dtype: torch.dtype, inductor: bool) -> dict[str, float]:
    function, kinds = GROUPS[name]
    inputs = tensors(kinds, elements, dtype)
    graph = unisono.capture(function, example=tuple(inputs))
    run = Executor(lower_graph(graph.native, fuse=True))
    run.bind([])
    for found, expected in zip(
        run(inputs), (lambda x: x if isinstance(x, tuple) else (x,))(function(*inputs)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=5e-2)
    rivals = {"eager": function}
    if name == "AdamW":
        rivals["fused AdamW"] = fused_adamw
    if inductor:
        rivals["Inductor"] = torch.compile(function)
    times = {rival: least(lambda rival=rival: rivals[rival](*inputs)) for rival in rivals}
    times |= {"call": least(lambda: run(inputs)), "kernel": kernel_seconds(run, inputs)}
    return {what: seconds / elements * 1e9 for what, seconds in times.items()}


def compile_for_cuda(architecture: str = "sm_90") -> None:
    """Prints what groups take to be compiled, alone and among 32 kernels, and what their functions take of a device."""
    libraries = _cuda.libraries_of_cuda()
    kept = [ctypes.CDLL(str(file)) for file in (*libraries.before, libraries.compiler)]  # loaded once

    def compiled(kernels: list[str]) -> tuple[float, list[tuple[str, int, int, int]]]:
        text, _ = _native.cuda_source(kernels)
        start = time.process_time_ns()
        made = _native.compile_cuda(text, architecture, libraries.compiler, libraries.before)
        return (time.process_time_ns() - start) / 1e6, made

    def kernels_of(name: str, elements: int, dtype: torch.dtype) -> list[str]:
        function, kinds = GROUPS[name]
        return unisono.capture(function, example=tuple(tensors(kinds, elements, dtype))).native.kernel_texts()

    many = [
        kernel
        for elements in SIZES.values()
        for dtype in (torch.float32, torch.bfloat16)
        for name in GROUPS
        for kernel in kernels_of(name, elements, dtype)
    ]
    first, among = compiled(many[:1])[0], compiled(many[:32])[0] / 32
    print(
        f"the first program {first:.0f} ms of CPU, one of 32 kernels {among:.1f} ms for each ({len(kept)} libraries)\n"
    )
    print(
        "| group | compiled alone, ms of CPU | functions: registers, bytes spilled, bytes of shared memory |\n|---|---|---|"
    )
    for name in GROUPS:
        alone, made = compiled(kernels_of(name, SIZES["1 MB"], torch.float32))
        functions = "; ".join(f"{registers}, {spilled}, {shared}" for _, registers, spilled, shared in made)
        print(f"| {name} | {alone:.0f} | {functions} |")


def loss_of(dtype: torch.dtype, words: int, rows: int) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A cross entropy of logits, forward and backward, and what it is called with."""

    def loss(x_NV, target_N, scale):
        x_NV = (x_NV * scale).requires_grad_()
        made = F.cross_entropy(x_NV.float(), target_N)
        return made, torch.autograd.grad(made, x_NV)[0]

    logits = torch.randn(rows, words).to(dtype)
    return loss, (logits, torch.randint(0, words, (rows,)), torch.ones((), dtype=dtype))


def attention_of(length: int) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """Attention written out, forward and backward, and what it is called with."""

    def both(q_BSHD, k_BSHD, v_BSHD, gradient_BSHD):
        leaves = [one.detach().requires_grad_() for one in (q_BSHD, k_BSHD, v_BSHD)]
        made = written_out(*leaves)
        return made, *torch.autograd.grad(made, leaves, gradient_BSHD)

    return both, tuple(torch.randn(2, length, 8, 64) for _ in range(4))


def written_out(q_BSHD, k_BSHD, v_BSHD):
    q, k, v = (one.transpose(1, 2) for one in (q_BSHD, k_BSHD, v_BSHD))
    weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
    return (weights @ v).transpose(1, 2).contiguous()


def in_one(q_BSHD, k_BSHD, v_BSHD):
    q, k, v = (one.transpose(1, 2) for one in (q_BSHD, k_BSHD, v_BSHD))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


def patterns() -> None:
    """Prints what rewrites gain: milliseconds of CPU of a call by eager PyTorch, without kernels, with them, and with the rewrite too."""
    torch.set_num_threads(1)
    cases = {
        f"cross entropy, {rows} x {words}, {dtype}".replace("torch.", ""): loss_of(dtype, words, rows)
        for dtype in (torch.float32, torch.bfloat16)
        for rows, words in ((512, 8192), (1024, 32000))
    }
    cases |= {f"attention written out, 2 x 8 x {length} x 64": attention_of(length) for length in (512, 1024)}
    print("| case | eager, ms | Unisono | with kernels | rewritten | of eager | bytes of the largest moment |")
    print("|---|---|---|---|---|---|---|")
    for name, (function, inputs) in cases.items():
        graph = unisono.capture(function, example=inputs).native
        unisono.register_pattern("attention", written_out, in_one, examples=[inputs[:3]] if "attention" in name else ())
        rewritten = unisono.capture(function, example=inputs).native.for_kernels()
        unisono.forget_pattern("attention")
        runs = [
            Executor(lower_graph(one, fuse=fuse)) for one, fuse in ((graph, False), (graph, True), (rewritten, True))
        ]
        for run in runs:
            run.bind([])
        ways = [
            lambda *given, function=function: function(*given),
            *(lambda *given, run=run: run(list(given)) for run in runs),
        ]
        calls = [functools.partial(way, *inputs) for way in ways]
        expected = calls[0]()
        for found, one in zip(calls[3](), expected, strict=True):
            torch.testing.assert_close(found, one, rtol=2e-2, atol=1e-3)
        times = [least(call) * 1e3 for call in calls]
        peaks = " / ".join(f"{peak_growth(call, repeats=2) / 1e6:.0f}" for call in calls)
        print(f"| {name} | " + " | ".join(f"{one:.2f}" for one in times) + f" | {times[3] / times[0]:.2f} | {peaks} |")


def child(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    with torch.no_grad():
        found = {
            name: {size: measure(name, SIZES[size], dtype, arguments.inductor) for size in arguments.sizes}
            for name in GROUPS
        }
    print(json.dumps(found))


def main() -> None:
    global COLUMNS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE", help="of a tensor")
    parser.add_argument("--columns", type=int, default=COLUMNS, help="the length of rows")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--patterns", action="store_true")
    arguments = parser.parse_args()
    COLUMNS = arguments.columns
    if arguments.patterns:
        return patterns()
    if arguments.cuda:
        return compile_for_cuda()
    if arguments.child:
        return child(arguments)
    found = {}
    for memory, variables in (("default", {}), ("kept", KEPT)):
        command = [sys.executable, *sys.argv, "--child"]
        ended = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True)
        found[memory] = json.loads(ended.stdout)
    print(
        "| group | size | memory | "
        + " | ".join(columns := ["eager", "fused AdamW", "Inductor", "call", "kernel"])
        + " |"
    )
    print("|---" * (3 + len(columns)) + "|")
    for name in GROUPS:
        for size in arguments.sizes:
            for memory in found:
                row = found[memory][name][size]
                cells = [f"{row[column]:.2f}" if column in row else "" for column in columns]
                print(f"| {name} | {size} | {memory} | " + " | ".join(cells) + " |")
    return None


if __name__ == "__main__":
    main()
