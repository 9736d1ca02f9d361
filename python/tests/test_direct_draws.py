"""Numbers and arrays that a step draws itself from NumPy's generator and Python's: at each step anew, with the numbers of eager PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare, compare_shards
from numpy.random import beta
from torch import nn

import unisono
from unisono.errors import StepError

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
CASES: dict[str, Loss] = {}


def case(function: Loss) -> Loss:
    CASES[function.__name__] = function
    return function


@case
def mixup(model, x, y):
    share, order = beta(0.4, 0.4), torch.randperm(len(x))
    logits = model(share * x + (1 - share) * x[order])
    return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])


@case
def augmentations_that_are_chosen(model, x, y):
    if random.random() < 0.5:
        x = x.flip(1)
    if np.random.rand() < 0.5:
        x = x * np.random.uniform(0.8, 1.2)
    return F.cross_entropy(model(x), y)


@case
def stochastic_depth(model, x, y):
    for layer in model:
        x = layer(x) if random.random() < 0.8 or isinstance(layer, nn.Linear) else x
    return F.cross_entropy(x, y)


@case
def scales_and_whole_numbers(model, x, y):
    scale, noise, times = random.uniform(0.8, 1.2), random.gauss(0, 0.1), random.randint(1, 4)
    return F.cross_entropy(model(x * scale + noise) * max(times, 2), y)


@case
def numbers_of_numbers(model, x, y):
    low = random.random()
    return F.cross_entropy(model(x * random.uniform(low, 1) + np.random.normal(low)), y)


@case
def an_entry_and_a_shift(model, x, y):
    h = model(torch.roll(x, random.randrange(6), 1))
    return F.cross_entropy(h, y) + h[np.random.randint(len(x)), 2].square()


@case
def arrays(model, x, y):
    order, noise = np.random.permutation(len(x)), torch.from_numpy(np.random.randn(*x.shape)).float()
    return F.cross_entropy(model((x + noise)[order]), y[order])


@case
def one_of_several_numbers(model, x, y):
    return F.cross_entropy(model(x) / random.choice([0.5, 1.0, 2.0]) * int(np.random.choice([1, 2, 3])), y)


@case
def a_function_that_draws_until_it_fits(model, x, y):
    return F.cross_entropy(model(x) * more_than(0.3), y)


@case
def a_seed_in_the_step(model, x, y):
    first = random.random()
    np.random.seed(5)
    return F.cross_entropy(model(x * first + np.random.rand()), y)


@case
def a_state_that_is_set_again(model, x, y):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return F.cross_entropy(model(x * (first + random.random())), y)


@case
def a_box_of_another_sample(model, x, y):
    share, order, width = np.random.beta(1.0, 1.0), torch.randperm(len(x)), x.size(1)
    half, middle = int(width * np.sqrt(1.0 - share)) // 2, np.random.randint(width)
    first, last = np.clip(middle - half, 0, width), np.clip(middle + half, 0, width)
    x = x.clone()
    x[:, first:last] = x[order, first:last]
    share = 1 - (last - first) / width
    logits = model(x)
    return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])


@case
def boxes_that_are_erased(model, x, y):
    x, first = x.clone(), random.randint(-3, 4)
    x[1:, first : random.randint(2, 6)] = 0
    image = x.view(-1, 2, 3)
    image[:, : random.randint(0, 2), random.randint(0, 2) :] = random.random()
    return F.cross_entropy(model(x), y)


def more_than(bound: float) -> float:
    while True:
        drawn = np.random.beta(0.5, 0.5)
        if drawn > bound:
            return drawn


def training(loss_of: Loss) -> Training:
    random.seed(3)
    np.random.seed(4)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches: list[tuple[Any, ...]] = [(torch.randn(6, 6), torch.randint(0, 6, (6,))) for _ in range(4)]
    # The generators are left as eager PyTorch leaves them.
    return Training(model, optimizer, step, batches, between=lambda _: (random.random(), np.random.rand()))


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_draws_is_at_each_step_what_it_is_in_eager(name):
    compare(lambda: training(CASES[name]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_have_shards_of_the_batch_compute_with_the_same_numbers(ranks):
    given = training(CASES["scales_and_whole_numbers"])
    state = random.getstate()
    given.batches = given.batches[:1]  # the ranks begin a step with the state that is there when it is captured
    compare_shards(given, ranks)
    assert random.getstate() != state


def test_what_is_drawn_is_shown_behind_the_step(capsys):
    model = nn.Linear(4, 4)

    def step(x):
        print(f"share {random.random():.3f}")
        return model(x).sum()

    random.seed(3)
    parallel = unisono.parallelize(step, model=model, example=(torch.ones(2, 4),))
    for _ in range(2):
        parallel(torch.ones(2, 4))
    random.seed(3)
    assert capsys.readouterr().out.splitlines() == [f"share {random.random():.3f}" for _ in range(2)]


@pytest.mark.parametrize(
    ("use", "says", "hint"),
    [
        (lambda x: x[: random.randint(1, 3)], "between bounds that it computes or draws", "a mask over the whole"),
        (lambda x: x.expand(np.random.randint(2, 5), -1, -1), "`numpy.random.randint` draws", "outside of the step"),
        (lambda x: sum(x * n for n in range(5) if random.random() < 0.5), "more than three times in a row", "where"),
        (lambda x: x * random.random() + shuffled()[0], "draws by `random.shuffle`", "outside of the step"),
        (lambda x: (random.seed(), x * random.random())[1], "`random.seed` without a number", "outside of the step"),
        (lambda x: x * random.getstate().index, "`random.getstate` and looks into it", "nothing else"),
    ],
    ids=["slice", "size", "choices", "shuffle", "seed", "state"],
)
def test_what_a_graph_cannot_say_is_refused_with_the_function_and_the_line(use, says, hint):
    model = nn.Linear(4, 4)
    with pytest.raises(StepError, match=says) as caught:
        unisono.capture(lambda x: use(model(x)).sum(), model=model, example=(torch.ones(4, 4),))
    assert hint in str(caught.value.hint) and "test_direct_draws.py" in str(caught.value.place)


def shuffled() -> list[int]:
    numbers = [1, 2, 3]
    random.shuffle(numbers)
    return numbers
