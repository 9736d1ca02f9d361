"""Tensors lie in memory as the captured graph says, in whatever order a step's own tensors do."""

from __future__ import annotations

import copy

import msgpack
import pytest
import torch
import torch.nn.functional as F
from machines import DEAR_COMPUTING
from ranks import run_ranks, train
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
#: The same of volumes.
OF_VOLUMES = [
    nn.Conv3d(4, 4, 3, padding=1),
    nn.GroupNorm(2, 4),
    nn.ReflectionPad3d(1),
    nn.ReplicationPad3d(1),
    nn.ZeroPad3d(1),
    nn.Upsample(scale_factor=2),
    nn.Upsample(scale_factor=2, mode="trilinear"),
    nn.AvgPool3d(2),
    nn.MaxPool3d(2),
    nn.AdaptiveAvgPool3d(2),
]
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


class Volumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.randn(2, 4, 4, 4, 4))
        self.layers = nn.ModuleList(copy.deepcopy(OF_VOLUMES))

    def forward(self, wanted):
        x = (self.x + wanted).contiguous(memory_format=torch.channels_last_3d)
        made = (layer(x * 0.5).contiguous(memory_format=torch.channels_last_3d) for layer in self.layers)
        return sum((one * 0.5).square().mean() for one in made)


class Mixed(nn.Module):
    """Rows between convolutions, as attention between them has them, and their sum with what was before."""

    def __init__(self, rows_first):
        super().__init__()
        self.rows_first = rows_first
        self.first, self.rows = nn.Conv2d(4, 4, 1), nn.Linear(4, 4)
        self.norms = nn.ModuleList(nn.GroupNorm(2, 4) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        rows = self.rows(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        x = rows + x if self.rows_first else x + rows
        for norm in self.norms:
            x = norm(x).sin()
        return x.pow(3).mean()


def make_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("rows_first", [False, True])
def test_group_norms_of_sums_of_rows_and_images_are_those_of_eager_pytorch(rows_first, samples):
    torch.manual_seed(0)
    model, x = Mixed(rows_first), torch.randn(samples, 4, 6, 6)
    reference, on_ranks = copy.deepcopy(model), copy.deepcopy(model)
    expected, (step, optimizer) = make_step(reference)[0], make_step(model)
    parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=(x,), cluster=DEAR_COMPUTING)
    found, wanted = zip(*[(parallel(x).item(), expected(x).item()) for _ in range(3)], strict=True)
    assert found == pytest.approx(wanted, rel=1e-5)
    if samples == 2:
        step, optimizer = make_step(on_ranks)
        graph = unisono.capture(step, model=on_ranks, optimizer=optimizer, example=(x,))
        for mesh in ({"a": 2}, {"a": 2, "b": 2}):
            plan = graph.native.plan(DEAR_COMPUTING, msgpack.packb({"mesh": mesh, "pins": {}, "memory_limit": None}))
            (loss,), _ = train(graph, plan, mesh, [(x,)], passes=True)
            assert loss.item() == pytest.approx(wanted[0], rel=1e-5), mesh


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1), (3, 2, 1, 0), "volumes"], ids=str)
def test_results_lie_in_memory_as_the_graph_says(order):
    torch.manual_seed(0)
    model = (Volumes() if order == "volumes" else Model(order)).train()
    step, optimizer = make_step(model)
    wanted = torch.randn(model.x.shape)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(wanted,))
    held = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    plain = msgpack.unpackb(graph.native.message())["graph"]
    ((returned, _),) = run_ranks([plain], [held], layouts=True)
    torch.testing.assert_close(returned[0], step(wanted).detach())


def _net(weights_last: bool, *, volumes: bool = False) -> nn.Module:
    torch.manual_seed(0)
    conv, norm = (nn.Conv3d, nn.BatchNorm3d) if volumes else (nn.Conv2d, nn.BatchNorm2d)
    net = nn.Sequential(
        conv(3, 4, 3, padding=1), norm(4), nn.ReLU(), nn.Dropout(0.5), conv(4, 4, 1), nn.GroupNorm(2, 4)
    )
    order = torch.channels_last_3d if volumes else torch.channels_last
    return net.to(memory_format=order) if weights_last else net


def _noisy(net, x):
    made = net(x)
    return (made + torch.randn_like(made.exp())).square().mean((0, 2, 3) if made.dim() == 4 else (0, 2, 3, 4))


@pytest.mark.parametrize("weights_last", [True, False])
@pytest.mark.parametrize("volumes", [True, False])
def test_numbers_are_drawn_in_the_order_of_eager_pytorch_where_channels_lie_last(weights_last, volumes):
    net = _net(weights_last, volumes=volumes)
    x = torch.randn(4, 3, 5, 6, 2) if volumes else torch.randn(4, 3, 5, 6)
    x = x.contiguous(memory_format=torch.channels_last_3d if volumes else torch.channels_last)
    step = unisono.parallelize(lambda x: _noisy(net, x), model=net, example=(x,), cluster=DEAR_COMPUTING)
    torch.manual_seed(1)
    wanted = _noisy(copy.deepcopy(net), x)
    torch.manual_seed(1)
    assert torch.allclose(step(x), wanted, atol=1e-5)


def test_channels_stay_where_operations_want_them_if_nothing_is_drawn_in_their_order():
    net = _net(True)[:3]
    graph = unisono.capture(lambda x: net(x).sum(), model=net, example=(torch.randn(4, 3, 5, 6),))
    copies = [line for line in graph.text().splitlines() if "= aten::clone" in line]
    assert len(copies) == 1, copies  # of the weights
