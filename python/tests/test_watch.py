"""A rank that stands still ends the run in time, with one message of who has not come and where each stands."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from pathlib import Path

import launch
import pytest
import watch_ranks

import unisono
from unisono import _flight_recorder, _watch, trace
from unisono._ranks import ProcessState
from unisono.errors import ConfigurationError

TIMEOUT = 2.0
#: From the fault on, everything must have ended within so many seconds; the machine may be busy.
IN_TIME = 40.0


def line_of(text):
    """``file:line`` of a line of the ranks' code."""
    lines = Path(watch_ranks.__file__).read_text().splitlines()
    return f"watch_ranks.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def messages(ended):
    """The error of each rank that has ended with one."""
    found = [re.search(r"\[U0325\] .*(?:\n  .*)*", one.err) for one in ended]
    return [one.group() for one in found if one is not None]


def test_a_rank_that_sleeps_in_an_operation_ends_all_with_where_each_stands(tmp_path):
    with launch.Processes("watch_ranks:train", 3, tmp_path, fault="operation", timeout=TIMEOUT) as processes:
        processes.wait_until(0, f"step {watch_ranks.STEP - 1}", 100)
        start = time.monotonic()
        ended = processes.ended(IN_TIME)
    assert time.monotonic() - start < IN_TIME
    assert [one.status for one in ended] == [1, 1, 1], ended
    found = messages(ended)
    assert len(found) == 3, ended
    assert len(set(found)) == 1
    message = found[0]
    assert re.search(r"rank 2 has not arrived, while rank [01] has waited [\d.]+ s for all_reduce", message)
    said = {int(rank): text for rank, text in re.findall(r"rank (\d) (in step .*)", message)}
    assert "in `unisono_test::sleeps`" in said[2]
    assert f"its Python is at {line_of('the line at which it sleeps')}" in said[2].replace(
        f"{Path(__file__).parent}/", ""
    )
    assert line_of("loss = sleeps(") in said[2]
    for rank in (0, 1):
        assert f"in step {watch_ranks.STEP}, " in said[rank]
        assert "waiting for all_reduce" in said[rank]
        assert "watch_ranks.py:" in said[rank]
    # What each rank has begun is in its flight recorder, which the error names.
    prefix = re.search(r"`unisono trace hang (\S+)\*`", message)
    assert prefix is not None, message
    finding = trace.diagnose_hang({rank: Path(f"{prefix[1]}{rank}") for rank in range(3)})["findings"][0]
    assert (finding["problem"], finding["ranks"]) == ("not_arrived", [2])
    assert "all_reduce" in finding["operation"]


def test_a_rank_whose_process_is_stopped_ends_the_others(tmp_path):
    with launch.Processes("watch_ranks:train", 3, tmp_path, fault="none", timeout=TIMEOUT) as processes:
        processes.wait_until(2, "step 5", 100)
        os.kill(processes.processes[2].pid, signal.SIGSTOP)
        start = time.monotonic()
        for process in processes.processes[:2]:
            process.join(IN_TIME)
        assert time.monotonic() - start < IN_TIME
        statuses = [process.exitcode for process in processes.processes]
        errors = [(tmp_path / f"{rank}.err").read_text() for rank in (0, 1)]
    assert statuses == [1, 1, None], errors
    for error in errors:
        assert re.search(r"\[U0325\] rank 2 has not arrived, .* s for (all_reduce|reduce_scatter|all_gather) \(", error)
        assert re.search(r"rank 2 says nothing: its process \d+ is stopped", error)
        assert "kill -CONT" in error


def test_a_first_rank_whose_process_is_stopped_with_the_store_ends_the_others(tmp_path):
    with launch.Processes("watch_ranks:train", 3, tmp_path, fault="none", timeout=TIMEOUT) as processes:
        processes.wait_until(0, "step 5", 100)
        os.kill(processes.processes[0].pid, signal.SIGSTOP)
        start = time.monotonic()
        for process in processes.processes[1:]:
            process.join(IN_TIME)
        assert time.monotonic() - start < IN_TIME
        statuses = [process.exitcode for process in processes.processes]
        errors = [(tmp_path / f"{rank}.err").read_text() for rank in (1, 2)]
    assert statuses == [None, 1, 1], errors
    for error in errors:
        assert re.search(r"rank 0 says nothing: its process \d+ is stopped", error)


def test_stages_of_a_pipeline_wait_for_the_one_that_is_stopped(tmp_path):
    arguments = {"fault": "none", "timeout": TIMEOUT, "mesh": {"stages": 3}}
    with launch.Processes("watch_ranks:train", 3, tmp_path, **arguments) as processes:
        processes.wait_until(2, "step 5", 100)
        os.kill(processes.processes[2].pid, signal.SIGSTOP)
        for process in processes.processes[:2]:
            process.join(IN_TIME)
        statuses = [process.exitcode for process in processes.processes]
        error = (tmp_path / "1.err").read_text()
    assert statuses == [1, 1, None], error
    assert re.search(r"\[U0325\] rank 2 has not arrived, while rank [01] has waited [\d.]+ s for transfer", error)
    assert re.search(r"rank 2 says nothing: its process \d+ is stopped", error)


def test_a_rank_that_does_something_else_between_steps_is_named(tmp_path):
    with launch.Processes("watch_ranks:train", 3, tmp_path, fault="between", timeout=TIMEOUT) as processes:
        ended = processes.ended(140)
    message = messages(ended)[0]
    assert [one.status for one in ended] == [1, 1, 1]
    where = (
        rf"rank 2 between steps, behind step {watch_ranks.STEP - 1}, for [\d.]+ s; its Python is at \S*watch_ranks.py"
    )
    assert re.search(where, message)
    assert "timeout=" in message


def stand(**what):
    usual = {"step": 4, "inside": True, "at": 7, "operation": "_c10d_functional::wait_tensor", "place": "train.py:9"}
    usual |= {"part": "backward", "waits_for": "all_reduce", "python": None, "seconds": 5.0}
    return _watch.Stand(**usual | what)


def test_of_ranks_that_all_wait_those_that_are_furthest_behind_are_named():
    said = [stand(at=9), stand(at=7), stand(at=7), stand(at=9)]
    assert _watch.judged(said, [None] * 4)["message"].startswith("ranks 1, 2 have not arrived, while rank 0")


def test_flight_recorders_are_named_where_ranks_have_some():
    said = [stand(records="/fast/rank_"), stand(at=3), stand(records="/fast/rank_")]
    hint = _watch.judged(said, [None] * 3)["hint"]
    assert hint.endswith("`unisono trace hang /fast/rank_*` says which collectives each rank has begun")
    assert "flight" not in _watch.judged([stand(), stand(at=3)], [None] * 2)["hint"]


def test_dumps_of_flight_recorders_have_the_names_that_pytorch_gives_them(monkeypatch, tmp_path):
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert _flight_recorder.prefix() == "/home/me/.cache/torch/comm_lib_trace_rank_"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert _flight_recorder.prefix() == "/cache/torch/comm_lib_trace_rank_"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "/fast/rank_")
    assert _flight_recorder.prefix() == "/fast/rank_"


def test_the_recorder_of_devices_is_taken_where_it_has_recorded_something(monkeypatch, tmp_path):
    from torch._C import _distributed_c10d as c10d

    said = {"nccl": [], "fr": [1]}

    def entries(name, **_):
        return json.dumps({"entries": said[name]} if said[name] else {})

    for name in said:
        monkeypatch.setattr(c10d, f"_dump_{name}_trace", lambda name=name: name.encode())
        monkeypatch.setattr(c10d, f"_dump_{name}_trace_json", functools.partial(entries, name))
    assert _flight_recorder.write(tmp_path / "a/rank0") and (tmp_path / "a/rank0").read_bytes() == b"fr"
    said["nccl"] = [1]
    assert _flight_recorder.write(tmp_path / "rank0") and (tmp_path / "rank0").read_bytes() == b"nccl"
    said |= {"nccl": [], "fr": []}
    assert not _flight_recorder.write(tmp_path / "rank1")


def test_ranks_that_all_wait_at_one_place_are_told_to_look_at_the_network():
    found = _watch.judged([stand(), stand(seconds=6.0)], [None] * 2)
    assert found["message"] == "all ranks wait: rank 1 has waited 6.0 s for all_reduce"
    assert "network" in found["hint"]


def test_a_rank_that_is_stopped_is_named_although_another_has_ended_for_it():
    states = {0: ProcessState(5, None, "T"), 2: ProcessState(7, None, "Z")}
    found = _watch.silence(states, None)
    assert found is not None
    assert found["message"] == "ranks 0, 2 have not arrived"
    assert "rank 0 says nothing: its process 5 is stopped" in found["cause"]


def test_a_collective_that_fails_in_time_says_nothing_of_ranks_that_only_ended():
    states = {0: ProcessState(5, None, "S"), 2: ProcessState(7, None, "Z")}
    assert _watch.silence(states, None) is None
    late = _watch.silence(states, 3.0)
    assert late is not None
    assert late["message"] == "rank 2 has not arrived within 3 s"


def test_what_a_rank_says_has_its_step_part_operation_line_and_time():
    assert str(stand()) == "in step 4, backward, waiting for all_reduce of train.py:9, for 5.0 s"
    computing = stand(operation="aten::mm", waits_for=None, python="model.py:3")
    assert str(computing) == "in step 4, backward, in `aten::mm` of train.py:9, for 5.0 s; its Python is at model.py:3"
    assert (
        str(stand(inside=False, at=None, python="eval.py:1"))
        == "between steps, behind step 4, for 5.0 s; its Python is at eval.py:1"
    )


@pytest.mark.parametrize("timeout", [-1, "soon", True, float("inf")])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout):
    with pytest.raises(ConfigurationError, match="`timeout` is"):
        unisono.parallelize(lambda x: x, example=(1,), timeout=timeout)


def test_a_file_of_settings_may_have_the_timeout(tmp_path):
    (tmp_path / "unisono.toml").write_text("timeout = -5\n")
    with pytest.raises(ConfigurationError, match="`timeout` is -5"):
        unisono.parallelize(lambda x: x, example=(1,), config=tmp_path / "unisono.toml")
