"""Ranks that do not divide what they share."""

from __future__ import annotations

import launch
import pytest
import uneven_graphs
import uneven_ranks

GRAPHS = 120
TOGETHER = 20

CASES = [(ranks, f"{model}, {family}") for ranks in (2, 3, 4) for model, family in uneven_ranks.cases(ranks)]


@pytest.mark.parametrize("first", range(0, GRAPHS, TOGETHER))
def test_random_graphs_on_any_number_of_ranks_give_what_one_rank_gives(first):
    asked = sum(uneven_graphs.ask(seed) for seed in range(first, first + TOGETHER))
    assert asked > 0.7 * TOGETHER * uneven_graphs.DRAWS


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each rank found in each case; the processes start once."""
    return launch.found_by_ranks("uneven_ranks:compare_all", tmp_path_factory.mktemp)


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_five_steps_are_as_on_one_device(compared, ranks, case):
    for found in (rank[case] for rank in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["returned"] < 1e-5
        assert found["state"] < 1e-5, found["worst"]
        assert found["optimizer"] < 2e-5


@pytest.mark.parametrize("ranks", [2, 3])
def test_pins_shard_what_the_ranks_do_not_divide(compared, ranks):
    found = compared(ranks)[0]
    assert {"batch.x", "batch.y", "batch.weight"} <= set(found["odd_means, batch cut"]["plan"])
    cut = found["odd_gpt, state cut"]["plan"]
    assert cut["params.head.weight"] == {"a": "shard(0)"}
    assert sum(name.startswith("params.") for name in cut) > 20
