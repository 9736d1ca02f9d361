"""The batch sampler for map-style datasets."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from unisono import _native
from unisono.data._cost import Cost, SequenceParallel
from unisono.data._lengths import column, measure_lengths, phases
from unisono.data._plan import MicroBatch, Step, decode_window
from unisono.data._settings import problem_settings, stream_settings, window_and_delay, world
from unisono.errors import ConfigurationError


class BatchSampler:
    """Yields this rank's micro-batches, lists of indices, for ``DataLoader(dataset, batch_sampler=...)``.

    Every rank computes the same plan from the same lengths; nothing is communicated.  Plans are computed ahead on a
    thread of their own.  Each pass over the sampler is one epoch, and the next pass the next one, in another order.

    Args:
        lengths: tokens of every sample, of shape ``(samples,)`` or ``(samples, phases)``; or, with ``dataset``, a
            function from a sample to its length, or the name of a column.
        batch_size: samples per step, over all ranks.
        cost: what a sample costs; one per phase for several phases.
        dataset: only needed where ``lengths`` is a function or a column's name.
        ranks, rank: taken from ``torch.distributed`` if not given.
        tokens_per_rank: most tokens in one micro-batch; a step then has as many micro-batches as it needs.
        objective: how ranks wait for each other: ``free``, ``lockstep``, ``grouped`` or ``pipeline``.
        window: steps whose samples are exchanged with each other for balance; 16 if not given, 1 without ``shuffle``.
        delay: windows that an outlier may be held back, so that several share a step; if not given, 63 (about 1,000 steps
            of 16 to a window), and 0 without ``shuffle`` or with a window of one step.
        seed, shuffle, drop_last: as usual; without ``shuffle`` samples come in the order of the dataset.
        indices: the samples to use, each once, if not all.
        sources: a number from 0 per sample; every window then has the mixture of the whole.
        loss_tokens: tokens of every sample that count in a per-token mean, if not all.
        equal_count: whether all ranks take the same number of samples.
        equal_micro_batches: whether all ranks get the same number of micro-batches, empty ones included.
        shard_group, stages, sequence_parallel: see the objectives in ``docs/balance.md``.

    Raises:
        UnisonoError: a setting or a length makes no sense; the message names the number at fault.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray | Callable[[Any], Any] | str,
        *,
        batch_size: int,
        cost: Cost | Sequence[Cost],
        dataset: Any = None,
        ranks: int | None = None,
        rank: int | None = None,
        tokens_per_rank: int | None = None,
        objective: str = "free",
        window: int | None = None,
        delay: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        sources: Sequence[int] | None = None,
        loss_tokens: Sequence[int] | None = None,
        equal_count: bool = False,
        equal_micro_batches: bool = False,
        shard_group: int | None = None,
        stages: int | None = None,
        sequence_parallel: SequenceParallel | None = None,
        progress: bool = True,
    ) -> None:
        """See the class."""
        self.ranks, self.rank = world(ranks, rank)
        if callable(lengths) or isinstance(lengths, str):
            if dataset is None:
                raise ConfigurationError("lengths by function or column need `dataset`", code="U0401")
            lengths = measure_lengths(dataset, lengths, progress=progress and self.rank == 0)
        arrays = phases(lengths)
        count = len(arrays[0])
        self._indices = _checked_indices(indices, count)
        chosen = slice(None) if self._indices is None else self._indices

        def chosen_column(values: Sequence[int] | None, name: str) -> bytes | None:
            whole = column(values, name, count)
            return None if whole is None else np.frombuffer(whole, dtype=np.uint64)[chosen].tobytes()

        self._single = tokens_per_rank is None and objective != "pipeline"
        settings = problem_settings(
            ranks=self.ranks,
            cost=cost,
            sequence_parallel=sequence_parallel,
            tokens_per_rank=tokens_per_rank,
            objective=objective,
            equal_count=equal_count,
            equal_micro_batches=equal_micro_batches,
            shard_group=shard_group,
            stages=stages,
        )
        window, delay = window_and_delay(window, delay, shuffle)
        self._native = _native.BalanceSampler(
            settings,
            stream_settings(batch_size=batch_size, window=window, delay=delay, seed=seed, shuffle=shuffle),
            drop_last,
            self.rank,
            [array[chosen].tobytes() for array in arrays],
            chosen_column(loss_tokens, "loss_tokens"),
            chosen_column(sources, "sources"),
        )
        self._position = _Position(json.loads(self._native.state()), 0, 0)
        self._running: _Batches | None = None
        self._consumed: Steps | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass."""
        return self._native.steps_per_epoch()

    def __len__(self) -> int:
        """Micro-batches of one pass, where every step has one."""
        if not self._single:
            raise TypeError("the number of micro-batches is known step by step only; see steps_per_epoch")
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Starts the next pass at the beginning of ``epoch``."""
        self._native.set_epoch(epoch)
        self._restart(_Position(json.loads(self._native.state()), 0, 0))

    def __iter__(self) -> _Batches:
        """Starts a pass at the last resume state, or at the beginning of the epoch."""
        self._running = _Batches(self, self._position)
        return self._running

    def steps(self, loader: Iterable[Any]) -> Steps:
        """Pairs each step's plan with its batches, as they come out of a data loader over this sampler."""
        self._consumed = Steps(self, loader)
        return self._consumed

    def plans(self) -> Iterator[Step]:
        """The plans of a pass, without loading anything."""
        return _Batches(self, self._position).plans()

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: after the last step that :meth:`steps` gave out; without it, after the pass's last batch."""
        source = self._consumed or self._running
        return source.state_dict() if source is not None else self._position.state_dict(self.ranks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Starts the next pass where ``state`` was taken, on this number of ranks.

        Raises:
            ConfigurationError: the state is of another dataset, setting or version.
        """
        self._restart(_Position.read(state, self.ranks))

    def _restart(self, position: _Position) -> None:
        self._native.resume(json.dumps(position.window))
        self._position, self._running, self._consumed = position, None, None

    def _next_epoch(self) -> None:
        self._native.set_epoch(self._position.window["epoch"] + 1)
        self._position = _Position(json.loads(self._native.state()), 0, 0)

    def _translate(self, samples: Sequence[int]) -> list[int]:
        return list(samples) if self._indices is None else [int(self._indices[sample]) for sample in samples]


class _Position:
    """A window's start, whole steps done in it, and micro-batches done in the next step."""

    def __init__(self, window: dict[str, Any], steps: int, batches: int) -> None:
        self.window, self.steps, self.batches = window, steps, batches

    def state_dict(self, ranks: int) -> dict[str, Any]:
        return {"window": self.window, "steps": self.steps, "batches": self.batches, "ranks": ranks}

    @staticmethod
    def read(state: dict[str, Any], ranks: int) -> _Position:
        if not isinstance(state, dict) or set(state) != {"window", "steps", "batches", "ranks"}:
            raise ConfigurationError("this is no resume state of a balanced sampler", code="U0404")
        for name in ("steps", "batches"):
            if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
                raise _damaged(name, state[name])
        if state["batches"] and state["ranks"] != ranks:
            raise ConfigurationError(
                f"the resume state lies within a step of {state['ranks']} ranks, there are {ranks} now",
                code="U0404",
                hint="save the state between steps to resume on another number of ranks",
            )
        return _Position(state["window"], state["steps"], state["batches"])


def _damaged(name: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"the resume state is damaged: `{name}` is {value!r}", code="U0404")


class _Handed(NamedTuple):
    """A step whose first micro-batch was handed to a data loader."""

    step: Step
    first_batch: int
    after: _Position


class _Batches(Iterator[list[int]]):
    """One pass over a sampler. Its ``state_dict`` is what StatefulDataLoader saves with each batch."""

    def __init__(self, sampler: BatchSampler, position: _Position) -> None:
        self._sampler = sampler
        self._native = sampler._native.fork()
        self._start(position)

    def _start(self, position: _Position) -> None:
        self._native.resume(json.dumps(position.window))
        self._position = position
        self._window: list[Step] = []
        self._loaded = self._ended = self._announced = False
        self.handed: deque[_Handed] = deque()

    def _fetch(self) -> bool:
        """Makes sure that there is a step at the position; false at the end of the epoch."""
        while not self._ended and (not self._loaded or self._position.steps >= len(self._window)):
            steps, batches = (0, 0) if self._loaded else (self._position.steps, self._position.batches)
            start, self._window = decode_window(*self._native.next_window())
            if steps > len(self._window):
                raise _damaged("steps", steps)
            if batches and (steps == len(self._window) or batches >= len(self._window[steps].micro_batches)):
                raise _damaged("batches", batches)
            self._position = _Position(start, steps, batches)
            self._loaded, self._ended = True, not self._window
        return not self._ended

    def _advance(self, steps: int, batches: int) -> None:
        self._position = _Position(self._position.window, steps, batches)

    def plans(self) -> Iterator[Step]:
        """The plans of the rest of the pass."""
        while self._fetch():
            yield self._window[self._position.steps]
            self._advance(self._position.steps + 1, 0)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[int]:
        while self._fetch():
            steps, batch = self._position.steps, self._position.batches
            step = self._window[steps]
            if not self._announced:
                self._announced = True
                self.handed.append(_Handed(step, batch, _Position(self._position.window, steps + 1, 0)))
            if batch + 1 < len(step.micro_batches):
                self._advance(steps, batch + 1)
            else:
                self._announced = False
                self._advance(steps + 1, 0)
            # A rank may have no micro-batch in a step.
            if batch < len(step.micro_batches):
                return self._sampler._translate(step.micro_batches[batch].samples)
        if self._sampler._running is self:
            self._sampler._next_epoch()
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        return self._position.state_dict(self._sampler.ranks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start(_Position.read(state, self._sampler.ranks))


class Steps:
    """Iterates over ``(plan, batches)``: a step's plan, and an iterator of ``(micro-batch, loaded batch)`` pairs.

    ``state_dict`` says where to go on after the last step whose batches were all taken; it does not depend on how far
    a data loader's workers have run ahead.
    """

    def __init__(self, sampler: BatchSampler, loader: Iterable[Any]) -> None:
        """See :meth:`BatchSampler.steps`."""
        self._sampler, self._loader = sampler, loader
        self._done = sampler._position

    def __iter__(self) -> Iterator[tuple[Step, Iterator[tuple[MicroBatch, Any]]]]:
        """Starts a pass."""
        loaded = iter(self._loader)
        running = self._sampler._running
        if running is None:
            raise ConfigurationError("the data loader does not use this sampler as its `batch_sampler`", code="U0401")
        ahead = _Ahead(loaded)
        while ahead or running.handed:
            handed = running.handed.popleft()
            pairs = self._pairs(handed, ahead)
            yield handed.step, pairs
            for _ in pairs:
                pass
        self._done = self._sampler._position

    def _pairs(self, handed: _Handed, ahead: _Ahead) -> Iterator[tuple[MicroBatch, Any]]:
        for batch in handed.step.micro_batches[handed.first_batch :]:
            yield batch, ahead.take()
        self._done = handed.after

    def state_dict(self) -> dict[str, Any]:
        """Where to go on after the last step whose batches were all taken."""
        return self._done.state_dict(self._sampler.ranks)


class _Ahead:
    """An iterator that knows whether there is more."""

    _END = object()

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._next = next(items, self._END)

    def __bool__(self) -> bool:
        return self._next is not self._END

    def take(self) -> Any:
        item, self._next = self._next, next(self._items, self._END)
        return item


def skip_empty(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """A collate function that gives ``None`` for a micro-batch without samples."""

    def wrapped(samples: list[Any]) -> Any:
        return collate(samples) if samples else None

    return wrapped


def _checked_indices(indices: Sequence[int] | None, count: int) -> np.ndarray | None:
    if indices is None:
        return None
    array = np.asarray(indices)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ConfigurationError("`indices` must be a list of whole numbers", code="U0401")
    outside = (array < 0) | (array >= count)
    if outside.any():
        raise ConfigurationError(f"`indices` names sample {array[outside][0]} of {count}", code="U0401")
    values, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise ConfigurationError(f"`indices` names sample {values[counts > 1][0]} twice", code="U0401")
    return array
