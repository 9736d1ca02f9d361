"""Trains examples/gpt.py in one process with plain PyTorch, then over several ranks with Unisono, and puts the two side by side."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import gpt  # noqa: E402

import unisono  # noqa: E402

EVERY = 20
#: One thread per process, and no messages of PyTorch's profiler about devices that are not there.
QUIET = {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "9"}
#: The second form of the demo: a larger model, and less memory for a rank than its state takes on one.
PIPELINE = {"mesh": {"stages": 2, "data": 2}, "memory_limit": "32 MB"}
EQUAL = 1e-3  # relative; beyond it two runs of some hundred steps have not done the same


def say(text: str = "") -> None:
    """Prints at once, also into a pipe."""
    print(text, flush=True)


def train(step: Any, data: Any, steps: int, report: Any) -> tuple[list[float], list[float]]:
    """The losses and the seconds of each step."""
    losses, seconds = [], []
    for number in range(1, steps + 1):
        batch = next(data)
        start = time.perf_counter()
        losses.append(step(*batch).item())
        seconds.append(time.perf_counter() - start)
        if number == 1 or number % EVERY == 0:
            report(number, losses[-1])
    return losses, seconds


def alone(steps: int) -> dict[str, Any]:
    """Plain PyTorch: the example's own step, as it stands."""
    _, _, train_step = gpt.make()
    data = gpt.batches(gpt.read_text())
    next(data)  # the example's script takes the first batch to capture the step
    losses, seconds = train(train_step, data, steps, lambda number, loss: say(f"  step {number:4d}  loss {loss:.4f}"))
    return {"losses": losses, "step_ms": statistics.median(seconds) * 1e3}


def enlarge() -> None:
    """Makes the example's model larger and its batch smaller, so that state takes most of the memory."""
    gpt.BATCH, gpt.CHANNELS, gpt.LAYERS = 16, 256, 4


def least_on_one_rank() -> int:
    """The bytes that a step of the example needs on one rank in 16 micro-batches, with all of forward run again in backward."""
    model, optimizer, train_step = gpt.make()
    graph = unisono.capture(train_step, model=model, optimizer=optimizer, example=next(gpt.batches(gpt.read_text())))
    plan = graph.plan("cpu:1", mesh={"ranks": 1}, micro_batches=16, recompute="full")
    return plan.prediction["peak_bytes"]


def together(steps: int, reference: list[float], plan_file: Path, **settings: Any) -> dict[str, Any] | None:
    """The same over all ranks; rank 0 returns what happened."""
    model, optimizer, train_step = gpt.make()
    data = gpt.batches(gpt.read_text())
    example = next(data)
    step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=example, **settings)
    if step.ranks.rank == 0:
        step.plan.save(plan_file)
        seconds = step.seconds
        if seconds.measurement > 0.1:
            say(f"measured this machine, once, in {seconds.measurement:.1f} s")
        say(
            f"captured in {seconds.capture:.1f} s, planned and prepared in {seconds.plan:.1f} s\n\n{step.plan.explain()}"
        )
        say(f"            {'one process':>12s} {'all ranks':>12s} {'difference':>12s}")

    def report(number: int, loss: float) -> None:
        if step.ranks.rank == 0:
            other = reference[number - 1]
            say(f"  step {number:4d} {other:12.6f} {loss:12.6f} {abs(loss - other) / other:12.1e}")

    losses, _ = train(step, data, steps, report)
    step.sync()
    sample = gpt.write(model) if step.ranks.rank == 0 else ""
    if settings:
        step.report(plan_file.with_suffix(".html"))
    measured = step.measure(*example)
    if step.ranks.rank != 0:
        return None
    return {"losses": losses, "measured": measured, "predicted": step.plan.prediction, "sample": sample}


def start(arguments: list[str], ranks: int = 1) -> dict[str, Any]:
    """Runs this script's part in fresh processes, one thread each, and reads what it reports."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with tempfile.TemporaryDirectory(prefix="unisono-demo-") as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, *launcher, __file__, "--out", str(out), *arguments]
        if subprocess.run(command, env={**os.environ, **QUIET}, check=False).returncode:
            sys.exit("the demo failed; the reason stands above")
        return json.loads(out.read_text())


def spread(values: list[int], unit: float) -> str:
    """The least and the greatest value of the ranks."""
    low, high = min(values) / unit, max(values) / unit
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} - {high:.1f}"


def summary(one: dict[str, Any], many: dict[str, Any], ranks: int) -> bool:
    """Prints the comparison; whether the losses agree."""
    predicted, measured = many["predicted"], many["measured"]
    say(f"\n                       {'predicted':>12s} {'measured':>16s}   on each of {ranks} ranks")
    say(f"  step time, ms        {predicted['step_ns'] / 1e6:12.1f} {spread(measured['step_ns'], 1e6):>16s}")
    for name, key in (("state, MiB", "state_bytes"), ("peak memory, MiB", "peak_bytes")):
        say(f"  {name:20s} {predicted[key] / 2**20:12.1f} {spread(measured[key], 2**20):>16s}")
    say(
        f"  {'of it kept, MiB':20s} {'':12s} {spread(measured['buffer_bytes'], 2**20):>16s}   between steps, for small results"
    )
    say(f"  one process with plain PyTorch: {one['step_ms']:.1f} ms a step")
    say(f"  ({ranks} ranks, one thread each, on {os.cpu_count()} cores; memory of tensors, by PyTorch's profiler)")
    worst = max(abs(a - b) / a for a, b in zip(one["losses"], many["losses"], strict=True))
    verdict = "OK" if worst <= EQUAL else "NOT OK"
    say(f"\n  loss of {len(one['losses'])} steps, largest relative difference: {worst:.1e}  {verdict}")
    return worst <= EQUAL


def main() -> None:
    """Runs the demo, or (``--out``) one process of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, help="200, or 30 of the pipeline")
    parser.add_argument("--pipeline", action="store_true", help="two stages of two ranks under a memory limit")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = PIPELINE if options.pipeline else {}
    steps = options.steps or (30 if options.pipeline else 200)
    if options.pipeline:
        enlarge()
    plan_file = ROOT / "out" / ("pipeline.toml" if options.pipeline else "plan.toml")
    if options.out is None:
        sys.exit(not compare(options, steps, plan_file))
    if options.reference is None:
        found: dict[str, Any] | None = alone(steps)
    else:
        found = together(steps, json.loads(options.reference.read_text()), plan_file, **settings)
    if found is not None:
        options.out.write_text(json.dumps(found))


def compare(options: argparse.Namespace, steps: int, plan_file: Path) -> bool:
    """Runs both, and says how they compare; whether the losses agree."""
    form = ["--steps", str(steps), *(["--pipeline"] if options.pipeline else [])]
    count = sum(parameter.numel() for parameter in gpt.GPT().parameters())
    say(f"a GPT of {count:,} parameters learns Python from the standard library, {steps} steps\n")
    if options.pipeline:
        least = least_on_one_rank() / 1e6
        say(f"one rank needs {least:.0f} MB even in 16 micro-batches with forward run again in backward;")
        say(f"each of {options.ranks} may have {PIPELINE['memory_limit']}\n")
    say("1. one process, plain PyTorch")
    one = start(form)
    say(f"\n2. {options.ranks} ranks with Unisono, over gloo")
    plan_file.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as reference:
        json.dump(one["losses"], reference)
        reference.flush()
        many = start([*form, "--reference", reference.name], options.ranks)
    equal = summary(one, many, options.ranks)
    if options.pipeline:
        say(f"stages, schedule and memory as a picture: {plan_file.with_suffix('.html').relative_to(ROOT)}")
    else:
        say(f"\nwhat the model writes after `def `:\n\n{many['sample']}\n")
    say(f"the plan: {plan_file.relative_to(ROOT)}")
    return equal


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
