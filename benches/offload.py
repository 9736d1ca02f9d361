"""What memory of the host gives under falling limits: predicted for LLaMA-7B widths, 8 layers, batch 8 x 2048, on one H100.

Usage: python benches/offload.py FOLDER [--unisono COMMAND]     FOLDER is that of `python benches/real_sizes.py capture FOLDER 8`
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

LIMITS = ("60GB", "40GB", "35GB", "30GB", "25GB", "20GB", "17GB", "15GB", "13GB", "11GB")


def planned(command: str, graph: Path, limit: str, offload: str) -> dict[str, float] | None:
    """The figures of a plan under a limit; none where there is none."""
    words = [command, "plan", str(graph), "--ranks", "1", "--cluster", "h100:1", "--micro-batches", "1", "--json"]
    words += ["--memory-limit", limit, *(["--offload", offload] if offload else [])]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    return json.loads(ended.stdout) if ended.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unisono", default="unisono")
    given = parser.parse_args()
    print(
        "| limit | with offload: ms | peak, GB | of forward copied, GB | state on the host, GB | waiting, ms | run again, ms "
        "| without: ms | run again, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for limit in LIMITS:
        both = [planned(given.unisono, given.folder / "llama-8-fused.msg", limit, offload) for offload in ("", "none")]
        cells = [limit]
        for figures, with_host in zip(both, (True, False), strict=True):
            if figures is None:
                cells += ["none fits", *([""] * (5 if with_host else 1))]
                continue
            cells.append(f"{figures['step_ms']:.1f}")
            if with_host:
                state = figures["host_state_bytes"]
                cells += [
                    f"{one / 1e9:.1f}" for one in (figures["peak_bytes"], figures["offloaded_bytes"] - state, state)
                ]
                cells.append(f"{figures['exposed_copies_ms']:.1f}")
            cells.append(f"{figures['recomputed_ms']:.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
