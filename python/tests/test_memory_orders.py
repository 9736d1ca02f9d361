"""Tensors lie in memory as the captured graph says, in whatever order a step's own tensors do."""

from __future__ import annotations

import msgpack
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from torch import nn

import unisono

#: What is computed of images of four channels, and of what each gives its gradient lies in memory in the order that is tried.
OF_IMAGES = [
    F.avg_pool2d,
    F.elu,
    F.gelu,
    F.glu,
    F.hardshrink,
    F.hardsigmoid,
    F.hardswish,
    F.hardtanh,
    F.instance_norm,
    F.leaky_relu,
    F.logsigmoid,
    F.max_pool2d,
    F.pixel_shuffle,
    F.rrelu,
    F.silu,
    F.softplus,
    torch.cumsum,
    torch.logsumexp,
    torch.sort,
]
ARGUMENTS = {
    F.avg_pool2d: (2,),
    F.max_pool2d: (2,),
    F.pixel_shuffle: (2,),
    torch.cumsum: (1,),
    torch.logsumexp: (1,),
    torch.sort: (1,),
}
LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.binary_cross_entropy_with_logits]


class Model(nn.Module):
    def __init__(self, order):
        super().__init__()
        self.order = order
        self.x = nn.Parameter(torch.randn(2, 4, 6, 6))
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(4, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.GroupNorm(2, 4),
                nn.LayerNorm(6),
                nn.RMSNorm(6),
                nn.PReLU(4),
                nn.ReflectionPad2d(1),
                nn.ReplicationPad2d(1),
                nn.ZeroPad2d(1),
                nn.Upsample(scale_factor=2),
                nn.Softmax(1),
                nn.LogSoftmax(-1),
                nn.Linear(6, 5),
            ]
        )

    def ordered(self, x):
        """The same values in another order in memory."""
        if x.dim() < 4:
            return x
        back = [self.order.index(dim) for dim in range(4)]
        return x.permute(self.order).contiguous().permute(back)

    def forward(self, wanted):
        total = self.x.new_zeros(())
        for function in (*self.layers, *OF_IMAGES):
            made = function(self.ordered(self.x * 0.5), *ARGUMENTS.get(function, ()))
            made = made[0] if isinstance(made, tuple) else made
            # Its gradient comes in that order, too.
            total = total + (self.ordered(made) * 0.5).square().mean()
        x = self.ordered(self.x)
        for loss in LOSSES:
            total = total + loss(x, self.ordered(wanted.sigmoid()), reduction="none").mean()
        return total + F.binary_cross_entropy(x.sigmoid(), self.ordered(wanted.sigmoid()))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
def test_results_lie_in_memory_as_the_graph_says(order):
    torch.manual_seed(0)
    model = Model(order).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(wanted):
        optimizer.zero_grad()
        loss = model(wanted)
        loss.backward()
        optimizer.step()
        return loss

    wanted = torch.randn(2, 4, 6, 6)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(wanted,))
    held = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    plain = msgpack.unpackb(graph.native.message())["graph"]
    ((returned, _),) = run_ranks([plain], [held], layouts=True)
    torch.testing.assert_close(returned[0], step(wanted).detach())
