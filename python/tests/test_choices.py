"""A step that chooses by what it counts, or by numbers that it is given, is captured once for each answer."""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from counted import X, captures_where_all_is_as_in_eager, eager, parallel

import unisono
from unisono.errors import CaptureNotice, StepError


def prints_now_and_then(run, loss):
    run.n += 1
    if run.n % 4 == 0:
        print(f"step {run.n}: {loss.item():.5f}")
    return loss


def tells_in_its_first_call(run, loss):
    if run.n == 0:
        print("begins")
    run.n += 1
    return loss


def asks_for_truth(run, loss):
    run.n += 1
    return loss if run.n // 3 else loss * 2


def counts_down(run, loss):
    run.n = 3 if run.n <= 0 else run.n - 1
    return loss * 2 if run.n else loss


def counts_in_a_loop(run, loss):
    while run.n % 4 < 2:
        run.n += 1
    run.n += 1
    return loss


def takes_an_entry(run, loss):
    run.n += 1
    return loss * [1.0, 2.0][run.n // 5 % 2]


@pytest.mark.parametrize(
    ("use", "captures"),
    [
        (prints_now_and_then, 2),
        (tells_in_its_first_call, 2),
        (asks_for_truth, 2),
        (counts_down, 3),
        (counts_in_a_loop, 2),
        (takes_an_entry, 2),
    ],
)
def test_a_step_that_chooses_by_its_count_is_captured_for_each_answer(use, captures, capsys):
    assert captures_where_all_is_as_in_eager(use, [()] * 12, capsys) == captures


def prints_a_number(run, loss, number):
    if number % 5 == 0:
        print("call", number)
    return loss


def sizes_by_a_number(run, loss, number):
    for _ in range(number // 4):
        loss = loss * 0.5
    return loss


def compares_two(run, loss, number, most):
    run.seen.append(number / most)
    return loss * 2 if number < most else loss


def looks_up(run, loss, number):
    return loss * {0: 2.0, 1: 3.0}[number % 2]


@pytest.mark.parametrize(
    ("use", "calls", "captures"),
    [
        # The first call may be the only one, so its numbers are constants of what it is captured as.
        (prints_a_number, [(n,) for n in range(12)], 3),
        (sizes_by_a_number, [(n,) for n in range(12)], 4),
        (compares_two, [(n, 5) for n in range(12)], 3),
        (looks_up, [(n,) for n in range(12)], 3),
        (looks_up, [(n // 6,) for n in range(12)], 2),
    ],
)
def test_a_step_that_chooses_by_its_arguments_is_captured_for_each_answer(use, calls, captures, capsys):
    assert captures_where_all_is_as_in_eager(use, calls, capsys) == captures


def test_a_count_that_code_between_steps_sets_is_asked_again(capsys):
    def begin_again(run, number):
        run.n = 0 if number == 3 else run.n

    assert captures_where_all_is_as_in_eager(asks_for_truth, [()] * 8, capsys, begin_again) == 2


def test_what_a_step_is_captured_again_for_is_said_as_its_code_says_it():
    _, step = parallel(lambda _, loss, number: loss * 2 if (number + 1) % 4 == 0 else loss, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(5):
            step(X, number)
    told = [str(one.message).partition(": ")[2] for one in caught if one.category is CaptureNotice]
    assert told == ["argument `numbers.0` is 1", "`(numbers.0 + 1) % 4 == 0` is True"]


def test_a_choice_that_was_made_otherwise_is_refused_where_nothing_is_captured_again():
    run, step = parallel(asks_for_truth, on_change="refuse")
    step(X)
    step(X)
    with pytest.raises(StepError, match=r"`\(run.n \+ 1\) // 3` is True") as caught:
        step(X)
    assert (caught.value.code, run.n) == ("U0122", 2)


def entry(run, loss):
    run.n += 1
    return loss * [1.0, 2.0, 3.0][run.n % 3]  # used


def test_a_number_that_each_step_changes_and_that_a_list_is_indexed_by_is_refused_with_its_line():
    with pytest.raises(StepError, match=r"computes with what it changes at each call: `run\.n`") as caught:
        parallel(entry)
    file, _, number = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0119" and "# used" in linecache.getline(file, int(number))


def stops(run, loss):
    run.n += 1
    if run.n == 3:
        raise StopIteration("enough")
    return loss


def test_an_exception_behind_a_choice_is_raised_in_the_call_that_comes_to_it():
    run, step = parallel(stops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureNotice)
        step(X)
        step(X)
        with pytest.raises(StopIteration, match="enough"):
            step(X)
    assert run.n == 2


def test_a_capture_that_is_a_graph_alone_takes_nothing_for_granted():
    run, step = eager(asks_for_truth)
    with pytest.raises(StepError) as caught:
        unisono.capture(step, model=run.model, optimizer=run.optimizer, example=(X,))
    assert caught.value.code == "U0119"


def test_what_other_code_does_with_stand_ins_alone_is_done_with_numbers(capsys):
    # Of a library, in which `type` is Python's own.
    code = compile(
        "def factor(n): return 2.0 if type(n) is int else 3.0", str(Path(torch.__file__).with_name("made.py")), "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)

    def asks(run, loss, number):
        return loss * names["factor"](number)

    captures_where_all_is_as_in_eager(asks, [(n,) for n in range(5)], capsys)


def test_the_notice_says_so_where_nearly_each_call_is_captured():
    _, step = parallel(lambda _, loss, number: loss * (number & 3), 0, captures=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(3):
            step(X, number)
    told = [str(one.message) for one in caught if one.category is CaptureNotice]
    assert ["the oldest is gone" in one for one in told] == [False, True]
    assert "2 captures are kept" in told[1] and "give as a tensor" in told[1]
