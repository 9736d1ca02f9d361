"""A step in micro-batches gives what it gives at once, and holds less."""

from __future__ import annotations

import random

import msgpack
import pytest
import steps
import torch
import torch.nn.functional as F
from eager import Training, compare
from side_by_side import train
from torch import nn
from torch.utils.checkpoint import checkpoint

import unisono
from unisono.plans import Plan

#: The most that activations may take, as a share of those of the whole batch.
SHARES = {2: 0.55, 4: 0.30, 8: 0.18, 16: 0.11}


def tokens(count, length, batches=3):
    return [tuple(torch.randint(0, 50, (2, count, length)).unbind()) for _ in range(batches)]


def encoder(batch=8, **settings):
    """A layer of a transformer with dropout, targets that do not count unevenly among samples, and clipping."""
    model = nn.Sequential(
        nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), nn.Linear(16, 50)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)

    def step(x_BT, y_BT):
        optimizer.zero_grad()
        y_BT = y_BT.masked_fill(y_BT > 10 * torch.arange(batch)[:, None], -100)
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, tokens(batch, 8), settings=settings)


def convolutions(**settings):
    """Batch norm, whose statistics are those of the whole batch."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "right": (scores.argmax(1) == y).sum(), "scores": scores.detach()}

    batches = [(torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))) for _ in range(3)]
    return Training(model, optimizer, step, batches, settings=settings)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("make", [encoder, convolutions])
def test_a_step_in_slices_gives_what_eager_gives(make, count):
    step = compare(lambda: make(micro_batches=count))
    assert step.plan.micro_batches == count
    assert f"{count} micro-batches" in step.plan.explain()


@pytest.mark.parametrize("count", SHARES)
def test_activations_shrink_with_the_number_of_slices(count):
    """Measured: the peak less state, batch and one set of gradients."""

    def activations(count):
        # Large enough that what every number of slices needs is small beside it.
        training = steps.llama(1, batch=128)
        step = steps.parallelize(training, micro_batches=count)
        step(*training.batches[0])
        peak = step.measure(*training.batches[0])["peak_bytes"][0]
        predicted = step.plan.prediction
        assert peak == pytest.approx(predicted["peak_bytes"], rel=0.05)
        gradients = sum(parameter.nbytes for parameter in training.model.parameters())
        return peak - predicted["state_bytes"] - predicted["batch_bytes"] - gradients

    assert activations(count) <= SHARES[count] * activations(1)


def test_a_number_of_slices_that_does_not_divide_is_refused_with_those_that_do():
    training = encoder()

    def parallel(count):
        return steps.parallelize(training, micro_batches=count)  # type: ignore[arg-type]

    with pytest.raises(unisono.errors.ConfigurationError, match="sliced into 3 micro-batches") as refused:
        parallel(3)
    assert "hint: use 2 or 4" in str(refused.value)
    assert "`batch.x_BT` of shape [8, 8]" in str(refused.value)
    for wrong in (0, -1, 2.0, "2"):
        with pytest.raises(unisono.errors.ConfigurationError, match="`micro_batches` is"):
            parallel(wrong)


def test_more_slices_than_ranks_that_shard_the_batch_have_samples_are_no_way_to_keep_a_limit():
    training = steps.llama(1, batch=16)
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    with pytest.raises(unisono.errors.ResourceError, match="2 ranks cannot shard the batch in 16 slices") as refused:
        graph.plan(steps.EAGER_TO_CUT, mesh={"a": 2}, micro_batches=16, memory_limit=100_000, recompute="none")
    assert "hint: use 8 micro-batches, with which they can" in str(refused.value)


class Narrow(nn.Linear):
    """A product with a weight that is rounded to 8 bits."""

    def forward(self, x):
        return F.linear(x, self.weight.to(torch.bfloat16).to(torch.float8_e4m3fn).to(torch.bfloat16))


def test_weights_that_are_cast_are_gathered_once_whatever_the_number_of_slices():
    with torch.device("meta"):
        model = nn.Sequential(Narrow(256, 1024, bias=False), nn.GELU(), Narrow(1024, 256, bias=False))
        x = torch.zeros(64, 256, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,), device="h100")

    def gathered(count):
        plan = graph.plan("h100:1x4", mesh={"data": 4}, micro_batches=count, pins={"params.*": {"data": "shard(0)"}})
        found = [one for one in plan.figures()["collectives"] if one["kind"] == "all_gather"]
        return sum(one["count"] for one in found), sum(one["bytes"] for one in found)

    assert gathered(2) == gathered(8) == (2, sum(weight.numel() for weight in model.parameters()))


class Perceptrons(nn.Module):
    """Residual perceptrons on sequences in bf16, whose head may be the embedding."""

    def __init__(self, width, tied):
        super().__init__()
        self.embedding = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(4)
        )
        self.head = nn.Linear(width, 512, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x_BT):
        x_BTD = self.embedding(x_BT).to(torch.bfloat16)
        for norm, up, gelu, down in self.blocks:
            y_BTD = norm(x_BTD.float()).to(torch.bfloat16)
            y_BTH = gelu(F.linear(y_BTD, up.weight.to(torch.bfloat16)))
            x_BTD = x_BTD + F.linear(y_BTH, down.weight.to(torch.bfloat16))
        return F.linear(x_BTD, self.head.weight.to(torch.bfloat16)).float()


def planned_perceptrons(micro_batches, mesh, pins, *, width, tied, batch, length):
    """The figures of a plan for a step of these on meta."""
    with torch.device("meta"):
        model, x_BT = Perceptrons(width, tied), torch.zeros(batch, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x_BT, y_BT):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x_BT, x_BT), device="h100")
    return graph.plan("h100:1x4", mesh=mesh, micro_batches=micro_batches, pins=pins).figures()


def test_gradients_of_a_tied_weight_are_added_up_and_sent_once():
    pins = {"batch.*": {"data": "shard(0)"}, "params.*": {"data": "shard(0)"}}
    size = {"width": 1024, "tied": True, "batch": 16, "length": 8}
    whole, sliced = (planned_perceptrons(count, {"data": 4}, pins, **size)["collectives"] for count in (1, 4))

    def scattered(collectives):
        found = [one for one in collectives if one["kind"] == "reduce_scatter"]
        assert {one["of"] for one in found} == {"gradients"}
        return sum(one["bytes"] for one in found)

    assert scattered(sliced) == scattered(whole)


def test_a_tensor_axis_leaves_the_samples_to_the_slices():
    pins = {"batch.*": {"tensor": "replicate"}, "outputs.blocks.*": {"tensor": "shard(1)"}}
    for dim, names in enumerate((("1", "head", "embedding"), ("3",))):
        pins |= {f"params.*{name}.weight": {"tensor": f"shard({dim})"} for name in names}
    size = {"width": 256, "tied": False, "batch": 4, "length": 512}
    # There are as many samples as ranks: each could have one, which cannot be sliced.
    whole, sliced = (planned_perceptrons(count, {"tensor": 4}, pins, **size) for count in (1, 4))
    assert sliced["peak_bytes"] <= 0.5 * whole["peak_bytes"]


class Checkpointed(nn.Module):
    """Residual perceptrons with dropout, of which each is run again in backward."""

    class Block(nn.Module):
        """One of them."""

        def __init__(self, width):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )

        def forward(self, x_BTD):
            return x_BTD + F.dropout(self.down(F.gelu(self.up(self.norm(x_BTD)))), 0.1)

    def __init__(self, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, width), nn.Linear(width, 64, bias=False)
        self.blocks = nn.ModuleList(self.Block(width) for _ in range(3))

    def forward(self, x_BT):
        x_BTD = F.dropout(self.embedding(x_BT), 0.1)
        for block in self.blocks:
            x_BTD = checkpoint(block, x_BTD, use_reentrant=False)
        return self.head(x_BTD)


#: Whole sequences of all samples between blocks.
WHOLE_BETWEEN = {
    "batch.*": {"tensor": "replicate"},
    "outputs.blocks.*": {"tensor": "replicate"},
    "params.*up.weight": {"tensor": "shard(0)"},
    "params.*head.weight": {"tensor": "shard(0)"},
    "params.*down.weight": {"tensor": "shard(1)"},
}


def checkpointed(width, batch, length, device):
    """The step of these, captured."""
    with torch.device(device):
        model, x_BT = Checkpointed(width), torch.zeros(batch, length, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x_BT, y_BT):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    kind = "h100" if device == "meta" else None
    return unisono.capture(step, model=model, optimizer=optimizer, example=(x_BT, x_BT), rng="counter", device=kind)


def test_what_is_whole_between_blocks_is_sliced_there_where_ranks_take_their_samples_of_it():
    graph = checkpointed(512, 16, 256, "meta")
    whole, sliced = (
        graph.plan("h100:1x2", mesh={"tensor": 2}, micro_batches=count, pins=WHOLE_BETWEEN).figures()["peak_bytes"]
        for count in (1, 4)
    )
    assert sliced <= 0.5 * whole


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_take_their_samples_of_what_is_sliced_train_as_one_does(ranks):
    torch.manual_seed(0)
    graph = checkpointed(16, 8, 4, "cpu")
    batches = [[*torch.randint(0, 64, (2, 8, 4))] for _ in range(3)]

    def trained(**settings):
        torch.manual_seed(7)
        plan = graph.native.plan(steps.EAGER_TO_CUT, msgpack.packb(settings))
        return train(graph, plan, batches, random.Random(0))

    losses, parameters = trained(mesh={"tensor": 1})
    for count in (2, 4):
        mine, of_ranks = trained(mesh={"tensor": ranks}, micro_batches=count, pins=WHOLE_BETWEEN)
        torch.testing.assert_close(mine, losses, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(of_ranks, parameters, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::unisono.errors.CaptureNotice")
def test_a_smaller_last_batch_is_sliced_as_far_as_it_can_be():
    def make():
        training = steps.gpt(batch=8)
        smaller = tuple(one[:6] for one in training.batches[-1])
        batches = [*training.batches[:-1], smaller]
        return Training(training.model, training.optimizer, training.step, batches, settings={"micro_batches": 4})

    step = compare(make)
    assert [one.plan.micro_batches for one in step._captured] == [3, 4]


def test_a_further_step_on_the_same_state_is_not_sliced():
    training = steps.gpt()
    step = steps.parallelize(training, micro_batches=2)
    evaluation = step.share(
        lambda x, y: F.cross_entropy(training.model(x).flatten(0, 1), y.flatten()), example=training.batches[0]
    )
    assert step.plan.micro_batches == 2
    assert evaluation.plan.micro_batches == 1


def test_slices_are_made_where_only_they_keep_a_memory_limit():
    training = steps.llama(1, batch=64)
    at_once = steps.parallelize(training)
    assert at_once.plan.micro_batches == 1
    limit = at_once.plan.prediction["peak_bytes"] // 3
    step = steps.parallelize(training, memory_limit=limit, recompute="none")
    assert step.plan.micro_batches == 4
    assert step.plan.prediction["peak_bytes"] <= limit
    with pytest.raises(unisono.errors.ResourceError, match="no plan fits"):
        steps.parallelize(training, memory_limit=limit, micro_batches=1, recompute="none")


def test_a_plan_keeps_its_slices():
    training = steps.gpt()
    plan = steps.parallelize(training, micro_batches=2).plan
    assert Plan(plan.text).micro_batches == 2
    again = steps.parallelize(steps.gpt(), plan=plan.text)
    assert again.plan.micro_batches == 2
    assert again.plan.fingerprint == plan.fingerprint != steps.parallelize(steps.gpt()).plan.fingerprint
