"""Scripts in which something changes between steps: shapes, arguments, modes, settings, what the step reads from outside."""

from __future__ import annotations

import copy
import functools
import types
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from script_parts import Net, adam, begun, ended, pair, seen, simple
from torch import nn
from user_scripts import script


@script
def a_smaller_last_batch(parallelize):
    model = Net()
    optimizer = adam(model)
    batches = [pair(size) for size in (8, 8, 6, 8, 6, 8)]
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batches[0])
    losses = [step(*batch) for batch in batches]
    return ended(step, losses, model, optimizer)


@script
def lengths_in_buckets_of_which_few_are_kept(parallelize):
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    optimizer = adam(model)

    def step(tokens):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [torch.randint(0, 11, (4, length)) for length in (6, 8, 10, 6, 8, 8, 6)]
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0], **{"captures": 2})
    losses = [step(batch) for batch in batches]
    return ended(step, losses, model, optimizer)


@dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "one"


Pair = namedtuple("Pair", ["x", "y"])
Result = namedtuple("Result", ["loss", "kind"])


class Encoding(UserDict):
    """As ``BatchEncoding`` of transformers is."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


@script
def batches_of_all_kinds(parallelize):
    model = Net()
    optimizer = adam(model)

    @dataclass
    class Output:
        loss: torch.Tensor
        kind: str

    def step(batch, *, weight=None, scale=1):
        optimizer.zero_grad()
        loss = (model(batch.x) - batch.y).square().mean() * scale
        if weight is not None:
            loss = loss * weight.mean()
        loss.backward()
        optimizer.step()
        kind = getattr(batch, "name", "none")
        return Output(loss.detach(), kind) if kind == "none" else Result(loss.detach(), kind)

    x, y = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=(Sample(x, y),))
    calls = [
        ((Sample(x, y),), {}),
        ((Sample(x, y, "two"),), {}),
        ((Pair(x, y),), {"weight": torch.ones(3)}),
        ((Encoding(x=x, y=y, name="three"),), {"weight": None}),
        ((Sample(x, y),), {"scale": 3}),
        ((Pair(x, y),), {"weight": torch.ones(3)}),
    ]
    found = [step(*arguments, **named) for arguments, named in calls]
    step.sync()
    return [[one.loss, one.kind, type(one).__name__] for one in found], seen(model, optimizer)


@script
def batches_of_transformers(parallelize):
    from transformers import BatchEncoding

    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    optimizer = adam(model)

    def step(batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.input_ids).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    batches = [BatchEncoding({k: torch.randint(0, 11, (4, n)) for k in ("input_ids", "labels")}) for n in (6, 8, 6)]
    step = parallelize(step, model=model, optimizer=optimizer, example=(batches[0],))
    losses = [step(batch) for batch in batches]
    return ended(step, losses, model, optimizer)


@script
def integers_that_steer_shapes(parallelize):
    model = Net()
    optimizer = adam(model)

    def step(x, y, count):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[:count]), y[:count])
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example={"x": x, "y": y, "count": 8})
    losses = [step(x, y, count=count) for count in (8, 4, 8, 6, 4)]
    return ended(step, losses, model, optimizer)


@script
def a_mask_that_is_none_at_first(parallelize):
    model = Net()
    optimizer = adam(model)
    config = types.SimpleNamespace(mask=None, kind="mse", inner=types.SimpleNamespace(weight=1.0))

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        if config.mask is not None:
            out = out * config.mask
        loss = F.mse_loss(out, y) if config.kind == "mse" else F.l1_loss(out, y)
        (loss * config.inner.weight).backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    config.mask = torch.rand(4)
    losses += [step(*batch)]
    config.mask = torch.rand(8, 1)
    losses += [step(*batch)]
    config.mask, config.kind = None, "l1"
    losses += [step(*batch)]
    config.inner.weight = 2.0
    losses += [step(*batch), step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def a_module_of_the_model_gets_a_mask(parallelize):
    model: Any = Net()
    model.b.register_forward_hook(lambda module, given, made: made)
    inner = types.SimpleNamespace(scale=None)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = None
            self.count = 0

        def forward(self, x):
            self.count += 1
            return x if self.scale is None else x * self.scale

    model.drop = Scaled()
    optimizer = adam(model)
    batch = pair()
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    model.drop.scale = torch.rand(16)
    losses += [step(*batch), step(*batch)]
    model.drop.scale = 0.5
    losses += [step(*batch)]
    model.drop.scale = inner.scale
    losses += [step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def the_state_of_an_optimizer_is_loaded(parallelize):
    model = Net()
    optimizer = adam(model)
    batch, other = pair(), pair(6)
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch), step(*other)]
    step.sync()
    saved = copy.deepcopy(optimizer.state_dict())
    losses += [step(*batch), step(*batch)]
    optimizer.load_state_dict(saved)
    losses += [step(*batch), step(*other)]
    return ended(step, losses, model, optimizer)


@script
def layers_are_frozen_and_thawed(parallelize):
    model, _optimizer, batch, step = begun(parallelize)
    losses = []
    for trained in (True, False, True):
        model.a.requires_grad_(trained)
        losses += [step(*batch), step(*batch)]
    step.sync()
    return losses, model.state_dict()


@script
def modes_are_switched(parallelize):
    model, optimizer, batch, step = begun(parallelize, lambda model: torch.optim.SGD(model.parameters(), lr=0.001))
    losses = []
    for training in (True, False, True, False):
        model.train(training)
        losses += [step(*batch)]
    with torch.autocast("cpu", torch.bfloat16):
        losses += [step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def settings_of_the_optimizer_are_switched(parallelize):
    model, optimizer, batch, step = begun(
        parallelize, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    losses = [step(*batch)]
    optimizer.param_groups[0]["nesterov"] = True
    losses += [step(*batch), step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def a_layer_is_replaced(parallelize):
    model, _optimizer, batch, step = begun(parallelize, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    losses = [step(*batch)]
    model.b = nn.Linear(16, 4).requires_grad_(False)
    losses += [step(*batch), step(*batch)]
    step.sync()
    return losses, model.state_dict()


@script
def an_example_has_one_tensor_twice_and_later_calls_have_two(parallelize):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(batches):
        optimizer.zero_grad()
        losses = [F.mse_loss(model(x), y) for x, y in batches]
        sum(losses).backward()
        optimizer.step()
        return losses

    first, second = pair(), pair()
    step = parallelize(train_step, model=model, optimizer=optimizer, example=([first, first],))
    losses = [step([first, second]), step([second, second]), step([second, first])]
    step.sync()
    return losses, seen(model, optimizer)


class Trainer:
    """A step of methods and properties, which read numbers of the trainer and of the model."""

    def __init__(self) -> None:
        self.model, self.weight, self.power = Scaled(), 1.0, 1
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @property
    def twice(self) -> float:
        return 2 * self.weight

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice * self.model(x).abs().pow(self.power).mean()

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = Net(), 1.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.net(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)


@script
def numbers_that_methods_and_properties_read_change(parallelize):
    trainer = Trainer()
    x, _ = pair()
    step = parallelize(trainer.step, model=trainer.model, optimizer=trainer.optimizer, example=(x,))
    losses = [step(x)]
    for holder, name, value in ((trainer, "weight", 3.0), (trainer, "power", 2), (trainer.model, "scale", 0.5)):
        setattr(holder, name, value)
        losses += [step(x), step(x)]
    step.sync()
    return losses, seen(trainer.model, trainer.optimizer)


class Block(nn.Module):
    """A layer with a helper that reads numbers, beside ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.kind = nn.Linear(8, 8), 1.0, None

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) if self.kind is None else x) * self.scale


class Blocks(nn.Module):
    """Calls the helpers of what is in its lists."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.named = nn.ModuleList(Block() for _ in range(2)), nn.ModuleDict({"last": Block()})
        self.plain = [[self.blocks[0]], (self.named["last"],)]
        self.first, self.head = Block(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block.scaled(x)
        for block in self.named.values():
            x = block.scaled(x)
        for (block,) in self.plain:
            x = x + 0.5 * block.scaled(x)
        return self.head(self.first.scaled(x))


@script
def numbers_of_helpers_of_modules_in_lists_change(parallelize):
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    batch = pair()
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    model.blocks[1].scale = 0.5
    losses += [step(*batch)]
    model.named["last"].scale = 0.25
    losses += [step(*batch)]
    model.first.kind = "none"
    losses += [step(*batch)]
    return ended(step, losses, model, optimizer)


@dataclass(frozen=True)
class Weights:
    first: float
    powers: tuple[int, ...] = (1, 2)


@script
def numbers_in_lists_and_in_what_is_replaced_change(parallelize):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    weights, factors = [0.5, 0.5], {"l1": 0.1, "l2": 0.2}
    terms = [types.SimpleNamespace(weight=0.1)]
    of = Weights(0.5)

    def train_step(x, y):
        optimizer.zero_grad()
        away = (model(x) - y).abs()
        loss = sum(weight * away.pow(power).mean() for weight, power in zip(weights, of.powers, strict=True))
        loss = loss * of.first + sum(term.weight for term in terms) * away.mean()
        for power, (_name, factor) in enumerate(factors.items()):
            loss = loss + factor * away.pow(power + 1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    step = parallelize(train_step, model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    weights[0] = 0.25
    losses += [step(*batch)]
    weights = [0.75, 1]
    losses += [step(*batch)]
    factors["l2"] = 0.0
    losses += [step(*batch)]
    of = Weights(1.5)
    losses += [step(*batch)]
    of = Weights(1.5, (2, 3))
    losses += [step(*batch)]
    terms[0].weight = 0.3
    losses += [step(*batch)]
    terms.append(types.SimpleNamespace(weight=0.4))
    losses += [step(*batch)]
    terms[1] = types.SimpleNamespace(weight=0.5)
    losses += [step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def functions_and_what_they_read_change(parallelize):
    """Functions in a list, a dictionary and an attribute, a method and a partial call: their numbers change, and they do."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    config, trainer = types.SimpleNamespace(power=1, factor=0.5), Trainer()
    penalties = [lambda away: away.pow(config.power).mean(), functools.partial(torch.mul, 0.1)]
    named = {"scaled": lambda away: config.factor * away, "method": trainer.loss}
    act = types.SimpleNamespace(of=torch.tanh, through=lambda away: away.sqrt())

    def train_step(x, y):
        optimizer.zero_grad()
        away = act.through((act.of(model(x)) - y).abs() + 0.1)
        loss = sum(penalty(away).mean() for penalty in penalties) + named["scaled"](away).mean()
        loss = loss + 0.1 * named["method"](x).detach()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    step = parallelize(train_step, model=nn.ModuleList([model, trainer.model]), optimizer=optimizer, example=batch)
    losses = [step(*batch)]

    def again(change):
        change()
        losses.append(step(*batch))

    again(lambda: setattr(config, "power", 2))
    again(lambda: setattr(config, "factor", 0.25))
    again(lambda: setattr(trainer, "weight", 2.0))
    again(lambda: penalties.__setitem__(1, functools.partial(torch.mul, 0.2)))
    again(lambda: penalties.append(lambda away: away.square().mean()))
    again(lambda: setattr(act, "of", torch.sigmoid))
    again(lambda: setattr(act, "through", lambda away: away.square()))
    return ended(step, losses, model, optimizer)


@script
def state_is_set_where_something_else_changes_too(parallelize):
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "last": nn.Linear(8, 4)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    state = {"hidden": torch.zeros(8, 8)}

    def train_step(x, y):
        optimizer.zero_grad()
        hidden = torch.tanh(model["first"](x) + state["hidden"])
        state["hidden"] = hidden.detach()
        loss = F.mse_loss(model["last"](hidden), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = pair()
    step = parallelize(train_step, model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    for trained in (False, True, False):
        state["hidden"] = torch.ones(8, 8) * len(losses)
        model["first"].requires_grad_(trained)
        losses += [step(*batch), step(*batch)]
    return ended(step, losses, model, optimizer), state["hidden"]


@script
def hooks_come_and_go_and_read_numbers(parallelize):
    config = types.SimpleNamespace(scale=1.0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].register_forward_hook(lambda module, given, out: out * config.scale)
    batch = pair()
    step = parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch)
    losses = [step(*batch)]
    config.scale = 2.0
    losses += [step(*batch), step(*batch)]
    added = model[2].register_forward_hook(lambda module, given, out: out + 1)
    losses += [step(*batch), step(*batch)]
    added.remove()
    losses += [step(*batch)]
    step.sync()
    added = model[0].weight.register_hook(lambda gradient: gradient * 0)
    losses += [step(*batch), step(*batch)]
    step.sync()
    added.remove()
    losses += [step(*batch)]
    return ended(step, losses, model, optimizer)


@script
def numbers_that_the_first_call_has_set(parallelize):
    model = Net()
    optimizer = adam(model)
    state = types.SimpleNamespace(size=0, scale=1.0, made=False, taken=0)

    def step(x, y):
        if not state.made:
            state.scale, state.made = 2.0, True
        state.size, state.taken = max(state.size, len(x)), state.taken + 1
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) * state.scale / state.size
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [pair(size) for size in (6, 8, 6, 6, 8)]
    step = parallelize(step, model=model, optimizer=optimizer, example=batches[0])
    losses = [step(*batch) for batch in batches[:3]]
    state.scale = 0.5
    losses += [step(*batch) for batch in batches[3:]]
    return ended(step, losses, model, optimizer)
