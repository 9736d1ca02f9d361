"""CTC loss in a step: lengths as tensors and as numbers, padded targets and concatenated ones, on one rank and on several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare, compare_shards
from torch import nn

import unisono
from unisono import _alignments as _alignments  # the operations

BATCH, FRAMES, WIDTH, CLASSES = 8, 12, 4, 7
#: The last samples, which the last rank has, are shorter than the others.
LENGTHS = torch.tensor([4, 3, 2, 4, 3, 4, 2, 1])
MADE = {
    "padded": lambda targets, lengths: (targets, lengths),
    "concatenated": lambda targets, lengths: (targets[torch.arange(WIDTH) < lengths[:, None]], lengths),
}


def recogniser(form: str, numbers: bool = False, zero_infinity: bool = True, frames: int = FRAMES) -> Training:
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-4)

    def step(x: torch.Tensor, heard: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        given: tuple[Any, Any] = (heard, lengths)
        if numbers:
            given = (frames,) * BATCH, (*LENGTHS.tolist(),)
        likely = model(x).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(likely, targets, *given, zero_infinity=zero_infinity)
        loss.backward()
        optimizer.step()
        return loss.detach()

    heard = torch.full((BATCH,), frames)
    targets = torch.randint(1, CLASSES, (BATCH, WIDTH))
    batches = [(torch.randn(BATCH, frames, 6), heard, *MADE[form](targets, LENGTHS)) for _ in range(3)]
    return Training(model, optimizer, step, batches)


@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers"])
@pytest.mark.parametrize("form", MADE)
def test_one_rank_gives_what_eager_gives(form, numbers):
    compare(lambda: recogniser(form, numbers))


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_a_target_with_more_labels_than_frames_has_no_alignment(zero_infinity):
    compare(lambda: recogniser("concatenated", zero_infinity=zero_infinity, frames=2))


@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers"])
@pytest.mark.parametrize("form", MADE)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_whose_longest_targets_differ_learn_what_one_device_learns(ranks, form, numbers):
    torch.manual_seed(3)
    compare_shards(recogniser(form, numbers), ranks)


def test_a_sample_by_itself_has_one_target():
    def make() -> Training:
        model = nn.Linear(6, CLASSES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            lengths = torch.tensor(FRAMES), torch.tensor(len(target))
            loss = F.ctc_loss(model(x).log_softmax(-1), target, *lengths, reduction="sum")
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, [(torch.randn(FRAMES, 6), torch.tensor([1, 2, 2]))] * 2)

    compare(make)


def test_the_table_of_likelihoods_is_as_wide_as_targets_are_padded():
    likely = torch.randn(FRAMES, 2, CLASSES).log_softmax(-1)
    targets = torch.randint(1, CLASSES, (2, WIDTH))
    lengths = torch.tensor([FRAMES, FRAMES]), torch.tensor([1, 2])
    loss, table = torch.ops.unisono.ctc_loss(likely, targets, *lengths, 0, False)
    expected, narrow = torch.ops.aten._ctc_loss.Tensor(likely, targets, *lengths, 0, False)
    assert torch.equal(loss, expected) and table.shape == (2, FRAMES, 2 * WIDTH + 1) and narrow.shape[2] == 5


def test_lengths_that_are_not_those_of_the_targets_end_the_step():
    training = recogniser("concatenated")
    step = unisono.parallelize(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    x, heard, targets, lengths = training.batches[0]
    with pytest.raises(Exception, match="have the sum 24, and there are 23 targets"):
        step(x, heard, targets, lengths + F.one_hot(torch.tensor(0), BATCH))
