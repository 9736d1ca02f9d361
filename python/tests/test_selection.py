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


def masked_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two batches, each with a mask of its rows."""
    return [(torch.randn(2, 5, 6), torch.randn(2, 5) > 0) for _ in range(2)]


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
        lambda x, m: x.masked_scatter(~m.unsqueeze(1), x[m]),
        lambda x, m: x[:, :1].masked_scatter(m.unsqueeze(1), x[m]),
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
        ("ctc_loss", "mask.sum(-1)"),
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


class Head(nn.Module):
    """What models predict masked words by: layers, a norm, and products with tables that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.norm = nn.Embedding(9, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.scale, self.table = nn.RMSNorm(6), nn.Parameter(torch.randn(6, 9))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens).cumsum(1)
        scores = self.norm(self.layer(hidden[mask]).relu()) @ self.table
        wanted = nn.functional.normalize(self.words(labels[mask]), dim=-1)
        near = (self.scale(hidden[mask]) * wanted).sum(-1)
        scores = scores.view(-1, 9).unsqueeze(1).flatten(1).unsqueeze(-1).squeeze(-1)
        return nn.functional.cross_entropy(scores, labels[mask].view(-1)) - near.mean()


def test_heads_over_masked_rows_give_what_eager_gives():
    def make() -> Training:
        model = Head()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(*batch: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        tokens = [torch.randint(0, 9, (4, 5)) for _ in range(3)]
        return Training(model, optimizer, step, [(one, torch.rand(4, 5) > 0.5, one.flip(1)) for one in tokens])

    compare(make)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, m: nn.functional.layer_norm(x[m], (3,), eps=0.0),
        lambda x, m: nn.functional.layer_norm(x, (3,), weight=x[m]),
        lambda x, m: nn.functional.normalize(x[m], dim=0),
        lambda x, m: nn.functional.embedding(x[m].long(), torch.ones(9, 2), max_norm=1.0),
        lambda x, m: torch.ones(2, 4) @ x[m],
        lambda x, m: x[m].reshape(-1, 1),
        lambda x, m: x[m].unsqueeze(0),
        lambda x, m: x[m].squeeze(),
        lambda x, m: x[m].flatten(),
        lambda x, m: x[m] @ x[m],
    ],
)
def test_what_mixes_rows_that_a_mask_selects_is_refused(use):
    with pytest.raises(StepError) as caught:
        unisono.capture(lambda x, m: use(x, m).sum(), example=(torch.ones(4, 3), torch.ones(4, dtype=torch.bool)))
    assert caught.value.code == "U0101"


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ctc_loss_of_selected_targets_is_that_of_each_row(reduction):
    def make() -> Training:
        model = nn.Linear(6, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            frames = model(x).log_softmax(-1).transpose(0, 1)
            mask = (labels >= 0) & (labels != 7)
            loss = nn.functional.ctc_loss(
                frames, labels.masked_select(mask), lengths, mask.sum(-1), 7, reduction, zero_infinity=True
            )
            loss.sum().backward()
            optimizer.step()
            return loss.detach()

        labels = torch.tensor([[1, 2, -100], [3, 7, 3], [-100, -100, -100], [0, 1, 2]])
        return Training(model, optimizer, step, [(torch.randn(4, 9, 6), labels, torch.tensor([9, 8, 9, 2]))] * 2)

    compare(make)


def test_one_row_takes_the_place_of_those_that_a_mask_selects():
    def make() -> Training:
        first, row = nn.Linear(6, 6), nn.Linear(6, 1)
        model = nn.ModuleList([first, row])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            hidden = first(x)
            hidden[mask] = row.weight[0]
            hidden[~mask & (x[..., 0] > 0)] = row.weight
            hidden[hidden > 1] = row.bias[0]
            loss = hidden.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, masked_batches())

    compare(make)


def test_a_mask_beside_dimensions_that_are_taken_whole_selects_as_one_alone():
    def make() -> Training:
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            hidden = model(x)
            hidden[mask[:, 0], :] = 0.5
            hidden[mask, ...] = hidden[mask, :] * 2
            loss = hidden.square().mean() + hidden[mask[:, 0], :, :].square().mean() + hidden[mask, :].exp().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, masked_batches())

    compare(make)


def test_a_mask_with_more_dimensions_behind_it_than_there_are_is_the_users_error():
    x, mask = torch.ones(4, 3), torch.ones(4, dtype=torch.bool)
    with pytest.raises(IndexError, match="too many indices"):
        unisono.capture(lambda x, m: x[m, :, :].sum(), example=(x, mask))


def test_what_is_made_of_selected_rows_is_scattered_back():
    def make() -> Training:
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            hidden = model(x)
            first = hidden.masked_scatter(mask.unsqueeze(-1), model(hidden[mask]).to(hidden.dtype))
            loss = first.masked_scatter(~mask[..., None].expand_as(first), first[~mask].sin()).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, masked_batches())

    compare(make)


@pytest.mark.parametrize("expand", [True, False])
def test_rows_that_a_mask_selects_take_rows_of_a_source(expand):
    def make() -> Training:
        words, seen = nn.Embedding(9, 6), nn.Linear(5, 6)
        model = nn.ModuleList([words, seen])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            hidden = words(tokens)
            mask = (tokens == 8).unsqueeze(-1)
            if expand:
                hidden = hidden.masked_scatter(mask.expand_as(hidden), seen(images)) * hidden
            else:
                hidden.masked_scatter_(mask, seen(images))
            loss = hidden.square().sum(-1).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        tokens = torch.tensor([[1, 8, 8, 2], [8, 3, 4, 5], [0, 1, 2, 3]])
        return Training(model, optimizer, step, [(tokens, torch.randn(2, 2, 5))] * 2)

    compare(make)
    captured = unisono.capture(
        (made := make()).step, model=made.model, optimizer=made.optimizer, example=made.batches[0]
    )
    assert "masked_scatter" not in captured.text()
