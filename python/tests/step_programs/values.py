"""Habits of values: generators of the step's own, masks, complex numbers, numbers that are read, that choose or that change."""

from __future__ import annotations

import collections
import math
import types
from typing import Any

import numpy
import torch
from torch import nn

from step_programs.program import BATCH, WIDTH, Program, habit


@habit
def a_generator_of_its_own(p: Program) -> None:
    owner = types.SimpleNamespace(random=torch.Generator().manual_seed(p.rng.randrange(100)))
    draw = p.rng.choice([torch.rand, torch.randn])
    p.layers.append(lambda h: h + 0.1 * draw(h.shape, generator=owner.random, dtype=h.dtype))
    p.visible["generator"] = lambda: owner.random.get_state()
    if p.rng.random() < 0.3:
        p.between.append(lambda number: owner.random.manual_seed(number) if number == 2 else None)


@habit
def assigns_by_a_mask(p: Program) -> None:
    choice = p.rng.randrange(3)

    def change(h: torch.Tensor) -> torch.Tensor:
        h = h.clone()
        mask = h > 0.5
        if choice == 0:
            h[mask] = 0.5
        elif choice == 1:
            h[mask] *= 0.5
        else:
            h[mask[:, 0]] = h[mask[:, 0]].tanh()
        return h

    p.layers.append(change)


@habit
def a_penalty_on_some_rows(p: Program) -> None:
    by_entry = p.rng.random() < 0.5
    p.losses.append(lambda h: (h[h > 0] if by_entry else h[h[:, 0] > 0]).square().sum() * 0.01)


@habit
def complex_factors(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    factors = torch.polar(torch.ones(3, dtype=dtype), torch.arange(3, dtype=dtype))

    def change(h: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(h.to(dtype).reshape(-1, 3, 2))
        return torch.view_as_real(pairs * factors).flatten(1).to(h.dtype)

    p.layers.append(change)


@habit
def reads_numbers(p: Program) -> None:
    p.after_update.append(lambda: [round(p.model.out.weight.sum().item(), 2), float(p.model.out.bias[0]) * 2])  # type: ignore[union-attr, index]


@habit
def numbers_that_change(p: Program) -> None:
    config = types.SimpleNamespace(scale=1.0, more={"add": 0.5})
    choice = p.rng.randrange(3)
    p.layers.append(lambda h: h * config.scale + config.more["add"])

    def between(number: int) -> None:
        if number == 1 and choice != 1:
            config.scale = 0.5
        elif number == 2 and choice == 1:
            config.more["add"] = 0.25
        elif number == 3 and choice == 2:
            config.scale = 1.0

    p.between.append(between)


@habit
def an_update_by_choice(p: Program) -> None:
    if p.scaler is not None or p.make_scheduler is not None:
        return
    limit = p.rng.choice([0.8, 1.2, 2.0])
    p.updates = lambda loss: bool(loss < limit)


@habit
def checks(p: Program) -> None:
    choice = p.rng.randrange(4)

    def change(h: torch.Tensor) -> torch.Tensor:
        if choice == 0:
            assert not torch.isnan(h).any() and h.abs().max() < 1e6, "broken"
        elif choice == 1 and h.sum() > 1e6:
            raise ValueError(f"{h.sum().item()} is too much")
        elif choice == 2 and not math.isfinite(h.detach().mean().item()):
            raise FloatingPointError("not finite")
        elif choice == 3:
            for row in h.detach().unbind():
                if row.isinf().any():
                    raise ValueError("infinite")
        return h

    p.layers.append(change)


@habit
def an_averaged_model(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=decay if p.rng.random() < 0.5 else None)
    average.to(torch.float32 if p.cast else torch.float64)
    p.layers.append(lambda h: layer(h) - average(h).detach())
    p.after_update.append(lambda: average.update_parameters(layer))
    p.visible["averaged"] = average.state_dict


@habit
def other_sizes(p: Program) -> None:
    p.sizes[3] = p.sizes[4] = BATCH + 2


@habit
def settings_that_change(p: Program) -> None:
    def between(number: int) -> None:
        for group in (group for optimizer in p.made for group in optimizer.param_groups):
            group["lr"] *= 0.9
            if number > 1 and group.get("momentum"):
                group["momentum"] *= 0.9
            if number > 1 and "betas" in group:
                group["betas"] = (group["betas"][0] * 0.9, group["betas"][1])

    p.between.append(between)


@habit
def modes_between(p: Program) -> None:
    p.between.append(lambda number: p.model.train(number != 1))


@habit
def frozen_between(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    p.layers.append(lambda h: h + layer(h))
    p.between.append(lambda number: layer.requires_grad_(number != 2))


@habit
def an_evaluation_between(p: Program) -> None:
    layer: Any = p.add(nn.Linear(WIDTH, WIDTH))
    p.layers.append(lambda h: torch.relu(layer(h)))

    @torch.no_grad()
    def between(number: int) -> torch.Tensor:
        return layer(torch.ones(2, WIDTH, dtype=layer.weight.dtype))

    p.between.append(between)


@habit
def attributes_of_classes(p: Program) -> None:
    class Settings:
        scale, weight = 1.0, torch.ones(WIDTH)

    settings: Any = Settings()
    choice = p.rng.randrange(3)
    p.layers.append(lambda h: h * settings.scale + settings.weight.to(h.dtype))

    def between(number: int) -> None:
        if number == 0 and choice != 1:
            settings.scale = 0.5
        elif number == 1 and choice == 1:
            settings.weight = torch.zeros(WIDTH)
        elif number == 2 and choice == 2:
            del settings.scale
            Settings.scale = 0.25

    p.between.append(between)


@habit
def arrays_that_change(p: Program) -> None:
    config, choice = types.SimpleNamespace(array=numpy.ones(WIDTH), dtype=torch.float64), p.rng.randrange(3)
    p.layers.append(lambda h: (h.to(config.dtype) * torch.tensor(config.array)).to(h.dtype))

    def between(number: int) -> None:
        if number == 1 and choice == 0:
            config.array[0] = 0.5
        elif number == 1 and choice == 1:
            config.array = config.array * 0.5
        elif number == 2 and choice == 2:
            config.dtype = torch.float32

    p.between.append(between)


@habit
def one_random_choice(p: Program) -> None:
    p.layers.append(lambda h: torch.where(torch.rand(()) < 0.5, h.flip(1), h))


@habit
def counts_beside_tensors(p: Program) -> None:
    config = types.SimpleNamespace(taken=0, state={"steps": [0, 0]}, seconds=0.0, first=True, text="")

    def change(h: torch.Tensor) -> torch.Tensor:
        config.taken += 1
        config.state["steps"][1] += len(h)
        config.seconds = config.seconds + 0.5 * config.taken
        config.first = False
        return h

    p.layers.append(change)
    p.after_update.append(lambda: setattr(config, "text", f"step {config.taken} in {config.seconds:.1f} s"))
    p.visible["counts beside tensors"] = lambda: [config.taken, config.state["steps"][1], config.seconds]


@habit
def state_of_the_generator(p: Program) -> None:
    def change(h: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            one = torch.rand_like(h)
        return h + 0.1 * (one + torch.rand_like(h))

    p.layers.append(change)


class _Meter:
    """A mean of numbers."""

    def __init__(self) -> None:
        self.value = self.sum = self.count = self.mean = 0

    def update(self, value: Any, count: int) -> None:
        self.value = value
        self.sum += value * count
        self.count += count
        self.mean = self.sum / self.count


@habit
def a_meter(p: Program) -> None:
    meter, rows = _Meter(), p.rng.randrange(1, 4)
    p.after_update.append(lambda: meter.update(p.model.out.weight.sum().item(), rows))  # type: ignore[union-attr]
    p.visible["meter"] = lambda: vars(meter).copy()
    if p.rng.random() < 0.5:
        p.between.append(lambda number: meter.__init__() if number == 2 else None)  # type: ignore[misc]


@habit
def counts_calls(p: Program) -> None:
    counts = types.SimpleNamespace(calls=0, rows={"all": 0}, last=None, pair=(0, 1.0))

    def change(h: torch.Tensor) -> torch.Tensor:
        counts.calls += 1
        counts.rows["all"] += len(h)
        counts.pair = (counts.calls, counts.pair[1] / 2)
        counts.last = {"of": counts.calls // 2, "mean": h.detach().mean().item()}
        return h * 1.5

    p.layers.append(change)
    p.visible["counts"] = lambda: [counts.calls, dict(counts.rows), counts.pair, dict(counts.last)]  # type: ignore[call-overload]
    if p.rng.random() < 0.3:
        p.after_update.append(lambda: counts.calls * 2)


@habit
def a_list_that_grows(p: Program) -> None:
    kept: Any = [] if p.rng.random() < 0.5 else collections.deque(maxlen=3)
    p.after_update.append(lambda: kept.append(round(p.model.out.weight.sum().item(), 3)))  # type: ignore[union-attr]
    if p.rng.random() < 0.3:
        p.losses.append(lambda h: kept.extend([h.detach().sum().item(), 1]) or h.sum() * 0.01)
    if p.rng.random() < 0.3:
        p.between.append(lambda number: kept.clear() if number == 1 else None)
    p.visible["kept"] = lambda: [*kept]


@habit
def a_list_of_tensors(p: Program) -> None:
    kept: Any = [] if p.rng.random() < 0.5 else collections.deque(maxlen=2)
    in_layers, whole = p.rng.random() < 0.5, p.rng.random() < 0.5

    def change(h: torch.Tensor) -> torch.Tensor:
        kept.append(h.detach() if whole else {"mean": h.detach().mean(), "rows": len(h)})
        return h

    if in_layers:
        p.layers.append(change)
    else:
        p.after_update.append(lambda: kept.append(p.model.out.bias.detach().clone()))  # type: ignore[union-attr]
    if p.rng.random() < 0.3:
        p.between.append(lambda number: kept.clear() if number == 1 else None)
    p.visible["tensors"] = lambda: [*kept]
