"""What a capture rests on, as one number: steps with the same number are captured as the same graph.

The walk takes in all that a step's code can reach, and refuses what it does not know (:class:`Unknowable`): such a step is captured
anew. ``docs/design/011-capture-cache.md`` says why equal numbers mean equal graphs.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import types
import typing
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from unisono._capture.origins import origin, origin_of_file

#: Most bytes of a tensor that is no input and whose values count.
_MOST_BYTES = 1 << 24
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range)
_ATOMS += (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_TYPING = (types.GenericAlias, types.UnionType, typing.TypeVar, typing._Final)  # type: ignore[attr-defined]
#: Names by which code reads what the walk does not see.
_FORBIDDEN = frozenset(
    """open input eval exec compile globals locals vars dir __import__ breakpoint id hash __globals__ __builtins__ __subclasses__
    __code__ f_globals f_locals f_back tb_frame gi_frame cr_frame _getframe currentframe seed initial_seed default_generator
    get_rng_state Generator device_count get_num_threads memory_allocated library ops backends get_num_interop_threads data_ptr""".split()  # noqa: SIM905
)
_HEAP_TYPE = 1 << 9
_CONTAINERS = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    types.SimpleNamespace,
)
_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


_PARTS_OF_CODE = """co_code co_filename co_name co_qualname co_firstlineno co_linetable co_exceptiontable co_flags co_argcount
    co_posonlyargcount co_kwonlyargcount co_nlocals co_stacksize""".split()  # noqa: SIM905


class Unknowable(Exception):  # noqa: N818
    """A step reaches something of which it is not known what it does."""


def reached(roots: Any, inputs: Iterable[torch.Tensor]) -> str:
    """The number of what ``roots`` reach.

    Args:
        roots: what a step is called with and on.
        inputs: the tensors whose values the graph reads from its inputs, so that they do not count.

    Raises:
        Unknowable: something that they reach is not known.
    """
    walk = Walk({id(tensor) for tensor in inputs})
    walk.add(roots)
    return walk.finished()


class Walk:
    """Takes in objects one after the other; each is described once, by what it holds, and has a number from then on."""

    def __init__(self, inputs: set[int]) -> None:
        self._hash, self._inputs = hashlib.blake2b(digest_size=16), inputs
        self._numbers: dict[int, int] = {}
        self._todo: collections.deque[Any] = collections.deque()
        #: Keeps what was numbered, so that no other object gets its ``id``.
        self._alive: list[Any] = []
        self._storages: dict[int, int] = {}
        self._codes: dict[types.CodeType, str] = {}

    def note(self, *parts: str) -> None:
        """Takes in texts."""
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def add(self, value: Any) -> None:
        """Takes in a value and all that it reaches."""
        self.note(self._shown(value))
        while self._todo:
            one = self._todo.popleft()
            try:
                self.note(*self._described(one))
            except Unknowable:
                raise
            except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
                raise Unknowable(f"a {_name(type(one))}: {error}") from error

    def finished(self) -> str:
        """The number."""
        return self._hash.hexdigest()

    def _shown(self, value: Any) -> str:
        """A value as it stands, or the number that it has."""
        kind = type(value)
        if kind in _ATOMS:
            return f"{kind.__name__} {value!r}"
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._todo.append(value)
        return f"#{self._numbers[id(value)]}"

    def _all(self, values: Iterable[Any]) -> Iterator[str]:
        yield "["
        for value in values:
            yield self._shown(value)
        yield "]"

    def _pairs(self, values: Iterable[tuple[Any, Any]]) -> Iterator[str]:
        yield "{"
        for key, value in values:
            yield self._shown(key)
            yield self._shown(value)
        yield "}"

    def _described(self, value: Any) -> Iterator[str]:
        """All that matters of a value, each part as it stands or by its number."""
        kind = type(value)
        yield _name(kind)
        if isinstance(value, torch.Tensor):
            yield from self._tensor(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.MethodType):
            yield from self._all((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            yield from self._all((value.func, value.args, value.keywords, vars(value)))
        elif isinstance(value, types.BuiltinFunctionType):
            yield from self._builtin(value)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, _DESCRIPTORS):
            yield repr(value)
            yield from self._all([getattr(value, "__objclass__", None)])
        elif isinstance(value, types.MethodWrapperType):
            yield value.__name__
            yield from self._all([value.__self__])
        elif isinstance(value, slice):
            yield from self._all((value.start, value.stop, value.step))
        elif isinstance(value, dataclasses.Field):
            given = (value.default, value.default_factory)
            yield from self._all(
                (value.name, value.type, *(NotImplemented if v is dataclasses.MISSING else v for v in given))
            )
        elif kind.__module__ == "dataclasses":
            yield repr(value)
        elif isinstance(value, staticmethod | classmethod):
            yield from self._all([value.__func__])
        elif isinstance(value, property):
            yield from self._all((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            yield from self._all((value.func, value.attrname))
        elif isinstance(value, weakref.ref):
            yield from self._all([value()])
        elif isinstance(value, types.CellType):
            yield from self._all([_held(value)])
        elif isinstance(value, types.MappingProxyType):
            yield from self._pairs(value.items())
        elif isinstance(value, _TYPING):
            yield repr(value)
        elif isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            yield self._operation(str(value))
        else:
            yield from self._object(value)

    def _tensor(self, value: torch.Tensor) -> Iterator[str]:
        if (
            type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer)
            or value.layout != torch.strided
            or not value.is_leaf
        ):
            raise Unknowable("a tensor of a special kind, or one that autograd has made")
        storage = value.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._storages))
        yield f"{value.dtype} {value.device} {tuple(value.shape)} {value.stride()} {value.storage_offset()} {number}"
        yield f"{storage.nbytes()} {value.requires_grad} {value.is_conj()} {value.is_neg()} {value.is_inference()}"
        yield from self._all((value.grad, value._backward_hooks, value._post_accumulate_grad_hooks, vars(value)))
        if id(value) not in self._inputs and value.device.type != "meta":
            yield _values(value)

    def _class(self, value: type) -> Iterator[str]:
        yield value.__module__
        yield value.__qualname__
        if origin(value.__module__) != "user" and _stands_there(value):
            self._require_known_module(value.__module__, value.__qualname__)
            return
        yield from self._all((*value.__bases__, type(value)))
        left = ("__dict__", "__weakref__", "_abc_impl", "__doc__")
        yield from self._pairs((key, part) for key, part in list(vars(value).items()) if key not in left)

    def _function(self, value: types.FunctionType) -> Iterator[str]:
        code = value.__code__
        yield value.__module__ or ""
        yield value.__qualname__
        yield self._code(code)
        yield from self._all((value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ()), vars(value)))
        where = origin_of_file(code.co_filename)
        if where == "user":
            yield from self._globals(value, code)
        elif where == "library":
            # By where its code is: what wraps another has that one's module.
            self._require_known_module(value.__globals__.get("__name__", ""), value.__qualname__)

    def _globals(self, value: types.FunctionType, code: types.CodeType) -> Iterator[str]:
        """What the names of a function's code mean, in code within it too."""
        names = _names(code)
        forbidden = names & _FORBIDDEN
        if forbidden:
            raise Unknowable(f"`{min(forbidden)}` in {value.__qualname__}")
        for name in sorted(names):
            for scope in (value.__globals__, vars(builtins)):
                if name in scope:
                    yield name
                    yield self._shown(scope[name])
                    break
        for module in _imports(code):
            if module not in sys.modules:
                raise Unknowable(f"`import {module}` in {value.__qualname__}")
            yield self._shown(sys.modules[module])

    def _code(self, code: types.CodeType) -> str:
        if code not in self._codes:
            inner = Walk(set())
            for name in _PARTS_OF_CODE:
                inner.note(name, repr(getattr(code, name, None)))
            inner.note(*code.co_names, "", *code.co_varnames, "", *code.co_freevars, "", *code.co_cellvars, "")
            for const in code.co_consts:
                inner.note(self._code(const) if isinstance(const, types.CodeType) else _constant(const))
            self._codes[code] = inner.finished()
        return self._codes[code]

    def _builtin(self, value: Any) -> Iterator[str]:
        owner = value.__self__
        yield value.__qualname__
        if owner is None or isinstance(owner, types.ModuleType):
            self._require_known_module(value.__module__ or "torch", value.__qualname__)
        if owner is not None:
            yield from self._all([owner])

    def _module(self, value: types.ModuleType) -> Iterator[str]:
        yield value.__name__
        if origin(value.__name__) == "user":
            left = {key for key in vars(value) if key.startswith("__")}
            yield from self._pairs((key, part) for key, part in list(vars(value).items()) if key not in left)
        else:
            self._require_known_module(value.__name__, value.__name__)

    def _operation(self, name: str) -> str:
        if name.partition(".")[0] not in ("aten", "prims", "prim"):
            raise Unknowable(f"`torch.ops.{name}`")
        return name

    def _object(self, value: Any) -> Iterator[str]:
        kind = type(value)
        if isinstance(value, enum.Enum):
            yield from self._all((kind, value.name, value.value))
            return
        if kind.__module__.partition(".")[0] == "torch" and not isinstance(value, _TORCH_OBJECTS):
            raise Unknowable(f"a {_name(kind)}")
        native = [base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE and base is not object]
        where = origin(kind.__module__)
        own = where in ("user", "torch") or kind in _CONTAINERS
        if not own or any(base not in _CONTAINERS for base in native):
            raise Unknowable(f"a {_name(kind)}")
        yield from self._all([kind])
        if isinstance(value, dict):
            yield from self._pairs(value.items())
        elif isinstance(value, list | tuple | set | frozenset | collections.deque):
            yield from self._all(value)
        if isinstance(value, collections.defaultdict):
            yield from self._all([value.default_factory])
        if isinstance(value, collections.deque):
            yield str(value.maxlen)
        held = dict(getattr(value, "__dict__", {}))
        if isinstance(value, nn.Module):
            # In no order: only asked whether a name is there.
            yield from self._all(sorted(held.pop("_non_persistent_buffers_set", ())))
        yield from self._pairs(held.items())
        yield from self._pairs(_slots(value))

    def _require_known_module(self, module: str, name: str) -> None:
        if origin(module) not in ("torch", "pure", "unisono"):
            raise Unknowable(f"`{name}` of {module}")
        if name.rpartition(".")[2] in _FORBIDDEN and module == "builtins":
            raise Unknowable(f"`{name}`")


_TORCH_OBJECTS = (
    nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.utils.hooks.RemovableHandle,
    torch.no_grad,
    torch.enable_grad,
)


def _stands_there(kind: type) -> bool:
    """Whether a class is what its module has by its name, and not made elsewhere, as Python code can."""
    if (
        not kind.__flags__ & _HEAP_TYPE
        or kind.__module__.startswith("torch._C")
        or type(kind).__name__ == "pybind11_type"
    ):
        return True
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented  # empty as yet


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _values(tensor: torch.Tensor) -> str:
    """A hash of what is in a tensor."""
    if tensor.numel() * tensor.element_size() > _MOST_BYTES:
        raise Unknowable("a tensor of more than 16 MiB that is no input")
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return hashlib.blake2b(bytes(plain.tolist()), digest_size=16).hexdigest()


def _constant(value: Any) -> str:
    """A constant of code as text, the same in every process."""
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


@functools.lru_cache(maxsize=8192)
def _names(code: types.CodeType) -> frozenset[str]:
    """All names of globals and attributes in code, in code within it too."""
    return frozenset(code.co_names).union(
        *(_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    )


def _imports(code: types.CodeType) -> Iterator[str]:
    """The modules that code imports."""
    before: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            if before[-2] != 0:
                raise Unknowable("a relative import")
            yield instruction.argval
        before.append(instruction.argval)
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _imports(part)
