"""A step on a mesh of two axes, over gloo, beside one device; runs on every rank."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from machines import machine
from steps import EPSILON
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import unisono

MACHINE = machine(memory_bandwidth=1e10, flops=1e9, latency_ns=1e3, bandwidth=1e9)
#: One on which nothing but products takes time.
SLOW_PRODUCTS = machine(memory_bandwidth=1e9, flops=1e6, latency_ns=10.0, bandwidth=1e11, operation_ns=1.0)
AXES = {"outer": 2, "inner": 2}
PINS = {
    "batch.*": {"outer": "shard(0)"},
    "params.*": {"outer": "shard(0)", "inner": "shard(0)"},
    "optimizer.*": {"outer": "shard(0)", "inner": "shard(0)"},
}


def train() -> None:
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    start = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    batch = tuple(torch.randn(2, 8, 16))
    found = {}
    for name, mesh in {
        "mapping": AXES,
        "device mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(AXES)),
    }.items():
        one, many = copy.deepcopy(start), copy.deepcopy(start)
        (alone, _), (together, optimizer) = make_step(one), make_step(many)
        step = unisono.parallelize(
            together, model=many, optimizer=optimizer, example=batch, mesh=mesh, pins=PINS, cluster=MACHINE
        )
        losses = [abs(step(*batch).item() - alone(*batch).item()) for _ in range(3)]
        step.sync()
        pairs = zip(many.parameters(), one.parameters(), strict=True)
        worst = max((a - b).abs().max().item() for a, b in pairs)
        found[name] = {
            "off": max(*losses, worst),
            "layout": step.plan.layouts["params.0.weight"],
            "mesh": step.plan.mesh,
        }
    Path(f"mesh{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def choose() -> None:
    """The planner chooses the mesh where four divides nothing and two does, also for a step that goes on with gradients in place.

    On four ranks along one axis one of them would have no share of six. What it chose is a plan to give. It also chooses the axes within
    as many pipeline stages as are asked for.
    """
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    start = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))
    batch = tuple(torch.randn(2, 6, 6))
    found, text = {}, None
    for name in ("searched", "given", "gradients stay", "in stages"):
        one, many = copy.deepcopy(start), copy.deepcopy(start)
        to_none = name != "gradients stay"
        (alone, _), (together, optimizer) = make_step(one, to_none), make_step(many, to_none)
        settings = {"plan": text, "stages": 2 if name == "in stages" else None, "cluster": SLOW_PRODUCTS}
        step = unisono.parallelize(together, model=many, optimizer=optimizer, example=batch, mesh="auto", **settings)
        losses = [abs(step(*batch).item() - alone(*batch).item()) for _ in range(3)]
        whole = {key: value.full_tensor() for key, value in step.state_dict()["model"].items()}
        step.sync()
        pairs = [
            *zip(many.parameters(), one.parameters(), strict=True),
            *zip(whole.values(), one.parameters(), strict=True),
        ]
        found[name] = {"off": max(*losses, *((a - b).abs().max().item() for a, b in pairs)), "mesh": step.plan.mesh}
        text = step.plan.text if name == "searched" else None
    Path(f"mesh{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def make_step(model, to_none=True):
    """A regression step of a model, and its optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), eps=EPSILON)

    def step(x, y):
        optimizer.zero_grad(set_to_none=to_none)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer
