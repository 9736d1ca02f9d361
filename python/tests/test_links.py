"""What collectives take is measured in groups of many shapes, written down, and used in prices."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import launch
import pytest
import steps
from machines import machine

import unisono
from unisono import _devices, _links, _native, _profile, _timing
from unisono.__main__ import main
from unisono._links import Found, Layout
from unisono._ranks import Ranks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A machine of which operations are known, and links that nobody has.
KNOWN = (
    "# Mine.\n"
    + machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1.0, bandwidth=1e12).replace(
        "operation_ns = 0\n", "operation_ns = 10.0\nspread = 0.010\n"
    )
    + '\n[device.operations."aten::mm".f32]\nflop_ps = 9.5\nmeasured = [\n  [64.0, 96, 3, 250.0],\n]\n'
)
KINDS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}


def test_shapes_are_those_that_axes_of_meshes_have():
    assert Layout(6).shapes() == [(2,), (3,), (6,)]
    assert Layout(8, 2).shapes() == [(2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]
    assert Layout(4, 4).shapes() == [(2,), (4,)], "nodes of one rank are no level"
    assert list(Layout(16, 2).axes({"data": 4, "tensor": 4})) == [(4, 1), (2, 2)]
    assert list(Layout(16, 2).axes({"data": 2, "other": 1, "tensor": 8})) == [(8, 1), (1, 2)]
    assert list(Layout(4).axes({"data": 2, "tensor": 2})) == [(2,)]
    assert list(Layout(12, 3).axes({"a": 3, "b": 4})) == [(4, 1), (1, 3)]


def ring(layout, shape, kind, size):
    """Seconds by a network of 10 us to begin, hops of 5 and 20 us, and 1 and 0.1 GB/s."""
    inside, nodes = shape if layout.has_levels else (*shape, 1)
    count = inside * nodes
    rounds = 2 if kind == "all_reduce" else 1
    hops = (count - nodes) * 5e-6 + (nodes - 1) * 20e-6
    rate = min(1e9, inside * 1e8) if nodes > 1 else 1e9
    return 10e-6 + rounds * hops + rounds * size * (count - 1) / count / rate


def made_up(layout):
    kinds, sizes = sorted(KINDS), (256, 4096, 1 << 20)
    groups = {s: {k: {size: ring(layout, s, k, size) for size in sizes} for k in kinds} for s in layout.shapes()}
    return Found(layout, groups)


def priced(text, layout, shape, kind, size):
    return _native.collective_ns(text, list(layout.mesh(shape).items()), "group", kind, size)


@pytest.mark.parametrize("layout", [Layout(4), Layout(8, 2), Layout(12, 3)], ids=str)
def test_a_group_of_a_measured_shape_costs_what_was_measured(layout):
    found = made_up(layout)
    text = _links.with_links(KNOWN, found.lines())
    for shape, kinds in found.groups.items():
        for kind, rows in kinds.items():
            for size, seconds in rows.items():
                assert priced(text, layout, shape, kind, size) == pytest.approx(seconds * 1e9, abs=0.1)


def test_coefficients_of_levels_that_measurements_were_made_from_are_found():
    network = tomllib.loads("\n".join(made_up(Layout(8, 2)).lines()))["network"]
    node, fabric = network["levels"]
    assert (node["ranks"], fabric["ranks"]) == (4, 8)
    assert network["start_ns"] == pytest.approx(10_000, rel=0.05)
    assert (node["hop_ns"], fabric["hop_ns"]) == (pytest.approx(5000, rel=0.05), pytest.approx(20_000, rel=0.05))
    assert (node["bandwidth"], fabric["bandwidth"]) == (pytest.approx(1e9, rel=0.05), pytest.approx(1e8, rel=0.05))
    assert network["error"] < 0.05


def test_shapes_that_were_not_measured_follow_from_those_that_were():
    layout = Layout(16, 4)
    found = made_up(layout)
    left_out = {shape: found.groups.pop(shape) for shape in ((2, 1), (1, 2), (2, 4))}
    text = _links.with_links(KNOWN, found.lines())
    for shape, kinds in left_out.items():
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            for size, seconds in kinds[kind].items():
                assert priced(text, layout, shape, kind, size) == pytest.approx(seconds * 1e9, rel=0.05)


def test_what_else_a_description_says_stays():
    text = _links.with_links(KNOWN, made_up(Layout(8, 2)).lines())
    assert text.startswith("# Mine.\nversion = 1\n[device]\n")
    said, before = tomllib.loads(text), tomllib.loads(KNOWN)
    assert said["device"] == before["device"]
    assert "links" not in said
    assert len(said["groups"]) == 5
    again = _links.with_links(text, made_up(Layout(4)).lines())
    assert tomllib.loads(again).keys() == {"version", "device", "links", "groups"}
    assert again.count("# Mine.") == 1
    assert _links.with_links(again, made_up(Layout(4)).lines()) == again


def measure_links() -> None:
    """What one rank of `torchrun ... -m unisono profile --links` does, for fewer sizes."""
    _links._SIZES, _timing.ROUNDS = (256, 16384, 1 << 18), 3
    status = main(["profile", "--links", "--nodes", "2", "--known", "known.toml", "-o", "cluster.toml"])
    assert status == 0


def test_a_run_measures_its_links_by_levels_and_sizes(tmp_path):
    (tmp_path / "known.toml").write_text(KNOWN)
    for one in launch.run("test_links:measure_links", 4, tmp_path, 240):
        assert (one.status, one.out) == (0, ""), one.err[-3000:]
    progress = (tmp_path / "0.err").read_text()
    told = [line for line in progress.splitlines() if line.startswith(("measuring with", "  links"))]
    assert told == [
        "measuring with 4 rank(s) ...",
        "  links: groups of 2 of a node",
        "  links: groups of 1 of each of 2 nodes",
        "  links: groups of 2 of each of 2 nodes",
    ]
    assert "measuring with" not in (tmp_path / "1.err").read_text()
    text = (tmp_path / "cluster.toml").read_text()
    said, layout = tomllib.loads(text), Layout(4, 2)
    assert said["device"]["operations"] == tomllib.loads(KNOWN)["device"]["operations"]
    assert said["device"]["spread"] >= 0.01
    assert [level["ranks"] for level in said["network"]["levels"]] == [2, 4]
    assert said["network"]["error"] >= 0
    assert [group.pop("shape") for group in said["groups"]] == [[2, 1], [1, 2], [2, 2]]
    for shape, kinds in zip(layout.shapes(), said["groups"], strict=True):
        assert kinds.keys() == KINDS | ({"transfer"} if shape != (2, 2) else set())
        for kind, curve in kinds.items():
            assert [size for size, _ in curve["measured"]] == [256, 16384, 1 << 18]
            off = []
            for size, nanos in curve["measured"]:
                # A gloo collective takes microseconds at least.
                assert nanos > 1000
                assert priced(text, layout, shape, kind, size) == pytest.approx(nanos, abs=0.1)
                sent = size * _native.collective_sent(kind, shape[0] * shape[1])
                off.append(abs((curve["latency_ns"] + sent / curve["bandwidth"] * 1e9) / nanos - 1))
            assert statistics.median(off) == pytest.approx(curve["error"], abs=0.01)


def measure_axes(known: str) -> None:
    """Measures what the axes of meshes need, one mesh after the other."""
    _links.QUICK_SIZES, _timing.ROUNDS = (256, 4096), 3
    ranks, found = Ranks(), []
    for mesh in ({"a": 4}, {"a": 2, "b": 2}, {"b": 2, "a": 2}, {"a": 4}, {}):
        known = _links.completed(known, mesh, ranks, _devices.HOST)
        found.append(known)
    Path(f"{ranks.rank}.json").write_text(json.dumps(found))


def test_a_session_measures_groups_as_its_axes_have_them_once(tmp_path):
    for one in launch.run("test_links:measure_axes", 4, tmp_path, 240, known=KNOWN):
        assert one.status == 0, one.err[-3000:]
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert told[1:] == told[:1] * 3, "all ranks have one description"
    links, both, again, all_ranks, searched = told[0]
    assert links == KNOWN, "one axis of all ranks is what the links say"
    assert [group["shape"] for group in tomllib.loads(both)["groups"]] == [[2]]
    assert again == both
    assert [group["shape"] for group in tomllib.loads(all_ranks)["groups"]] == [[2], [4]]
    assert searched == all_ranks
    assert tomllib.loads(both)["device"] == tomllib.loads(KNOWN)["device"]
    assert _native.cluster_ranks(searched) is None


def train_on_two_axes() -> None:
    """A session that measures its machine, for fewer sizes."""
    _links.QUICK_SIZES, _timing.ROUNDS, _profile._MOST_PLANS = (256, 4096), 3, 1
    training = steps.mlp(count=1)
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"a": 2, "b": 2},
    )
    step(*training.batches[0])


def test_a_session_keeps_what_it_measured_of_its_axes(tmp_path):
    for one in launch.run("test_links:train_on_two_axes", 4, tmp_path, 240):
        assert one.status == 0, one.err[-3000:]
    (kept,) = (tmp_path / ".cache" / "unisono" / "machines").iterdir()
    said = tomllib.loads(kept.read_text())
    assert [group["shape"] for group in said["groups"]] == [[2]]
    assert said["device"]["operations"]


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["step.txt", "--links"], 2, "--links measures no operations"),
        (["--nodes", "2"], 2, "--nodes is for --links"),
        (["--links", "--nodes", "none"], 2, "none is no number"),
        (["--links", "--known", "preset.toml"], 1, "`preset.toml` has the network of a preset"),
        (["--links", "--known", "bad.toml"], 1, "did you mean `device`?"),
        (["--links", "--ranks", "2", "--nodes", "3"], 1, "2 ranks on 3 nodes"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, monkeypatch, capfd, arguments, status, part):
    monkeypatch.chdir(tmp_path)
    Path("preset.toml").write_text('preset = "h100:2x8"\n')
    Path("bad.toml").write_text(KNOWN.replace("[device]", "[devise]"))
    try:
        ended = main(["profile", *arguments])
    except SystemExit as exit:
        ended = exit.code
    assert ended == status
    assert part in capfd.readouterr().err


def test_one_rank_alone_has_links_too(tmp_path, monkeypatch):
    monkeypatch.setattr(_devices, "current", lambda: _devices.HOST)
    monkeypatch.chdir(tmp_path)
    Path("known.toml").write_text(KNOWN)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("unisono._ranks.dist.is_available", lambda: False)
    assert main(["profile", "--links", "--known", "known.toml", "-o", "cluster.toml"]) == 0
    assert tomllib.loads(Path("cluster.toml").read_text())["links"].keys() == KINDS - {"permute"}
