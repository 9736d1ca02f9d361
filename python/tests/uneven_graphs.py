"""Graphs made at random, under strategies drawn at random on meshes of up to three axes whose ranks do not divide their dimensions: all
ranks together give what the whole gives.

``python python/tests/uneven_graphs.py FIRST COUNT`` asks more of them than the tests do.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgpack
import torch
import torch.nn.functional as F
from ranks import coordinates, cut, run_ranks
from rule_exam import message, with_gradients

from unisono import _native
from unisono._issue_order import alike, prints_of

#: A sum of so many roundings; everything is in double precision.
TOLERANCE = {"rtol": 1e-7, "atol": 1e-8}

#: Sizes of dimensions: few are divided by a number of ranks, and some have fewer elements than there are ranks.
SIZES = (1, 2, 3, 5, 6, 7, 10)

#: Assignments under which a tensor lies in another order than its type says.
lying_otherwise: list[str] = []

#: Graphs that the tests ask of, those of a test, and assignments drawn for each graph: 10,240 in all.
GRAPHS, TOGETHER, DRAWS = 640, 20, 16


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention, of products and a softmax."""
    return F.softmax(q @ k.transpose(2, 3), -1) @ v


class Maker:
    """Makes a function of tensors, an operation at a time, on `self.x`; ``given`` are the tensors that it will be called with."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.given: list[torch.Tensor] = []
        self.steps: list[Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]] = []
        self.shape = [self.rng.choice(SIZES) for _ in range(self.rng.choice((2, 3, 3)))]

    def tensor(self, *shape: int) -> int:
        """Another tensor that the function is given; its number."""
        self.given.append(torch.randn(shape, generator=self.generator, dtype=torch.float64))
        return len(self.given) - 1

    def integers(self, high: int, *shape: int) -> int:
        self.given.append(torch.randint(0, high, shape, generator=self.generator))
        return len(self.given) - 1

    def then(self, step: Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor], *shape: int) -> None:
        self.steps.append(step)
        self.shape = list(shape)

    # Operations.

    def linear(self) -> None:
        *before, width = self.shape
        out = self.rng.choice(SIZES)
        weight, bias = self.tensor(out, width), self.tensor(out)
        self.then(lambda x, t: F.linear(x, t[weight], t[bias]), *before, out)

    def product(self) -> None:
        *before, width = self.shape
        out = self.rng.choice(SIZES)
        weight = self.tensor(width, out)
        self.then(lambda x, t: x @ t[weight], *before, out)

    def broadcast(self) -> None:
        shape = [size if self.rng.random() < 0.7 else 1 for size in self.shape][self.rng.randrange(len(self.shape)) :]
        other = self.tensor(*shape)
        kind = self.rng.choice((torch.add, torch.mul, torch.sub, torch.maximum))
        self.then(lambda x, t: kind(x, t[other]), *self.shape)

    def pointwise(self) -> None:
        function = self.rng.choice((F.gelu, F.silu, torch.tanh, torch.sigmoid, F.relu, lambda x: x * 0.5, torch.neg))
        self.then(lambda x, t: function(x), *self.shape)

    def flatten(self) -> None:
        if len(self.shape) < 2:
            return
        at = self.rng.randrange(len(self.shape) - 1)
        shape = [*self.shape[:at], self.shape[at] * self.shape[at + 1], *self.shape[at + 2 :]]
        self.then(lambda x, t: x.flatten(at, at + 1), *shape)

    def unflatten(self) -> None:
        at = self.rng.randrange(len(self.shape))
        divisors = [one for one in range(1, self.shape[at] + 1) if self.shape[at] % one == 0]
        outer = self.rng.choice(divisors)
        pair = (outer, self.shape[at] // outer)
        self.then(lambda x, t: x.unflatten(at, pair), *self.shape[:at], *pair, *self.shape[at + 1 :])

    def there_and_back(self) -> None:
        if len(self.shape) < 2:
            return
        shape, function = list(self.shape), self.rng.choice((torch.tanh, F.gelu))
        self.then(lambda x, t: function(x.flatten(0, 1)).unflatten(0, tuple(shape[:2])), *shape)

    def transpose(self) -> None:
        order = list(range(len(self.shape)))
        self.rng.shuffle(order)
        self.then(lambda x, t: x.permute(order), *[self.shape[dim] for dim in order])

    def softmax(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        function = self.rng.choice((F.softmax, F.log_softmax))
        self.then(lambda x, t: function(x, dim), *self.shape)

    def norm(self) -> None:
        width = self.shape[-1]
        weight, bias = self.tensor(width), self.tensor(width)
        if self.rng.random() < 0.5:
            self.then(lambda x, t: F.layer_norm(x, (width,), t[weight], t[bias]), *self.shape)
        else:
            self.then(lambda x, t: F.rms_norm(x, (width,), t[weight]) + t[bias], *self.shape)

    def centre(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        function = self.rng.choice((torch.mean, torch.sum, torch.amax))
        self.then(lambda x, t: x - function(x, dim, keepdim=True), *self.shape)

    def batch_norm(self) -> None:
        if (
            len(self.shape) < 2
            or self.shape[0] * (self.shape[2] if len(self.shape) > 2 else 1) < 2
            or len(self.shape) > 3
        ):
            return
        weight = self.tensor(self.shape[1])
        self.then(lambda x, t: F.batch_norm(x, None, None, t[weight], None, training=True), *self.shape)

    def fused(self) -> None:
        *before, width = self.shape
        out = self.rng.choice(SIZES)
        weight = self.tensor(3 * out, width)

        def step(x: torch.Tensor, t: list[torch.Tensor]) -> torch.Tensor:
            a, b, c = F.linear(x, t[weight]).split(out, -1)
            return a * torch.sigmoid(b) + c

        self.then(step, *before, out)

    def attention(self) -> None:
        if len(self.shape) != 3:
            return
        batch, time, width = self.shape
        heads, features = self.rng.choice((1, 2, 3, 5)), self.rng.choice((2, 3))
        weight, back = self.tensor(3 * heads * features, width), self.tensor(width, heads * features)
        attend = self.rng.choice((lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), by_hand))

        def step(x: torch.Tensor, t: list[torch.Tensor]) -> torch.Tensor:
            parts = F.linear(x, t[weight]).split(heads * features, -1)
            q, k, v = (part.view(batch, time, heads, features).transpose(1, 2) for part in parts)
            mixed = attend(q, k, v)
            return F.linear(mixed.transpose(1, 2).reshape(batch, time, heads * features), t[back])

        self.then(step, *self.shape)

    def join(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        shape = list(self.shape)
        shape[dim] *= 2
        if self.rng.random() < 0.5:
            self.then(lambda x, t: torch.cat([x, x * 2], dim), *shape)
        else:
            self.then(lambda x, t: torch.stack([x, x.square()], dim).sum(dim), *self.shape)

    def halves(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        if self.shape[dim] % 2:
            return
        shape = list(self.shape)
        shape[dim] //= 2

        def step(x: torch.Tensor, t: list[torch.Tensor]) -> torch.Tensor:
            a, b = x.chunk(2, dim)
            return a * b

        self.then(step, *shape)

    def slice(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        if self.shape[dim] < 2:
            return
        shape = list(self.shape)
        shape[dim] -= 1
        self.then(lambda x, t: x.narrow(dim, 1, shape[dim]), *shape)

    def look_up(self) -> None:
        rows, width = self.rng.choice(SIZES), self.rng.choice(SIZES)
        table, numbers = self.tensor(rows, width), self.integers(rows, *self.shape[:-1])
        before = self.shape[:-1]
        self.then(lambda x, t: x.sum(-1, keepdim=True) + F.embedding(t[numbers], t[table]), *before, width)

    def turn_around(self) -> None:
        dim = self.rng.randrange(len(self.shape))
        function = self.rng.choice((lambda x: x.flip(dim), lambda x: x.cumsum(dim), lambda x: x.roll(1, dim)))
        self.then(lambda x, t: function(x), *self.shape)

    # Ends.

    def end(self) -> None:
        kind = self.rng.choice(("squares", "smooth", "mean", "classes", "norm"))
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        width = self.shape[-1]
        if kind == "classes":
            targets = self.integers(width, rows)
            ignored = self.rng.randrange(width)
            # One target at least counts.
            self.given[targets][0] = (ignored + 1) % width
            if width > 1:
                loss = lambda x, t: F.cross_entropy(x.reshape(rows, width), t[targets], ignore_index=ignored)  # noqa: E731
            else:
                loss = lambda x, t: F.cross_entropy(x.reshape(rows, width), t[targets])  # noqa: E731
        elif kind == "norm":
            loss = lambda x, t: torch.linalg.vector_norm(x)  # noqa: E731
        elif kind == "mean":
            loss = lambda x, t: x.mean()  # noqa: E731
        else:
            other = self.tensor(*self.shape)
            function = F.mse_loss if kind == "squares" else F.smooth_l1_loss
            loss = lambda x, t: function(x, t[other])  # noqa: E731
        self.then(loss)

    def made(self) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
        """The function, and what it is called with."""
        first = self.tensor(*self.shape)
        choices = (
            *(self.linear, self.product, self.broadcast, self.pointwise, self.flatten, self.unflatten, self.transpose),
            *(
                self.softmax,
                self.norm,
                self.centre,
                self.batch_norm,
                self.fused,
                self.attention,
                self.join,
                self.halves,
            ),
            *(self.slice, self.look_up, self.turn_around, self.there_and_back),
        )
        for _ in range(self.rng.randint(2, 5)):
            self.rng.choice(choices)()
        self.end()
        steps = list(self.steps)

        def function(*given: torch.Tensor) -> torch.Tensor:
            x = given[first]
            for step in steps:
                x = step(x, list(given))
            return x

        return function, self.given


def is_laid_out_as_said(graph: dict[str, Any], given: list[torch.Tensor]) -> bool:
    """Whether the values of the whole graph lie in memory as their types say: of some backward kernels FakeTensor says something else."""
    try:
        run_ranks([graph], [given])
    except AssertionError:
        return False
    return True


def ask_all(seeds: Iterable[int]) -> None:
    """Asks assignments of the graphs of some seeds, most of which have types that say what the kernels do."""
    # What is unpacked is held for a moment only: to look for cycles of it takes longer than all else.
    gc.disable()
    try:
        asked = [ask(seed) for seed in seeds]
    finally:
        gc.enable()
    assert sum(asked) > 0.7 * len(asked) * DRAWS
    assert len(lying_otherwise) <= sum(asked) / 50, lying_otherwise
    lying_otherwise.clear()


def ask(seed: int, axes: int = 3) -> int:
    """Asks some assignments of the graph of a seed on meshes of so many axes at most; how many they were, none where its types do not say
    what the kernels do.
    """
    rng = random.Random(seed)
    function, tensors = Maker(seed).made()
    both, _ = with_gradients(function, tensors)
    bytes_, given = message(both, tensors)
    graph = _native.Graph(bytes_)
    expected = [one for one in both(*tensors) if one is not None]
    if not is_laid_out_as_said(msgpack.unpackb(bytes_)["graph"], given):
        return 0
    for draw in range(DRAWS):
        mesh = any_mesh(rng) if axes > 1 else {"a": rng.randint(2, 8)}
        numbers = [rng.randrange(2**32) for _ in range(97)]
        what = f"graph {seed}, draw {draw} on {mesh}"
        compare_drawn(what, graph, given, expected, mesh, numbers, draw % 2 == 1, TOLERANCE)
    return DRAWS


def any_mesh(rng: random.Random) -> dict[str, int]:
    """Two to eight ranks along one axis, two or three."""
    left, sizes = rng.randint(2, 8), []
    while left > 1:
        size = rng.choice([one for one in range(2, left + 1) if left % one == 0])
        sizes.append(size)
        left //= size
    return dict(zip("abc", sizes, strict=False))


def compare_drawn(what, graph, given, expected, mesh, numbers, passes, tolerance):
    """Compares what ranks return with what one does, by strategies that numbers say; the operators of the first rank."""
    placements, graphs = graph.drawn(list(mesh.items()), numbers)
    if passes:
        limits = {"all_reduce": 4096, "all_gather": 4096, "reduce_scatter": 4096}
        direct = {axis: {"ranks": size, **limits} for axis, size in mesh.items()}
        passed = [one.run_passes(msgpack.packb({"direct": direct}))[0] for one in graphs]
        is_passed = alike([prints_of(one.issue_order(), mesh) for one in passed], mesh)
        assert is_passed or len(mesh) > 1, f"{what}: ranks would wait for each other for ever"
        # Otherwise ranks run what is there before the passes, as a session does.
        graphs = passed if is_passed else graphs
    unpacked = [msgpack.unpackb(one.message())["graph"] for one in graphs]
    names = [tuple(one["ops"][one["nodes"][n]["op"]]["name"] for n in one["order"]) for one in unpacked]
    # Not only collectives are alike before the passes, but every operation, along the innermost axis.
    within = mesh[list(mesh)[-1]]
    together = {(rank // within, one) for rank, one in enumerate(names)}
    assert passes or len(together) == len(names) // within, f"{what}: ranks have different operations"
    inputs = [
        [shard(tensor, along, mesh, rank) for tensor, along in zip(given, placements, strict=True)]
        for rank in range(len(graphs))
    ]
    run = [msgpack.unpackb(graph.without_empty_parts(one).message())["graph"] for one in graphs]
    for rank, (returned, _) in enumerate(results_of(what, run, inputs, mesh)):
        for position, (one, whole) in enumerate(zip(returned, expected, strict=True)):
            says = f"{what}: result {position} on rank {rank}"
            torch.testing.assert_close(one, whole, equal_nan=True, msg=lambda m, w=says: f"{w}\n{m}", **tolerance)
    return names[0]


def results_of(what, graphs, inputs, mesh):
    """What ranks return and update. Where a tensor lies in another order than its type says, that is noted."""
    try:
        return run_ranks(graphs, inputs, mesh=mesh)
    except AssertionError as error:
        if not isinstance(error.args[0], tuple):
            raise
        lying_otherwise.append(f"{what}: {error}")
        return run_ranks(graphs, inputs, layouts=False, mesh=mesh)


def shard(tensor: torch.Tensor, along: Sequence[str], mesh: dict[str, int], rank: int) -> torch.Tensor:
    """What a rank holds of a tensor that is placed so along each axis."""
    for placement, (axis, coordinate) in zip(along, coordinates(mesh, rank).items(), strict=True):
        tensor = cut(tensor, placement, coordinate, mesh[axis])
    return tensor


if __name__ == "__main__":
    begin, count = int(sys.argv[1]), int(sys.argv[2])
    asked, wrong = 0, []
    for number in range(begin, begin + count):
        try:
            asked += ask(number)
        except BaseException as error:
            wrong.append(number)
            print(f"{number}: {str(error)[:400]}", flush=True)
    print(f"{asked} assignments of {count} graphs, {len(wrong)} graphs with wrong ones: {wrong[:20]}")
    print(f"{len(lying_otherwise)} with tensors that lie otherwise than their types say: {lying_otherwise[:20]}")
