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


def parts_that_are_changed_before_the_whole_is_read(x, y):
    made = x + y
    rows = made[1:3]
    rows[:, 2].mul_(y[0, :2])
    made.t()[0].add_(1.0)
    made.diagonal(0).neg_()
    first, *_ = made.unbind(1)
    first.copy_(y[3])
    return [made.sum(), rows.exp(), first]


def the_whole_is_changed_by_another_shape_of_it(x, y):
    made = x @ y
    made.view(2, 8).detach().clamp_(-1.0, 1.0)
    made.view(2, 2, 4).permute(1, 2, 0)[1].zero_()
    made.unsqueeze(0).squeeze(0).data.add_(y)
    return [made, made.sin()]


ROWS = torch.arange(8.0).view(2, 4)


def a_tensor_from_outside_that_is_copied_into_a_part(x, y):
    made = x.new_zeros(4, 4)
    made[1:3, :4].copy_(ROWS)
    return [made * y]


def an_input_of_which_a_row_is_changed(x, y):
    x[1].add_(y[0])
    x.detach().mul_(2.0)
    return [x.sin()]


def zeros_that_are_filled(x, y):
    made = torch.empty_like(x)
    made.zero_().add_(y)
    made.copy_(made.clamp(min=0.0))
    return [made, x.clone().fill_(2.0)]


def a_number_that_keeps_its_type(x, y):
    made = x.sum().bfloat16()
    made.mul_(y.sum()).sub_(y[0, 0].double())
    return [made]


def results_that_are_parts(x, y):
    values, indices = x.sort(dim=1)
    values.add_(y)
    return [values, indices]


def the_averages_of_a_batch_norm(x, y):
    mean, variance = y[0].clone(), y[1].abs() + 1.0
    made = torch.ops.aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5)[0]
    return [made, mean, variance]


def a_part_that_is_split_off_unsafely(x, y):
    gates = torch.ops.aten.unsafe_split.Tensor(x @ y, 2, 1)
    first = gates[0].sigmoid_()
    turned = gates[1].t()
    gates[1].add_(y[:, :2])
    return [first.t(), turned.exp(), gates[1].view(4, 1, 2), torch.empty_like(first).fill_(2.0)]


def a_dimension_that_is_dropped_in_place(x, y):
    made = (x @ y).view(4, 1, 4)
    rows = made[1:]
    made.squeeze_(1)
    made[0].mul_(2.0)
    rows.add_(1.0)
    return [made.t(), rows]


def powers_in_place(x, y):
    made = (x.abs() + 1.0).pow_(-0.5)
    return [made, (y.abs() + 1.0).pow_(made)]


def dimensions_that_are_made_and_change_places_in_place(x, y):
    made = x + y
    row = made[1]
    made.unsqueeze_(0).transpose_(0, 2)
    made[0].add_(y[:, :1])
    row.mul_(3.0)
    other = (x * y).t_().detach_()
    return [made, row, other]


def a_result_that_is_written_into_an_input(x, y):
    made = torch.div(x, y.norm(), out=y)
    torch.add(made, x, alpha=2.0, out=x)
    return [made * 2, x]


def inputs() -> list[torch.Tensor]:
    return list(torch.linspace(-2.0, 3.0, 32).view(2, 4, 4).unbind())


def recorded(change: Change) -> torch.fx.GraphModule:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(one.clone()) for one in inputs()]
    return Recorder().record(change, fakes, mode)


CHANGES = [
    an_input_that_is_read_again,
    a_view_of_what_is_changed_later,
    a_view_that_is_changed_and_read,
    zeros_that_are_filled,
    a_number_that_keeps_its_type,
    results_that_are_parts,
    parts_that_are_changed_before_the_whole_is_read,
    the_whole_is_changed_by_another_shape_of_it,
    a_tensor_from_outside_that_is_copied_into_a_part,
    an_input_of_which_a_row_is_changed,
    the_averages_of_a_batch_norm,
    a_part_that_is_split_off_unsafely,
    a_dimension_that_is_dropped_in_place,
    powers_in_place,
    dimensions_that_are_made_and_change_places_in_place,
    a_result_that_is_written_into_an_input,
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


def test_a_change_through_another_kind_of_view_is_left_to_pytorch():
    def change(x, y):
        made = x + y
        made.unfold(0, 2, 2).mul_(2.0)
        return [made]

    with pytest.raises(Unknown, match="through a view"):
        functionalised(recorded(change))


def test_a_tensor_with_gaps_that_is_read_by_its_strides_after_a_change_is_left_to_pytorch():
    def change(x, y):
        first = torch.ops.aten.unsafe_split.Tensor(x @ y, 2, 1)[0].neg_()
        return [first.as_strided((2, 2), (4, 1))]

    with pytest.raises(Unknown, match="lies elsewhere"):
        functionalised(recorded(change))
