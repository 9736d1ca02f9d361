"""What a step's code reads from outside beside tensors: numbers, strings, gaps (``None``), functions.

They are constants of the captured step, as long as they stay.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unisono import _native
from unisono._capture import handed
from unisono._capture.compared import FUNCTIONS, MOST_ENTRIES, SEQUENCES, differ, is_one_value, numbers_of, seen
from unisono._capture.places import is_the_users
from unisono._tree import Structure, classes_of

#: What has numbers that are looked after elsewhere, or that are none of the step's.
NOT_LOOKED_INTO = (
    nn.Module,
    Optimizer,
    torch.Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
)
_HOOKS_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_NO_CODE = compile("", __file__, "exec")
#: Entries of classes that are looked at elsewhere.
_DESCRIBED = (types.FunctionType, property, staticmethod, classmethod, torch.Tensor)
_OF_MODULES = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
#: A variable's cell, or a dictionary, class, list or tuple and a key.
Place = tuple[Any, Any]
#: Instructions that read an attribute.
_READ = ("LOAD_ATTR", "LOAD_METHOD")
_MOST_LEVELS = 3
#: Methods that code calls without naming them.
_UNNAMED = (
    "__call__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__next__",
    "__len__",
    "__contains__",
    "__bool__",
)


class Outside:
    """What stands in the code of a step, of the functions, methods and properties of the user's that it names, and of ``forward``."""

    def __init__(self, train_step: Callable[..., Any], model: nn.Module | None) -> None:
        """Takes all of it as it is at this moment, before the step is captured."""
        self._step, self._model, self._left_out = train_step, model, set[str]()
        self._renewed_at, self._made, self._filled = set[tuple[int, Any]](), set[tuple[int, Any]](), list[Any]()
        found, self._holders = self._read()
        places = {name: place for name, place in found.items() if _seen_at(place) is not ...}
        self._watch(places, [_seen_at(place) for place in places.values()])

    def _watch(self, places: dict[str, Place], captured: list[Any]) -> None:
        """Watches places, at which this was when the step was captured."""
        self._places, self._captured, self._still = places, captured, _Still(places, captured)

    def watch_too(self, places: Mapping[str, Place]) -> None:
        """Watches more places, at which what is there now was when the step was captured."""
        new = {name: place for name, place in places.items() if name not in self._places}
        if new:
            self._watch({**self._places, **new}, [*self._captured, *map(_seen_at, new.values())])

    def _read(self) -> tuple[dict[str, Place], _Holders]:
        """All places that are read by their names, and what may hold numbers."""
        met: set[tuple[int, ...]] = set()
        reads = [] if self._model is None else list(_of_modules("model", self._model, met))
        function, owner = function_of(self._step)
        if function is not None:
            reads += _of_function("self", function, owner, met)
        filled = {id(one) for one in self._filled}
        made = tuple(f"{name}{sign}" for name, place in reads if _key(place) in self._made for sign in ".[")
        renewed = self._renewed_at | {
            _key(place) for name, place in reads if id(place[0]) in filled or name.startswith(made)
        }
        found = {
            name: place
            for name, place in _named_once(reads).items()
            if name not in self._left_out and _key(place) not in renewed
        }
        return found, _Holders((place for _, place in reads if _key(place) not in renewed), filled)

    def changed_by_itself(self) -> dict[str, tuple[int, Any]]:
        """What the capture has changed, by its name: the ``id`` of its holder, and its key there."""
        found = zip(self._places.items(), self._captured, strict=True)
        return {name: (id(place[0]), place[1]) for (name, place), was in found if differ(was, _seen_at(place))}

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """The numbers and texts at places, by their names."""
        found = ((name, value_at(*self._places[name])) for name in names)
        return {name: value for name, value in found if type(value) in (int, float, str)}

    def settle(self, values: Mapping[str, Any]) -> None:
        """Takes numbers and texts for those that the step was captured with; a rank that has not captured it gets them."""
        captured = [values.get(name, was) for name, was in zip(self._places, self._captured, strict=True)]
        for name, value in values.items():
            if name in self._places and differ(value_at(*self._places[name]), value):
                put_at(*self._places[name], value)
        self._watch(self._places, captured)

    def leave_out(
        self,
        names: Container[str],
        renewed: Iterable[tuple[int, Any]],
        made: Iterable[tuple[int, Any]] = (),
        filled: Iterable[Any] = (),
    ) -> None:
        """Watches no longer what has these names, or what each step changes.

        Args:
            names: names of places.
            renewed: places that each step fills, as the ``id`` of a holder, and a key.
            made: those that it fills with what is made anew, with numbers in it.
            filled: lists that it fills.
        """
        self._renewed_at, self._made, self._filled = {*renewed}, {*made}, [*filled]
        found, self._holders = self._read()
        kept = [
            (name, place, was)
            for (name, place), was in zip(self._places.items(), self._captured, strict=True)
            if name in found and name not in names
        ]
        self._holders.note_hooks()  # the capture has hooks of its own
        self._left_out |= self._places.keys() - {name for name, *_ in kept}
        self._watch({name: place for name, place, _ in kept}, [was for *_, was in kept])

    def changed(self) -> tuple[str, Any, Any] | None:
        """Name, value when the step was captured, and value now of the first that has changed."""
        if self._holders.have_changed():
            new = self._renewed()
            if new is not None:
                return new
        if not self._still.are_all():
            self._watch(self._places, self._captured)
            return _first_other(zip(self._places.items(), self._captured, strict=True))
        return _first_other(self._still.others)

    def _renewed(self) -> tuple[str, Any, Any] | None:
        """Looks where the numbers are now; a number that is read, and was not there, is returned."""
        found, holders = self._read()
        for name, place in found.items():
            if name not in self._places and _seen_at(place) is not ...:
                return name, None, _seen_at(place)
        self._holders = holders
        self._watch({name: found.get(name, ({}, name)) for name in self._places}, self._captured)
        return None


class _Still:
    """Entries of dictionaries that are the same number, text, class or function as long as they are the same object: most of all places.

    Attributes:
        others: all others: name, place, and what was captured.
    """

    def __init__(self, places: Mapping[str, Place], captured: Iterable[Any]) -> None:
        """Takes them apart as they are now."""
        self.others: list[tuple[tuple[str, Place], Any]] = []
        entries: list[tuple[dict[Any, Any], Any, Any]] = []
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []
        for (name, (holder, key)), was in zip(places.items(), captured, strict=True):
            value = value_at(holder, key)
            if not isinstance(holder, dict) or not is_one_value(value) or differ(was, seen(value)):
                self.others.append(((name, (holder, key)), was))
                continue
            entries.append((holder, key, value))
            if isinstance(value, types.FunctionType):
                self._codes.append((value, value.__code__))
        self._entries = _native.Entries(entries)

    def are_all(self) -> bool:
        """Whether they are all the same."""
        return self._entries.first_other() is None and all(function.__code__ is code for function, code in self._codes)


def _first_other(places: Iterable[tuple[tuple[str, Place], Any]]) -> tuple[str, Any, Any] | None:
    """Name, what was captured, and what is there now, of the first place where that differs."""
    for (name, place), was in places:
        now = _seen_at(place)
        if differ(was, now):
            return name, was, now
    return None


class _Holders:
    """What numbers are in: containers and objects, at their places. Another may be put there, or another number of entries be in one."""

    def __init__(self, places: Iterable[Place], filled: Container[int] = ()) -> None:
        """Takes them as they are; how long the collections are that are ``filled`` (their ``id``) is not looked at."""
        values = ((holder, key, value_at(holder, key)) for holder, key in places)
        held = [one for one in values if _may_hold_numbers(one[2])]
        # Most are entries of dictionaries, and all are looked at before each step.
        self._entries = _native.Entries([one for one in held if isinstance(one[0], dict)])
        self._others = [one for one in held if not isinstance(one[0], dict)]
        self._sizes = [
            (value, len(value))
            for *_, value in held
            if isinstance(value, (dict, *SEQUENCES)) and id(value) not in filled
        ]
        self.note_hooks()

    def note_hooks(self) -> None:
        """Takes the hooks that there are now as those that are known: each that is registered has a number of its own."""
        self._next_hook = RemovableHandle.next_id

    def have_changed(self) -> bool:
        """Whether one is not as it was."""
        return (
            RemovableHandle.next_id != self._next_hook
            or self._entries.first_other() is not None
            or any(value_at(holder, key) is not value for holder, key, value in self._others)
            or any(len(value) != size for value, size in self._sizes)
        )


def _may_hold_numbers(value: Any) -> bool:
    if isinstance(value, (nn.Module, dict, *SEQUENCES, *FUNCTIONS)):
        return True
    return not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__")


def _named_once(places: Iterable[tuple[str, Place]]) -> dict[str, Place]:
    """Each place once, by a name that no other one has."""
    found: dict[str, Place] = {}
    met: set[tuple[int, str]] = set()
    for name, (holder, key) in places:
        if (id(holder), key) not in met:
            met.add((id(holder), key))
            found[name if name not in found else f"{name} ({len(found)})"] = holder, key
    return found


def _key(place: Place) -> tuple[int, Any]:
    return id(place[0]), place[1]


def _seen_at(place: Place) -> Any:
    return seen(value_at(*place))


def value_at(holder: Any, key: Any) -> Any:
    """What is at a place; ``None`` where nothing is."""
    if isinstance(holder, dict):
        return dict.get(holder, key)  # not what a class of the user's makes of it
    if isinstance(holder, SEQUENCES):
        return holder[key] if key < len(holder) else None
    if isinstance(holder, type):
        return vars(holder).get(key)
    try:
        return holder.cell_contents
    except ValueError:
        return None


def put_at(holder: Any, key: Any, value: Any) -> None:
    """Puts a value at a variable's place."""
    if isinstance(holder, dict | list):
        holder[key] = value
    else:
        holder.cell_contents = value


def function_of(train_step: Any) -> tuple[types.FunctionType | None, Any]:
    """The function that a step is, and the object that it is a method of."""
    while isinstance(train_step, functools.partial):
        train_step = train_step.func
    if isinstance(train_step, types.FunctionType):
        return train_step, None
    method = train_step if inspect.ismethod(train_step) else getattr(train_step, "__call__", None)  # noqa: B004
    if inspect.ismethod(method) and isinstance(method.__func__, types.FunctionType):
        return method.__func__, method.__self__
    return None, None


def begins_at(train_step: Any) -> str | None:
    """``file:line`` where the code of a step begins."""
    function, _ = function_of(train_step)
    return None if function is None else f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def classes_at(train_step: Any, structure: Structure) -> Iterator[type]:
    """Classes of a structure, and those that the step's code names: what it returns may be of a class that no module has."""
    yield from classes_of(structure)
    function, _ = function_of(train_step)
    for _, place in places(function) if function is not None else ():
        if isinstance(value_at(*place), type):
            yield value_at(*place)


def places(function: types.FunctionType) -> Iterator[tuple[str, Place]]:
    """Where a function's own code has what it names outside of it."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            _ = cell.cell_contents
            yield name, (cell, "")
    for name in names_loaded(code, "LOAD_GLOBAL"):
        if name in function.__globals__:
            yield name, (function.__globals__, name)


@functools.lru_cache(maxsize=1024)  # many modules have one `forward`
def names_loaded(code: types.CodeType, *operations: str) -> list[str]:
    """The names that code has for globals, or for attributes, in the order of their first use; functions within it too."""
    found = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in operations]
    inner = (name for part in _within(code) for name in names_loaded(part, *operations))
    return list(dict.fromkeys([*found, *inner]))


def _within(code: types.CodeType) -> list[types.CodeType]:
    return [part for part in code.co_consts if isinstance(part, types.CodeType)]


def _texts(code: types.CodeType) -> Iterator[str]:
    """The strings that code has."""
    yield from (one for one in code.co_consts if isinstance(one, str))
    for part in _within(code):
        yield from _texts(part)


def _of_function(
    name: str, function: types.FunctionType, owner: Any, met: set[tuple[int, ...]]
) -> Iterator[tuple[str, Place]]:
    """What the code of a function names, and of the functions that it names; ``owner`` is the object of a method, which has a name."""
    if (id(function), id(owner)) in met:
        return
    met.add((id(function), id(owner)))
    if owner is not None:
        yield from _of_object(name, owner, function.__code__, _MOST_LEVELS, met)
    for variable, place in places(function):
        yield variable, place
        yield from _of_object(variable, value_at(*place), function.__code__, _MOST_LEVELS, met)
    yield from _of_handed(name, function, owner)


def _of_handed(name: str, function: types.FunctionType, owner: Any) -> Iterator[tuple[str, Place]]:
    """What functions name of the objects that the code of a function hands to them."""
    if handed.is_installed(function.__code__.co_filename):
        return  # libraries hand nearly everything on
    variables, attributes = handed.handed_on(function.__code__)
    given = {variable: value_at(*place) for variable, place in places(function) if variable in variables}
    own = getattr(owner, "__dict__", {})
    if owner is not None and variables.intersection(function.__code__.co_varnames[:1]):
        given[name] = owner  # it hands itself on
    given |= {f"{name}.{key}": own[key] for key in sorted(attributes) if key in own}
    given = {longer: value for longer, value in given.items() if handed.holds_settings(value)}
    if given:
        met = set[tuple[int, int]]()
        for code in handed.called(function, owner, _named_by, _methods):
            for longer, value in given.items():
                yield from handed.places_in(longer, value, code, met)
                yield from ((known, (holder, key)) for known, holder, key, _ in _of_own_classes(longer, value, code))


def _of_own_classes(name: str, value: Any, code: types.CodeType) -> Iterator[tuple[str, Any, Any, bool]]:
    """What it has from its classes, but what the code puts into the object itself: that is there behind the first step."""
    if not isinstance(value, dict):
        stored = names_loaded(code, "STORE_ATTR")
        yield from (one for one in _of_classes(name, value, code) if one[2] not in stored)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    yield from (value_at(*place) for _, place in places(function))


def _of_named_functions(
    name: str, functions: Iterable[Any], owner: Any, met: set[tuple[int, ...]]
) -> Iterator[tuple[str, Place]]:
    """The same of functions that are the user's, and of what they wrap."""
    for outermost in functions:
        function = outermost
        while isinstance(function, types.FunctionType):
            if is_the_users(function.__code__.co_filename):
                yield from _of_function(name, function, owner, met)
            function = getattr(function, "__wrapped__", None)


def _of_callable(
    name: str, value: Any, code: types.CodeType, levels: int, met: set[tuple[int, ...]]
) -> Iterator[tuple[str, Place]]:
    """What a function, a method or a partial call names and is given."""
    if isinstance(value, functools.partial):
        for given in (value.args, value.keywords):
            yield from _of_object(name, given, _code_of(value) or code, levels, met)
        yield from _of_object(name, value.func, code, levels, met)
    elif isinstance(value, types.MethodType):
        yield from _of_named_functions(name, [value.__func__], value.__self__, met)
    else:
        yield from _of_named_functions(name, [value], None, met)


def _of_object(
    name: str, value: Any, code: types.CodeType, levels: int, met: set[tuple[int, ...]]
) -> Iterator[tuple[str, Place]]:
    """The entries of a container, or the attributes of an object, that code names, and theirs; what its properties and methods name.

    Of a function, what its own code names.
    """
    if (id(value), id(code), levels) in met:
        return
    met.add((id(value), id(code), levels))
    if isinstance(value, FUNCTIONS):
        yield from _of_callable(name, value, code, levels, met)
        return
    for longer, holder, key, inside in _parts(name, value, code):
        part = value_at(holder, key)
        yield longer, (holder, key)
        # What is in a list of objects is as far away as the list.
        below = levels if inside and not isinstance(part, SEQUENCES) else levels - 1
        if below > 0 and part is not value:
            yield from _of_object(longer, part, code, below, met)
    if isinstance(value, nn.Module):
        yield from _of_modules(name, value, met)
    if isinstance(value, nn.Module) or not isinstance(value, (dict, *SEQUENCES, *NOT_LOOKED_INTO)):
        yield from _of_named_functions(name, _methods(type(value), code), value, met)


def _parts(name: str, value: Any, code: types.CodeType) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, holder, key of what code may reach by one name, and whether by none: as an entry of a list."""
    if isinstance(value, SEQUENCES):
        if ... is numbers_of(value) and len(value) <= MOST_ENTRIES:
            yield from ((f"{name}[{number}]", value, number, True) for number in range(len(value)))
    elif isinstance(value, dict):
        named = [key for key in dict.fromkeys(_texts(code)) if key in value]
        for key in _all_keys(value) if not named or _goes_through_all(code) else named:
            yield f"{name}[{key!r}]", value, key, key not in named
    elif isinstance(value, nn.Module):
        for holder in (vars(value), value._modules):
            keys = (key for key in names_loaded(code, *_READ, "STORE_ATTR") if key in holder and key != "training")
            yield from ((f"{name}.{key}", holder, key, False) for key in keys)
        yield from _of_classes(name, value, code)
        if isinstance(value, _OF_MODULES):
            yield from ((f"{name}.{key}", value._modules, key, True) for key in value._modules)
    elif not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
        own = vars(value)
        keys = (key for key in names_loaded(code, *_READ, "STORE_ATTR") if key in own)
        yield from ((f"{name}.{key}", own, key, False) for key in keys)
        yield from _of_classes(name, value, code)


def _of_classes(name: str, value: Any, code: types.CodeType) -> Iterator[tuple[str, Any, Any, bool]]:
    """What an object has from its classes, which another class or the object itself may override at any time."""
    own, bases = vars(value), [base for base in type(value).__mro__ if _is_looked_into(base)]
    for key in names_loaded(code, *_READ) if bases else ():
        having = [base for base in bases if key in vars(base)]
        if having and key not in own and not isinstance(vars(having[0])[key], _DESCRIBED):
            yield f"{name}.{key}", own, key, False
            yield from ((f"{base.__qualname__}.{key}", base, key, False) for base in having)


@functools.lru_cache(maxsize=4096)
def _is_looked_into(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind is not object and is_the_users(getattr(module, "__file__", None) or "")


def _all_keys(value: dict[Any, Any]) -> list[Any]:
    return [key for key in value if isinstance(key, str | int)] if len(value) <= MOST_ENTRIES else []


def _goes_through_all(code: types.CodeType) -> bool:
    return any(name in ("items", "values") for name in names_loaded(code, *_READ))


def _methods(kind: type, code: types.CodeType) -> Iterator[Any]:
    """The methods and the getters of properties that code names, or needs no name for, with those that they override."""
    for key in (*names_loaded(code, *_READ, "LOAD_SUPER_ATTR"), *_UNNAMED):
        for base in kind.__mro__:
            found = vars(base).get(key)
            yield found.fget if isinstance(found, property) else found


def _of_modules(name: str, model: nn.Module, met: set[tuple[int, ...]]) -> Iterator[tuple[str, Place]]:
    """What modules name in ``forward``, and their hooks, of one and all within it; each once."""
    for path, module in model.named_modules(prefix=name) if (id(model),) not in met else ():
        if (id(module),) in met:
            continue
        met.add((id(module),))
        forward = inspect.getattr_static(type(module), "forward", None)  # a scripted module has none of Python
        if isinstance(forward, types.FunctionType):
            yield from _of_object(path, module, forward.__code__, _MOST_LEVELS, met)
            yield from _of_named_functions(path, [forward], module, met)
        for kind in _HOOKS_OF_MODULES:
            yield from _of_hooks(f"{path}.{kind}", vars(module).get(kind), met)
        for name, parameter in module.named_parameters(recurse=False):
            with torch._C.DisableTorchFunctionSubclass():
                hooks = [(kind, getattr(parameter, kind)) for kind in _HOOKS_OF_TENSORS]
            for kind, found in hooks:
                yield from _of_hooks(f"{path}.{name}.{kind}", found, met)


def _of_hooks(name: str, hooks: dict[int, Any] | None, met: set[tuple[int, ...]]) -> Iterator[tuple[str, Place]]:
    """Which hooks there are, and what they name."""
    own = {number: hook for number, hook in (hooks or {}).items() if _is_the_users_hook(hook)}
    if own:
        yield name, ({"": tuple(own)}, "")
        yield name, ({"": hooks}, "")
    for hook in own.values():
        yield from _of_object(name, hook, _NO_CODE, _MOST_LEVELS, met)


def _is_the_users_hook(hook: Any) -> bool:
    code = _code_of(hook)
    return code is None or is_the_users(code.co_filename)


def _code_of(function: Any) -> types.CodeType | None:
    """The code that a function, a method or a partial call runs; ``None`` of what has none."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", None)
