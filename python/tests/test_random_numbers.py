"""Random numbers of a captured step are those of eager PyTorch, or the step is refused by its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import machines
import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import unisono
from unisono.errors import UnisonoError

LINE = "# here"


def training(run: Callable[..., torch.Tensor], wide: bool = False, **parts: nn.Module) -> Training:
    """A model of parts, of which ``run`` makes scores that a loss is taken of."""
    model = nn.ModuleDict({"first": nn.Linear(16, 16), "last": nn.Linear(16, 8), **parts})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = run(model, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    shape = (6, 5, 16) if wide else (8, 16)
    return Training(model, optimizer, step, [(torch.randn(shape),) for _ in range(3)])


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_drops_what_was_dropped(reentrant):
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(m["first"](x), 0.1)
        hidden = checkpoint(m["block"], hidden, use_reentrant=reentrant)
        return F.dropout(m["last"](hidden), 0.1)

    compare(lambda: training(run, block=dropping()), exactly=True)


def test_checkpoints_in_checkpoints_and_in_sequence_drop_what_was_dropped():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        def inner(h: torch.Tensor) -> torch.Tensor:
            return F.dropout(checkpoint(m["block"], h, use_reentrant=False), 0.2)

        hidden = checkpoint(inner, m["first"](x), use_reentrant=False)
        return m["last"](checkpoint_sequential(m["others"], 2, hidden, use_reentrant=False))

    others = lambda: nn.Sequential(*(dropping() for _ in range(4)))  # noqa: E731
    compare(lambda: training(run, block=dropping(), others=others()), exactly=True)


@pytest.mark.parametrize(
    "noise",
    [
        lambda h: torch.randn_like(h),
        lambda h: torch.rand(h.shape).mul_(2),
        lambda h: torch.bernoulli(h.detach().sigmoid()),
        lambda h: torch.randint(0, 5, h.shape).float(),
        lambda h: torch.empty_like(h).exponential_(2.0),
        lambda h: h.detach()[torch.randperm(8)],
        lambda h: F.gumbel_softmax(h),
        lambda h: torch.normal(h.detach(), 0.5),
        lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.3)[0],
        lambda h: torch.native_dropout(h, 0.3, True)[0],
        lambda h: torch.native_dropout(h, 1.0, True)[0],
    ],
)
def test_any_random_operation_in_a_checkpoint_is_drawn_once(noise):
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda h: m["last"](h * noise(m["first"](h))), x, use_reentrant=False)
        return hidden + torch.rand_like(hidden)

    compare(lambda: training(run), exactly=True)


def test_of_a_dropout_in_a_checkpoint_only_the_mask_is_held():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            lambda h: m["last"](torch.native_dropout(m["first"](h), 0.3, True)[0]), x, use_reentrant=False
        )

    given = training(run)
    text = unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0]).text()
    # What is dropped of the hidden values that are computed again, and the gradient.
    assert text.count("= aten::native_dropout_backward(") == 2


def test_a_state_that_the_step_keeps_and_restores_gives_the_same_numbers_again():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        one = F.dropout(m["first"](x), 0.5)
        torch.random.set_rng_state(state)
        other = F.dropout(m["first"](x + 1), 0.5)
        with torch.random.fork_rng():
            pass
        return m["last"](one * other) + torch.rand(8, 8)

    compare(lambda: training(run), exactly=True)


@pytest.mark.parametrize("p", [0.3, 0.5])
@pytest.mark.parametrize("dims", [(1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_dropout_of_transposed_tensors_drops_what_eager_drops(p, dims):
    back = [dims.index(dim) for dim in range(3)]

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        turned = m["first"](x).permute(dims)
        return m["last"](F.dropout(turned, p).permute(back)) + F.dropout(turned[:, ::2], p).mean()

    compare(lambda: training(run, wide=True), exactly=True)


@pytest.mark.parametrize("batch_first", [False, True])
def test_an_encoder_layer_drops_what_eager_drops(batch_first):
    layer = lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=batch_first)  # noqa: E731
    compare(lambda: training(lambda m, x: m["last"](m["layer"](x)), wide=True, layer=layer()))


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        torch.randn_like,
        lambda t: torch.randint_like(t, 7),
        lambda t: torch.randint_like(t, 3, 9),
        lambda t: torch.empty_like(t).uniform_(-1, 1),
        lambda t: torch.empty_like(t).normal_(1, 2),
        lambda t: torch.empty_like(t).exponential_(),
        lambda t: torch.empty_like(t).cauchy_(),
        lambda t: torch.empty_like(t).geometric_(0.4),
        lambda t: torch.empty_like(t).random_(0, 9),
        lambda t: torch.empty_like(t).bernoulli_(t.detach().sigmoid()),
        lambda t: torch.bernoulli(t.detach().sigmoid()),
        lambda t: F.alpha_dropout(t, 0.4),
        lambda t: F.dropout1d(t, 0.4),
        lambda t: F.rrelu(t, training=True),
        lambda t: torch.rand_like(t, memory_format=torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_every_random_operation_gives_what_eager_gives_in_any_order_of_memory(draw, turned):
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = m["first"](x)
        return m["last"]((hidden.transpose(0, 1) if turned else hidden) * 1).mean() + draw(
            hidden.transpose(0, 1) if turned else hidden
        ).tanh().mean(0)

    compare(lambda: training(run, wide=True))


def refused(run: Callable[..., torch.Tensor], code: str = "U0114") -> UnisonoError:
    given = training(run)
    with pytest.raises(UnisonoError) as caught:
        unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.code == code
    assert caught.value.hint
    return caught.value


def line_of(function: Callable[..., Any]) -> str:
    """The place of the line that is marked in a function."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if line.rstrip().endswith(LINE))}"


def test_a_seed_in_the_step_is_refused_by_its_line():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)  # here
        return F.dropout(m["first"](x))

    assert refused(run).place == line_of(run)


def test_a_state_from_outside_is_refused_by_its_line():
    state = torch.get_rng_state()

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        torch.set_rng_state(state)  # here
        return F.dropout(m["first"](x))

    assert refused(run).place == line_of(run)


def test_other_numbers_from_the_same_state_are_refused_by_their_line():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():
            noise = torch.rand(3)
        return m["first"](x).mean() + noise.mean() + torch.rand(4).mean()  # here

    assert refused(run).place == line_of(run)


def test_a_step_that_ends_in_a_state_that_it_restored_is_refused():
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():  # here
            noise = torch.rand(3)
        return m["first"](x).mean() + noise.mean()

    assert refused(run).place == line_of(run)


@pytest.mark.parametrize(
    ("draw", "code"),
    [
        (lambda g: torch.rand(8, generator=torch.Generator().manual_seed(1)), "U0108"),  # made in the step
        (lambda g: torch.rand(8, generator=g) * g.seed(), "U0114"),
        (lambda g: torch.rand(8, generator=g) * g.initial_seed(), "U0114"),
    ],
)
def test_a_generator_without_a_path_or_with_a_seed_of_its_own_is_refused(draw, code):
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m["last"](m["first"](x)) * draw(generator)

    assert refused(run, code).place == f"{__file__}:{draw.__code__.co_firstlineno}"
    assert torch.equal(generator.get_state(), before)


def test_seeding_is_as_before_when_a_step_has_been_captured_or_refused():
    refused(lambda m, x: m["first"](x) + torch.manual_seed(1).initial_seed())
    torch.manual_seed(5)
    first = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), first)
    assert type(torch.default_generator) is torch.Generator


@pytest.mark.parametrize(("asked", "bound", "layers"), [("lt", 0.0, 3), ("ge", 1.0, 3), ("lt", 1.0, 0), ("ge", 0.0, 0)])
def test_layers_that_are_never_or_always_dropped_draw_as_eager_does(asked, bound, layers):
    linear = nn.Linear(4, 4)

    def step(x):
        for _ in range(3):
            if getattr(torch.rand([]), f"__{asked}__")(bound):
                continue
            x = linear(x)
        return F.dropout(x, 0.5).sum()

    parallel = unisono.parallelize(step, model=linear, example=(torch.ones(2, 4),), cluster=machines.DEAR_COMPUTING)
    assert parallel.rank_graph.text().count("= aten::addmm(") == layers
    torch.manual_seed(7)
    found = parallel(torch.ones(2, 4))
    torch.manual_seed(7)
    torch.testing.assert_close(found, step(torch.ones(2, 4)))
