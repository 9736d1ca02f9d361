"""Places in tensors that the step computes: read and written at each step as in eager PyTorch, or refused where it writes into a copy."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare, compare_shards
from torch import nn

import unisono
from unisono.errors import StepError

BATCH, KEYS = 4, 12


class Queue(nn.Module):
    """Keys of earlier batches, ``[4, keys]``, and where the next ones go."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 4)
        self.keys: torch.Tensor
        self.next: torch.Tensor
        self.register_buffer("keys", F.normalize(torch.randn(4, KEYS), dim=0))
        self.register_buffer("next", torch.zeros(1, dtype=torch.long))


def between_bounds(queue: Queue, found: torch.Tensor) -> torch.Tensor:
    loss = (found @ queue.keys.clone()).logsumexp(1).mean()
    with torch.no_grad():
        place = int(queue.next)
        queue.keys[:, place : place + len(found)] = found.t()
        queue.next[0] = (place + len(found)) % KEYS
    return loss


def by_a_tensor(queue: Queue, found: torch.Tensor) -> torch.Tensor:
    loss = (found @ queue.keys.clone()).logsumexp(1).mean()
    with torch.no_grad():
        queue.keys[:, queue.next[0]] += found.mean(0)
        queue.keys[1:, queue.next[0]] *= 0.5
        queue.next.add_(1).remainder_(KEYS)
    return loss + queue.keys[2, queue.next[0]].square()


def a_part_that_is_read(queue: Queue, found: torch.Tensor) -> torch.Tensor:
    place = int(queue.next)
    queue.next += 2
    return (found @ queue.keys[:, place : place + 3]).square().mean() + queue.keys[1:3, place : place + 3].sum()


def along_two_dimensions(queue: Queue, found: torch.Tensor) -> torch.Tensor:
    row, place = int(found[0].argmax()), int(queue.next)
    queue.next += 3
    queue.keys[row, place : place + 2] = found.detach()[:2, 1]
    queue.keys[-1, found[1].argmin()] = 2.0
    return (found * queue.keys[:, : len(found)].t()).sum() + queue.keys[row, place] * found.mean()


def a_drawn_place(queue: Queue, found: torch.Tensor) -> torch.Tensor:
    place = random.randrange(KEYS - BATCH)
    queue.keys[:, place : place + BATCH] = found.detach().t()
    return found.square().mean() * queue.keys[0, place]


USES: list[Callable[[Queue, torch.Tensor], torch.Tensor]] = [
    between_bounds,
    by_a_tensor,
    a_part_that_is_read,
    along_two_dimensions,
    a_drawn_place,
]


def training(use: Callable[[Queue, torch.Tensor], torch.Tensor]) -> Training:
    random.seed(3)
    model = Queue()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = use(model, F.normalize(model.query(x), dim=1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randn(BATCH, 6),) for _ in range(4)])


@pytest.mark.parametrize("use", USES)
def test_a_step_that_computes_where_it_reads_and_writes_gives_what_eager_gives(use):
    compare(lambda: training(use))


def test_ranks_that_have_shards_of_the_batch_write_to_the_same_places():
    torch.manual_seed(3)
    compare_shards(training(between_bounds), 2)


@pytest.mark.parametrize(
    "write",
    [
        lambda keys, at: keys[at].add_(1.0),
        lambda keys, at: keys[:, at].copy_(keys[:, 0]),
        lambda keys, at: keys[at][1:].zero_(),
        lambda keys, at: keys[int(at) : int(at) + 2].mul_(2.0),
    ],
    ids=["row", "column", "part of a row", "rows"],
)
def test_what_is_written_into_what_was_looked_up_is_refused(write):
    model = Queue()

    def step(x):
        with torch.no_grad():
            write(model.keys, model.next[0])
        return model.query(x).sum()

    with pytest.raises(StepError, match="in place into a part of a tensor at a place that it computes") as caught:
        unisono.capture(step, model=model, example=(torch.ones(2, 6),))
    assert caught.value.code == "U0101" and "test_looked_up.py" in str(caught.value.place)


def test_bounds_whose_distance_is_not_known_are_refused():
    model = Queue()

    def step(x):
        return model.query(x).sum() + model.keys[:, : int(model.next)].sum()

    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=model, example=(torch.ones(2, 6),))
    assert caught.value.code == "U0101" and "test_looked_up.py" in str(caught.value.place)
