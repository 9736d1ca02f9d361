"""Experts: products of groups of rows, of which each rank has some."""

from __future__ import annotations

import copy
import random

import experts_ranks
import launch
import msgpack
import pytest
import torch
from ranks import train
from rule_exam import message, with_gradients
from steps import SCARCE_LINKS, Experts, few_experts, routed
from uneven_graphs import compare_drawn

import unisono
from unisono import _measured_programs, _native
from unisono._executor import Executor, lower_graph

CASES = [(ranks, f"{model}, {family}") for ranks in (2, 3, 4) for model, family in experts_ranks.cases()]
DRAWS = 40


#: What is added to the scores of six experts: nothing, or so much that two of them get all tokens, and ranks nothing.
ROUTES = {
    "any": torch.zeros(6),
    "the first two": torch.tensor([60.0, 50, 0, 0, 0, 0]),
    "far ones": torch.eye(6)[4] * 60,
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_layer_of_experts_gives_by_any_strategies_what_one_rank_gives(route):
    torch.manual_seed(0)
    rng = random.Random(0)
    scores = torch.randn(24, 6) + ROUTES[route]
    tensors = [torch.randn(24, 16), scores, torch.randn(6, 64, 16), torch.randn(6, 16, 32)]
    both, _ = with_gradients(routed, tensors)
    bytes_, given = message(both, tensors)
    graph, expected, in_groups = _native.Graph(bytes_), both(*tensors), 0
    for draw in range(DRAWS):
        ranks = rng.choice([2, 3, 4, 6])
        numbers = [rng.randrange(2**32) for _ in range(97)]
        names = compare_drawn(
            f"draw {draw} on {ranks} ranks",
            graph,
            given,
            expected,
            {"exam": ranks},
            numbers,
            draw % 2 == 1,
            {"rtol": 1e-4, "atol": 1e-4},
        )
        in_groups += "unisono::group_bounds" in names
    assert in_groups > DRAWS // 2


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each rank found in each case; the processes start once."""
    return launch.found_by_ranks("experts_ranks:compare_all", tmp_path_factory.mktemp)


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_five_steps_are_as_on_one_device(compared, ranks, case):
    for found in (rank[case] for rank in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["returned"] < 1e-5
        assert found["state"] < 1e-5, found["worst"]
        assert found["optimizer"] < 2e-5


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_unmodified_models_have_their_experts_dealt_out(compared, ranks, model):
    found = compared(ranks)[0][f"{model}, experts cut"]
    assert f"expert parallel {ranks}" in found["explained"]
    assert found["plan"]["params.model.layers.0.mlp.experts.down_proj"] == {"a": "shard(0)"}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_experts_are_dealt_out_where_ranks_may_get_nothing(compared, ranks):
    assert f"expert parallel {ranks}" in compared(ranks)[0]["few_experts, layer cut"]["explained"]


def layer_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x_TD):
        optimizer.zero_grad()
        loss = model(x_TD).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_search_deals_out_experts_where_nothing_else_makes_their_products_smaller(ranks):
    torch.manual_seed(0)
    model, batch = Experts(), torch.randn(30, 16)
    alone = copy.deepcopy(model)
    step, optimizer = layer_step(model)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(batch,))
    plan = graph.native.plan(SCARCE_LINKS, msgpack.packb({"mesh": {"a": ranks}, "memory_limit": None}))
    assert f'label = "expert parallel {ranks}, state sharded"' in plan.text()
    program = graph.native.program(plan, 0)[0].text()
    # The host reads once how many rows there are, and no matrix is gathered.
    assert program.count(" = unisono::group_bounds(") == 1
    assert " = unisono::exchange_rows(" in program
    assert "reduce_scatter_tensor(" not in program
    losses, after = train(graph, plan, {"a": ranks}, [(batch,)] * 5, passes=True)
    step, _ = layer_step(alone)
    assert [loss.item() for loss in losses] == pytest.approx([step(batch).item() for _ in range(5)], rel=1e-5)
    for name, parameter in alone.named_parameters():
        assert (after[name] - parameter).abs().max() <= 1e-5 * parameter.abs().max(), name


@pytest.mark.parametrize(
    ("mesh", "micro_batches"), [({"a": 2, "b": 2}, 1), ({"a": 2, "b": 3}, 1), ({"a": 4}, 2)], ids=str
)
def test_experts_are_dealt_out_beside_other_axes_and_in_micro_batches(mesh, micro_batches):
    torch.manual_seed(0)
    model, batch = Experts(), torch.randn(30, 16)
    alone = copy.deepcopy(model)
    step, optimizer = layer_step(model)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(batch,))
    pins = {f"params.{name}": dict.fromkeys(mesh, "shard(0)") for name in ("up", "down")}
    settings = {"mesh": mesh, "memory_limit": None, "pins": pins, "micro_batches": micro_batches}
    plan = graph.native.plan(SCARCE_LINKS, msgpack.packb(settings))
    assert f"expert parallel {mesh['a']}" in plan.text()
    _, after = train(graph, plan, mesh, [(batch,)] * 3, passes=True)
    step, _ = layer_step(alone)
    for _ in range(3):
        step(batch)
    for name, parameter in alone.named_parameters():
        assert (after[name] - parameter).abs().max() <= 1e-5 * parameter.abs().max(), name


def test_experts_that_leave_a_rank_without_any_are_not_dealt_out():
    tensors = [torch.randn(24, 16), torch.randn(24, 5), torch.randn(5, 64, 16), torch.randn(5, 16, 32)]
    graph = _native.Graph(message(*with_gradients(routed, tensors))[0])

    def in_groups(ranks):
        questions = msgpack.unpackb(graph.exam(ranks)[1])
        return any("groups(0)" in question["operands"] for question in questions)

    assert [in_groups(ranks) for ranks in (2, 3, 4, 5)] == [True, True, False, True]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_rank_may_have_all_rows_or_none(ranks):
    together, alone = few_experts(), few_experts()
    graph = unisono.capture(
        together.step, model=together.model, optimizer=together.optimizer, example=together.batches[0]
    )
    pins = {f"params.{name}": {"a": "shard(0)"} for name in ("up", "down")}
    settings = {"mesh": {"a": ranks}, "memory_limit": None, "pins": pins}
    plan = graph.native.plan(SCARCE_LINKS, msgpack.packb(settings))
    assert f"expert parallel {ranks}" in plan.text()
    losses, after = train(graph, plan, {"a": ranks}, together.batches, passes=True)
    assert [loss.item() for loss in losses] == pytest.approx([alone.step(*b).item() for b in alone.batches], rel=1e-5)
    for name, parameter in alone.model.named_parameters():
        assert (after[name] - parameter).abs().max() <= 1e-5 * parameter.abs().max(), name


def test_what_a_rank_computes_can_be_measured_without_others():
    training = few_experts()
    graph = unisono.capture(
        training.step, model=training.model, optimizer=training.optimizer, example=training.batches[0]
    )
    pins = {f"params.{name}": {"a": "shard(0)"} for name in ("up", "down")}
    plan = graph.native.plan(SCARCE_LINKS, msgpack.packb({"mesh": {"a": 2}, "memory_limit": None, "pins": pins}))
    alone = graph.native.program(plan, 0)[0].without_collectives()
    executor = Executor(lower_graph(alone, device=torch.device("cpu")))
    state, inputs = _measured_programs.filled(alone, torch.device("cpu"))
    executor.bind(state)
    for _ in range(2):
        executor(inputs)
