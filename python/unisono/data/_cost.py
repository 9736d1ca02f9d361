"""What a sample costs, as a function of its length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unisono import _native


@dataclass(frozen=True)
class Cost:
    """``linear * L + quadratic * L**2 + constant`` for a sample of ``L`` tokens: whole numbers, only ratios matter.

    Attributes:
        linear: cost per token (token-wise layers).
        quadratic: cost per pair of tokens (attention).
        constant: cost per sample, however short.
        table: ``(length, cost)`` points with straight lines between them, instead of the coefficients.
    """

    linear: int = 0
    quadratic: int = 0
    constant: int = 0
    table: tuple[tuple[int, int], ...] | None = None

    def settings(self) -> dict[str, Any]:
        """As in a problem file."""
        if self.table is not None:
            return {"table": [list(point) for point in self.table]}
        return {"linear": self.linear, "quadratic": self.quadratic, "constant": self.constant}


def transformer_cost(hidden_size: int, *, mlp_ratio: float = 4.0, causal: bool = False) -> Cost:
    """The cost of a transformer block of width ``d``, divided by what is common to both terms.

    A block's matrices take ``(8 + 4 * mlp_ratio) * d**2`` operations per token and its attention ``4 * d * L`` per
    token, half of that where it is causal; dividing by ``4 * d`` leaves ``(2 + mlp_ratio) * d * L + L**2``.
    """
    linear = round((2 + mlp_ratio) * hidden_size)
    return Cost(linear=2 * linear, quadratic=1) if causal else Cost(linear=linear, quadratic=1)


@dataclass(frozen=True)
class SequenceParallel:
    """Groups of ranks that work on one long sample together.

    Attributes:
        degrees: allowed group sizes; each divides ``ranks_per_node`` or is a multiple of it.
        bytes_per_token: bytes that the all-to-all exchanges move per token, all passes together.
        bandwidth: ``(largest_degree, bytes_per_second)`` rows.
        rate: operations per second of one rank.
        passes: 1 for a forward pass, 3 with its backward pass, 4 with recomputation.
        ranks_per_node: ranks that share a node.
    """

    degrees: Sequence[int]
    bytes_per_token: float
    bandwidth: Sequence[tuple[int, float]]
    rate: float
    passes: float = 3.0
    ranks_per_node: int = 8

    def settings(self) -> dict[str, Any]:
        """As in a problem file."""
        rows = [list(row) for row in self.bandwidth]
        inner = {"degrees": list(self.degrees), "bytes_per_token": self.bytes_per_token, "bandwidth": rows}
        outer = {"rate": self.rate, "passes": self.passes, "ranks_per_node": self.ranks_per_node}
        return {"sequence_parallel": inner, **outer}


@dataclass(frozen=True)
class Fit:
    """Seconds per token, per squared token and per sample, and the share of the variance that they explain."""

    linear: float
    quadratic: float
    constant: float
    r_squared: float

    def cost(self) -> Cost:
        """As whole femtoseconds."""
        linear, quadratic, constant = (round(s * 1e15) for s in (self.linear, self.quadratic, self.constant))
        return Cost(linear, quadratic, constant)


def fit_cost(measurements: Iterable[tuple[Sequence[int], float]]) -> Fit:
    """Fits the coefficients of a :class:`Cost` to measured times; none comes out negative.

    Args:
        measurements: the lengths of the samples of a micro-batch (or of one rank's step) with the seconds that it took.

    Raises:
        ConfigurationError: there are too few measurements, or one is negative or not finite.
    """
    rows = [
        (float(sum(lengths)), float(sum(length * length for length in lengths)), float(len(lengths)), float(seconds))
        for lengths, seconds in measurements
    ]
    return Fit(*_native.balance_fit(rows))
