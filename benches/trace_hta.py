"""Reads and analyses a trace with `unisono trace` and with Holistic Trace Analysis, side by side, in processor seconds.

    python benches/trace_hta.py TRACE --unisono target/release/unisono --hta PYTHON

TRACE is a Kineto trace (.json or .json.gz) with device events; PYTHON is one with HolisticTraceAnalysis 0.5.0
and pandas 2.2.3. The operator delays are measured in this Python, which needs unisono.
Each program runs in a process of its own; processor time and peak memory are those that the system counts for it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOAD = "from hta.trace_analysis import TraceAnalysis; t = TraceAnalysis(trace_files={RANK: PATH})"
REPORT = """
import tempfile
from hta.common.trace_call_graph import CallGraph
t.get_temporal_breakdown(visualize=False)
t.get_gpu_kernel_breakdown(visualize=False)
t.get_comm_comp_overlap(visualize=False)
t.get_idle_time_breakdown(ranks=[RANK], visualize=False)
t.get_queue_length_summary(ranks=[RANK])
t.get_time_spent_blocked_on_full_queue(t.get_queue_length_time_series(ranks=[RANK]))
t.get_memory_bw_summary(ranks=[RANK])
t.get_cuda_kernel_launch_stats(ranks=[RANK], visualize=False)
t.get_profiler_steps()
CallGraph(t.t, ranks=[RANK])
t.critical_path_analysis(rank=RANK, annotation="ProfilerStep", instance_id=1)
"""


OPERATORS = """
import time
t.get_aten_op_kernels_and_delay(ranks=[RANK])
begin = time.process_time()
t.get_aten_op_kernels_and_delay(ranks=[RANK])
print("seconds", time.process_time() - begin)
"""


def operator_delays(path: Path, hta: str) -> tuple[float, float]:
    """Processor seconds of the operator delays alone, in compatible mode and in HTA; each is called once before."""
    from unisono import trace

    recording = trace.load(path, compat="hta", cache=False)
    times = []
    for _ in range(6):
        begin = time.process_time()
        recording.get_aten_op_kernels_and_delay()
        times.append(time.process_time() - begin)
    code = LOAD.replace("RANK", "0").replace("PATH", repr(str(path))) + OPERATORS.replace("RANK", "0")
    done = subprocess.run([hta, "-c", code], capture_output=True, text=True, check=True)
    seconds = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds"))
    return min(times[1:]), float(seconds)


def measure(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Processor seconds (children included) and peak resident megabytes of a command."""
    # a child begins with the memory of this process and counts it, unless a small one starts it
    code = "import os, sys; _, s, u = os.wait4(os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0); "
    code += "print(s, u.ru_utime + u.ru_stime, u.ru_maxrss, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    status, seconds, kilobytes = done.stderr.splitlines()[-1].split()
    if status != "0":
        raise SystemExit(f"failed: {' '.join(command)[:200]}")
    return float(seconds), int(kilobytes) / 1024


def best(command: list[str], repeats: int, environment: dict[str, str] | None = None) -> tuple[float, float]:
    """The least of some runs: what the machine does besides only adds."""
    runs = [measure(command, environment) for _ in range(repeats)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--unisono", default="target/release/unisono")
    parser.add_argument("--hta", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "rank0.json"
        data = arguments.trace.read_bytes()
        plain.write_bytes(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        size = plain.stat().st_size / 1e6
        one = {"RAYON_NUM_THREADS": "1"}
        base = [arguments.unisono, "trace"]
        options = ["--json", "--no-cache"]
        load = best([*base, "stragglers", str(plain), *options, "--compat", "hta"], arguments.repeats, one)
        report = best(
            [*base, "summary", str(plain), *options, "--compat", "hta", "--instance", "1"], arguments.repeats, one
        )
        exact = best([*base, "summary", str(plain), *options, "--instance", "1"], arguments.repeats, one)
        code = LOAD.replace("RANK", "0").replace("PATH", repr(str(plain)))
        start = measure([arguments.hta, "-c", "from hta.trace_analysis import TraceAnalysis"])
        hta_load = measure([arguments.hta, "-c", code])
        hta_report = measure([arguments.hta, "-c", code + REPORT.replace("RANK", "0")])
        mine, other = operator_delays(plain, arguments.hta)
        rows = [
            ("load", load, hta_load),
            ("load and all analyses, compatible mode", report, hta_report),
            ("load and all analyses, exact mode and beyond", exact, hta_report),
        ]
        print(f"{size:.1f} MB of JSON; HTA's imports ({start[0]:.2f} s) are not counted\n")
        print(
            "| what | unisono CPU s | MB/s | peak MB | HTA CPU s | HTA peak MB | ratio |\n|---|---|---|---|---|---|---|"
        )
        for name, ours, theirs in rows:
            seconds = theirs[0] - start[0]
            cells = [f"{ours[0]:.3f}", f"{size / ours[0]:.0f}", f"{ours[1]:.0f}", f"{seconds:.2f}", f"{theirs[1]:.0f}"]
            print("| " + " | ".join([name, *cells, f"{seconds / ours[0]:.0f}"]) + " |")
        print(f"\noperator delays alone: {mine:.4f} s, HTA {other:.2f} s: {other / mine:.0f} times")


if __name__ == "__main__":
    main()
