"""Steps on a device of our own that finds what is not ordered, and what that device finds: see ``clocked.py``."""

from __future__ import annotations

import json
import re

import clocked
import launch
import processor
import pytest
from clocked_ranks import FROM_HOST, STAGES, STATE_ON_HOST, TRAININGS

ANOTHER = "elsewhere"

#: The first test of a machine builds the device.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def library():
    """The device, built once on a machine."""
    lacking = clocked.lacking()
    if lacking is not None:
        pytest.skip(lacking)
    return str(clocked.built())


def printed(function, ranks, folder, library, **settings):
    """The lines that each rank prints, by what stands before the first colon."""
    ended = launch.run(f"clocked_ranks:{function}", ranks, folder, 280, library=library, **settings)
    assert [one.status for one in ended] == [0] * ranks, ended[0].err[-3000:] + ended[-1].err[-3000:]
    lines = [[line.partition(": ") for line in one.out.splitlines()] for one in ended]
    return [{name: said for name, _, said in one} for one in lines]


# Models.


@pytest.fixture(scope="module")
def compared(library, tmp_path_factory):
    """What each rank found; the processes of a number of ranks start once."""
    found = {}

    def run(ranks, cases, **settings):
        if ranks not in found:
            folder = tmp_path_factory.mktemp(f"ranks{ranks}")
            count = 1 if ranks == "kernels" else ranks
            ended = launch.run(
                "clocked_ranks:compare_all", count, folder, 280, library=library, cases=cases, **settings
            )
            assert all(one.status == 0 for one in ended), ended[0].err[-3000:] + ended[-1].err[-3000:]
            found[ranks] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
        return found[ranks]

    return run


def assert_as_on_processors(found, kind, ranks, copies=0, is_offloaded=False):
    for rank, one in enumerate(found):
        assert "error" not in one, one["error"]
        assert one["device"] == f"{kind}:{rank}"
        assert one["faults"] == []
        assert one["waits"] == {}
        assert one["copies"] == copies
        # Parameters that begin at zero have made three small steps, whose rounding Adam magnifies.
        assert one["difference"] < 5e-5, one["worst"]
        assert (one["collectives"] > 0) == (ranks > 1)
        assert (one["offloaded"] > 0) == is_offloaded


ON_ONE = [*((make.__name__, "free") for make in TRAININGS), ("autocast", "free"), ("mlp", f"free{STATE_ON_HOST}")]
#: Batches of two tensors on the host, from which a rank takes its shards.
OF_HOST = [("mlp", f"batch cut{FROM_HOST}"), ("llama", f"state cut{FROM_HOST}"), ("experts", f"tensors cut{FROM_HOST}")]
ON_SEVERAL = [
    *((make.__name__, family) for make in TRAININGS for family in ("batch cut", "state cut", "tensors cut")),
    *(("gpt", family) for family in ("batch cut, sliced", "state cut, recomputed", "state cut, offloaded", STAGES)),
    ("llama", "batch cut, offloaded"),
    ("gpt", f"state cut{STATE_ON_HOST}"),
]
#: Ends the names of families in which something is on the host.
ON_HOST = ("offloaded", STATE_ON_HOST)
ON_FOUR = [case for case in ON_SEVERAL if case != ("llama", "batch cut, offloaded")]


@pytest.mark.parametrize(("model", "family"), ON_ONE)
def test_steps_on_a_device_under_another_name_with_fused_optimizers_are_as_on_processors(compared, model, family):
    found = compared(1, ON_ONE, name=ANOTHER, fused=True)
    is_offloaded = family.endswith(ON_HOST)
    assert_as_on_processors([one[f"{model}, {family}"] for one in found], ANOTHER, 1, is_offloaded=is_offloaded)


@pytest.mark.parametrize(("model", "family"), ON_SEVERAL)
def test_steps_on_two_devices_are_as_on_processors_and_all_is_ordered(compared, model, family):
    found = compared(2, ON_SEVERAL + OF_HOST)
    found = [one[f"{model}, {family}"] for one in found]
    assert_as_on_processors(found, clocked.NAME, 2, is_offloaded=family.endswith(ON_HOST))


@pytest.mark.parametrize(("model", "family"), OF_HOST)
def test_shards_of_batches_on_the_host_are_all_that_is_copied_from_there_and_nobody_waits(compared, model, family):
    found = compared(2, ON_SEVERAL + OF_HOST)
    assert_as_on_processors([one[f"{model}, {family}"] for one in found], clocked.NAME, 2, copies=2)


@pytest.mark.parametrize(("model", "family"), ON_FOUR)
def test_steps_on_four_devices_are_as_on_processors_and_all_is_ordered(compared, model, family):
    found = compared(4, ON_FOUR)
    found = [one[f"{model}, {family}"] for one in found]
    assert_as_on_processors(found, clocked.NAME, 4, is_offloaded=family.endswith(ON_HOST))


# Kernels of CUDA, which the processor runs where the device would.

KERNELS = [("mlp", "batch cut"), ("gpt", "batch cut"), ("llama", "batch cut")]


@pytest.mark.parametrize(("model", "family"), KERNELS)
def test_groups_of_a_step_run_as_kernels_of_cuda_and_all_is_ordered(compared, model, family):
    lacking = processor.lacking()
    if lacking is not None:
        pytest.skip(lacking)
    found = compared("kernels", KERNELS, processor=str(processor.built()))
    assert_as_on_processors([one[f"{model}, {family}"] for one in found], clocked.NAME, 1)
    assert found[0][f"{model}, {family}"]["launches"] > 0


def test_a_compiled_module_runs_kernels_of_cuda_and_is_as_on_processors(library, tmp_path):
    lacking = processor.lacking()
    if lacking is not None:
        pytest.skip(lacking)
    (said,) = printed("compile_one", 1, tmp_path, library, processor=str(processor.built()))
    assert (said["waits"], said["faults"]) == ("{}", "[]")
    assert float(said["difference"]) < 1e-5
    assert int(said["launches"]) > 4
    # What cannot be compiled runs as it is, and says why.
    assert "U0331" in said["stays"]
    assert float(said["difference without"]) < 1e-5
    assert said["launches without"] == "0"


def test_a_training_of_six_times_the_limit_of_a_rank_keeps_it_on_two_with_results_made_again_and_on_the_host(
    library, tmp_path
):
    for one in printed("hold_less", 2, tmp_path, library):
        assert int(one["measured"]) <= int(one["predicted"]) <= int(one["limit"])
        assert int(one["offloaded"]) > 0 and int(one["recomputed"]) > 0
        assert float(one["difference"]) < 5e-5
        assert one["ordered"] == "{} []"


def test_a_training_of_more_state_than_a_limit_leaves_keeps_it_with_some_of_that_on_the_host(library, tmp_path):
    (one,) = printed("hold_no_state", 1, tmp_path, library)
    # The allocator rounds up the count that each parameter has of its steps.
    assert int(one["measured"]) <= int(one["predicted"]) * 1.001 and int(one["predicted"]) <= int(one["limit"])
    assert int(one["state on the host"]) > 0
    assert float(one["difference"]) < 5e-5
    assert one["ordered"] == "{} []"


# What the device finds.


@pytest.fixture(scope="module")
def said(library, tmp_path_factory):
    """What the device says of faults that one rank commits."""
    (found,) = printed("faults_of_one_device", 1, tmp_path_factory.mktemp("faults"), library)
    return found


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("read", "`aten::add` on stream 0 reads what `aten::mul` on stream 4 writes, without waiting for it"),
        (
            "overwritten",
            "`aten::add` on stream 0 overwrites what `aten::mul` on stream 4 reads, without waiting for it",
        ),
        ("reused", "memory that `aten::mul` on stream 4 still reads is given out again on stream 0"),
        ("two devices", "`aten::mm`: tensors on clocked:0 and clocked:1 in one kernel"),
        ("host", "`aten::mm`: a tensor of cpu of shape [4, 4] in a kernel of clocked:0"),
        ("host in a list", "`aten::cat`: a tensor of cpu of shape [4, 4] in a list in a kernel of clocked:0"),
        ("number in a fused list", "`aten::_fused_adamw_`: a tensor of cpu of shape [] in a list"),
    ],
)
def test_a_planted_fault_is_found_with_the_names_of_the_operations(said, fault, words):
    assert words in said[fault]


@pytest.mark.parametrize(
    "right", ["read after a wait", "reused after record_stream", "number", "memory that was several tensors'"]
)
def test_nothing_is_found_where_all_is_ordered(said, right):
    assert said[right] == "nothing was found"


def test_collectives_are_ordered_only_by_their_waits_which_do_not_hold_up_the_host(library, tmp_path):
    for rank, one in enumerate(printed("faults_of_two_ranks", 2, tmp_path, library)):
        gather = "`all_gather_into_tensor` on stream 4"
        assert one["read"] == f"`aten::add` on stream {rank} reads what {gather} writes, without waiting for it"
        assert (
            one["overwritten"] == f"`aten::add` on stream {rank} overwrites what {gather} reads, without waiting for it"
        )
        assert one["after a wait"] == "nothing was found"
        assert one["functional"] == "{} [4.0, 4.0, 4.0, 4.0]"
        assert one["a program without waits"].startswith(f"`aten::add` on stream {rank} reads what `all_gather")
        assert one["a program with waits"] == "nothing was found"
        assert f"a tensor of clocked:{1 - rank} in the network of clocked:{rank}" in one["another's device"]


def test_numbers_are_beside_tensors_of_a_device_as_on_processors(library, tmp_path):
    (found,) = printed("numbers", 1, tmp_path, library)
    assert found == {"difference": "small", "faults": "[]"}


def test_what_has_the_host_wait_is_counted(library, tmp_path):
    (found,) = printed("counted", 1, tmp_path, library)
    assert found["item"] == "{'aten::_local_scalar_dense': 1}"
    assert found["to the host"] == "{'copy to host': 1}"
    assert found["from the host"] == "{'copy from host': 1}"
    assert found["from the host, not blocking"] == "{'copy from host': 1}"
    assert found["from pinned memory, not blocking"] == found["arithmetic"] == "{}"
    assert found["count"] == "{'aten::nonzero': 1}"
    assert "'aten::nonzero': 1" in found["mask"]
    assert found["device"] == "{'device': 1}"
    assert found["stream"] == "{'stream': 1}"
    assert found["fresh"] == "True"
    assert found["on the device"] == "True clocked:1"
    assert found["draws"] == "True False"
    assert found["of its own"] == "True"
    assert found["link"] == "host_bandwidth host_latency_ns host_memory_bytes True"


def test_numbers_by_a_counter_are_those_of_processors_and_their_key_has_nobody_wait(library, tmp_path):
    (found,) = printed("draw_by_counter", 1, tmp_path, library)
    assert found["cpu"] == found["clocked"] == "{} []"
    assert (found["drawn on cpu"], found["drawn on clocked"]) == ("own", "proxy")
    assert float(found["difference"]) < 1e-5


def test_kernels_of_cuda_draw_numbers_by_a_counter(library, tmp_path):
    lacking = processor.lacking()
    if lacking is not None:
        pytest.skip(lacking)
    (found,) = printed("draw_by_counter", 1, tmp_path, library, processor=str(processor.built()))
    assert found["cpu"] == found["clocked"] == "{} []"
    assert found["drawn on clocked"] == "own"
    assert float(found["difference"]) < 1e-5


def test_a_checkpoint_is_written_and_read_there(library, tmp_path):
    for one in printed("save_and_load", 2, tmp_path, library):
        assert one["losses"] == "True True []"


def test_a_device_without_an_element_type_is_refused_with_the_line_that_needs_it(library, tmp_path):
    (found,) = printed("lack_a_type", 1, tmp_path, library)
    assert found["nothing"] == "was refused"
    assert re.fullmatch(
        r"clocked has no float64, which the step computes with clocked_ranks.py:\d+ this device does not support Double",
        found["U0326"],
    )


def test_a_process_group_without_a_network_for_the_device_is_refused(library, tmp_path):
    for one in printed("train_without_a_network", 2, tmp_path, library):
        assert one["U0323"] == "the process group has no network for tensors on clocked: it has `cpu:gloo`"


def test_steps_that_are_replayed_as_graphs_are_as_on_processors_whatever_changes_between_them(library, tmp_path):
    (found,) = printed("replay", 1, tmp_path, library)
    assert set(found) == {"mlp", "gpt", "experts"}
    for said in found.values():
        worst, quiet, replays, state = said.split("|")
        assert float(worst) < 5e-5
        # The first step runs as it is; a parameter has moved before the fifth.
        assert (quiet, replays, state) == ("{} []", "5", "a graph, captured 2 times")


def test_what_cannot_be_a_graph_says_why_and_the_device_forbids_what_a_capture_does_not_allow(library, tmp_path):
    (found,) = printed("refuse_graphs", 1, tmp_path, library)
    assert found["mlp on cpu"] == "not a graph: the processor has no graphs"
    assert found["convolutions on clocked"].startswith("not a graph: it draws random numbers")
    # Its optimizer is not fused there, and counts its steps on the host.
    assert re.fullmatch(r"not a graph: `optimizer\.\S+\.step` is on the host, .*", found["mlp on clocked"])
    for act in ("waiting", "copying", "drawing"):
        assert found[act].startswith("the capture failed: "), found[act]
    assert found["arithmetic"] == "nothing was found"
    assert found["as it was"] == "[1.0, 1.0, 1.0, 1.0]"


def test_steps_with_collectives_are_no_graphs_yet(library, tmp_path):
    for one in printed("refuse_graphs", 2, tmp_path, library):
        assert one["mlp on clocked"].startswith("not a graph: it has collectives")


def test_pytorch_itself_trains_there_as_on_processors(library, tmp_path):
    ((found,),) = (one.items() for one in printed("train_eagerly", 1, tmp_path, library))
    worst, faults = found[0].split()
    assert float(worst) < 1e-5
    assert faults == "0"
