"""Schedules of pipeline stages as they are predicted: the step, what of it stages are idle, and the memory of the stage that needs most.

    python benches/schedules.py

A GPT of 12 layers, 1024 wide, with 16 sequences of 1024 tokens in eight micro-batches on four stages of an H100 each, under each schedule
by its name, under a searched one, and as the planner chooses without being told, with and without a memory limit. Nothing is run.
"""

from __future__ import annotations

import time

import torch
from gpt_step import GPT, step

import unisono
from unisono.errors import ResourceError

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "searched", None)
#: Bytes of a stage; none for all of the device.
LIMITS = (None, "3 GB")


def main() -> None:
    """Prints a line per schedule."""
    model = GPT(width=1024, layers=12, heads=16, vocabulary=8192, length=1024)
    optimizer = torch.optim.AdamW(model.parameters())
    example = tuple(torch.randint(0, 8192, (2, 16, 1024)))
    graph = unisono.capture(step(model, optimizer), model=model, optimizer=optimizer, example=example)
    print("| limit | schedule | step | idle | peak of a stage | planned in |\n|---|---|---|---|---|---|")
    for limit in LIMITS:
        for schedule in SCHEDULES:
            start = time.process_time()
            try:
                plan = graph.plan(
                    "h100:1x4", mesh={"stages": 4}, micro_batches=8, schedule=schedule, memory_limit=limit
                )
            except ResourceError:
                print(f"| {limit or ''} | {schedule} | none keeps the limit | | | |", flush=True)
                continue
            took, figures = time.process_time() - start, plan.figures()
            pipeline = figures["pipeline"]
            name = schedule or f"not said: {pipeline['schedule']}"
            idle, peak = pipeline["bubble"], figures["peak_bytes"] / 2**30
            line = (
                f"| {limit or ''} | {name} | {figures['step_ms']:.1f} ms | {idle:.1%} | {peak:.2f} GiB | {took:.1f} s |"
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
