"""What backward computes again of forward: the values are the same, and less is held."""

from __future__ import annotations

import pytest
import steps
import torch
import torch.nn.functional as F
from eager import Training, compare
from torch import nn
from torch.utils.checkpoint import checkpoint

import unisono
from unisono.plans import Plan


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training))


def blocks(batch=64, checkpointed=False, **settings):
    model = nn.Sequential(*(Block() for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(x, y):
        optimizer.zero_grad()
        for block in model:
            x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
        loss = F.mse_loss(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [tuple(batch) for batch in torch.randn(3, 2, batch, 32)], settings=settings)


def skips(**settings):
    """Results of the first half that the second half reads: they cross every segment."""
    layers = [nn.Conv2d(3 if n == 0 else 8, 8, 3, padding=1) for n in range(4)]
    layers += [nn.Conv2d(16, 8, 3, padding=1) for _ in range(3)]
    model = nn.ModuleList([*layers, nn.BatchNorm2d(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        held = []
        for layer in model[:4]:
            x = F.silu(layer(x))
            held.append(x)
        for layer in model[4:7]:
            x = F.silu(layer(torch.cat([x, held.pop()], 1)))
        loss = F.mse_loss(model[7](x).mean(1), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(torch.randn(4, 3, 8, 8), torch.randn(4, 8, 8)) for _ in range(3)]
    return Training(model, optimizer, step, batches, settings=settings)


SLICED = {"micro_batches": 2}


@pytest.mark.parametrize(
    ("make", "settings"),
    [(blocks, {}), (skips, {}), (steps.llama, {}), (steps.gpt_adamw, {}), (blocks, SLICED), (steps.gpt_adamw, SLICED)],
)
def test_a_step_that_recomputes_gives_what_eager_gives(make, settings):
    def recomputing():
        made = make()
        return Training(made.model, made.optimizer, made.step, made.batches, settings={"recompute": "full"} | settings)

    step = compare(recomputing)
    assert step.plan.prediction["recomputed_ns"] > 0
    assert "run again in backward" in step.plan.explain()


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_a_limit_is_kept_by_what_runs_again(share):
    training = steps.llama(1, batch=64)
    free = steps.parallelize(training, micro_batches=1).plan.prediction
    limit = int(share * free["peak_bytes"])
    step = steps.parallelize(training, memory_limit=limit, micro_batches=1)
    assert 0 < step.plan.prediction["recomputed_ns"] < free["compute_ns"] / 2
    step(*training.batches[0])
    (peak,) = step.measure(*training.batches[0])["peak_bytes"]
    assert peak <= limit
    assert peak == pytest.approx(step.plan.prediction["peak_bytes"], rel=0.05)
    with pytest.raises(unisono.errors.ResourceError, match="no plan fits"):
        steps.parallelize(training, memory_limit=limit, micro_batches=1, recompute="none")


def test_what_the_code_checkpoints_is_computed_again_unless_it_is_said_otherwise():
    """Held between forward and backward: of a checkpointed block what goes into it, and not what is made in it."""

    def activations(**settings):
        training = blocks(4096, **settings)
        step = steps.parallelize(training, **training.settings)
        step(*training.batches[0])
        (peak,) = step.measure(*training.batches[0])["peak_bytes"]
        prediction = step.plan.prediction
        return peak - prediction["state_bytes"] - prediction["batch_bytes"]

    held, checkpointed = activations(), activations(checkpointed=True)
    assert checkpointed < 0.6 * held
    assert activations(checkpointed=True, recompute="none") == pytest.approx(held, rel=0.01)
    # All of it but what crosses between blocks, so it is at least as good as by hand.
    assert activations(recompute="full") <= 1.02 * checkpointed


@pytest.mark.parametrize("checkpointed", [False, True])
def test_checkpoints_give_what_eager_gives(checkpointed):
    compare(lambda: blocks(checkpointed=checkpointed))


def test_a_plan_keeps_what_runs_again():
    training = blocks()
    plan = steps.parallelize(training, recompute="full").plan
    again = steps.parallelize(blocks(), plan=plan.text)
    assert Plan(plan.text).passes["recompute"] == plan.passes["recompute"] != ""
    assert again.plan.prediction == plan.prediction
    wrong = plan.text.replace(f'recompute = "{plan.passes["recompute"]}"', 'recompute = "0-9999"')
    with pytest.raises(unisono.errors.ConfigurationError, match="cannot run again"):
        steps.parallelize(blocks(), plan=wrong)
    with pytest.raises(unisono.errors.ConfigurationError, match="no range of positions"):
        steps.parallelize(blocks(), plan=wrong.replace("0-9999", "9-0"))


@pytest.mark.parametrize("wrong", ["all", 1, True])
def test_what_cannot_be_asked_for_is_refused(wrong):
    with pytest.raises(unisono.errors.ConfigurationError, match="`recompute` is") as refused:
        steps.parallelize(blocks(), recompute=wrong)
    assert '"full"' in str(refused.value)


def test_a_file_says_what_runs_again(tmp_path):
    (tmp_path / "unisono.toml").write_text('recompute = "full"\n')
    step = steps.parallelize(blocks(), config=tmp_path / "unisono.toml")
    assert step.plan.prediction["recomputed_ns"] > 0
