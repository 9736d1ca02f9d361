"""The process group that collectives of the host go through."""

from __future__ import annotations

import os
from pathlib import Path

import launch
import torch

from unisono._ranks import Ranks

#: Of so many and more PyTorch 2.13 ends by a signal where a group has two threads (docs/reports/gloo-worker-threads.md).
ROUNDS = 5_000


def many_at_once() -> None:
    ranks = Ranks()
    tensor = torch.ones(4)
    outputs = [tensor.clone() for _ in range(8)]
    group = ranks.group("cpu")
    for _ in range(ROUNDS):
        for work in [group.allgather_into_tensor_coalesced([output], [tensor]) for output in outputs]:
            work.wait()
    print(_threads())


def _threads() -> int:
    """How many threads of this process are workers of gloo groups."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return sum((task / "comm").read_text().strip() == "pt_gloo_runloop" for task in tasks)


def test_many_collectives_at_once_leave_the_heap_whole(tmp_path):
    (ended,) = launch.run("test_host_group:many_at_once", 1, tmp_path, 60)
    assert ended.status == 0, ended.err
    # Two of the group that PyTorch begins with, and one of our own.
    assert ended.out.split() == ["3"]
