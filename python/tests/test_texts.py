"""A step is refused where a text that it makes of a count may steer it, wherever the text goes first."""

from __future__ import annotations

import linecache
import types

import pytest
import torch
from counted import X, allowed, refused_for_its_count
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import StepError


def a_text(n, h):
    return h * 2 if str(n) == "1000" else h  # used


def the_end_of_a_text(n, h):
    return h * 2 if f"{n}".endswith("000") else h  # used


def a_text_of_pieces(n, h):
    return h * 2 if f"step {n} of many" == "step 1000 of many" else h  # used


def a_text_of_pieces_by_its_name(n, h):
    name = "step-%d" % n  # used # noqa: UP031
    return h * 2 if name == "step-1000" else h


def a_key_of_pieces(n, h):
    return h * {"step 1": 1.0}.get("step {}".format(n), 1.0)  # used # noqa: UP032


def pieces_that_are_added(n, h):
    return h * 2 if ("step " + str(n) + " of many").startswith("step 1000") else h  # used


def named(n):
    return f"step-{n}"  # used


def named_by_a_variable(n):
    name = "step-%d" % n  # used # noqa: UP031
    return name


def is_special(name):
    return name in ("step-1000", "step-2000")


class Named:
    """What has a name that says how often it was used."""

    def __init__(self, n):
        self.n = n

    @property
    def name(self):
        return f"used {self.n} times"  # used

    def is_called(self, number, *, name):
        return number == 1 and name == self.name.replace("2", "1000")


def returned(n, h):
    return h * 2 if named(n) == "step-1000" else h


def returned_by_a_variable(n, h):
    name = named_by_a_variable(n)
    return h * {"step-1000": 2.0}[name] if name.endswith("000") else h


def returned_by_another_name(n, h):
    other = named
    return h * 2 if other(n) == "step-1000" else h


def returned_by_a_lambda(n, h):
    name = lambda: f"step-{n}"  # noqa: E731 # used
    return h * 2 if name() == "step-1000" else h


def returned_through_a_module(n, h):
    class Name(nn.Module):
        def forward(self, h):
            return h, f"step-{n}"  # used

    h, name = Name()(h)
    return h * 2 if name == "step-1000" else h


def a_property(n, h):
    return h * 2 if Named(n).name == "used 1000 times" else h


def an_argument(n, h):
    return h * 2 if is_special(f"step-{n}") else h  # used


def a_named_argument(n, h):
    owner = Named(0)
    return h * 2 if owner.is_called(1, name=f"used {n} times") else h  # used


def an_attribute(n, h):
    owner = types.SimpleNamespace(label="")
    owner.label = f"step-{n}"  # used
    return h * 2 if owner.label == "step-1000" else h


def shown_and_compared(n, h):
    name = f"{n}"  # used
    print(name)
    return h * 2 if name == "1000" else h


def joined_and_compared(n, h):
    name = "-".join(["step", str(n)])  # used
    print(name)
    return h * 2 if name == "step-1000" else h


USES = [
    shown_and_compared,
    joined_and_compared,
    a_text,
    a_text_of_pieces,
    a_text_of_pieces_by_its_name,
    a_key_of_pieces,
    pieces_that_are_added,
    the_end_of_a_text,
]
USES += [returned, returned_by_a_variable, returned_by_another_name, returned_by_a_lambda, a_property]
USES += [returned_through_a_module]
USES += [an_argument, a_named_argument, an_attribute]


@pytest.mark.parametrize("use", USES)
def test_a_text_that_may_steer_the_step_is_refused_at_its_line(use):
    refused_for_its_count(use)


def kept(n, h):
    names = [named(n)]
    names.append(f"step-{n}")
    return h


def shown(n, h):
    print(named(n), f"{n} of many", Named(n).name)
    return h


def a_range_of_a_profile(n, h):
    with torch.profiler.record_function(named(n)):
        return h * 2


@pytest.mark.parametrize("use", [kept, shown, a_range_of_a_profile])
def test_texts_that_are_kept_or_shown_are_allowed(use):
    state = types.SimpleNamespace(n=0)

    def step(x):
        state.n += 1
        return use(state.n, x.sum())

    allowed(step, warned=None if use is shown else "state.n")


def compared(text):
    print(text)
    return text == "0.1"  # used


def looked_up(text):
    print(text)
    return {"0.1": 2}.get(text)  # used


def taken_apart(text):
    print(text)
    return text.startswith("0.1")  # used


@pytest.mark.parametrize("use", [compared, looked_up, taken_apart, len])
def test_a_text_of_a_value_that_is_shown_and_steers_the_step_too_is_refused(use):
    model = nn.Linear(4, 4)

    def step(x):
        loss = model(x).sum()
        text = f"{loss.item():.1f}"
        return loss * 2 if use(text) else loss  # used

    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=model, example=(X,))
    file, _, line = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and "text" in linecache.getline(file, int(line))


def checked(condition, message):
    if torch.compiler.is_compiling():
        torch._check_tensor_all(condition)
        return
    if not callable(message):

        def said():
            return message
    else:
        said = message
    torch._check_tensor_all_with(ValueError, condition, said)


def checked_by_length(condition, message):
    torch._check_tensor_all(condition if len(message) > 3 else ~condition)


def test_a_message_of_values_that_is_only_given_to_a_check_is_no_use_of_them():
    model = nn.Linear(4, 4)

    def step(x):
        count = (x > 10).sum()
        checked(count == 0, f"{count} are large")
        checked(condition=x.isfinite(), message=f"{x.isnan().sum()} of {x.numel()} are none")
        return model(x).sum()

    parallel = unisono.parallelize(step, model=model, example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), step(X))
    with pytest.raises(ValueError, match="8 are large"):
        parallel(X + 100)


def test_a_message_that_is_computed_with_is_refused():
    model = nn.Linear(4, 4)

    def step(x):
        checked_by_length(x.isfinite(), f"{x.isnan().sum()} are none")
        return model(x).sum()

    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=model, example=(X,))
    assert caught.value.code == "U0101"


def test_what_is_returned_under_a_key_that_is_known_later_is_refused():
    model = nn.Linear(4, 4)

    def step(x):
        loss = model(x).sum()
        name = f"loss {loss.item():.1f}"
        print(name)
        return {name: loss}

    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=model, example=(X,))
    assert caught.value.code == "U0101"
