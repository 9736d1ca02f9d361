"""Habits of hooks: of parameters, modules and results."""

from __future__ import annotations

import torch
from torch import nn

from step_programs.program import WIDTH, Program, habit


@habit
def hooks_of_parameters(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    layer.weight.register_hook(lambda gradient: gradient * 2)

    def clamp(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-0.01, 0.01)

    layer.bias.register_post_accumulate_grad_hook(clamp)
    p.layers.append(layer)


@habit
def hooks_of_modules(p: Program) -> None:
    layer, seen = p.add(nn.Linear(WIDTH, WIDTH)), {}
    layer.register_forward_hook(lambda module, given, made: seen.update(made=made.detach()) or made * 0.5)
    layer.register_full_backward_hook(lambda module, given, made: (given[0] * 2,) if given[0] is not None else None)
    p.layers.append(lambda h: layer(h + 0.0 * layer.weight.sum()))
    p.visible["hooked"] = lambda: dict(seen)


@habit
def hooks_of_results(p: Program) -> None:
    def change(h: torch.Tensor) -> torch.Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 0.5)
        return h

    p.layers.append(change)
