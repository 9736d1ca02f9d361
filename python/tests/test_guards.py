"""Checks of values that end a step with an exception: the captured step goes on as the step does, and raises it where it does.

PYTEST_DONT_REWRITE: what is asserted here is traced as it is written.
"""

from __future__ import annotations

import decimal
import io
import linecache
import math
import os
import shutil
import subprocess
import sys
import traceback
import warnings

import numpy
import pytest
import torch
import torch.nn.functional as F
from machines import DEAR_COMPUTING
from torch import nn, save

import unisono
from unisono.errors import StepError

X = torch.arange(8.0).view(2, 4) / 8
BAD = torch.tensor([[1.0, float("nan"), 1.0, 1.0], [1.0, 1.0, 1.0, 2e6]])


class WrongError(Exception):
    """One of the user's own."""


def asserted(x):
    assert not torch.isnan(x).any(), "there are some"  # raised


def raised(x):
    if x.isnan().any():
        raise WrongError("value", x.shape)  # raised


def by_number(x):
    value = x.sum().item()
    if not math.isfinite(value):
        print(f"stopped at {value}")
        sys.exit(3)  # raised


def by_numpy(x):
    most = x.max().item()
    if numpy.isnan(most):
        raise FloatingPointError(f"{most:.1f} {x.sum().item()}")  # raised


def both(x):
    assert x.sum() >= 0 and x.max() < 1e6  # raised


def either(x):
    assert x[0].isfinite().all() or x[1].sum() < 10  # raised


def one_for_each(x):
    for number, row in enumerate(x.unbind()):
        if row.isnan().any():
            raise ValueError(f"row {number}")  # raised


def behind_a_choice(x):
    if x[0, 2] > 0.5:
        assert x.isfinite().all()  # raised
    else:
        assert (x < 2).all()


def of_pytorch(x):
    torch._assert(x.isfinite().all(), "not finite")  # raised


def of_all(x):
    torch._check_tensor_all(x.isfinite(), lambda: "not finite")  # raised


def of_a_number(x):
    torch._check(x.isnan().sum().item() == 0, lambda: "not finite")  # raised


CHECKS = [asserted, raised, by_number, by_numpy, both, either, one_for_each, behind_a_choice]
CHECKS += [of_pytorch, of_all, of_a_number]


class Trainer:
    """A model that is trained behind a check of its batch."""

    def __init__(self, check):
        torch.manual_seed(0)
        self.check, self.model = check, nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x):
        self.check(x)
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def parallelized(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return unisono.parallelize(
                self.step, model=self.model, optimizer=self.optimizer, example=(X,), cluster=DEAR_COMPUTING
            )


def ending(step):
    """What a step raises for a bad batch, and the line."""
    try:
        step(BAD)
    except BaseException as error:
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if "# raised" in (one.line or "")]
        return type(error), error.args, lines
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_fails_raises_what_the_step_raises_at_its_line(check, capsys):
    eager, trainer = Trainer(check), Trainer(check)
    step = trainer.parallelized()
    for _ in range(2):
        torch.testing.assert_close(step(X), eager.step(X))
    wanted = ending(eager.step)
    printed = capsys.readouterr().out
    found = ending(step)
    assert capsys.readouterr().out == printed
    assert found[0] is wanted[0] and found[2][-1:] == wanted[2][-1:] != []
    # What is read for the message alone is not known.
    assert found[1] == (wanted[1] if check is not by_numpy else ("nan ?",))


def test_what_comes_behind_an_exception_is_refused_until_a_state_is_loaded():
    trainer = Trainer(asserted)
    step = trainer.parallelized()
    step(X)
    state = {name: {**part} if isinstance(part, dict) else part for name, part in step.state_dict().items()}
    kept = {name: one.clone() for name, one in state["model"].items()}
    ending(step)
    with pytest.raises(StepError, match="AssertionError: there are some") as caught:
        step(X)
    assert caught.value.code == "U0131"
    step.load_state_dict({**state, "model": kept})
    eager = Trainer(asserted)
    eager.step(X)
    torch.testing.assert_close(step(X), eager.step(X))


def test_a_step_that_always_ends_raises_what_it_raises_when_it_is_captured():
    def step(x):
        if x.sum() > 0:
            raise WrongError("more")
        if x.sum() < 0:
            raise WrongError("less")
        assert x.sum() != 0, "none"
        raise WrongError("always")

    with pytest.raises(WrongError, match="more"):
        unisono.capture(step, example=(X,))


def test_what_a_check_asks_is_no_choice_of_the_three():
    def step(x):
        assert x.isfinite().all()
        y = x
        for bound in (0.1, 0.2, 0.3):
            y = y * 2 if x.sum() > bound else y + 1
            assert y.isfinite().all()
        return y

    parallel = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
    for factor in (0.01, 0.07, 1.0):
        torch.testing.assert_close(parallel(X * factor), step(X * factor))


def test_an_error_of_what_the_step_runs_is_no_check():
    def step(x):
        if x.sum() > 0:
            return x @ x  # shapes that do not fit
        return x

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        unisono.capture(step, example=(X,))


def test_too_many_checks_are_refused_at_a_line():
    def step(x):
        for number in range(60):
            assert x.sum() < number + 100
        return x

    with pytest.raises(StepError, match="chooses by the value of a tensor") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0101"


def test_distributions_that_check_their_arguments_are_captured(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def step(x):
        return torch.distributions.Normal(x, x.exp()).log_prob(x).sum()

    parallel = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), step(X))
    with pytest.raises(ValueError, match="Expected parameter loc"):
        parallel(BAD)


@pytest.mark.parametrize("convert", [lambda m: m.to(torch.float32), lambda m: m.float(), lambda m: m.to("cpu")])
def test_a_module_that_the_step_converts_to_what_it_is_stays_what_it_is(convert):
    model = nn.Linear(4, 4)
    parallel = unisono.parallelize(lambda x: convert(model)(x).sum(), model=model, example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), model(X).sum())


def test_a_module_that_the_step_converts_to_another_type_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(StepError, match=r"converts .*`weight` of a Linear to torch\.float64") as caught:
        unisono.capture(lambda x: F.relu(model.double()(x.double())).sum(), model=model, example=(X,))
    assert caught.value.code == "U0102" and model[0].weight.dtype is torch.float32


def test_a_module_that_the_step_makes_is_converted():
    model = nn.Linear(4, 4)

    def step(x):
        return nn.ReLU().double()(model(x).double()).sum()

    parallel = unisono.parallelize(step, model=model, example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), step(X))


def test_gradients_that_must_be_finite_are_checked():
    def made():
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            return norm

        return step, {"model": model, "optimizer": optimizer}

    (eager, _), (step, given) = made(), made()
    parallel = unisono.parallelize(step, **given, example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), eager(X))
    for one in (eager, parallel):
        with pytest.raises(RuntimeError, match="non-finite"):
            one(BAD)


def test_tensors_that_must_be_alike_are_compared():
    def step(x):
        assert torch.allclose(x.sum(0), x.sum(0)) and not torch.equal(x[0], x[1]) and not x.equal(x[0])
        return x * 2

    parallel = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(parallel(X), X * 2)
    with pytest.raises(AssertionError):
        parallel(torch.ones(2, 4))


def test_a_bar_of_progress_is_told_what_each_step_gives():
    tqdm = pytest.importorskip("tqdm")
    shown = []
    for parallelized in (False, True):
        bar = tqdm.tqdm(total=10, file=io.StringIO())

        def step(x, bar=bar):
            bar.set_postfix(loss=x.sum().item())
            bar.update(2)
            return x * 2

        made = unisono.parallelize(step, model=nn.Linear(4, 4), example=(X,), cluster=DEAR_COMPUTING)
        for batch in (X, X + 1, X):
            (made if parallelized else step)(batch)
        shown.append((bar.n, bar.postfix))
        bar.close()
    assert shown[0] == shown[1] == (6, f"loss={X.sum().item():.3g}")


def saves(x, path):
    torch.save({"x": x}, path)  # refused
    return x


def saves_by_a_name_of_its_own(x, path):
    save({"x": x}, path)  # refused
    return x


def saves_behind_a_check(x, path):
    if x.isnan().any():
        torch.save({"x": x}, path)  # refused
        sys.exit(1)
    return x


def writes_bytes(x, path):
    if x.sum() > 1:
        path.write_bytes(b"much")  # refused
    return x


def writes_an_array(x, path):
    with open(path, "wb") as file:  # refused
        file.write(bytes(len(x)))
    return x


def removes(x, path):
    os.remove(path)  # refused
    return x


def moves(x, path):
    shutil.move(path, path.with_suffix(".old"))  # refused
    return x


def starts_a_process(x, path):
    subprocess.run(["rm", path], check=True)  # refused
    return x


def ends_the_process(x, path):
    if x.isnan().any():
        os._exit(1)  # refused
    return x


@pytest.mark.parametrize(
    "does",
    [
        saves,
        saves_by_a_name_of_its_own,
        saves_behind_a_check,
        writes_bytes,
        writes_an_array,
        removes,
        moves,
        starts_a_process,
        ends_the_process,
    ],
)
def test_what_would_be_written_while_a_step_is_captured_is_refused_at_its_line(does, tmp_path):
    path = tmp_path / "file"
    path.write_text("as it was")
    with pytest.raises(StepError) as caught:
        unisono.capture(lambda x: does(x, path), example=(X,))
    assert caught.value.code == "U0105" and path.read_text() == "as it was"
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# refused" in linecache.getline(file, int(number))


def test_code_that_takes_pythons_own_numbers_only_is_refused_at_its_line():
    def step(x):
        decimal.Decimal(x.sum().item())  # refused
        return x

    with pytest.raises(StepError, match="reads the value of a tensor") as caught:
        unisono.capture(step, example=(X,))
    file, _, number = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and "# refused" in linecache.getline(file, int(number))


def test_a_way_in_which_nothing_is_trained_ends_the_step():
    """Libraries drop layers so, with a probability of 0 too (peft's `module_dropout`)."""
    fixed, trained = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
    model = nn.ModuleList([fixed, trained])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, share):
        optimizer.zero_grad()
        made = fixed(x)
        if share.sum() > 0:
            made = made + trained(x)
        loss = made.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=(X, torch.ones(2)), cluster=DEAR_COMPUTING
    )
    with torch.no_grad():
        expected = (fixed(X) + trained(X)).square().mean()
    torch.testing.assert_close(run(X, torch.ones(2)), expected)
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(X, torch.zeros(2))
