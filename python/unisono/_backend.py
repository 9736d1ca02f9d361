"""``torch.compile(model, backend="unisono")``: what Dynamo and AOTAutograd capture, run by the executor with fused kernels.

AOTAutograd makes functional graphs of ATen operations, one forward and one backward. Each is lowered as the graph of a step is, and
runs in one call. What cannot be lowered runs as PyTorch would run the graph, with a :class:`~unisono.errors.CompileNotice` that says why.
"""

from __future__ import annotations

import collections
import functools
import operator
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from unisono import _choice, _devices, _islands, _joint, _native
from unisono._arguments import Fuse, require_fuse, require_match_eager
from unisono._capture.inputs import StepInput, StepInputs
from unisono._capture.places import Origin, is_the_users
from unisono._capture.traced import Traced
from unisono._capture.wire import Encoder
from unisono._executor import Executor, lower_graph
from unisono._operation_errors import as_in_eager
from unisono.errors import CompileNotice, ConfigurationError, UnisonoError, UnsupportedError

#: For how many sets of sizes one graph with sizes that change is lowered and kept.
_KEPT_SIZES = 16
_PARTITIONS = ("min_cut", "default")
#: What a graph's ``meta`` calls the number of its first outputs that are given back; the others backward alone gets.
_GIVEN_BACK = "unisono_given_back"
_aten = torch.ops.aten
_COMPARISONS = tuple(getattr(_aten, name).Tensor for name in ("eq", "ne", "ge", "gt", "le", "lt"))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Options:
    """What ``torch.compile(.., backend="unisono", options={..})`` may say.

    Attributes:
        fuse: whether groups of operations run as kernels: all that move less, or (``"auto"``, on processors) those that take no longer
            than PyTorch's operations when they are tried.
        partition: what forward keeps for backward: as little as possible, where the rest costs little to make again (``min_cut``), or
            whatever backward reads (``default``).
        match_eager: whether kernels give the bits of eager PyTorch on processors: they round each result, and have only operations that
            they compute to the bit.
    """

    fuse: Fuse = True
    partition: str = "min_cut"
    match_eager: bool = False

    def __post_init__(self) -> None:
        require_fuse(self.fuse)
        require_match_eager(self.match_eager)
        if self.partition not in _PARTITIONS:
            raise ConfigurationError(
                f"`partition={self.partition!r}` is not known",
                code="U0012",
                hint=f"it is one of {', '.join(map(repr, _PARTITIONS))}",
            )


def backend(
    module: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles what Dynamo has captured; ``torch.compile(model, backend="unisono")`` calls it.

    Args:
        module: the graph.
        examples: what it is called with.
        options: the fields of :class:`Options`.
        mode: a mode of ``torch.compile``; there is none here.

    Raises:
        ConfigurationError: an option or a mode is not known.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    if mode is not None:
        raise ConfigurationError(
            f"`mode={mode!r}`: modes are Inductor's",
            code="U0012",
            hint="`options={'partition': 'default'}` keeps all that backward reads",
        )
    unknown = sorted(set(options or ()) - set(Options.__dataclass_fields__))
    if unknown:
        raise ConfigurationError(
            f"`options` has {', '.join(map(repr, unknown))}, which is not known",
            code="U0012",
            hint=f"there are {', '.join(map(repr, Options.__dataclass_fields__))}",
        )
    chosen = Options(**(options or {}))
    again = chosen.partition == "min_cut"
    #: Where there is a joint graph, the sizes that it is given.
    known: set[Any] | None = None

    def compiler(graph: torch.fx.GraphModule, _examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        given = _islands.sizes_of_inputs(graph) if known is None else known
        stages = _islands.staged(graph, lambda part: _Compiled(part, chosen), given)
        compiled = stages or _Compiled(graph, chosen)

        def call(arguments: list[Any]) -> Any:
            return compiled(arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def partition(
        joint: torch.fx.GraphModule, *given: Any, num_fwd_outputs: int, **settings: Any
    ) -> tuple[torch.fx.GraphModule, ...]:
        nonlocal known
        known = _islands.sizes_of_inputs(joint)
        if chosen.fuse and again and not chosen.match_eager:
            _joint.rewrite(joint)
        _keep_compared(joint)
        split: Any = min_cut_rematerialization_partition if again else default_partition
        forward, *backward = split(joint, *given, num_fwd_outputs=num_fwd_outputs, **settings)
        forward.meta[_GIVEN_BACK] = num_fwd_outputs
        return forward, *backward

    return aot_autograd(fw_compiler=compiler, partition_fn=partition)(module, examples)


class _Compiled:
    """A graph of AOTAutograd's, lowered once for each set of sizes. It is called with a list, which it empties, so that what nobody needs
    any more is let go of while it runs.
    """

    def __init__(self, graph: torch.fx.GraphModule, options: Options) -> None:
        _take_products_apart(graph)
        self._graph, self._options = graph, options
        self._given_back: int | None = graph.meta.get(_GIVEN_BACK)
        self._programs: collections.OrderedDict[tuple[Any, ...], _Program] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._eager = False
        #: The program where no size changes.
        self._only: _Program | None = None
        values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
        # AOTAutograd passes nothing for tokens.
        tokens = _tokens(graph)
        self._sizes = [at for at, value in enumerate(values) if not isinstance(value, torch.Tensor) or at in tokens]
        if not self._sizes:
            self._only = self._program(())

    def __call__(self, arguments: list[Any]) -> Any:
        with self._lock:
            program = self._only or (None if self._eager else self._program(arguments))
            if program is not None:
                return program(arguments)
        given = tuple(arguments)
        arguments.clear()
        return self._graph(*given)

    def _program(self, arguments: Sequence[Any]) -> _Program | None:
        """The program for the sizes among the arguments; where there can be none, says so once."""
        sizes = tuple(arguments[at] for at in self._sizes)
        if sizes in self._programs:
            self._programs.move_to_end(sizes)
            return self._programs[sizes]
        try:
            graph = _with_sizes(_without_tokens(self._graph), arguments, self._sizes) if sizes else self._graph
            with unset_fake_temporarily():
                self._programs[sizes] = _Program(graph, self._sizes, self._options, self._given_back)
        except Exception as error:  # whatever it is, PyTorch can run the graph
            reason = str(error) if isinstance(error, UnisonoError) else f"{type(error).__name__}: {error}"
            message = f"a graph of {len(self._graph.graph.nodes)} operations runs as in eager PyTorch: {reason}"
            warnings.warn(message, CompileNotice, stacklevel=2)
            self._eager = True
            return None
        if len(self._programs) > _KEPT_SIZES:
            self._programs.popitem(last=False)
        return self._programs[sizes]


class _Program:
    """A graph without sizes that change, lowered."""

    def __init__(
        self, graph: torch.fx.GraphModule, sizes: Sequence[int], options: Options, given_back: int | None
    ) -> None:
        """Lowers a graph. Of its outputs all get out, or so many of the first ones; the others only backward gets."""
        graph, self._given, self._fixed, self._order = _tensors_only(graph)
        inner = set() if given_back is None else set(self._order[given_back:]) - set(self._order[:given_back])
        inputs = StepInputs()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                inputs.add(StepInput("batch", f"batch.{len(inputs.inputs)}", node.meta["val"]))
        given = len(inputs.inputs)
        devices = {item.tensor.device for item in inputs.inputs if item.tensor.dim()} or {_devices.HOST}
        if len(devices) > 1:
            raise UnsupportedError("tensors are on several devices", code="U0105")
        encoder = _Encoder(Traced(graph, None, 0), inputs)
        captured, device = _native.Graph(encoder.bytes()).cleaned_function(), devices.pop()
        fuse, match_eager = options.fuse, options.match_eager
        if fuse:
            captured = captured.split_dropout()
            if device == _devices.HOST and not match_eager:
                captured = captured.with_wide_products(_devices.narrow_types())
        slower = _choice.slower(captured, device, match_eager=match_eager) if fuse == "auto" else {}
        settings: dict[str, Any] = {"fuse": bool(fuse), "match_eager": match_eager, "slower": slower}
        lowered = lower_graph(captured, device=device, inner=sorted(inner), **settings)
        self._executor = Executor(lowered)
        self._executor.bind([item.tensor for item in inputs.inputs[given:]])
        self._sizes = sizes
        #: The positions of what is made that is another one of it too, once something has been made.
        self._repeats: list[int] | None = None

    def __call__(self, arguments: list[Any]) -> list[Any]:
        for at in reversed(self._sizes):
            del arguments[at]
        given = [arguments[at] for at in self._given]
        try:
            made = self._executor.consume(arguments)
        except UnisonoError as error:
            raise as_in_eager(error) from error.__cause__
        if self._repeats is None:
            self._repeats = [at for at, one in enumerate(made) if any(one is other for other in made[:at])]
        for at in self._repeats:
            made[at] = made[at].detach()
        found = [*made, *given, *self._fixed]
        return [found[at] for at in self._order]


class _Encoder(Encoder):
    """Encodes a graph of AOTAutograd's, whose nodes say with a stack where they were made."""

    def _origin(self, node: torch.fx.Node) -> Origin | None:
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        file, line = next((frame for frame in reversed(frames) if is_the_users(frame[0])), ("", "0"))
        return Origin(file, int(line), "", "")


def _take_products_apart(module: torch.fx.GraphModule) -> None:
    """Makes products of two of those of more sizes. PyTorch writes `operator.mul` with three arguments where a size is a product of
    three, which fails when it is called, and loses the third when the graph is written as code.
    """
    graph = module.graph
    products = [node for node in graph.find_nodes(op="call_function", target=operator.mul) if len(node.args) > 2]
    for node in products:
        *others, last = node.args
        with graph.inserting_before(node):
            node.args = (functools.reduce(lambda a, b: graph.call_function(operator.mul, (a, b)), others), last)
    if products:
        module.recompile()


def _keep_compared(module: torch.fx.GraphModule) -> None:
    """Has forward keep what it finds when it compares two tensors, or what backward compares. What is made again may have another last bit,
    and then nothing is equal to its greatest element any more.
    """
    kept: list[torch.fx.Node] = []
    for target in _COMPARISONS:
        for node in module.graph.find_nodes(op="call_function", target=target):
            if all(one.meta["val"].is_floating_point() for one in node.all_input_nodes):
                kept.append(node)
    seen: set[torch.fx.Node] = set()
    while kept:
        node = kept.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
        is_view = schema is None or any(one.alias_info is not None for one in schema.returns)
        # Only what forward makes can be kept, and of a view what it shows.
        if is_view or node.meta.get("partitioner_tag") != "is_forward":
            kept += node.all_input_nodes
        else:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _tokens(module: torch.fx.GraphModule) -> set[int]:
    """The positions of inputs that only keep operations with effects, such as checks of `torch.linalg`, in their order."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return {at for at, node in enumerate(inputs) if any(user.target is with_effects for user in node.users)}


def _without_tokens(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with operations that have effects called by themselves: a program keeps their order."""
    graph = torch.fx.Graph()
    outputs: Any = graph.graph_copy(module.graph, {})
    graph.output(outputs)
    for node in [node for node in graph.nodes if node.target is with_effects]:
        token, operation, *args = node.args
        with graph.inserting_before(node):
            call = graph.call_function(operation, tuple(args), dict(node.kwargs))
        for user in list(node.users):
            position = user.args[1] - 1
            if position >= 0 and len(operation._schema.returns) > 1:
                user.args = (call, position)
                continue
            user.replace_all_uses_with(call if position >= 0 else token)
            graph.erase_node(user)
        graph.erase_node(node)
    return torch.fx.GraphModule(module, graph)


def _tensors_only(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[int], list[Any], list[int]]:
    """The same graph with each tensor that it makes among its outputs once; then the positions of inputs that it gives back, what else it
    gives, and for each output its position among all three, one behind the other.
    """
    graph = torch.fx.Graph()
    outputs: Any = graph.graph_copy(module.graph, {})
    inputs = {node: at for at, node in enumerate(node for node in graph.nodes if node.op == "placeholder")}
    made: dict[torch.fx.Node, int] = {}
    given: dict[torch.fx.Node, int] = {}
    fixed: list[Any] = []
    places: list[tuple[int, int]] = []
    for one in outputs if isinstance(outputs, list | tuple) else [outputs]:
        value = one.meta["val"] if isinstance(one, torch.fx.Node) else one
        if not isinstance(value, torch.Tensor):
            places.append((2, len(fixed)))
            fixed.append(value)
        elif one in inputs:
            places.append((1, given.setdefault(one, len(given))))
        else:
            places.append((0, made.setdefault(one, len(made))))
    graph.output(list(made))
    starts = (0, len(made), len(made) + len(given))
    order = [starts[kind] + at for kind, at in places]
    return torch.fx.GraphModule(module, graph), [inputs[one] for one in given], fixed, order


def _with_sizes(module: torch.fx.GraphModule, arguments: Sequence[Any], sizes: Sequence[int]) -> torch.fx.GraphModule:
    """The same graph for the sizes of these arguments, without operations on sizes.

    No tracer is asked: while one works, what modules do is another thing in all threads, and this runs when a function is called.
    """
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    values: dict[torch.fx.Node, Any] = {}
    places = iter(range(len(arguments)))
    with unset_fake_temporarily(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for node in module.graph.nodes:
            if node.op == "placeholder":
                at = next(places)
                value = arguments[at]
                if isinstance(value, torch.Tensor) and at not in sizes:
                    value = mode.from_tensor(value, static_shapes=True)
            elif node.op == "get_attr":
                value = getattr(module, node.target)
            elif node.op == "output":
                graph.output(map_arg(node.args[0], made.__getitem__))
                continue
            else:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)  # type: ignore[misc]
                value = node.target(*args, **kwargs)
            values[node] = made[node] = value
            # An operation without results checks its operands.
            told = [values[one] for one in node.all_input_nodes] if value is None else value
            if any(isinstance(one, torch.Tensor) for one in (told if isinstance(told, list | tuple) else [told])):
                made[node] = graph.node_copy(node, made.__getitem__)
                made[node].meta["val"] = value
    return torch.fx.GraphModule(module, graph)
