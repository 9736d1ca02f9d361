"""Values that follow from the tensors that a call gives, and from buffers that the step leaves alone: they are known before the step.

While a step is traced, what it reads of such tensors is computed from those of the call that is captured, by the operations that have been
recorded. These operations, as plain data, compute it before each later call. Buffers are constants there: they are looked at before each
step.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.known import is_lifted, writers
from unisono._capture.record import Recorder

#: One operation or one source: ``["leaf", n, copied]`` for the n-th leaf of the arguments, ``["tensor", type, shape, values]``, ``["item",
#: operand, n]``, ``["aten.add.Tensor", arguments, named arguments]``, and ``["block", rows]`` for the last of rows of its own, some of
#: which write into others. An operand is ``["@", n]`` for what the n-th row gives.
Row = list[Any]
#: Maximum entries of a tensor of the step's own that a row holds.
_MOST_ENTRIES = 1 << 12
_NAMED = (torch.layout, torch.memory_format)


class Given:
    """The tensors that a call gives, with what the step is taken to compute of them alone.

    Attributes:
        is_known: whether values of theirs are known.
        asked: the leaves of the arguments by whose values the step may choose all the same; ``None`` where it may by none.
        constants: how often a value was taken for the same at every call; ``None`` where none is, since the step changes what
            one followed from.
        values: what rows give for the call that is captured.
        rows: what values follow from, each once.
    """

    def __init__(self, leaves: Sequence[Any] | None = None) -> None:
        """Takes the leaves of the arguments, if they have values."""
        self.is_known = False
        self.asked: set[int] | None = None if leaves is None else set()
        self.constants: int | None = 0
        self.rows: list[Row] = []
        self._has_values, self._numbers = leaves is not None, dict[str, int]()
        self.values = Values(self.rows, leaves or [])

    def may_be_known(self) -> bool:
        """Whether they can become known: they have values."""
        return self._has_values and not self.is_known

    def ask(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor follows from the arguments alone and they have values; by these the step may choose from now on."""
        recorder = Recorder.current
        node = recorder.node_of(tensor) if recorder is not None else None
        if not (self.is_known or self.asked is not None) or node is None or recorder is None:
            return False
        found = _Block(recorder)
        rows = found.of(node)
        leaves = [] if rows is None else leaves_of([["block", rows]], 0)
        if leaves:
            found.note_asked()
        if self.asked is not None:
            self.asked.update(leaves)
        return bool(leaves)

    def row_of(self, node: torch.fx.Node | None, *, chooses: bool = False) -> int | None:
        """The number of the row that gives what a recorded node does; ``None`` if that follows from more than the arguments.

        Where the values of the arguments are not known, the step may only be one that ``chooses`` by it.
        """
        recorder = Recorder.current
        if not (self.is_known or (chooses and self.asked)) or node is None or recorder is None:
            return None
        found = _Block(recorder)
        rows = found.of(node)
        if rows is None or not (self.is_known or {*leaves_of([["block", rows]], 0)} <= (self.asked or set())):
            return None
        found.note_asked()
        if found.writes:
            return self._number(["block", rows])
        numbers: list[int] = []
        for row in rows:
            numbers.append(self._number(_renumbered(row, numbers)))
        return numbers[-1]

    def constant(self, node: torch.fx.Node | None) -> Any:
        """What a recorded node gives at every call, because it follows from no argument; ``None`` where it does."""
        recorder = Recorder.current
        if self.constants is None or recorder is None or node is None:
            return None
        found = _Block(recorder)
        rows = found.of(node)
        if rows is None or leaves_of([["block", rows]], 0):
            return None
        found.note_asked()
        self.constants += 1
        with plainly():
            return _computed(["block", rows], {}, ())

    def example(self, node: torch.fx.Node | None) -> torch.Tensor | None:
        """What a recorded node gives for the call that is captured; ``None`` where that is not known. Nothing is taken for granted."""
        recorder = Recorder.current
        rows = _Block(recorder).of(node) if self._has_values and recorder is not None and node is not None else None
        if rows is None:
            return None
        with plainly():
            return _computed(["block", rows], {}, self.values.leaves).clone()

    def _number(self, row: Row) -> int:
        key = repr(row)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]


def _renumbered(one: Any, numbers: Sequence[int]) -> Any:
    """The same with other numbers of operands."""
    if isinstance(one, dict):
        return {key: _renumbered(part, numbers) for key, part in one.items()}
    if not isinstance(one, list):
        return one
    return ["@", numbers[one[1]]] if one[:1] == ["@"] else [_renumbered(part, numbers) for part in one]


class Values(dict[int, Any]):
    """What rows give for the leaves of a call, each computed once.

    Attributes:
        leaves: the leaves.
    """

    def __init__(self, rows: Sequence[Row], leaves: Sequence[Any]) -> None:
        """Computes nothing yet."""
        super().__init__()
        self._rows, self.leaves = rows, leaves

    def __missing__(self, number: int) -> Any:
        made = self[number] = _computed(self._rows[number], self, self.leaves)
        return made

    def made(self, number: int) -> Any:
        """What a row gives."""
        with plainly():
            return self[number]

    def read(self, what: str, number: int) -> Any:
        """The one number that a row gives, its shape, or all its entries."""
        with plainly():
            made = self[number]
            if not isinstance(made, torch.Tensor):
                return made
            return made.item() if what == "number" else [*made.shape] if what == "shape" else made.tolist()

    def array(self, number: int) -> Any:
        """What a row gives as an array of its own."""
        with plainly():
            return self[number].clone().numpy()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Lets PyTorch compute as if nothing was traced."""
    if Recorder.current is None:
        with torch.no_grad():
            yield
        return
    with _disable_current_modes(), unset_fake_temporarily(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def leaves_of(rows: Sequence[Row], number: int) -> list[int]:
    """The leaves of the arguments that a row follows from."""
    return [*dict.fromkeys(_leaves_in(rows[number], rows))]


def _leaves_in(one: Any, rows: Sequence[Row]) -> Iterator[int]:
    if isinstance(one, dict):
        one = [*one.values()]
    if not isinstance(one, list):
        return
    if one[:1] == ["leaf"]:
        yield one[1]
    elif one[:1] == ["@"]:
        yield from _leaves_in(rows[one[1]], rows)
    else:
        within = one[1] if one[:1] == ["block"] else rows
        for part in one:
            yield from _leaves_in(part, within)


def _computed(row: Row, made: Mapping[int, Any], leaves: Sequence[Any]) -> Any:
    kind, *rest = row
    match kind:
        case "leaf":
            return leaves[rest[0]].detach().to("cpu", copy=rest[1])
        case "tensor":
            return torch.tensor(rest[2], dtype=getattr(torch, rest[0])).reshape(rest[1])
        case "item":
            return _operand(rest[0], made)[rest[1]]
        case "block":
            within: dict[int, Any] = {}
            for number, one in enumerate(rest[0]):
                within[number] = _computed(one, within, leaves)
            return within[len(rest[0]) - 1]
    args, kwargs = rest
    named = {key: _operand(one, made) for key, one in kwargs.items()}
    return _operation(kind)(*[_operand(one, made) for one in args], **named)


@functools.cache
def _operation(name: str) -> Callable[..., Any]:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _operand(one: Any, made: Mapping[int, Any]) -> Any:
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
        #: Whether rows write into others.
        self.writes = False
        self._outside: list[torch.Tensor] = []

    def of(self, node: torch.fx.Node) -> list[Row] | None:
        """All rows, that of a node last; ``None`` where something is unknown."""
        try:
            wanted = _sources(node, self._recorder)
            ordered = sorted(wanted)
            self.writes = any(map(_is_mutable, ordered))
            rows: list[Row] = []
            for one in ordered:
                rows.append(self._row(one))
                self._rows[one] = len(rows) - 1
        except _Unknown:
            return None
        at = self._rows[node]
        return rows if at == len(rows) - 1 else [*rows, ["aten.alias.default", [["@", at]], {}]]

    def note_asked(self) -> None:
        """Notes that something follows from the tensors from outside that the rows have the values of."""
        self._recorder.note_asked(self._outside)

    def _row(self, node: torch.fx.Node) -> Row:
        if node in self._recorder.given:
            return ["leaf", self._recorder.given[node], self.writes]
        if node.op == "placeholder":
            return self._constant(node, self._recorder.buffers[node])
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
        with plainly():
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


def _sources(node: torch.fx.Node, recorder: Recorder) -> set[torch.fx.Node]:
    """All nodes that one follows from, itself included, and those that write into one of these."""
    inputs = recorder.given.keys() | recorder.buffers.keys()
    found: set[torch.fx.Node] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        random = torch.Tag.nondeterministic_seeded in getattr(one.target, "tags", ())
        if random or (one.op == "placeholder" and one not in inputs) or one.op == "output":
            raise _Unknown
        found.add(one)
        todo.extend(one.all_input_nodes)
        todo.extend(writers(one))
    return found


def _is_mutable(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
