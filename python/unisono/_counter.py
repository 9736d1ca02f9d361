"""Random numbers by a counter: the key that steps draw by, and the operation of the executor for whoever runs a graph without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from unisono._capture.inputs import StepInput

if TYPE_CHECKING:
    from unisono.graph import StepGraph

#: The name that the key has among the inputs of a graph and in the state of a step.
KEY = "rng.key"

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define(
    "random_at(Tensor key, Tensor[] index, int[] shape, int number, str distribution, float a, float b, int digits, "
    "ScalarType dtype) -> Tensor"
)

_WORD = 0xFFFFFFFF
_LANES = 16


def key_of(seed: int) -> torch.Tensor:
    """The key of a first step: the seed, which wraps around as for ``torch.manual_seed``, and the number of the step."""
    return torch.tensor([(seed + 2**63) % 2**64 - 2**63, 0])


def key_input(key: torch.Tensor) -> StepInput:
    """The key as an input of a step."""
    return StepInput("hyper", KEY, key)


def drawing(graph: StepGraph, rng: str) -> StepGraph:
    """The graph with random operations that draw as ``rng`` says."""
    by_counter = graph.native.drawing_by_counter() if rng == "counter" else None
    if by_counter is None:
        return graph
    if graph.has_capture:
        graph.capture.inputs.add(key_input(key_of(0)))
    return type(graph)(by_counter.message(), graph.capture if graph.has_capture else None)


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Philox4x32-10 (Salmon et al. 2011): four words for each counter of four words, as whole numbers of 64 bits."""
    words, (one, two) = list(counter), key
    for _ in range(10):
        first, third = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (third >> 32 & _WORD) ^ words[1] ^ one,
            third & _WORD,
            (first >> 32 & _WORD) ^ words[3] ^ two,
            first & _WORD,
        ]
        one, two = one + 0x9E3779B9 & _WORD, two + 0xBB67AE85 & _WORD
    return words


def _words(key: torch.Tensor, position: torch.Tensor, number: int, half: int | None = None) -> torch.Tensor:
    """The word of each position; with a ``half`` that of the position in this half of the same group that is paired with it."""
    lane, word = position % _LANES, position // _LANES % 4
    if half is not None:
        word = word % 2 + 2 * half
    block = position // (4 * _LANES) * _LANES + lane
    seed, step = key[0], key[1]
    like = torch.zeros_like(position)
    counter = [block & _WORD, block >> 32 & _WORD, like + number, like + (step & _WORD)]
    made = torch.stack(philox(counter, [seed & _WORD, seed >> 32 & _WORD]))
    return made.gather(0, word[None])[0]


def _log(words: torch.Tensor) -> torch.Tensor:
    return (((words >> 8) + 1).double() / 2**24).log()


def _angle(words: torch.Tensor) -> torch.Tensor:
    side = (words << 2 & _WORD).double()
    side = torch.where(side >= 2**31, side - 2**32, side)
    return ((words >> 30).double() + side / 2**32) * (math.pi / 2)


_Words = Callable[..., torch.Tensor]


def _normal(words: _Words, mean: float, std: float, position: torch.Tensor) -> torch.Tensor:
    radius, angle = (-2 * _log(words(0))).sqrt(), _angle(words(1))
    first = position % (4 * _LANES) < 2 * _LANES
    return radius * std * torch.where(first, angle.cos(), angle.sin()) + mean


def _numbers(words: _Words, name: str, a: float, b: float, digits: int, position: torch.Tensor) -> torch.Tensor:
    if name == "normal":
        return _normal(words, a, b, position)
    if name == "bernoulli":
        return words(None) < round(min(max(a, 0.0), 1.0) * 2**32)
    if name == "integers":
        return (words(None) * (int(b) - int(a)) >> 32 & _WORD) + int(a)
    if name == "uniform":
        low, high = torch.tensor([a, b]).tolist()
        made = ((words(None) >> 32 - digits).float() / 2**digits * (high - low) + low).float()
        return torch.where(made >= high, low, made)
    if name == "exponential":
        return -_log(words(None)) / a
    if name == "cauchy":
        return _angle(words(None)).tan() * b + a
    assert name == "geometric", name
    return (_log(words(None)) / math.log1p(-a)).ceil().clamp(min=1)


@torch.library.impl(_LIBRARY, "random_at", "CompositeExplicitAutograd")
def _random_at(
    key: torch.Tensor,
    index: Sequence[torch.Tensor],
    shape: Sequence[int],
    number: int,
    distribution: str,
    a: float,
    b: float,
    digits: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    position = key.new_zeros([len(one) for one in index])
    for dim, (own, size) in enumerate(zip(index, shape, strict=True)):
        position = position * size + own.view([-1 if other == dim else 1 for other in range(len(index))])

    def words(half: int | None) -> torch.Tensor:
        return _words(key, position, number, half)

    return _numbers(words, distribution, a, b, digits, position).to(dtype)
