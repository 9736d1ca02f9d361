"""How much of what a training step's operations move that kernels can compute is moved by kernels, for models of `small_models.toml`.

    python benches/coverage.py [--models PART] [--left]

The step is forward, backward and AdamW, captured and cleaned as `unisono.parallelize` does on one rank.
"""

from __future__ import annotations

import argparse
from typing import Any

import small_models
import torch

import unisono


def described(name: str) -> str:
    """What `unisono kernels` says of a model's step."""
    model, inputs = small_models.build(name)
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(batch: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = small_models.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    graph: Any = unisono.capture(train_step, model=model, optimizer=optimizer, example=inputs)
    return graph.native.run_passes()[0].kernels()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="only models whose name has this in it")
    parser.add_argument("--left", action="store_true", help="also say what is no kernel, and why")
    chosen = parser.parse_args()
    for name in small_models.names(chosen.models):
        text = described(name)
        print(f"{name}: {text.splitlines()[0]}", flush=True)
        if chosen.left:
            print(text[text.index("\nas they are\n") + 1 :], flush=True)


if __name__ == "__main__":
    main()
