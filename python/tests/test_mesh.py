"""Meshes of several axes over processes."""

from __future__ import annotations

import json
import math

import launch


def test_the_mesh_that_the_planner_chooses_gives_what_one_device_gives(tmp_path):
    chosen = []
    for rank, one in enumerate(launch.run("mesh_ranks:choose", 4, tmp_path, 150)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        found = json.loads((tmp_path / f"mesh{rank}.json").read_text())
        assert all(step["off"] <= 1e-5 for step in found.values()), found
        assert found["in stages"]["mesh"]["stages"] == 2
        chosen += [step["mesh"] for step in found.values()]
    assert all(math.prod(mesh.values()) == 4 for mesh in chosen)
    assert chosen[0] == chosen[1], "the plan that was given back"
    assert {"outer": 2, "inner": 2} in chosen


def test_a_step_on_two_axes_over_gloo_gives_what_one_device_gives(tmp_path):
    for rank, one in enumerate(launch.run("mesh_ranks:train", 4, tmp_path, 150)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
        for found in json.loads((tmp_path / f"mesh{rank}.json").read_text()).values():
            assert found["off"] <= 1e-5
            assert found["layout"] == {"outer": "shard(0)", "inner": "shard(0)"}
            assert found["mesh"] == {"outer": 2, "inner": 2}
