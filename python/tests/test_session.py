"""A parallel step gives what the ordinary step gives, on any number of ranks, whatever the plan."""

from __future__ import annotations

import json

import launch
import pytest
import session_ranks

CASES = [(ranks, f"{model}, {family}") for ranks in (1, 2, 4) for model, family in session_ranks.cases(ranks)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each rank found in each case; the processes start once."""
    return launch.found_by_ranks("session_ranks:compare_all", tmp_path_factory.mktemp)


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_five_steps_are_as_on_one_device(compared, ranks, case):
    for found in (rank[case] for rank in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["returned"] < 1e-5
        assert found["state"] < 1e-5, found["worst"]
        assert found["optimizer"] < 2e-5


@pytest.mark.parametrize("model", ["gpt", "mlp", "llama"])
def test_pinned_families_are_what_they_say(compared, model):
    found = compared(2)[0]
    batch_cut, state_cut = found[f"{model}, batch cut"], found[f"{model}, state cut"]
    assert batch_cut["plan"]
    assert all(name.startswith(("batch.", "buffers.")) for name in batch_cut["plan"])
    assert batch_cut["collectives"] > 0
    assert sum(name.startswith("params.") for name in state_cut["plan"]) > 3
    assert sum(name.startswith("optimizer.") for name in state_cut["plan"]) > 3
    whole = found[f"{model}, tensors cut"]["plan"]
    assert not any(name.startswith("batch.") for name in whole)
    assert any(name.startswith("params.") for name in whole)


@pytest.mark.parametrize(("ranks", "case"), [(1, "llama, free"), (2, "llama, batch cut"), (2, "llama, state cut")])
def test_operations_are_kernels_where_they_are_fused(compared, ranks, case):
    found = compared(ranks)[0]
    assert found[f"{case}{session_ranks.FUSED}"]["kernels"] > 0
    assert found[case]["kernels"] == 0


def test_slices_gather_state_where_a_limit_leaves_no_room_to_hold_it(compared):
    once, each = (compared(2)[0][f"llama, state cut{how}"] for how in (session_ranks.SLICED, session_ranks.GATHERED))
    assert (once["gathers in each"], each["gathers in each"]) == (False, True)
    assert each["collectives"] > once["collectives"]
    assert each["peak"] < once["peak"]


@pytest.mark.parametrize("family", ["batch cut", "state cut", "tensors cut"])
def test_collectives_are_made_direct_by_a_plan_that_says_so(compared, family):
    usual, direct = (
        compared(2)[0][f"gpt_adamw, {name}"] for name in ("state cut", f"{family}{session_ranks.DIRECTLY}")
    )
    assert direct["exchanges"] > 2
    assert "x all_reduce, direct" in direct["explained"]
    assert usual["exchanges"] < direct["exchanges"]
    assert "direct" not in usual["explained"]


def test_a_memory_limit_below_the_best_plan_shards_state_and_is_kept(compared):
    found = compared(2)[0]["gpt_adamw, memory limited"]
    assert found["plan"] != found["free plan"]
    assert any(name.startswith("optimizer.") for name in found["plan"])
    assert found["peak"] <= session_ranks.MEMORY_SHARE * found["free peak"]


def test_tensors_that_are_cut_are_the_steps_until_sync_and_nan_and_small_to_the_user(tmp_path):
    for rank, one in enumerate(launch.run("session_ranks:give_up_and_take_back", 2, tmp_path, 90)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        found = json.loads((tmp_path / f"given{rank}.json").read_text())
        assert found["cut"]
        assert found["untouched"]
        before, between, after = found["bytes"]
        assert between < before / 10
        assert after >= before
        assert found["freed"]
        assert found["nan"]
        assert found["nan again"]
        assert [code for code, _ in found["refused"]] == ["U0124", "U0124"]
        assert all("sync()" in hint for _, hint in found["refused"])
        assert found["called"] < 1e-5
        assert found["in place"]
        assert found["strides"]
        assert found["synced"] < 1e-5
        assert found["written"] < 1e-5
        assert found["other batch"] < 1e-5


def test_several_optimizers_learn_on_two_ranks_as_on_one_device(tmp_path):
    for rank, one in enumerate(launch.run("session_ranks:several_optimizers", 2, tmp_path, 90)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        found = json.loads((tmp_path / f"several{rank}.json").read_text())
        assert found["off"] < 2e-5
        assert any("generator" in name for name in found["cut"])
        assert any("critic" in name for name in found["cut"])


def test_every_way_to_read_or_write_what_is_kept_in_parts_is_refused_until_sync(tmp_path):
    for rank, one in enumerate(launch.run("session_ranks:doors", 2, tmp_path, 90)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        found = json.loads((tmp_path / f"doors{rank}.json").read_text())
        for door, came in found["doors"].items():
            assert came[0] == "U0124", f"{door}: {came}"
            assert "sync()" in came[1]
            assert came[2].startswith(session_ranks.__file__), door
        assert "sync()" in found["shown"]
        assert found["open again"]
