"""Steps that are others at each call for what no variable, attribute or entry of the user's shows: refused, or as eager PyTorch."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import datetime
import functools
import io
import linecache
import logging
import os
import queue
import random
import secrets
import threading
import time
import types
import uuid
import warnings
from time import perf_counter

import numpy
import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import StepError

X = torch.ones(2, 4)
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
LOGGER = logging.getLogger("of a user who counts in it")


class Trainer:
    """A model and its optimizer; `factor` gives a number that is another at each call."""

    def __init__(self, factor, made=None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.factor, self.made = factor, made() if made is not None else None

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean() * self.factor(self)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def refused(trainer, *, code="U0119", line="# used"):
    """The message of the error that the step's capture ends in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(StepError) as caught:
            unisono.capture(trainer.step, model=trainer.model, optimizer=trainer.optimizer, example=(X,))
    assert caught.value.code == code, caught.value
    if line:
        file, _, number = str(caught.value.place).rpartition(":")
        assert line in linecache.getline(file, int(number)) or "self.factor" in linecache.getline(file, int(number))
    return caught.value.message


def a_clock(trainer):
    return time.monotonic_ns() % 1000


def a_clock_by_its_name(trainer):
    return perf_counter() + 1


def a_clock_that_may_choose_later(trainer):
    return 2 if time.time() - 1e9 > 1e12 else 1  # used


def random_numbers_that_choose_rarely(trainer):
    return 2 if random.random() < 1e-9 else 1


def random_numbers_of_numpy_that_choose_rarely(trainer):
    return 2 if numpy.random.rand() < 1e-9 else 1


def a_generator_that_chooses_rarely(trainer):
    return 2 if trainer.made.random() < 1e-9 else 1  # used


def an_entry_that_is_chosen(trainer):
    return random.choice([len, id])([1, 2, 3]) % 7  # used


def a_number_of_the_system(trainer):
    return uuid.uuid4().int % 1000003 + secrets.randbelow(1000003) + os.urandom(1)[0] / 256


def today(trainer):
    return datetime.datetime.now().microsecond


def the_environment(trainer):
    os.environ["OF_A_TEST"] = str(int(os.environ.get("OF_A_TEST", "0")) + 1)
    return int(os.environ["OF_A_TEST"])


def a_file(trainer):
    return float(trainer.made.readline())


def a_queue(trainer):
    return trainer.made.get()


def an_iterator_without_next(trainer):
    for number in trainer.made:
        return number
    return 0


def a_generator_that_is_sent_to(trainer):
    return trainer.made.send(None)


def a_variable_of_the_context(trainer):
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def a_variable_of_the_thread(trainer):
    trainer.made.count = getattr(trainer.made, "count", 0) + 1
    return trainer.made.count


def a_logger(trainer):
    LOGGER.count = getattr(LOGGER, "count", 0) + 1  # type: ignore[attr-defined]
    return LOGGER.count  # type: ignore[attr-defined]


def a_class_of_pytorch(trainer):
    nn.Tanh.count_of_a_test = getattr(nn.Tanh, "count_of_a_test", 0) + 1  # type: ignore[attr-defined]
    return nn.Tanh.count_of_a_test  # type: ignore[attr-defined]


def an_array(trainer):
    trainer.made[0] += 1
    return trainer.made[0]


def bytes_in_place(trainer):
    trainer.made.append(1)
    return len(trainer.made)


def the_order_of_a_dictionary(trainer):
    first = next(iter(trainer.made))  # used
    trainer.made[first] = trainer.made.pop(first)
    return next(iter(trainer.made))


def the_order_of_a_deque(trainer):
    trainer.made.rotate(1)
    return trainer.made[0]


def what_a_cached_function_counts(trainer):
    return trainer.made(object())


def counting():
    state = types.SimpleNamespace(n=0)

    @functools.lru_cache
    def count(_key):
        state.n += 1
        return state.n

    return count


def numbers():
    while True:
        yield 1
        yield 2


OTHERS = {
    a_clock: None,
    a_clock_by_its_name: None,
    a_clock_that_may_choose_later: None,
    a_generator_that_chooses_rarely: lambda: random.Random(0),
    an_entry_that_is_chosen: None,
    a_number_of_the_system: None,
    today: None,
    the_environment: None,
    a_file: lambda: io.StringIO("".join(f"{number}\n" for number in range(1, 30))),
    a_queue: lambda: filled(queue.Queue()),
    an_iterator_without_next: lambda: iter([*range(1, 30)]),
    a_generator_that_is_sent_to: numbers,
    a_variable_of_the_context: None,
    a_variable_of_the_thread: threading.local,
    a_logger: None,
    a_class_of_pytorch: None,
    an_array: lambda: array.array("d", [0.0]),
    bytes_in_place: bytearray,
    the_order_of_a_dictionary: lambda: {1: 1, 2: 2, 3: 3},
    the_order_of_a_deque: lambda: collections.deque([1, 2, 3]),
    what_a_cached_function_counts: counting,
}


def filled(waiting):
    for number in range(1, 30):
        waiting.put(number)
    return waiting


@pytest.mark.parametrize("factor", OTHERS)
def test_what_is_another_at_each_call_is_refused_at_its_line(factor):
    assert "at each call" in refused(Trainer(factor, OTHERS[factor]))


@pytest.mark.parametrize("seed", range(4))
def test_an_entry_that_is_chosen_is_refused_whichever_it_is(seed):
    random.seed(seed)
    assert "at each call" in refused(Trainer(an_entry_that_is_chosen, None))


def test_a_generator_of_numpy_that_chooses_rarely_is_refused():
    trainer = Trainer(a_generator_that_chooses_rarely, lambda: numpy.random.default_rng(0))
    assert "draws from `self.made`" in refused(trainer)
    assert type(trainer.made) is numpy.random.Generator


def a_method_that_is_replaced(trainer):
    factor = trainer.made.scale()
    trainer.made.scale = lambda: 2.0
    return factor


class Scale:
    """Has a method that an attribute may replace."""

    def scale(self):
        return 1.0


def what_forward_is(trainer):
    own = type(trainer.model[0]).forward
    trainer.model[0].forward = lambda x: own(trainer.model[0], x) * 2
    return 1


def hooks(trainer):
    trainer.model[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    return trainer.model(X).sum()


def modules(trainer):
    trainer.model.append(nn.Tanh())
    return trainer.model(X).sum()


def training(trainer):
    trainer.model.train(not trainer.model.training)
    return nn.functional.dropout(torch.ones(()), training=trainer.model.training)


CHANGES = [a_method_that_is_replaced, what_forward_is, hooks, modules, training]


@pytest.mark.parametrize("factor", CHANGES)
def test_what_the_step_changes_of_its_own_code_is_refused(factor):
    refused(Trainer(factor, Scale), line="")


def weight_decay(trainer):
    trainer.optimizer.param_groups[0]["weight_decay"] += 0.1
    return 1


def a_setting_of_the_users(trainer):
    group = trainer.optimizer.param_groups[0]
    group["calls"] = group.get("calls", 0) + 1
    return group["calls"]


def a_number_of_a_parameters_state(trainer):
    state = trainer.optimizer.state[trainer.model[0].weight]
    state["calls"] = state.get("calls", 0) + 1
    return state["calls"]


@pytest.mark.parametrize(
    ("factor", "code"),
    # One graph is for all calls, and whether there is a weight decay steers the update.
    [(weight_decay, "U0119"), (a_setting_of_the_users, "U0103"), (a_number_of_a_parameters_state, "U0103")],
)
def test_what_the_step_changes_of_an_optimizer_is_refused(factor, code):
    trainer = Trainer(factor)
    groups = [{**group, "params": [*group["params"]]} for group in trainer.optimizer.param_groups]
    refused(trainer, code=code, line="")
    assert trainer.optimizer.param_groups == groups


def test_a_parameter_that_the_step_freezes_is_refused():
    trainer = Trainer(lambda trainer: trainer.model[0].weight.requires_grad_(requires_grad=False).sum())
    assert "leaves `params.0.weight` frozen" in refused(trainer, code="U0103", line="")
    assert trainer.model[0].weight.requires_grad


def an_attribute_of_the_optimizer(trainer):
    trainer.optimizer.calls = getattr(trainer.optimizer, "calls", 0) + 1
    return trainer.optimizer.calls


def an_attribute_of_a_parameter(trainer):
    weight = trainer.model[0].weight
    weight.calls = getattr(weight, "calls", 0) + 1
    return weight.calls


def an_attribute_of_a_parameter_by_another_way(trainer):
    trainer.made[0].calls += 1
    return trainer.made[0].calls


@pytest.mark.parametrize("factor", [an_attribute_of_the_optimizer, an_attribute_of_a_parameter])
def test_a_count_on_a_parameter_or_an_optimizer_is_followed(factor):
    assert "calls` (1 to 2)" in refused(Trainer(factor))


def test_a_count_on_a_parameter_that_is_held_elsewhere_is_followed():
    trainer = Trainer(an_attribute_of_a_parameter_by_another_way)
    trainer.made = [*trainer.model.parameters()]
    trainer.made[0].calls = 0
    assert "calls` (1 to 2)" in refused(trainer)


def whether_there_are_gradients(trainer):
    return 1 if trainer.model[0].weight.grad is None else 2  # used


def test_a_step_that_asks_whether_there_are_gradients_when_it_begins_is_refused():
    assert "whether there are gradients" in refused(Trainer(whether_there_are_gradients), code="U0109")


def gradients_that_are_set_to_zero(trainer):
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:
            parameter.grad.detach_()
            parameter.grad.zero_()
    return 1


def a_copy_of_the_model(trainer):
    other = copy.deepcopy(trainer.model)
    other[0].weight.data.mul_(0.5)
    return (other(X) - trainer.model(X).detach()).square().sum()


def averages_on_parameters(trainer):
    total = 0.0
    for parameter in trainer.model.parameters():
        parameter.average = 0.5 * getattr(parameter, "average", torch.zeros_like(parameter)) + 0.5 * parameter.detach()
        total = total + parameter.average.sum()
    return total


def marks_on_parameters(trainer):
    for parameter in trainer.model.parameters():
        parameter.is_decayed = parameter.dim() > 1
    return sum(parameter.is_decayed for parameter in trainer.model.parameters())


def time_that_is_kept(trainer):
    start = time.perf_counter()
    trainer.made.append(time.perf_counter() - start)
    LOGGER.info("%.3f s, drawn %.3f", time.perf_counter() - start, random.random())
    return 1


SAME = [
    random_numbers_that_choose_rarely,
    random_numbers_of_numpy_that_choose_rarely,
    gradients_that_are_set_to_zero,
    a_copy_of_the_model,
    averages_on_parameters,
    marks_on_parameters,
    time_that_is_kept,
]


@pytest.mark.parametrize("factor", SAME)
def test_what_is_the_same_at_each_call_is_what_eager_pytorch_has(factor):
    def losses(parallel):
        trainer = Trainer(factor, list)
        for parameter in trainer.model.parameters():
            parameter.average = torch.zeros_like(parameter)  # pyright: ignore[reportAttributeAccessIssue]
        settings = {"model": trainer.model, "optimizer": trainer.optimizer, "cluster": DEAR_COMPUTING}
        step = unisono.parallelize(trainer.step, example=(X,), **settings) if parallel else trainer.step
        return [step(X * number) for number in range(1, 5)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(losses(parallel=True), losses(parallel=False))


class SetsItselfUp(nn.Module):
    """A layer whose first batch says how it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.is_set_up = nn.Parameter(torch.zeros(4)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_set_up:
            self.bias.data.copy_(-x.mean(0))  # differs
            self.is_set_up = True
        return x + self.bias


def test_a_step_whose_first_call_alone_is_another_one_is_refused_with_what_it_changes():
    model = SetsItselfUp()
    with pytest.raises(StepError, match="the first call of the step is another one") as caught:
        unisono.capture(lambda x: model(x).sum(), model=model, example=(X,))
    assert caught.value.code == "U0119" and "`model.is_set_up` (False to True)" in caught.value.message
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# differs" in linecache.getline(file, int(number))
    assert not model.is_set_up and not model.bias.any()


def test_it_is_captured_once_it_has_set_itself_up():
    model = SetsItselfUp()
    model(X)
    unisono.capture(lambda x: model(x).sum(), model=model, example=(X,))


def test_a_step_that_asks_for_gradients_is_captured_again_where_there_are_some():
    ended = []
    for parallel in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=False)
            loss = model(x).square().sum()
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
            optimizer.step()
            return loss.detach()

        batches = [torch.ones(2, 4), torch.ones(3, 4), torch.ones(2, 4)]
        settings = {"example": (batches[0],), "cluster": DEAR_COMPUTING}
        run = unisono.parallelize(step, model=model, optimizer=optimizer, **settings) if parallel else step
        ended.append([run(batch).item() for batch in batches])
    assert ended[0] == pytest.approx(ended[1], rel=1e-6)
