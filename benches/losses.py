"""A head and its cross entropy, forward and backward, on one thread: milliseconds of CPU and the most megabytes held beside the inputs.

    python benches/losses.py             # torch.compile with several backends, beside eager PyTorch
    python benches/losses.py --chunks    # as one program, beside programs that never hold all logits

Times are the least of some rounds, which take turns.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import unisono
from unisono._executor import Executor, lower_graph
from unisono._measure import peak_growth

#: Rows, words and the width of what the head reads.
SIZES = ((1024, 8192, 256), (1024, 32000, 512), (2048, 32000, 512), (1024, 50257, 768))
CHUNKS = (1, 4, 8, 16)
IGNORED = -100


def given(rows: int, words: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Hidden states, the head's weight, and targets of which every seventh is ignored."""
    torch.manual_seed(0)
    target_N = torch.randint(0, words, (rows,))
    target_N[::7] = IGNORED
    return [(torch.randn(rows, width) * 0.5).to(dtype), (torch.randn(words, width) * 0.1).to(dtype), target_N]


def loss(hidden_NC, weight_VC, target_N):
    return F.cross_entropy((hidden_NC @ weight_VC.t()).float(), target_N)


def whole(hidden_NC, weight_VC, target_N, scale):
    """The loss and both gradients, for a gradient of the loss."""
    leaves = [hidden_NC.detach().requires_grad_(), weight_VC.detach().requires_grad_()]
    made = loss(*leaves, target_N)
    return made.detach(), *torch.autograd.grad(made, leaves, scale)


def chunked(hidden_NC, weight_VC, target_N, scale, count: int):
    """The same in chunks of rows: gradients are computed in forward for a gradient of 1, and scaled in the end."""
    aten, dtype = torch.ops.aten, hidden_NC.dtype
    rows = (target_N != IGNORED).sum().float()
    total, back_NC, back_VC = torch.zeros(()), [], None
    for hidden_c, target_c in zip(hidden_NC.chunk(count), target_N.chunk(count), strict=True):
        logs = F.log_softmax((hidden_c @ weight_VC.t()).float(), -1)
        total = total + F.nll_loss(logs, target_c, reduction="sum", ignore_index=IGNORED)
        slope = aten.nll_loss_backward(1 / rows, logs, target_c, None, 2, IGNORED, torch.zeros(()))
        slope = aten._log_softmax_backward_data(slope, logs, 1, torch.float32).to(dtype)
        back_NC.append(slope @ weight_VC)
        back_VC = slope.t() @ hidden_c if back_VC is None else torch.addmm(back_VC, slope.t(), hidden_c)
    return total / rows, torch.cat(back_NC) * scale.to(dtype), back_VC * scale.to(dtype)


def program(function: Callable, inputs: list[torch.Tensor], rewritten: bool) -> Callable[[], list[torch.Tensor]]:
    graph = unisono.capture(function, example=tuple(inputs)).native
    run = Executor(lower_graph(graph.for_kernels() if rewritten else graph, fuse=True))
    run.bind([])
    return lambda: run(inputs)


def in_chunks(inputs: list[torch.Tensor]) -> dict[str, Callable]:
    inputs = [*inputs, torch.tensor(2.0)]
    ways: dict[str, Callable] = {
        "eager": lambda: whole(*inputs),
        "one program": program(whole, inputs, True),
    }
    return ways | {
        f"{count} chunks": program(functools.partial(chunked, count=count), inputs, False) for count in CHUNKS
    }


def compiled(inputs: list[torch.Tensor]) -> dict[str, Callable]:
    hidden_NC, weight_VC, target_N = inputs
    leaves = [hidden_NC.requires_grad_(), weight_VC.requires_grad_()]

    def trained(function: Callable) -> tuple[torch.Tensor, ...]:
        for leaf in leaves:
            leaf.grad = None
        made = function(*leaves, target_N)
        made.backward()
        return made.detach(), *(leaf.grad for leaf in leaves)

    torch._dynamo.reset()
    backends = {name: torch.compile(loss, backend=name, dynamic=False) for name in ("unisono", "inductor")}
    return {name: functools.partial(trained, one) for name, one in {"eager": loss, **backends}.items()}


def row(ways: dict[str, Callable], rounds: int) -> list[str]:
    """For each way its time, in parts of the second one's, and its memory."""
    expected = ways["eager"]()
    for way in ways.values():
        for found, one in zip(way(), expected, strict=True):
            assert (found.float() - one.float()).abs().max() <= 1e-2 * one.float().abs().max()
    best = dict.fromkeys(ways, math.inf)
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time_ns()
            way()
            best[name] = min(best[name], (time.process_time_ns() - start) / 1e6)
    of = best["one program" if "one program" in best else "eager"]
    return [
        f"{best[name]:.0f}: {best[name] / of:.2f}, {peak_growth(ways[name], repeats=1) / 1e6:.0f} MB" for name in ways
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for index, (dtype, sizes) in enumerate(
        (dtype, sizes) for dtype in (torch.float32, torch.bfloat16) for sizes in SIZES
    ):
        ways = (in_chunks if chosen.chunks else compiled)(given(*sizes, dtype))
        if index == 0:
            print(f"| rows x words, width | {' | '.join(ways)} |\n{'|---' * (1 + len(ways))}|")
        name = f"{sizes[0]} x {sizes[1]}, {sizes[2]}, {str(dtype).removeprefix('torch.')}"
        print(f"| {name} | {' | '.join(row(ways, chosen.rounds))} |", flush=True)


if __name__ == "__main__":
    main()
