"""Graphs made at random, on meshes made at random, give by any strategies what one rank gives: the other half."""

from __future__ import annotations

import pytest
from uneven_graphs import GRAPHS, TOGETHER, ask_all


@pytest.mark.parametrize("first", range(TOGETHER, GRAPHS, 2 * TOGETHER))
def test_random_graphs_on_random_meshes_give_what_one_rank_gives(first):
    ask_all(range(first, first + TOGETHER))
