"""Scripts that select by masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended
from torch import nn
from user_scripts import script


def _run(parallelize, loss_of, make, size=None, **settings):
    model = make()
    optimizer = adam(model)

    def step(*batch):
        optimizer.zero_grad()
        found = loss_of(model, *batch)
        found[0].backward()
        optimizer.step()
        return [one.detach() for one in found]

    batches = [(torch.randn(6, 8), torch.randint(-2, 4, (6,)), torch.rand(6, 4) > 0.4) for _ in range(3)]
    batches.append((batches[0][0], torch.zeros(6, dtype=torch.long), torch.ones(6, 4, dtype=torch.bool)))
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    return ended(step, [step(*batch) for batch in batches], model, optimizer)


@script
def active_rows_are_classified(parallelize):
    def losses(model, x, labels, _mask):
        logits, known = model(x), labels >= 0
        loss = F.cross_entropy(logits[known], labels[known], label_smoothing=0.1)
        weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))(logits[known], labels[known])
        right = (logits[known].argmax(-1) == labels[known]).float().mean()
        likely = -logits[known].log_softmax(-1)[:, 1].mean()
        return loss + weighted + likely, right, F.nll_loss(logits[known].log_softmax(1), labels[known], reduction="sum")

    return _run(parallelize, losses, Net)


@script
def selected_entries_are_averaged(parallelize):
    def losses(model, x, labels, mask):
        out = model(x)
        target = x[:, :4]
        error = (out[mask] - target[mask]) ** 2
        away = (out - target).square()[mask].sum() / mask.sum()
        logs = (out[mask].abs() + 1e-3).log().mean() + torch.masked_select(out, mask).sigmoid().sum()
        per_column = out[labels >= 0].mean(0).sum() + out[labels >= 0].sum(dim=-1).exp().mean()
        losses = F.mse_loss(out[mask], target[mask]) + F.smooth_l1_loss(out[mask], target[mask], reduction="sum")
        binary = F.binary_cross_entropy_with_logits(out[mask], (target > 0).float()[mask])
        loss = error.mean() + away + 0.1 * logs + 0.1 * per_column + losses + binary
        return loss, (1 - out[mask]).sum(), mask[mask].sum()

    return _run(parallelize, losses, Net)


class Masked(nn.Module):
    """Assigns by masks within its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.unknown = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden[hidden < -1] = -1.0
        hidden[rows] *= 2
        hidden[rows] = self.norm(hidden.clone())[rows] + self.unknown
        hidden[~rows] = hidden[~rows].tanh()
        return self.last(hidden[rows]).sum() + self.last(hidden).square().mean()


@script
def masks_say_what_is_assigned(parallelize):
    def losses(model, x, labels, mask):
        x = x.clone()
        x[:, :4][mask] = 0
        return model(x, labels > 0), x

    return _run(parallelize, losses, Masked)
