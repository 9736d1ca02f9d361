"""Steps as graphs of a device: what a step launches is captured once and replayed as one, so that the host launches nothing else.

A replay works on the addresses of the capture. So what is passed to each step is written into tensors that stay, numbers such as learning
rates too, and a step whose state has moved is captured anew. What a step returns lies in memory of the graph, and is copied.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from unisono import _cuda, _devices
from unisono._executor import Executor
from unisono._message import unpack
from unisono.errors import UnisonoError

#: The most captures of one step; one whose state moves more often is not worth them.
_MOST = 8
#: The networks whose collectives may be part of a graph.
_CAPTURED = ("nccl",)


def why_not(
    program: Any,
    device: torch.device,
    state: Mapping[str, torch.Tensor],
    *,
    network: str | None,
    draws: bool,
    copies: bool,
) -> str | None:
    """Why the lowered program of a rank cannot be a graph of its device, if so.

    Args:
        program: the program.
        device: the device.
        state: what lives on from step to step, by name.
        network: what connects the rank with others, if there are any.
        draws: whether the step draws random numbers of PyTorch's generator.
        copies: whether it copies to the host and back.
    """
    if device == _devices.HOST:
        return "the processor has no graphs"
    if _new_graph(device) is None:
        return f"PyTorch {torch.__version__} has no graphs of {device.type}"
    if network not in (None, *_CAPTURED):
        return f"it has collectives, which {network} does not let be captured"
    if draws:
        return "it draws random numbers of PyTorch's generator, whose state a replay may leave behind"
    if copies:
        return "it copies to the host and back by streams of its own"
    if any(name == "unisono::group_bounds" for name, _ in program.instructions()):
        return "the host reads how many rows the experts of each rank have, which a replay does not"
    of_host = next((name for name, tensor in state.items() if tensor.device == _devices.HOST), None)
    if of_host is not None:
        return f"`{of_host}` is on the host, where a replay changes nothing"
    return _python_of_others(program)


def _new_graph(device: torch.device) -> Any:
    """An empty graph of a device, or none where it has no graphs, which PyTorch says only when it makes one."""
    make: Any = getattr(torch.accelerator, "Graph", None)
    try:
        if make is not None:
            return make(capture_error_mode=_cuda.CAPTURE_ERRORS)
    except RuntimeError:
        return None
    # Before 2.13, which has graphs of any accelerator.
    return _cuda.Graph() if _cuda.is_meant(device) else None


def take_kernels(device: torch.device) -> bool:
    """Whether what the driver is asked to launch becomes part of a graph of a device, as on CUDA: what stands in for it does not."""
    return device.type not in _cuda.STAND_INS


def _python_of_others(program: Any) -> str | None:
    """Operations of others that Python calls may do what no device sees."""
    called = {one["op"] for one in unpack(program.python_calls("-"))}
    others = sorted(name for name in called if not name.startswith(("aten::", "prims::")))
    return f"Python calls `{others[0]}`, which may do what a replay does not" if others else None


#: All that may have a graph.
_alive: weakref.WeakSet[Replayed] = weakref.WeakSet()


@functools.cache
def _end_before_networks() -> None:
    """Has graphs end before the process groups whose collectives they hold: a network waits for them for ever."""
    for module in (dist, dist.distributed_c10d):
        setattr(module, "destroy_process_group", _behind_graphs(module.destroy_process_group))  # noqa: B010


def _behind_graphs(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def ended(*arguments: Any, **named: Any) -> None:
        for one in list(_alive):
            one.forget()
        end(*arguments, **named)

    return ended


class Replayed:
    """Runs the steps of an executor, the first as they are, and from the second on as a graph of the device.

    Attributes:
        captures: how often the step was captured.
        failed: why it could not be captured, if it could not; steps run as they are from then on.
    """

    def __init__(self, executor: Executor, device: torch.device, state: Callable[[], Sequence[torch.Tensor]]) -> None:
        """Takes a program that was lowered with ``live`` numbers, and what gives the tensors of state as they are bound."""
        self._executor, self._device, self._state = executor, device, state
        self._stream: Any = None
        self._inputs: list[torch.Tensor] = []
        self._returned: list[torch.Tensor] = []
        self._graph: Any = None
        #: How often state was bound, and where it is.
        self._addresses: list[int] | None = None
        self.captures, self.failed = 0, None
        _alive.add(self)

    def forget(self) -> None:
        """Lets go of the graph; the next step captures it anew."""
        self._graph, self._returned = None, []

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs one step and returns what it returns, in memory of its own."""
        addresses = [self._executor.bindings, *(tensor.data_ptr() for tensor in self._state())]
        before, self._addresses = self._addresses, addresses
        if self._graph is not None and before == addresses:
            self._take(inputs)
        elif before is not None and self.failed is None:
            self._capture(inputs)
        if self._graph is None:
            return self._executor([self._number(one) for one in inputs])
        self._graph.replay()
        return [tensor.clone() for tensor in self._returned]

    def _number(self, given: torch.Tensor) -> torch.Tensor:
        """What is passed; a number of the host as a tensor of the device, which it reaches as an argument of a kernel."""
        is_number = given.device == _devices.HOST and not given.dim()
        return torch.full((), given.item(), dtype=given.dtype, device=self._device) if is_number else given

    def _take(self, inputs: Sequence[torch.Tensor]) -> None:
        """Writes what is passed into the tensors that the graph reads."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(self._number(given))

    def _capture(self, inputs: Sequence[torch.Tensor]) -> None:
        """Captures the step on a stream of its own; what it would do is not done."""
        self._graph = None
        if self.captures == _MOST:
            self.failed = f"its state has moved {_MOST} times"
            return
        self._inputs = self._inputs or [torch.empty_like(one, device=self._device) for one in inputs]
        self._take(inputs)
        current = torch.accelerator.current_stream(self._device)
        self._stream = self._stream or torch.Stream(self._device)
        self._stream.wait_stream(current)
        graph = _new_graph(self._device)
        try:
            with self._stream:
                graph.capture_begin()
                try:
                    self._returned = self._executor(self._inputs)
                finally:
                    graph.capture_end()
        except (UnisonoError, RuntimeError) as error:
            self.failed = str(error).splitlines()[0]
            warnings.warn(
                f"the step cannot be a graph of {self._device.type}: {self.failed}", RuntimeWarning, stacklevel=5
            )
            return
        finally:
            current.wait_stream(self._stream)
        self._graph = graph
        self.captures += 1
        if dist.is_available() and dist.is_initialized():
            _end_before_networks()
