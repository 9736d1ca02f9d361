"""Whether a description that is wrong tells what runs once it was mended by what ran.

``refit.py``, or ``torchrun --nproc-per-node 2 refit.py``. The rates and links of this machine are measured. Some are then put down wrong on
purpose, by factors that are said; a step of a small GPT is planned by that, run, and the description mended by three of its steps. Its time
as predicted before, as it is predicted by the mended description, and as it is measured.
"""

from __future__ import annotations

import re
import statistics

import torch
from gpt_step import GPT, step

import unisono
from unisono import _profile
from unisono._ranks import Ranks

#: What is put down wrong: patterns of lines of a description, and how many times as large the number on them is.
WRONG = {
    "nothing": {},
    "products twice as fast": {r"^(f32 = )(.*)$": 2.0},
    "memory half as fast, operations start four times as fast": {
        r"^(memory_bandwidth = )(.*)$": 0.5,
        r"^(operation_ns = )(.*)$": 0.25,
    },
    "links four times as fast": {r"(latency_ns = )([\d.e+]+)": 0.25, r"(bandwidth = )([\d.e+]+)(?= \})": 4.0},
}


def main() -> None:
    torch.set_num_threads(1)
    ranks = Ranks()
    right = _profile.describe(ranks)
    # A description without it is taken as written by hand: nothing of it is measured again.
    right = re.sub(r"^spread = .*\n", "", right, flags=re.MULTILINE)
    for what, factors in WRONG.items():
        text = right
        for pattern, factor in factors.items():
            text = re.sub(pattern, lambda m, by=factor: f"{m[1]}{float(m[2]) * by:.4e}", text, flags=re.MULTILINE)
        torch.manual_seed(0)
        model = GPT(width=128, layers=4, length=64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch = torch.randint(0, 256, (16, 64)), torch.randint(0, 256, (16, 64))
        pins = {
            "batch.*": {"ranks": "shard(0)"},
            "params.*": {"ranks": "replicate"},
            "optimizer.*": {"ranks": "replicate"},
        }
        train = unisono.parallelize(
            step(model, optimizer),
            model=model,
            optimizer=optimizer,
            example=batch,
            cluster=text,
            pins=pins if ranks.count > 1 else None,
        )
        refit = train.refit(*batch)
        measured = statistics.mean(train.measure(*batch, repeats=15)["step_ns"]) / 1e6
        if ranks.rank == 0:
            found = refit.replanned
            print(f"\n## {what}\n{refit}")
            print(f"step: {found['before_ms']:.1f} ms predicted, {found['now_ms']:.1f} mended, {measured:.1f} measured")


if __name__ == "__main__":
    main()
