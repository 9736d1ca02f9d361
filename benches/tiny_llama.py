"""A LLaMA of transformers with AdamW, small enough for a processor, as the measurements of memory train it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import transformers


def options(usage: str | None, width: int) -> argparse.Namespace:
    """Sizes from the command line."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("batch", 32), ("length", 64), ("width", width)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def training(
    sizes: argparse.Namespace, checkpointed: bool = False, **settings: Any
) -> tuple[Any, torch.optim.Optimizer, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A model of these settings beside its sizes, its optimizer, a step, and a batch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=4,
        **settings,
    )
    model = transformers.LlamaForCausalLM(config).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(ids_BT, labels_BT):
        optimizer.zero_grad()
        loss = model(input_ids=ids_BT, labels=labels_BT).loss
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step, torch.randint(0, 256, (2, sizes.batch, sizes.length)).unbind()
