"""Runs scripts as ``torchrun`` would, in processes that share the time that importing their libraries takes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

import torch
from launch import Ended, free_port

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


def run(script: Path, ranks: int, folder: Path, seconds: float, *arguments: str) -> list[Ended]:
    """Runs a script on each of `ranks` processes and returns how they ended; one that runs on after `seconds` is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    settings = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HOME": str(folder)}
    processes = [
        _forked.Process(
            target=_main, args=(str(script), list(arguments), settings | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        )
        for rank in range(ranks)
    ]
    end = time.monotonic() + seconds
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(end - time.monotonic(), 0.01))
    finally:
        for process in processes:
            process.kill()
            process.join()
    texts = [[(folder / f"{rank}.{kind}").read_text() for kind in ("out", "err")] for rank in range(ranks)]
    return [Ended(process.exitcode or 0, *text) for process, text in zip(processes, texts, strict=True)]


def _main(script: str, arguments: list[str], settings: dict[str, str]) -> None:
    os.environ |= settings | {"TORCHELASTIC_RUN_ID": "test"}
    os.chdir(settings["HOME"])
    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    with open(f"{settings['RANK']}.out", "w") as sys.stdout, open(f"{settings['RANK']}.err", "w") as sys.stderr:
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            atexit._run_exitfuncs()  # as at the end of a process of its own
