"""Traces and their analyses, as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from unisono import _native
from unisono.trace import _records as records

Record = dict[str, Any]


R = TypeVar("R")


class Table(list[R], Generic[R]):
    """A list of records, all with the same keys. Times are microseconds unless a key says otherwise."""

    def to_pandas(self) -> Any:
        """The records as a ``pandas.DataFrame``. Raises ``ImportError`` without pandas."""
        import pandas as pd

        return pd.DataFrame.from_records(self)

    def to_polars(self) -> Any:
        """The records as a ``polars.DataFrame``. Raises ``ImportError`` without polars."""
        import polars as pl

        return pl.DataFrame(list(self), infer_schema_length=None)


def load(
    paths: str | Path | Sequence[str | Path],
    *,
    compat: str | None = None,
    include_last_step: bool = False,
    cache: bool = True,
) -> Trace:
    """Reads traces.

    Args:
        paths: trace files (``.json``, ``.json.gz``), one for each rank, or directories of them.
        compat: ``"hta"`` gives the numbers of Holistic Trace Analysis 0.5.0; by default they are exact.
        include_last_step: with ``compat``, keeps the last profiler step.
        cache: keep the columns of large traces in ``~/.cache/unisono/traces``, and take them from there the next time.

    Raises:
        ConfigurationError: a file is missing, or is no trace.
    """
    return Trace(paths, compat=compat, include_last_step=include_last_step, cache=cache)


class Trace:
    """The traces of all ranks of a run."""

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        compat: str | None = None,
        include_last_step: bool = False,
        cache: bool = True,
    ) -> None:
        """See :func:`load`."""
        if compat not in (None, "hta"):
            from unisono.errors import ConfigurationError

            raise ConfigurationError(f"there is no compatible mode {compat!r}", code="U0012", hint='use None or "hta"')
        single = isinstance(paths, str | Path)
        files = [str(path) for path in ([paths] if single else paths)]  # type: ignore[list-item]
        folder = Path.home() / ".cache" / "unisono" / "traces"
        self._native = _native.Timeline(files, str(folder) if cache else None)
        self._compat, self._include_last_step = compat == "hta", include_last_step

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a trace, ascending."""
        return self._native.ranks()

    @property
    def notes(self) -> list[str]:
        """What is wrong with the traces and was put up with."""
        return self._native.notes()

    def __len__(self) -> int:
        """The number of events of all ranks."""
        return self._native.events()

    def analyse(self, *analyses: str, **options: Any) -> Record:
        """Runs analyses by name, such as ``"temporal_breakdown"`` or ``"collectives"``; the result has their keys."""
        return json.loads(
            self._native.analyse(json.dumps(analyses), json.dumps(options), self._compat, self._include_last_step)
        )

    def findings(self) -> Table[records.Finding]:
        """What is wrong, most costly first: at most five records with title, evidence, share (per cent) and action."""
        return Table(self.analyse("findings").get("findings", []))

    def get_temporal_breakdown(self) -> Table[records.TemporalBreakdown]:
        """Busy and idle time of each rank's devices."""
        return Table(self.analyse("temporal_breakdown")["temporal_breakdown"])

    def get_gpu_kernel_breakdown(
        self, duration_ratio: float = 0.8, num_kernels: int = 10, include_memory_kernels: bool = False
    ) -> tuple[Table[records.KindTime], Table[records.KernelTime]]:
        """Time by kind of kernel over all ranks, and time by kernel of each rank."""
        options = {"duration_ratio": duration_ratio, "num_kernels": num_kernels}
        tables = self.analyse("kernel_breakdown", include_memory_kernels=include_memory_kernels, **options)
        kinds, kernels = tables["kernel_breakdown"]
        return Table(kinds), Table(kernels)

    def get_comm_comp_overlap(self) -> Table[records.Overlap]:
        """How much of the communication computation hides, in per cent, by rank."""
        return Table(self.analyse("comm_comp_overlap")["comm_comp_overlap"])

    def get_idle_time_breakdown(
        self, consecutive_kernel_delay: float = 30.0
    ) -> tuple[Table[records.IdleTime], Table[records.IdleGaps]]:
        """Idle time by rank, stream and cause, and its gaps; those up to the delay (us) are the device's own."""
        times, gaps = self.analyse(
            "idle_time_breakdown", consecutive_kernel_delay=round(1000 * consecutive_kernel_delay)
        )["idle_time_breakdown"]
        return Table(times), Table(gaps)

    def get_queue_length_summary(self) -> Table[records.QueueLength]:
        """How many launches wait, by rank and stream."""
        return Table(self.analyse("queue")["queue_length_summary"] or [])

    def get_time_spent_blocked_on_full_queue(self, max_queue_length: int = 1024) -> Table[Record]:
        """How long queues were full."""
        result = self.analyse("queue", max_queue_length=max_queue_length)
        return Table(result[f"blocked_on_full_queue_{max_queue_length}"])

    def get_memory_bw_summary(self) -> Table[records.MemoryBandwidth]:
        """Bandwidth of copies and fills, by rank and kind."""
        return Table(self.analyse("memory_bandwidth")["memory_bw_summary"] or [])

    def get_cuda_kernel_launch_stats(
        self, runtime_cutoff: float = 50.0, launch_delay_cutoff: float = 100.0
    ) -> Table[Record]:
        """Launches of each rank: short kernels, slow calls, long delays. Cutoffs are in us."""
        cutoffs = {"runtime": round(1000 * runtime_cutoff), "launch_delay": round(1000 * launch_delay_cutoff)}
        stats = self.analyse("launch_stats", cutoffs=cutoffs)["cuda_kernel_launch_stats"]
        return Table({"rank": int(rank), **row} for rank, row in stats.items())

    def get_gpu_user_annotation_breakdown(
        self, use_gpu_annotation: bool = True
    ) -> Table[records.AnnotationTime] | None:
        """Time of each annotation, on the device or on the host; ``None`` without any."""
        side = "gpu" if use_gpu_annotation else "cpu"
        table = self.analyse("user_annotations")[f"user_annotation_breakdown_{side}"]
        return None if table is None else Table(table)

    def get_aten_op_kernels_and_delay(self) -> dict[int, Table[records.OperatorKernels]]:
        """Operators with the kernels that they launch, by rank."""
        tables = self.analyse("operators")["aten_op_kernels_and_delay"] or {}
        return {int(rank): Table(table) for rank, table in tables.items()}

    def get_frequent_cuda_kernel_sequences(
        self, operator_name: str, min_pattern_len: int = 3, rank: int | None = None, top_k: int = 5
    ) -> Table[records.KernelSequence]:
        """Kernel sequences that recur below operators whose name contains ``operator_name``."""
        options = {"min_pattern_len": min_pattern_len, "top_k": top_k, "rank": rank}
        return Table(self.analyse("call_graph", op=operator_name, **options)["frequent_kernel_sequences"]["top"])

    def get_profiler_steps(self) -> list[int]:
        """The numbers of the profiler's steps."""
        return self.analyse("profiler_steps")["profiler_steps"]

    def get_potential_stragglers(self, num_candidates: int = 2) -> list[int]:
        """Ranks that are most often the last to start a collective; empty where that cannot be told."""
        return self.analyse("potential_stragglers", num_stragglers=num_candidates)["potential_stragglers"] or []

    def _table(self, what: str, query: Record | None = None, index: int = 0) -> Table[Record]:
        text = json.dumps(query or {})
        return Table(json.loads(self._native.table(what, text, index, self._compat, self._include_last_step)))

    def events(self, **query: Any) -> Table[Record]:
        """Events with their place in the call graph: index, ts, dur, parent, depth, kernels below, module and line.

        Args:
            query: what narrows the choice: ``rank``, ``name`` (a part of it), ``category``, ``device`` (bool), ``stream``,
                ``iteration``, ``from`` and ``to`` (us), ``under`` (an index: it and all below), ``limit``.
        """
        return self._table("events", query)

    def get_trace(self, rank: int) -> Table[Record]:
        """All events of a rank."""
        return self.events(rank=rank)

    def get_stack_of_node(self, index: int, rank: int | None = None) -> Table[Record]:
        """The event at ``index`` of its file with all that enclose it, outermost first."""
        return self._table("stack", {"rank": rank}, index)

    def get_queue_length_time_series(self) -> dict[int, Table[Record]]:
        """Every change of the queues of each rank."""
        return _by_rank(self._table("queue_length"))

    def get_memory_bw_time_series(self) -> dict[int, Table[Record]]:
        """Every change of the bandwidth of copies of each rank."""
        return _by_rank(self._table("memory_bw"))

    def get_gpu_kernels_with_user_annotations(self, rank: int | None = None) -> Table[Record] | None:
        """Kernels and their time by the shortest annotation around them; ``None`` without any."""
        table = self.analyse("user_annotations", rank=rank)["kernels_with_user_annotations"]
        return None if table is None else Table(table)

    def get_cupti_counter_data_with_operators(self, rank: int | None = None) -> Table[Record] | None:
        """Ranges with hardware counters and the operators around them; ``None`` where they cannot be paired."""
        table = self.analyse("counters", rank=rank)["cupti"]
        return None if table is None else Table(table)

    def forward_backward(self) -> Table[records.ForwardBackward]:
        """Forward operators with their backwards: times on both sides, module and line. Empty with ``compat``."""
        return Table(self.analyse("forward_backward").get("forward_backward", []))

    def data_flow(self) -> Table[records.DataFlow]:
        """Bytes that went from operator to operator, from execution traces beside the traces. Empty with ``compat``."""
        return Table(self.analyse("data_flow").get("data_flow", []))

    def python_tree(self) -> Table[records.PythonNode]:
        """Python functions with their callees below them: calls, time, kernels. Empty with ``compat``."""
        return Table(self.analyse("python").get("python_tree", []))

    def export(
        self,
        file: str | Path,
        *,
        rank: int | None = None,
        window: tuple[float, float] | None = None,
        name: str = "",
        counters: bool = False,
        critical_path: tuple[str, int] | None = None,
    ) -> None:
        """Writes the traces, or a part of them, as one file for a trace viewer; nothing that the files say is lost.

        Args:
            file: where to.
            rank: only this rank.
            window: only what overlaps these microseconds since the first event.
            name: only events whose name contains this.
            counters: add curves of queue lengths and bandwidths.
            critical_path: add the path of this annotation's instance, as arrows; its events get the argument ``critical``.
        """
        self._native.export(str(file), rank, window, name, counters, critical_path)

    def generate_trace_with_counters(self, output_file: str | Path, rank: int | None = None) -> None:
        """Writes the traces with curves of queue lengths and bandwidths."""
        self.export(output_file, rank=rank, counters=True)

    def overlay_critical_path_analysis(
        self, output_file: str | Path, annotation: str = "ProfilerStep", instance_id: int = 0, rank: int | None = None
    ) -> None:
        """Writes the traces with the critical path as arrows."""
        self.export(output_file, rank=rank, critical_path=(annotation, instance_id))

    def critical_path_analysis(
        self, rank: int | None = None, annotation: str = "ProfilerStep", instance_id: int = 0
    ) -> Record | None:
        """The critical path of an instance of an annotation: across all ranks, or, with ``compat``, of one rank."""
        return self.analyse("critical_path", rank=rank, annotation=annotation, instance=instance_id)["critical_path"]

    def collectives(self) -> Record:
        """Collectives matched across ranks: waiting, culprits, clocks, bandwidths. Empty with ``compat``."""
        return self.analyse("collectives").get("collectives", {})

    def exposed_communication(self) -> Table[records.ExposedCommunication]:
        """Communication that no computation hides, by operation, module and source line."""
        return Table(self.analyse("exposed").get("exposed_communication", []))

    def memory(self) -> Table[records.DeviceMemory]:
        """Memory of each device: peak, who holds it, growth from step to step. Sizes are bytes."""
        return Table(self.analyse("memory").get("memory", []))

    def what_if(self, *changes: str, annotation: str = "ProfilerStep", instance: int = 0) -> Record:
        """The step's time with changes such as ``"kernel:gemm=0.5"``, ``"collective:=0.5"``, ``"launch=0"``."""
        return json.loads(self._native.what_if(list(changes), annotation, instance))

    def diff(self, after: Trace) -> Record:
        """What takes longer or shorter in ``after`` by more than the noise, per operation and shape."""
        return json.loads(self._native.diff(after._native))

    def compare_traces(
        self,
        test: Trace,
        device: str = "ALL",
        *,
        control_rank: int | None = None,
        test_rank: int | None = None,
        control_iteration: int | None = None,
        test_iteration: int | None = None,
        use_short_name: bool = False,
    ) -> Table[Record]:
        """Counts and durations by name in one iteration of one rank of both: the first, where none is named.

        ``device`` is ALL, CPU or GPU.
        """
        control, other = (control_rank, control_iteration), (test_rank, test_iteration)
        return Table(json.loads(self._native.compare(test._native, device, control, other, use_short_name))["table"])

    def ops_diff(self, test: Trace, device: str = "ALL") -> dict[str, list[str]]:
        """Names that are added, deleted, increased, decreased and unchanged in ``test``, by their counts."""
        return json.loads(self._native.compare(test._native, device, (None, None), (None, None), False))["ops"]


def _by_rank(table: Table[Record]) -> dict[int, Table[Record]]:
    ranks: dict[int, Table[Record]] = {}
    for row in table:
        ranks.setdefault(row["rank"], Table()).append(row)
    return ranks


def memory_timeline(path: str | Path) -> Record:
    """Sums up the profiler's own memory timeline (``*.raw.json.gz``) by category: ``categories``, ``points``, ``peak_bytes``."""
    return json.loads(_native.memory_timeline(str(path)))


def diagnose_hang(dumps: Mapping[int, bytes | str | Path] | Iterable[tuple[int, bytes | str | Path]]) -> Record:
    """Says which rank has not arrived at which collective.

    Args:
        dumps: for each rank that left one, its flight recorder's dump or the path of it. Dumps are read as plain data:
            nothing in them is executed.

    Returns:
        ``ranks`` and ``findings``, each with problem, group, sequence, ranks, message, hint and source lines.
    """
    pairs: Any = dumps.items() if isinstance(dumps, Mapping) else dumps
    contents = [(rank, dump if isinstance(dump, bytes) else Path(dump).read_bytes()) for rank, dump in pairs]
    return json.loads(_native.diagnose_hang(contents))
