"""The records of analyses, as types: what `docs/trace/schema.json` says, for editors and type checkers."""

from __future__ import annotations

from typing import Any, TypedDict


class Finding(TypedDict):
    """What is wrong, with its evidence, its share of the time in per cent, and what to do."""

    action: str
    analysis: str
    evidence: str
    rank: int | None
    share: float
    title: str


TemporalBreakdown = TypedDict(
    "TemporalBreakdown",
    {
        "compute_time(us)": float,
        "compute_time_pctg": float,
        "idle_time(us)": float,
        "idle_time_pctg": float,
        "kernel_time(us)": float,
        "non_compute_time(us)": float,
        "non_compute_time_pctg": float,
        "rank": int,
    },
)
"""Busy and idle time of a rank's devices."""


class KindTime(TypedDict):
    """Time of kinds of kernels that run at once."""

    kernel_type: str
    percentage: float
    sum: float


KernelTime = TypedDict(
    "KernelTime",
    {
        "count": int,
        "kernel_type": str,
        "max (us)": float,
        "mean (us)": float,
        "min (us)": float,
        "name": str,
        "rank": int,
        "stddev": float,
        "sum (us)": float,
    },
)
"""Time of a kernel on a rank."""


class Overlap(TypedDict):
    """How much of a rank's communication computation hides."""

    comp_comm_overlap_pctg: float
    rank: int


class IdleTime(TypedDict):
    """Idle time of a stream by cause."""

    idle_category: str
    idle_time: float
    idle_time_ratio: float
    rank: int
    stream: int


IdleGaps = TypedDict(
    "IdleGaps",
    {
        "25%": float,
        "50%": float,
        "75%": float,
        "count": int,
        "idle_category": str,
        "max": float,
        "mean": float,
        "min": float,
        "rank": int,
        "std": float,
        "stream": int,
    },
)
"""The gaps of a stream by cause."""


QueueLength = TypedDict(
    "QueueLength",
    {
        "queue_length/25%": float,
        "queue_length/50%": float,
        "queue_length/75%": float,
        "queue_length/count": float,
        "queue_length/max": float,
        "queue_length/mean": float,
        "queue_length/min": float,
        "queue_length/std": float,
        "rank": int,
        "stream": int,
    },
)
"""The queue of a stream."""


MemoryBandwidth = TypedDict(
    "MemoryBandwidth",
    {
        "memory_bw_gbps/25%": float,
        "memory_bw_gbps/50%": float,
        "memory_bw_gbps/75%": float,
        "memory_bw_gbps/count": float,
        "memory_bw_gbps/max": float,
        "memory_bw_gbps/mean": float,
        "memory_bw_gbps/min": float,
        "memory_bw_gbps/std": float,
        "name": str,
        "rank": int,
    },
)
"""Bandwidth of a kind of copy."""


AnnotationTime = TypedDict(
    "AnnotationTime",
    {
        "count": int,
        "max (us)": float,
        "mean (us)": float,
        "min (us)": float,
        "name": str,
        "rank": int,
        "stddev": float,
        "sum (us)": float,
    },
)
"""Time of an annotation on a rank."""


class OperatorKernels(TypedDict):
    """Calls of an operator that launch the same kernels."""

    aten_op_name: str
    avg_aten_op_launch_delay: float
    avg_runtime_delay: float
    kernel_sequence: str
    occurrence_count: int


KernelSequence = TypedDict(
    "KernelSequence",
    {
        "CPU op duration (us)": float,
        "GPU kernel duration (us)": float,
        "count": int,
        "pattern": str,
    },
)
"""A sequence of kernels below calls of one name."""


PathRow = TypedDict(
    "PathRow",
    {
        "class": str,
        "count": int,
        "line": str | None,
        "module": str | None,
        "name": str,
        "percent": float,
        "rank": int,
        "time": float,
    },
)
"""A part of the critical path."""


class ExposedCommunication(TypedDict):
    """Communication that nothing hides, of one origin."""

    count: int
    exposed: float
    line: str | None
    module: Any
    operation: str
    percent: float
    rank: int
    time: float


class DeviceMemory(TypedDict):
    """Memory of a device."""

    at_peak: list[dict[str, Any]]
    before_bytes: int
    curve: list[list[float]]
    device: str
    growth_per_step: int
    never_released: list[dict[str, Any]]
    peak_bytes: int
    peak_time: float
    rank: int
    step_ends: list[dict[str, Any]]


class ForwardBackward(TypedDict):
    """Forward operators with their backwards."""

    backward: str
    backward_kernels: float
    backward_time: float
    count: int
    forward: str
    forward_kernels: float
    forward_time: float
    line: str | None
    module: str | None
    rank: int


class DataFlow(TypedDict):
    """Bytes that went from operator to operator."""

    bytes: int
    consumer: str
    count: int
    line: str
    module: str | None
    producer: str | None
    rank: int


class PythonNode(TypedDict):
    """Calls of a Python function along one path."""

    count: int
    depth: int
    kernel_time: float
    kernels: int
    name: str
    own: float
    rank: int
    time: float
