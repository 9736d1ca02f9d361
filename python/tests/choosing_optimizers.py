"""Optimizers that choose by values, once or more for each parameter, in functions that they call for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import optim


def by_rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], -1)


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, -1)


def projected(p: torch.Tensor, grad: torch.Tensor, change: torch.Tensor, bound: float) -> tuple[torch.Tensor, float]:
    """Takes what is along the parameter out of a change, where the gradient is nearly at a right angle to it, as AdamP does."""
    share = 1.0
    for view in (by_rows, whole):
        cosine = torch.cosine_similarity(view(grad), view(p), dim=1).abs_()
        if cosine.max() < bound:
            unit = p / view(p).norm()
            change -= unit * (unit * change).sum()
            share = 0.1
            return change, share
    return change, share


class Projected(optim.Optimizer):
    """As AdamP, with bounds that some parameters keep at some steps."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "bound": 0.4, "decay": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                change, share = projected(p, p.grad, p.grad.clone(), group["bound"])
                p.mul_(1 - group["lr"] * group["decay"] * share)
                p.sub_(change, alpha=group["lr"])


class ByItsNorm(optim.Optimizer):
    """Scales gradients by averages of their norms that a method writes into, as AdaNorm does."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @staticmethod
    def scaled(grad: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
        norm = grad.norm()
        average.mul_(0.9).add_(norm, alpha=0.1)
        if norm > 0 and average > 0.4 * norm:
            return grad * (average / norm)
        return grad

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros(())
                p.sub_(self.scaled(p.grad, state["average"]), alpha=group["lr"])


class Counts(optim.Optimizer):
    """Counts what it scales, in a method that so does more than to compute with its arguments."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.times = 0

    def scaled(self, grad: torch.Tensor) -> torch.Tensor:
        if grad.norm() > 1:
            self.times += 1
            return grad / grad.norm()
        return grad

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.scaled(p.grad), alpha=group["lr"])


class ByLists(optim.Optimizer):
    """Operations on lists of tensors where its groups allow them, as they do by default; one by one it would choose for each parameter."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "foreach": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            parameters, gradients = group["params"], [p.grad for p in group["params"]]
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["square"] = torch.zeros_like(p)
            squares = [self.state[p]["square"] for p in parameters]
            torch._foreach_mul_(squares, 0.9)
            if group["foreach"] is False:
                for square, gradient in zip(squares, gradients, strict=True):
                    square.add_(gradient.square() if gradient.norm() > 0 else gradient)
            else:
                torch._foreach_addcmul_(squares, gradients, gradients, 0.1)
            roots = torch._foreach_maximum(torch._foreach_pow(squares, 0.5), 1e-3)
            torch._foreach_minimum_(roots, 10.0)
            torch._foreach_clamp_min_(roots, 2e-3)
            torch._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])


KINDS = {kind.__name__: kind for kind in (Projected, ByItsNorm, ByLists)}
