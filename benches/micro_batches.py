"""What slices of the batch save: memory of a step in 1 to 16 micro-batches, predicted and measured, and its processor time.

Usage: python benches/micro_batches.py [--layers 4] [--batch 32] [--length 64] [--width 64]

A LLaMA of transformers with AdamW on one rank. Activations: the measured peak less state, batch and one set of gradients,
which no number of slices makes smaller.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers

import unisono


def step_of(options: argparse.Namespace, count: int):
    """A parallel step in so many micro-batches, and its batch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
    )
    model = transformers.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(ids_BT, labels_BT):
        optimizer.zero_grad()
        loss = model(input_ids=ids_BT, labels=labels_BT).loss
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.randint(0, 256, (2, options.batch, options.length)).unbind()
    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=batch, micro_batches=count, cluster="cpu:1"
    )
    return parallel, batch, sum(parameter.nbytes for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("batch", 32), ("length", 64), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("micro-batches    loss after 3    peak, MiB (predicted)    activations, MiB    of one    CPU ms a step")
    alone = None
    for count in (1, 2, 4, 8, 16):
        step, batch, gradients = step_of(options, count)
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
