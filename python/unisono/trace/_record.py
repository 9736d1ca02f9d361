"""Recording: PyTorch's profiler with the settings that all analyses need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unisono import _flight_recorder


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@contextmanager
def record(
    directory: str | Path,
    *,
    wait: int = 0,
    warmup: int = 1,
    active: int = 3,
    shapes: bool = True,
    stacks: bool = True,
    memory: bool = True,
    data_flow: bool = False,
) -> Iterator[Any]:
    """Records a trace of some steps, one file for each rank.

    Call ``step()`` on what the context gives after each training step::

        with unisono.trace.record("traces", active=3) as recording:
            for batch in batches:
                train_step(batch)
                recording.step()

    Then ``unisono trace summary traces`` says where the time goes. If the block raises, the flight recorder of this
    rank is written to ``rank<N>.flight``, for ``unisono trace hang``; releases of PyTorch that do not record by themselves are
    started with ``TORCH_FR_BUFFER_SIZE=2000``.

    Args:
        directory: where files go; it is made if it is not there.
        wait: steps before anything is recorded.
        warmup: steps that are recorded and thrown away.
        active: steps that are kept.
        shapes: record dimensions and types of operators' inputs.
        stacks: record Python functions and modules, which say where in the program something comes from.
        memory: record allocations and releases.
        data_flow: record which tensors operators read and write, in ``rank<N>.et.json`` (slow).

    Raises:
        ResourceError: the trace cannot be written.
    """
    from torch import profiler

    from unisono.errors import ResourceError

    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    rank = _rank()
    activities = [profiler.ProfilerActivity.CPU]
    if profiler.ProfilerActivity.CUDA in profiler.supported_activities():
        activities.append(profiler.ProfilerActivity.CUDA)

    observer = None
    if data_flow:
        observer = profiler.ExecutionTraceObserver()
        observer.register_callback(str(folder / f"rank{rank}.et.json"))

    def write(profile: Any) -> None:
        path = folder / f"rank{rank}.json.gz"
        try:
            profile.export_chrome_trace(str(path))
        except OSError as error:
            raise ResourceError("the trace cannot be written", place=str(path), cause=str(error)) from error

    try:
        with profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=write,
            record_shapes=shapes,
            with_stack=stacks,
            with_modules=stacks,
            profile_memory=memory,
            execution_trace_observer=observer,
        ) as recording:
            yield recording
    except BaseException:
        _flight_recorder.write(folder / f"rank{rank}.flight")
        raise
