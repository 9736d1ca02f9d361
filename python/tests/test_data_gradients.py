"""The gradient does not depend on the partition: against one device that takes the whole step at once."""

import numpy as np
import pytest
import torch

from unisono.data import BatchSampler, Cost

LENGTHS = np.random.default_rng(1).integers(1, 60, 37)
COUNTED = np.maximum(0, LENGTHS - np.random.default_rng(2).integers(0, 9, 37))
COUNTED[0] = max(1, COUNTED[0])


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))


def losses(net, samples):
    """By sample: the loss of each of its counted tokens, float32."""
    rows = []
    for sample in samples:
        x_TD = torch.randn(int(COUNTED[sample]), 8, generator=torch.Generator().manual_seed(int(sample)))
        rows.append(net(x_TD).square().flatten())
    return rows


def mean_loss(rows, mean):
    if mean == "token":
        return torch.cat(rows).mean()
    return torch.stack([row.mean() for row in rows]).mean()


def gradient(net):
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


@pytest.mark.parametrize("mean", ["sample", "token"])
@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"ranks": 1},
        {"ranks": 3},
        {"ranks": 4, "tokens_per_rank": 60},
        {"ranks": 4, "tokens_per_rank": 70, "objective": "lockstep"},
        {"ranks": 4, "tokens_per_rank": 90, "objective": "grouped", "shard_group": 2},
        {"ranks": 5, "objective": "pipeline", "stages": 4},
        {"ranks": 4, "equal_count": True},
        {"ranks": 16, "equal_micro_batches": True, "tokens_per_rank": 60},
    ],
)
def test_weighted_micro_batches_give_the_gradient_of_one_device(mean, averaged, settings):
    if mean == "sample":
        # A mean per sample needs a counted token in every sample.
        COUNTED[:] = np.maximum(COUNTED, 1)
    ranks = settings["ranks"]
    samplers = [
        BatchSampler(LENGTHS, batch_size=15, cost=Cost(7, 1), loss_tokens=COUNTED, rank=rank, seed=4, **settings)
        for rank in range(ranks)
    ]
    empty = 0
    for steps in zip(*(sampler.plans() for sampler in samplers), strict=True):
        reference = model()
        mean_loss(losses(reference, steps[0].samples), mean).backward()
        total = torch.zeros_like(gradient(reference))
        for step in steps:
            net = model()
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
            empty += not any(batch.samples for batch in step.micro_batches)
            for batch in step.micro_batches:
                if batch.loss_tokens:
                    loss = mean_loss(losses(net, batch.samples), mean)
                    (loss * batch.weight(mean, averaged=averaged)).backward()
            total += gradient(net) / (ranks if averaged else 1)
        relative = (total - gradient(reference)).norm() / gradient(reference).norm()
        assert relative <= 1e-6, relative
    # The last step has 7 samples: with 16 ranks some are empty.
    assert empty > 0 or ranks < 16
