"""A recorded graph without operations that change tensors in place.

What PyTorch's functionalisation gives, without running each operation through it again: types are known from the recording. The kinds of
changes that training steps consist of are known here; a graph with any other kind is left to PyTorch (:class:`Unknown`).
"""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.record import called
from unisono._capture.types import TensorType, type_of

_aten = torch.ops.aten
#: A view: the recorded operation that made it, and which of its results it is.
_View = tuple[torch.fx.Node, int | None]


class Unknown(Exception):  # noqa: N818
    """A graph holds a kind of change that is not known here."""


@dataclass(eq=False)
class _Memory:
    """What tensors share: the value of all of it, how often it was changed, and changes that this value lacks."""

    value: torch.fx.Node
    changes: int = 0
    pending: list[tuple[torch.fx.Node, tuple[_View, ...]]] = field(default_factory=list)
    #: Whether the value lies closer together than what was recorded.
    packed: bool = False


@dataclass(eq=False)
class _Tensor:
    """A tensor of the recording: its memory, how it is a view of that, and its value after so many changes."""

    memory: _Memory
    views: tuple[_View, ...]
    value: torch.fx.Node
    changes: int


def functionalised(first: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph as one without changes in place, each input that changes ending in a ``copy_``.

    Raises:
        Unknown: it changes a tensor in a way that is not known here.
    """
    made = _Functional(first).run()
    return _LazyGraphModule(first, made)


class _Functional:
    def __init__(self, first: torch.fx.GraphModule) -> None:
        self._first, self._graph = first, torch.fx.Graph()
        self._tensors: dict[torch.fx.Node, _Tensor] = {}
        self._inputs: list[tuple[torch.fx.Node, _Tensor]] = []
        #: The results of operations with several, by the operation's recorded node.
        self._parts: dict[torch.fx.Node, torch.fx.Node] = {}
        self._meta: Any = None

    def run(self) -> torch.fx.Graph:
        for node in self._first.graph.nodes:
            if node.op == "placeholder":
                made = self._graph.placeholder(str(node.target))
                made.meta["val"] = node.meta["val"]
                self._inputs.append((made, self._new(node, made)))
            elif node.op == "get_attr":
                made = self._graph.create_node("get_attr", node.target)
                made.meta["val"] = node.meta.get("val")
                self._new(node, made)
            elif node.op == "output":
                self._output(node)
            elif node.target is operator.getitem:
                self._part(node)
            else:
                self._call(node)
        return self._graph

    def _new(self, node: torch.fx.Node, made: torch.fx.Node) -> _Tensor:
        self._tensors[node] = _Tensor(_Memory(made), (), made, 0)
        return self._tensors[node]

    def _output(self, node: torch.fx.Node) -> None:
        self._meta = None
        outputs = [self._now(one) for one in node.args[0]]  # type: ignore[union-attr]
        for made, tensor in self._inputs:
            new = self._current(tensor)
            if new is not made:
                self._add(_aten.copy_.default, (made, new), {}, made.meta["val"])
        self._graph.output(outputs)

    def _call(self, node: torch.fx.Node) -> None:
        func, self._meta = node.target, node.meta.get("custom")
        if not isinstance(func, torch._ops.OpOverload):
            raise Unknown(func)
        kind = _kind(func)
        if kind == "changes":
            self._change(node, func)
            return
        if kind == "changes shape":
            self._change_shape(node, func)
            return
        args, kwargs = self._operands(node.args, node.kwargs)
        if kind == "view":
            self._view(node, func, args, kwargs)
            return
        made = self._add(func, args, kwargs, node.meta["val"])
        if isinstance(node.meta["val"], list):
            self._parts[node] = made
        else:
            self._new(node, made)

    def _view(self, node: torch.fx.Node, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
        val = node.meta["val"]
        source = self._tensors[node.args[0]]  # type: ignore[index]
        if source.memory.packed:
            if func is _aten.as_strided.default:
                raise Unknown("strides of a tensor that lies elsewhere")
            val = result_of(func, args, kwargs)
        made = self._add(func, args, kwargs, val)
        if isinstance(val, list):
            self._parts[node] = made
        else:
            self._tensors[node] = _Tensor(source.memory, (*source.views, (made, None)), made, source.changes)

    def _change_shape(self, node: torch.fx.Node, func: torch._ops.OpOverload) -> None:
        """A tensor that from here on is a view of what it was."""
        tensor = self._tensors[node.args[0]]  # type: ignore[index]
        if any(tensor is one for _, one in self._inputs):
            raise Unknown(func)
        args, kwargs = self._operands(node.args, node.kwargs)
        view = _overload_for(func, getattr(_aten, func._schema.name.removeprefix("aten::")[:-1]))
        assert view is not None
        made = self._add(view, args, kwargs, result_of(view, args, kwargs))
        tensor.views, tensor.value = (*tensor.views, (made, None)), made
        self._tensors[node] = tensor

    def _part(self, node: torch.fx.Node) -> None:
        """One of several results."""
        whole, number = node.args
        val = self._parts[whole].meta["val"][number]  # type: ignore[index]
        made = self._add(operator.getitem, (self._parts[whole], number), {}, val)  # type: ignore[index]
        if isinstance(node.meta["val"], list):
            self._parts[node] = made
        elif isinstance(whole.target, torch._ops.OpOverload) and _kind(whole.target) == "view":  # type: ignore[union-attr]
            source = self._tensors[whole.args[0]]  # type: ignore[union-attr, index]
            self._tensors[node] = _Tensor(source.memory, (*source.views, (whole, number)), made, source.changes)  # type: ignore[arg-type]
        else:
            self._new(node, made)

    def _change(self, node: torch.fx.Node, func: torch._ops.OpOverload) -> None:
        if func._schema.arguments[-1].is_out:
            self._write_out(node, func)
            return
        form = _functional_form(func)
        changed = [node.args[at] for at in form.changed]
        if not all(isinstance(one, torch.fx.Node) and one.op != "get_attr" for one in changed):
            raise Unknown(func)
        tensors = [self._tensors[one] for one in changed]  # type: ignore[index]
        args, kwargs = self._operands(_with_defaults(func, node.args, node.kwargs), node.kwargs)
        result = result_of(form.func, args, kwargs)
        news = result[-len(tensors) :] if isinstance(result, list) else [result]
        olds = [tensor.value.meta["val"] for tensor in tensors]
        made = self._add(form.func, args, kwargs, result)
        if news[0].dtype != olds[0].dtype and not isinstance(result, list):
            # What is changed keeps its element type, such as a number in bf16 that is multiplied by one in f32.
            cast: tuple[Any, Any, Any] = (_aten._to_copy.default, (made,), {"dtype": olds[0].dtype})
            result = result_of(*cast)
            made, news = self._add(*cast, result), [result]
        if news != olds:
            if isinstance(result, list) or not _is_alike(result, olds[0]):
                raise Unknown(func)
            self._tensors[node] = tensors[0]
            self._put_elsewhere(tensors[0], made)
            return
        if not isinstance(result, list):
            self._tensors[node] = tensors[0]
            self._put(tensors[0], made)
            return
        self._parts[node] = made
        for at, tensor in enumerate(tensors, len(result) - len(tensors)):
            self._put(tensor, self._add(operator.getitem, (made, at), {}, result[at]))

    def _write_out(self, node: torch.fx.Node, func: torch._ops.OpOverload) -> None:
        """What an operation gives becomes the value of its ``out``."""
        form, name = _form_without_out(func), func._schema.arguments[-1].name
        out = node.kwargs.get(name)
        if not isinstance(out, torch.fx.Node) or out.op == "get_attr":
            raise Unknown(func)
        tensor = self._tensors[out]
        given = {key: one for key, one in node.kwargs.items() if key != name}
        args, kwargs = self._operands(node.args, given)
        result = result_of(form, args, kwargs)
        if result != tensor.value.meta["val"]:
            raise Unknown(func)
        self._tensors[node] = tensor
        self._put(tensor, self._add(form, args, kwargs, result))

    def _put_elsewhere(self, tensor: _Tensor, made: torch.fx.Node) -> None:
        """Gives a tensor a new value that lies otherwise in memory."""
        if tensor.views:
            # Whoever reads the view has it from what it is a view of.
            tensor.memory.changes += 1
            tensor.memory.pending.append((made, tensor.views))
            return
        # A tensor with gaps in its memory becomes one without; what is computed of it lies in memory as it would.
        same_order = _order(tensor.value.meta["val"]) == _order(made.meta["val"])
        draws = torch.Tag.nondeterministic_seeded in made.target.tags  # type: ignore[union-attr]
        if draws or not same_order or any(tensor is one for _, one in self._inputs):
            raise Unknown("a change after which memory is in another order")
        tensor.memory.packed = True
        self._put(tensor, made)

    @staticmethod
    def _put(tensor: _Tensor, made: torch.fx.Node) -> None:
        """Gives a tensor its new value."""
        memory = tensor.memory
        memory.changes += 1
        memory.pending.append((made, tensor.views))
        tensor.value, tensor.changes = made, memory.changes

    def _operands(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return map_arg((args, kwargs), self._now)

    def _now(self, node: torch.fx.Node) -> torch.fx.Node:
        """The value that a recorded tensor, or several, has at this point."""
        return self._parts[node] if node in self._parts else self._current(self._tensors[node])

    def _current(self, tensor: _Tensor) -> torch.fx.Node:
        memory = tensor.memory
        if tensor.changes != memory.changes:
            for value, views in memory.pending:
                memory.value = self._through(views, memory.value, value) if views else value
            memory.pending.clear()
            value = memory.value
            for view, number in tensor.views:
                value = self._again(view, number, value)
            tensor.value, tensor.changes = value, memory.changes
        return tensor.value

    def _through(self, views: tuple[_View, ...], before: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        """What a memory is once a view of it has a new value."""
        viewed = [before]
        for view, number in views[:-1]:
            viewed.append(self._again(view, number, viewed[-1]))
        for (view, number), old in zip(reversed(views), reversed(viewed), strict=True):
            back = _put_back(view, number, old, value)
            if back is not None:
                value = self._add(back[0], back[1], {}, result_of(back[0], back[1], {}))
        if value.meta["val"] != before.meta["val"]:
            raise Unknown("a change through a view after which memory is in another order")
        return value

    def _again(self, view: torch.fx.Node, number: int | None, value: torch.fx.Node) -> torch.fx.Node:
        """A view, made of its memory's new value."""
        if any(isinstance(one, torch.fx.Node) for one in view.args[1:]):
            raise Unknown(view.target)
        args, val = (value, *view.args[1:]), view.meta["val"]
        if value.meta["val"] != view.args[0].meta["val"]:  # type: ignore[union-attr]
            val = result_of(view.target, args, view.kwargs)  # type: ignore[arg-type]
        made = self._add(view.target, args, view.kwargs, val)
        if number is None:
            return made
        parts = [self._add(operator.getitem, (made, at), {}, part) for at, part in enumerate(val)]
        return parts[number]

    def _add(self, target: Any, args: Any, kwargs: Any, val: Any) -> torch.fx.Node:
        node = called(self._graph, target, args, kwargs)
        node.meta["val"] = val
        if self._meta is not None:
            node.meta["custom"] = self._meta
        return node


def _is_alike(one: TensorType, other: TensorType) -> bool:
    """Whether two tensors differ in the order of their memory at most."""
    return (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)


def _order(tensor: TensorType) -> list[int]:
    """The dimensions in the order in which their elements lie in memory, the outermost first; without those of one element."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size != 1]
    return sorted(dims, key=lambda dim: -tensor.strides[dim])


def _put_back(
    view: torch.fx.Node, number: int | None, old: torch.fx.Node, new: torch.fx.Node
) -> tuple[Any, tuple[Any, ...]] | None:
    """The operation, with its arguments, that gives a tensor of which a view has a new value; ``None``: the value itself."""
    func: Any = view.target
    given, shape = view.args[1:], list(old.meta["val"].shape)
    if func in (_aten.detach.default, _aten.alias.default):
        return None
    if func in _OTHER_SHAPES:
        return _aten.view.default, (new, shape)
    if func in (_aten.t.default, _aten.transpose.int):
        return func, (new, *given)
    if func is _aten.permute.default:
        dims = [dim % len(shape) for dim in given[0]]  # type: ignore[union-attr, operator]
        return func, (new, [dims.index(dim) for dim in range(len(dims))])
    if func in _PARTS:
        return _PARTS[func], (old, new, *given)
    if func is _aten.unbind.int and number is not None:
        return _aten.select_scatter.default, (old, new, given[0] if given else 0, number)
    raise Unknown("a change through a view")


#: Views of all elements, in their order.
_OTHER_SHAPES = (
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.unsqueeze.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
)
#: What puts a part of a tensor back into it, with the same arguments as the view.
_PARTS = {
    _aten.select.int: _aten.select_scatter.default,
    _aten.slice.Tensor: _aten.slice_scatter.default,
    _aten.diagonal.default: _aten.diagonal_scatter.default,
}


#: What makes of a tensor a view of what it was.
_SHAPE_CHANGES = ("aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_", "aten::detach_")


@functools.cache
def _kind(func: torch._ops.OpOverload) -> str:
    """Whether an operation ``changes`` an operand or its shape, makes a ``view`` of its first, or (``""``) makes new tensors."""
    if func._schema.name in _SHAPE_CHANGES:
        return "changes shape"
    if func._schema.is_mutable:
        return "changes"
    aliased = [one for one in func._schema.returns if one.alias_info is not None]
    if not aliased:
        return "view" if func is _aten._unsafe_view.default else ""
    if func._schema.arguments[0].alias_info is None or len(func._schema.returns) != 1:
        raise Unknown(func)
    return "view"


@dataclass(frozen=True)
class _Form:
    """What gives the new values of the operands that an operation changes, behind what it returns; and their positions."""

    func: torch._ops.OpOverload
    changed: tuple[int, ...]


_NAMES = {
    "normal_": "normal_functional",
    "_native_batch_norm_legit": "_native_batch_norm_legit_functional",
}
_OVERLOADS = {"aten.bernoulli_.float": "p"}


@functools.cache
def _functional_form(func: torch._ops.OpOverload) -> _Form:
    schema = func._schema
    changed = tuple(at for at, one in enumerate(schema.arguments) if one.alias_info is not None)
    name = schema.name.removeprefix("aten::")
    only_first = name.endswith("_") and changed == (0,) and len(schema.returns) == 1
    if schema.name == name or torch.Tag.inplace_view in func.tags or not (only_first or name in _NAMES):
        raise Unknown(func)
    packet = getattr(_aten, _NAMES.get(name, name[:-1]), None)
    form = _overload_for(func, packet) if packet is not None else None
    if form is None or form._can_decompose():
        raise Unknown(func)
    if len(form._schema.returns) != (1 if only_first else len(schema.returns) + len(changed)):
        raise Unknown(func)
    return _Form(form, changed)


def _described(func: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in func._schema.arguments]


def _overload_for(func: torch._ops.OpOverload, packet: Any) -> torch._ops.OpOverload | None:
    """The operation of a packet that takes the same arguments: by its name if it does (``pow_.Scalar`` is ``pow.Tensor_Scalar``)."""
    first = _OVERLOADS.get(str(func), func._schema.overload_name or "default")
    names = sorted(packet.overloads(), key=lambda name: name != first)
    found = (getattr(packet, name) for name in names)
    return next((one for one in found if not one._schema.is_mutable and _described(one) == _described(func)), None)


@functools.cache
def _form_without_out(func: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operation that gives what this one writes into its one ``out``."""
    schema = func._schema
    wanted = [(one.name, str(one.type)) for one in schema.arguments[:-1]]
    if len(schema.returns) != 1 or sum(one.is_out for one in schema.arguments) != 1:
        raise Unknown(func)
    packet = func.overloadpacket
    for form in (getattr(packet, name) for name in packet.overloads()):
        plain = not form._schema.is_mutable and not form._can_decompose()
        if plain and [(one.name, str(one.type)) for one in form._schema.arguments] == wanted:
            return form
    raise Unknown(func)


def _with_defaults(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """All arguments that have a position; the form of an operation may have no default where this one has."""
    left = itertools.takewhile(lambda one: not one.kwarg_only, func._schema.arguments[len(args) :])
    return (*args, *(one.default_value for one in left if one.name not in kwargs))


def result_of(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """The types of what an operation gives."""

    def described(one: Any) -> Any:
        if isinstance(one, torch.fx.Node):
            return one.meta["val"]
        return tuple(map(described, one)) if isinstance(one, list | tuple) else (type(one), one)

    try:
        return _cached_result(func, described(args), tuple((key, described(one)) for key, one in kwargs.items()))
    except (TypeError, RuntimeError) as error:  # an argument that cannot be a key; memory in another order
        raise Unknown(func) from error


@functools.lru_cache(maxsize=4096)
def _cached_result(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    def stand_in(one: Any) -> Any:
        if isinstance(one, TensorType):
            return one.stand_in()
        return one[1] if len(one) == 2 and isinstance(one[0], type) else [stand_in(part) for part in one]

    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast(), FakeTensorMode():
        return type_of(func(*map(stand_in, args), **{key: stand_in(one) for key, one in kwargs}))
