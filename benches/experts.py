"""What the search finds for steps with experts: two layers of Mixtral 8x7B and of Qwen3-30B-A3B, predicted.

    python benches/experts.py              the tables of docs/design/022-experts.md
    python benches/experts.py by-expert    the same with experts dealt out, as a pin asks for, where there are as many as ranks

Both models as transformers has them, on `meta`, in bf16, with AdamW and clipping.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import transformers
from torch.nn import functional as F

import unisono
from unisono.graph import StepGraph

#: The sizes of each model.
MODELS: dict[str, Any] = {
    "Mixtral 8x7B": transformers.MixtralConfig(num_hidden_layers=2),
    "Qwen3-30B-A3B": transformers.Qwen3MoeConfig(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
}

#: The machine, the ranks along one axis, samples and tokens of each.
CASES = (("h100:1x8", 8, 16, 4096), ("h100:8x8", 64, 64, 128))

#: Each rank has some experts.
BY_EXPERT = {"params.*experts*": {"ranks": "shard(0)"}, "optimizer.*experts*": {"ranks": "shard(0)"}}


def captured(config: Any, samples: int, length: int) -> StepGraph:
    """A step of a model."""
    config.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens = torch.zeros(samples, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(input_ids=tokens_BT).logits.float().flatten(0, 1), targets_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return unisono.capture(step, model=model, optimizer=optimizer, example=(tokens, tokens), device="cuda")


def main() -> None:
    pins = BY_EXPERT if sys.argv[1:] == ["by-expert"] else {}
    print("| model | machine | samples x tokens | step ms | exposed ms | peak GiB | called | CPU s of the search |")
    print("|---|---|---|---|---|---|---|---|")
    for machine, ranks, samples, length in CASES:
        for name, config in MODELS.items():
            graph = captured(config, samples, length)
            if pins and config.num_local_experts < ranks:
                continue
            start = time.process_time()
            plan = graph.plan(machine, mesh={"ranks": ranks}, pins=pins, micro_batches=1)
            took, figures = time.process_time() - start, plan.figures()
            peak = plan.prediction["peak_bytes"] / 2**30
            shown = (
                f"{figures['step_ms']:.1f} | {figures['exposed_ms']:.1f} | {peak:.1f} | {figures['label']} | {took:.0f}"
            )
            print(f"| {name} | `{machine}` | {samples} x {length} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
