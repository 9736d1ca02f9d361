"""Steps whose Python code goes on with values of the batch, with batches that have others; see ``test_given.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

GRIDS = [torch.tensor([[1, 2, 3], [2, 3, 2]]), torch.tensor([[1, 1, 3], [1, 2, 4]])]
LABELS = [torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 2])]
MASKS = [torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])]


def grids_as_lists(model: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    parts, at = [], 0
    for frames, height, width in grid.tolist():
        parts.append(model(x[at : at + height * width]).mean(0) * frames)
        at += height * width
    return torch.stack(parts).square().sum()


def rows_of_a_grid(model: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return sum(model(x[: int(h * w)]).view(h, w, -1).sum(0).square().mean() * t for t, h, w in grid)


def a_largest_number(model: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return model(x[: int(grid.prod(1).max())]).square().sum() + grid.sum().item() * model(x).mean()


def counts_that_are_repeated(model: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    counts = grid[:, 1] * grid[:, 2]
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return (model(x[: starts.shape[0]]) * starts[:, None]).sum()


def an_array(model: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return sum(model(x[: int(count)]).square().sum() for count in grid.numpy().prod(axis=1))


def what_a_mask_selects(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = model(x[:6].view(2, 3, 4)[mask.bool()])
    return rows.view(rows.shape[0], 2, 2).cumsum(0).square().sum()


def what_is_not_zero(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    at = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    return model(x.index_select(0, at)).square().sum() / len(at)


def a_mask_that_is_filled(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    seen = torch.zeros(2, 6, dtype=torch.bool)
    for row, count in enumerate(mask.sum(1)):
        seen[row, :count] = True
    return model(x[:6]).sum(1)[seen[0] | seen[1]].cumsum(0).square().sum()


def many_choices(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return sum(model(x[row]).square().sum() for row, one in enumerate(mask.flatten()) if one)


def pairs_of_alike_labels(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    alike = (labels[:, None] == labels).byte()
    unlike = alike ^ 1
    first, second = torch.where(alike.fill_diagonal_(0))
    far = torch.where(unlike)
    made = model(x[:6])
    return (made[first] - made[second]).square().mean() - (made[far[0]] * made[far[1]]).mean()


def a_graph_normalised_by_degrees(model: nn.Module, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    real = edges[:, edges[0] != edges[1]]
    edges = torch.cat([real, torch.arange(12).expand(2, 12)], 1)
    scale = torch.zeros(12).index_add_(0, edges[1], torch.ones(edges.shape[1])).pow_(-0.5)
    messages = model(x)[edges[0]] * (scale[edges[0]] * scale[edges[1]]).unsqueeze(-1)
    return torch.zeros(12, 4).index_add_(0, edges[1], messages).square().mean()


Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
STEPS: dict[Loss, list[torch.Tensor]] = {
    grids_as_lists: GRIDS,
    rows_of_a_grid: GRIDS,
    a_largest_number: GRIDS,
    counts_that_are_repeated: GRIDS,
    an_array: GRIDS,
    what_a_mask_selects: MASKS,
    what_is_not_zero: MASKS,
    a_mask_that_is_filled: MASKS,
    many_choices: MASKS,
    pairs_of_alike_labels: LABELS,
    a_graph_normalised_by_degrees: [
        torch.tensor([[0, 1, 2, 3], [1, 1, 0, 3]]),
        torch.tensor([[0, 1, 2, 3], [1, 0, 0, 2]]),
    ],
}
NAMES = {loss.__name__: loss for loss in STEPS}


def made(loss: Loss) -> tuple[nn.Module, torch.optim.Optimizer, Callable[..., torch.Tensor]]:
    """A model, its optimizer and a step on ``x`` of [12, 4] and what else the loss reads."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, x, more)
        value.backward()
        optimizer.step()
        return value

    return model, optimizer, step


def batches(loss: Loss) -> list[tuple[Any, ...]]:
    """Batches of two kinds that take turns."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(12, 4, generator=generator), more) for more in STEPS[loss] * 2]


def trained(loss: Loss, parallelize: Callable[..., Any] | None = None) -> tuple[list[float], torch.Tensor, Any]:
    """The losses of these batches, the weight afterwards, and the step."""
    model, optimizer, step = made(loss)
    if parallelize is not None:
        step = parallelize(step, model=model, optimizer=optimizer, example=batches(loss)[0])
    losses = [step(*batch).item() for batch in batches(loss)]
    if parallelize is not None:
        step.sync()  # type: ignore[attr-defined]
    return losses, model.weight.detach().clone(), step
