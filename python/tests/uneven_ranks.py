"""What the ranks of tests with unequal shards run; see ``test_uneven.py``."""

from __future__ import annotations

from collections.abc import Iterator

from session_ranks import write_compared


def cases(ranks: int) -> Iterator[tuple[str, str]]:
    """The models and families of plans that a number of ranks runs."""
    for model in ("odd_means", "odd_gpt"):
        families = ("free", "batch cut", "state cut", "tensors cut") if ranks < 4 else ("free", "state cut")
        yield from ((model, family) for family in families)


def compare_all() -> None:
    """Compares all cases."""
    write_compared(cases)
