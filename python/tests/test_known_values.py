"""Values of tensors from outside that a step asks for: constants of the step, for as long as they stay."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import CaptureNotice, StepError

X = torch.ones(2, 4)


def item(t, x):
    return x * t.item()


def number(t, x):
    return x * int(t) + float(t)


def truth(t, x):
    return x * 2 if t else x


def index(t, x):
    return x[:, int(t) :].sum() + sum(range(t))


def entries(t, x):
    return x * t.tolist()


def array(t, x):
    return x * float(t.numpy())


def text(t, x):
    return x * len(f"{t} {t!r}")


def alike(t, x):
    return x * 2 if torch.equal(t, t) else x


def what_follows(t, x):
    degrees = torch.zeros(int(t.max()) + 1).index_add_(0, t.reshape(1), torch.ones(1))
    if (degrees == 0).any():
        degrees = degrees + 1
    return x * degrees.sum() * degrees.sum().item() * (2 if torch.equal(t, t.clone()) else 1)


USES = [what_follows, item, number, truth, index, entries, array, text, alike]


@pytest.mark.parametrize("use", USES)
def test_a_value_of_a_tensor_from_outside_is_what_it_is(use):
    tensor = torch.tensor(3)

    def step(x):
        return use(tensor, x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
        torch.testing.assert_close(parallel(X), step(X))


class Trainer:
    """A step that goes on with values of tensors that it only reads."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scale, self.weights, self.doubled = torch.tensor(1.0), torch.ones(5000), torch.tensor(True)
        self.nothing = torch.tensor(float("nan"))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale.item() + float(self.weights.numpy()[3])
        if self.doubled:
            x = x * 2
        if self.nothing.item() > 0:
            x = x * 3
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def change(self, number: int) -> None:
        """What code between steps does, before the step of a number."""
        if number == 2:
            self.scale.fill_(0.5)
        elif number == 3:
            self.scale = torch.tensor(0.25)
        elif number == 4:
            self.weights[3] = 2.0
        elif number == 5:
            self.doubled.logical_not_()
        elif number == 6:
            self.weights = torch.full((5000,), 3.0)


def losses(trainer: Trainer, step: Any) -> list[torch.Tensor]:
    found = []
    for number in range(8):
        trainer.change(number)
        found.append(step(X))
    return found


def test_values_that_become_others_between_steps_are_noticed():
    eager, trainer = Trainer(), Trainer()
    step = unisono.parallelize(
        trainer.step, model=trainer.model, optimizer=trainer.optimizer, example=(X,), cluster=DEAR_COMPUTING
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(losses(trainer, step), losses(eager, eager.step))
    told = [str(one.message) for one in caught if issubclass(one.category, CaptureNotice)]
    names = [one.partition("the values of `self.")[2].partition("`")[0] for one in told]
    assert names == ["scale", "scale", "weights", "doubled", "weights"]


def test_values_that_become_others_are_refused_where_the_user_says_so():
    trainer = Trainer()
    step = unisono.parallelize(
        trainer.step,
        model=trainer.model,
        optimizer=trainer.optimizer,
        example=(X,),
        cluster=DEAR_COMPUTING,
        on_change="refuse",
    )
    step(X)
    trainer.scale.fill_(0.5)
    with pytest.raises(StepError, match=r"the values of `self\.scale` are others") as caught:
        step(X)
    assert caught.value.code == "U0122"


def test_what_follows_from_a_tensor_that_becomes_another_is_noticed():
    mask, model = torch.tensor([1.0, 1.0, 0.0]), nn.Linear(4, 4)

    def step(x):
        return x * 2 if (mask.sum() > 1).item() else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel = unisono.parallelize(step, model=model, example=(X,), cluster=DEAR_COMPUTING)
        for values in ([1, 1, 0], [1, 0, 0], [0, 1, 1]):
            mask.copy_(torch.tensor(values))
            torch.testing.assert_close(parallel(X), step(X))


def counted(labels, x):
    return x * torch.bincount(labels)


def places(labels, x):
    return x[:, labels.nonzero().squeeze(1)]


def kinds(labels, x):
    values, counts = labels.unique(return_counts=True)
    return x.sum() * values * counts


def as_often(labels, x):
    return x.repeat_interleave(labels, 1)


def written_afterwards(labels, x):
    return x.sum() * torch.bincount(labels).add_(1)[1:]


@pytest.mark.parametrize("use", [counted, places, kinds, as_often, written_afterwards])
def test_sizes_that_follow_from_a_tensor_from_outside_are_known(use):
    labels = torch.tensor([0, 1, 1, 3])

    def step(x):
        return use(labels, x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
        for values in ([0, 1, 1, 3], [3, 0, 2, 0]):
            labels.copy_(torch.tensor(values))
            for _ in range(2):
                torch.testing.assert_close(parallel(X), step(X))
    assert sum("the values of `labels` are others" in str(one.message) for one in caught) == 1


def test_sizes_that_follow_from_the_batch_are_refused_at_their_line():
    def step(x):
        return torch.bincount(x.long().flatten())

    with pytest.raises(StepError, match="depends on data") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0101"


def test_by_a_value_of_what_the_step_writes_is_chosen_at_each_step():
    state = types.SimpleNamespace(count=torch.zeros(()))

    def step(x):
        state.count.add_(1)
        return x * 2 if int(state.count) % 3 == 0 else x

    graph = unisono.capture(step, example=(X,))
    assert float(state.count) == 0
    assert [item.name for item in graph.capture.inputs.inputs if item.cls == "buffer"] == ["kept.state.count"]
    run = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    assert [float((run(X) / X).mean()) for _ in range(6)] == [1, 1, 2, 1, 1, 2]


def test_a_value_of_what_no_path_leads_to_is_refused():
    tensors = iter([torch.ones(()) for _ in range(100)])

    def step(x):
        return x * next(iter([*tensors])).item()

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0101"
