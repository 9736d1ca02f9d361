"""What `unisono plan` takes for steps of real size: LLaMA-7B widths, captured from parameters on `meta`.

Usage: python benches/real_sizes.py capture FOLDER [LAYERS ...]     writes FOLDER/llama-LAYERS-{fused,written}.msg, says what that and
                                                                     PyTorch's own `make_fx` of the step take, and the demo's step
       python benches/real_sizes.py kept FOLDER [LAYERS ...]        captures with a cache in FOLDER: what that takes, from the second
                                                                     start on from the cache
       python benches/real_sizes.py plan FOLDER [--unisono COMMAND]  plans each of them: CPU seconds, peak memory, predicted step
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import stateless

#: Eight devices of 600 TFLOP/s and 3 TB/s, joined at 300 GB/s and 10 us.
LINK = "{ latency_ns = 1e4, bandwidth = 3e11 }"
CLUSTER = f"""
version = 1
links = {{ all_reduce = {LINK}, all_gather = {LINK}, reduce_scatter = {LINK}, all_to_all = {LINK} }}
[device]
name = "fast"
memory_bytes = 80000000000
memory_bandwidth = 3e12
operation_ns = 0.0
matmul_flops = {{ f32 = 6e14, bf16 = 6e14 }}
"""
WIDTH, HIDDEN, HEADS, VOCABULARY = 4096, 11008, 32, 32000
BATCH, LENGTH = 8, 2048


def llama(layers: int, attention: str) -> tuple[nn.Module, torch.Tensor]:
    """The model and a batch of tokens: bf16 with attention by a kernel of its own ("fused"), or f32 with attention written out."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
            wide = x_BTD.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x_BTD.dtype)

    def turned(x_BHTK: torch.Tensor) -> torch.Tensor:
        first, second = x_BHTK.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)

    def mixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        written = sdpa_kernel(SDPBackend.MATH) if attention == "written" else contextlib.nullcontext()
        with written:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_in, self.norm_mlp = Norm(), Norm()
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x_BTD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            b, t, d = x_BTD.shape
            y = self.norm_in(x_BTD)
            q, k, v = (p(y).view(b, t, HEADS, d // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
            q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
            x_BTD = x_BTD + self.o(mixed(q, k, v).transpose(1, 2).reshape(b, t, d))
            y = self.norm_mlp(x_BTD)
            return x_BTD + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
            x_BTD = self.embedding(tokens_BT)
            k = WIDTH // HEADS
            rates = 10000.0 ** (-torch.arange(0, k, 2, device=x_BTD.device).float() / k)
            angles = torch.outer(torch.arange(tokens_BT.shape[1], device=x_BTD.device).float(), rates)
            angles = torch.cat((angles, angles), dim=-1)
            cos, sin = angles.cos().to(x_BTD.dtype), angles.sin().to(x_BTD.dtype)
            for block in self.blocks:
                x_BTD = block(x_BTD, cos, sin)
            return self.head(self.norm(x_BTD))

    with torch.device("meta"):
        model = Llama().to(torch.bfloat16 if attention == "fused" else torch.float32)
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return model, tokens


def make_step(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """One step with clipping."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def capture(folder: Path, layers: int, attention: str) -> None:
    """Captures one step with AdamW for GPUs, and says what that takes."""
    import unisono

    model, tokens = llama(layers, attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    start = time.process_time()
    graph = unisono.capture(
        make_step(model, optimizer), model=model, optimizer=optimizer, example=(tokens, tokens), device="cuda"
    )
    took = time.process_time() - start
    path = folder / f"llama-{layers}-{attention}.msg"
    path.write_bytes(graph.message)
    print(f"{path}: {len(graph.message):,} bytes, captured in {took:.1f} CPU s", flush=True)


def capture_kept(folder: Path, layers: int) -> None:
    """Captures one step with a cache, and says what that takes."""
    import unisono

    model, tokens = llama(layers, "fused")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step, example = make_step(model, optimizer), (tokens, tokens)
    start = time.process_time()
    unisono.capture(step, model=model, optimizer=optimizer, example=example, device="cuda", cache=folder)
    print(f"{layers} layers, fused, with a cache: {time.process_time() - start:.2f} CPU s", flush=True)


def trace(layers: int, attention: str) -> None:
    """Traces the same step, for processors, by PyTorch's ``make_fx``, and says what that takes."""
    model, tokens = llama(layers, attention)
    names, parameters = zip(*model.named_parameters(), strict=True)
    mode = FakeTensorMode()

    def run(tokens: torch.Tensor, *twins: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.AdamW(twins, lr=1e-4, foreach=False, capturable=True)
        with stateless._reparametrize_module(model, dict(zip(names, twins, strict=True))):
            return make_step(model, optimizer)(tokens, tokens).detach()

    start = time.process_time()
    with mode:
        tokens, *twins = (torch.empty(one.shape, dtype=one.dtype, device="cpu") for one in (tokens, *parameters))
    twins = [twin.requires_grad_() for twin in twins]
    with mock.patch("torch.compiler.is_compiling", return_value=True), torch.autograd.set_multithreading_enabled(False):
        graph = make_fx(run, tracing_mode="fake")(tokens, *twins)
    took = time.process_time() - start
    print(
        f"{layers} layers, {attention}: {len(graph.graph.nodes):,} nodes, traced by make_fx in {took:.1f} CPU s",
        flush=True,
    )


def capture_demo() -> None:
    """Captures the step of ``make demo`` three times, and says what each took: the first pays for what PyTorch makes once in a process."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import gpt

    import unisono

    example = next(gpt.batches(gpt.read_text()))
    for number in range(1, 4):
        model, optimizer, step = gpt.make()
        start = time.process_time()
        unisono.capture(step, model=model, optimizer=optimizer, example=example)
        print(f"GPT of `make demo`, capture {number}: {time.process_time() - start:.2f} CPU s", flush=True)


#: Runs a command and says its user and system seconds and its peak memory in MB on stderr. A process begins with the peak memory of the
#: one that started it, so that one has to be small.
USED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{used.ru_utime:.2f} + {used.ru_stime:.2f} | {used.ru_maxrss / 1024:.0f}", file=sys.stderr)
sys.exit(status)
"""


def plan(command: str, message: Path, cluster: Path) -> str:
    """One line of what a plan took and what it predicts."""
    measured = [sys.executable, "-I", "-S", "-c", USED]
    planned = [command, "plan", str(message), "--mesh", "ranks=8", "--cluster", str(cluster)]
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    small = subprocess.run([*shell, *measured, *planned], capture_output=True, text=True, check=False)
    if small.returncode:
        return f"| {message.stem} | failed: {small.stderr} |"
    predicted = dict(
        re.findall(r"^(\w+)_ns = (\d+)$", small.stdout, re.MULTILINE)[::-1]
    )  # the plan's own come before its runners-up's
    shown = ", ".join(f"{name} {int(predicted[name]) / 1e6:.2f}" for name in ("step", "exposed", "model", "bound"))
    return f"| {message.stem} | {small.stderr.splitlines()[-1]} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["capture", "kept", "plan"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("layers", nargs="*", type=int, default=[8, 32])
    parser.add_argument("--unisono", default=str(Path(sys.executable).parent / "unisono"))
    options = parser.parse_args()
    if options.action == "capture":
        capture_demo()
        for layers in options.layers:
            for attention in ("fused", "written"):
                capture(options.folder, layers, attention)
                trace(layers, attention)
        return
    if options.action == "kept":
        for layers in options.layers:
            capture_kept(options.folder / "captures", layers)
        return
    cluster = options.folder / "fast.toml"
    cluster.write_text(CLUSTER)
    print("| step | CPU s (user + system) | peak MB | ms of |\n|---|---|---|---|")
    for message in sorted(options.folder.glob("*.msg")):
        print(plan(options.unisono, message, cluster), flush=True)


if __name__ == "__main__":
    main()
