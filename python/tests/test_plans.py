"""What the planner finds, by collectives, on machines that are not there."""

from __future__ import annotations

import collections
import copy
import itertools

import msgpack
import pytest
import torch
import torch.nn.functional as F
from machines import machine
from ranks import train
from torch import nn

import unisono
from unisono._message import pack

LAYERS = 3


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        heads = [t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, 2)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=256, width=64, heads=8, layers=LAYERS, time=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def make_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


@pytest.fixture(scope="module")
def graphs():
    """Captured GPT steps by batch size, and what else the model is made with."""
    captured = {}

    def get(batch, time=64, **sizes):
        key = batch, time, *sizes.values()
        if key not in captured:
            torch.manual_seed(0)
            model = Gpt(time=time, **sizes)
            optimizer = torch.optim.AdamW(model.parameters())
            tokens = torch.randint(0, 256, (batch, time))
            captured[key] = unisono.capture(
                make_step(model, optimizer), model=model, optimizer=optimizer, example=(tokens, tokens)
            )
        return captured[key]

    return get


def planned(graph, ranks=4, flops="1e10", **settings):
    mesh = ranks if isinstance(ranks, dict) else {"a": ranks}
    settings = {"mesh": mesh, "pins": {}, "memory_limit": None, **settings}
    cluster = machine(memory_bandwidth=1e12, flops=float(flops), latency_ns=1000.0, bandwidth=1e8)
    plan = graph.native.plan(cluster, msgpack.packb(settings))
    return plan, msgpack.unpackb(plan.content())


def collectives(graph, plan):
    """How often each collective is issued in each part of the step, small ones (of a number or a vector) left out."""
    rank = msgpack.unpackb(graph.native.rank_graph(plan, 0).message())["graph"]
    found: collections.Counter = collections.Counter()
    for number in rank["order"]:
        node = rank["nodes"][number]
        name = rank["ops"][node["op"]]["name"]
        if name.startswith("_c10d_functional::") and "wait" not in name:
            value = rank["values"][node["args"][0]["value"]]
            if len([size for size in value["type"]["shape"] if size > 1]) > 1:
                found[
                    name.partition("::")[2].removesuffix("_tensor").removesuffix("_into"),
                    rank["parts"][node["part"]]["kind"],
                ] += 1
    return found


def test_for_a_large_batch_the_batch_is_cut_and_only_gradients_and_parameters_travel(graphs):
    graph = graphs(64)
    plan, _ = planned(graph, flops="1e11")
    found = collectives(graph, plan)
    assert {key for key in found if key[0] != "all_gather"} <= {
        ("reduce_scatter", "update"),
        ("all_reduce", "update"),
    }
    assert {kind for name, kind in found if name == "all_gather"} <= {"forward", "update"}
    assert found["reduce_scatter", "update"] + found["all_reduce", "update"] >= 4 * LAYERS + 2


@pytest.mark.parametrize("layers", [2, 6])
def test_a_gradient_that_its_norm_and_its_parameter_need_travels_once(graphs, layers):
    graph = graphs(64, layers=layers)
    whole = {pattern: {"a": "replicate"} for pattern in ("params.*", "optimizer.*")}
    for latency_ns in (1e3, 3e5):
        cluster = machine(
            memory_bandwidth=1.5e10, flops=8e10, latency_ns=latency_ns, bandwidth=6e8, operation_ns=7000.0
        )
        settings = {"mesh": {"a": 2}, "pins": {"batch.*": {"a": "shard(0)"}} | whole, "memory_limit": None}
        found = collectives(graph, graph.native.plan(cluster, msgpack.packb(settings)))
        reductions = found["reduce_scatter", "update"] + found["all_reduce", "update"]
        assert reductions == 4 * layers + 3, (latency_ns, found)


def test_at_batch_one_tensors_are_cut_with_two_pairs_of_collectives_per_layer_and_direction(graphs):
    graph = graphs(1)
    made, plan = planned(graph, flops="1e9")
    found = collectives(graph, made)
    for kind in ("forward", "backward"):
        reductions = found["all_reduce", kind] + found["reduce_scatter", kind]
        # two per layer, and one for the embedding or the head
        assert 2 * LAYERS <= reductions <= 2 * LAYERS + 1, found
        assert found["all_gather", kind] <= 2 * LAYERS + 2, found
        assert found["all_to_all_single", kind] == 0, found
    # attention by heads (inside the fused projection), the MLP by its inner dimension, the vocabulary for the loss
    placements = {name: layout["a"] for name, layout in plan["inputs"].items()}
    assert placements["params.blocks.0.qkv.weight"] == "shard(0, 3)"
    assert placements["params.blocks.0.out.weight"] == "shard(1)"
    assert placements["params.blocks.0.up.weight"] == "shard(0)"
    assert placements["params.blocks.0.down.weight"] == "shard(1)"
    assert placements["params.head.weight"] == "shard(0)"


SEQUENCE = {f"outputs.blocks.*.{name}": {"a": "shard(1)"} for name in ("before", "between", "down", "out")}


def test_pins_of_what_modules_give_shard_the_sequence_between_blocks(graphs):
    graph = graphs(1)
    free = collectives(graph, planned(graph, flops="1e9")[0])
    made, _ = planned(graph, flops="1e9", pins={"batch.*": {"a": "replicate"}, "outputs.blocks.*": {"a": "shard(1)"}})
    found = collectives(graph, made)
    assert found["all_reduce", "forward"] < free["all_reduce", "forward"]
    assert found["reduce_scatter", "forward"] + found["all_to_all_single", "forward"] >= LAYERS


class Masked(nn.Module):
    """Attention of eight heads that makes its own causal mask, around which there is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(256, 256, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (8, 32)).transpose(1, 2) for part in (self.q, self.k, self.v))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(2, 3)).masked_fill(later, float("-inf")).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


def test_a_pin_of_what_a_module_gives_binds_no_mask_that_others_make_too():
    with torch.device("meta"):
        model = nn.Sequential(Masked(), Masked())
        x = torch.zeros(4, 256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,))
    heads = {f"params.*.{name}.weight": {"a": "shard(0)"} for name in "qkv"} | {
        "params.*.out.weight": {"a": "shard(1)"}
    }
    pins = {"batch.*": {"a": "replicate"}, "outputs.*": {"a": "shard(1)"}, **heads}
    made, _ = planned(graph, flops="1e10", pins=pins)
    # Attention is by heads in both; a mask that is read by positions would have the second one's scores sharded by positions too.
    assert not any(kind.startswith("all_to_all") for kind, _ in collectives(graph, made))


def test_a_plan_has_no_collective_that_is_forbidden(graphs):
    graph = graphs(1)
    free = collectives(graph, planned(graph, flops="1e9")[0])
    assert any(kind == "all_reduce" for kind, _ in free)
    found = collectives(graph, planned(graph, flops="1e9", forbid={"a": ["all_reduce", "all_to_all"]})[0])
    assert found
    assert not {kind for kind, _ in found} & {"all_reduce", "all_to_all_single"}
    assert not collectives(graph, planned(graph, flops="1e9", forbid={"*": ["*"]})[0])


@pytest.mark.parametrize("mesh", [{"a": 2}, {"a": 2, "b": 2}], ids=str)
@pytest.mark.parametrize(
    "said",
    [
        {"pins": {"outputs.blocks.*": {"a": "shard(1)"}}},
        {"pins": SEQUENCE},
        {"pins": {"outputs.blocks.*.up": {"a": "shard(2)"}, "outputs.head": {"a": "shard(1)"}}},
        {"forbid": {"*": ["all_to_all", "all_gather"]}},
        {"forbid": {"a": ["*"]}},
    ],
    ids=["blocks", "sequence", "features", "no gathers", "an axis"],
)
def test_what_is_pinned_and_forbidden_changes_no_result(said, mesh):
    torch.manual_seed(0)
    model = Gpt(vocabulary=64, width=16, heads=4, layers=2, time=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [tuple(torch.randint(0, 64, (2, 4, 8))) for _ in range(2)]
    step = make_step(model, optimizer)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batches[0])
    plan, _ = planned(graph, mesh, flops="1e6", **said)
    losses, after = train(graph, plan, mesh, batches, passes=True)
    assert [loss.item() for loss in losses] == pytest.approx([step(*batch).item() for batch in batches], rel=1e-5)
    for name, expected in model.named_parameters():
        torch.testing.assert_close(after[name], expected.detach(), rtol=1e-4, atol=1e-6)


def limited(graph, share, recompute=None):
    """A data-parallel plan within a share of the memory of the plan that is free to take what it likes."""
    _, free = planned(graph, flops="1e12")
    limit = round(free["prediction"]["peak_bytes"] * share)
    pins = {"batch.*": {"a": "shard(0)"}}
    made, plan = planned(graph, flops="1e12", memory_limit=limit, pins=pins, recompute=recompute)
    assert plan["prediction"]["peak_bytes"] <= limit
    assert plan["prediction"]["step_ns"] >= free["prediction"]["step_ns"]
    assert plan["label"].startswith("data parallel")
    return collectives(graph, made), plan


def test_when_memory_has_a_price_state_is_sharded_and_parameters_are_gathered(graphs):
    layers = 6
    found, plan = limited(graphs(32, time=16, width=128, layers=layers), 0.4)
    assert sum(count for (name, _), count in found.items() if name == "all_gather") >= 4 * layers
    assert found["reduce_scatter", "update"] >= 4 * layers
    assert plan["inputs"]["optimizer.blocks.0.up.weight.exp_avg"]["a"].startswith("shard(")


def test_when_memory_is_scarce_parameters_are_gathered_again_for_backward_in_small_buckets(graphs):
    layers = 6
    graph = graphs(32, time=16, width=128, layers=layers)
    found, plan = limited(graph, 0.28, "none")
    assert found["all_gather", "forward"] + found["all_gather", "update"] >= 4 * layers
    assert found["all_gather", "backward"] >= layers
    assert found["reduce_scatter", "update"] >= 4 * layers
    assert any(name.startswith("params.blocks.") for name in plan["inputs"])
    assert plan["passes"]["bucket_limit"] < 25 << 20
    # To make parts of forward again is one more way, and taken where it is faster.
    _, other = limited(graph, 0.28)
    assert other["prediction"]["recomputed_ns"] > 0
    assert other["prediction"]["step_ns"] < plan["prediction"]["step_ns"]


class Cast(nn.Module):
    """Products in bfloat16 of parameters in float32, as mixed precision has them."""

    def __init__(self, width=1024, layers=12):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        x = x.to(torch.bfloat16)
        for layer in self.layers:
            x = x + F.gelu(F.linear(x, layer.weight.to(torch.bfloat16), layer.bias.to(torch.bfloat16)))
        return x.float()


def cast_graph():
    model = Cast()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.empty(2, 8192, 1024)
    return unisono.capture(step, model=model, optimizer=optimizer, example=tuple(batch))


def test_parameters_that_are_cast_are_gathered_again_where_forward_runs_again():
    graph, limit = cast_graph(), 70_000_000
    settings = {"pins": {"batch.*": {"a": "shard(0)"}}, "memory_limit": limit, "micro_batches": 1}
    _, plan = planned(graph, ranks=8, flops="1e12", **settings)
    assert plan["prediction"]["peak_bytes"] <= limit
    assert plan["prediction"]["recomputed_ns"] > 0
    with pytest.raises(unisono.errors.ResourceError, match="no plan fits"):
        planned(graph, ranks=8, flops="1e12", recompute="none", **settings)


def test_less_memory_never_takes_less_time(graphs):
    graph = graphs(4)
    _, free = planned(graph, flops="1e11")
    times = []
    for share in (1.0, 0.9, 0.8, 0.6, 0.4):
        limit = round(free["prediction"]["peak_bytes"] * share)
        times.append(planned(graph, flops="1e11", memory_limit=limit)[1]["prediction"]["step_ns"])
    assert times == sorted(times)


def test_a_plan_under_a_limit_is_as_fast_as_the_data_parallel_one(graphs):
    graph = graphs(32, time=16, width=128, layers=6)
    _, free = planned(graph, flops="1e12")
    for share in (0.4, 0.28):
        limit = round(free["prediction"]["peak_bytes"] * share)
        times = [
            planned(graph, flops="1e12", memory_limit=limit, pins=pins)[1]["prediction"]["step_ns"]
            for pins in ({}, {"batch.*": {"a": "shard(0)"}})
        ]
        assert times[0] <= times[1], share


def test_a_limit_that_nothing_fits_says_how_much_the_smallest_plan_needs(graphs):
    with pytest.raises(unisono.errors.ResourceError, match="no plan fits") as caught:
        planned(graphs(1), memory_limit=1000)
    assert "smallest plan" in caught.value.cause


def test_planning_twice_gives_the_same_bytes(graphs):
    assert planned(graphs(1))[0].text() == planned(graphs(1))[0].text()


def test_a_plan_is_kept_in_a_folder_for_each_setting(graphs, tmp_path):
    cluster = machine(memory_bandwidth=1e12, flops=1e10, latency_ns=1000.0, bandwidth=1e8)

    def kept(ranks):
        text = graphs(1).native.plan(cluster, msgpack.packb({"mesh": {"a": ranks}}), tmp_path).text()
        return text, sorted((tmp_path / "plans").iterdir())

    assert kept(2) == kept(2)
    assert len(kept(4)[1]) == 2


def test_a_plan_is_for_one_graph_only(graphs):
    plan, _ = planned(graphs(1))
    with pytest.raises(unisono.errors.ConfigurationError, match="another training step"):
        graphs(64).native.rank_graph(plan, 0)


FAMILIES = {
    "free": {},
    "the batch cut": {"batch.*": "shard(0)", "params.*": "replicate", "optimizer.*": "replicate"},
    "state cut": {"batch.*": "shard(0)", "params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "tensors cut": {"batch.*": "replicate", "params.*": "shard(0)", "optimizer.*": "shard(0)"},
}


@pytest.fixture(scope="module")
def gives_what_one_device_gives():
    """Trains a small GPT by a plan, and compares it with what one device makes of it."""
    torch.manual_seed(0)
    model = Gpt(layers=1, time=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = [tuple(torch.randint(0, 256, (2, 8, 8))) for _ in range(3)]
    graph = unisono.capture(make_step(model, optimizer), model=model, optimizer=optimizer, example=data[0])
    reference = copy.deepcopy(model)
    eager = make_step(reference, torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9))
    expected = [eager(*batch).detach() for batch in data]

    def compare(mesh, pins, passes, **settings):
        made, plan = planned(graph, mesh, pins=pins, **settings)
        losses, after = train(graph, made, mesh, data, passes=passes)
        for loss, wanted in zip(losses, expected, strict=True):
            torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=0)
        for name, found in after.items():
            wanted = reference.get_parameter(name).detach()
            assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max(), name
        return plan

    return compare


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_what_one_device_gives(gives_what_one_device_gives, family, ranks):
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family].items()}
    gives_what_one_device_gives({"a": ranks}, pins, passes=False)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_ranks_give_each_other_in_forward_runs_again_with_what_they_compute(
    gives_what_one_device_gives, family, micro_batches
):
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family].items()}
    settings = {"recompute": "full", "micro_batches": micro_batches}
    plan = gives_what_one_device_gives({"a": 2}, pins, passes=True, **settings)
    assert plan["passes"]["recompute"] != ""


def test_a_search_says_what_it_is_at(graphs):
    lines = []
    cluster = machine(memory_bandwidth=1e11, flops=1e12, latency_ns=1e4, bandwidth=1e10)
    settings = pack({"ranks": 4, "effort": "quick"})
    graphs(8).native.plan(cluster, settings, None, lines.append, 0.0)
    assert any(line.endswith(" s: a quick search on ranks=4") for line in lines), lines
    said = len(lines)
    graphs(8).native.plan(cluster, settings, None, lines.append)
    assert len(lines) == said, "a short search says nothing"


PAIRS = list(itertools.product(FAMILIES, FAMILIES))
#: Every pair on the smallest mesh, and each family once outside and once inside on larger ones.
SOME = list(zip(FAMILIES, [*list(FAMILIES)[1:], *list(FAMILIES)[:1]], strict=True))
ON_MESHES = [
    (mesh, pair)
    for mesh, pairs in [({"a": 2, "b": 2}, PAIRS), ({"a": 2, "b": 4}, SOME), ({"a": 2, "b": 2, "c": 2}, SOME)]
    for pair in pairs
]


@pytest.mark.parametrize(("mesh", "families"), ON_MESHES, ids=str)
def test_every_pair_of_families_gives_on_several_axes_what_one_device_gives(
    gives_what_one_device_gives, mesh, families
):
    outer, *inner = mesh
    pins = {pattern: {outer: placement} for pattern, placement in FAMILIES[families[0]].items()}
    for pattern, placement in FAMILIES[families[1]].items():
        # A dimension that an outer axis has divided up can be too small for an inner one.
        pins.setdefault(pattern, {}).update(dict.fromkeys(inner[:1], placement))
    plan = gives_what_one_device_gives(mesh, pins, passes=True)
    if families == ("state cut", "state cut"):
        layout = plan["inputs"]["params.blocks.0.up.weight"]
        assert [layout[axis] for axis in (outer, inner[0])] == ["shard(0)", "shard(0)"]
