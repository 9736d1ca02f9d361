"""What a step keeps outside of the model is on two ranks what it is on one device, whatever is cut."""

from __future__ import annotations

import json

import kept_ranks
import launch
import pytest


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    for rank, one in enumerate(launch.run("kept_ranks:compare", 2, folder, 200)):
        assert one.status == 0, f"rank {rank}: {one.err[-3000:]}"
    return [json.loads((folder / f"kept{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("family", kept_ranks.PINS)
def test_four_steps_keep_what_one_device_keeps(compared, family):
    for found in (rank[family] for rank in compared):
        assert found["off"] < 2e-5
        assert max(found["kept"].values()) < 2e-5, found["kept"]


def test_what_is_kept_can_be_cut_and_is_closed_until_sync(compared):
    for found in compared[0].values():
        assert found["closed"] == [name in found["cut"] for name in ("kept.self.state.mean", "kept.model.hidden")]
    assert compared[0]["cut"]["closed"] == [True, True]
