"""What the ranks of tests with sharded sequences run; see ``test_sequences.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import steps
from session_ranks import write_compared


def cases(ranks: int) -> Iterator[tuple[str, str]]:
    """The models and families of plans that a number of ranks runs."""
    yield "long_llama", "sequence cut"
    yield "video", "frames cut"
    if ranks == 2:
        yield "long_llama_of_three_heads", "sequence cut"
    if ranks == 4:
        yield "long_llama_of_five_heads", "sequence cut"


def compare_all() -> None:
    """Compares all cases."""
    write_compared(cases)


def measure() -> None:
    """Writes the predicted and the measured peak of memory of a step on one long sequence, as JSON."""
    training, ranks = steps.long_llama((3, 3), 2048, count=1), int(os.environ["WORLD_SIZE"])
    step = steps.parallelize(training, mesh={"a": ranks}, pins={"batch.*": {"a": "shard(1)"}} if ranks > 1 else {})
    measured = step.measure(*training.batches[0], repeats=1)
    peaks = {"predicted": step.plan.prediction["peak_bytes"], "measured": max(measured["peak_bytes"])}
    Path(f"memory-{os.environ['RANK']}.json").write_text(json.dumps(peaks | {"explained": step.plan.explain()}))
