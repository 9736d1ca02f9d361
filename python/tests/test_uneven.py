"""Ranks that do not divide what they share."""

from __future__ import annotations

import pytest
import uneven_graphs

GRAPHS = 120
TOGETHER = 20


@pytest.mark.parametrize("first", range(0, GRAPHS, TOGETHER))
def test_random_graphs_on_any_number_of_ranks_give_what_one_rank_gives(first):
    for seed in range(first, first + TOGETHER):
        assert uneven_graphs.ask(seed) > 0
