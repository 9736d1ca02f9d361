"""Values that follow from the tensors that a call gives, and from nothing else: they are known before the step.

While a step is traced, what it reads of such tensors is computed from those of the call that is captured, by the operations that have been
recorded. These operations, as plain data, compute it before each later call.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.known import is_lifted
from unisono._capture.record import Recorder

#: One operation or one source: ``["leaf", n]`` for the n-th leaf of the arguments, ``["tensor", type, shape, values]``, ``["item", operand,
#: n]`` and ``["aten.add.Tensor", arguments, named arguments]``. An operand is ``["@", n]`` for what the n-th row gives.
Row = list[Any]
#: Rows for what one value follows from; the last row gives it.
Block = list[Row]
#: Maximum entries of a tensor of the step's own that a row holds.
_MOST_ENTRIES = 1 << 12
_NAMED = (torch.layout, torch.memory_format)


class Given:
    """The tensors that a call gives, with what the step is taken to compute of them alone.

    Attributes:
        is_known: whether values of theirs are known.
        values: what blocks give for the call that is captured.
        blocks: rows of operations, each block with those that a value follows from; the last row gives it.
    """

    def __init__(self, leaves: Sequence[Any] | None = None) -> None:
        """Takes the leaves of the arguments, if they have values."""
        self.is_known = False
        self.blocks: list[Block] = []
        self._has_values, self._numbers = leaves is not None, dict[str, int]()
        self.values = Values(self.blocks, leaves or [])

    def may_be_known(self) -> bool:
        """Whether they can become known: they have values."""
        return self._has_values and not self.is_known

    def block_of(self, node: torch.fx.Node | None) -> int | None:
        """The number of the block that computes what a recorded node gives; ``None`` if that follows from more than the arguments."""
        recorder = Recorder.current
        if not self.is_known or node is None or recorder is None:
            return None
        found = _Block(recorder).of(node)
        if found is None:
            return None
        key = repr(found)
        if key not in self._numbers:
            self._numbers[key] = len(self.blocks)
            self.blocks.append(found)
        return self._numbers[key]


class Values(dict[int, Any]):
    """What blocks give for the leaves of a call, each computed once."""

    def __init__(self, blocks: Sequence[Block], leaves: Sequence[Any]) -> None:
        """Computes nothing yet."""
        super().__init__()
        self._blocks, self._leaves = blocks, leaves

    def __missing__(self, number: int) -> Any:
        with _plainly():
            made = self[number] = _computed(self._blocks[number], self._leaves)
        return made

    def read(self, what: str, number: int) -> Any:
        """The one number that a block gives, its shape, or all its entries."""
        made = self[number]
        with _plainly():
            if not isinstance(made, torch.Tensor):
                return made
            return made.item() if what == "number" else [*made.shape] if what == "shape" else made.tolist()

    def array(self, number: int) -> Any:
        """What a block gives as an array of its own."""
        made = self[number]
        with _plainly():
            return made.clone().numpy()


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Lets PyTorch compute as if nothing was traced."""
    with _disable_current_modes(), unset_fake_temporarily(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def leaves_of(block: Block) -> list[int]:
    """The leaves of the arguments that a value follows from."""
    return [row[1] for row in block if row[0] == "leaf"]


def _computed(block: Block, leaves: Sequence[Any]) -> Any:
    made: list[Any] = []
    for kind, *rest in block:
        match kind:
            case "leaf":
                made.append(leaves[rest[0]].detach().to("cpu", copy=rest[1]))
            case "tensor":
                made.append(torch.tensor(rest[2], dtype=getattr(torch, rest[0])).reshape(rest[1]))
            case "item":
                made.append(_operand(rest[0], made)[rest[1]])
            case _:
                args, kwargs = rest
                named = {key: _operand(one, made) for key, one in kwargs.items()}
                made.append(_operation(kind)(*(_operand(one, made) for one in args), **named))
    return made[-1]


def _operation(name: str) -> Callable[..., Any]:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _operand(one: Any, made: Sequence[Any]) -> Any:
    if not isinstance(one, list | tuple):
        return one
    kind, *rest = one
    match kind:
        case "@":
            return made[rest[0]]
        case "list":
            return [_operand(part, made) for part in rest[0]]
        case "device":
            return torch.device("cpu")
    return getattr(torch, rest[0])


class _Unknown(Exception):  # noqa: N818
    """Something follows from more than the arguments."""


class _Block:
    """Rows for what recorded nodes give."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rows: dict[torch.fx.Node, int] = {}
        self._outside: list[torch.Tensor] = []

    def of(self, node: torch.fx.Node) -> Block | None:
        """All rows, that of a node last; ``None`` where something is unknown."""
        try:
            wanted = _sources(node, self._recorder.given)
            ordered = [one for one in node.graph.nodes if one in wanted]
            writes = any(_is_mutable(one) for one in ordered)
            rows: Block = []
            for one in ordered:
                rows.append(self._row(one, writes))
                self._rows[one] = len(rows) - 1
        except _Unknown:
            return None
        if self._outside:
            self._recorder.note_asked(self._outside)
        at = self._rows[node]
        return rows if at == len(rows) - 1 else [*rows, ["aten.alias.default", [["@", at]], {}]]

    def _row(self, node: torch.fx.Node, writes: bool) -> Row:
        if node.op == "placeholder":
            return ["leaf", self._recorder.given[node], writes]
        if node.op == "get_attr":
            return self._constant(node, getattr(self._recorder.root, str(node.target)))
        if node.target is operator.getitem:
            return ["item", self._plain(node.args[0]), node.args[1]]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _Unknown
        args = [self._plain(one) for one in node.args]
        return [str(node.target), args, {key: self._plain(one) for key, one in node.kwargs.items()}]

    def _constant(self, node: torch.fx.Node, tensor: torch.Tensor) -> Row:
        if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.numel() > _MOST_ENTRIES or tensor.is_complex():
            raise _Unknown
        if not is_lifted(node):
            self._outside.append(tensor)
        with _plainly():
            return ["tensor", _name(tensor.dtype), list(tensor.shape), tensor.detach().flatten().tolist()]

    def _plain(self, one: Any) -> Any:
        if isinstance(one, torch.fx.Node):
            return ["@", self._rows[one]]
        if isinstance(one, list | tuple):
            return ["list", [self._plain(part) for part in one]]
        if one is None or isinstance(one, bool | int | float | str):
            return one
        if isinstance(one, torch.device):
            return ["device"]
        if isinstance(one, torch.dtype):
            return ["dtype", _name(one)]
        if isinstance(one, _NAMED):
            return ["named", _name(one)]
        raise _Unknown


def _name(one: Any) -> str:
    return str(one).removeprefix("torch.")


def _sources(node: torch.fx.Node, given: Mapping[torch.fx.Node, int]) -> set[torch.fx.Node]:
    """All nodes that one follows from, itself included, and those that write into one of these."""
    found: set[torch.fx.Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        random = torch.Tag.nondeterministic_seeded in getattr(one.target, "tags", ())
        if random or (one.op == "placeholder" and one not in given) or one.op == "output":
            raise _Unknown
        found.add(one)
        todo.extend(one.all_input_nodes)
        todo.extend(_writers(one))
    return found


def _writers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The operations that write into what a node gives, itself or through views."""
    todo, seen = [node], {node}
    while todo:
        one = todo.pop()
        for user in one.users:
            if user in seen or not isinstance(user.target, torch._ops.OpOverload):
                continue
            seen.add(user)
            if one in _written(user):
                yield user
            elif any(returned.alias_info is not None for returned in user.target._schema.returns):
                todo.append(user)


def _written(node: torch.fx.Node) -> list[Any]:
    """The arguments that an operation writes into, also those in lists."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given = zip(node.target._schema.arguments, node.args, strict=False)
    written = [one for argument, one in given if argument.alias_info is not None and argument.alias_info.is_write]
    return [part for one in written for part in (one if isinstance(one, list | tuple) else [one])]


def _is_mutable(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
