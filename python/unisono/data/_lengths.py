"""The lengths of a dataset's samples: given as an array, computed by a function, or read from a column."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from unisono.errors import ConfigurationError

_QUIET_SECONDS = 2.0
_REPORT_SECONDS = 0.5


def measure_lengths(
    dataset: Any,
    length: Callable[[Any], Any] | str,
    *,
    progress: bool = True,
) -> np.ndarray:
    """Scans a map-style dataset once; worth saving with ``numpy.save``.

    Args:
        dataset: has ``len`` and indexing.
        length: a function from a sample to its number of tokens (or to a pair, for two phases), or a column's name.
        progress: whether a scan of more than two seconds reports on stderr.

    Returns:
        int64, of shape ``(samples,)`` or ``(samples, phases)``.
    """
    if isinstance(length, str):
        columns = getattr(dataset, "column_names", None)
        if columns is not None:
            if length not in columns:
                raise ConfigurationError(
                    f"the dataset has no column `{length}`", code="U0401", hint=f"known: {', '.join(columns)}"
                )
            return np.asarray(dataset[length], dtype=np.int64)
        return _scan(dataset, itemgetter(length), progress)
    return _scan(dataset, length, progress)


def _scan(dataset: Any, length: Callable[[Any], Any], progress: bool) -> np.ndarray:
    count, start = len(dataset), time.monotonic()
    lengths, reported = [], start + _QUIET_SECONDS - _REPORT_SECONDS
    for index in range(count):
        lengths.append(length(dataset[index]))
        now = time.monotonic()
        if progress and now - reported >= _REPORT_SECONDS:
            reported = now
            _report(index + 1, count, now - start)
    if progress and reported > start + _QUIET_SECONDS:
        _report(count, count, time.monotonic() - start, end="\n")
    return np.asarray(lengths)


def _report(done: int, count: int, seconds: float, end: str = "") -> None:
    left = seconds / done * (count - done)
    start, end = ("\r", end) if sys.stderr.isatty() else ("", "\n")
    text = f"{start}scanning lengths: {done:,} of {count:,} ({100 * done / count:.0f} %), {left:.0f} s left"
    print(text, end=end, file=sys.stderr, flush=True)


def phases(lengths: Any) -> list[np.ndarray]:
    """Checked lengths, one uint64 array per phase.

    Raises:
        ConfigurationError: a length is negative, no whole number or not finite; the message names its index.
    """
    array = np.asarray(lengths)
    if array.dtype == object or array.ndim not in (1, 2) or array.dtype.kind not in "iuf":
        raise ConfigurationError(
            f"lengths are numbers of shape (samples,) or (samples, phases), not {array.dtype} of shape {array.shape}",
            code="U0401",
        )
    if array.dtype.kind == "f":
        _refuse(array, ~np.isfinite(array) | (array != np.floor(array)), "no whole number")
    _refuse(array, array < 0, "negative")
    _refuse(array, array >= 2**63, "too large")
    array = array.astype(np.uint64)
    return [np.ascontiguousarray(array)] if array.ndim == 1 else [np.ascontiguousarray(a) for a in array.T]


def _refuse(array: np.ndarray, bad: np.ndarray, why: str) -> None:
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = "".join(f"[{i}]" for i in index)
        raise ConfigurationError(f"`lengths{place}` is {array[index]}: {why}", code="U0401")


def column(values: Sequence[int] | np.ndarray | None, name: str, count: int) -> bytes | None:
    """An optional array of one number per sample, as bytes."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu" or (array < 0).any():
        raise ConfigurationError(f"`{name}` must be {count} whole numbers that are not negative", code="U0401")
    return array.astype(np.uint64).tobytes()
