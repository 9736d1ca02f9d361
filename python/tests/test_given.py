"""Values of the batch that a step's Python code goes on with: they are known before the step, which is captured for each."""

from __future__ import annotations

import functools
import json
import linecache
import warnings

import given_steps
import launch
import pytest
import torch
import torch.nn.functional as F
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono._interpret import interpret
from unisono.errors import CaptureNotice, StepError


def parallelize(step, **how):
    return unisono.parallelize(step, cluster=DEAR_COMPUTING, **how)


@pytest.mark.parametrize("name", given_steps.NAMES)
def test_a_step_that_goes_on_with_values_of_the_batch_is_captured_for_each_of_two(name):
    expected, weight, _ = given_steps.trained(given_steps.NAMES[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureNotice)
        found, now, _ = given_steps.trained(given_steps.NAMES[name], parallelize)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(now, weight)
    notices = [str(one.message) for one in caught if issubclass(one.category, CaptureNotice)]
    assert len(notices) == 1 and "what follows from more" in notices[0], notices


def test_ranks_that_are_given_the_whole_batch_agree_and_others_are_refused(tmp_path):
    for rank, one in enumerate(launch.run("given_ranks:compare", 2, tmp_path, 200)):
        assert one.status == 0, f"rank {rank}: {one.err[-3000:]}"
    for rank in range(2):
        found = json.loads((tmp_path / f"given{rank}.json").read_text())
        assert found["refused"].startswith("U0101") and 'batch="global"' in found["refused"]
        assert found["grids_as_lists"] < 1e-5 and found["what_a_mask_selects"] < 1e-5, found


def test_what_follows_from_parameters_is_refused_by_line():
    model = nn.Linear(4, 4)

    def step(x, grid):
        rows = model(x)[: int(grid[0, 1])]
        return rows[: int(rows.abs().max())].sum()

    with pytest.raises(StepError) as caught:
        parallelize(step, model=model, example=(torch.randn(12, 4), given_steps.GRIDS[0]))
    file, _, line = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and "rows.abs()" in linecache.getline(file, int(line))


class Strided(nn.Module):
    """Signals, padded until a whole number of windows fits; how many elements these have stands in a buffer."""

    def __init__(self, *, counts=False):
        super().__init__()
        self.register_buffer("stride", torch.tensor(4), persistent=False)
        self.register_buffer("steps", torch.tensor(0))
        self.weight, self.counts = nn.Parameter(torch.ones(1)), counts

    def forward(self, x):
        if self.counts:
            self.stride += 1
        windows = torch.ceil(x.shape[-1] / self.stride).to(torch.int64)
        missing = windows * self.stride - x.shape[-1]
        padded = F.pad(x * self.weight, (0, missing))
        return padded.reshape(3, int(windows), -1).square().mean(-1).sum()


def trained_on_signals(how=lambda step, **_: step, *, other_stride=False):
    model, x = Strided(), torch.arange(30.0).view(3, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    called, losses = how(step, model=model, optimizer=optimizer, example=(x,)), []
    for number in range(4):
        if number == 2 and other_stride:
            model.stride.fill_(3)
        losses.append(float(called(x).detach()))
    return losses


@pytest.mark.parametrize("other_stride", [False, True])
def test_a_size_that_a_buffer_says_is_as_the_buffer_says(other_stride):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureNotice)
        found = trained_on_signals(functools.partial(parallelize, on_change="capture"), other_stride=other_stride)
    assert found == pytest.approx(trained_on_signals(other_stride=other_stride))


def test_a_capture_that_rests_on_a_buffer_serves_no_model_with_another_one(tmp_path):
    for stride in (4, 3):
        model, x = Strided(), torch.arange(30.0).view(3, 10)
        model.stride.fill_(stride)
        called = parallelize(lambda x, model=model: model(x), model=model, example=(x,), cache=tmp_path)
        torch.testing.assert_close(called(x).detach(), model(x).detach())


def test_a_size_that_a_buffer_says_which_the_step_changes_is_refused_by_line():
    model = Strided(counts=True)
    with pytest.raises(StepError) as caught:
        parallelize(lambda x: model(x), model=model, example=(torch.ones(3, 10),))
    file, _, line = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and "F.pad" in linecache.getline(file, int(line))


def test_a_value_that_is_computed_with_tensors_alone_takes_nothing_for_granted():
    model = nn.Linear(4, 4)

    def step(x, mask):
        return model(x).sum() / mask.sum().item()

    parallel = parallelize(step, model=model, example=(torch.randn(12, 4), given_steps.MASKS[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNotice)
        for mask in given_steps.MASKS:
            x = torch.randn(12, 4)
            torch.testing.assert_close(parallel(x, mask), step(x, mask))


def looks_like_a_library(x, mask, model):
    """Leaves a mask out that masks nothing, where it can be looked at, as transformers does; here that gives other values."""
    if not isinstance(mask, torch._subclasses.FakeTensor) and mask.sum() == mask.numel():
        return model(x).sum() * 3
    return (model(x) * mask[:, None]).sum()


def counts_what_has_data(x, mask, model):
    if isinstance(mask, torch._subclasses.FakeTensor):
        return (model(x) * mask[:, None]).sum()
    return model(x)[: int(mask.sum())].sum()


@pytest.mark.parametrize(("loss", "notices"), [(looks_like_a_library, 1), (counts_what_has_data, 0)])
def test_code_that_asks_whether_the_batch_has_data_chooses_by_it_as_in_eager_pytorch(loss, notices):
    model = nn.Linear(4, 4)

    def step(x, mask):
        return loss(x, mask, model)

    masks = [torch.ones(6, dtype=torch.bool), torch.arange(6) < 4]
    parallel = parallelize(step, model=model, example=(torch.randn(6, 4), masks[0]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureNotice)
        for mask in (*masks, *masks):
            x = torch.randn(6, 4)
            torch.testing.assert_close(parallel(x, mask), step(x, mask).detach())
    assert len([one for one in caught if issubclass(one.category, CaptureNotice)]) == notices


def asks_for_what_it_computes(x, mask, model):
    """Asks of a tensor whose values no call says."""
    if not isinstance(model(x), torch._subclasses.FakeTensor):
        mask = mask & mask
    return (model(x) * mask[:, None]).sum()


def test_code_that_is_told_that_a_tensor_has_no_data_is_named_in_a_warning():
    model = nn.Linear(4, 4)
    example = (torch.randn(6, 4), torch.arange(6) < 4)

    def told(loss, capture) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            capture(lambda x, mask: loss(x, mask, model))
        found = [str(one.message) for one in caught if "has data" in str(one.message)]
        assert all("test_given.py" in one for one in found)
        return found

    alone = functools.partial(unisono.capture, model=model, example=example)
    on_ranks = functools.partial(parallelize, model=model, example=example)
    of_each_rank = functools.partial(on_ranks, batch="local")
    for capture, count in [(alone, 1), (of_each_rank, 1), (on_ranks, 0)]:
        assert len(told(looks_like_a_library, capture)) == count
    assert len(told(asks_for_what_it_computes, on_ranks)) == 1
    assert len(told(counts_what_has_data, on_ranks)) == 1


def test_a_step_that_is_another_one_at_each_call_says_so_and_keeps_no_more_than_it_may():
    loss = given_steps.NAMES["a_largest_number"]
    model, optimizer, step = given_steps.made(loss)
    parallel = parallelize(step, model=model, optimizer=optimizer, example=given_steps.batches(loss)[0], captures=2)
    notices = []
    for height in range(1, 5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CaptureNotice)
            parallel(torch.randn(12, 4), torch.tensor([[1, height, 2]]).expand(2, 3))
        notices += [str(one.message) for one in caught if issubclass(one.category, CaptureNotice)]
    assert len(notices) == 4 and "the oldest is gone" in notices[-1]
    assert len(parallel._captured) == 2


def filled(lengths: tuple[int, ...]) -> torch.Tensor:
    """A mask that code fills by numbers of its own."""
    mask = torch.zeros(len(lengths), 4, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    return mask


@pytest.mark.parametrize(
    "use",
    [
        lambda x, mask: x[mask].cumsum(0)[-1],
        lambda x, mask: x[torch.nonzero(mask * 1)[:, 1]].split([2, 4])[1],
        lambda x, mask: torch.stack(mask.nonzero(as_tuple=True)).float() * x.sum(),
    ],
)
def test_what_masks_select_that_follow_from_the_code_has_a_known_size(use):
    x = torch.randn(2, 4)

    def step(x):
        return use(x.t().contiguous() if "split" in use.__code__.co_names else x, filled((2, 4)))

    graph = unisono.capture(step, example=(x,))
    found, _ = interpret(graph.decoded(), [item.tensor for item in graph.capture.inputs.inputs])
    torch.testing.assert_close(found[0], step(x))


class Opening(nn.Module):
    """A layer of whose outputs a mask selects rows, one more at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.open: torch.Tensor
        self.register_buffer("open", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        selected = self.layer(x)[torch.arange(6) < self.open]
        self.open += 1
        return selected.square().sum()


def test_what_a_mask_selects_by_a_buffer_that_the_step_changes_is_not_taken_for_the_same_at_every_call():
    x, losses = torch.randn(6, 4), []
    for how in (lambda step, **_: step, parallelize):
        torch.manual_seed(0)
        model = Opening()
        step = how(lambda x, model=model: model(x), model=model, example=(x,))
        losses.append(torch.stack([step(x).detach() for _ in range(3)]))
    torch.testing.assert_close(*losses)
