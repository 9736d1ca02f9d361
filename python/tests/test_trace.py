"""Real traces, recorded here on processors, say what was put into them."""

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
        time.sleep(0.05)
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
    assert path["by_rank_us"]["1"] > 40_000


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
