"""The executor in Python: loads libtorch's functions, makes programs, binds tensors, runs steps."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from unisono import _cuda, _devices, _host, _native, _reference
from unisono import _rows as _rows  # the operations that exchange rows of experts
from unisono._message import pack, unpack
from unisono._program import ProgramBuilder, Slot
from unisono.errors import HardwareError

_serial = itertools.count()
_aoti: Any = getattr(torch._C, "_aoti")  # noqa: B009 - not in torch's type stubs
_to_capsules = _aoti.unsafe_alloc_void_ptrs_from_tensors
_from_capsules = _aoti.alloc_tensors_by_stealing_from_void_ptrs
_below_autograd = torch._C._AutoDispatchBelowAutograd
_has_autocast = torch._C._is_any_autocast_enabled
_count_of_modes = torch._C._len_torch_dispatch_stack


class Executor:
    """Runs a program's steps without Python: one call binds the step's inputs, and Rust does the rest.

    Between steps it holds the state and what the program computes once. Errors of operations name the line of the
    user's code that they come from.
    """

    def __init__(self, program: Any, *, objects: Mapping[str, Any] | None = None) -> None:
        """Links a lowered program.

        Args:
            program: what :func:`lower` or :func:`lower_graph` gives.
            objects: arguments that only Python can pass, by name.
        """
        self.program = program
        #: How often state was bound: each time, what the program computes once is computed again, elsewhere in memory.
        self.bindings = 0
        prefix = f"p{os.getpid()}_{next(_serial)}"
        self._fallbacks = _register_python_calls(program.python_calls(prefix), objects)
        runner = _proxy_runner(program.proxy_document())
        self._native = _native.Executor(program, prefix, runner)
        if self._native.refused():
            message = "this host forbids executable memory: kernels are interpreted, which takes longer"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        #: The device whose current stream kernels run on.
        self._kernel_device = self._native.kernel_device
        #: Whether PyTorch's operations are called, and not kernels alone.
        self._has_calls = any(program.counts())

    def bind(self, state: Sequence[torch.Tensor]) -> None:
        """Binds the tensors of state, in the program's order; each step writes into them."""
        self.bindings += 1
        self._native.bind_state(_to_capsules(list(state)))

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs one step on ``inputs``, in the program's order, and returns what the step returns."""
        return self.consume(list(inputs))

    def consume(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The same, and empties ``inputs``: each is let go of where the program needs it no more."""
        if _has_autocast() or _count_of_modes() > 0:
            with _neutral():
                return self.consume(inputs)
        handles = self._ready(inputs)
        inputs.clear()
        try:
            if self._has_calls:
                with _below_autograd():
                    return _from_capsules(self._native.run(handles))
            return _from_capsules(self._native.run(handles))
        except BaseException:
            _host.forget()
            raise

    def at(self) -> int | None:
        """The position of the instruction that runs now, in whatever thread; ``None`` between steps."""
        return self._native.at()

    def record(
        self, inputs: Sequence[torch.Tensor], device: torch.device = _devices.HOST
    ) -> tuple[list[torch.Tensor], list[tuple[int, int, int]]]:
        """Runs one step and also returns, for each instruction, its index, start and duration in nanoseconds by a device's clock."""
        if device != _devices.HOST:
            return self._recorded_on(device, inputs)
        with _neutral(), _below_autograd():
            returns, records = self._native.run_recorded(self._ready(inputs))
        return _from_capsules(returns), records

    def _recorded_on(
        self, device: torch.device, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[int, int, int]]]:
        marks = [_devices.mark(device)]
        returns = self.watch(inputs, lambda _: marks.append(_devices.mark(device)))
        _devices.synchronise(device)
        ends = [_devices.nanoseconds_between(marks[0], mark) for mark in marks]
        return returns, [(index, start, end - start) for index, (start, end) in enumerate(itertools.pairwise(ends))]

    def watch(self, inputs: Sequence[torch.Tensor], after: Callable[[int], object]) -> list[torch.Tensor]:
        """Runs one step and calls ``after`` with the index of each issued instruction; what it raises is that instruction's error."""
        with _neutral(), _below_autograd():
            return _from_capsules(self._native.run_watched(self._ready(inputs), after))

    def _ready(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The inputs of a step as handles; kernels are told the stream that is current now."""
        if self._kernel_device is not None:
            self._native.set_stream(_cuda.stream_of(*self._kernel_device))
        return _to_capsules(inputs)

    def state(self) -> list[torch.Tensor]:
        """The tensors of state as they are bound."""
        return _from_capsules(self._native.state())


def lower(spec: Mapping[str, Any], device: str | torch.device = _devices.HOST, *, rewrite: bool = False) -> Any:
    """Lowers a program's data, as :meth:`ProgramBuilder.spec` gives it; graphs are always rewritten first."""
    _ready()
    return _native.Program(pack(spec), _place(device), _schema_of if rewrite else None)


def lower_graph(
    graph: _native.Graph,
    groups: Mapping[str, str] | None = None,
    device: str | torch.device = _devices.HOST,
    *,
    buffer_bytes: int | None = None,
    fuse: bool = False,
    match_eager: bool = False,
    live: bool = False,
    slower: Mapping[str, str] | None = None,
    inner: Sequence[int] = (),
) -> Any:
    """Lowers a graph, global or of one rank.

    The program's state are the graph's inputs that live on from step to step (``parameter``, ``buffer``, ``optimizer``,
    ``constant``), in their order; all others are passed at each step, in their order.

    Args:
        graph: the graph.
        groups: the names of process groups by the graph's symbolic ones, such as ``axis:a``.
        device: the device that the program runs on, which all device arguments but those of the host become.
        buffer_bytes: the most that memory for small results, which stays from step to step, takes, where that is less than 16 MiB.
        fuse: whether groups of operations run as kernels: on processors, and on CUDA where its libraries are there.
        match_eager: whether they round as eager code does.
        live: whether numbers of the step, such as learning rates, are passed as tensors of the device.
        slower: the groups that are no kernels all the same, by name, and why.
        inner: the positions of what is returned to other programs alone, which may lie in memory that is kept.
    """
    _ready()
    kernels = _kernel_device(torch.device(device)) if fuse else None
    settings = (graph, dict(groups or {}), _place(device), _schema_of, buffer_bytes)
    try:
        return _native.Program.from_graph(*settings, fuse, match_eager, live, kernels, dict(slower or {}), list(inner))
    except HardwareError as error:
        if kernels is None or error.code != "U0331":
            raise
        _stay(str(error))
        return _native.Program.from_graph(*settings, False, False, live, None, {}, list(inner))


def has_kernels(device: torch.device) -> bool:
    """Whether groups of operations can run as kernels there."""
    return device == _devices.HOST or _kernel_device(device) is not None


def _kernel_device(device: torch.device) -> _native.CudaDevice | None:
    """What runs kernels on another device than the host, if it can; on CUDA a warning says why not."""
    if device.type in ("cpu", "meta"):
        return None
    # A device's libraries are opened through libtorch, and what came of it is kept.
    _ready()
    found = _cuda.device_of(device)
    if not isinstance(found, str):
        return found
    if _cuda.is_meant(device):
        _stay(found)
    return None


def _stay(reason: str) -> None:
    warnings.warn(f"groups of operations stay as they are: {reason}", RuntimeWarning, stacklevel=4)


def _place(device: str | torch.device) -> tuple[str, int | None]:
    place = torch.device(device)
    return place.type, place.index


def _schema_of(name: str) -> str | None:
    try:
        return str(_reference.operation(name)._schema)
    except AttributeError:
        return None


def draws_numbers(graph: _native.Graph) -> bool:
    """Whether a graph has an operation that draws random numbers."""
    tag = torch.Tag.nondeterministic_seeded
    return graph.draws({name for name in graph.operators() if tag in _reference.operation(name).tags})


class _neutral:  # noqa: N801 - a context, used like torch.no_grad
    """Switches autocast and dispatch modes off."""

    def __enter__(self) -> None:
        from torch.utils._python_dispatch import _disable_current_modes

        self._modes = _disable_current_modes()
        self._modes.__enter__()
        self._autocast = torch._C._DisableAutocast()
        self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._autocast.__exit__(*error)
        self._modes.__exit__(*error)


def _proxy_runner(document: str | None) -> Any:
    """torch's runner of a model that is this extension module itself, with ``document`` as its external calls.

    It is the processor's for all devices: it hands tensors on as they are, and others there are for a few kinds of devices only.
    """
    if document is None:
        return None
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        model = Path(folder, "g.so")
        model.symlink_to(Path(_native.__file__).resolve())
        Path(folder, "g.json").write_text(document)
        runner = _aoti.AOTIModelContainerRunnerCpu(str(model), 1)
    runner.run([])
    return runner


def _register_python_calls(calls: bytes, objects: Mapping[str, Any] | None) -> Any:
    """Registers a function for each call that only Python can make; they live as long as the returned library."""
    decoded = unpack(calls)
    if not decoded:
        return None
    library = torch.library.Library("unisono_python", "FRAGMENT")
    for one in decoded:
        library.define(f"{one['name']}(Tensor[] tensors) -> Tensor[]")
        function = functools.partial(_call_by_python, _reference.operation(one["op"]), one["args"], objects)
        library.impl(one["name"], function, "CompositeExplicitAutograd")
    return library


def _call_by_python(
    op: Any, args: Sequence[Any], objects: Mapping[str, Any] | None, tensors: Sequence[Any]
) -> list[Any]:
    queue = iter(tensors)
    result = _reference.call(op, [_reference.decode(arg, lambda _: next(queue), objects) for arg in args])
    if isinstance(result, torch.Tensor):
        return [result]
    flat = [one for part in result or () for one in (part if isinstance(part, (list, tuple)) else [part])]
    # Nobody takes a return that is no tensor, but each has its place.
    return [one if isinstance(one, torch.Tensor) else torch.empty(0) for one in flat]


@functools.cache
def _ready() -> None:
    """Loads libtorch's functions and tries both routes, once in a process."""
    load()
    problems = [f"by the {route}, {problem}" for route, problem in self_test().items() if problem]
    if problems:
        raise HardwareError(
            f"PyTorch {torch.__version__} fails the executor's self-test",
            code="U0302",
            cause="; ".join(problems),
            hint="install a release that is supported: pip install 'torch>=2.11,<2.16'",
        )


def load() -> tuple[int, int]:
    """Looks up libtorch's functions and returns the release that it says it is."""
    return _native.load_torch(str(Path(torch.__file__).parent / "lib"), torch.__version__)


def self_test() -> dict[str, str | None]:
    """Calls operations by each route to libtorch; what is wrong with one, or ``None``, by the route's name."""
    aten, x = torch.ops.aten, Slot(0)
    sized = {"dtype": torch.float64, "layout": torch.strided}
    return {
        "dispatcher": _problem(aten.relu.default, [x], {}),
        "proxy": _problem(aten.add.Tensor, [x, x], {"alpha": 3}) or _problem(aten.full.default, [[2], 0.5], sized),
    }


def _problem(operation: Any, args: list[Any], settings: dict[str, Any]) -> str | None:
    """What is wrong with an operation on [-1, 2]."""
    builder, x = ProgramBuilder(), torch.tensor([-1.0, 2.0])
    given, made = builder.slot(), builder.slot()
    builder.inputs.append(given)
    builder.call(operation, args, settings, [made])
    builder.returns.append(made)
    expected = operation(*[x if isinstance(arg, Slot) else arg for arg in args], **settings)
    try:
        (found,) = Executor(_native.Program(pack(builder.spec()), _place(_devices.HOST)))([x])
    except RuntimeError as error:
        return f"{operation} fails: {error}"
    same = found.dtype == expected.dtype and torch.equal(found, expected)
    return None if same else f"{operation} gives {found.tolist()} ({found.dtype}) for [-1, 2]"
