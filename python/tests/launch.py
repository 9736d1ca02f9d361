"""Starts gloo processes that each run one function, as `torchrun` would, and ends them by process id in time.

They begin as copies of one process that has imported the libraries, which would take each of them seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import itertools
import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Imported once; each rank begins as a copy of the process that has done so.
_LIBRARIES = [
    "unisono.parallel",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "diffusers.models.unets.unet_2d",
    "peft",
]

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(_LIBRARIES)


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
        """Starts `ranks` processes that call `function` (``module:name``) with keyword arguments that can be pickled."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port = str(free_port())
        self.processes = []
        for rank in range(ranks):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "test",
                "OMP_NUM_THREADS": "1",
                "HOME": str(folder),
            }
            for kind in ("out", "err"):
                (folder / f"{rank}.{kind}").touch()
            process = _forked.Process(target=_rank, args=(function, environment, arguments))
            process.start()
            self.processes.append(process)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def printed(self, rank: int) -> str:
        """What a rank has printed so far."""
        return (self.folder / f"{rank}.out").read_text()

    def wait_until(self, rank: int, text: str, seconds: float) -> None:
        """Waits until a rank has printed `text`."""
        end = time.monotonic() + seconds
        while text not in self.printed(rank):
            stopped = not self.processes[rank].is_alive()
            assert not stopped, f"rank {rank} ended: {(self.folder / f'{rank}.err').read_text()[-2000:]}"
            assert time.monotonic() < end, f"rank {rank} has not printed `{text}` within {seconds} s"
            time.sleep(0.02)

    def ended(self, seconds: float) -> list[Ended]:
        """How all processes ended; one that runs on after `seconds` is killed, and its status is negative."""
        end = time.monotonic() + seconds
        statuses = []
        for process in self.processes:
            process.join(max(end - time.monotonic(), 0.01))
            if process.exitcode is None:
                process.kill()
                process.join()
            assert process.exitcode is not None
            statuses.append(process.exitcode)
        texts = [[(self.folder / f"{r}.{kind}").read_text() for kind in ("out", "err")] for r in range(len(statuses))]
        return [Ended(status, *text) for status, text in zip(statuses, texts, strict=True)]


def run(function: str, ranks: int, folder: Path, seconds: float, **arguments: Any) -> list[Ended]:
    """Runs a function on each of `ranks` processes and returns how they ended; see :class:`Processes`."""
    with Processes(function, ranks, folder, **arguments) as processes:
        return processes.ended(seconds)


def found_by_ranks(function: str, new_folder: Callable[[str], Path]) -> Callable[[int], list[Any]]:
    """For a number of ranks, what each of them left as JSON under its number; the processes of a number start once."""

    @functools.cache
    def found(ranks: int) -> list[Any]:
        folder = new_folder(f"ranks{ranks}")
        ended = run(function, ranks, folder, 280)
        for rank, one in enumerate(ended):
            assert one.status == 0, f"rank {rank} ended with {one.status}: {one.err[-3000:]}"
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]

    return found


def run_script(path: Path, ranks: int, folder: Path, seconds: float, *arguments: str) -> list[Ended]:
    """Runs a script on each of `ranks` processes and returns how they ended."""
    return run("launch:_script", ranks, folder, seconds, path=str(path), arguments=arguments)


def _script(path: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def _rank(function: str, environment: dict[str, str], arguments: dict[str, Any]) -> None:
    """What one process does, in its folder, with its output in files of its own."""
    import torch

    os.environ |= environment
    os.chdir(environment["HOME"])
    for stream, kind in ((sys.stdout, "out"), (sys.stderr, "err")):
        with open(f"{environment['RANK']}.{kind}", "w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(**arguments)
    finally:
        atexit._run_exitfuncs()  # as at the end of a process of its own
