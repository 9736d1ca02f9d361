"""Attention over a sequence that ranks share."""

from __future__ import annotations

import collections
import json

import launch
import msgpack
import pytest
import sequence_ranks
import steps
import torch
import torch.nn.functional as F
from machines import machine
from ranks import run_ranks, train

import unisono

CASES = [(ranks, f"{model}, {family}") for ranks in (2, 3, 4) for model, family in sequence_ranks.cases(ranks)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each rank found in each case; the processes start once."""
    return launch.found_by_ranks("sequence_ranks:compare_all", tmp_path_factory.mktemp)


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_five_steps_over_a_sharded_sequence_are_as_on_one_device(compared, ranks, case):
    for found in (rank[case] for rank in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["returned"] < 1e-5
        assert found["state"] < 1e-5, found["worst"]
        assert found["optimizer"] < 2e-5


@pytest.mark.parametrize(
    ("ranks", "case"),
    [(2, "long_llama_of_three_heads, sequence cut"), (4, "long_llama_of_five_heads, sequence cut")],
)
def test_where_ranks_do_not_divide_the_heads_keys_and_values_go_around(compared, ranks, case):
    explained = compared(ranks)[0][case]["explained"]
    assert f"sequence parallel {ranks}, keys and values in a ring" in explained


#: A machine on which it takes long to compute and little to send.
LONG = machine(memory_bandwidth=1e12, flops=1e11, latency_ns=1000.0, bandwidth=1e10)


def captured(heads, length=4096):
    training = steps.long_llama(heads, length, count=1)
    return unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )


def around_attention(graph, ranks):
    """The collectives of a plan that moves more than a thousandth of an activation, by kind and part of the step."""
    settings = {"mesh": {"a": ranks}, "pins": {}, "memory_limit": None}
    plan = graph.native.plan(LONG, msgpack.packb(settings))
    rank = msgpack.unpackb(graph.native.rank_graph(plan, 0).message())["graph"]
    found: collections.Counter = collections.Counter()
    for number in rank["order"]:
        node = rank["nodes"][number]
        if rank["ops"][node["op"]]["name"] == "_c10d_functional::all_to_all_single":
            shape = rank["values"][node["args"][0]["value"]]["type"]["shape"]
            kind = "permute" if shape[0] == 1 else "all_to_all"
            found[kind, rank["parts"][node["part"]]["kind"]] += 1
    return found, msgpack.unpackb(plan.content())["label"]


LAYERS = 2


def test_where_ranks_divide_the_heads_of_a_long_sequence_they_exchange_heads_for_positions():
    found, label = around_attention(captured((8, 8)), 8)
    assert "sequence parallel 8" in label, label
    assert "in a ring" not in label, label
    assert {kind for kind, _ in found} == {"all_to_all"}
    # Queries, keys, values and results, there and back.
    assert found["all_to_all", "forward"] == 4 * LAYERS
    assert found["all_to_all", "backward"] == 4 * LAYERS


def test_where_ranks_do_not_divide_the_heads_of_a_long_sequence_keys_and_values_go_around():
    found, label = around_attention(captured((3, 3)), 4)
    assert label.startswith("sequence parallel 4, keys and values in a ring"), label
    # Halves of queries, of keys and values, of results and logarithms are exchanged; three times all pass on keys and values.
    assert found["permute", "forward"] == (4 + 3) * LAYERS
    # Halves of two kinds more; gradients of keys and values pass on once more.
    assert found["permute", "backward"] == (5 + 3 + 4) * LAYERS
    assert {kind for kind, _ in found} == {"permute"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_a_ring_in_another_precision_is_as_close_to_the_truth_as_one_device(dtype, causal):
    torch.manual_seed(0)
    exact = [torch.randn(1, 2, 32, 16, dtype=torch.float64) for _ in range(3)]
    truth = F.scaled_dot_product_attention(*exact, is_causal=causal)
    given = [tensor.to(dtype) for tensor in exact]
    whole = F.scaled_dot_product_attention(*given, is_causal=causal)

    graph = unisono.capture(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), example=tuple(given)
    )
    pins = {"batch.*": {"a": "shard(2)"}}
    cheap = machine(memory_bandwidth=1e8, flops=1e8, latency_ns=1.0, bandwidth=1e12)
    plan = graph.native.plan(cheap, msgpack.packb({"mesh": {"a": 4}, "pins": pins, "memory_limit": None}))
    graphs = [msgpack.unpackb(graph.native.rank_graph(plan, rank).message())["graph"] for rank in range(4)]
    assert any(label.startswith("sequence ") for label in graphs[0]["labels"])
    held = [[tensor.chunk(4, 2)[rank].clone() for tensor in given] for rank in range(4)]
    found = run_ranks(graphs, held)[0][0][0]
    assert torch.isfinite(found).all()
    error = (found.double() - truth).abs().max()
    assert error <= 2 * (whole.double() - truth).abs().max() + 1e-7


def peaks(ranks, tmp_path_factory):
    """What the first of so many ranks predicts and measures."""
    folder = tmp_path_factory.mktemp("memory")
    for ended in launch.run("sequence_ranks:measure", ranks, folder, seconds=300):
        assert ended.status == 0, ended.err[-4000:]
    return json.loads((folder / "memory-0.json").read_text())


def test_two_ranks_hold_little_more_than_half_of_a_long_sequence_each(tmp_path_factory):
    alone, shared = (peaks(ranks, tmp_path_factory) for ranks in (1, 2))
    assert "keys and values in a ring" in shared["explained"]
    assert shared["measured"] <= 0.6 * alone["measured"]
    for found in (alone, shared):
        assert found["predicted"] == pytest.approx(found["measured"], rel=0.05, abs=1 << 20)


@pytest.mark.parametrize("heads", [(3, 3), (8, 8)], ids=["around", "by heads"])
def test_eight_ranks_take_a_sixth_of_the_memory_for_a_long_sequence(heads):
    graph = captured(heads, 32768)

    def peak(ranks):
        plan = graph.native.plan(LONG, msgpack.packb({"mesh": {"a": ranks}, "pins": {}, "memory_limit": None}))
        return msgpack.unpackb(plan.content())["prediction"]["peak_bytes"]

    assert 6 * peak(8) <= peak(1)


@pytest.mark.parametrize("mesh", [{"a": 2, "b": 2}, {"a": 2, "b": 3}])
def test_a_ring_along_one_axis_of_a_mesh_and_heads_along_another_give_what_one_device_gives(mesh):
    training, alone = (steps.long_llama((6, 6)) for _ in range(2))
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    pins = {"batch.*": {"a": "shard(1)"}, "params.*": {"a": "replicate"}}
    settings = {"mesh": mesh, "pins": pins, "memory_limit": None}
    plan = graph.native.plan(steps.EAGER_TO_CUT, msgpack.packb(settings))
    ways = msgpack.unpackb(plan.content())["label"].split("; ")
    assert "keys and values in a ring" in ways[0], ways
    assert ways[1].startswith("tensor parallel"), ways
    found, after = train(graph, plan, mesh, training.batches, passes=True)
    assert [one.item() for one in found] == pytest.approx([alone.step(*b).item() for b in alone.batches], rel=1e-5)
    for name, wanted in alone.model.named_parameters():
        if name in after:
            assert (after[name] - wanted.detach()).abs().max() < 1e-5, name


def test_on_more_ranks_than_keys_and_values_go_around_queries_are_sharded_and_keys_and_values_gathered():
    ranks = 18
    training, alone = (steps.long_llama((3, 3), 2 * ranks, count=1) for _ in range(2))
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    pins = {"batch.*": {"a": "shard(1)"}, "params.*": {"a": "replicate"}}
    settings = {"mesh": {"a": ranks}, "pins": pins, "memory_limit": None}
    plan = graph.native.plan(steps.EAGER_TO_CUT, msgpack.packb(settings))
    labels = msgpack.unpackb(graph.native.rank_graph(plan, 0).message())["graph"]["labels"]
    assert any("halves of queries" in label for label in labels)
    assert not any("ring of keys and values" in label for label in labels)
    found, after = train(graph, plan, {"a": ranks}, training.batches, passes=True)
    assert [one.item() for one in found] == pytest.approx([alone.step(*b).item() for b in alone.batches], rel=1e-5)
    for name, wanted in alone.model.named_parameters():
        if name in after:
            assert (after[name] - wanted.detach()).abs().max() < 1e-5, name
