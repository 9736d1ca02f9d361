"""What a step changes in place: the graph without such changes gives the same, and is PyTorch's own where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from unisono._capture.functional import Unknown, functionalised
from unisono._capture.record import Recorder

Change = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]


def an_input_that_is_read_again(x, y):
    before = x.sin()
    x.mul_(y).add_(1.0)
    return [before, x.cos()]


def a_view_of_what_is_changed_later(x, y):
    made = x + y
    turned = made.t()
    rows = made.split(2)
    made.mul_(2.0)
    return [turned.sin(), rows[1], made]


def a_view_that_is_changed_and_read(x, y):
    turned = (x @ y.t()).t()
    turned.mul_(3.0).sub_(y.sum())
    return [turned.exp()]


def zeros_that_are_filled(x, y):
    made = torch.empty_like(x)
    made.zero_().add_(y)
    made.copy_(made.clamp(min=0.0))
    return [made, x.clone().fill_(2.0)]


def results_that_are_parts(x, y):
    values, indices = x.sort(dim=1)
    values.add_(y)
    return [values, indices]


def the_averages_of_a_batch_norm(x, y):
    mean, variance = y[0].clone(), y[1].abs() + 1.0
    made = torch.ops.aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5)[0]
    return [made, mean, variance]


def inputs() -> list[torch.Tensor]:
    return list(torch.linspace(-2.0, 3.0, 32).view(2, 4, 4).unbind())


def recorded(change: Change) -> torch.fx.GraphModule:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(one.clone()) for one in inputs()]
    return Recorder().record(change, fakes, mode)


CHANGES = [
    an_input_that_is_read_again,
    a_view_of_what_is_changed_later,
    a_view_that_is_changed_and_read,
    zeros_that_are_filled,
    results_that_are_parts,
    the_averages_of_a_batch_norm,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_graph_without_changes_gives_what_eager_gives(change):
    functional = functionalised(recorded(change))
    wanted, found = inputs(), inputs()
    for one, other in zip(change(*wanted), functional(*found), strict=True):
        assert torch.equal(one, other)
    assert all(map(torch.equal, wanted, found))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_only_inputs_are_changed_and_at_the_end(change):
    calls = [
        node for node in functionalised(recorded(change)).graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    ]
    writes = [node for node in calls if node.target._schema.is_mutable]
    assert all(node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder" for node in writes)
    assert calls[len(calls) - len(writes) :] == writes


def test_a_change_through_a_view_of_what_is_read_later_is_left_to_pytorch():
    def change(x, y):
        made = x + y
        made[:2].mul_(2.0)
        return [made]

    with pytest.raises(Unknown, match="through a view"):
        functionalised(recorded(change))
