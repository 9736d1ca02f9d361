"""Real traces, recorded here on processors, say what was put into them."""

import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from unisono import errors, trace

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from unisono import trace

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def load_slowly():
    if rank == 1:
        time.sleep(0.5)
    return torch.randn(16, 64)

with trace.record(sys.argv[1], warmup=1, active=3) as recording:
    for _ in range(4):
        batch = load_slowly()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        recording.step()
if len(sys.argv) > 2:
    try:
        with trace.record(sys.argv[1]):
            if rank == 0:
                dist.all_reduce(torch.ones(7), async_op=True)
            # rank 1 lives on while rank 0 waits, or the collective would fail instead of hanging
            time.sleep(0.5 + 2 * rank)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        os._exit(0)
dist.destroy_process_group()
"""


def run_ranks(folder: Path, *extra: str) -> None:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(program), str(folder / "traces"), *extra],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    run_ranks(folder, "hang")
    return folder / "traces"


def test_the_slow_rank_is_named_with_its_source_line(recorded: Path) -> None:
    recording = trace.load(sorted(recorded.glob("*.json.gz")))
    assert recording.ranks == [0, 1]
    waiting = recording.collectives()
    assert waiting["matched"] > 0
    late = max(waiting["ranks"], key=lambda row: row["caused"])
    assert late["rank"] == 1
    assert any(
        "load_slowly" in (reason["line"] or reason["name"]) or "sleep" in reason["name"] for reason in late["reasons"]
    )


def test_the_critical_path_is_as_long_as_the_step(recorded: Path) -> None:
    path = trace.load(recorded).critical_path_analysis()
    assert path is not None
    assert path["total_duration"] == pytest.approx(path["wall"], rel=0.01)
    assert path["by_rank_us"]["1"] > 400_000


def test_memory_has_a_peak_and_owners(recorded: Path) -> None:
    memory = trace.load(recorded).memory()
    assert {row["rank"] for row in memory} == {0, 1}
    assert all(row["peak_bytes"] > 0 and row["at_peak"] for row in memory)


def test_the_missing_rank_is_found_in_flight_recorders(recorded: Path) -> None:
    dumps = {rank: recorded / f"rank{rank}.flight" for rank in (0, 1)}
    findings = trace.diagnose_hang(dumps)["findings"]
    assert findings[0]["problem"] == "not_arrived"
    assert findings[0]["ranks"] == [1]
    assert "program.py" in findings[0]["others"][0]["line"]


def test_tables_become_data_frames(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # stands in for pandas and polars, which need not be installed
    stand_in = types.ModuleType("pandas")
    stand_in.DataFrame = types.SimpleNamespace(from_records=lambda rows: [row["rank"] for row in rows])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    assert set(trace.load(recorded).exposed_communication().to_pandas()) == {0, 1}


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("hello")
    with pytest.raises(errors.ConfigurationError, match="no profiler trace"):
        trace.load(tmp_path)
    (tmp_path / "x.json").write_text('[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]')
    small = trace.load(tmp_path)
    with pytest.raises(errors.ConfigurationError, match="no change"):
        small.what_if("nonsense", annotation="")


def test_what_the_program_did_is_answered(recorded: Path) -> None:
    recording = trace.load(recorded)
    pairs = {(row["forward"], row["backward"]) for row in recording.forward_backward()}
    assert any(forward == "aten::addmm" and "AddmmBackward0" in backward for forward, backward in pairs), pairs
    tree = recording.python_tree()
    assert any("program.py" in row["name"] and row["depth"] == 0 for row in tree)
    assert all(row["own"] <= row["time"] for row in tree)


def test_events_are_filtered_and_know_what_encloses_them(recorded: Path) -> None:
    recording = trace.load(recorded)
    products = recording.events(rank=0, name="aten::addmm", category="cpu_op")
    assert products and all(row["rank"] == 0 and "addmm" in row["name"] for row in products)
    stack = recording.get_stack_of_node(products[0]["index"], rank=0)
    assert stack[-1]["index"] == products[0]["index"]
    assert any(row["name"].startswith("nn.Module: Linear") for row in stack)
    assert [row["depth"] for row in stack] == list(range(len(stack)))
    below = recording.events(rank=0, under=stack[0]["index"])
    assert {row["index"] for row in stack} <= {row["index"] for row in below}


def test_an_exported_trace_says_the_same_and_holds_the_critical_path(recorded: Path, tmp_path: Path) -> None:
    recording = trace.load(recorded)
    recording.overlay_critical_path_analysis(tmp_path / "both.json")
    both = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "critical_path" for event in both)
    assert {event["pid"].split(",")[0] for event in both if event.get("args", {}).get("critical")} >= {"rank 1"}
    recording.generate_trace_with_counters(tmp_path / "one.json", rank=1)
    again = trace.load(tmp_path / "one.json")
    assert again.ranks == [1]
    assert len(again) == len(recording.get_trace(1))


def test_names_of_other_tools_answer(recorded: Path) -> None:
    recording = trace.load(recorded)
    assert recording.get_profiler_steps() == [1, 2, 3]
    # the traces of processors have no device events: tables are empty or absent, nothing fails
    assert recording.get_temporal_breakdown() == []
    assert recording.get_queue_length_time_series() == {}
    assert recording.get_memory_bw_time_series() == {}
    assert recording.get_gpu_kernels_with_user_annotations() is None
    assert recording.get_cupti_counter_data_with_operators() is None
    assert any("no device events" in note for note in recording.notes)
    names = {row["name"] for row in recording.compare_traces(recording, "CPU", use_short_name=True)}
    assert "aten::addmm" in names
    assert recording.ops_diff(recording)["added"] == []
    assert recording.diff(recording)["changes"] == []


def test_data_flow_comes_from_an_execution_trace_beside_the_trace(tmp_path: Path) -> None:
    # In a process of its own: the observer of executions sees what earlier tests have left in the process.
    program = f"""
import torch, unisono.trace as trace
model = torch.nn.Linear(8, 4)
with trace.record({str(tmp_path)!r}, warmup=0, active=1, data_flow=True) as recording:
    model(torch.randn(2, 8)).relu().sum().backward()
    recording.step()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert (tmp_path / "rank0.et.json").is_file()
    flows = {(row["producer"], row["consumer"]): row["bytes"] for row in trace.load(tmp_path).data_flow()}
    # 2 x 4 numbers of 4 bytes go from the layer to its activation
    assert flows[("aten::addmm", "aten::clamp_min")] == 32
    assert any(producer is None and consumer == "aten::addmm" for producer, consumer in flows)


def test_a_memory_timeline_is_summed_up_by_category(tmp_path: Path) -> None:
    path = tmp_path / "memory.raw.json"
    path.write_text(json.dumps([[-1, 0, 100, 0], [50, 1, 10, 4], [60, 1, 30, 5], [70, 3, -10, 4]]))
    curve = trace.memory_timeline(path)
    assert curve["peak_bytes"] == 140
    assert curve["points"][-1] == [70, [100, 0, 0, 0, 0, 30, 0, 0]]
    path.write_text("[[1, 2]]")
    with pytest.raises(errors.ConfigurationError, match="memory timeline"):
        trace.memory_timeline(path)


def test_records_have_the_keys_of_their_types(recorded: Path) -> None:
    recording, types_ = trace.load(recorded), trace.records
    for table, kind in [
        (recording.findings(), types_.Finding),
        (recording.exposed_communication(), types_.ExposedCommunication),
        (recording.memory(), types_.DeviceMemory),
        (recording.forward_backward(), types_.ForwardBackward),
        (recording.python_tree(), types_.PythonNode),
        (recording.critical_path_analysis()["top"], types_.PathRow),  # type: ignore[index]
    ]:
        assert table and set(table[0]) == set(kind.__annotations__), kind
