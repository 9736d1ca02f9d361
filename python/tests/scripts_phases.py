"""Scripts of several phases: evaluation beside training, and two steps on one model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair, seen, simple
from user_scripts import Eager, ranks, script


@script
def evaluation_between_steps(parallelize):
    model = Net()
    optimizer = adam(model)
    batch, other = pair(), pair(12)
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)

    def evaluate(x, y):
        with torch.no_grad():
            out = model(x)
        return F.mse_loss(out, y), (out.argmax(1) == y.argmax(1)).float().mean().item()

    model.eval()
    evaluation = step.share(evaluate, example=other)
    model.train()
    found = []
    for _ in range(3):
        found += [step(*batch), step(*batch)]
        model.eval()
        found += [evaluation(*other)]
        model.train()
    return ended(step, found, model, optimizer)


@script
def two_phases_with_a_queue(parallelize):
    model = Net()
    optimizer = adam(model)
    memory = {"mean": torch.zeros(4), "count": torch.zeros(())}
    batch = pair()

    def first(x, y):
        optimizer.zero_grad()
        out = model(x)
        memory["mean"] = 0.5 * memory["mean"] + out.detach().mean(0)
        memory["count"] += 1
        loss = F.mse_loss(out + memory["mean"], y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def second(x):
        memory["mean"] = memory["mean"] * memory["count"]
        return model(x).detach() + memory["mean"]

    step = parallelize(first, model=model, optimizer=optimizer, example=batch)
    found = [step(*batch)]
    phase = step.share(second, example=batch[:1])
    for _ in range(3):
        found += [step(*batch), phase(batch[0]), phase(batch[0]), step(*batch)]
    phase.sync()
    return found, seen(model, optimizer), memory


@script
def each_rank_gives_its_part(parallelize):
    model = Net()
    optimizer = adam(model)
    batches = [pair() for _ in range(3)]

    def mine(batch):
        rank, count = (0, 1) if parallelize is Eager else ranks()
        return [part.chunk(count)[rank] for part in batch]

    def train(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), out.detach()

    settings = {} if parallelize is Eager else {"batch": "local"}
    step = parallelize(train, model=model, optimizer=optimizer, example=tuple(mine(batches[0])), **settings)
    found = [step(*mine(batch)) for batch in batches]
    return ended(step, found, model, optimizer)
