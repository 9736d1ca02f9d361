"""Arguments and results of steps as leaves and the structure that holds them.

Containers are tuples, lists, named tuples, dictionaries and what is like one (``BatchEncoding``), dataclasses, and classes that are
registered with PyTorch's pytree (results of models). Everything else is a leaf, but for objects among the arguments that hold tensors in
their attributes, such as graphs: their attributes are entries, and weak references to an object around them are made anew.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

#: ``None`` for a leaf, else the kind of container, its class, its keys and the structures of its entries.
Structure = tuple[str, Any, tuple[Any, ...], tuple[Any, ...]] | None

#: What may be a leaf beside tensors: it is the same at every step that a captured step serves.
PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)
_ATOMS = frozenset((torch.Tensor, torch.nn.Parameter, *PLAIN))
#: What has attributes and is never a container.
_NO_OBJECTS = (
    type, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.Generator,
    types.ModuleType, types.FunctionType, types.MethodType,
)  # fmt: skip
#: How deep an object may hold its tensors.
_DEEPEST = 6


def flatten(value: Any, *, opens_objects: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of a value in order, and how they are put together; whether objects that hold tensors are containers, too."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, () if opens_objects else None)


def named_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a value with their paths, such as ``x.0.mask``; objects that hold tensors are containers."""
    yield from _named(value, name, ())


def _named(value: Any, name: str, around: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    opened = _opened(value, around)
    if opened is None:
        yield name, value
        return
    around = (*around, value) if opened[0] == "object" else around
    for key, entry in zip(opened[2], opened[3], strict=False):
        yield from _named(entry, f"{name}.{key}" if name else str(key), around)


def unflatten(structure: Structure, leaves: Iterator[Any], like: Any = None, around: tuple[Any, ...] = ()) -> Any:
    """A value of a structure with other leaves.

    Args:
        structure: the structure.
        leaves: the leaves, in order.
        like: what a container has beside its entries is as there.
        around: the objects of which it is a part, the outermost first.
    """
    if structure is None:
        return next(leaves)
    kind, cls, keys, parts = structure
    if kind == "class":
        return cls
    if kind == "up":
        return cls(around[keys[0]])
    if kind == "object":
        made = object.__new__(cls)
        for key, part in zip(keys, parts, strict=True):
            vars(made)[key] = unflatten(part, leaves, None, (*around, made))
        return made
    opened = None if like is None else _opened(like)
    likes = (None,) * len(parts) if opened is None else opened[3]
    entries = [unflatten(part, leaves, one, around) for part, one in zip(parts, likes, strict=True)]
    return _CLOSED[kind](cls, keys, entries, like)


def plain(structure: Structure) -> Any:
    """A structure as plain data, which other ranks can be told."""
    if structure is None:
        return None
    kind, cls, keys, parts = structure
    named = cls if kind != "registered" else cls[0]
    context = None if kind != "registered" else pytree.treespec_dumps(pytree.TreeSpec(cls[0], cls[1], []))
    return [kind, f"{named.__module__}:{named.__qualname__}", context, list(keys), [plain(part) for part in parts]]


def from_plain(data: Any, classes: Mapping[str, type]) -> Structure:
    """The structure that :func:`plain` made; classes that no module has by name are looked up in ``classes``."""
    if data is None:
        return None
    kind, name, context, keys, parts = data
    cls: Any = classes.get(name) or _imported(name)
    if kind == "registered":
        cls = (cls, pytree.treespec_loads(context).context)
    return kind, cls, tuple(keys), tuple(from_plain(part, classes) for part in parts)


def shown(structure: Structure) -> str:
    """A structure as people write it, with dots for leaves: ``(.., {'mask': ..})``."""
    if structure is None or structure[0] in ("class", "up"):
        return ".."
    kind, cls, keys, parts = structure
    entries = [shown(part) for part in parts]
    if kind in ("named", "dataclass", "object"):
        named = ", ".join(f"{key}={entry}" for key, entry in zip(keys, entries, strict=True))
        return f"{cls.__name__}({named})"
    if kind in ("tuple", "list"):
        inside = ", ".join(entries) + ("," if kind == "tuple" and len(entries) == 1 else "")
        return f"({inside})" if kind == "tuple" else f"[{inside}]"
    name = "" if kind == "dict" else (cls if kind == "mapping" else cls[0]).__name__
    return name + "{" + ", ".join(f"{key!r}: {entry}" for key, entry in zip(keys, entries, strict=True)) + "}"


def classes_of(structure: Structure) -> Iterator[type]:
    """The classes of all containers of a structure."""
    if structure is not None:
        yield structure[1] if structure[0] != "registered" else structure[1][0]
        for part in structure[3]:
            yield from classes_of(part)


def _flatten(value: Any, leaves: list[Any], around: tuple[Any, ...] | None) -> Structure:
    opened = None if type(value) in _ATOMS else _opened(value, around)
    if opened is None:
        leaves.append(value)
        return None
    kind, cls, keys, entries = opened
    if kind == "object" and around is not None:
        around = (*around, value)
    return kind, cls, keys, tuple([_flatten(entry, leaves, around) for entry in entries])


def _opened(
    value: Any, around: tuple[Any, ...] | None = None
) -> tuple[str, Any, tuple[Any, ...], Sequence[Any]] | None:
    """The kind of a container, its class, keys and entries; ``None`` for a leaf.

    Objects are opened where it is known which are ``around``.
    """
    cls = type(value)
    if cls is tuple or cls is list:
        return cls.__name__, cls, tuple(range(len(value))), value
    if cls is dict:
        return "dict", cls, tuple(value), list(value.values())
    if cls in pytree.SUPPORTED_NODES and not issubclass(cls, PLAIN):
        entries, context = pytree.SUPPORTED_NODES[cls].flatten_fn(value)
        keys = tuple(value) if isinstance(value, Mapping) else tuple(range(len(entries)))
        return "registered", (cls, context), keys, entries
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return "named", cls, value._fields, value  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return "dataclass", cls, names, [getattr(value, name) for name in names]
    content = value if isinstance(value, Mapping) else _dict_in(value)
    if content is not None and around and not isinstance(value, dict) and _dict_in(value) is None:
        return _opened_object(value, around)  # it knows more than its entries, such as the object around it
    if content is not None:
        return "mapping", cls, tuple(content.keys()), list(content.values())
    return None if around is None else _opened_object(value, around)


def _opened_object(value: Any, around: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...], Sequence[Any]] | None:
    """The same of an object that holds tensors in its attributes, of a weak reference to one around it, and of a class in one."""
    if type(value) is weakref.ReferenceType:
        at = next((at for at, one in enumerate(around) if one is value()), None)
        return None if at is None else ("up", weakref.ref, (at,), ())
    if isinstance(value, type) and around:
        return "class", value, (), ()
    is_within_itself = any(one is value for one in around)
    if is_within_itself or not (_is_an_object(value) and _holds_tensors(value, 0)):
        return None
    return "object", type(value), tuple(vars(value)), list(vars(value).values())


def _is_an_object(value: Any) -> bool:
    """Whether all of a value is in its attributes."""
    kind = type(value)
    module = sys.modules.get(kind.__module__)
    # A class that is made by `ABCMeta`, say, names that module as its own.
    top = kind.__module__.partition(".")[0] if getattr(module, kind.__name__, None) is kind else ""
    if isinstance(value, _NO_OBJECTS) or not hasattr(value, "__dict__") or top in ("torch", "numpy"):
        return False
    has_more = kind.__basicsize__ > _Bare.__basicsize__  # slots, or memory of a class in C
    return not has_more and (top not in sys.stdlib_module_names or kind.__name__ in _NAMESPACES)


class _Bare:
    """An object with attributes and nothing else."""


#: Classes of the standard library that hold what users put into them.
_NAMESPACES = ("SimpleNamespace", "Namespace")


def _holds_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth > _DEEPEST or type(value) in _ATOMS:
        return False
    opened = _opened(value)
    entries = opened[3] if opened is not None else vars(value).values() if _is_an_object(value) else ()
    return any(_holds_tensors(entry, depth + 1) for entry in entries)


def _dict_in(value: Any) -> dict[Any, Any] | None:
    """The dictionary in what is like one, such as a ``UserDict``."""
    data = vars(value).get("data") if hasattr(value, "__dict__") and hasattr(type(value), "keys") else None
    return data if isinstance(data, dict) else None


def _dataclass(cls: Any, keys: Sequence[str], entries: Sequence[Any], like: Any) -> Any:
    made = object.__new__(cls)
    for name, entry in (*vars(like or made).items(), *zip(keys, entries, strict=True)):
        object.__setattr__(made, name, entry)
    return made


def _mapping(cls: Any, keys: Sequence[Any], entries: Sequence[Any], like: Any) -> Any:
    content = dict(zip(keys, entries, strict=True))
    if like is None or not isinstance(getattr(like, "data", None), dict):
        return cls(content)
    made = cls.__new__(cls)
    made.__dict__.update(vars(like))
    made.data = content
    return made


_CLOSED: dict[str, Callable[[Any, Sequence[Any], list[Any], Any], Any]] = {
    "tuple": lambda cls, keys, entries, like: tuple(entries),
    "list": lambda cls, keys, entries, like: entries,
    "dict": lambda cls, keys, entries, like: dict(zip(keys, entries, strict=True)),
    "named": lambda cls, keys, entries, like: cls(*entries),
    "registered": lambda cls, keys, entries, like: pytree.SUPPORTED_NODES[cls[0]].unflatten_fn(entries, cls[1]),
    "dataclass": _dataclass,
    "mapping": _mapping,
}


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
