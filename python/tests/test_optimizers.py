"""Every optimizer of torch.optim with its options: captured, it updates as PyTorch does; what cannot be captured is refused by name."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import steps
import torch
import torch.nn.functional as F
from ranks import train
from test_capture import run_graph
from test_models import FAMILIES, planned
from torch import nn, optim

import unisono
from unisono.errors import ConfigurationError, StepError, UnsupportedError

Make = Callable[[list[nn.Parameter]], optim.Optimizer]
SHAPES = ((24, 8), (2, 3, 4, 5), (17,), ())
STEPS = 4


class Leaves(nn.Module):
    """Parameters without a model, so that what differs is the optimizer's doing."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.leaves = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)


def of(name: str, **settings: Any) -> Make:
    # Copies, because a schedule writes into a rate that is a tensor.
    return lambda parameters: getattr(optim, name)(parameters, **copy.deepcopy(settings))


def two_groups(parameters: list[nn.Parameter]) -> optim.Optimizer:
    first = {"params": parameters[:2], "momentum": 0.9, "nesterov": True}
    return optim.SGD([first, {"params": parameters[2:], "lr": 0.3, "weight_decay": 0.1, "maximize": True}], lr=0.01)


def fused_and_not(parameters: list[nn.Parameter]) -> optim.Optimizer:
    first = {"params": parameters[:2], "amsgrad": True, "fused": False}
    return optim.Adam([first, {"params": parameters[2:], "lr": 0.03, "betas": (0.5, 0.9), "fused": True}], lr=0.01)


OPTIONS: dict[str, Make] = {
    "AdamW, amsgrad, maximised": of("AdamW", lr=1e-2, amsgrad=True, maximize=True, weight_decay=0.1),
    "AdamW, foreach": of("AdamW", lr=1e-2, foreach=True),
    "AdamW, not fused": of("AdamW", lr=1e-2, fused=False),
    "AdamW, fused": of("AdamW", lr=1e-2, fused=True),
    "Adam, rate as tensor": of("Adam", lr=torch.tensor(1e-2)),
    "Adam, groups fused and not": fused_and_not,
    "SGD, decay and momentum": of("SGD", lr=0.05, momentum=0.9, weight_decay=0.1),
    "SGD, decay and Nesterov's momentum, maximised": of(
        "SGD", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True
    ),
    "SGD, groups that differ": two_groups,
    "SGD, rate as tensor": of("SGD", lr=torch.tensor(0.05)),
    "ASGD, decay": of("ASGD", lr=1e-2, weight_decay=0.1),
    "Adadelta, maximised": of("Adadelta", lr=0.5, maximize=True, weight_decay=0.1),
    "Adagrad, decaying rate": of("Adagrad", lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
    "Adamax, decay": of("Adamax", lr=1e-2, weight_decay=0.1),
    "NAdam, decoupled decay": of("NAdam", lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam, decoupled decay": of("RAdam", lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "RMSprop, centred, momentum": of("RMSprop", lr=1e-3, centered=True, momentum=0.9, weight_decay=0.1),
    "Rprop, maximised": of("Rprop", lr=1e-2, maximize=True),
    "Adafactor": of("Adafactor"),
    "Adafactor, foreach": of("Adafactor", foreach=True),
    "Adafactor, maximised": of("Adafactor", maximize=True),
    "Adafactor, decay": of("Adafactor", weight_decay=0.1),
    "Adafactor, slower decay of variances": of("Adafactor", beta2_decay=-0.5),
    "Adafactor, clipped later": of("Adafactor", d=2.0),
    "Adafactor, epsilons": of("Adafactor", eps=(1e-6, 1e-2)),
    "Adafactor, rate as tensor": of("Adafactor", lr=torch.tensor(0.1)),
    "Muon": of("Muon", lr=1e-2),
    "Muon, rate as for AdamW": of("Muon", lr=1e-2, adjust_lr_fn="match_rms_adamw", nesterov=False),
}


def training(
    make: Make, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> tuple[Leaves, optim.Optimizer, Any]:
    """A model of parameters, and a step whose arguments are the gradients."""
    torch.manual_seed(0)
    model = Leaves(shapes).to(dtype)
    optimizer = make(list(model.parameters()))

    def step(*gradients):
        optimizer.zero_grad()
        loss = torch.stack([(p * g).sum() for p, g in zip(model.parameters(), gradients, strict=True)]).sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def differences(make: Make, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> dict[str, float]:
    """How far each parameter and part of the state is from PyTorch's after some steps, relative to the largest number in it."""
    generator = torch.Generator().manual_seed(1)
    gradients = [tuple(torch.randn(s, generator=generator).to(dtype) * 0.3 for s in shapes) for _ in range(STEPS)]
    model, optimizer, step = training(make, shapes, dtype)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=gradients[0])
    _, found = run_graph(graph, gradients)
    expected, eager, eager_step = training(make, shapes, dtype)
    for batch in gradients:
        eager_step(*batch)
    wanted = {f"params.{name}": parameter.detach() for name, parameter in expected.named_parameters()}
    for name, parameter in expected.named_parameters():
        kept = eager.state[parameter].items()
        wanted |= {f"optimizer.{name}.{key}": value for key, value in kept if isinstance(value, torch.Tensor)}
    assert wanted.keys() <= found.keys()
    return {name: _difference(found[name], value) for name, value in wanted.items()}


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.dtype == expected.dtype
    scale = expected.abs().max().double().clamp(min=1e-30)
    return float((found.double() - expected.double()).abs().max() / scale)


def shapes_for(name: str) -> tuple[tuple[int, ...], ...]:
    return SHAPES[:1] if name.startswith("Muon") else SHAPES


@pytest.mark.parametrize("name", OPTIONS)
def test_an_update_is_pytorchs_whatever_the_options(name):
    found = differences(OPTIONS[name], shapes_for(name), torch.float32)
    assert max(found.values()) <= 1e-6, max(found.items(), key=lambda item: item[1])


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "Adagrad", "Adafactor", "Muon"])
def test_an_update_in_half_precision_rounds_as_pytorchs_does(name):
    decay = {"SGD": {"lr": 0.05, "momentum": 0.9}, "Adafactor": {"lr": 0.1}}.get(name, {"lr": 0.01})
    found = differences(of(name, **decay), shapes_for(name), torch.bfloat16)
    # One unit in the last place at most: PyTorch's own kernels round differently at the ends of rows.
    assert max(found.values()) <= 2**-8, max(found.items(), key=lambda item: item[1])


def test_every_optimizer_of_this_pytorch_is_either_tested_or_refused_by_name():
    names = {name for name, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    assert names - {"Optimizer", "LBFGS", "SparseAdam"} == {option.partition(",")[0] for option in OPTIONS}


def test_a_schedule_changes_the_rate_between_steps_without_another_capture(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # plans are kept there

    def scheduled(make):
        model, optimizer, step = training(make, SHAPES, torch.float32)
        return model, optimizer, step, optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    batches = [tuple(torch.randn(shape) for shape in SHAPES) for _ in range(STEPS)]
    for make in (of("Adafactor", lr=0.1), of("SGD", lr=0.1), of("AdamW", lr=torch.tensor(0.1))):
        expected, _, eager, schedule = scheduled(make)
        model, optimizer, step, own_schedule = scheduled(make)
        together = unisono.parallelize(
            step, model=model, optimizer=optimizer, example=batches[0], cluster=steps.EAGER_TO_CUT
        )
        for batch in batches:
            eager(*batch), schedule.step()
            together(*batch), own_schedule.step()
        together.sync()
        for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


# On two ranks.


class Decayed(optim.Optimizer):
    """An optimizer of somebody's own that asks its count for a number, as those of libraries do where they are not compiled."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 0.1, capturable: bool = False) -> None:
        super().__init__(parameters, {"lr": lr, "capturable": capturable})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert not group["capturable"], "capturable=True is for parameters on CUDA"
            for p in group["params"]:
                count = self.state[p].setdefault("step", torch.tensor(0.0))
                count += 1
                p.sub_(p.grad * group["lr"] / (1 - 0.9 ** count.item()))


def test_an_optimizer_that_is_not_pytorchs_keeps_the_implementation_that_it_was_given():
    def trained(parallelize: Callable[..., Any]) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = Decayed([*model.parameters()])

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        x = torch.ones(4, 3)
        step = parallelize(step, model=model, optimizer=optimizer, example=(x,))
        return torch.stack([step(x).detach() for _ in range(3)])

    assert torch.allclose(trained(unisono.parallelize), trained(lambda step, **_: step), atol=1e-6)


class Late(optim.Optimizer):
    """An optimizer that makes a part of its state in its second step."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if "average" in state:
                state["change"] = p.grad - state["average"]
            state["average"] = p.grad.clone()
            p.sub_(0.1 * state.get("change", p.grad))


def test_state_that_would_begin_anew_at_each_step_is_refused_by_its_name():
    model = nn.Linear(3, 2)
    optimizer = Late([*model.parameters()])

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with pytest.raises(StepError, match="in the optimizer's state \\(`change`\\)") as caught:
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.ones(4, 3),))
    assert caught.value.code == "U0103"


class Net(nn.Module):
    """A convolution, a bias, a norm and a single number, beside matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 16, 32)
        self.norm, self.down, self.scale = (
            nn.LayerNorm(32),
            nn.Linear(32, 8, bias=False),
            nn.Parameter(torch.tensor(1.5)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(F.gelu(self.up(F.relu(self.conv(x)).flatten(1))))) * self.scale


def classifier(make: Make, matrices_only: bool) -> tuple[Net, optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = Net()
    parameters = [p for p in model.parameters() if not matrices_only or p.dim() == 2]
    optimizer = make(parameters)

    def step(x, y):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@pytest.mark.parametrize(
    ("make", "family"),
    [
        *itertools.product([of("Adafactor", lr=1e-2, weight_decay=0.1)], FAMILIES),
        *itertools.product([of(name, lr=1e-3) for name in ("ASGD", "Adadelta", "Muon")], ["state cut"]),
        (of("NAdam", lr=1e-3, eps=steps.EPSILON), "state cut"),
    ],
)
def test_cut_over_two_ranks_an_update_is_that_of_one_device(make, family):
    matrices_only = isinstance(make([nn.Parameter(torch.ones(2, 2))]), optim.Muon)
    batches = [(torch.randn(8, 3, 4, 4), torch.randint(0, 8, (8,))) for _ in range(3)]
    model, optimizer, step = classifier(make, matrices_only)
    reference, _, eager = classifier(make, matrices_only)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    expected = [eager(*batch).item() for batch in batches]
    plan = planned(graph, family, 2)
    losses, after = train(graph, plan, {"a": 2}, batches, passes=True)
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=1e-5)
    for name, parameter in reference.named_parameters():
        assert _difference(after[name], parameter.detach()) <= 1e-5, name
    cut = [name for name in msgpack.unpackb(plan.content())["inputs"] if name.startswith("optimizer.")]
    assert cut or family == "batch cut"


# Several optimizers in one step.


Several = tuple[nn.Module, list[optim.Optimizer], Any]


def by_shape(for_matrices: Make) -> Several:
    """One optimizer for matrices, AdamW for everything else."""
    torch.manual_seed(0)
    model = Net()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizers = [
        for_matrices(matrices),
        optim.AdamW([{"params": others[:2], "lr": 1e-2}, {"params": others[2:]}], eps=steps.EPSILON),
    ]

    def step(x, y):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return model, optimizers, step


def muon_and_adamw() -> Several:
    return by_shape(of("Muon", lr=1e-2))


def sgd_and_adamw() -> Several:
    return by_shape(of("SGD", lr=0.1, momentum=0.9))


def adversaries() -> Several:
    training = steps.adversaries()
    return training.model, training.optimizer, training.step


@pytest.mark.parametrize("make", [muon_and_adamw, adversaries])
def test_several_optimizers_with_schedules_update_as_pytorchs_do(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # plans are kept there
    batches = [(torch.randn(8, 3, 4, 4), torch.randint(0, 8, (8,))) for _ in range(3)]
    reference, _, eager = made = make()
    model, optimizers, step = make()
    schedules = [[optim.lr_scheduler.ExponentialLR(o, 0.5) for o in one] for one in (made[1], optimizers)]
    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizers, example=batches[0], cluster=steps.EAGER_TO_CUT
    )
    for batch in batches:
        torch.testing.assert_close(parallel(*batch), eager(*batch), rtol=1e-4, atol=0)
        for schedule in itertools.chain(*schedules):
            schedule.step()
    parallel.sync()
    # Muon rounds its updates to bfloat16, in which the last bit of a gradient can show.
    bound = 1e-3 if make is muon_and_adamw else 1e-5
    for (name, found), wanted in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert _difference(found, wanted) <= bound, name
    for own, of_reference in zip(optimizers, made[1], strict=True):
        for found, wanted in zip(own.state.values(), of_reference.state.values(), strict=True):
            assert found.keys() == wanted.keys()
            pairs = [(torch.as_tensor(found[key]), torch.as_tensor(wanted[key])) for key in found]
            assert all(torch.allclose(*pair, rtol=10 * bound, atol=bound) for pair in pairs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("make", [sgd_and_adamw, adversaries])
def test_cut_over_two_ranks_several_optimizers_update_as_on_one_device(make, family):
    batches = [(torch.randn(8, 3, 4, 4), torch.randint(0, 8, (8,))) for _ in range(3)]
    model, optimizers, step = make()
    reference, _, eager = make()
    graph = unisono.capture(step, model=model, optimizer=optimizers, example=batches[0])
    expected = [eager(*batch).item() for batch in batches]
    losses, after = train(graph, planned(graph, family, 2), {"a": 2}, batches, passes=True)
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=1e-5)
    for name, parameter in reference.named_parameters():
        assert _difference(after[name], parameter.detach()) <= 1e-5, name


def test_a_parameter_of_two_optimizers_is_refused_by_name():
    model = nn.Linear(4, 4)
    optimizers = [optim.SGD([model.weight], lr=0.1), optim.AdamW(model.parameters())]
    with pytest.raises(StepError) as caught:
        unisono.capture(lambda x: model(x).sum(), model=model, optimizer=optimizers, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0125"
    assert "`params.weight`" in caught.value.message
    assert "SGD and AdamW" in caught.value.message


@pytest.mark.parametrize("known", [0, 1, None])
def test_an_optimizer_that_the_step_calls_and_was_not_passed_is_refused_at_the_call(known):
    training = steps.adversaries()
    passed = None if known is None else training.optimizer[known]
    before = copy.deepcopy(training.model.state_dict())
    with pytest.raises(StepError) as caught:
        unisono.capture(training.step, model=training.model, optimizer=passed, example=training.batches[0])
    assert caught.value.code == "U0126"
    assert ("RMSprop.step" if known == 0 else "Adam.step") in caught.value.message
    file, _, number = (caught.value.place or "").rpartition(":")
    assert file == steps.__file__
    called = "of_generator.step()" if known == 0 else "of_critic.step()"
    assert Path(file).read_text().splitlines()[int(number) - 1].strip() == called
    assert all(torch.equal(now, before[name]) for name, now in training.model.state_dict().items())


@pytest.mark.parametrize("given", ["adam", [optim.Adam], object()])
def test_what_is_no_optimizer_is_refused_as_such(given):
    with pytest.raises(ConfigurationError, match=r"is no torch\.optim\.Optimizer"):
        unisono.capture(lambda x: x.sum(), optimizer=given, example=(torch.ones(2),))


def test_a_setting_that_changes_is_named_with_its_optimizer(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, optimizers, step = muon_and_adamw()
    batch = (torch.randn(8, 3, 4, 4), torch.randint(0, 8, (8,)))
    settings = {"cluster": steps.EAGER_TO_CUT, "on_change": "refuse"}
    parallel = unisono.parallelize(step, model=model, optimizer=optimizers, example=batch, **settings)
    optimizers[1].param_groups[1]["weight_decay"] = 0.5
    with pytest.raises(StepError, match=r"`weight_decay` of parameter group 1 of AdamW is 0\.5"):
        parallel(*batch)


# What cannot be captured.


def refused(make: Make, sparse: bool = False, closure: bool = False) -> unisono.errors.UnisonoError:
    torch.manual_seed(0)
    model = nn.Embedding(11, 8, sparse=sparse)
    optimizer = make(list(model.parameters()))
    before, groups = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["param_groups"])

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()  # the loss
        loss.backward()
        return optimizer.step(lambda: loss) if closure else optimizer.step()  # the call

    with pytest.raises((StepError, UnsupportedError)) as caught:
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.arange(6),))
    assert torch.equal(model.weight, before["weight"])
    assert optimizer.state_dict()["param_groups"] == groups
    assert caught.value.cause
    assert caught.value.hint
    return caught.value


def line(error: unisono.errors.UnisonoError) -> str:
    file, _, number = (error.place or "").rpartition(":")
    assert file == __file__
    with open(file) as source:
        return source.read().splitlines()[int(number) - 1].partition("# ")[2]


def test_lbfgs_is_refused_because_it_calls_its_closure_as_values_ask_for():
    error = refused(optim.LBFGS, closure=True)
    assert (error.code, line(error)) == ("U0111", "the call")
    assert "LBFGS" in error.message
    assert "closure" in error.cause


def test_sparse_adam_is_refused_because_sizes_depend_on_data():
    error = refused(optim.SparseAdam, sparse=True)
    assert (error.code, line(error)) == ("U0111", "the call")
    assert "SparseAdam" in error.message
    assert "sparse=False" in error.hint


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (of("Adam", lr=0.1), "Adam does not do with a sparse gradient"),
        (of("SGD", lr=0.1, weight_decay=0.1), "refuses weight decay"),
        (of("Adagrad", lr=0.1, weight_decay=0.1), "refuses weight decay"),
    ],
)
def test_sparse_gradients_are_refused_with_the_line_that_makes_them_where_dense_ones_are_not_the_same(make, why):
    error = refused(make, sparse=True)
    assert (error.code, line(error)) == ("U0113", "the loss")
    assert "sparse gradient" in error.message
    assert why in error.cause
    assert "sparse=False" in error.hint


@pytest.mark.parametrize(("setting", "says"), [("capturable", "capturable=True"), ("differentiable", "leaf Variable")])
def test_what_pytorch_refuses_by_itself_is_refused_with_its_reason_and_the_line(setting, says):
    error = refused(of("Adam", **{setting: True}))
    assert (error.code, line(error)) == ("U0111", "the call")
    assert says in error.message


def test_dampening_is_refused_before_the_first_step_and_captured_after_it():
    error = refused(of("SGD", lr=0.1, momentum=0.9, dampening=0.5))
    assert (error.code, line(error)) == ("U0110", "the call")
    model, optimizer, step = training(of("SGD", lr=0.1, momentum=0.9, dampening=0.5), SHAPES, torch.float32)
    batches = [tuple(torch.randn(shape) for shape in SHAPES) for _ in range(3)]
    step(*batches[0])
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    _, found = run_graph(graph, batches[1:])
    for batch in batches[1:]:
        step(*batch)
    for name, parameter in model.named_parameters():
        assert _difference(found[f"params.{name}"], parameter.detach()) <= 1e-6
