"""State that only the update reads, on the host between steps: the values are the same to the bit, and users find them where they were."""

from __future__ import annotations

import copy

import pytest
import steps
import torch
import torch.nn.functional as F
from eager import Training, compare, tensors
from machines import DEAR_COMPUTING
from test_recompute import blocks, skips
from torch import nn

import unisono
from unisono.errors import ResourceError, StepError


def nadam():
    """An optimizer of many small operations, with a value of all parameters between them."""
    made = blocks()
    optimizer = torch.optim.NAdam(made.model.parameters(), lr=1e-3, eps=1e-4)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(made.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Training(made.model, optimizer, step, made.batches)


def plain():
    """Without random numbers: a step gives the same whenever it runs."""
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [tuple(batch) for batch in torch.randn(3, 2, 64, 32)])


def with_state_on_host(make, **settings):
    def made():
        one = make()
        return Training(one.model, one.optimizer, one.step, one.batches, settings={"offload": "optimizer"} | settings)

    return made


def parallel(training, **settings):
    given = {"model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}
    return unisono.parallelize(training.step, seed=0, **given, **{"cluster": DEAR_COMPUTING} | settings)


def seeded(make):
    torch.manual_seed(3)
    return make()


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (blocks, {}),
        (skips, {}),
        (steps.llama, {}),
        (nadam, {}),
        (blocks, {"micro_batches": 2}),
        (blocks, {"recompute": "full"}),
    ],
)
def test_a_step_with_its_state_on_the_host_gives_what_eager_gives(make, settings):
    step = compare(with_state_on_host(make, **settings))
    assert step.plan.prediction["host_state_bytes"] > 0
    assert "of state are on the host between steps" in step.plan.explain()


@pytest.mark.parametrize("make", [blocks, skips])
def test_values_are_the_same_to_the_bit(make):
    found = []
    for offload in ("none", "optimizer"):
        training = seeded(make)
        step = parallel(training, offload=offload)
        returned = [tensors(step(*batch)) for batch in training.batches]
        step.sync()
        state = [value for values in training.optimizer.state.values() for value in values.values()]
        found.append([*returned, tensors(training.model.state_dict()), tensors(state)])
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_users_state_says_where_it_is_and_the_model_can_be_called():
    training = seeded(blocks)
    step = parallel(training, offload="optimizer")
    step(*training.batches[0])
    moment = next(iter(training.optimizer.state.values()))["exp_avg"]
    with pytest.raises(StepError, match="is used while a step keeps the values on the host") as refused:
        moment.sum()
    assert refused.value.code == "U0124"
    assert training.model(training.batches[0][0]).shape == training.batches[0][1].shape
    step.sync()
    assert moment.abs().sum() > 0


def test_state_is_loaded_saved_and_written_as_any_other(tmp_path):
    training, other = seeded(plain), seeded(plain)
    step, fresh = parallel(training, offload="optimizer"), parallel(other, offload="optimizer")
    step(*training.batches[0])
    step.save(tmp_path / "checkpoint")
    kept = copy.deepcopy(step.state_dict())
    after = step(*training.batches[1])
    fresh(*other.batches[2])
    fresh.load(tmp_path / "checkpoint")
    assert torch.equal(fresh(*other.batches[1]), after)
    fresh.load_state_dict(kept)
    assert torch.equal(fresh(*other.batches[1]), after)
    # What is written into the user's tensors counts too.
    fresh.sync()
    with torch.no_grad():
        for values in other.optimizer.state.values():
            values["exp_avg"].zero_()
    fresh(*other.batches[0])
    assert not torch.equal(fresh(*other.batches[1]), after)


def test_steps_that_want_the_state_elsewhere_move_it():
    training, other = seeded(plain), seeded(plain)
    step, on_device = parallel(training, offload="optimizer"), parallel(other)
    pairs = [(training.batches[0][0][:count], training.batches[0][1][:count]) for count in (64, 32, 64)]
    for pair in pairs:
        assert torch.equal(step(*pair), on_device(*pair))


def plan(graph, cluster="h100:1", **settings):
    return graph.plan(cluster, mesh={"ranks": 1}, micro_batches=1, **settings)


@pytest.fixture(scope="module")
def graph():
    made = blocks(batch=8)
    return unisono.capture(made.step, model=made.model, optimizer=made.optimizer, example=made.batches[0])


def test_a_limit_that_nothing_else_keeps_puts_state_on_the_host(graph):
    free = plan(graph)
    assert "host_state_bytes" not in free.prediction and "host_state" not in free.passes
    limit = int(free.prediction["peak_bytes"] * 0.75)
    for offload in ("none", "activations"):
        with pytest.raises(ResourceError, match="no plan fits into"):
            plan(graph, memory_limit=limit, offload=offload)
    limited = plan(graph, memory_limit=limit)
    assert limited.prediction["peak_bytes"] <= limit
    assert limited.prediction["host_bytes"] >= limited.prediction["host_state_bytes"] > 0
    full = plan(graph, offload="optimizer")
    assert full.prediction["host_state_bytes"] > limited.prediction["host_state_bytes"]
    assert full.prediction["peak_bytes"] < limited.prediction["peak_bytes"]
    assert unisono.plans.Plan(full.text, graph.native).text == full.text


def test_a_limit_that_only_the_host_could_keep_says_so_where_none_is_described(graph, tmp_path):
    described = tmp_path / "cluster.toml"
    described.write_text('preset = "h100:1"\n[device]\nhost_memory_bytes = 1000\n')
    limit = int(plan(graph).prediction["peak_bytes"] * 0.75)
    with pytest.raises(ResourceError, match="no plan fits into") as refused:
        plan(graph, described, memory_limit=limit)
    assert "bytes of memory of the host needs" in refused.value.cause and "but 1000 are given" in refused.value.cause
