"""A training step as it is put together, and the habits that people's training code has."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import steps
import torch
import torch.nn.functional as F
from eager import Training
from torch import nn

WIDTH, BATCH, STEPS = 6, 4, 5
EPSILON = 1e-4
Change = Callable[[torch.Tensor], torch.Tensor]


class Program:
    """One training, as it is put together."""

    def __init__(self, rng: random.Random) -> None:
        """Takes the generator of choices."""
        self.rng = rng
        self.model = nn.Module()
        self.layers: list[Change] = []
        #: What is done to the hidden values by the number of the call, which the step is given.
        self.by_number: list[Callable[[torch.Tensor, int], torch.Tensor]] = []
        self.losses: list[Change] = []
        self.before_update: list[Callable[[], Any]] = []
        self.after_update: list[Callable[[], Any]] = []
        self.between: list[Callable[[int], Any]] = []
        self.visible: dict[str, Callable[[], Any]] = {}
        self.returned: dict[str, Any] = {}
        self.keeps_what_is_returned = True
        self.parts, self.optimizers = 1, ["SGD"]
        self.cast, self.scheduled, self.zero = False, False, "before"
        self.make_scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
        self.scaler: torch.amp.GradScaler | None = None
        self.sizes = [BATCH] * STEPS
        self.always: Callable[[torch.Tensor], bool] = lambda loss: True
        self.updates = self.always
        self.made: list[torch.optim.Optimizer] = []

    def add(self, module: nn.Module) -> nn.Module:
        """Makes a module a part of the model."""
        self.model.add_module(f"m{len(self.model._modules)}", module)
        return module

    def training(self) -> Training:
        """The training."""
        self.model.out = nn.Linear(WIDTH, 3)  # type: ignore[assignment]
        self.model.to(torch.float32 if self.cast else torch.float64)
        dtype = next(self.model.parameters()).dtype
        optimizers = self.made = _optimizers(self.optimizers, list(self.model.parameters()))
        within = [self.make_scheduler(o) for o in optimizers] if self.make_scheduler is not None else []
        scaler = self.scaler
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in optimizers] if self.scheduled else []

        def loss_of(x: torch.Tensor, y: torch.Tensor, *number: int) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.cast):
                hidden = x
                for layer in self.layers:
                    hidden = layer(hidden)
                for change in self.by_number:
                    hidden = change(hidden, *number)
                out = self.model.out(hidden)  # type: ignore[operator]
                loss = F.mse_loss(out.to(dtype), y)
            for more in self.losses:
                loss = loss + more(hidden)
            return loss

        def zero() -> None:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=self.zero != "in place")

        def step(x: torch.Tensor, y: torch.Tensor, *number: int) -> Any:
            if self.zero in ("before", "in place"):
                zero()
            total = x.new_zeros(())
            for part, wanted in zip(x.chunk(self.parts), y.chunk(self.parts), strict=True):
                loss = loss_of(part, wanted, *number) / self.parts
                (loss if scaler is None else scaler.scale(loss)).backward()
                total += loss.detach()
            for optimizer in optimizers if scaler is not None else ():
                scaler.unscale_(optimizer)
            extra = [change() for change in self.before_update]
            if self.updates(total):
                for optimizer in optimizers:
                    optimizer.step() if scaler is None else scaler.step(optimizer)
                for scheduler in within:
                    scheduler.step()
            if scaler is not None:
                scaler.update()
            extra += [change() for change in self.after_update]
            if self.zero == "after":
                zero()
            return {"loss": total, "extra": extra, **self.returned}

        def between(number: int) -> Any:
            for scheduler in schedulers:
                scheduler.step()
            if self.zero == "outside":
                zero()
            return [change(number) for change in self.between]

        if self.zero == "outside":
            self.visible["gradients"] = lambda: [parameter.grad for parameter in self.model.parameters()]
        batches = [
            (torch.randn(n, WIDTH, dtype=dtype), torch.randn(n, 3, dtype=dtype), *((at,) if self.by_number else ()))
            for at, n in enumerate(self.sizes)
        ]
        return Training(
            self.model,
            optimizers,
            step,
            batches,
            between=between,
            visible=lambda: {name: look() for name, look in self.visible.items()},
            settings={"cluster": steps.EAGER_TO_CUT},
            keeps_what_is_returned=self.keeps_what_is_returned,
        )


#: Optimizers by name. Where a gradient is zero but for rounding, their epsilon decides, and not the rounding.
MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=EPSILON),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, eps=EPSILON),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001, eps=EPSILON),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, eps=EPSILON),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, eps=EPSILON),
}


def _optimizers(names: list[str], parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    made = []
    for number, name in enumerate(names):
        own = parameters[number :: len(names)]
        half = len(own) // 2
        groups = [{"params": own[:half], "lr": 0.02}, {"params": own[half:]}] if half else own
        made.append(MAKERS[name](groups))
    return made


#: By name, in the order in which their modules are imported.
HABITS: dict[str, Callable[[Program], None]] = {}


def habit(function: Callable[[Program], None]) -> Callable[[Program], None]:
    """Makes a function that adds to a program one of the habits."""
    HABITS[function.__name__] = function
    return function
