"""Starts gloo processes that each run one function, as `torchrun` would, and ends them by process id in time."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Ended:
    """How one process ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str


#: Which of the processes that run tests side by side this is; no two of them try the same port.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
#: Below those that outgoing connections are given, which a rank may have before rank 0 listens.
_PORTS = (20_000 + (97 * os.getppid() + 16 * number + _WORKER) % 10_000 for number in itertools.count())


def free_port() -> int:
    """A port that nobody listens at, another one each time."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            break
    return port


class Processes:
    """Processes of one run; leaving the context ends those that are left."""

    def __init__(self, function: str, ranks: int, folder: Path, **arguments: Any) -> None:
        """Starts `ranks` processes that call `function` (``module:name``) with keyword arguments that JSON can say."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.processes = [self._start(function, rank, ranks, port, arguments) for rank in range(ranks)]

    def _start(self, function: str, rank: int, ranks: int, port: int, arguments: dict[str, Any]) -> subprocess.Popen:
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "test",
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder),
        }
        command = [sys.executable, "-u", __file__, function, json.dumps(arguments)]
        with open(self.folder / f"{rank}.out", "w") as out, open(self.folder / f"{rank}.err", "w") as err:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=err, cwd=self.folder)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def printed(self, rank: int) -> str:
        """What a rank has printed so far."""
        return (self.folder / f"{rank}.out").read_text()

    def wait_until(self, rank: int, text: str, seconds: float) -> None:
        """Waits until a rank has printed `text`."""
        end = time.monotonic() + seconds
        while text not in self.printed(rank):
            stopped = self.processes[rank].poll() is not None
            assert not stopped, f"rank {rank} ended: {(self.folder / f'{rank}.err').read_text()[-2000:]}"
            assert time.monotonic() < end, f"rank {rank} has not printed `{text}` within {seconds} s"
            time.sleep(0.02)

    def ended(self, seconds: float) -> list[Ended]:
        """How all processes ended; one that runs on after `seconds` is killed, and its status is negative."""
        end = time.monotonic() + seconds
        statuses = []
        for process in self.processes:
            try:
                statuses.append(process.wait(max(end - time.monotonic(), 0.01)))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                statuses.append(process.wait())
        texts = [[(self.folder / f"{r}.{kind}").read_text() for kind in ("out", "err")] for r in range(len(statuses))]
        return [Ended(status, *text) for status, text in zip(statuses, texts, strict=True)]


def run(function: str, ranks: int, folder: Path, seconds: float, **arguments: Any) -> list[Ended]:
    """Runs a function on each of `ranks` processes and returns how they ended; see :class:`Processes`."""
    with Processes(function, ranks, folder, **arguments) as processes:
        return processes.ended(seconds)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    module, _, name = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
