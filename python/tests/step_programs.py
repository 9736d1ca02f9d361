"""Training steps made at random from one seed: each is a handful of habits that people's training code has.

A habit is a function that adds to a program: parts of the model, what happens to the hidden values, to the gradients, between steps. All
that a program draws while it is made comes from its own generator, so that a seed and a set of habits name it.
"""

from __future__ import annotations

import copy
import random
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import steps
import torch
import torch.nn.functional as F
from eager import Training
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH, STEPS = 6, 4, 5
Change = Callable[[torch.Tensor], torch.Tensor]


class Program:
    """One training, as it is put together."""

    def __init__(self, rng: random.Random) -> None:
        """Takes the generator of choices."""
        self.rng = rng
        self.model = nn.Module()
        self.layers: list[Change] = []
        self.losses: list[Change] = []
        self.before_update: list[Callable[[], Any]] = []
        self.after_update: list[Callable[[], Any]] = []
        self.between: list[Callable[[int], Any]] = []
        self.visible: dict[str, Callable[[], Any]] = {}
        self.returned: dict[str, Any] = {}
        self.keeps_what_is_returned = True
        self.parts, self.optimizers = 1, ["SGD"]
        self.cast, self.scheduled, self.zero = False, False, "before"

    def add(self, module: nn.Module) -> nn.Module:
        """Makes a module a part of the model."""
        self.model.add_module(f"m{len(self.model._modules)}", module)
        return module

    def training(self) -> Training:
        """The training."""
        self.model.out = nn.Linear(WIDTH, 3)  # type: ignore[assignment]
        self.model.to(torch.float32 if self.cast else torch.float64)
        dtype = next(self.model.parameters()).dtype
        optimizers = _optimizers(self.optimizers, list(self.model.parameters()))
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in optimizers] if self.scheduled else []

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.cast):
                hidden = x
                for layer in self.layers:
                    hidden = layer(hidden)
                out = self.model.out(hidden)  # type: ignore[operator]
                loss = F.mse_loss(out.to(dtype), y)
            for more in self.losses:
                loss = loss + more(hidden)
            return loss

        def zero() -> None:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=self.zero != "in place")

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            if self.zero != "after":
                zero()
            total = x.new_zeros(())
            for part, wanted in zip(x.chunk(self.parts), y.chunk(self.parts), strict=True):
                loss = loss_of(part, wanted) / self.parts
                loss.backward()
                total += loss.detach()
            extra = [change() for change in self.before_update]
            for optimizer in optimizers:
                optimizer.step()
            extra += [change() for change in self.after_update]
            if self.zero == "after":
                zero()
            return {"loss": total, "extra": extra, **self.returned}

        def between(number: int) -> Any:
            for scheduler in schedulers:
                scheduler.step()
            return [change(number) for change in self.between]

        batches = [(torch.randn(BATCH, WIDTH, dtype=dtype), torch.randn(BATCH, 3, dtype=dtype)) for _ in range(STEPS)]
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


_MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def _optimizers(names: list[str], parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    made = []
    for number, name in enumerate(names):
        own = parameters[number :: len(names)]
        half = len(own) // 2
        groups = [{"params": own[:half], "lr": 0.02}, {"params": own[half:]}] if half else own
        made.append(_MAKERS[name](groups))
    return made


HABITS: dict[str, Callable[[Program], None]] = {}


def habit(function: Callable[[Program], None]) -> Callable[[Program], None]:
    HABITS[function.__name__] = function
    return function


# Layers.


@habit
def linear(p: Program) -> None:
    layer, act = p.add(nn.Linear(WIDTH, WIDTH)), p.rng.choice([F.relu, F.gelu, torch.tanh, F.silu, torch.sigmoid])
    p.layers.append(lambda h: act(layer(h)))


@habit
def nested(p: Program) -> None:
    inner = nn.Sequential(nn.Linear(WIDTH, 8), nn.ModuleDict({"norm": nn.LayerNorm(8)})["norm"], nn.Linear(8, WIDTH))
    block = p.add(nn.Sequential(inner, nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH))))
    p.layers.append(lambda h: h + block(h))


@habit
def batch_norm(p: Program) -> None:
    p.layers.append(p.add(nn.BatchNorm1d(WIDTH)))


@habit
def dropout(p: Program) -> None:
    p.layers.append(p.add(nn.Dropout(p.rng.choice([0.1, 0.5]))))


@habit
def dropout_of_a_transpose(p: Program) -> None:
    p.layers.append(lambda h: F.dropout(h.T, 0.3).T)


@habit
def noise(p: Program) -> None:
    draw = p.rng.choice([torch.randn_like, torch.rand_like, lambda h: torch.rand(h.shape, dtype=h.dtype)])
    p.layers.append(lambda h: h + 0.1 * draw(h))


@habit
def noise_in_place(p: Program) -> None:
    fill = p.rng.choice(
        [torch.Tensor.exponential_, torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.bernoulli_]
    )
    p.layers.append(lambda h: h * (1 + 0.1 * fill(torch.empty_like(h.T)).T))


@habit
def checkpointed(p: Program) -> None:
    block = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.ReLU()))
    reentrant = p.rng.random() < 0.3 and bool(p.layers)
    p.layers.append(lambda h: checkpoint(block, h, use_reentrant=reentrant) + 0.0 * torch.rand_like(h))


@habit
def checkpointed_twice(p: Program) -> None:
    block = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)))

    def outer(h: torch.Tensor) -> torch.Tensor:
        return F.dropout(checkpoint(block, h, use_reentrant=False) * torch.rand_like(h), 0.1)

    p.layers.append(lambda h: checkpoint(outer, h, use_reentrant=False))


@habit
def writes_in_place(p: Program) -> None:
    choice = p.rng.randrange(4)

    def change(h: torch.Tensor) -> torch.Tensor:
        h = h.clone()
        if choice == 0:
            h[:, 0] = h[:, 1] * 2
        elif choice == 1:
            h[1:].mul_(0.5)
        elif choice == 2:
            F.relu_(h)
        else:
            h.T[2].zero_()
        return h

    p.layers.append(change)


@habit
def views(p: Program) -> None:
    p.layers.append(lambda h: h.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH).roll(1, 1))


@habit
def detached(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = layer(h).softmax(-1)
        return h * target

    p.layers.append(change)


@habit
def frozen(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    layer.weight.requires_grad_(False)
    p.layers.append(layer)


@habit
def own_gradient(p: Program) -> None:
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradients[0] * (1 + 0.1 * x)

    p.layers.append(Clamp.apply)


@habit
def early_return(p: Program) -> None:
    layer, on = p.add(nn.Linear(WIDTH, WIDTH)), p.rng.random() < 0.5

    def change(h: torch.Tensor) -> torch.Tensor:
        if not on or not p.model.training:
            return h
        return layer(h)

    p.layers.append(change)


@habit
def recurrent_layers(p: Program) -> None:
    layer = p.add(nn.LSTM(3, WIDTH, num_layers=2, dropout=0.3, batch_first=True))
    p.layers.append(lambda h: layer(h.view(-1, 2, 3))[0][:, -1] if not p.cast else h)


@habit
def attention(p: Program) -> None:
    layer = p.add(nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.2, batch_first=p.rng.random() < 0.5))
    p.layers.append(lambda h: layer(h[None])[0])


@habit
def convolution(p: Program) -> None:
    layer = p.add(nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Dropout1d(0.2)))
    p.layers.append(lambda h: h + layer(h[:, None]).mean(1))


@habit
def embedding(p: Program) -> None:
    table = p.add(nn.Embedding(5, WIDTH))
    p.layers.append(lambda h: h + table((h.detach()[:, 0] > 0).long()))


@habit
def normed_weights(p: Program) -> None:
    norm = p.rng.choice([nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
    p.layers.append(p.add(norm(nn.Linear(WIDTH, WIDTH))))


@habit
def tied_weights(p: Program) -> None:
    one, other = p.add(nn.Linear(WIDTH, WIDTH)), p.add(nn.Linear(WIDTH, WIDTH))
    other.weight = one.weight
    p.layers.append(lambda h: other(torch.tanh(one(h))))


@habit
def selecting_and_scattering(p: Program) -> None:
    def change(h: torch.Tensor) -> torch.Tensor:
        best, chosen = h.topk(2, dim=1)
        spread = torch.zeros_like(h).scatter_add(1, chosen, best)
        return torch.where(h > 0, spread, h.masked_fill(h < -1, 0.0)) + h.sort(1)[0].cumsum(1) * 0.1

    p.layers.append(change)


@habit
def modes_within(p: Program) -> None:
    layer = p.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))

    def change(h: torch.Tensor) -> torch.Tensor:
        layer.eval()
        with torch.set_grad_enabled(False):
            target = layer(h)
        layer.train()
        return layer(h) - target

    p.layers.append(change)


@habit
def inference_within(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = layer(h).tanh_()
        return h + target.clone()

    p.layers.append(change)


@habit
def own_slope(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        point = h.detach().clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(layer(point).square().sum(), point, create_graph=True)
        return h + 0.1 * slope

    p.layers.append(change)


# What is kept.


@habit
def counting_buffers(p: Program) -> None:
    model: Any = p.model
    model.register_buffer("count", torch.zeros(()))
    model.register_buffer("history", torch.zeros(3, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        model.count += 1
        model.history = torch.cat([model.history[1:], h.detach().to(model.history.dtype).mean(0, keepdim=True)])
        return h + (model.history.mean(0) / model.count).to(h.dtype)

    p.layers.append(change)


@habit
def hidden_state(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    owner = p.rng.choice([p.model, types.SimpleNamespace(), {}])
    shape = p.rng.choice([(), (WIDTH,), (1, WIDTH)])
    pair = p.rng.random() < 0.3

    def get() -> Any:
        return owner["hidden"] if isinstance(owner, dict) else owner.hidden

    def put(value: Any) -> None:
        if isinstance(owner, dict):
            owner["hidden"] = value
        else:
            owner.hidden = value

    zero = lambda: torch.zeros(shape, dtype=dtype)  # noqa: E731
    put((zero(), zero()) if pair else zero())

    def change(h: torch.Tensor) -> torch.Tensor:
        before = get()[0] if pair else get()
        new = (0.5 * before + h.detach().to(dtype).mean()).expand(shape).clone()
        put((new, before) if pair else new)
        return h + before.to(h.dtype)

    def reset(number: int) -> None:
        if number == 2:
            put((zero() + 1, zero()) if pair else zero() + 1)

    p.layers.append(change)
    p.visible["hidden"] = get
    if p.rng.random() < 0.5:
        p.between.append(reset)


@habit
def queue_of_results(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    queue = deque([torch.zeros(WIDTH, dtype=dtype) for _ in range(2)], maxlen=2)

    def change(h: torch.Tensor) -> torch.Tensor:
        queue.append(h.detach().to(dtype).mean(0))
        return h - queue[0].to(h.dtype)

    p.layers.append(change)
    p.visible["queue"] = lambda: list(queue)


@habit
def nonlocal_mean(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    mean = torch.zeros(WIDTH, dtype=dtype)

    def change(h: torch.Tensor) -> torch.Tensor:
        nonlocal mean
        mean = mean.lerp(h.detach().to(dtype).mean(0), 0.3)
        return h - mean.to(h.dtype)

    p.layers.append(change)
    p.visible["mean"] = lambda: mean


@habit
def written_counts(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    seen = torch.zeros(2, WIDTH, dtype=dtype)

    def change(h: torch.Tensor) -> torch.Tensor:
        seen[1].add_(h.detach().to(dtype).mean(0))
        return h + 0.1 * seen.sum(0).to(h.dtype)

    p.layers.append(change)
    p.visible["seen"] = lambda: seen
    if p.rng.random() < 0.5:
        p.between.append(lambda number: seen.zero_() if number == 1 else None)


@habit
def constants_that_change(p: Program) -> None:
    config = types.SimpleNamespace(weight=torch.ones(WIDTH), bias=torch.zeros(1))
    p.layers.append(lambda h: h * config.weight.to(h.dtype) + config.bias.to(h.dtype))

    def between(number: int) -> None:
        config.weight = config.weight * 0.9
        config.bias.add_(0.1)

    p.between.append(between)


@habit
def left_to_be_read(p: Program) -> None:
    seen: dict[str, Any] = {}

    def change(h: torch.Tensor) -> torch.Tensor:
        seen["hidden"] = h.detach()
        return h

    p.layers.append(change)
    p.visible["left"] = lambda: dict(seen)


@habit
def cache_of_constants(p: Program) -> None:
    model: Any = p.model
    model.angles = None

    def change(h: torch.Tensor) -> torch.Tensor:
        if model.angles is None:
            model.angles = torch.arange(WIDTH).cos()
        return h * (1 + 0.1 * model.angles.to(h.dtype))

    p.layers.append(change)


@habit
def average_of_the_model(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    average = copy.deepcopy(layer).to(torch.float32 if p.cast else torch.float64)
    p.layers.append(lambda h: layer(h) - average(h).detach())

    @torch.no_grad()
    def update() -> None:
        for mean, parameter in zip(average.parameters(), layer.parameters(), strict=True):
            mean.mul_(0.9).add_(parameter, alpha=0.1)

    p.after_update.append(update)
    p.visible["average"] = average.state_dict


@habit
def kept_in_functions_and_classes(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64

    class Settings:
        scale = torch.ones(WIDTH, dtype=dtype)

    start = {"mean": torch.zeros(WIDTH, dtype=dtype)}

    def change(h: torch.Tensor, cache: dict[str, torch.Tensor] = start) -> torch.Tensor:
        cache["mean"] = cache["mean"] * 0.5 + h.detach().to(dtype).mean(0)
        change.last = h.detach().sum()  # type: ignore[attr-defined]
        Settings.scale = Settings.scale * 0.9
        return h * Settings.scale.to(h.dtype) + cache["mean"].to(h.dtype)

    p.layers.append(change)
    p.visible["settings"] = lambda: [Settings.scale, change.last]  # type: ignore[attr-defined]


@habit
def a_copy_of_the_layer_at_each_step(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    dtype = torch.float32 if p.cast else torch.float64
    owner = types.SimpleNamespace(
        old={key: value.detach().clone().to(dtype) for key, value in layer.state_dict().items()}
    )
    p.layers.append(lambda h: h + F.linear(h, owner.old["weight"].to(h.dtype), owner.old["bias"].to(h.dtype)))

    def keep() -> None:
        owner.old = {key: value.detach().clone() for key, value in layer.state_dict().items()}

    p.after_update.append(keep)
    p.visible["old"] = lambda: owner.old


@habit
def a_table_that_is_written_by_rows(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    bank, place = torch.zeros(4, WIDTH, dtype=dtype), torch.zeros((), dtype=torch.long)

    def change(h: torch.Tensor) -> torch.Tensor:
        bank.index_copy_(0, place[None], h.detach().to(dtype).mean(0, keepdim=True))
        place.add_(1).remainder_(4)
        return h + bank.mean(0).to(h.dtype)

    p.layers.append(change)
    p.visible["bank"] = lambda: [bank, place]


# Hooks.


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


# Gradients, updates, what is returned.


@habit
def accumulation(p: Program) -> None:
    p.parts = 2


@habit
def automatic_casts(p: Program) -> None:
    p.cast = True


@habit
def other_optimizers(p: Program) -> None:
    p.optimizers = [p.rng.choice(list(_MAKERS)) for _ in range(p.rng.choice([1, 1, 2]))]


@habit
def schedule(p: Program) -> None:
    p.scheduled = True


@habit
def zeroing(p: Program) -> None:
    p.zero = p.rng.choice(["before", "after", "in place"])


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
                parameter.grad.copy_(parameter.grad.sign())

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


#: These decide what the others make, so they come first.
_FIRST = ("automatic_casts",)


def habits_of(seed: int) -> list[str]:
    """The habits of a seed's program, in the order in which they are added."""
    rng = random.Random(seed)
    chosen = rng.choices(list(HABITS), k=rng.randint(3, 9))
    return sorted(dict.fromkeys(chosen), key=lambda name: name not in _FIRST)


def make(seed: int, habits: list[str] | None = None) -> Training:
    """The training of a seed, with its habits or with those that are given."""
    program = Program(random.Random(seed))
    for name in habits_of(seed) if habits is None else habits:
        HABITS[name](program)
    return program.training()
