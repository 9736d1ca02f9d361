"""Objects among the arguments of a step that hold tensors in their attributes, as graphs, images with masks and batches of one's own do."""

from __future__ import annotations

import weakref
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono._tree import flatten, shown, unflatten
from unisono.errors import StepError


class Batch:
    """A batch as people write one."""

    def __init__(self, x, targets, padding=0):
        self.x, self.targets, self.padding = x, {"y": targets}, padding
        self.mask = (x[..., 0] != padding).unsqueeze(-1)

    def masked(self):
        return self.x * self.mask


@dataclass
class Kind:
    """A class that an object names."""

    group: str


class Store(Mapping):
    """What a graph holds, as libraries of graphs write it: entries by name, and the way back."""

    def __init__(self, owner, entries):
        self.__dict__.update(entries=entries, owner=weakref.ref(owner), kind=Kind)

    def __getitem__(self, name):
        return self.entries[name]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


class PlainGraph:
    """A graph whose attributes are those of its store."""

    def __init__(self, **entries):
        self.__dict__["store"] = Store(self, entries)

    def __getattr__(self, name):
        entries = self.__dict__["store"].entries
        if name not in entries:
            raise AttributeError(name)
        return entries[name]

    def __setattr__(self, name, value):
        raise AttributeError(name)


Graph = ABCMeta("Graph", (PlainGraph,), {})


def training(loss_of):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def loss_of_batch(model, batch):
    return nn.functional.cross_entropy(model(batch.masked()).mean(1), batch.targets["y"])


def loss_of_graph(model, graph):
    assert graph.store.owner() is graph
    sums = torch.zeros_like(graph.x).index_add_(0, graph.edges[1], graph.x[graph.edges[0]])
    return model(graph.x + sums).square().mean()


def batches():
    for seed in range(3):
        torch.manual_seed(seed)
        yield Batch(torch.randn(6, 5, 4).relu(), torch.randint(3, (6,)))


def graphs():
    for seed in range(3):
        torch.manual_seed(seed)
        yield Graph(x=torch.randn(6, 4), edges=torch.randint(6, (2, 9)))


@pytest.mark.parametrize(("given", "loss_of"), [(batches, loss_of_batch), (graphs, loss_of_graph)])
def test_a_step_takes_the_tensors_of_each_object(given, loss_of):
    model, _, eager = training(loss_of)
    wanted = [eager(one).item() for one in given()]
    other, optimizer, step = training(loss_of)
    first = next(given())
    captured = unisono.parallelize(step, model=other, optimizer=optimizer, example=(first,), cluster=DEAR_COMPUTING)
    assert [captured(one).item() for one in given()] == pytest.approx(wanted, abs=1e-6)
    captured.sync()
    assert torch.allclose(model.weight, other.weight, atol=1e-6)


def test_inputs_are_named_by_attributes():
    model, optimizer, step = training(loss_of_batch)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(next(batches()),))
    text = graph.text()
    assert "batch.batch.x" in text
    assert "batch.batch.targets.y" in text


def test_a_number_of_an_object_is_told_from_others():
    model, optimizer, step = training(loss_of_batch)
    first = next(batches())
    captured = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=(first,), cluster=DEAR_COMPUTING, on_change="refuse"
    )
    captured(first)
    with pytest.raises(unisono.errors.UnisonoError, match="padding"):
        captured(Batch(first.x, first.targets["y"], padding=1))


def test_an_object_is_made_again_with_what_it_holds():
    graph = next(graphs())
    leaves, structure = flatten((graph,), opens_objects=True)
    (made,) = unflatten(structure, iter(leaves))
    assert made is not graph
    assert made.store.owner() is made
    assert made.store.kind is Kind
    assert made.edges is graph.edges
    assert shown(structure) == "(Graph(store=Store(entries={'x': .., 'edges': ..}, owner=.., kind=..)),)"


def test_an_object_within_itself_and_what_nobody_can_pass_are_refused_by_their_names():
    model, optimizer, step = training(loss_of_batch)
    batch = next(batches())
    batch.itself = batch
    with pytest.raises(StepError, match=r"argument `batch\.itself\S*` is a Batch"):
        unisono.capture(step, model=model, optimizer=optimizer, example=(batch,))
    batch.itself = iter([1])
    with pytest.raises(StepError, match=r"argument `batch\.itself` is a list_iterator"):
        unisono.capture(step, model=model, optimizer=optimizer, example=(batch,))


class Parts(tuple):
    """A tuple that does not say how long it is, as those are written that would be misread as one dimension."""

    def __len__(self):
        raise NotImplementedError


def test_a_tuple_beside_the_step_need_not_say_how_long_it_is():
    parts = Parts((2.0, 1.0))
    model, optimizer, step = training(lambda model, batch: loss_of_batch(model, batch) * next(iter(parts)))
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(next(batches()),))
    assert "2.0" in graph.text()
