"""Whole training steps (forward, backward, AdamW) of wider models: Unisono beside eager PyTorch and Inductor, on one thread.

    python benches/whole_steps.py [--models PART] [--memory default|kept] [--without-inductor] [--rounds N] [--warm N]

CPU time of a step, the least of some rounds that take turns in one process; each model once with memory as glibc gives it (*default*)
and once with memory that it keeps (*kept*). `torch.compile` takes forward and loss, and an optimizer of PyTorch's follows, fused or
not; `unisono.parallelize` takes all of the step, with one rank. *Faults*: pages that the system has to give to a step.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import kernels
import small_models
import torch

import unisono

LLAMA = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 8}
#: Class, settings beside those of `small_models`, shapes of what it is called with, and element type.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, list[int]], torch.dtype]] = {
    "LLaMA, 8,192 words": (
        "LlamaForCausalLM",
        {**LLAMA, "vocab_size": 8192},
        {"input_ids": [2, 512], "labels": [2, 512]},
        torch.float32,
    ),
    "LLaMA, 32,000 words": (
        "LlamaForCausalLM",
        {**LLAMA, "vocab_size": 32000},
        {"input_ids": [2, 512], "labels": [2, 512]},
        torch.float32,
    ),
    "LLaMA, 8,192 words, bf16": (
        "LlamaForCausalLM",
        {**LLAMA, "vocab_size": 8192},
        {"input_ids": [2, 512], "labels": [2, 512]},
        torch.bfloat16,
    ),
    "Wan": (
        "WanTransformer3DModel",
        {"num_attention_heads": 8, "attention_head_dim": 64, "ffn_dim": 2048, "text_dim": 256, "freq_dim": 64},
        {"hidden_states": [2, 4, 5, 20, 20], "target": [2, 4, 5, 20, 20], "encoder_hidden_states": [2, 64, 256]},
        torch.float32,
    ),
    "ViT": (
        "ViTForImageClassification",
        {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "image_size": 128},
        {"pixel_values": [8, 3, 128, 128], "labels": [8]},
        torch.float32,
    ),
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model that is trained, and what it is called with."""
    kind, settings, shapes, dtype = MODELS[name]
    model, inputs = small_models.build(kind, **settings)
    given = dict(inputs)
    for key, value in inputs.items():
        if key in shapes:
            shape = shapes[key]
            given[key] = torch.randn(shape).to(dtype) if value.is_floating_point() else torch.randint(0, 100, shape)
    if "timestep" in given:
        given["timestep"] = torch.full((shapes["hidden_states"][0],), 500)
    if kind.startswith("ViT"):
        given["labels"] = torch.randint(0, 2, shapes["labels"])
    return model.to(dtype), given


def trained(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    def step(*inputs: Any) -> torch.Tensor:
        made = loss(model, *inputs)
        made.backward()
        optimizer.step()
        optimizer.zero_grad()
        return made.detach()

    return step


def ways(name: str, inductor: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """Steps of one model, each with parameters of its own."""
    original, given = build(name)
    keys, values = list(given), tuple(given.values())

    def loss(model: torch.nn.Module, *inputs: Any) -> torch.Tensor:
        return small_models.loss(model, dict(zip(keys, inputs, strict=True)))

    def made(
        compiled: str | None = None, fused: bool | None = None
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[..., torch.Tensor]]:
        model = copy.deepcopy(original)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        return model, optimizer, torch.compile(loss, backend=compiled, dynamic=False) if compiled else loss

    found: dict[str, Callable[..., torch.Tensor]] = {
        "eager": trained(*made()),
        "eager, fused": trained(*made(fused=True)),
        "compiled, fused": trained(*made("unisono", fused=True)),
    }
    for way, fused in (("whole", None), ("whole, fused", True)):
        model, optimizer, _ = made(fused=fused)
        step = trained(model, optimizer, loss)
        found[way] = unisono.parallelize(
            step, model=model, optimizer=optimizer, example=values, micro_batches=1, cluster="cpu:1", fuse=True
        )
    if inductor:
        found["inductor, fused"] = trained(*made("inductor", fused=True))
    return {way: (lambda step=step: step(*values)) for way, step in found.items()}


def measured(name: str, inductor: bool, rounds: int, warm: int) -> dict[str, dict[str, float]]:
    """For each way the least milliseconds of a step, its page faults, and the loss after the steps that warm up."""
    torch.manual_seed(1)
    steps = ways(name, inductor)
    losses = {way: [float(step()) for _ in range(warm)][-1] for way, step in steps.items()}
    best, faults = dict.fromkeys(steps, math.inf), dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for way, step in steps.items():
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
            step()
            best[way] = min(best[way], time.process_time() - start)
            faults[way] = min(faults[way], resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {way: {"ms": best[way] * 1e3, "faults": faults[way], "loss": losses[way]} for way in steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="only models whose name has this in it")
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--memory", choices=["default", "kept"], nargs="+", default=["default", "kept"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warm", type=int, default=3, help="steps before them")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        print(json.dumps(measured(chosen.child, not chosen.without_inductor, chosen.rounds, chosen.warm)))
        return
    titled = False
    for name in (one for one in MODELS if chosen.models in one):
        for memory in chosen.memory:
            variables = kernels.KEPT if memory == "kept" else {}
            command = [sys.executable, *sys.argv, "--child", name]
            ended = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True)
            row = json.loads(ended.stdout.splitlines()[-1])
            if not titled:
                print(f"| model | memory | {' | '.join(row)} | losses differ by |\n{'|---' * (len(row) + 3)}|")
                titled = True
            apart = max(abs(one["loss"] - row["eager"]["loss"]) for one in row.values())
            cells = [
                f"{one['ms']:.0f}: {one['ms'] / row['eager']['ms']:.3f}, {one['faults']:.0f}" for one in row.values()
            ]
            print(f"| {name} | {memory} | {' | '.join(cells)} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main()
