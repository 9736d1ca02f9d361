"""A step that computes with what it changes at each call is refused by name and line, even where only some later call would differ."""

from __future__ import annotations

import collections
import dataclasses
import linecache
import logging
import math
import random
import types
import warnings
from typing import Any

import numpy
import pytest
import torch
from counted import X, allowed, refused, refused_for_its_count
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono._capture import capture
from unisono.errors import StepError


def rare(n, h):
    return h * 2 if n % 1000 == 0 else h  # used


def later(n, h):
    return h * (0.1 if n < 100 else 0.01)  # used


def truth(n, h):
    return h * 2 if n // 100 else h  # used


def sizes(n, h):
    for _ in range(n // 100):  # used
        h = h * 2
    return h


def places(n, h):
    return h * [1.0] * 1 if n is None else h * [1.0, 1.0, 1.0, 1.0][n % 4]  # used


def entries(n, h):
    return h * {1: 1.0, 2: 1.0}.get(n, 2.0)  # used


def a_function_of_python(n, h):
    return h * round(math.exp(-n * 1e-12), 3)  # used


def a_conversion(n, h):
    return h * int(float(n) // 1e6 + 1)  # used


def one_kind_of_number(n, h):
    return h * 2 if type(n) is int and isinstance(n, int) and n > 1000 else h  # used


def a_tensor_of_it(n, h):
    return h + torch.full((2,), n // 1000).sum()  # used


def a_larger_one(n, h):
    return h * max(n, 1000)  # used


def a_method_of_it(n, h):
    return h * 2 if n.bit_length() > 10 else h  # used


def arrays(n, h):
    return h * float(numpy.ones(3)[n // 1000])  # used


def sets(n, h):
    return h * 2 if n in {1000, 2000} else h  # used


USES = [rare, later, truth, sizes, places, entries, a_function_of_python, a_conversion, one_kind_of_number]
USES += [a_tensor_of_it, a_larger_one, a_method_of_it, arrays, sets]


@pytest.mark.parametrize("use", USES)
def test_whatever_a_count_may_steer_is_refused_at_its_line(use):
    refused_for_its_count(use)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is."""

    taken: int = 0


class Owner:
    """Counts in every place that an object has."""

    total = 0

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.model._private = 0  # type: ignore[assignment]
        self.inner = types.SimpleNamespace(state=types.SimpleNamespace(step=0))
        self.table, self.numbers, self.pair = {"n": 0}, [3, 0], (0, 1.0)
        self.progress, self.rebuilt = Progress(), {"n": 0}
        self.times = 0.0
        self.array = numpy.int64(0)


def of_a_class(owner):
    type(owner).total += 1
    return type(owner).total


def of_the_model(owner):
    owner.model._private += 1
    return owner.model._private


def of_objects_within(owner):
    owner.inner.state.step += 1
    return owner.inner.state.step


def of_a_dictionary(owner):
    owner.table["n"] += 1
    return owner.table["n"]


def of_a_list(owner):
    owner.numbers[1] += 1
    return owner.numbers[1]


def of_a_tuple(owner):
    owner.pair = (owner.pair[0] + 1, owner.pair[1] * 1.0)
    return owner.pair[0]


def of_an_object_that_is_replaced(owner):
    owner.progress = dataclasses.replace(owner.progress, taken=owner.progress.taken + 1)
    return owner.progress.taken


def of_a_dictionary_that_is_replaced(owner):
    owner.rebuilt = {"n": owner.rebuilt["n"] + 1}
    return owner.rebuilt["n"]


def of_seconds(owner):
    owner.times += 0.25
    return owner.times


def of_numpy(owner):
    owner.array = owner.array + 1
    return owner.array


COUNTS = {
    of_a_class: "total",
    of_the_model: "_private",
    of_objects_within: "owner.inner.state.step",
    of_a_dictionary: "owner.table['n']",
    of_a_list: "owner.numbers[1]",
    of_a_tuple: "owner.pair",
    of_an_object_that_is_replaced: "owner.progress.taken",
    of_a_dictionary_that_is_replaced: "owner.rebuilt['n']",
    of_seconds: "owner.times",
    of_numpy: "owner.array",
}


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_is_followed_wherever_the_step_keeps_it(count):
    owner = Owner()

    def step(x):
        n = count(owner)
        h = owner.model(x).sum()
        return h * 2 if n > 1000 else h  # used

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0119" and COUNTS[count] in caught.value.message
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# used" in linecache.getline(file, int(number))
    Owner.total = 0


class OfItsClass:
    """Counts in what its class has until the step gives it its own."""

    n = 0


class OfAModulesClass(nn.Module):
    """The same of a module."""

    n = 0


class Slotted:
    """Counts in a slot that is empty."""

    __slots__ = ("n",)


class Behind:
    """Counts behind a property."""

    _n = 0

    @property
    def n(self):
        return self._n

    @n.setter
    def n(self, value):
        self._n = value


def raised(owner):
    owner.n += 1
    return owner.n


def made_and_raised(owner):
    if not hasattr(owner, "n"):
        owner.n = 0
    return raised(owner)


def an_entry(owner):
    owner["n"] = owner.get("n", 0) + 1
    return owner["n"]


def an_entry_that_is_zero(owner):
    owner["n"] += 1
    return owner["n"]


def a_list(owner):
    owner.__dict__.setdefault("n", []).append(1)
    return len(owner.n)  # used


def an_object(owner):
    if not hasattr(owner, "stats"):
        owner.stats = types.SimpleNamespace(n=0)
    return raised(owner.stats)


MADE = {
    "its class has it": (OfItsClass, raised, "n"),
    "a module's class has it": (OfAModulesClass, raised, "n"),
    "a property": (Behind, raised, "_n"),
    "nothing has it": (types.SimpleNamespace, made_and_raised, "n"),
    "an empty slot": (Slotted, made_and_raised, "n"),
    "a function": (lambda: lambda: None, made_and_raised, "n"),
    "a dictionary": (dict, an_entry, "['n']"),
    "a dictionary with defaults": (lambda: collections.defaultdict(int), an_entry_that_is_zero, "['n']"),
    "a counter": (collections.Counter, an_entry_that_is_zero, "['n']"),
    "a list": (types.SimpleNamespace, a_list, "n"),
    "an object": (types.SimpleNamespace, an_object, "stats.n"),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_count_that_the_first_call_makes_is_followed(kind):
    make, count, name = MADE[kind]
    owner = make()

    def step(x):
        n = count(owner)
        return x * 2 if n % 1000 == 0 else x  # used

    refused(step, named=f"owner{name}" if "[" in name else f"owner.{name}")
    assert type(count(owner)) is int


def test_what_the_first_call_makes_and_no_other_changes_may_be_computed_with():
    owner = OfItsClass()

    def step(x):
        if owner.n == 0:
            owner.n, owner.sizes = len(x), {"batch": len(x)}
        return x * owner.n * owner.sizes["batch"]

    allowed(step)
    assert (owner.n, owner.sizes) == (2, {"batch": 2})


def test_a_count_may_choose_by_what_it_leaves_when_it_is_divided_by_one():
    model, state = nn.Linear(4, 4), types.SimpleNamespace(n=0, every=1, is_now=False)

    def step(x):
        state.n += 1
        state.is_now = state.n % state.every == 0
        h = model(x).sum()
        return h * 2 if state.is_now else h

    allowed(step, model=model)

    def step_by_another_count(x):
        state.n, state.every = state.n + 1, state.every + 1
        state.left = state.n % state.every
        return model(x).sum()

    allowed(step_by_another_count, model=model)
    state.every = 2
    with pytest.raises(StepError, match="computes with what it changes at each call"):
        unisono.capture(step, model=model, example=(X,))


def test_a_count_that_the_first_call_makes_out_of_nothing_is_told_of():
    owner = types.SimpleNamespace()

    def step(x):
        made_and_raised(owner)
        return x * 2

    allowed(step, warned="owner.n")
    assert owner.n == 1


def test_what_follows_from_a_count_is_followed_before_it_changes():
    state = types.SimpleNamespace(n=0, stage=0)

    def step(x):
        y = x * (1 + state.stage)  # used
        state.n += 1
        state.stage = state.n // 1000
        return y

    refused(step, named="state.stage")


@pytest.mark.parametrize("kind", [list, collections.deque, set])
def test_how_many_entries_there_are_is_refused_where_it_is_asked_for(kind):
    seen, add = kind(), "add" if kind is set else "append"
    state = types.SimpleNamespace(n=0)

    def step(x):
        state.n += 0.5
        getattr(seen, add)(len(x) + random.Random(len(x)).random() if kind is not set else object())
        return x * 2 if len(seen) % 1000 == 0 else x  # used

    refused(step, named="seen")
    assert type(seen) is kind and not seen


def test_switches_that_come_back_are_refused_where_they_choose():
    state = types.SimpleNamespace(turn="first", of={"first": "second", "second": "third", "third": "first"}, on=True)

    def step_by_a_switch(x):
        state.on = not state.on
        return x * 2 if state.on else x * 3  # used

    def step_by_a_text(x):
        state.turn = state.of[state.turn]  # used
        return x * 2 if state.turn == "first" else x

    refused(step_by_a_switch, named="state.on")
    refused(step_by_a_text, named="state.turn")


def test_objects_that_change_places_are_refused():
    nets = types.SimpleNamespace(one=nn.Linear(4, 4), other=nn.Linear(4, 4))
    model = nn.ModuleList([nets.one, nets.other])

    def step(x):
        nets.one, nets.other = nets.other, nets.one
        return nets.one(x).sum()  # used

    refused(step, model=model, named="nets.one")
    assert nets.one is model[0] and nets.other is model[1]


def test_switches_that_choose_nothing_are_not_refused():
    state = types.SimpleNamespace(on=True, made=False)

    def step(x):
        state.on, state.made = not state.on, True
        return x * 2

    allowed(step)
    assert (state.on, state.made) == (False, True)


def test_switches_that_never_come_back_are_refused_where_the_step_begins():
    state = types.SimpleNamespace(
        kind=int, kinds={int: str, str: float, float: bytes, bytes: list, list: dict, dict: set}
    )

    def step(x):  # used
        state.kind = state.kinds[state.kind]
        return x * 2

    refused(step, named="state.kind")


def counted(state, h):
    pass


def logged(state, h):
    logging.getLogger("of the user").info("step %d: %s", state.n, f"{state.n:>5}")


def printed(state, h):
    print(f"step {state.n}, {h}", state.n)


def formatted(state, h):
    state.status = "step %d of %s, %.1f" % (state.n, "many", state.n / 2) + str(state.n) + f"{state.n:05d}"  # noqa: UP031


FORMAT = "step %d"


def formatted_by_a_name(state, h):
    state.status = FORMAT % state.n


def stored_elsewhere(state, h):
    state.last, state.half, state.both = state.n, state.n / 2, (state.n, round(state.n / 3, 2))


def listed(state, h):
    state.all.append(state.n)


def summed(state, h):
    state.total = state.total + divmod(state.n, 7)[1] * 0.5 - abs(-state.n)


@pytest.mark.parametrize(
    "what", [counted, logged, printed, formatted, formatted_by_a_name, stored_elsewhere, listed, summed]
)
def test_what_only_counts_or_tells_is_not_refused_and_has_not_counted(what):
    model, state = nn.Linear(4, 4), types.SimpleNamespace(n=0, all=[], total=0.0)

    def step(x):
        state.n += 1
        h = model(x).sum()
        what(state, h)
        return h

    once = what is formatted_by_a_name  # `%` takes Python's own numbers only
    allowed(step, model=model, warned="state.n" if once else None)
    assert state.n == once and all(type(one) in (int, float, str, list, tuple) for one in vars(state).values())
    assert state.all == [] and type(state.all) is list


def test_what_the_first_call_alone_changes_may_be_computed_with():
    state = types.SimpleNamespace(size=0, cache={}, n=0)

    def step(x):
        state.n += 1
        state.size = max(state.size, len(x))
        if "scale" not in state.cache:
            state.cache["scale"] = 0.5
        return x * state.size * state.cache["scale"]

    allowed(step)
    assert (state.size, state.cache, state.n) == (2, {"scale": 0.5}, 0)


def test_a_step_that_is_traced_several_times_has_not_counted():
    model, state = nn.Linear(4, 4), types.SimpleNamespace(n=0, previous=torch.zeros(()))

    def step(x):
        state.n += 1
        loss = model(x).sum() + state.previous
        state.previous = loss.detach()
        return loss * 2 if torch.isfinite(loss) else loss

    allowed(step, model=model)
    assert state.n == 0


def test_a_progress_bar_within_the_step_is_not_refused():
    tqdm = pytest.importorskip("tqdm")
    model, bar = nn.Linear(4, 4), tqdm.tqdm(total=1000, mininterval=0, file=open("/dev/null", "w"))  # noqa: SIM115

    def step(x):
        bar.update()
        return model(x).sum()

    allowed(step, model=model)
    assert bar.n == 0


def test_a_number_that_goes_where_only_pythons_own_may_go_is_refused_there():
    import json

    state = types.SimpleNamespace(n=0)

    def step(x):
        state.n += 1
        return x * len(json.dumps({"n": state.n}))  # used

    refused(step, named="state.n")


def test_a_step_that_changes_nothing_is_not_traced_again(monkeypatch):
    def again(*_unused):
        raise AssertionError("traced again")

    monkeypatch.setattr(capture, "Again", again)
    model, state = nn.Linear(4, 4), types.SimpleNamespace(n=3, scale=0.5)
    allowed(lambda x: model(x).sum() * state.n * state.scale, model=model)


@pytest.mark.parametrize("draw", [random.random, numpy.random.standard_normal])
def test_what_is_drawn_is_refused_where_it_is_computed_with(draw):
    model = nn.Linear(4, 4)

    def step(x):
        noise = draw()
        h = model(x)
        return (h * noise).sum()  # used

    with pytest.raises(StepError, match="computes with what it draws") as caught:
        unisono.capture(step, model=model, example=(X,))
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# used" in linecache.getline(file, int(number))


def test_code_that_asks_for_exact_types_takes_the_way_that_it_takes_in_eager_pytorch():
    model, scale = nn.Linear(4, 4), 3

    def step(x):
        assert type(x) is torch.Tensor and type(model.weight) is nn.Parameter
        assert type(scale) is int and type(scale / 2) in (float,) and type(type(scale)(2.5)) is int

        class Kind(type):
            pass

        assert isinstance(int, type) and issubclass(Kind, type) and type(scale).__name__ == "int"
        return model(x).sum() * scale

    allowed(step, model=model)


class Trainer:
    """A step that computes with what its first call has changed."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.size, self.scale, self.made, self.last = 0, 1.0, False, 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if not self.made:
            self.scale, self.made = 2.0, True
        self.size, self.last = max(self.size, len(x)), len(x)
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean() * self.size * self.scale
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def test_what_the_first_call_has_changed_is_looked_at_before_each_step():
    def losses(parallel):
        trainer, found = Trainer(), []
        step: Any = trainer.step
        if parallel:
            step = unisono.parallelize(
                step, model=trainer.model, optimizer=trainer.optimizer, example=(X,), cluster=DEAR_COMPUTING
            )
        for number, samples in enumerate((2, 3, 2, 2, 3)):
            if number == 3:
                trainer.scale = 0.5
            found.append(step(torch.linspace(0, 1, 4 * samples).view(-1, 4)))
        return found, len(step._captured) if parallel else 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found, captures), (wanted, _) = losses(parallel=True), losses(parallel=False)
    torch.testing.assert_close(found, wanted)
    assert captures == 5  # `last`, which is set before it is read, asks for none


def test_how_often_a_tensor_was_written_is_another_number_at_each_call():
    model = nn.Linear(4, 4)

    def step(x):
        seen = model.weight._version  # used
        return model(x).sum() * (1 + seen)

    with pytest.raises(StepError, match="how often a tensor has been written") as caught:
        unisono.capture(step, model=model, example=(X,))
    assert caught.value.code == "U0119"
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# used" in linecache.getline(file, int(number))
