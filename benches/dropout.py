"""Dropout by a counter beside PyTorch's own on the CPU: nanoseconds per element, one thread, least of many calls, alternating.

python benches/dropout.py

"mask" draws the mask alone (``bernoulli_``), "step" is ``F.dropout`` as the program of a captured step has it: mask, scale, product.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from unisono._counter import key_of
from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, slots

SIZES = {"1 MB": (256, 1024), "64 MB": (16384, 1024)}
ROUNDS = 15
ATEN = torch.ops.aten


def program(shape: tuple[int, int], name: str, a: float, b: float, *, product: bool) -> Callable[[], object]:
    """What the executor draws, and with ``product`` multiplies a tensor by."""
    operands = [key_of(0), *map(torch.arange, shape), torch.ones(shape)]
    builder = ProgramBuilder()
    given = [builder.slot(one) for one in operands]
    made = [builder.slot(operands[-1]) for _ in range(3)]
    builder.inputs += given
    key, index, x = slots(given[:1])[0], slots(given[1:3]), slots(given[3:])[0]
    numbers = [list(shape), 0, name, a, b, 24, torch.float32]
    builder.call(torch.ops.unisono.random_at.default, [key, index, *numbers], {}, made[:1])
    if product:
        builder.call(ATEN.div.Scalar, [slots(made[:1])[0], a], {}, made[1:2])
        builder.call(ATEN.mul.Tensor, [x, slots(made[1:2])[0]], {}, made[2:])
    builder.returns.append(made[2 if product else 0])
    executor = Executor(lower(builder.spec(), rewrite=True))
    return lambda: executor(operands)


def least(calls: list[Callable[[], object]]) -> list[float]:
    """The least nanoseconds of each call, called in turns."""
    found = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for number, call in enumerate(calls):
            start = time.perf_counter_ns()
            call()
            found[number] = min(found[number], time.perf_counter_ns() - start)
    return found


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    print("| what | size | PyTorch | counter | PyTorch / counter |\n|---|---|---|---|---|")
    for size, shape in SIZES.items():
        x = torch.ones(shape)
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "mask": (
                lambda x=x: torch.empty_like(x).bernoulli_(0.9),
                program(shape, "bernoulli", 0.9, 0.0, product=False),
            ),
            "step": (lambda x=x: F.dropout(x, 0.1), program(shape, "bernoulli", 0.9, 0.0, product=True)),
            "rand": (lambda shape=shape: torch.rand(shape), program(shape, "uniform", 0.0, 1.0, product=False)),
            "randn": (lambda shape=shape: torch.randn(shape), program(shape, "normal", 0.0, 1.0, product=False)),
        }
        for name, pair in pairs.items():
            theirs, ours = (nanos / x.numel() for nanos in least(list(pair)))
            print(f"| {name} | {size} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
