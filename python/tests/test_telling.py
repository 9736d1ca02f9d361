"""What a step writes, logs and reports is written at each step, as in eager PyTorch.

PYTEST_DONT_REWRITE: what is written here is traced as it is.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import logging
import sys
import types
from typing import Any

import pytest
import torch
from machines import DEAR_COMPUTING

import unisono
from unisono.errors import StepError

X = torch.ones(2, 4)


class Owner:
    """Has a file, a writer and a count."""

    def __init__(self, folder) -> None:
        self.path, self.n = folder / "lines.txt", 0
        self.file = open(folder / "log.txt", "w")  # noqa: SIM115
        self.table = csv.writer(self.file)
        self.rows = csv.DictWriter(self.file, ["n", "loss"])


def writes_into_a_file(owner, loss):
    owner.file.write(f"{owner.n} {loss.item():.3f}\n")
    owner.file.writelines(["a", "b\n"])
    print("loss", loss.item(), file=owner.file)


def writes_rows(owner, loss):
    owner.table.writerow([owner.n, loss.item()])
    owner.rows.writerow({"n": owner.n, "loss": round(loss.item(), 2)})


def appends_to_a_file(owner, loss):
    with open(owner.path, "a") as file:
        file.write(f"{owner.n} {loss:.3f}\n")
        print(owner.n, loss.item(), file=file)
        file.flush()


def writes_without_closing(owner, loss):
    open(owner.path, "a").write(json.dumps({"kind": "step"}) + f" {owner.n}\n")  # noqa: SIM115


def writes_json(owner, loss):
    owner.file.write(json.dumps({"n": owner.n, "loss": loss.item()}) + "\n")
    with open(owner.path, "w") as file:
        json.dump([{"loss": round(loss.item(), 2)}, {"n": owner.n}], file, indent=1)


def writes_by_pathlib(owner, loss):
    owner.path.write_text(f"last loss: {loss.item()}")


def writes_behind_a_choice(owner, loss):
    if loss > 10:
        with open(owner.path, "a") as file:
            file.write(f"{loss.item():.1f} is much, in step {owner.n}\n")
    else:
        owner.file.write("little\n")


def writes_to_the_screen(owner, loss):
    sys.stdout.write(f"{owner.n}: {loss.item():.2f}\n")
    sys.stdout.flush()
    print("to people", file=sys.stderr)


def writes_by_percent(owner, loss):
    values = owner.n, owner.n * 10, loss.item(), loss, loss / 3, -loss.item()
    owner.file.write("[%d, %5d] %.3f|%-9.2e|%08.3f|%+d%%\n" % values)  # noqa: UP031
    owner.file.write("%(loss).2f of %(name)s\n" % {"loss": loss.item(), "name": "it"})  # noqa: UP031
    owner.file.write("%s %r|" % (loss.item(), owner.n) + "%s|%G|%#.3g" % (loss, loss.item(), loss) + "% i" % loss)  # noqa: UP031
    print("%5.1f" % loss, file=owner.file)  # noqa: UP031


WAYS = [
    writes_by_percent,
    writes_json,
    writes_into_a_file,
    writes_rows,
    appends_to_a_file,
    writes_without_closing,
    writes_by_pathlib,
]
WAYS += [writes_behind_a_choice, writes_to_the_screen]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_step_writes_is_written_at_each_step(way, tmp_path, capsys):
    written = []
    for parallel in (False, True):
        folder = tmp_path / str(parallel)
        folder.mkdir()
        owner = Owner(folder)

        def step(x, owner=owner):
            owner.n += 1
            loss = x.sum()
            way(owner, loss)
            return loss

        run = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING) if parallel else step
        capsys.readouterr()
        for factor in (1, 2, 3):
            run(X * factor)
        owner.file.close()
        said = capsys.readouterr()
        written.append(({one.name: one.read_text() for one in folder.iterdir()}, said.out, said.err))
        assert type(owner.file) is io.TextIOWrapper and type(owner.table) is type(csv.writer(io.StringIO()))
    assert written[0] == written[1]


_LIBRARY = """
told = []

def log(values):
    told.append(values)

class Run:
    def log(self, values, step=None):
        told.append((values, step))
"""


def test_what_is_reported_is_reported_at_each_step(monkeypatch):
    library: Any = types.ModuleType("wandb")
    exec(compile(_LIBRARY, "reports/wandb.py", "exec"), vars(library))
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(sys.modules, "wandb.sdk.wandb_run", library)
    state, run = types.SimpleNamespace(n=0), library.Run()

    def step(x):
        state.n += 1
        library.log({"loss": x.sum().item()})
        run.log({"mean": x.mean()}, step=state.n)
        return x * 2

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    for factor in (1, 2):
        parallel(X * factor)
    assert library.told == [{"loss": 8.0}, ({"mean": 1.0}, 1), {"loss": 16.0}, ({"mean": 2.0}, 2)]


def test_a_text_that_is_filled_with_too_few_or_too_many_values_is_the_users_own_error():
    def too_few(x):
        print("%d %f" % (x.sum().item(),))  # noqa: F507, UP031

    def too_many(x):
        print("%.3f" % (x.sum().item(), len(x)))  # noqa: F507, UP031

    for step in (too_few, too_many):
        with pytest.raises(TypeError) as expected:
            step(X)
        with pytest.raises(TypeError) as caught:
            unisono.capture(step, example=(X,))
        assert str(caught.value) == str(expected.value)


def test_a_value_that_cannot_be_noted_is_refused_and_nothing_is_written(tmp_path):
    form = "%.3f"

    def step(x):
        with open(tmp_path / "file", "w") as file:
            file.write(form % x.sum().item())  # refused
        return x

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0101" and not (tmp_path / "file").exists()


@functools.lru_cache(None)
def warn_once(text):
    logging.getLogger(__name__).warning(text)
    print(text)


def test_what_is_told_once_by_a_function_that_keeps_its_results_is_told_once(caplog, capsys):
    owner = types.SimpleNamespace(warned=False)

    def step(x):
        if not owner.warned:
            owner.warned = True
            print("by a flag")
        warn_once(f"rows: {len(x)}")
        print("each time")
        return x.sum()

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    for _ in range(3):
        parallel(X)
    assert [record.getMessage() for record in caplog.records] == ["rows: 2"]
    said = capsys.readouterr().out.splitlines()
    assert {line: said.count(line) for line in said} == {"by a flag": 1, "rows: 2": 1, "each time": 3}


def test_what_only_the_first_call_tells_is_told_once_and_what_only_later_ones_tell_from_then_on(capsys):
    said = []
    for parallel in (False, True):
        owner, seen = types.SimpleNamespace(began=False, n=0), {}

        def step(x, owner=owner, seen=seen):
            owner.n += 1
            print("later" if owner.began else "first")
            if "warned" not in seen:
                seen["warned"] = True
                print("does this once", file=sys.stderr)
            if owner.began:
                print("goes on")
            owner.began = True
            loss = x.sum()
            print(f"{owner.n}: {loss.item()}")
            return loss

        run = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING) if parallel else step
        capsys.readouterr()
        owner.n = 10  # as of an earlier run
        for factor in (1, 2, 3):
            run(X * factor)
        said.append(capsys.readouterr())
    assert said[0] == said[1] and "11: 8.0" in said[0].out
