"""A functional FX graph as the message that crate ``ir`` reads."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from unisono._capture.inputs import StepInput, StepInputs
from unisono._capture.optimizer import rate_changed
from unisono._capture.places import Origin, part_kinds, place_of
from unisono._capture.traced import Traced
from unisono._capture.types import TensorType
from unisono._message import pack
from unisono.errors import StepError, UnsupportedError

_DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2", torch.complex64: "c64", torch.complex128: "c128",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.bool: "bool",
}  # fmt: skip
TORCH_DTYPES = {text: dtype for dtype, text in _DTYPES.items()}
#: Whose operations nobody can register rules for.
_NOT_CUSTOM = frozenset(("aten", "prims", "prim", "c10d", "_c10d_functional", "unisono"))
_FORMATS = {
    torch.contiguous_format: "contiguous",
    torch.preserve_format: "preserve",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}


class Encoder:
    """Turns one traced graph into a message; reading ``message`` afterwards gives its parts."""

    def __init__(self, traced: Traced, inputs: StepInputs, given_back: Sequence[int] = ()) -> None:
        """Encodes the whole graph; leaves of the arguments that are ``given_back`` may be changed in place, and are among the results."""
        self.traced, self.inputs = traced, inputs
        self._given_back = {inputs.leaves[leaf] for leaf in given_back}
        self.ops: dict[str, tuple[int, str]] = {}
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.places: dict[tuple[str, int], int] = {}
        self.modules: dict[str, int] = {}
        self.updates: dict[int, int] = {}
        self.returns: list[int] = []
        #: Whether the graph reads gradients that an earlier step left.
        self.reads_stale_gradients = False
        #: The calls of operations that are not PyTorch's own, and the rules that are proved for them.
        self.custom: list[torch.fx.Node] = []
        self.rules: dict[str, str] = {}
        self._stale: set[torch.fx.Node] = set()
        self._origins: list[Origin | None] = []
        # What each FX node stands for: the number of a value, a list or tuple of such, or a Python constant.
        self._env: dict[torch.fx.Node, Any] = {}
        self._placeholders: dict[torch.fx.Node, int] = {}
        #: The values that are on the host on any device.
        self._of_host: set[int] = set()
        self._encode()

    def bytes(self) -> bytes:
        """The message."""
        return pack({"version": 2, "graph": self.message()})

    def message(self) -> dict[str, Any]:
        """The message before it is packed, with the field names of crate ``ir``."""
        parts = self._parts()
        return {
            "ops": [
                {"name": name, "schema": schema, "rule": self.rules.get(name)} for name, (_, schema) in self.ops.items()
            ],
            "inputs": [{"class": i.cls, "name": i.name, "value": n} for n, i in self._numbered_inputs],
            "values": self.values,
            "nodes": [{**node, "part": part} for node, (part, _) in zip(self.nodes, parts, strict=True)],
            "order": list(range(len(self.nodes))),
            "returns": self.returns,
            "updates": sorted(self.updates.items()),
            "places": [{"file": file, "line": line, "column": 0} for file, line in self.places],
            "modules": list(self.modules),
            "parts": [{"kind": kind} for kind in dict(parts).values()],
        }

    def constant_values(self) -> list[int]:
        """The numbers of the values that are constants."""
        return [number for number, item in self._numbered_inputs if item.cls == "constant"]

    def _parts(self) -> list[tuple[int, str]]:
        """The number and the kind of the part of the program that each node stands in."""
        runs = itertools.groupby(part_kinds(self._origins))
        return [(number, kind) for number, (kind, run) in enumerate(runs) for _ in run]

    def _encode(self) -> None:
        self._numbered_inputs: list[tuple[int, StepInput]] = []
        graph = self.traced.graph
        placeholders = iter(list(self.inputs.inputs))
        for node in graph.graph.nodes:
            if self.reads_stale_gradients:
                return
            if node.op == "placeholder":
                self._placeholder(node, next(placeholders, None))
            elif node.op == "get_attr":
                self._env[node] = self._constant(node, getattr(graph, node.target))
            elif node.op == "output":
                self._outputs(node.args[0])
            elif node.target is operator.getitem:
                self._env[node] = self._env[node.args[0]][node.args[1]]
            else:
                self._call(node)

    def _input(self, item: StepInput, tensor: torch.Tensor) -> int:
        number = self._value(tensor, {"input": len(self._numbered_inputs)}, of_host=item.cls == "hyper")
        self._numbered_inputs.append((number, item))
        return number

    def _placeholder(self, node: torch.fx.Node, item: StepInput | None) -> None:
        """An input, or (``None``) a gradient of an earlier step, which must not be read.

        Overwriting it with zeros is well, unless nothing is added to them: an optimizer then goes by whether it is there.
        """
        number = len(self._placeholders) - len(self.inputs.inputs)
        self._placeholders[node] = len(self._numbered_inputs)
        overwrites = (torch.ops.aten.zero.default, torch.ops.aten.copy_.default, torch.ops.aten.zeros_like.default)
        if item is not None:
            self._env[node] = self._input(item, node.meta["val"])
        else:
            read = any(user.target not in overwrites or user.args[0] is not node for user in node.users)
            alone = number in self.traced.untouched and any(user.users for user in node.users)
            self.reads_stale_gradients = read or alone
            self._stale.add(node)

    def _constant(self, node: torch.fx.Node, tensor: Any) -> int:
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(f"the step calls `{node.target}`, which is no operation on tensors", code="U0105")
        node.meta["val"] = TensorType(tensor)
        return self._new_constant(tensor)

    def _new_constant(self, tensor: torch.Tensor) -> int:
        count = sum(item.cls == "constant" for item in self.inputs.inputs)
        item = StepInput("constant", f"constants.{count}", tensor)
        self.inputs.add(item)
        return self._input(item, tensor)

    def _outputs(self, outputs: Any) -> None:
        outputs = [self._env[node] for node in outputs]
        count = len(outputs) - len(self.traced.replaced)
        self.returns = outputs[:count]
        self.updates |= dict(zip(self.traced.replaced, outputs[count:], strict=True))

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            place = place_of(node)
            raise UnsupportedError(f"the step calls `{target}`, which is not supported", code="U0105", place=place)
        if target.namespace == "profiler":
            return
        if node.args and node.args[0] in self._stale:
            if target is torch.ops.aten.copy_.default:
                return
            self._zeros(node)
            return
        if target is torch.ops.aten.copy_.default and node.args[0] in self._placeholders:
            self._update(node)
            return
        if target is torch.ops.aten.detach.default:
            self._env[node] = self._env[node.args[0]]  # type: ignore[index]
            return
        if torch.Tag.inplace_view in target.tags:
            # Only the shape of the operand changes: from here on it is what the operation returns.
            target = getattr(getattr(torch.ops.aten, target.overloadpacket.__name__.rstrip("_")), target._overloadname)
            self._view_in_place(node, target)
            return
        if target._schema.is_mutable:
            raise StepError(
                f"`{target}` changes a tensor in a way that cannot be made functional",
                code="U0106",
                place=place_of(node),
            )
        number = len(self.nodes)
        returns, self._env[node] = self._returns(node, number)
        target = _for_complex(target, node.args)
        self._append(node, target, self._arguments(node, target), returns)

    def _view_in_place(self, node: torch.fx.Node, target: Any) -> None:
        arguments = self._arguments(node, target)
        self._env[node] = self._value(node.meta["val"], {"result": [len(self.nodes), 0]})
        self._append(node, target, arguments, [{"value": self._env[node]}])
        self._env[node.args[0]] = self._env[node]  # type: ignore[index]

    def _append(self, node: torch.fx.Node, target: Any, arguments: list[Any], returns: list[Any]) -> None:
        origin = self._origin(node)
        self._origins.append(origin)
        if target.namespace not in _NOT_CUSTOM:
            self.custom.append(node)
        self.nodes.append(
            {
                "op": self._op(target),
                "args": arguments,
                "returns": returns,
                "place": self._place(origin),
                "module": self.modules.setdefault(origin.module, len(self.modules))
                if origin and origin.module
                else None,
            }
        )

    def _zeros(self, node: torch.fx.Node) -> None:
        """Zeros in the shape of a gradient that is not there."""
        tensor = node.meta["val"]
        op = torch.ops.aten.full.default
        number = len(self.nodes)
        self._env[node] = self._value(tensor, {"result": [number, 0]})
        arguments = [
            plain(list(tensor.shape), "int"),
            plain(0),
            plain(tensor.dtype),
            "none",
            self._argument(tensor.device, "Device", node),
            "none",
        ]
        self._append(node, op, arguments, [{"value": self._env[node]}])

    def _update(self, node: torch.fx.Node) -> None:
        position = self._placeholders[node.args[0]]  # type: ignore[index]
        item = self._numbered_inputs[position][1]
        if item.cls == "hyper":
            raise rate_changed(f"(`{item.name}`)", place_of(node))
        if item.cls == "batch" and position in self._given_back:
            return  # what becomes of it is among the results
        if item.cls == "batch":
            raise StepError(
                f"the step changes its argument `{item.name}` in place",
                code="U0107",
                place=place_of(node) or place_of(node.args[1]),  # type: ignore[arg-type]
                hint="work on a copy: `x = x.clone()`",
            )
        self.updates[position] = self._env[node.args[1]]  # type: ignore[index]
        self._env[node] = self._env[node.args[1]]  # type: ignore[index]

    def _op(self, target: torch._ops.OpOverload) -> int:
        name = name_of(target)
        if name not in self.ops:
            schema = str(target._schema)
            self.ops[name] = (len(self.ops), schema[schema.index("(") :])
        return self.ops[name][0]

    def _origin(self, node: torch.fx.Node) -> Origin | None:
        return (node.meta.get("custom") or {}).get("origin")

    def _place(self, origin: Origin | None) -> int | None:
        if origin is None or not origin.file:
            return None
        return self.places.setdefault((origin.file, origin.line), len(self.places))

    def _value(self, tensor: torch.Tensor | TensorType, definition: dict[str, Any], of_host: bool = False) -> int:
        device = tensor.device if of_host else self.inputs.target.shown(tensor.device)
        self.values.append({"type": {**tensor_type(tensor), "device": _device(device)}, "def": definition})
        number = len(self.values) - 1
        if of_host:
            self._of_host.add(number)
        return number

    def _is_of_host(self, node: torch.fx.Node) -> bool:
        """Whether a node computes with numbers of the host alone, such as a learning rate: they stay there on any device."""
        operands = [self._env[one] for one in node.all_input_nodes]
        moved = any(isinstance(one, torch.device) for one in [*node.args, *node.kwargs.values()])
        return bool(operands) and not moved and all(isinstance(one, int) and one in self._of_host for one in operands)

    def _returns(self, node: torch.fx.Node, number: int) -> tuple[list[Any], Any]:
        """The encoded returns, and what `getitem` on the node finds."""
        made, of_host = node.meta.get("val"), self._is_of_host(node)
        count = 0

        def one(tensor: torch.Tensor | TensorType) -> int:
            nonlocal count
            count += 1
            return self._value(tensor, {"result": [number, count - 1]}, of_host)

        def encode(value: Any) -> tuple[Any, Any]:
            if isinstance(value, torch.Tensor | TensorType):
                made = one(value)
                return {"value": made}, made
            if isinstance(value, list | tuple):
                made = [one(tensor) for tensor in value]
                return {"values": made}, made
            return "none", value

        if len(node.target._schema.returns) == 1:  # type: ignore[union-attr]
            encoded, found = encode(made)
            return [encoded], found
        pairs = [encode(value) for value in made or ()]
        return [encoded for encoded, _ in pairs], [found for _, found in pairs]

    def _arguments(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> list[Any]:
        arguments = []
        for position, (name, kwarg_only, default, kind) in enumerate(parameters(target)):
            given = position < len(node.args) and not kwarg_only
            value = node.args[position] if given else node.kwargs.get(name, default)
            arguments.append(self._argument(value, kind, node))
        return arguments

    def _argument(self, value: Any, kind: str, node: torch.fx.Node) -> Any:
        if isinstance(value, torch.fx.Node):
            value = self._env[value]
            # A return that is no tensor is known when the graph is made.
            return {"value": value} if "Tensor" in kind else plain(value)
        if isinstance(value, list | tuple):
            if "Tensor" in kind:
                return {"values": [None if item is None else self._env[item] for item in value]}
            return plain([self._env.get(i, i) if isinstance(i, torch.fx.Node) else i for i in value], kind)
        value = self.inputs.target.shown(value) if isinstance(value, torch.device) else value
        if isinstance(value, complex) and kind == "Tensor":
            return {"value": self._new_constant(torch.tensor(value, dtype=_complex_type(node)))}
        encoded = plain(value, kind)
        if encoded is None:
            message = f"argument of `{node.target}` of type {type(value).__name__} is not supported"
            hint = "multiply by the number: `torch.ones(..) * 1j`, `x + y * 1j`" if isinstance(value, complex) else None
            raise UnsupportedError(message, code="U0108", place=place_of(node), hint=hint)
        return encoded


def name_of(target: torch._ops.OpOverload) -> str:
    """An operation's name as a graph has it: with the overload, unless that is the default one."""
    schema = target._schema
    return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")


def _for_complex(target: Any, args: Any) -> Any:
    """The same operation with a tensor in the place of a complex number."""
    scaled = target in (torch.ops.aten.mul.Scalar, torch.ops.aten.div.Scalar)
    return target.overloadpacket.Tensor if scaled and any(isinstance(one, complex) for one in args) else target


def _complex_type(node: torch.fx.Node) -> torch.dtype:
    """The type of a complex number that an operation is given beside tensors."""
    types = [one.meta["val"].dtype for one in (node, *node.all_input_nodes)]
    return torch.complex128 if torch.float64 in types or torch.complex128 in types else torch.complex64


@functools.cache
def parameters(target: torch._ops.OpOverload) -> list[tuple[str, bool, Any, str]]:
    """Name, whether it must be named, default value and kind of each argument of an operation."""
    return [(one.name, one.kwarg_only, one.default_value, str(one.real_type)) for one in target._schema.arguments]


def plain(value: Any, kind: str = "") -> Any:
    """An argument that is no tensor."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"float": float(value)} if kind in ("float", "Optional[float]") else {"int": value}
    for types, name, convert in (
        (float, "float", float),
        (str, "str", str),
        (torch.dtype, "dtype", _dtype),
        (torch.layout, "layout", lambda layout: str(layout).removeprefix("torch.")),
        (torch.memory_format, "memory_format", _FORMATS.__getitem__),
        (torch.device, "device", _device),
    ):
        if isinstance(value, types):
            return {name: convert(value)}  # type: ignore[arg-type, index]
    if isinstance(value, list):
        return _plain_list(value, kind)
    return None


def _plain_list(value: list[Any], kind: str) -> Any:
    if all(isinstance(item, bool) for item in value) and (value or "bool" in kind):
        return {"bools": value}
    if "float" in kind or any(isinstance(item, float) for item in value):
        return {"floats": [float(item) for item in value]}
    if "str" in kind:
        return {"strs": value}
    return {"ints": [int(item) for item in value]}


def _dtype(dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        raise UnsupportedError(f"a tensor has elements of {dtype}, which are not supported", code="U0105")
    return _DTYPES[dtype]


def _device(device: torch.device) -> dict[str, Any]:
    return {"kind": device.type, "index": device.index or 0}


def tensor_type(tensor: torch.Tensor | TensorType) -> dict[str, Any]:
    known = TensorType(tensor) if isinstance(tensor, torch.Tensor) else tensor
    return {
        "dtype": _dtype(known.dtype),
        "shape": list(map(int, known.shape)),
        "strides": list(map(int, known.strides)),
        "device": _device(known.device),
    }
