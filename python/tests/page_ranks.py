"""A step that writes its page after it was measured; runs on every rank. See ``test_plan_page.py``."""

from __future__ import annotations

import os

import steps
import torch
from torch import nn


def report() -> None:
    torch.distributed.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    training = steps.squares(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = steps.parallelize(training, pins={"params.*": {"ranks": "shard(0)"}})
    step.report(f"plan{os.environ['RANK']}.html", *training.batches[0])
    torch.distributed.destroy_process_group()
