"""Balanced loading of samples of different length.

A :class:`BatchSampler` for map-style datasets and :class:`BalancedStream` for iterable ones decide, the same on every
rank, which samples share a training step and which rank takes which, so that all ranks finish together.  They work in a
plain ``torch.utils.data.DataLoader`` and in torchdata's ``StatefulDataLoader``.
"""

from unisono.data._cost import Cost, Fit, SequenceParallel, fit_cost, transformer_cost
from unisono.data._lengths import measure_lengths
from unisono.data._plan import MicroBatch, Step, balance, check_agreement, hash_tensor, verify_hash_tensor
from unisono.data._sampler import BatchSampler, Steps, skip_empty
from unisono.data._stream import BalancedStream
from unisono.data._telemetry import JsonLines, StepRecord, log_to_tensorboard, record_step

__all__ = [
    "BalancedStream",
    "BatchSampler",
    "Cost",
    "Fit",
    "JsonLines",
    "MicroBatch",
    "SequenceParallel",
    "Step",
    "StepRecord",
    "Steps",
    "balance",
    "check_agreement",
    "fit_cost",
    "hash_tensor",
    "log_to_tensorboard",
    "measure_lengths",
    "record_step",
    "skip_empty",
    "transformer_cost",
    "verify_hash_tensor",
]
