"""Random functional programs: what is written in place, and into buffers, changes nothing that anybody can see."""

from __future__ import annotations

import random

import pytest
import torch

from unisono import _reference
from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, slots

aten = torch.ops.aten

UNARY = [aten.relu, aten.sigmoid, aten.neg, aten.tanh, aten.abs]
VIEWS = [
    (aten.t.default, lambda x: x.dim() == 2, lambda x, r: []),
    (aten.view.default, lambda x: x.is_contiguous() and x.numel() % 2 == 0, lambda x, r: [[-1, 2]]),
    (aten.expand.default, lambda x: x.dim() == 2 and x.shape[0] == 1, lambda x, r: [[3, -1]]),
    (aten.slice.Tensor, lambda x: x.dim() > 0 and x.shape[0] > 1, lambda x, r: [0, 0, x.shape[0] - 1]),
    (aten.select.int, lambda x: x.dim() > 1, lambda x, r: [0, r.randrange(x.shape[0])]),
    (aten.unsqueeze.default, lambda x: x.dim() < 3, lambda x, r: [0]),
    (aten.detach.default, lambda x: True, lambda x, r: []),
    (aten.unsafe_split.Tensor, lambda x: x.dim() > 0 and x.shape[0] > 1, lambda x, r: [r.randrange(1, x.shape[0])]),
]


class Random:
    """Builds a program and computes sample values along the way, from which shapes are known."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.builder = ProgramBuilder()
        self.values: dict[int, torch.Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        shapes = [(4, 2), (4, 2), (2, 4), (1, 4), (), (8,)]
        for shape in shapes:
            for given in (self.builder.state, self.builder.inputs):
                value = torch.randn(shape, generator=generator)
                given.append(self.builder.slot(value))
                self.values[given[-1]] = value

    def pick(self, fits=lambda value: True) -> int | None:
        found = [slot for slot, value in self.values.items() if fits(value)]
        # the latest ones are used most
        return self.random.choice(found[-8:] if self.random.random() < 0.7 else found) if found else None

    def call(self, op, args, numbers) -> None:
        result = op(*[self.values[n] if isinstance(n, int) else [self.values[m] for m in n] for n in args], *numbers)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        made = [self.builder.slot(one) for one in results]
        self.values.update(zip(made, results, strict=True))
        names = [slots([n])[0] if isinstance(n, int) else slots(n) for n in args]
        outputs = [made] if isinstance(result, (list, tuple)) else made
        self.builder.call(op, [*names, *numbers], {}, outputs, writes_state=self.random.random() < 0.7)

    def step(self) -> None:
        kind = self.random.random()
        if kind < 0.3:
            self.call(self.random.choice(UNARY).default, [self.pick()], [])
        elif kind < 0.55:
            op, fits, numbers = self.random.choice(VIEWS)
            slot = self.pick(fits)
            if slot is not None:
                self.call(op, [slot], numbers(self.values[slot], self.random))
        elif kind < 0.65:
            self.multiply()
        elif kind < 0.85:
            a = self.pick()
            b = self.pick(lambda value: value.shape == self.values[a].shape or value.dim() == 0)
            self.call(self.random.choice([aten.add.Tensor, aten.mul.Tensor]), [a, b], [])
        else:
            a, b = self.pick(), self.pick()
            op, more = self.random.choice([(aten._foreach_add.Scalar, [0.5]), (aten._foreach_mul.Scalar, [0.75])])
            self.call(op, [[a, b]], more)

    def multiply(self) -> None:
        """Operations with other shapes than their operands'."""
        a = self.pick(lambda value: value.dim() == 2)
        b = self.pick(lambda value: value.dim() == 2 and value.shape[0] == self.values[a].shape[1])
        if b is not None and self.random.random() < 0.7:
            self.call(aten.mm.default, [a, b], [])
        else:
            self.call(aten.sum.dim_IntList, [a], [[0], True])

    def program(self):
        for _ in range(self.random.randrange(5, 60)):
            self.step()
        for state in self.builder.state:
            like = [slot for slot, value in self.values.items() if value.shape == self.values[state].shape]
            if self.random.random() < 0.8:
                self.builder.update(state, self.random.choice(like))
        everything = list(self.values)
        self.builder.returns += self.random.choices(everything, k=4)
        return self.builder.spec()


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_programs_are_bitwise_equal_when_written_in_place_and_into_buffers(first):
    in_place = in_buffers = 0
    for seed in range(first, first + 50):
        made = Random(seed)
        spec = made.program()
        ours, theirs = ([made.values[slot].clone() for slot in spec["state"]] for _ in range(2))
        inputs = [made.values[slot] for slot in spec["inputs"]]
        run = Executor(lower(spec, rewrite=True))
        names = [name for name, _ in run.program.instructions()]
        in_place += sum("_." in name or name.endswith("_") for name in names)
        in_buffers += sum(name.endswith(("out", ".grad_input")) for name in names)
        run.bind(ours)
        for step in range(3):
            before = [one.clone() for one in inputs]
            found, expected = run(inputs), _reference.run(spec, theirs, inputs)
            for a, b in zip([*found, *ours, *inputs], [*expected, *theirs, *before], strict=True):
                assert torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5)), (seed, step, str(run.program))
    assert in_place > 50, "the programs give opportunities"
    assert in_buffers > 100, "the programs give opportunities"
