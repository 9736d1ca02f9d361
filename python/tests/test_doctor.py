"""`unisono doctor` finds faults that are made here, says what to do, and ends with the status that they ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple

import launch
import pytest
import torch

from unisono import _commands, _doctor
from unisono.errors import HardwareError


def doctor(folder, *arguments, **environment):
    line = [sys.executable, "-m", "unisono", "doctor", *arguments]
    settings = os.environ | {"HOME": str(folder)} | environment
    return subprocess.run(line, env=settings, capture_output=True, text=True, timeout=300, check=False)


def test_a_machine_that_is_well_is_said_to_be_so(tmp_path):
    done = doctor(tmp_path, "--json", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert not [one for one in found.values() if one["status"] == "failed"]
    assert found["torch"]["text"].startswith(torch.__version__)
    assert (found["dispatcher"]["text"], found["proxy"]["text"]) == ("passes", "passes")
    assert "two local processes have added up a tensor" in found["gloo"]["text"]
    assert "gloo" in found["networks"]["text"]
    assert str(tmp_path) in found["cache"]["text"]


def test_people_are_told_line_by_line(tmp_path):
    (tmp_path / ".cache").write_text("a file in the way of the folder")
    done = doctor(tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["unisono", "ok"]
    (at,) = (number for number, line in enumerate(lines) if line.startswith("cache"))
    assert "warning" in lines[at]
    assert "hint: make it writable" in lines[at + 1]


def one(look, name):
    (found,) = (finding for finding in look if finding.name == name)
    return found


@pytest.mark.parametrize(
    ("release", "status"), [("2.10.1", "failed"), ("2.11.0+cu130", "ok"), ("2.15.0", "ok"), ("2.16.0.dev1", "warning")]
)
def test_releases_of_pytorch_are_told_apart(monkeypatch, release, status):
    monkeypatch.setattr(torch, "__version__", release)
    found = one(_doctor._torch(), "torch")
    assert found.status == status
    assert ("torch>=2.11" in (found.hint or "")) == (status != "ok")


def test_a_pytorch_without_functions_or_routes_fails(monkeypatch):
    def lacks():
        raise HardwareError("this PyTorch lacks `aoti_torch_call_dispatcher`", code="U0301")

    monkeypatch.setattr(_doctor._executor, "load", lacks)
    assert one(_doctor._functions(), "functions").status == "failed"
    monkeypatch.setattr(
        _doctor._executor, "self_test", lambda: {"dispatcher": "aten.relu.default gives [0]", "proxy": None}
    )
    found = {finding.name: finding.status for finding in _doctor._routes()}
    assert found == {"dispatcher": "failed", "proxy": "ok"}


def test_processes_that_do_not_answer_fail_in_time(monkeypatch):
    monkeypatch.setattr(_doctor, "_ADDS", "import time; time.sleep(600)")
    monkeypatch.setattr(_doctor, "_SECONDS", 1.0)
    found = one(_doctor._gloo(), "gloo")
    assert found.status == "failed"
    assert "nothing came within 1 s" in found.text
    assert "127.0.0.1" in (found.hint or "")


def test_what_a_process_ends_with_is_said(monkeypatch):
    monkeypatch.setattr(_doctor, "_ADDS", "raise SystemExit('no route to host')")
    assert one(_doctor._gloo(), "gloo").text.endswith("no route to host")


def test_a_folder_that_cannot_be_made_fails(tmp_path):
    (tmp_path / "file").write_text("")
    found = _doctor._folder("temporary", tmp_path / "file" / "folder", "failed", "set TMPDIR")
    assert (found.status, found.hint) == ("failed", "set TMPDIR")


def test_a_folder_without_room_or_speed_is_warned_of(tmp_path, monkeypatch):
    assert _doctor._folder("cache", tmp_path, "warning", "").status == "ok"
    monkeypatch.setattr(_doctor, "_speed", lambda _: 1e6)
    assert "faster disk" in (_doctor._folder("cache", tmp_path, "warning", "").hint or "")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(_doctor.shutil, "disk_usage", lambda _: usage(1 << 30, 1 << 30, 1 << 20))
    assert "make room" in (_doctor._folder("cache", tmp_path, "warning", "").hint or "")
    found = one(_doctor._shared_memory(tmp_path), "shared memory")
    assert (found.status, "--shm-size" in (found.hint or "")) == ("warning", True)


def test_more_threads_than_cores_are_warned_of(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    found = one(_doctor._cores(), "threads")
    assert found.status == "warning"
    assert "OMP_NUM_THREADS=1" in (found.hint or "")


def test_loops_that_cannot_be_compiled_are_warned_of(monkeypatch):
    monkeypatch.setattr(_doctor._native, "kernel_tier", lambda: ("interpreter", True))
    assert "forbids executable memory" in one(_doctor._kernels(), "compiled loops").text
    monkeypatch.setattr(_doctor._native, "kernel_tier", lambda: ("interpreter", False))
    assert "lacks AVX2" in one(_doctor._kernels(), "compiled loops").text


def test_a_clock_that_goes_backwards_fails():
    times = iter([2.0, 1.0] * 500)
    assert one(_doctor._clock(lambda: next(times)), "clock").status == "failed"


def test_clocks_that_are_apart_are_warned_of():
    assert _doctor.between_ranks(0.001, 2).status == "ok"
    assert "chrony" in (_doctor.between_ranks(0.2, 2).hint or "")


def test_ranks_compare_their_clocks_and_one_speaks(tmp_path):
    first, second = launch.run("test_doctor:as_a_rank", 2, tmp_path, 120)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "those of 2 ranks differ by" in first.out
    assert second.out == ""


def as_a_rank():
    """What each of two ranks runs."""
    assert _commands.doctor([]) == 0
