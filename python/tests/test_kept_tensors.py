"""Tensors that a step keeps in variables, attributes and containers are what they are in eager PyTorch, or the step is refused."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare
from fakes import fake_tensors, new_among
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono import _native
from unisono._capture.outside import Outside
from unisono.errors import CaptureNotice, StepError

CASES: dict[str, Callable[[], Training]] = {}


def case(make: Callable[[], Training]) -> Callable[[], Training]:
    CASES[make.__name__] = make
    return make


def training(
    run: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    model: nn.Module | None = None,
    after: Callable[..., Any] = lambda model: None,
    **others: Any,
) -> Training:
    """A model, and scores that ``run`` makes of it, of which a loss is taken."""
    model = model or nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = run(model, x).square().mean()
        loss.backward()
        optimizer.step()
        after(model)
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randn(3, 6),) for _ in range(5)], **others)


@case
def an_entry_of_a_dictionary():
    state = {"prev": torch.zeros(())}

    def run(model, x):
        out = model(x) + state["prev"]
        state["prev"] = out.mean().detach()
        return out

    return training(run, visible=lambda: state["prev"])


@case
def a_variable_of_the_closure_and_one_that_is_set_between_steps():
    mean, scale = torch.ones(4), torch.ones(())

    def run(model, x):
        nonlocal mean
        out = model(x) * scale
        mean = mean.lerp(out.detach().mean(0), 0.3)
        return out - mean

    def between(number):
        nonlocal scale
        scale = scale * 0.5
        return mean

    return training(run, between=between)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 5), nn.Linear(5, 4)
        self.hidden = (torch.zeros(3, 5), torch.zeros(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, self.hidden)
        self.hidden = (h.detach(), c.detach())
        return self.head(h)


@case
def a_tuple_that_a_module_keeps():
    model = Recurrent()
    return training(lambda m, x: m(x), model, visible=lambda: model.hidden)


@case
def a_module_that_is_reset_between_steps():
    model = Recurrent()

    def between(number):
        if number == 2:
            model.hidden = (torch.full((3, 5), 0.5), torch.zeros(3, 5))

    return training(lambda m, x: m(x), model, between=between, visible=lambda: model.hidden)


@case
def a_queue_of_fixed_length():
    queue = deque([torch.zeros(4) for _ in range(3)], maxlen=3)

    def run(model, x):
        out = model(x)
        queue.append(out.detach().mean(0))
        return out - torch.stack(list(queue)).mean(0)

    return training(run, visible=lambda: list(queue))


@case
def a_list_that_is_made_anew():
    owner = types.SimpleNamespace(last=[torch.zeros(4), torch.ones(4)])

    def run(model, x):
        out = model(x) * owner.last[0] + owner.last[1]
        owner.last = [owner.last[1], out.detach().mean(0)]
        return out

    return training(run, visible=lambda: owner.last)


@case
def two_that_are_exchanged():
    pair = {"a": torch.ones(4), "b": torch.full((4,), 0.5)}

    def run(model, x):
        pair["a"], pair["b"] = pair["b"], pair["a"]
        return model(x) * pair["a"]

    return training(run, visible=lambda: dict(pair))


@case
def one_of_two_names_of_the_same_tensor():
    first = torch.ones(4)
    state = {"w": first}

    def run(model, x):
        out = model(x) * state["w"] + first
        state["w"] = state["w"] * 0.5
        return out

    return training(run, visible=lambda: [first, state["w"]])


@case
def a_tensor_that_is_written_into():
    seen = torch.zeros(6)

    def run(model, x):
        seen.add_(x.mean(0))
        return model(x * seen)

    def between(number):
        if number == 1:
            seen.zero_()

    return training(run, visible=lambda: seen, between=between)


@case
def a_view_that_is_written_into():
    table = [torch.zeros(2, 6)]

    def run(model, x):
        table[0][0].copy_(x[0])
        return model(x + table[0].sum(0))

    return training(run, visible=lambda: table)


@case
def an_average_of_the_model_in_the_closure():
    model = nn.Linear(6, 4)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def after(model):
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(parameter, alpha=0.1)
        torch._foreach_mul_(list(average.parameters()), 0.99)

    return training(lambda m, x: m(x) - average(x).detach(), model, after, visible=average.state_dict)


@case
def averages_that_are_written_by_their_data():
    model = nn.Linear(6, 4)
    average, other = copy.deepcopy(model), copy.deepcopy(model)

    def after(model):
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.mul_(0.9).add_(parameter.data, alpha=0.1)
        for mean, parameter in zip(other.parameters(), model.parameters(), strict=True):
            mean.data = 0.8 * mean.data + 0.2 * parameter.data

    def run(model, x):
        return model(x) - average(x).detach() * other(x).detach()

    return training(run, model, after, visible=lambda: [average.state_dict(), other.state_dict()])


@case
def an_averaged_model_of_torch():
    model = nn.Linear(6, 4)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def between(number):
        average.update_parameters(model)

    return training(lambda m, x: m(x), model, between=between, visible=average.state_dict)


@case
def what_is_left_to_be_read_between_steps():
    owner = types.SimpleNamespace(loss=None)
    seen: dict[str, Any] = {}

    def run(model, x):
        out = model(x)
        owner.loss = out.detach().square().mean()
        seen["out"] = out.detach()
        return out

    return training(run, visible=lambda: [owner.loss, seen.get("out")])


@case
def what_a_hook_of_a_module_leaves():
    model, seen = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)), {}

    def hook(module, given, out):
        seen["hidden"] = out.detach()

    model[1].register_forward_hook(hook)
    return training(lambda m, x: m(x), model, visible=lambda: dict(seen))


@case
def constants_that_are_written_and_replaced_between_steps():
    config = types.SimpleNamespace(weight=torch.ones(4), bias=torch.zeros(4))

    def between(number):
        config.weight = config.weight * 0.5
        config.bias.add_(1)
        if number == 2:
            config.bias = torch.ones(4) * 3

    return training(lambda m, x: m(x) * config.weight + config.bias, between=between, visible=lambda: vars(config))


@case
def memory_of_parameters_that_is_replaced_between_steps():
    model = nn.Linear(6, 4)

    def between(number):
        model.weight.data = model.weight.data * 0.5
        model.bias.data = torch.arange(4.0)

    return training(lambda m, x: m(x), model, between=between, visible=model.state_dict)


class Cached(nn.Module):
    """Keeps what it has made at its first call, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.angles = nn.Linear(6, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.angles is None:
            self.angles = torch.arange(4.0).cos()
        return self.layer(x) * self.angles


@case
def a_cache_of_what_is_the_same_at_every_step():
    return training(lambda m, x: m(x), Cached())


class CachedFromBuffers(nn.Module):
    """Keeps what it has made of buffers for a length, as codebooks and rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.length, self.angles = nn.Linear(6, 4), None, None
        self.register_buffer("frequencies", torch.tensor([1.0, 0.5, 0.25, 0.125]))
        self.register_buffer("usage", torch.tensor([2.0, 0.0, 1.0, 4.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.length != len(x) or self.angles is None:
            self.length = len(x)
            positions = torch.arange(self.length).type_as(self.frequencies)
            self.angles = torch.outer(positions, self.frequencies).cos() / self.usage.clamp(min=0.1)
        return self.layer(x) * self.angles


@case
def a_cache_of_what_buffers_say_that_stay():
    return training(lambda m, x: m(x), CachedFromBuffers())


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_keeps_is_what_eager_keeps(name):
    before = fake_tensors()
    step = compare(CASES[name])
    del step
    assert not new_among(fake_tensors(), before)


def refused(run: Callable[..., Any], model: nn.Module | None = None) -> StepError:
    given = training(run, model)
    with pytest.raises(StepError) as caught:
        unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.hint
    return caught.value


TYPED_IN = """
owner = types.SimpleNamespace(hidden=torch.zeros(6), factor=1.0)

def run(model, x):
    owner.hidden = (owner.hidden + x.detach().mean(0)).tanh()
    return model(x + owner.hidden) * owner.factor

def between(number):
    owner.factor += number == 2
"""


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-3-0a1b>", "<python-input-0>"])
def test_what_is_typed_in_is_looked_into_like_a_file(file):
    def make():
        typed: dict[str, Any] = {"types": types, "torch": torch}
        exec(compile(TYPED_IN, file, "exec"), typed)
        return training(typed["run"], between=typed["between"], visible=lambda: typed["owner"].hidden)

    compare(make)


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_that_replaces_a_tuple_of_tensors_is_not_looked_through_again_before_each(nested, monkeypatch):
    owner = types.SimpleNamespace(hidden=(torch.zeros(6), (torch.zeros(6), torch.ones(6))[: 1 + nested]))

    def run(model, x):
        h, (c, *others) = owner.hidden
        new = (h + x.detach().mean(0)).tanh()
        owner.hidden = (new, (h, *others))
        return model(x + new + c)

    made = training(run)
    step = unisono.parallelize(
        made.step, model=made.model, optimizer=made.optimizer, example=made.batches[0], cluster=DEAR_COMPUTING
    )
    step(*made.batches[0])
    looked_through = []
    monkeypatch.setattr(Outside, "_read", lambda self: looked_through.append(self))
    step(*made.batches[1])
    assert not looked_through


def test_what_is_none_before_the_first_step_and_read_later_is_refused_by_name_and_line():
    state: dict[str, Any] = {"prev": None}

    def run(model, x):
        out = model(x)
        if state["prev"] is not None:
            out = out + state["prev"]
        state["prev"] = out.detach()
        return out

    error = refused(run)
    assert error.code == "U0115"
    assert "state['prev']" in error.message
    assert error.place.startswith(__file__)
    assert state == {"prev": None}


def test_a_first_step_that_does_more_than_the_others_is_refused():
    state: dict[str, Any] = {}

    def run(model, x):
        out = model(x)
        if "first" not in state:
            state["first"] = out.detach().mean()
        return out

    assert refused(run).code == "U0115"
    assert not state


def test_a_first_step_that_computes_otherwise_is_refused():
    state: dict[str, Any] = {}

    def run(model, x):
        out = model(x) if "last" in state else model(x) * 2
        state["last"] = out.detach().mean()
        return out

    assert refused(run).code == "U0115"
    assert not state


@pytest.mark.parametrize("write", [lambda b: b.mul_(2), lambda b: b.chunk(2)[1].add_(1), lambda b: torch.neg(b, out=b)])
def test_a_cache_of_what_follows_from_a_buffer_that_each_step_changes_is_refused(write):
    model = CachedFromBuffers()

    def run(model, x):
        write(model.frequencies)
        return model(x)

    assert refused(run, model).code == "U0115"
    assert model.angles is None


def test_a_cache_of_what_follows_from_a_buffer_is_made_anew_with_a_notice_when_that_is_another_between_steps():
    given = training(lambda m, x: m(x), CachedFromBuffers())
    step = unisono.parallelize(
        given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0], cluster=DEAR_COMPUTING
    )
    step(*given.batches[0])
    step.sync()
    given.model.usage.fill_(3)
    expected = copy.deepcopy(given.model)(*given.batches[0]).square().mean()
    with pytest.warns(CaptureNotice, match="usage"):
        torch.testing.assert_close(step(*given.batches[0]), expected.detach())


@pytest.mark.parametrize("kind", [list, deque])
def test_a_list_that_grows_with_tensors_and_is_read_is_refused_and_left_as_it_was(kind):
    losses = kind()

    def run(model, x):
        out = model(x)
        losses.append(out.mean().detach())
        return out * len(losses)

    error = refused(run)
    assert (error.code, "`losses`" in error.message, len(losses)) == ("U0119", True, 0)


def test_a_tensor_that_the_step_takes_away_is_refused_and_put_back():
    state: dict[str, Any] = {"noise": torch.ones(4)}

    def run(model, x):
        return model(x) + state.pop("noise", 0)

    assert refused(run).code == "U0115"
    assert isinstance(state["noise"], torch.Tensor)


def test_a_tensor_of_nobodys_that_is_written_into_is_refused():
    def hidden() -> Callable[[], torch.Tensor]:
        return iter([torch.zeros(6)] * 9).__next__

    give = hidden()
    error = refused(lambda m, x: m(x + give().add_(1)))
    assert error.code == "U0112"
    assert error.place.startswith(__file__)


def changed_between(given: Training, change: Callable[[], Any]) -> StepError:
    settings: dict[str, Any] = {"model": given.model, "optimizer": given.optimizer, "on_change": "refuse"}
    step = unisono.parallelize(given.step, example=given.batches[0], **settings)
    step(*given.batches[0])
    change()
    with pytest.raises(StepError) as caught:
        step(*given.batches[1])
    assert caught.value.code == "U0122"
    assert caught.value.hint
    return caught.value


def test_a_constant_that_becomes_another_shape_is_refused_by_name():
    config = types.SimpleNamespace(weight=torch.ones(4))
    given = training(lambda m, x: m(x) * config.weight)
    error = changed_between(given, lambda: setattr(config, "weight", torch.ones(1)))
    assert "`config.weight` is a tensor of torch.float32 of shape [1]" in error.message


def test_one_of_two_names_of_a_constant_that_becomes_another_is_refused():
    weight = torch.ones(4)
    config = types.SimpleNamespace(weight=weight)
    given = training(lambda m, x: m(x) * weight)
    given.step.__dict__["config"] = config
    error = changed_between(given, lambda: setattr(config, "weight", torch.zeros(4)))
    assert "from elsewhere too" in error.message


@pytest.mark.parametrize("how", ["parameter", "buffer", "type", "momentum"])
def test_state_that_is_replaced_between_steps_is_refused_by_name(how):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    given = training(lambda m, x: m(x), model)

    def change():
        if how == "parameter":
            model[0].weight = nn.Parameter(torch.zeros(4, 6))
        elif how == "buffer":
            model[1].running_mean = torch.ones(4)
        elif how == "type":
            model.double()
        else:
            given.optimizer.state[model[0].weight]["momentum_buffer"] = torch.zeros(4, 6)

    names = {
        "buffer": "buffers.1.running_mean",
        "type": "buffers.1.running_mean",
        "momentum": "optimizer.0.weight.momentum_buffer",
    }
    assert names.get(how, "params.0.weight") in changed_between(given, change).message


def test_a_loss_in_the_models_own_module_is_kept():
    loss = F.mse_loss  # a name of a library's function is nobody's tensor
    compare(lambda: training(lambda m, x: loss(m(x), torch.zeros(3, 4), reduction="none")))


def test_memory_that_the_step_gives_a_parameter_is_its_new_value():
    def after(model):
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.9

    compare(lambda: training(lambda m, x: m(x), after=after))


@pytest.mark.parametrize(
    "replace",
    [
        lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight * 2)),
        lambda model: setattr(model[0].weight, "data", model[0].weight.data[:1]),
        lambda model: setattr(model[0].bias, "data", model[1].weight.data),
    ],
)
def test_a_parameter_that_the_step_replaces_is_refused(replace):
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    given = training(lambda m, x: m(x), model, replace)
    with pytest.raises(StepError) as caught:
        unisono.capture(given.step, model=model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.code == "U0102"


def test_entries_are_the_same_as_long_as_they_hold_the_same_objects():
    class Other(dict):
        def get(self, key, default=None):
            raise AssertionError("what a class makes of a look-up is not asked")

    one, other = {"a": 1.5, "b": None}, Other(c=[1])
    entries = _native.Entries([(one, "a", one["a"]), (other, "c", other["c"]), (one, "b", None)])
    assert len(entries) == 3
    assert entries.first_other() is None
    del one["b"]
    assert entries.first_other() is None, "nothing is None"
    other["c"] = [1]
    assert entries.first_other() == 1
    one["a"] = 2.5
    assert entries.first_other() == 0


def test_entries_do_not_keep_what_holds_them_alive():
    class Holder:
        pass

    holder = Holder()
    holder.entries = _native.Entries([(vars(holder), "self", holder)])
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
