"""Habits of updates: gradients, optimizers, what is returned, what happens between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from step_programs.program import MAKERS, WIDTH, Program, habit


@habit
def accumulation(p: Program) -> None:
    p.parts = 2


@habit
def automatic_casts(p: Program) -> None:
    p.cast = True


@habit
def other_optimizers(p: Program) -> None:
    p.optimizers = [p.rng.choice(list(MAKERS)) for _ in range(p.rng.choice([1, 1, 2]))]


@habit
def schedule(p: Program) -> None:
    p.scheduled = True


@habit
def zeroing(p: Program) -> None:
    p.zero = p.rng.choice(["before", "after", "in place", "outside"])


@habit
def clipping(p: Program) -> None:
    by_norm = p.rng.random() < 0.5

    def clip() -> Any:
        parameters = [q for q in p.model.parameters() if q.grad is not None]
        if by_norm:
            return nn.utils.clip_grad_norm_(parameters, 0.1)
        return nn.utils.clip_grad_value_(parameters, 0.05)

    p.before_update.append(clip)


@habit
def noise_on_gradients(p: Program) -> None:
    def change() -> None:
        for parameter in p.model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.01 * torch.randn_like(parameter.grad)

    p.before_update.append(change)


@habit
def weights_are_clamped(p: Program) -> None:
    @torch.no_grad()
    def change() -> None:
        for parameter in p.model.parameters():
            parameter.clamp_(-1, 1)

    p.after_update.append(change)


@habit
def gradients_are_set(p: Program) -> None:
    choice = p.rng.randrange(4)

    def change() -> None:
        for number, parameter in enumerate(p.model.parameters()):
            if parameter.grad is None:
                continue
            if choice == 0:
                parameter.grad = parameter.grad * 0.5
            elif choice == 1:
                parameter.grad.data.mul_(0.5)
            elif choice == 2 and number == 0:
                parameter.grad = None
            else:
                parameter.grad.copy_(parameter.grad / (parameter.grad.abs() + 0.1))

    p.before_update.append(change)


@habit
def update_by_hand(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    choice = p.rng.randrange(3)
    p.layers.append(layer)

    def change() -> None:
        for parameter in layer.parameters():
            if parameter.grad is None:
                continue
            if choice == 0:
                with torch.no_grad():
                    parameter.sub_(0.01 * parameter.grad)
            elif choice == 1:
                parameter.data.add_(parameter.grad.data, alpha=-0.01)
            else:
                parameter.data = parameter.data - 0.01 * parameter.grad

    p.before_update.append(change)


@habit
def frozen_for_a_while(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        layer.requires_grad_(False)
        out = layer(h)
        layer.requires_grad_(True)
        return out + 0.1 * layer(h)

    p.layers.append(change)


@habit
def returns_state_and_arguments(p: Program) -> None:
    p.keeps_what_is_returned = False
    p.after_update.append(lambda: [p.model.out.weight, p.model.out.weight.detach()[0]])  # type: ignore[union-attr]


@habit
def penalty(p: Program) -> None:
    p.losses.append(lambda h: 0.01 * sum(q.square().sum() for q in p.model.parameters()))


@habit
def returns_other_things(p: Program) -> None:
    p.returned = {"none": None, "number": 3, "words": ["a", 0.5, True]}


@habit
def writes_between_steps(p: Program) -> None:
    @torch.no_grad()
    def between(number: int) -> None:
        if number == 1:
            for parameter in p.model.parameters():
                parameter.mul_(0.9)
        elif number == 2:
            out: Any = p.model.out
            out.weight.data = out.weight.data + 0.1

    p.between.append(between)


@habit
def draws_between_steps(p: Program) -> None:
    p.between.append(lambda number: torch.rand(3))


@habit
def a_scaler(p: Program) -> None:
    if p.updates is p.always:  # an update is a choice already
        p.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        p.visible["scale"] = lambda: p.scaler.get_scale()  # type: ignore[union-attr]


@habit
def overflows(p: Program) -> None:
    """With a scaler, updates that are skipped."""
    if p.scaler is not None:
        limit = p.rng.choice([0.2, 0.4, 0.8])
        p.losses.append(
            lambda h: torch.where(h[0, 0].detach().abs() > limit, torch.inf, 1.0).to(h.dtype) * h.sum() * 1e-3
        )


@habit
def schedule_within(p: Program) -> None:
    of = torch.optim.lr_scheduler
    p.make_scheduler = p.rng.choice(
        [
            lambda o: of.LambdaLR(o, lambda number: 1 / (number + 1)),
            lambda o: of.CosineAnnealingLR(o, 4),
            lambda o: of.StepLR(o, 2, 0.5),
        ]
    )


@habit
def groups_with_settings_of_their_own(p: Program) -> None:
    def set_them(number: int) -> None:
        if number == 0:
            for optimizer in p.made:
                optimizer.param_groups[-1]["weight_decay"] = 0.1

    p.between.append(set_them)


@habit
def a_step_up_before_the_update(p: Program) -> None:
    @torch.no_grad()
    def change() -> torch.Tensor:
        parameters = [q for q in p.model.parameters() if q.grad is not None]
        norm = torch.stack([q.grad.norm() for q in parameters]).norm()  # type: ignore[union-attr]
        for parameter in parameters:
            parameter.add_(parameter.grad * (0.05 / (norm + 1e-2)))  # type: ignore[operator]
        return norm

    p.before_update.append(change)


@habit
def gradients_as_one_vector(p: Program) -> None:
    def change() -> torch.Tensor:
        parameters = [q for q in p.model.parameters() if q.grad is not None]
        vector = torch.cat([q.grad.flatten() for q in parameters])  # type: ignore[union-attr]
        vector = vector / (1 + vector.norm())
        for parameter, part in zip(parameters, vector.split([q.numel() for q in parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))  # type: ignore[union-attr]
        return vector.norm()

    p.before_update.append(change)
