"""The dimensions of an operation that may be sharded together, found by trying.

Which dimensions of the operands belong together is guessed from equal sizes; which dimension of a result goes with them is seen from the
shape that half of the operands gives. A guess holds where the halves of the operands give the halves, or the summands, of each result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from unisono._capture.calls import tensors_of
from unisono._capture.exam import Question

#: A dimension of each operand, or ``None`` where the operand is given whole.
Guess = tuple[int | None, ...]
#: Maximum number of guesses that are tried.
_MOST_GUESSES = 200
_RANKS = 2

Run = Callable[[Sequence[Any]], list[torch.Tensor]]
Differ = Callable[[torch.Tensor, torch.Tensor], Any]


def found_rule(args: Sequence[Any], made: Sequence[torch.Tensor], run: Run, differ: Differ) -> str | None:
    """The rule that an operation seems to keep, or ``None`` where it seems to have no dimension that may be sharded.

    Args:
        args: arguments that were tried.
        made: what they gave.
        run: gives the results for other arguments.
        differ: whether two tensors are different.
    """
    operands = tensors_of(args)
    guesses = list(itertools.islice(_guesses(operands), _MOST_GUESSES + 1))
    if len(guesses) > _MOST_GUESSES:
        return None
    words = [["_"] * one.dim() for one in (*operands, *made)]
    for number, guess in enumerate(guesses):
        if _is_taken(words, guess):
            continue
        results = _results(guess, args, made, run, differ)
        if results is not None and not _is_taken(words[len(operands) :], results):
            _write(words, (*guess, *results), str(number))
    if all(word == "_" for one in words for word in one):
        return None
    texts = _renamed(words)
    return f"{', '.join(texts[: len(operands)])} -> {', '.join(texts[len(operands) :])}"


def _is_taken(words: list[list[str]], dims: Guess) -> bool:
    """Whether one of the dimensions has a name already."""
    return any(dim is not None and word[dim] != "_" for word, dim in zip(words, dims, strict=False))


def _renamed(words: list[list[str]]) -> list[str]:
    """The dimensions of each tensor with letters as names, in the order in which they are read."""
    letters = itertools.chain("abcdefghijklmnopqrstuvwxyz", map("d{}".format, itertools.count()))
    known = {"_": "_"}
    return [
        " ".join(known[word] if word in known else known.setdefault(word, next(letters)) for word in one)
        for one in words
    ]


def _write(words: list[list[str]], dims: Guess, name: str) -> None:
    for word, dim in zip(words, dims, strict=True):
        if dim is not None:
            word[dim] = name


def _guesses(operands: Sequence[torch.Tensor]) -> Iterator[Guess]:
    """Dimensions of one size, of at most one for each operand; those of many operands first."""
    sizes = sorted({size for one in operands for size in one.shape if size > 1})
    for size in sizes:
        choices = [[*(dim for dim in range(one.dim()) if one.shape[dim] == size), None] for one in operands]
        guesses = [guess for guess in itertools.product(*choices) if any(dim is not None for dim in guess)]
        yield from sorted(guesses, key=lambda guess: guess.count(None))


def _results(guess: Guess, args: Sequence[Any], made: Sequence[torch.Tensor], run: Run, differ: Differ) -> Guess | None:
    """The dimension of each result that goes with a guess, ``None`` for a result of summands; ``None`` where the guess is wrong."""
    size = next(one.shape[dim] for one, dim in zip(tensors_of(args), guess, strict=True) if dim is not None)
    try:
        operands = ["replicate" if dim is None else f"shard({dim})" for dim in guess]
        parts = [run(Question(_RANKS, operands, []).operands_of(args, rank)) for rank in range(_RANKS)]
        found = [_sharded(one, other, size) for one, other in zip(parts[0], made, strict=True)]
        if _NEITHER in found:
            return None
        question = Question(_RANKS, operands, ["partial(sum)" if dim is None else f"shard({dim})" for dim in found])
        for number, (dim, whole, pieces) in enumerate(zip(found, made, zip(*parts, strict=True), strict=True)):
            may_be = dim is not None or whole.is_floating_point()
            if not may_be or any(differ(one, whole) for one in question.combined(number, list(pieces))):
                return None
    except Exception:  # whatever the user's code raises for operands that do not belong together
        return None
    return tuple(found)


#: No dimension.
_NEITHER = -1


def _sharded(part: torch.Tensor, whole: torch.Tensor, size: int) -> int | None:
    """The dimension of a result that became a part, ``None`` where its shape is the same, and else ``_NEITHER``."""
    if part.dim() != whole.dim():
        return _NEITHER
    changed = [dim for dim, (one, other) in enumerate(zip(part.shape, whole.shape, strict=True)) if one != other]
    if not changed:
        return None
    return changed[0] if len(changed) == 1 and whole.shape[changed[0]] == size else _NEITHER
