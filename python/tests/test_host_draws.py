"""Functions of NumPy and Python that draw in a step, as models make their masks: at each step anew, with the numbers of eager PyTorch."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import launch
import numpy as np
import pytest
import torch
from eager import Training, compare
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono import _host_draws
from unisono._capture.drawn import source_of
from unisono.errors import StepError

SCALE = 0.5


def spans(shape: tuple[int, int], probability: float, length: int, valid: torch.Tensor | None = None) -> np.ndarray:
    """A mask of spans, as many as a number says that is drawn, within what is ``valid`` of each row."""
    count = int(probability * shape[1] / length + np.random.rand(1).item())
    lengths = valid.detach().sum(-1).tolist() if valid is not None else [shape[1]] * shape[0]
    mask = np.zeros(shape, dtype=bool)
    for row, end in enumerate(lengths):
        if end >= length:
            for start in np.random.choice(np.arange(end - length + 1), min(count, end - length + 1), replace=False):
                mask[row, start : start + length] = True
    return mask


def weights(count: int) -> np.ndarray:
    """Weights by numbers of Python's own generator."""
    return np.array([math.exp(-random.gauss(0, SCALE)) for _ in range(count)])


def a_seed_of_its_own(count: int) -> np.ndarray:
    return np.random.default_rng(3).random(count)


def that_remembers(count: int) -> np.ndarray:
    global SCALE
    SCALE = np.random.rand()
    return np.ones(count)


def of_tensors(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(np.random.rand(len(x)))


class Masked(nn.Module):
    """Hides spans of what it is given, and weighs its samples, as speech models do when they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(6, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        mask = torch.tensor(spans((x.shape[0], x.shape[1]), 0.4, 2, valid), device=x.device, dtype=torch.bool)
        x[mask] = self.hidden.to(x.dtype)
        columns = torch.from_numpy(spans((x.shape[0], x.shape[2]), 0.3, 2))[:, None].expand(-1, x.shape[1], -1)
        x = x.masked_fill(columns, 0.0)
        return x.tanh() * torch.as_tensor(weights(x.shape[0]), dtype=x.dtype)[:, None, None]


def masked() -> Training:
    np.random.seed(3)
    random.seed(4)
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-4)

    def step(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x, valid).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    valid = torch.ones(6, 8, dtype=torch.int64)
    valid[1, 5:] = 0
    batches = [(torch.randn(6, 8, 6), valid) for _ in range(4)]
    # What others draw between steps is drawn from the same generators.
    return Training(model, optimizer, step, batches, between=lambda _: (np.random.rand(), random.random()))


def test_masks_that_numpy_draws_are_at_each_step_those_of_eager():
    compare(masked)
    after = np.random.rand(), random.random()
    training = masked()
    for number, batch in enumerate(training.batches):
        training.step(*batch)
        training.between(number)
    assert after == (np.random.rand(), random.random())


def as_a_rank() -> None:
    """Leaves as JSON the losses of a rank, the next number of each generator, and how ranks are refused that are seeded otherwise."""
    torch.manual_seed(1)
    training = masked()
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"a": 2},
        pins={"batch.*": {"a": "shard(0)"}, "params.*": {"a": "shard(0)"}},
        cluster=DEAR_COMPUTING,
        compare_every=4,
    )
    found = [[step(*batch).item() for batch in training.batches], [np.random.rand(), random.random()]]
    rank = int(os.environ["RANK"])
    np.random.seed(rank)
    try:
        step(*training.batches[0])
    except StepError as error:
        found.append(str(error))
    Path(f"{rank}.json").write_text(json.dumps(found))


def test_ranks_that_have_shards_of_the_batch_draw_what_one_device_draws(tmp_path):
    torch.manual_seed(1)
    training = masked()
    expected = [training.step(*batch).item() for batch in training.batches]
    drawn = [np.random.rand(), random.random()]
    for rank, ended in enumerate(launch.run("test_host_draws:as_a_rank", 2, tmp_path, 120)):
        assert ended.status == 0, ended.err[-2000:]
        losses, after, refused = json.loads((tmp_path / f"{rank}.json").read_text())
        assert losses == pytest.approx(expected, rel=1e-5)
        assert after == drawn
        assert "the generator `numpy.random` is in another state on rank 1" in refused


@pytest.mark.parametrize(
    ("function", "source"),
    [
        (spans, "numpy.random"),
        (weights, "random"),
        (a_seed_of_its_own, None),
        (that_remembers, None),
        (of_tensors, None),
        (lambda: np.random.rand(), None),
    ],
)
def test_only_what_is_one_of_its_arguments_and_of_a_generator_is_called_at_each_step(function, source):
    assert source_of(function) == source


def test_a_graph_for_all_calls_draws_too():
    training = masked()
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    names = [item.name for item in graph.capture.inputs.inputs if item.cls == "hyper"]
    assert {"generators.numpy.random", "generators.random"} <= {*names}


@pytest.mark.parametrize(
    "use",
    [lambda array: array.sum() * 2.0, lambda array: array + 1, lambda array: float(len(array[array > 0.5]))],
    ids=["method", "operator", "index"],
)
def test_an_array_that_is_drawn_is_refused_where_python_computes_with_it(use):
    model = nn.Linear(4, 4)
    with pytest.raises(StepError, match="computes with the array that `weights` draws") as caught:
        unisono.capture(lambda x: (model(x) * use(weights(4))).sum(), model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0119"
    assert "test_host_draws.py" in str(caught.value)


@pytest.mark.parametrize("name", _host_draws.SOURCES)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_generator_goes_on_from_its_state(name, ahead):
    draw = {"random": lambda: random.gauss(0, 1), "numpy.random": lambda: np.random.standard_normal()}[name]
    with _host_draws.left_alone(name):
        if ahead:
            draw()  # of two numbers that it draws at once
        source = _host_draws.SOURCES[name]
        state = source.get_state()
        first = [draw() for _ in range(5)]
        source.set_state(state)
        assert [draw() for _ in range(5)] == first


def test_an_array_of_another_shape_than_the_captured_one_ends_the_step():
    call, operands = _host_draws.described("random", f"{__name__}:weights", (3,), {}, np.ones(2)) or ("", [])
    state = _host_draws.SOURCES["random"].get_state()
    with pytest.raises(RuntimeError, match=r"of shape \[3\], and torch.float64 of shape \[2\]"):
        torch.ops.unisono.draw_on_host(state, call, operands)
