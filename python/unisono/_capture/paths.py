"""Places in a user's objects that hold tensors: variables, attributes, entries of containers, as far as a step's code can reach them.

A path leads from the step, or from the model, to such a place. It says the same on every rank, and stays the same when what lies on the way
is replaced.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import Optimizer

from unisono._capture.places import is_the_users
from unisono._capture.settings import has_number_for_rate, is_count, may_be_counted

#: One step of a path: what kind of place, and its name, key or number there.
Step = tuple[str, Any]
Path = tuple[Step, ...]

#: The first step of the path to a generator of the whole process, which has no place; its key is the generator's name.
SOURCE = "source"
_MOST_OBJECTS = 20_000
_LONGEST = 1_000
_DEEPEST = 14
_KEYS = (str, int, float, bool, type(None))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_MODULES = frozenset(vars(nn.Module()))
#: What optimizers of PyTorch's have.
_OF_OPTIMIZERS = frozenset((*vars(torch.optim.SGD([torch.zeros(1)])), "step", "_opt_called"))
#: What those that wrap others share with them.
_SHARED = {("attr", name) for name in ("param_groups", "state", "defaults")}
#: How what we put onto tensors begins.
_OURS = "_unisono"
_CACHED = type(functools.lru_cache(lambda: None))
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, _CACHED)
#: What tensors without data have beside what somebody has put onto them.
_OF_FAKES = frozenset((*vars(FakeTensorMode().from_tensor(torch.zeros(1))), "_is_param"))
_LIBRARIES = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep


class Missing:
    """What a path leads to where nothing is."""


def step_into(value: Any, step: Step) -> Any:
    """What is at one place of a value, or :class:`Missing`."""
    kind, key = step
    try:
        match kind:
            case "cell":
                return value.__closure__[value.__code__.co_freevars.index(key)].cell_contents
            case "global":
                return value.__globals__[key]
            case "default":
                return value.__defaults__[key]
            case "named":
                return value.__kwdefaults__[key]
            case "attr":
                return _attribute(value, key)
            case "part":
                return getattr(value, key)
            case "parameter" | "buffer" | "module":
                return getattr(value, f"_{kind}s")[key]
            case "hook":
                name, _, number = key.partition(" ")
                return list(_hooks_at(value, name).values())[int(number)]
            case "keyed":
                return list(value.values())[key]
            case "group" | "setting":
                return _group_at(value, key)[key.partition(" ")[2]]
            case "state" | "held":
                return _state_at(value, key)[key.split(" ", 2)[2]]
            case _:
                return value[key]
    except (LookupError, AttributeError, ValueError, TypeError):
        return Missing


def _hooks_at(value: Any, kind: str) -> Any:
    """The hooks of a module or of a tensor; a traced parameter has those of the user's own."""
    with torch._C.DisableTorchFunctionSubclass():
        holder = getattr(value, "_unisono_hooked_as", value) if isinstance(value, torch.Tensor) else value
        return getattr(holder, kind, None) or {}


def _group_at(optimizer: Any, key: str) -> dict[str, Any]:
    """The parameter group of an optimizer that a key says: its number, a space, and the key there."""
    return optimizer.param_groups[int(key.partition(" ")[0])]


def _state_at(optimizer: Any, key: str) -> dict[str, Any]:
    """The state of a parameter that a key says: the number of its group, its number there, and the key, with spaces between."""
    group, number, _ = key.split(" ", 2)
    return optimizer.state[optimizer.param_groups[int(group)]["params"][int(number)]]


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, type):
        found = vars(value)[name]
        return found.__func__ if isinstance(found, staticmethod | classmethod) else found
    own = getattr(value, "__dict__", {})
    return own[name] if name in own else getattr(value, name)


def put(root: Any, path: Path, new: Any) -> None:
    """Puts a value where a path leads to; :class:`Missing` takes away what is there."""
    holder = follow(root, path[:-1])
    kind, key = path[-1]
    if kind == "cell":
        holder.__closure__[holder.__code__.co_freevars.index(key)].cell_contents = new
    elif kind == "global":
        _put_item(holder.__globals__, key, new)
    elif kind == "attr" and not isinstance(holder, type) and hasattr(holder, "__dict__") and key != "grad":
        if new is getattr(type(holder), key, Missing):
            vars(holder).pop(key, None)  # from its class again
        else:
            _put_item(vars(holder), key, new)
    elif kind == "attr":
        setattr(holder, key, new)
    elif kind == "default":
        holder.__defaults__ = tuple(new if number == key else one for number, one in enumerate(holder.__defaults__))
    elif kind == "named":
        _put_item(holder.__kwdefaults__, key, new)
    elif kind in ("parameter", "buffer", "module"):
        _put_item(getattr(holder, f"_{kind}s"), key, new)
    elif kind == "keyed":
        keys: list[Any] = [*iter(holder)]  # type: ignore[arg-type]
        _put_item(holder, keys[int(key)], new)
    elif kind in ("group", "setting"):
        _put_item(_group_at(holder, key), key.partition(" ")[2], new)
    elif kind in ("state", "held"):
        _put_item(_state_at(holder, key), key.split(" ", 2)[2], new)
    elif isinstance(holder, tuple):
        entries = [new if number == key else entry for number, entry in enumerate(holder)]
        put(root, path[:-1], type(holder)(*entries) if hasattr(holder, "_fields") else type(holder)(entries))
    else:
        _put_item(holder, key, new)


def _put_item(holder: Any, key: Any, new: Any) -> None:
    if new is Missing and isinstance(holder, dict):
        holder.pop(key, None)
    elif new is Missing:
        del holder[key]
    else:
        holder[key] = new


def follow(root: Any, path: Path) -> Any:
    """What a path leads to, or :class:`Missing`."""
    for step in path:
        root = step_into(root, step)
        if root is Missing:
            return Missing
    return root


def place_at(root: Any, path: Path) -> tuple[int, Any]:
    """The ``id`` of the dictionary or variable that a path leads into, and the key there."""
    holder = follow(root, path[:-1])
    kind, key = path[-1]
    if kind == "cell":
        return id(holder.__closure__[holder.__code__.co_freevars.index(key)]), ""
    if kind == "global":
        return id(holder.__globals__), key
    return id(vars(holder) if kind == "attr" and hasattr(holder, "__dict__") else holder), key


def tuples_of_tensors(root: Any, paths: Iterable[Path]) -> Iterator[Path]:
    """Paths to the tuples, of tensors alone, on the way to tensors: when one of these is replaced, another tuple takes their place."""

    def is_one(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(one, torch.Tensor) or is_one(one) for one in value)

    for path in paths:
        within = (path[:count] for count in range(1, len(path)))
        yield from (one for one in within if is_one(follow(root, one)))


def paths_of(plain: Iterable[Any]) -> list[Path]:
    """Paths as another rank has sent them."""
    return [tuple((kind, key) for kind, key in path) for path in plain]


def shown(path: Path) -> str:
    """A path as the user's code would say it."""
    if path[0][0] == SOURCE:
        return str(path[0][1])
    text = "" if path[0][1] == "step" else "model"
    for kind, key in path[1:]:
        if kind in ("attr", "parameter", "buffer", "module"):
            text += f".{key}"
        elif kind == "entry":
            text += f"[{key!r}]"
        elif kind == "keyed":
            text += f"[key {key}]"
        elif kind in ("group", "setting"):
            number, _, name = key.partition(" ")
            text += f".param_groups[{number}][{name!r}]"
        elif kind in ("state", "held"):
            group, number, name = key.split(" ", 2)
            text += f".state[param_groups[{group}]['params'][{number}]][{name!r}]"
        elif kind == "part":
            text = "self" if key == "__self__" else text
        elif kind == "hook":
            text = ""
        else:
            text = str(key)
    return text.removeprefix(".")


def dotted(path: Path) -> str:
    """A path as a name of an input of the graph."""
    name = shown(path).replace("[", ".").replace("]", "").replace("'", "").replace('"', "")
    return "".join(char if char.isalnum() or char in "._" else "_" for char in name)


class Walk:
    """One walk over all that a step can reach.

    Attributes:
        root: what paths start from.
        tensors: the tensors that were found, by each path to them.
        generators: the same of random number generators, PyTorch's own aside.
        holders: what holds things on the way, with what it held, by its ``id``.
        paths: the shortest path to each of those.
    """

    def __init__(
        self, train_step: Callable[..., Any], model: nn.Module | None, optimizers: tuple[Optimizer, ...]
    ) -> None:
        """Walks from the step and from the model."""
        self.root = {"step": train_step, "model": model}
        self.tensors: dict[Path, torch.Tensor] = {}
        self.generators: dict[Path, torch.Generator] = {}
        self.holders: dict[int, tuple[Any, dict[Step, Any]]] = {}
        self.paths: dict[int, Path] = {}
        skipped = {id(optimizer) for optimizer in optimizers}
        groups = [optimizer.param_groups for optimizer in optimizers]
        # By breadth, so that each thing gets its shortest name.
        todo: deque[tuple[Path, Any]] = deque(((("root", key),), value) for key, value in self.root.items())
        while todo and len(self.holders) < _MOST_OBJECTS:
            path, value = todo.popleft()
            if isinstance(value, torch.Tensor):
                self.tensors[path] = value
                todo.extend(((*path, step), hook) for step, hook in _hooks_of(value, _HOOKS_OF_TENSORS))
                own = own_attributes(value)
                if own and id(value) not in self.holders and len(path) < _DEEPEST:
                    todo.extend(((*path, ("attr", name)), part) for name, part in own.items())
                    self.holders[id(value)] = value, {("attr", name): part for name, part in own.items()}
                    self.paths[id(value)] = path
            elif isinstance(value, torch.Generator):
                if value is not torch.default_generator:
                    self.generators[path] = value
            elif id(value) not in self.holders and len(path) < _DEEPEST:
                parts = dict(_of_optimizer(value) if id(value) in skipped else _parts(value))
                if issubclass(type(value), Optimizer) and any(vars(value).get("param_groups") is one for one in groups):
                    parts = {step: part for step, part in parts.items() if step not in _SHARED}
                self.holders[id(value)], self.paths[id(value)] = (value, parts), path
                for step, part in parts.items():
                    if part is not Missing and not isinstance(part, _UNINTERESTING):
                        todo.append(((*path, step), part))


def settings_at(walk: Walk, optimizers: Sequence[Optimizer], counted: Collection[tuple[int, str]]) -> list[Path]:
    """Paths to those numbers in groups and attributes of optimizers that are among some, as they are said to change.

    See :func:`unisono._capture.beginnings.changed_numbers`.
    """
    first, found = 0, list[Path]()
    for optimizer in optimizers:
        for path in _within(walk, optimizer, "group"):
            number, _, name = path[-1][1].partition(" ")
            if (first + int(number), name) in counted:
                found.append(path)
        found += [path for path in _within(walk, optimizer, "attr") if (first, f".{path[-1][1]}") in counted]
        first += len(optimizer.param_groups)
    return found


def is_rate(path: Path) -> bool:
    """Whether a path leads to a learning rate of a group."""
    return path[-1][0] == "group" and path[-1][1].endswith(" lr")


def counts_in_state(walk: Walk, optimizers: Sequence[Optimizer]) -> list[Path]:
    """Paths to the counts in the state of optimizers."""
    return [path for optimizer in optimizers for path in _within(walk, optimizer, "state")]


def _within(walk: Walk, optimizer: Optimizer, kind: str) -> Iterator[Path]:
    """Paths to what a walk has found in an optimizer that is of a kind; none if it has not found that."""
    parts = walk.holders[id(optimizer)][1] if id(optimizer) in walk.holders else {}
    yield from ((*walk.paths[id(optimizer)], step) for step in parts if step[0] == kind)


def counted_settings(root: Any, optimizers: Sequence[Optimizer], paths: Iterable[Path]) -> set[tuple[int, str]]:
    """The numbers in groups of optimizers to which paths lead: the number of the group among all, and the key."""
    first, before = 0, dict[int, int]()
    for optimizer in optimizers:
        before[id(optimizer)], first = first, first + len(optimizer.param_groups)
    found = ((follow(root, path[:-1]), path[-1][1].partition(" ")) for path in paths if path[-1][0] == "group")
    return {(before[id(holder)] + int(number), key) for holder, (number, _, key) in found if id(holder) in before}


def own_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """What somebody has put onto a tensor."""
    own = vars(tensor)
    if isinstance(tensor, FakeTensor):
        return {name: part for name, part in own.items() if name not in _OF_FAKES and not name.startswith(_OURS)}
    return own


def _of_optimizer(optimizer: Optimizer) -> Iterator[tuple[Step, Any]]:
    """What of an optimizer is looked at: attributes, numbers and tensors of groups but for rates, counts and containers in its state."""
    is_pytorchs = type(optimizer).__module__.startswith("torch.optim")
    left_out = {key for key in vars(optimizer) if key in _OF_OPTIMIZERS or (is_pytorchs and key.startswith("_"))}
    yield from ((("attr", key), part) for key, part in vars(optimizer).items() if key not in left_out)
    for number, group in enumerate(optimizer.param_groups):
        yield from ((("group", f"{number} {key}"), part) for key, part in group.items() if may_be_counted(key, part))
        if has_number_for_rate(optimizer, group):
            yield ("group", f"{number} lr"), group["lr"]
        if is_pytorchs:
            continue
        others = ((key, part) for key, part in group.items() if key not in ("params", "lr"))
        yield from ((("setting", f"{number} {key}"), part) for key, part in others if holds_tensors(part))
        for position, parameter in enumerate(group["params"]):
            for key, part in optimizer.state.get(parameter, {}).items():
                if is_count(key, part):
                    yield ("state", f"{number} {position} {key}"), part
                elif not isinstance(part, torch.Tensor) and holds_tensors(part):
                    yield ("held", f"{number} {position} {key}"), part


def holds_tensors(value: Any) -> bool:
    """Whether something is a tensor, or a container or an object with one in it."""
    return any(True for _ in tensors_in(value, set()))


def tensors_in(value: Any, met: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in containers, and in the attributes of objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif not isinstance(value, _UNINTERESTING) and id(value) not in met:
        met.add(id(value))
        for _, part in _parts(value) if isinstance(value, dict | list | deque | tuple) else _own_parts(value):
            yield from tensors_in(part, met)


def _own_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if is_looked_into(type(value)) and not isinstance(value, (type, types.ModuleType, *_FUNCTIONS)):
        yield from list(getattr(value, "__dict__", {}).items())


def _parts(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, dict):
        if len(value) <= _LONGEST:
            yield from ((("entry", key), part) for key, part in list(value.items()) if isinstance(key, _KEYS))
            # By their number: while a step is traced, twins are the keys.
            items = enumerate(list(value.items()))
            yield from ((("keyed", number), part) for number, (key, part) in items if isinstance(key, torch.Tensor))
    elif isinstance(value, list | deque | tuple):
        entries = _entries(value)
        if len(entries) <= _LONGEST:
            yield from ((("entry", number), part) for number, part in enumerate(entries))
    elif isinstance(value, _FUNCTIONS):
        yield from _of_function(value)
    elif isinstance(value, nn.Module):
        yield from _of_module(value)
    elif isinstance(value, type):
        if is_written_by_the_user(value.__module__):
            yield from _of_class(value)
    elif not isinstance(value, _UNINTERESTING) and is_looked_into(type(value)):
        yield from _of_object(value)


def _entries(value: Any) -> Any:
    """The entries of a list, a deque or a tuple, whatever a class of somebody's says of itself."""
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(None))
    return value


def _of_object(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, types.ModuleType) and not is_written_by_the_user(value.__name__):
        return
    yield from ((("attr", key), part) for key, part in list(getattr(value, "__dict__", {}).items()))
    if isinstance(value, types.ModuleType):
        return
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield ("attr", name), step_into(value, ("attr", name))
    yield from _of_its_class(value)


def _of_its_class(value: Any) -> Iterator[tuple[Step, Any]]:
    """Its class, and the tensors that it has from there until it gets its own."""
    for kind in type(value).__mro__:
        if is_written_by_the_user(kind.__module__):
            yield from (
                (("attr", key), part)
                for key, part in vars(kind).items()
                if isinstance(part, torch.Tensor) and key not in getattr(value, "__dict__", {})
            )
    yield ("part", "__class__"), type(value)


def _hooks_of(value: Any, kinds: tuple[str, ...]) -> Iterator[tuple[Step, Any]]:
    for kind in kinds:
        yield from ((("hook", f"{kind} {number}"), hook) for number, hook in enumerate(_hooks_at(value, kind).values()))


def _of_class(value: type) -> Iterator[tuple[Step, Any]]:
    for key in list(vars(value)):
        part = step_into(value, ("attr", key))
        is_counted = isinstance(part, int | float | str) and not key.startswith("__")
        if is_counted or isinstance(part, torch.Tensor | dict | list | deque | types.FunctionType):
            yield ("attr", key), part
    yield from ((("part", "__base__"), base) for base in (value.__base__,) if base is not None)


def _of_module(value: nn.Module) -> Iterator[tuple[Step, Any]]:
    for kind in ("parameter", "buffer", "module"):
        yield from (((kind, key), part) for key, part in list(getattr(value, f"_{kind}s").items()))
    yield ("attr", "training"), value.training
    yield from ((("attr", key), part) for key, part in list(vars(value).items()) if key not in _OF_MODULES)
    yield from _hooks_of(value, _HOOKS)
    yield from _of_its_class(value)


def _of_function(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, functools.partial):
        yield from ((("part", name), getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from ((("part", name), getattr(value, name)) for name in ("__self__", "__func__"))
    elif isinstance(value, _CACHED):
        yield ("part", "__wrapped__"), value.__wrapped__
    elif not is_library(value.__code__.co_filename):
        code = value.__code__
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            yield ("cell", name), _in_cell(cell)
        yield from ((("default", number), part) for number, part in enumerate(value.__defaults__ or ()))
        yield from ((("named", name), part) for name, part in (value.__kwdefaults__ or {}).items())
        yield from ((("attr", name), part) for name, part in vars(value).items())
        variables = value.__globals__
        yield from ((("global", name), variables[name]) for name in names_of(code) if name in variables)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return Missing


_UNINTERESTING = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, torch.Size)
#: Classes of the standard library whose objects hold what users put into them.
_HOLDERS = ("SimpleNamespace", "Namespace", "deque", "UserDict", "UserList", "_local")


@functools.lru_cache(maxsize=4096)
def is_looked_into(kind: type) -> bool:
    """Whether objects of a class are looked into for what they hold."""
    top = kind.__module__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return kind.__name__ in _HOLDERS or top == "__main__"
    return top not in ("numpy", "unisono", "msgpack") and not kind.__module__.startswith(
        ("torch.utils.data", "torch._")
    )


@functools.lru_cache(maxsize=4096)
def is_written_by_the_user(module: str) -> bool:
    """Whether a module is neither Python's nor of an installed package."""
    found = sys.modules.get(module)
    return module == "__main__" or found is None or not is_library(getattr(found, "__file__", None) or "<")


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a source file is one of PyTorch's, Unisono's, Python's or of another installed package."""
    return not is_the_users(file) or file.startswith(_LIBRARIES) or f"-packages{os.sep}" in file


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> tuple[str, ...]:
    """All names that code has for globals and attributes, in functions within it too."""
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in names_of(part))
    return tuple(dict.fromkeys([*code.co_names, *inner]))
