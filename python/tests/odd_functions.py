"""Functions made at random from a seed, with what they are called with: views, writes in place, aliased and strided inputs, many types."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from odd_operations import FAMILIES, Numbers, Operation

Tensor = torch.Tensor
#: No tensor has more elements.
MOST = 20_000
#: Element types that graphs do not have.
UNKNOWN = (torch.complex32,)
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
SETTINGS: list[dict[str, Any]] = [
    *[{}] * 3,
    *[{"dynamic": True}] * 2,
    {"dynamic": False},
    {"dynamic": True, "fullgraph": True},
    {"options": {"fuse": "auto"}},
    {"options": {"fuse": False}, "dynamic": True},
    {"options": {"partition": "default"}},
]
WEIGHTS = [one.weight for one in FAMILIES]
MODES = [*["gradients"] * 6, "no gradients", "inference", "autocast"]
LYING = [
    *["plain"] * 4,
    "transposed",
    "every other",
    "repeated",
    "from within",
    "overlapping",
    "shared",
    "channels last",
]


class Call(NamedTuple):
    """An operation on tensors of a pool, which what it gives is added to."""

    operation: Operation
    operands: list[int]
    numbers: Numbers
    text: str


@dataclass
class Input:
    """A tensor that a function is called with: how it lies in memory, and with which earlier one it shares that."""

    shape: list[int]
    dtype: torch.dtype
    lying: str
    needs_gradient: bool
    shared_with: int

    def made(self, generator: torch.Generator, earlier: Sequence[Tensor], rows: int | None) -> Tensor:
        """The tensor, with another number of rows where one is given."""
        shape = self.shape if rows is None or not self.shape else [rows, *self.shape[1:]]
        x = self._lying(shape, generator, earlier)
        return x.requires_grad_() if self.needs_gradient and self.lying != "shared" else x

    def _lying(self, shape: list[int], generator: torch.Generator, earlier: Sequence[Tensor]) -> Tensor:
        def values(*sizes: int) -> Tensor:
            return _values(sizes, self.dtype, generator)

        if self.lying == "shared" and earlier:
            other = earlier[self.shared_with].detach()
            if other.dtype == self.dtype and other.is_contiguous() and other.numel():
                return other.reshape(-1)[: max(1, other.numel() // 2)]
        if self.lying == "channels last" and len(shape) == 4:
            return values(*shape).to(memory_format=torch.channels_last)
        if self.lying == "transposed" and len(shape) > 1:
            return values(*shape[:-2], shape[-1], shape[-2]).mT
        if self.lying == "overlapping" and len(shape) > 1 and 0 not in shape:
            return values(*shape[:-2], shape[-2] + shape[-1] - 1).unfold(-1, shape[-1], 1)
        if self.lying == "every other" and shape:
            return values(*shape[:-1], shape[-1] * 2 + 1)[..., 1::2]
        if self.lying == "repeated" and shape:
            return values(1, *shape[1:]).expand(shape)
        if self.lying == "from within" and shape:
            return values(shape[0] + 2, *shape[1:])[2:]
        return values(*shape)


def _values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -4, 9, tuple(shape), generator=generator, dtype=dtype)
    narrow = dtype in SIXTEEN_BITS
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32 if narrow else dtype).to(dtype)


@dataclass
class OddFunction:
    """A function, how it is compiled, and what it is called with.

    Attributes:
        seed: what it is made from.
        settings: arguments of ``torch.compile``.
        mode: which mode it is called in, or has its operations in.
        rows: how many rows the second call has, where it is another number.
        has_16_bits: whether something in it has.
    """

    seed: int
    settings: dict[str, Any] = field(init=False)
    mode: str = field(init=False)
    rows: int | None = field(init=False)
    has_16_bits: bool = False
    inputs: list[Input] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.settings, self.mode = rng.choice(SETTINGS), rng.choice(MODES)
        self.rows = rng.choice([None, None, 0, 1, 3, 7])
        self._draw_inputs(rng)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            self._draw_calls(rng)

    def arguments(self, call: int) -> list[Tensor]:
        """What it is called with the first (0) or the second time (1)."""
        generator = torch.Generator().manual_seed(2 * self.seed + call)
        shape = self.inputs[0].shape
        made: list[Tensor] = []
        for one in self.inputs:
            other = bool(call and shape and one.shape[:1] == shape[:1])
            made.append(one.made(generator, made, self.rows if other else None))
        return made

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """The mode that it is called in."""
        modes: dict[str, Callable[[], Any]] = {"no gradients": torch.no_grad, "inference": torch.inference_mode}
        return modes.get(self.mode, contextlib.nullcontext)()

    def function(self) -> Callable[..., list[Tensor]]:
        calls = [(call.operation, call.operands, call.numbers) for call in self.calls]
        returned, autocast = self.returned, self.mode == "autocast"

        def odd(*arguments: Tensor) -> list[Tensor]:
            pool = list(arguments)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                for operation, operands, numbers in calls:
                    made = operation(*[pool[at] for at in operands], numbers)
                    pool += made if isinstance(made, tuple | list) else [made]
            return [pool[at] for at in returned]

        return odd

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.mode}, {self.settings}, second call with {self.rows} rows"]
        lines += [f"  v{at} = {one}" for at, one in enumerate(self.inputs)]
        lines += [f"  {call.text}" for call in self.calls]
        return "\n".join([*lines, f"  return {', '.join(f'v{at}' for at in self.returned)}"])

    def _draw_inputs(self, rng: random.Random) -> None:
        main = rng.choice([*[torch.float32] * 6, torch.float64, torch.complex64, *SIXTEEN_BITS])
        image = [2, rng.choice([2, 4]), 5, rng.choice([3, 6])]
        shape = image if rng.random() < 0.25 else _shape(rng)
        others = [*[main] * 5, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
        for at in range(rng.randint(1, 4)):
            dtype = rng.choice(others) if at else main
            own = list(shape)
            how = rng.random() if at else 1.0
            if how < 0.2:
                own = own[-1:]
            elif how < 0.35 and own:
                own[rng.randrange(len(own))] = 1
            elif how < 0.5:
                own = _shape(rng)
            trained = rng.random() < 0.6 and dtype.is_floating_point and self.mode != "inference"
            self.inputs.append(Input(own, dtype, rng.choice(LYING), trained, rng.randrange(max(1, at))))

    def _draw_calls(self, rng: random.Random) -> None:
        """Calls of operations that eager PyTorch takes, as it says when they are tried."""
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.mode == "autocast")
        with self.outside(), autocast:
            pool = self.arguments(0)
            wanted = rng.randint(3, 14)
            for _ in range(200):
                if len(self.calls) == wanted or not self._draw_call(rng, pool):
                    break
        self.has_16_bits = any(one.dtype in SIXTEEN_BITS for one in pool)
        made = range(len(self.inputs), len(pool))
        self.returned = [rng.choice(made if made and rng.random() < 0.85 else range(len(pool))) for _ in range(3)]

    def _draw_call(self, rng: random.Random, pool: list[Tensor]) -> bool:
        """Whether another may be drawn: not where one failed that has written something."""
        at = rng.randrange(len(pool)) if rng.random() < 0.6 else max(0, len(pool) - 1 - rng.randrange(3))
        family = rng.choices(FAMILIES, WEIGHTS)[0]
        name = rng.choice(list(family.operations))
        numbers, operands = Numbers.drawn(rng, pool[at]), family.operands(rng, pool, at)
        if operands is None:
            return True
        before = _versions(pool)
        operation = family.operations[name]
        try:
            made = operation(*[pool[one] for one in operands], numbers)
            tensors = list(made) if isinstance(made, tuple | list) else [made]
            is_kept = all(one.numel() <= MOST and one.dtype not in UNKNOWN for one in tensors)
        except Exception:  # whatever PyTorch says of it
            return _versions(pool) == before
        if is_kept:
            names = [f"v{len(pool) + number}" for number in range(len(tensors))]
            text = f"{', '.join(names)} = {name}({', '.join(f'v{one}' for one in operands)}) {numbers}"
            self.calls.append(Call(operation, operands, numbers, text))
            pool += tensors
        return is_kept or _versions(pool) == before


def _shape(rng: random.Random) -> list[int]:
    lengths = [1, 2, 3, 4, 5, 8, 17]
    return [rng.choice(lengths) if rng.random() > 0.04 else 0 for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))]


def _versions(pool: Sequence[Tensor]) -> list[int]:
    return [0 if one.is_inference() else one._version for one in pool]
