"""The wrapper for iterable datasets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgpack
import numpy as np
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from unisono import _native
from unisono.data._cost import Cost, SequenceParallel
from unisono.data._lengths import column, phases
from unisono.data._plan import MicroBatch, Step, decode_step
from unisono.data._settings import problem_settings, stream_settings, world
from unisono.errors import ConfigurationError

_VERSION = 1


class BalancedStream(IterableDataset):
    """Wraps an iterable of samples; yields one ``(plan, [(micro-batch, collated samples), ...])`` per step.

    Every rank iterates over the same whole source and keeps its own samples, so the source must give every rank the
    same samples in the same order (do not shard it by rank or by worker).  Use it with
    ``DataLoader(stream, batch_size=None)``; with several workers each of them iterates over the source and builds every
    n-th step.

    Args:
        source: iterable more than once; the samples.
        length: a function from a sample to its number of tokens, or to one number per phase.
        batch_size: samples per step, over all ranks.
        cost: what a sample costs.
        collate: from a list of samples to a batch; an empty micro-batch gives ``None``.
        source_of: a function from a sample to the number of its source, from 0, if the mixture matters.
        loss_tokens: a function from a sample to its number of tokens that count in a per-token mean.
        window, delay, seed, others: as in :class:`BatchSampler`.

    Raises:
        UnisonoError: a setting or a length makes no sense; the message names the number at fault.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        length: Callable[[Any], Any],
        batch_size: int,
        cost: Cost | Sequence[Cost],
        ranks: int | None = None,
        rank: int | None = None,
        tokens_per_rank: int | None = None,
        objective: str = "free",
        window: int = 4,
        delay: int = 0,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        source_of: Callable[[Any], int] | None = None,
        loss_tokens: Callable[[Any], int] | None = None,
        sequence_parallel: SequenceParallel | None = None,
        **others: Any,
    ) -> None:
        """See the class."""
        self._source, self._length, self._collate = source, length, collate
        self._source_of, self._loss_tokens = source_of, loss_tokens
        self.ranks, self.rank = world(ranks, rank)
        self._settings = problem_settings(
            ranks=self.ranks,
            cost=cost,
            sequence_parallel=sequence_parallel,
            tokens_per_rank=tokens_per_rank,
            objective=objective,
            **others,
        )
        composition = {"batch_size": batch_size, "window": window, "delay": delay, "seed": seed}
        self._stream = stream_settings(**composition, shuffle=True)
        self._intake = batch_size * window
        self._identity = {"version": _VERSION, **composition, "cost": json.loads(self._settings)["cost"]}
        self._first_step = self._next_step = 0
        _native.BalanceStream(self._settings, self._stream, self.rank)  # refuses bad settings here and now

    def state_dict(self) -> dict[str, Any]:
        """Where to go on after the step that was given out last; does not depend on the number of ranks."""
        return {**self._identity, "step": self._next_step}

    def state_after(self, step: Step) -> dict[str, Any]:
        """Where to go on after ``step``, however far the workers of a data loader have run ahead."""
        return {**self._identity, "step": step.step + 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Starts the next pass where ``state`` was taken, on this number of ranks.

        Raises:
            ConfigurationError: the state is of another setting or version.
        """
        step = state.get("step") if isinstance(state, dict) else None
        if not isinstance(step, int) or step < 0 or state != {**self._identity, "step": step}:
            raise ConfigurationError(
                f"the resume state {state} is of another setting or version",
                code="U0404",
                cause=f"this is {self._identity}",
            )
        self._first_step = self._next_step = step

    def __iter__(self) -> Iterator[tuple[Step, list[tuple[MicroBatch, Any]]]]:
        """Starts a pass at the last resume state, or at the beginning."""
        worker = get_worker_info()
        worker_id, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        first, self._first_step = self._first_step, 0
        for step, samples in self._steps():
            if step.step < first or (step.step - first) % workers != worker_id:
                continue
            # A worker's own next step is then again its first step plus its number.
            self._next_step = step.step + workers - worker_id
            yield step, [(batch, self._load(batch, samples)) for batch in step.micro_batches]
        self._next_step = 0

    def _load(self, batch: MicroBatch, samples: dict[int, Any]) -> Any:
        return self._collate([samples[index] for index in batch.samples]) if batch.samples else None

    def _steps(self) -> Iterator[tuple[Step, dict[int, Any]]]:
        """All steps from the start of the stream, each with all samples held at that time."""
        native = _native.BalanceStream(self._settings, self._stream, self.rank)
        source, taken = iter(self._source), 0
        held: dict[int, Any] = {}
        window = list(itertools.islice(source, self._intake))
        while window:
            following = list(itertools.islice(source, self._intake))
            held.update(enumerate(window, taken))
            taken += len(window)
            for step in self._push(native, window, not following):
                yield step, held
                for index in step.samples:
                    del held[index]
            window = following

    def _push(self, native: _native.BalanceStream, window: list[Any], last: bool) -> list[Step]:
        arrays = phases(np.asarray([self._length(sample) for sample in window]))
        loss, sources = (
            None if of is None else column([of(sample) for sample in window], name, len(window))
            for of, name in ((self._loss_tokens, "loss_tokens"), (self._source_of, "source_of"))
        )
        message = native.push([array.tobytes() for array in arrays], loss, sources, last)
        return [decode_step(step, 0.0) for step in msgpack.unpackb(message)]
