"""What a mask selects: what needs to know how much that is, is refused by its line; other rows have no part in gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager import Training, compare
from torch import nn

import unisono
from unisono.errors import StepError

KEPT: dict[str, Any] = {}


def keep(selected: Any) -> torch.Tensor:
    KEPT["selected"] = selected
    return torch.zeros(())


@pytest.mark.parametrize(
    "use",
    [
        lambda x, m: x[m],
        lambda x, m: x[m].cumsum(0),
        lambda x, m: x[m].max(),
        lambda x, m: x[m].view(-1),
        lambda x, m: x[m].shape[0] * x.sum(),
        lambda x, m: len(x[m]) * x.sum(),
        lambda x, m: x[m] + x,
        lambda x, m: (x[m] + x[x > 0]).sum(),
        lambda x, m: (x[m].sum(1) * x[m].sum(1, keepdim=True)).sum(),  # every row with every other
        lambda x, m: nn.functional.mse_loss(x[m].sum(1), x[m].sum(1, keepdim=True)),
        lambda x, m: x[m].softmax(0).sum(),
        lambda x, m: torch.cat([x[m], x[m]]).sum(),
        lambda x, m: nn.functional.dropout(x[m], 0.5).sum(),
        lambda x, m: x[m][0],
        lambda x, m: x.sum() if x[m].sum(1) > 0 else x.mean(),
        lambda x, m: x.clone().__setitem__(~m, x[m]),
        lambda x, m: x.sum() * len(f"{x[m]}"),
        lambda x, m: keep(x[m]),
        lambda x, m: x[m.nonzero()],
        lambda x, m: x[m].nonzero(),
        lambda x, m: x[m].norm(),
        lambda x, m: x[m].numel() * x.sum(),
    ],
)
def test_what_needs_the_number_of_selected_rows_is_refused_by_its_line(use):
    def step(x, m):
        return use(x, m)

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(torch.ones(4, 3), torch.ones(4, dtype=torch.bool)))
    assert caught.value.code == "U0101"
    assert (caught.value.place or "").startswith(f"{__file__}:")
    assert "torch.where" in (caught.value.hint or "")
    KEPT.clear()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max", "x, float('-inf')).max("),
        ("prod", "x, 1).prod("),
        ("numel", "mask.sum()"),
        ("dropout", "F.dropout(x)[mask]"),
    ],
)
def test_the_hint_says_what_to_write_instead(name, instead):
    def step(x):
        return nn.functional.dropout(x[x > 0]) if name == "dropout" else getattr(x[x > 0], name)()

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(torch.ones(4, 3),))
    assert instead in str(caught.value.hint)


def test_a_mask_that_is_changed_between_selections_is_another():
    def step(x, m):
        first = x[m > 0]
        m.add_(1)
        return (first * x[m > 0]).sum()

    def changed(x, m):
        mask = m > 0
        first = x[mask]
        mask[0] = True
        return (first * x[mask]).sum()

    for one in (step, changed):
        with pytest.raises(StepError) as caught:
            unisono.capture(lambda x, m, one=one: one(x, m.clone()), example=(torch.ones(4), torch.ones(4)))
        assert caught.value.code == "U0101"


@pytest.mark.parametrize("function", [torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.log1p])
def test_rows_at_which_a_function_is_singular_have_no_part_in_gradients(function):
    def make() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            out = model(x).relu()
            loss = (function(out[out > 0.1] + 1e-3) * 0.1).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, [(torch.randn(5, 4),) for _ in range(2)])

    compare(make)
