"""Schedules of pipeline stages: those of torch by the same names, and files of actions."""

from __future__ import annotations

import pytest
import stage_ranks
import stages
import torch
from torch.distributed.pipelining import schedules

import unisono
from unisono.errors import ConfigurationError

#: torch's schedule with the name that it has here, and how many chunks a stage has.
OF_TORCH = [
    ("interleaved", schedules.ScheduleInterleaved1F1B, 2),
    ("interleaved", schedules.ScheduleInterleaved1F1B, 3),
    ("zb-v", schedules.ScheduleZBVZeroBubble, 2),
    ("dualpipe-v", schedules.ScheduleDualPipeV, 2),
]


@pytest.fixture(scope="module")
def step():
    """A small step, captured, beside the same on one device."""
    one, many = stage_ranks.made("mlp")
    return one, many, unisono.capture(many.step, model=many.model, optimizer=many.optimizer, example=many.batches[0])


def order_of_torch(cls: type, ranks: int, micro_batches: int, chunks: int) -> list[str]:
    """The lines of torch's order, which its constructor makes of stages with models and process groups."""
    order = object.__new__(cls)
    order.pp_group_size, order._n_microbatches = ranks, micro_batches
    order.num_stages = order._num_stages = ranks * chunks
    order.n_local_stages = chunks
    order.number_of_rounds = max(1, micro_batches // ranks)
    order.microbatches_per_round = micro_batches // order.number_of_rounds
    rows = []
    for rank in range(ranks):
        order.rank = rank
        made = [action for action in order._calculate_single_rank_operations(rank) if action is not None]
        rows.append(",".join(str(action) for action in made if action.computation_type != schedules.REDUCE_GRAD))
    return rows


def plain(row: str) -> str:
    """A row with pairs as two actions, one behind the other."""
    return row.replace("(", "").replace(")OVERLAP_F_B", "").replace(";", ",")


@pytest.mark.parametrize(("name", "cls", "chunks"), OF_TORCH)
def test_schedules_are_those_of_torch_by_the_same_name(step, name, cls, chunks):
    _, _, graph = step
    for micro_batches in (4, 8):
        made = stages.plan(graph, 2, micro_batches, schedule=name, chunks=chunks)
        expected = order_of_torch(cls, 2, micro_batches, chunks)
        assert made.actions() == [plain(row) for row in expected]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "searched"])
def test_torch_reads_what_is_written(step, name, tmp_path):
    made = stages.plan(step[2], 2, 4, schedule=name)
    file = tmp_path / "schedule.csv"
    file.write_text("\n".join(made.actions()) + "\n")
    order = object.__new__(schedules.PipelineScheduleMulti)
    order.pipeline_order, order._n_microbatches = {}, 4
    read = []
    order._validate_and_set_stage_mapping = read.append
    order._load_csv(str(file))
    stage_of = {a.stage_index: rank for rank, row in read[0].items() for a in row}
    assert schedules._validate_schedule(read[0], 2, len(stage_of), 4) == stage_of


def trained(graph, plan, many):
    leaves = [torch.utils._pytree.tree_leaves(batch) for batch in many.batches]
    return stages.train(graph, plan, leaves)


@pytest.mark.parametrize(("name", "cls", "chunks"), OF_TORCH)
def test_a_file_that_torch_has_written_gives_what_one_device_gives(step, name, cls, chunks, tmp_path):
    _, many, graph = step
    text = "\n".join(order_of_torch(cls, 2, 4, chunks))
    plan = stages.plan(graph, 2, 4, schedule={"file": "own.csv", "text": text})
    _, parameters = trained(graph, plan, many)
    own, _ = stage_ranks.made("mlp")
    for batch in own.batches:
        own.step(*batch)
    for key, theirs in own.model.named_parameters():
        assert torch.allclose(parameters[key], theirs, atol=2e-5), key


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", {}, "stage 0: `0B1` is missing"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", {}, "stage 0: action 2 of its row, `0B0`, waits without end for `1B0`"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1F1\n", {}, "stage 1: `1F1` is action 3 and action 5"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1X1\n", {}, "stage 1: `1X1` is no action"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", {"micro_batches": 4}, "2 micro-batches for a step in 4"),
        ("0F0,0B0\n", {}, "a schedule of 1 stages for 2"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused(step, text, settings, said, tmp_path):
    file = tmp_path / "own.csv"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        step[2].plan(stages.MACHINE, mesh={"stages": 2}, schedule=str(file), **settings)
    assert said in str(caught.value)
    assert caught.value.code == "U0208"
    assert str(file) in str(caught.value)


def test_what_is_no_schedule_is_refused_with_the_names(step):
    with pytest.raises(ConfigurationError, match='"interleaved", "zb-h1"'):
        step[2].plan(stages.MACHINE, mesh={"stages": 2}, schedule="zb")
    with pytest.raises(ConfigurationError, match=r"cannot read the schedule `none\.csv`"):
        step[2].plan(stages.MACHINE, mesh={"stages": 2}, schedule="none.csv")
    with pytest.raises(ConfigurationError, match="the schedule `zb-h1` with 2 chunks on each stage"):
        step[2].plan(stages.MACHINE, mesh={"stages": 2}, schedule="zb-h1", chunks=2)


def test_several_chunks_on_a_stage_fill_the_pipeline_sooner():
    """Attention, whose backward has operations that no line of forward has: each runs in the chunk of what it reads."""
    torch.manual_seed(0)
    model = stage_ranks.Tied(layers=8).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x_BT, y_BT):
        loss = torch.nn.functional.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    batch = tuple(torch.randint(0, 40, (2, 8, 64)))
    graph = unisono.capture(train, model=model, optimizer=optimizer, example=batch)
    fast = stages.machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1, bandwidth=1e12)

    def idle(schedule, cuts):
        """The share of the step that the busiest stage waits."""
        settings = {"mesh": {"stages": 4}, "micro_batches": 8, "schedule": schedule, "cuts": cuts}
        plan = unisono.plans.Plan(graph.native.plan(fast, stages.msgpack.packb(settings)))
        return 1 - max(stage["busy_ns"] for stage in plan.stages["predicted"]) / plan.prediction["step_ns"]

    whole = idle("1f1b", ["layers.2", "layers.4", "layers.6"])
    for schedule in ("interleaved", "zb-v", "dualpipe-v"):
        found = idle(schedule, [f"layers.{number}" for number in range(1, 8)])
        print(schedule, found, whole)
        assert found < 0.8 * whole, (schedule, found, whole)
