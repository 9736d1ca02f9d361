"""Optimizers of people's own that count in Python numbers, and steps with them, on any ranks; see ``test_counted_optimizers.py``."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import choosing_optimizers
import holding_optimizers
import steps
import torch
import torch.nn.functional as F
from torch import nn, optim

from unisono._capture.paths import tensors_in

#: Enough that what an optimizer chooses by its count (RAdam's five steps) is chosen otherwise.
STEPS = 9


class Counted(optim.Optimizer):
    """Adam whose groups count."""

    def __init__(self, parameters: Any, lr: float = 0.01, **settings: Any) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1, **settings})

    def count(self, group: dict[str, Any]) -> int:
        group["step"] = group.get("step", 0) + 1
        return group["step"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            count = self.count(group)
            size = group["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count)
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state["mean"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                p.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-size)


class CountedFromZero(Counted):
    """One whose groups begin to count in the first step."""

    def count(self, group: dict[str, Any]) -> int:
        if "step" not in group:
            group["step"] = 0
        group["step"] += 1
        return group["step"]


class CountedFromTheBeginning(Counted):
    """One whose groups count from the beginning."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, step=0)

    def count(self, group: dict[str, Any]) -> int:
        group["step"] += 1
        return group["step"]


class CountedByItself(Counted):
    """One that counts in an attribute, for all groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.steps = 0

    def count(self, group: dict[str, Any]) -> int:
        self.steps += group is self.param_groups[0]
        return self.steps


class CountedInState(optim.Optimizer):
    """Rectified Adam whose parameters count, and that chooses by that."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                count, most = state["step"], 2 / (1 - 0.99) - 1
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["square"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                rectified = most - 2 * count * 0.99**count / (1 - 0.99**count)
                if rectified >= 5:
                    factor = math.sqrt((rectified - 4) * (rectified - 2) * most / ((most - 4) * (most - 2) * rectified))
                    root = state["square"].sqrt().add_(1e-8)
                    size = group["lr"] * factor * math.sqrt(1 - 0.99**count) / (1 - 0.9**count)
                    p.addcdiv_(state["mean"], root, value=-size)
                else:
                    p.add_(state["mean"], alpha=-group["lr"] / (1 - 0.9**count))


class Scheduled(optim.Optimizer):
    """Gradient descent that sets a number of its groups by another, and sums up its rates."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "step": 0, "momentum": 0.5, "rates": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] += 1
            group["momentum"] = min(0.9, 0.5 + 0.1 * group["step"])
            group["rates"] = group["rates"] + group["lr"] ** 2
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(p.grad)
                p.lerp_(p - group["lr"] * momentum, weight=group["lr"] ** 2 / group["rates"])


class Estimated(optim.Optimizer):
    """Gradient descent whose groups keep a number that it reads from gradients, and takes at the next step."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "scale": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] / group["scale"])
            norms = torch.stack([p.grad.norm() for p in group["params"]])
            group["scale"] = 0.5 * group["scale"] + norms.norm().item()


class FromTheFirst(optim.Optimizer):
    """One whose state begins with the first gradient, and whose first step is so another one."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                if "before" not in state:
                    state["before"] = p.grad.clone().mul_(-1)
                    state["average"] = torch.empty_like(p).fill_(0.5)
                change = p.grad + state["before"]
                state["average"].mul_(0.9).add_(change, alpha=0.1)
                state["before"].copy_(p.grad).neg_()
                p.sub_(p.grad + state["average"] / group["step"], alpha=group["lr"])


def damped(parameters: Any) -> optim.Optimizer:
    """PyTorch's own, whose momentum begins with the first gradient undamped."""
    return optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5)


KINDS: dict[str, Callable[[Any], optim.Optimizer]] = (
    {
        kind.__name__: kind
        for kind in (
            Counted,
            CountedFromZero,
            CountedFromTheBeginning,
            CountedByItself,
            CountedInState,
            Scheduled,
            Estimated,
            FromTheFirst,
            damped,
        )
    }
    | holding_optimizers.KINDS
    | choosing_optimizers.KINDS
)


#: Those that are saved and loaded.
RESUMED = ("Counted", "CountedInState", "FromTheFirst", "damped", "InDictionaries", "InLists", "InGroups")


def training(kind: str, every: int = 1) -> steps.Training:
    """A small model, two groups of which have rates of their own; its optimizer steps ``every`` so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    groups = [{"params": [*model[0].parameters()], "lr": 0.02}, {"params": [*model[2].parameters()]}]
    optimizer = KINDS[kind](groups)

    def step(x: torch.Tensor, y: torch.Tensor, number: int = 0) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    generator = torch.Generator().manual_seed(1)
    numbers = [() if every == 1 else (n,) for n in range(STEPS)]
    batches = [
        (torch.randn(12, 8, generator=generator), torch.randn(12, 4, generator=generator), *number)
        for number in numbers
    ]
    return steps.Training(model, optimizer, step, batches)


def scaled(kind: str) -> steps.Training:
    """The same with a scaler of losses, which leaves out the first update and a later one."""
    given = training(kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    model, optimizer = given.model, given.optimizer

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.nan_to_num(0, 0, 0)

    batches = [(x * math.inf if number in (0, 3) else x, y) for number, (x, y) in enumerate(given.batches)]
    return steps.Training(model, optimizer, step, batches)


def counts(optimizer: optim.Optimizer) -> list[Any]:
    """The numbers of groups and of state, but for rates."""
    keys = ("step", "momentum", "rates", "scale", "distance", "most", "found")
    groups = [[group.get(key) for key in keys] for group in optimizer.param_groups]
    return [groups, [values.get("step") for values in optimizer.state.values()]]


def held(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of groups and of state, those in containers and objects too."""
    groups = [value for group in optimizer.param_groups for key, value in group.items() if key != "params"]
    return [*tensors_in([groups, [*optimizer.state.values()]], set())]


def differences(kind: str, every: int = 1, **settings: Any) -> dict[str, Any]:
    """How far losses and parameters are from eager PyTorch's, and the numbers of groups and state, here and there."""
    expected, found = training(kind, every), training(kind, every)
    wanted = [expected.step(*batch).detach() for batch in expected.batches]
    step = steps.parallelize(found, **settings)
    losses = [step(*batch).detach() for batch in found.batches]
    step.sync()
    pairs = [
        *zip(losses, wanted, strict=True),
        *zip(found.model.parameters(), expected.model.parameters(), strict=True),
        *zip(held(found.optimizer), held(expected.optimizer), strict=True),
    ]
    return {
        "difference": max(float((one - other).detach().abs().max()) for one, other in pairs),
        "counts": counts(found.optimizer),
        "expected": counts(expected.optimizer),
    }


def skipped(kind: str) -> dict[str, Any]:
    """The same where updates are left out."""
    expected, found = scaled(kind), scaled(kind)
    wanted = [expected.step(*batch) for batch in expected.batches]
    step = steps.parallelize(found)
    given = [step(*batch) for batch in found.batches]
    step.sync()
    pairs = [*zip(found.model.parameters(), expected.model.parameters(), strict=True)]
    pairs += zip(given, wanted, strict=True)
    pairs += zip(held(found.optimizer), held(expected.optimizer), strict=True)
    return {
        "difference": max(float((one - other).detach().abs().max()) for one, other in pairs),
        "counts": counts(found.optimizer),
        "expected": counts(expected.optimizer),
    }


def resumed(kind: str) -> dict[str, Any]:
    """The same where the state of the first steps is loaded into another training, which goes on."""
    expected, first, second = (training(kind) for _ in range(3))
    for batch in expected.batches:
        expected.step(*batch)
    step = steps.parallelize(first)
    for batch in first.batches[:4]:
        step(*batch)
    saved = copy.deepcopy(step.state_dict())
    again = steps.parallelize(second)
    again.load_state_dict(saved)
    for batch in second.batches[4:]:
        again(*batch)
    again.sync()
    pairs = [*zip(second.model.parameters(), expected.model.parameters(), strict=True)]
    pairs += zip(held(second.optimizer), held(expected.optimizer), strict=True)
    return {
        "difference": max(float((one - other).detach().abs().max()) for one, other in pairs),
        "counts": counts(second.optimizer),
        "expected": counts(expected.optimizer),
    }


def main() -> None:
    """Every kind on the ranks that there are."""
    found = {kind: differences(kind) for kind in KINDS}
    found |= {f"{kind}, every third": differences(kind, every=3) for kind in ("CountedFromZero", "CountedInState")}
    found |= {f"{kind}, resumed": resumed(kind) for kind in RESUMED}
    Path(os.environ["HOME"], f"{os.environ['RANK']}.json").write_text(json.dumps(found))
