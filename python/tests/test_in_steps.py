"""What collectives take in the programs of steps, and how late ranks come to them, is measured, written down and read again."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import launch
import numpy as np
import pytest
import steps
import torch
from test_operations import RATES

import unisono
from unisono import _native, _operations
from unisono._in_steps import InSteps
from unisono._links import Layout
from unisono._measured_programs import Exchanged, Running, _Timed, _typical

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MESH = {"data": 2}


def alone(kind, size):
    return _native.collective_ns(RATES, [("data", 2)], "data", kind, size)


def seen(text, collectives, late=()):
    found = InSteps.of(tomllib.loads(text), Layout(2))
    found.add(Exchanged(collectives, {"data": list(late)}, 0.0), text, MESH)
    return found.written(text)


def test_a_collective_takes_afterwards_what_it_took_in_the_program():
    took = {("all_reduce", "data", 4096): 3 * alone("all_reduce", 4096), ("all_gather", "data", 64): 7000.0}
    text = seen(RATES, took)
    for (kind, axis, size), nanos in took.items():
        assert _native.collective_ns(text, [("data", 2)], axis, kind, size) == pytest.approx(nanos, rel=1e-3)
    # What was not seen takes as many times as long as the others in the mean.
    mean = (3 * 7000 / alone("all_gather", 64)) ** 0.5
    assert _native.collective_ns(text, [("data", 2)], "data", "all_to_all", 64) == pytest.approx(
        mean * alone("all_to_all", 64), rel=1e-3
    )
    assert text.startswith(RATES.rstrip())


def test_what_is_known_already_counts_as_much_as_what_is_measured_now():
    first = seen(RATES, {("all_reduce", "data", 64): alone("all_reduce", 64)}, [(1e6, 1e5), (2e6, 1e5)])
    both = seen(first, {("all_reduce", "data", 64): 4 * alone("all_reduce", 64)}, [(1e6, 3e5), (2e6, 3e5)])
    (table,) = tomllib.loads(both)["in_steps"]
    assert table == {"shape": [2], "late_ns": 2e5, "late": 0.0, "all_reduce": [[64, 2.0]]}


def test_what_took_next_to_nothing_beside_what_was_waited_for_was_not_measured():
    took = {
        ("all_to_all", "data", size): share * alone("all_to_all", size) for size, share in ((64, 1e-5), (1 << 20, 0.5))
    }
    (table,) = tomllib.loads(seen(RATES, took))["in_steps"]
    assert table["all_to_all"] == [[1 << 20, 0.5]]
    (table,) = tomllib.loads(seen(RATES, {("all_to_all", "data", 64): 0.0}))["in_steps"]
    assert table == {"shape": [2]}


def test_lateness_is_what_there_always_is_and_a_part_of_the_time_since_ranks_met():
    points = [(float(since), 5000.0 + 0.25 * since) for since in (0, 1000, 50_000, 1_000_000)]
    (table,) = tomllib.loads(seen(RATES, {}, points))["in_steps"]
    assert table["late_ns"] == pytest.approx(5000, rel=1e-3)
    assert table["late"] == pytest.approx(0.25, rel=1e-3)


def test_waits_and_what_lies_between_them_make_up_a_round():
    # Node 0 computes in two parts, 1 starts a collective that 2 waits for, 3 computes, 4 starts a collective and waits for it.
    nodes = [0, 0, 1, 2, 3, 4, None]
    rounds = [
        [(0, 0, 10), (1, 10, 5), (2, 16, 1), (3, 17, 13), (4, 30, 20), (5, 52, 8), (6, 60, 9)],
        [(0, 100, 20), (1, 120, 5), (2, 126, 1), (3, 127, 3), (4, 130, 20), (5, 152, 8), (6, 160, 9)],
    ]
    timed = _Timed(nodes, rounds)
    waits, before = timed.exchanges([[1, 2], [4]])
    assert waits.tolist() == [[14, 4], [8, 8]]
    assert before.tolist() == [[16, 26], [22, 22]]
    assert (timed.typical(0), timed.typical(3), timed.typical(7)) == (20, 20, 0)
    assert timed.computing([("all_reduce", "data", 8, [1, 2]), ("all_reduce", "data", 8, [4])]) == 40


@pytest.mark.parametrize(("alone", "times"), [(900.0, 1.0), (800.0, 2.0), (950.0, 0.5), (2000.0, 0.0)])
def test_collectives_take_what_operations_take_longer_than_without_them(alone, times):
    # In each round of 1,000 ns, 100 are waited for.
    rounds = [[(0, 0, 400), (1, 400, 10), (2, 410, 90), (3, 500, 500)]] * 7
    program = SimpleNamespace(collectives=lambda: [("all_reduce", "data", 8, [1, 2])])
    alike = SimpleNamespace(count=2, gathered=lambda mine: [mine, mine], tell=lambda told: told)
    running = Running(program, alike, torch.device("cpu"), {})
    running._recorded = lambda: (np.array([1000.0] * 7), _Timed([0, 1, 2, 3], rounds))
    found = running.exchanged(alone)
    assert found.collectives == {("all_reduce", "data", 8): pytest.approx(100.0 * times)}
    assert found.late == {"data": [(400.0, 0.0)]}


def test_typical_times_sum_up_to_a_typical_round():
    # In each of three rounds another one is long.
    times = np.array([[9.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 9.0]])
    assert _typical(times).tolist() == pytest.approx([11 / 3] * 3)


def test_a_program_is_measured_where_it_has_a_collective_of_another_size():
    training = steps.mlp(count=1)
    step = {"model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}
    graph = unisono.capture(training.step, **step).native
    wholes = [programs.whole for programs in _operations.programs(graph, RATES, MESH)]
    collectives = [one for whole in wholes for one in whole.collectives() or ()]
    assert collectives
    for times, lacks in ((1, False), (3, False), (5, True)):
        found = InSteps(Layout(2))
        taken = {(kind, axis, times * size): 1000.0 for kind, axis, size, _ in collectives}
        assert any(found.lacks(whole, MESH) for whole in wholes), "of nothing anything is known"
        found.add(Exchanged(taken, {}, 0.0), RATES, MESH)
        assert any(found.lacks(whole, MESH) for whole in wholes) == lacks, times


@pytest.mark.parametrize("mesh", [{"data": 2}, {"data": 2, "tensor": 2}], ids=str)
def test_ranks_measure_their_collectives_and_agree(mesh, tmp_path):
    count = int(np.prod(list(mesh.values())))
    for ended in launch.run("in_steps_ranks:measure", count, tmp_path, seconds=240, mesh=mesh):
        assert ended.status == 0, ended.err
    texts = [(tmp_path / f"{rank}.toml").read_text() for rank in range(count)]
    assert set(texts) == {texts[0]}
    (table,) = tomllib.loads(texts[0])["in_steps"]
    assert table["shape"] == [2]
    assert table["late_ns"] >= 0
    assert set(table) > {"shape", "late_ns", "late"}


def test_the_ranks_of_all_stages_measure_the_programs_of_one(tmp_path):
    for ended in launch.run("in_steps_ranks:measure", 4, tmp_path, seconds=240, mesh={"data": 2}):
        assert ended.status == 0, ended.err
    texts = [(tmp_path / f"{rank}.toml").read_text() for rank in range(4)]
    assert set(texts) == {texts[0]}
    described = tomllib.loads(texts[0])
    assert "aten::addmm" in described["device"]["operations"]
    assert "in_steps" not in described
