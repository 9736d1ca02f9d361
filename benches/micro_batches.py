"""What slices of the batch save: memory of a step in 1 to 16 micro-batches, predicted and measured, and its processor time.

Usage: python benches/micro_batches.py [--layers 4] [--batch 32] [--length 64] [--width 64]

A LLaMA of transformers with AdamW on one rank. Activations: the measured peak less state, batch and one set of gradients,
which no number of slices makes smaller.
"""

from __future__ import annotations

import argparse
import time

import tiny_llama
import torch

import unisono


def step_of(sizes: argparse.Namespace, count: int):
    """A parallel step in so many micro-batches, its batch, and the bytes of its gradients."""
    model, optimizer, step, batch = tiny_llama.training(sizes)
    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=batch, micro_batches=count, cluster="cpu:1"
    )
    return parallel, batch, sum(parameter.nbytes for parameter in model.parameters())


def main() -> None:
    sizes = tiny_llama.options(__doc__, width=64)
    torch.set_num_threads(1)
    print("micro-batches    loss after 3    peak, MiB (predicted)    activations, MiB    of one    CPU ms a step")
    alone = None
    for count in (1, 2, 4, 8, 16):
        step, batch, gradients = step_of(sizes, count)
        losses = [step(*batch) for _ in range(3)]
        peak = step.measure(*batch)["peak_bytes"][0]
        start = time.process_time()
        for _ in range(5):
            step(*batch)
        cpu = (time.process_time() - start) / 5 * 1e3
        predicted = step.plan.prediction
        rest = predicted["state_bytes"] + predicted["batch_bytes"] + gradients
        activations = peak - rest
        alone = alone or activations
        print(
            f"{count:13}    {float(losses[-1].detach()):12.7f}    {peak / 2**20:9.2f} "
            f"({predicted['peak_bytes'] / 2**20:9.2f})    {activations / 2**20:16.2f}    {activations / alone:6.3f}    {cpu:13.1f}"
        )


if __name__ == "__main__":
    main()
