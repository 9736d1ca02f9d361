"""`torch.compile(backend="unisono")` beside eager PyTorch and Inductor, forward and backward of unmodified models, on one thread.

    python benches/compile.py [--models PART] [--without-inductor] [--steady] [--rounds N]

CPU time of this process, the least of some rounds, which take turns. *First*: both first calls, capture included; a capture alone is what
the backend `eager` takes. *Loss* and *gradients*: the greatest distance from eager PyTorch's, of gradients in parts of the greatest of
the tensor. Models with `wide` beside them are larger.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import small_models
import torch
import torch._inductor.config

import unisono.errors

#: Larger settings and batches of some models, by what is added to the model's name.
WIDE = {
    "LlamaForCausalLM": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 1024},
    "WanTransformer3DModel": {"attention_head_dim": 64, "ffn_dim": 1024, "num_layers": 4},
    "ViTForImageClassification": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4},
}
WIDE_BATCH = 8
#: How a model is compiled.
WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "unisono": {"backend": "unisono"},
    "unisono, all kept": {"backend": "unisono", "options": {"partition": "default"}},
    "inductor": {"backend": "inductor"},
}


def wide(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model that is wider, on more samples."""
    model, inputs = small_models.build(name, **WIDE[name])
    more = {
        key: value.repeat(WIDE_BATCH, *[1] * (value.dim() - 1)) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }
    return model, more


def trained(model: torch.nn.Module, call: Callable[[], torch.Tensor]) -> float:
    model.zero_grad()
    loss = call()
    loss.backward()
    return loss.item()


def seconds(call: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def measured(name: str, made: tuple[torch.nn.Module, dict[str, Any]], backends: list[str], rounds: int) -> list[float]:
    """Prints a row and returns, by backend, steady time over eager time."""
    original, inputs = made
    models = {way: copy.deepcopy(original) for way in ("plain", *backends)}
    calls: dict[str, Callable[[], object]] = {}
    first, left, notices = {}, {}, 0
    for way, model in models.items():
        torch._dynamo.reset()
        run = small_models.loss if way == "plain" else torch.compile(small_models.loss, dynamic=False, **WAYS[way])
        calls[way] = lambda model=model, run=run: trained(model, lambda: run(model, inputs))
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            torch.manual_seed(3)
            first[way] = 2 * seconds(calls[way], 2)
        notices += sum(issubclass(one.category, unisono.errors.CompileNotice) for one in noticed)
        torch.manual_seed(4)
        left[way] = calls[way](), [one.grad.clone() for one in model.parameters() if one.grad is not None]
    # Short rounds: between others at work some are undisturbed.
    count = max(1, int(0.05 / seconds(calls["plain"], 2)))
    steady = {way: min(seconds(call, count) for _ in range(2)) for way, call in calls.items()}
    for _ in range(rounds):
        steady = {way: min(steady[way], seconds(call, count)) for way, call in calls.items()}
    loss, gradients = (abs(left["unisono"][0] - left["plain"][0]), 0.0)
    for one, other in zip(left["unisono"][1], left["plain"][1], strict=True):
        gradients = max(gradients, ((one - other).abs().max() / (other.abs().max() + 1e-4)).item())
    ratios = [steady[way] / steady["plain"] for way in backends if way != "eager"]
    cells = [f"{steady['plain'] * 1e3:.2f}", *(f"{ratio:.2f}" for ratio in ratios)]
    cells += [f"{first[way]:.1f}" for way in backends] + [f"{loss:.0e}", f"{gradients:.0e}", str(notices or "")]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="only models whose name has this in it")
    parser.add_argument("--without-inductor", action="store_true", help="leave the slow compilation out")
    parser.add_argument(
        "--steady", action="store_true", help="no captures alone; Inductor may read what it compiled before"
    )
    parser.add_argument("--partitions", action="store_true", help="also keep all that backward reads")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # A first call is one without anything kept from earlier runs.
    torch._inductor.config.force_disable_caches = not chosen.steady
    backends = ["eager"] * (not chosen.steady) + ["unisono"] + ["unisono, all kept"] * chosen.partitions
    backends += ["inductor"] * (not chosen.without_inductor)
    compiled = [way for way in backends if way != "eager"]
    titles = [
        "model",
        "eager, ms",
        *(f"{way} / eager" for way in compiled),
        *(f"first: {way}, s" for way in backends),
    ]
    titles += ["loss", "gradients", "graphs not lowered"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
    rows = []
    for name in small_models.names(chosen.models):
        rows.append(measured(name, small_models.build(name), backends, chosen.rounds))
        if name in WIDE:
            rows.append(measured(f"{name}, wide", wide(name), backends, chosen.rounds))
    for way, ratios in zip(compiled, zip(*rows, strict=True), strict=True):
        best = sum(one <= 1 for one in ratios)
        print(
            f"\n{way}: geometric mean {statistics.geometric_mean(ratios):.2f} of eager, no slower on {best} of {len(rows)}"
        )
    if not chosen.without_inductor:
        print(f"\nunisono no slower than Inductor on {sum(one[0] <= one[-1] for one in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
