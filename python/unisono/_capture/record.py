"""The recording of a step: each operation that runs on tensors without data becomes a node of a graph.

Only what crosses from C++ to Python anyway is looked at, once for each operation. ``torch.fx``'s own tracers do the same with a proxy for
every tensor, which takes several times as long.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._compile import _disable_dynamo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    autograd_would_have_decomposed,
)

from unisono._capture.alignments import SHAPES
from unisono._capture.results import new, result
from unisono._capture.target import Target
from unisono._capture.types import type_of

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, FakeTensor)
#: The attribute of a tensor that is the node that made it.
_NODE = "_unisono_node"


@dataclass(frozen=True)
class _Facts:
    """What the recorder asks of every operation.

    Attributes:
        decomposes: whether PyTorch may have it as other operations only.
        reads: whether it gives a number out of a tensor.
        written: the positions of the arguments that it changes.
        several: whether it returns several tensors and changes none.
    """

    decomposes: bool
    reads: bool
    written: tuple[int, ...]
    several: bool


@functools.cache
def _facts(func: torch._ops.OpOverload) -> _Facts:
    arguments = enumerate(func._schema.arguments)
    written = tuple(at for at, one in arguments if one.alias_info is not None and one.alias_info.is_write)
    reads = torch.Tag.data_dependent_output in func.tags
    several = not written and sum(str(one.type) == "Tensor" for one in func._schema.returns) > 1
    return _Facts(func._can_decompose(), reads, written, several)


class Recorder(TorchDispatchMode):
    """Records operations while it is entered.

    Attributes:
        graph: what was recorded.
        root: holds the tensors that the graph reads from outside.
        asked: the tensors from outside that a value was asked for, with the user's line that does first, by their ``id``.
    """

    #: The one that records now.
    current: Recorder | None = None

    def __init__(self, target: Target | None = None, line: Callable[[], str | None] = lambda: None) -> None:
        """Starts with an empty graph, of operations on ``target``; ``line`` gives the user's that runs."""
        super().__init__()
        self._line = line
        self._target = target or Target()
        self._stand_ins: dict[int, torch.Tensor] = {}
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self._constants: dict[int, tuple[torch.Tensor, str]] = {}
        self.asked: dict[int, tuple[torch.Tensor, str | None]] = {}
        self._watch: Watch | None = None
        self._within = False
        #: The inputs that the call gives, by their nodes, and the leaves of the arguments that they are.
        self.given: dict[torch.fx.Node, int] = {}
        #: The inputs that are buffers of the model, by their nodes.
        self.buffers: dict[torch.fx.Node, torch.Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # all of a recording does, at once

    def record(
        self,
        function: Callable[..., Sequence[Any]],
        fakes: Sequence[torch.Tensor],
        mode: FakeTensorMode,
        leaves: Mapping[int, int] = MappingProxyType({}),
        buffers: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> torch.fx.GraphModule:
        """The graph of what a function does with tensors that become its inputs, some of them ``leaves`` of the arguments, or ``buffers``.

        Both are given by the positions of the inputs.
        """
        for number, fake in enumerate(fakes):
            node = self.graph.placeholder(f"input_{number}")
            self._track(fake, node)
            if number in leaves:
                self.given[node] = leaves[number]
            if number in buffers:
                self.buffers[node] = buffers[number]
        recording = mock.patch.object(Recorder, "current", self)
        tracing = mock.patch("torch.fx._symbolic_trace._is_fx_tracing_flag", new=True)
        self._mode = mode
        with mode, _own_casts(), recording, tracing, self:
            made = _disable_dynamo(function)(*fakes)
        self.graph.output([self._argument(one) for one in made])
        return _LazyGraphModule(self.root, self.graph)

    @contextlib.contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Lets another look at operations first, and at how they end."""
        self._watch = watch
        try:
            yield
        finally:
            self._watch = None

    def node_of(self, value: Any) -> torch.fx.Node | None:
        """The node that made a tensor, if it is one that was recorded."""
        node = getattr(value, _NODE, None)
        return node if node is not None and node.graph is self.graph else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs and records one operation, or what stands for it."""
        if func is _DEVICE and type(args[0]) is FakeTensor and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device
        kwargs = kwargs or {}
        if func is _DEVICE or func.namespace == "profiler":
            return func(*args, **kwargs)
        watch = self._watch
        if watch is None:
            return self._run(func, args, kwargs)
        if not self._within and watch.wants(func, args, kwargs, _facts(func).written):
            self._within = True
            try:
                with self, watch.instead():
                    return func(*args, **kwargs)
            finally:
                self._within = False
        return watch.run(self._run, func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any, meta: dict[str, Any] | None = None) -> Any:
        tensors = list(_tensors(args, kwargs))
        if any(type(one) not in _PLAIN_TYPES and self.node_of(one) is None for one in tensors):
            return NotImplemented
        facts = _facts(func)
        if facts.decomposes and func not in _SIZES and autograd_would_have_decomposed(func, tensors):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if (facts.reads or func is _aten.is_nonzero.default) and not any(
            isinstance(one, FakeTensor) for one in tensors
        ):
            return self.value_of(func, args, kwargs)
        if func is _aten.is_nonzero.default:
            with self:
                return (args[0] != 0).item()
        if func is _aten.lift_fresh.default:
            # What was lifted may be changed afterwards.
            func = _aten.lift_fresh_copy.default
        made = self._made(func, args, kwargs, facts)
        if func is _aten._conj.default and isinstance(args[0], complex):
            # Backward of a product with a complex number.
            with _disable_current_modes():
                number = torch.tensor(args[0].conjugate(), dtype=made.dtype)
            self._track(made, self._constant(number))
            return made
        node = called(
            self.graph,
            func,
            tuple(map(self._argument, args)),
            {key: self._argument(one) for key, one in kwargs.items()},
        )
        if meta is not None:
            node.meta["custom"] = meta
        self._track(made, node)
        return made

    def note(self, func: Any, args: Any, kwargs: Any, meta: dict[str, Any]) -> torch.fx.Node:
        """A node for an operation that has not run."""
        given = {key: self._argument(one) for key, one in kwargs.items()}
        node = called(self.graph, func, tuple(map(self._argument, args)), given)
        node.meta["custom"] = meta
        return node

    def stand_for(self, values: Any, node: torch.fx.Node) -> Any:
        """Tensors without data that stand for what a node gives, of the types of values."""

        def like(one: torch.Tensor) -> torch.Tensor:
            return new(self._mode, one.shape, one.stride(), one.dtype, one.device)

        made = pytree.tree_map_only(torch.Tensor, like, values)
        self._track(made, node)
        return made

    def value_of(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function gives for the values of tensors from outside, as they are now."""
        self.note_asked(_tensors(args, kwargs))
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            return func(*args, **kwargs)

    def note_asked(self, tensors: Iterable[torch.Tensor]) -> None:
        """Notes that something follows from the values of tensors from outside."""
        for one in tensors:
            self.asked.setdefault(id(one), (one, self._line()))

    def _here(self, args: Any, kwargs: Any) -> Any:
        """Arguments on the device on which the target is traced."""

        def here(one: Any) -> Any:
            if isinstance(one, torch.device):
                return self._target.traced_on(one)
            if isinstance(one, list | tuple):
                return type(one)(map(here, one))
            if not isinstance(one, torch.Tensor) or isinstance(one, FakeTensor):
                return one
            if id(one) not in self._stand_ins:
                with _disable_current_modes():
                    self._stand_ins[id(one)] = self._target.stand_in(self._mode, one)
            return self._stand_ins[id(one)]

        return tuple(map(here, args)), {key: here(one) for key, one in kwargs.items()}

    def _made(self, func: Any, args: Any, kwargs: Any, facts: _Facts) -> Any:
        """What an operation gives on the target."""
        shapes: Callable[..., Any] = SHAPES.get(func) or func
        if not self._target.elsewhere:
            return result(self._mode, func, args, kwargs, functools.partial(shapes, *args, **kwargs))
        args, kwargs = self._here(args, kwargs)

        def ask() -> Any:
            made = shapes(*args, **kwargs)
            is_other = facts.several and self._target.kind != "cpu"
            return self._in_types_of_target(shapes, args, kwargs, made) if is_other else made

        return result(self._mode, func, args, kwargs, ask, self._target)

    def _in_types_of_target(self, func: Any, args: Any, kwargs: Any, made: Any) -> Any:
        """The results of an operation with the element types that they have on the target: those of statistics differ between devices."""

        def like(tensor: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)

        def there(leaf: Any) -> Any:
            return like(leaf, self._target.kind, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

        found = func(*pytree.tree_map(there, args), **pytree.tree_map(there, kwargs))
        pairs = zip(made, found, strict=True)
        return type(made)(
            like(one, "cpu", other.dtype) if isinstance(one, torch.Tensor) and one.dtype != other.dtype else one
            for one, other in pairs
        )

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value) or self._constant(value)
        if isinstance(value, torch.device):
            return self._target.traced_on(value)
        return [self._argument(one) for one in value] if isinstance(value, list | tuple) else value

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        """A node for a tensor from outside, one for each use."""
        if id(tensor) not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[id(tensor)] = tensor, name
            # Not by `setattr`, for which a parameter is a parameter of the module.
            object.__setattr__(self.root, name, tensor)
        node = self.graph.create_node("get_attr", self._constants[id(tensor)][1])
        node.meta["val"] = type_of(tensor)
        return node

    def _track(self, made: Any, node: torch.fx.Node) -> None:
        node.meta["val"] = type_of(made)
        if isinstance(made, torch.Tensor):
            setattr(made, _NODE, node)
        elif isinstance(made, list | tuple):
            for number, part in enumerate(made):
                if isinstance(part, torch.Tensor | list | tuple):
                    self._track(part, called(self.graph, operator.getitem, (node, number), {}))


def called(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
    """A new node that calls an operation.

    Its arguments are put in afterwards, because `create_node` looks through them for traced numbers, of which there are none; its name is
    nobody's business.
    """
    node = graph.create_node("call_function", target, name="made")
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


@contextlib.contextmanager
def _own_casts() -> Iterator[None]:
    """Keeps apart what ``torch.autocast`` has cast, within and without: as in eager PyTorch it casts a parameter once."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


class Watch:
    """Looks at operations before they are recorded; this one lets all pass."""

    def wants(self, func: Any, args: Any, kwargs: Any, written: tuple[int, ...]) -> bool:
        """Whether an operation is to run under :meth:`instead`; ``written`` are the positions of the arguments that it changes."""
        return False

    def instead(self) -> AbstractContextManager[Any]:
        """The modes that such an operation runs under."""
        return contextlib.nullcontext()

    def run(self, record: Callable[..., Any], func: Any, args: Any, kwargs: Any) -> Any:
        """Runs one operation by ``record(func, args, kwargs, meta)``, where ``meta`` is what its node is to know of it."""
        return record(func, args, kwargs)


_SIZES = (_aten.size.default, _aten.stride.default, _aten.storage_offset.default)


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments, in lists too."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (part for part in one if isinstance(part, torch.Tensor))
