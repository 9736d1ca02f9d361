"""Optimizers that hold tensors elsewhere than as entries of a parameter's state: in containers and objects there, in their groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import optim


class InDictionaries(optim.Optimizer):
    """Several momenta of one parameter, by their decay, as AggMo has them."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "decays": (0.0, 0.9)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momenta"] = {decay: torch.zeros_like(p) for decay in group["decays"]}
                for decay, momentum in state["momenta"].items():
                    momentum.mul_(decay).add_(p.grad)
                    p.sub_(momentum, alpha=group["lr"] / 2)


class InLists(optim.Optimizer):
    """Factors of each dimension in a list, others at each step, as SPlus and Kron have them."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["factors"] = [p.new_ones(size) for size in p.shape]
                for dim, factor in enumerate(state["factors"]):
                    others = [other for other in range(p.dim()) if other != dim]
                    state["factors"][dim] = 0.9 * factor + (p.grad.square().sum(others) if others else p.grad.square())
                for dim, factor in enumerate(state["factors"]):
                    shape = [-1 if other == dim else 1 for other in range(p.dim())]
                    p.sub_(group["lr"] * p.grad / factor.reshape(shape).sqrt())


class ListedAnew(optim.Optimizer):
    """A list that is another one behind each step."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                before = self.state[p].get("change", [torch.zeros_like(p)])
                self.state[p]["change"] = [0.9 * before[0] + p.grad]
                p.sub_(group["lr"] * self.state[p]["change"][0])


class SetAgain(optim.Optimizer):
    """Numbers in its state that it sets at each step, to what they were, to another number, and to what it reads from a tensor."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "step": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["decay"], state["part"], state["ratio"] = 0.5, 1.0, 1.0
                    state["average"] = None
                if state["average"] is None:
                    state["average"] = p.grad.clone()
                state["decay"], state["part"] = 0.5, 1.0 / group["step"]
                state["average"].lerp_(p.grad, state["decay"])
                state["ratio"] = (p.norm() / (p.norm() + state["average"].norm())).item()
                p.sub_(state["average"], alpha=group["lr"] * (1 + state["part"]))
                p.mul_(1 - 0.1 * state["ratio"])


class Momentum:
    """What keeps the momentum of a parameter."""

    def __init__(self, p: torch.Tensor) -> None:
        self.kept = torch.zeros_like(p)

    def of(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.kept.mul_(0.9).add_(gradient)


class InObjects(optim.Optimizer):
    """Objects in the state, as Shampoo has them."""

    def __init__(self, parameters: Any, lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = Momentum(p)
                p.sub_(state["momentum"].of(p.grad), alpha=group["lr"])


class InGroups(optim.Optimizer):
    """Estimates its distance in its groups, in tensors and in numbers that it reads from them, as Prodigy and D-Adaptation do."""

    def __init__(self, parameters: Any, lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "distance": 1e-2, "most": 1e-2, "step": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if "numerator" not in group:
                group["numerator"], group["denominator"] = torch.tensor([0.0]), torch.tensor(0.0)
            distance = group["distance"]
            group["numerator"].mul_(0.9)
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["first"], state["sum"] = p.clone(), torch.zeros_like(p)
                group["numerator"].add_(torch.dot(p.grad.flatten(), (state["first"] - p).flatten()), alpha=distance)
                state["sum"].mul_(0.9).add_(p.grad, alpha=distance)
                group["denominator"] = group["denominator"] + state["sum"].abs().sum()
            if group["denominator"] == 0:
                continue
            found = (group["numerator"] / group["denominator"]).item()
            group["found"] = found
            group["most"] = max(group["most"], found)
            group["distance"] = min(group["most"], 1.5 * distance)
            group["step"] += 1
            for p in group["params"]:
                p.sub_(self.state[p]["sum"].sign(), alpha=distance * group["lr"])


KINDS = {kind.__name__: kind for kind in (InDictionaries, InLists, ListedAnew, SetAgain, InObjects, InGroups)}
