"""Plans as Python sees them, and how ranks make sure that they have the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgpack

from unisono import _native
from unisono.data._json import to_json
from unisono.errors import ConfigurationError


@dataclass(frozen=True)
class MicroBatch:
    """What this rank does in one micro-batch.

    Attributes:
        samples: indices into the dataset; empty where other ranks work and this one does not.
        tokens: sum of their lengths.
        loss_tokens: of them, those that count in a per-token mean.
        group: the ranks that work on it together; empty if this one alone.
        sample_share: of all samples of the step, over all ranks, those in this micro-batch.
        token_share: the same in loss tokens.
        ranks: how many ranks there are.
    """

    samples: tuple[int, ...]
    tokens: int
    loss_tokens: int
    group: tuple[int, ...]
    sample_share: float
    token_share: float
    ranks: int

    def weight(self, mean: Literal["sample", "token"] = "sample", *, averaged: bool = True) -> float:
        """What to multiply this micro-batch's mean loss with, so that the gradient does not depend on the partition.

        Args:
            mean: whether the loss is a mean over samples or over tokens, here and in the step as a whole.
            averaged: whether gradients are averaged over ranks (as DDP and FSDP do) or summed.
        """
        share = self.sample_share if mean == "sample" else self.token_share
        return share * self.ranks if averaged else share


@dataclass(frozen=True)
class Step:
    """One planned step.

    Attributes:
        step: from 0 in each epoch.
        samples: indices of all samples of all ranks, rising; the same on any number of ranks.
        micro_batches: this rank's work.
        loads: predicted time of every rank, in units of the cost (seconds with sequence parallelism).
        makespan: predicted time of the step.
        lower_bound: no plan is faster.
        tokens_max: most tokens of any rank in one micro-batch.
        delay: most windows that one of the samples waited.
        hash: 64 bits that identify the plan of all ranks.
        algorithm: what found it.
        solve_seconds: what planning took, on average over its window.
    """

    step: int
    samples: tuple[int, ...]
    micro_batches: tuple[MicroBatch, ...]
    loads: tuple[float, ...]
    makespan: float
    lower_bound: float
    tokens_max: int
    delay: int
    hash: int
    algorithm: str
    solve_seconds: float

    @property
    def imbalance(self) -> float:
        """The predicted step over the mean rank: 1 is perfect."""
        mean = sum(self.loads) / len(self.loads)
        return self.makespan / mean if mean else 1.0


def decode_window(message: bytes, seconds: float) -> tuple[dict[str, Any], list[Step]]:
    """A native window: the state before it, and its steps."""
    window = msgpack.unpackb(message)
    steps = window["steps"]
    return window["start"], [decode_step(step, seconds / len(steps)) for step in steps]


def decode_step(step: dict[str, Any], seconds: float) -> Step:
    """A native step."""
    count, tokens, ranks = len(step["samples"]), step["loss_tokens"], len(step["loads"])

    def micro_batch(batch: dict[str, Any]) -> MicroBatch:
        return MicroBatch(
            samples=tuple(batch["samples"]),
            tokens=batch["tokens"],
            loss_tokens=batch["loss_tokens"],
            group=tuple(batch["group"]),
            sample_share=len(batch["samples"]) / count,
            token_share=batch["loss_tokens"] / tokens if tokens else 0.0,
            ranks=ranks,
        )

    same = ("step", "makespan", "lower_bound", "tokens_max", "delay", "hash", "algorithm")
    return Step(
        samples=tuple(step["samples"]),
        micro_batches=tuple(micro_batch(batch) for batch in step["micro_batches"]),
        loads=tuple(step["loads"]),
        solve_seconds=seconds,
        **{key: step[key] for key in same},
    )


def balance(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Solves one problem: what ``unisono balance --json`` prints for the same object.

    Raises:
        UnisonoError: the problem makes no sense or a sample fits nowhere; the message names the number at fault.
    """
    return json.loads(_native.balance_solve(to_json(problem)))


def hash_tensor(step: Step, device: Any = None) -> Any:
    """Four int64 numbers that ranks reduce with MAX, in any reduction that they do anyway."""
    import torch

    high, low = step.hash >> 32, step.hash & 0xFFFFFFFF
    return torch.tensor([high, -high, low, -low], dtype=torch.int64, device=device)


def verify_hash_tensor(reduced: Any, step: Step) -> None:
    """Checks what came out of the reduction of :func:`hash_tensor`.

    Raises:
        ConfigurationError: the ranks have different plans.
    """
    high, low = step.hash >> 32, step.hash & 0xFFFFFFFF
    if [int(number) for number in reduced] != [high, -high, low, -low]:
        raise ConfigurationError(
            f"the ranks have different plans for step {step.step}",
            code="U0405",
            cause=f"this rank's plan is {step.hash:016x}, another rank's is not",
            hint="give every rank the same lengths, settings, seed and resume state",
        )


def check_agreement(step: Step, group: Any = None) -> None:
    """Compares the plan's hash over all ranks with one small reduction.

    Raises:
        ConfigurationError: the ranks have different plans.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        tensor = hash_tensor(step)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        verify_hash_tensor(tensor, step)
