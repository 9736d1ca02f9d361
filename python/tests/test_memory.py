"""The predicted peak of a rank's memory is what the rank then holds."""

from __future__ import annotations

import json
import threading

import launch
import memory_ranks
import pytest
import torch

from unisono import _measure

#: The most that a prediction may be off: a part of what is measured, or so many bytes.
SHARE, BYTES = 0.05, 1 << 20


@pytest.fixture(scope="module", params=[1, 2])
def found(request, tmp_path_factory):
    """What all steps hold on one rank and on two."""
    folder = tmp_path_factory.mktemp("memory")
    for ended in launch.run("memory_ranks:measure_all", request.param, folder, seconds=600):
        assert ended.status == 0, ended.err[-4000:]
    return json.loads((folder / "memory-0.json").read_text())


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", memory_ranks.TRAININGS)
def test_the_predicted_peak_is_the_measured_one(found, name):
    cases = {case: found[case]["free"] for case in found if case.startswith(f"{name}, ")}
    off = {
        case: (memory["predicted"], memory["measured"])
        for case, memory in cases.items()
        if abs(memory["predicted"] - memory["measured"]) > max(SHARE * memory["measured"], BYTES)
    }
    assert cases
    assert not off
    assert all(memory["predicted buffers"] == memory["buffers"] for memory in cases.values())


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", memory_ranks.TRAININGS)
def test_a_limit_just_above_what_a_step_takes_is_accepted_and_kept(found, name):
    cases = {case: memory for case, memory in found.items() if case.startswith(f"{name}, ") and memory["limited"]}
    assert cases
    for case, memory in cases.items():
        assert memory["limited"]["predicted"] <= memory["limit"], case
        assert memory["limited"]["measured"] <= memory["limit"], case


def test_what_another_thread_gives_back_counts_as_given_back_when_one_of_the_calls_did_so_itself():
    elsewhere = iter(range(4))

    def call():
        given_back_elsewhere = next(elsewhere)
        for piece in range(4):
            tensors = [torch.empty(1000)]
            if piece == given_back_elsewhere:
                thread = threading.Thread(target=tensors.clear)
                thread.start()
                thread.join()
            del tensors

    assert _measure.peak_growth(call, repeats=3) == 4000


def test_what_a_call_keeps_in_the_place_of_what_an_earlier_one_kept_is_no_growth():
    kept = [torch.empty(2000)]

    def call():
        kept.append(torch.empty(2000))
        del kept[0]
        torch.empty(3000)

    assert _measure.peak_growth(call, repeats=1) == 12000
