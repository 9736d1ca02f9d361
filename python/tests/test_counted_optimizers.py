"""Optimizers that count in Python numbers, in their groups, in their state or in attributes, and such whose first step is another one."""

from __future__ import annotations

import linecache

import eager
import pytest
import steps
import torch
from choosing_optimizers import Counts
from counted_optimizers import KINDS, RESUMED, FromTheFirst, damped, differences, resumed, skipped, training
from launch import found_by_ranks
from torch import nn

import unisono
from unisono.errors import StepError, UnsupportedError


def require_alike(found):
    assert found["difference"] <= 1e-5
    assert str(found["counts"]) == str(found["expected"]) or _close(found["counts"], found["expected"])


def _close(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_close, one, other))
    return one == other or abs(one - other) <= 1e-6 * abs(other)


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    return found_by_ranks("counted_optimizers:main", tmp_path_factory.mktemp)


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_counts_steps_as_in_eager_pytorch(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    require_alike(differences(kind))


@pytest.mark.parametrize("kind", RESUMED)
def test_counts_go_on_from_a_state_that_is_loaded(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    require_alike(resumed(kind))


@pytest.mark.parametrize(
    "kind",
    [
        "Counted",
        "CountedByItself",
        "CountedInState",
        "Scheduled",
        "FromTheFirst",
        "damped",
        "InDictionaries",
        "InObjects",
        "ByItsNorm",
    ],
)
def test_an_update_that_a_scaler_leaves_out_is_not_counted(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    require_alike(skipped(kind))


def test_on_two_ranks_counts_are_those_of_one_device(by_ranks):
    for found in by_ranks(2):
        for name, one in found.items():
            assert one["difference"] <= 1e-5, name
            assert _close(one["counts"], one["expected"]), name


@pytest.mark.parametrize("kind", [FromTheFirst, damped])
def test_a_graph_for_all_steps_is_refused_where_the_first_is_another_one(kind):
    model = nn.Linear(3, 2)
    optimizer = kind([*model.parameters()])

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with pytest.raises(UnsupportedError, match="first step of") as caught:
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.ones(4, 3),))
    assert caught.value.code == "U0110"


def test_more_choices_than_three_are_refused_where_a_function_does_more_than_to_compute_with_its_arguments():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = Counts(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with pytest.raises(StepError, match="more than three times") as caught:
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.ones(4, 3),))
    assert caught.value.code == "U0101" and "choosing_optimizers.py" in caught.value.place


def test_other_tensors_in_a_container_are_refused_where_a_scaler_may_skip_the_update(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StepError, match="puts other tensors into containers") as caught:
        skipped("InLists")
    assert caught.value.code == "U0103" and "counted_optimizers.py" in caught.value.place


def test_what_an_optimizer_keeps_beside_its_parameters_is_refused_by_the_line_that_calls_it():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state["total"] = 0  # pyright: ignore[reportArgumentType]

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # here

    with pytest.raises(UnsupportedError, match="keeps `total` in its state") as caught:
        unisono.parallelize(
            step, model=model, optimizer=optimizer, example=(torch.ones(4, 3),), cluster=steps.SLOW_LINKS
        )
    file, _, number = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0111" and "# here" in linecache.getline(file, int(number))


def test_what_a_first_step_counts_for_its_state_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = training("CountedByItself")
    step = steps.parallelize(given)
    assert given.optimizer.steps == 0
    step(*given.batches[0])
    assert given.optimizer.steps == 1


@pytest.mark.parametrize("fused", [None, False, True])
@pytest.mark.parametrize(
    ("kind", "key", "change"),
    [
        (torch.optim.SGD, "momentum", 0.02),
        (torch.optim.SGD, "weight_decay", 0.1),
        (torch.optim.AdamW, "weight_decay", 0.1),
        (torch.optim.AdamW, "eps", 1e-3),
    ],
)
def test_settings_of_pytorchs_optimizers_that_the_step_changes_are_as_in_eager_pytorch(kind, key, change, fused):
    """Their kernels take no number of the step, so the operations one by one do."""

    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = kind(model.parameters(), lr=0.1, fused=fused, **{key: change})

        def step(x):
            optimizer.param_groups[0][key] += change
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach(), optimizer.param_groups[0][key]

        return eager.Training(model, optimizer, step, [(torch.randn(5, 3),) for _ in range(5)])

    eager.compare(make)
