"""Puts clock offsets and drift into the traces of a run and reads them back.

    python benches/trace_clocks.py DIRECTORY --unisono target/release/unisono

DIRECTORY holds one Kineto trace (.json.gz) for each rank. Every rank gets an offset of up to 5 ms and a drift of up to
20 ppm; what is printed is how far the offsets that come out are from those that were put in, after what all have in common.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any


def clocks(unisono: str, folder: Path) -> dict[int, dict[str, float]]:
    """The clocks that are found, by rank."""
    command = [unisono, "trace", "collectives", str(folder), "--json", "--no-cache"]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {clock["rank"]: clock for clock in answer["collectives"]["clocks"]}


def shift(trace: dict[str, Any], begin: float, offset: float, drift: float) -> None:
    """Moves all times of a trace to a clock that is off by `offset` us at `begin` and drifts by `drift` ppm."""
    for event in trace["traceEvents"]:
        if isinstance(event.get("ts"), int | float):
            event["ts"] = round(begin + (event["ts"] - begin) * (1 + drift * 1e-6) + offset, 3)
        if event.get("dur") is not None:
            event["dur"] = round(event["dur"] * (1 + drift * 1e-6), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--unisono", default="target/release/unisono")
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    traces = {path.name: json.loads(gzip.decompress(path.read_bytes())) for path in arguments.directory.glob("*.gz")}
    begin = min(
        event["ts"]
        for trace in traces.values()
        for event in trace["traceEvents"]
        if event.get("dur") is not None and event.get("cat") != "Trace"
    )
    before = clocks(arguments.unisono, arguments.directory)
    with tempfile.TemporaryDirectory() as folder:
        put = {}
        for name, trace in sorted(traces.items()):
            offset, drift = draw.uniform(-5000, 5000), draw.uniform(-20, 20)
            put[trace["distributedInfo"]["rank"]] = offset
            shift(trace, begin, offset, drift)
            (Path(folder) / name.removesuffix(".gz")).write_text(json.dumps(trace))
        after = clocks(arguments.unisono, Path(folder))
    errors = {rank: after[rank]["offset_us"] - before[rank]["offset_us"] - offset for rank, offset in put.items()}
    common = statistics.median(errors.values())
    print(f"{len(put)} ranks, {before[0]['collectives']:.0f} collectives")
    print(f"greatest error: {max(abs(error - common) for error in errors.values()):.2f} us")


if __name__ == "__main__":
    main()
