"""What a step does beside tensors: numbers and collections that its Python code would change at every call, and random numbers that it
would draw at every call. A captured step does so once, while it is captured; one that is another step behind its own effects is refused.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from unisono._capture.outside import NOT_LOOKED_INTO, function_of, places, put_at, value_at
from unisono._capture.paths import Walk, shown
from unisono._capture.places import warn_user
from unisono.errors import StepError

_COLLECTIONS = (list, dict, set, deque)
#: So many names stand in a message.
_MOST_NAMES = 5


@dataclass(frozen=True)
class _Count:
    """A number, or how many entries a collection has.

    Attributes:
        kind: the kind of collection; empty for a number.
        number: the number.
        keep: takes it as it is now, and gives what puts it back.
    """

    kind: str
    number: float
    keep: Callable[[], Callable[[], object]]

    def differs(self, other: _Count | None) -> bool:
        return other is not None and (self.kind, self.number) != (other.kind, other.number)


@dataclass(frozen=True)
class Happened:
    """What has changed, as a message says it, and the generators that something was drawn from."""

    changed: list[str]
    drawn: list[str]

    def __bool__(self) -> bool:
        return bool(self.changed or self.drawn)


class SideEffects:
    """What happens to variables that a step reads, to their attributes and those of the model's modules, and to generators.

    These are Python's and NumPy's, and those that a walk has found.
    """

    def __init__(self, train_step: Callable[..., Any], model: nn.Module | None, walk: Walk) -> None:
        """Begins with all as it is now."""
        self._of, self._walk = (train_step, model), walk
        self._before, self._drawn = _counts(*self._of), _generators(walk)

    def so_far(self) -> Happened:
        """What is no longer as it was at the beginning."""
        after, drawn = _counts(*self._of), _generators(self._walk)
        changed = [name for name, was in self._before.items() if was.differs(after.get(name))]
        return Happened(
            [_shown(name, self._before[name], after[name]) for name in changed],
            [name for name, (state, _) in drawn.items() if self._drawn.get(name, (state,))[0] != state],
        )

    @contextlib.contextmanager
    def undone(self) -> Iterator[SideEffects]:
        """Puts back, at its end, what happens within; gives what does."""
        within = SideEffects(*self._of, self._walk)
        kept = {name: was.keep() for name, was in within._before.items()}
        try:
            yield within
        finally:
            after = _counts(*self._of)
            for name, was in within._before.items():
                if was.differs(after.get(name)):
                    kept[name]()
            for _, put_back in within._drawn.values():
                put_back()


def warn_of(happened: Happened) -> None:
    """Warns of what a trace has done once and for all."""
    if happened.changed:
        warn(
            f"what it changed will not change again: {_listed(happened.changed)}. Count outside of the step, return tensors instead of "
            "storing them, and keep numbers that it computes with as buffers of the model."
        )
    for name in happened.drawn:
        warn(
            f"what it drew from `{name}` is a constant from then on. Draw tensors with torch (`torch.rand`), or draw outside of the "
            "step and pass tensors as arguments."
        )


def depends_on(happened: Happened) -> StepError:
    """The error of a step that is another one behind its own side effects."""
    drawn = ", ".join(f"`{name}`" for name in happened.drawn)
    what = f"computes with what it changes at each call: {_listed(happened.changed)}" if happened.changed else ""
    drew = f"computes with what it draws from {drawn} at each call" if drawn else ""
    return StepError(
        f"the step {' and '.join(part for part in (what, drew) if part)}",
        code="U0119",
        cause="its Python code runs once, while the step is captured; traced twice, it was another step the second time",
        hint="count outside of the step and pass a tensor, keep numbers as buffers of the model, draw with torch (`torch.rand`)",
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def warn(what: str) -> None:
    """Warns, at the user's line, of what follows from this: the step's Python code runs once."""
    warn_user(f"the step's Python code runs once, while the step is captured; {what}", RuntimeWarning)


#: The state of a generator, and what puts it back.
_Drawn = tuple[Any, Callable[[], object]]


def _generators(walk: Walk) -> dict[str, _Drawn]:
    """Generators that are not torch's, by what users call them."""
    state = random.getstate()
    found: dict[str, _Drawn] = {"random": (state, lambda: random.setstate(state))}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        whole = numpy.random.get_state()
        kind, keys, *position = whole
        found["numpy.random"] = (kind, keys.tobytes(), position), lambda: numpy.random.set_state(whole)
    kinds = (random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()))
    known = (random._inst, numpy.random.mtrand._rand if numpy is not None else None)  # type: ignore[attr-defined]
    own = [one for one, _ in walk.holders.values() if isinstance(one, kinds) and one not in known]
    return found | {shown(walk.paths[id(one)]): _of_generator(one) for one in own}


def _of_generator(generator: Any) -> _Drawn:
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return state, lambda: generator.setstate(state)
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        state = copy.deepcopy(bits.state)
        return repr(state), lambda: setattr(bits, "state", state)
    state = generator.get_state(legacy=False)
    return repr(state), lambda: generator.set_state(state)


def _shown(name: str, before: _Count, after: _Count) -> str:
    return f"`{name}` ({before.number} to {after.number}{f' entries of a {after.kind}' if after.kind else ''})"


def _counts(train_step: Callable[..., Any], model: nn.Module | None) -> dict[str, _Count]:
    """By the name that the user's code has for it."""
    found: dict[str, _Count] = {}
    function, owner = function_of(train_step)
    if owner is not None:
        _add_within(found, "self", owner)
    for name, place in places(function) if function is not None else ():
        value = value_at(*place)
        _add(found, name, value, functools.partial(put_at, *place))
        _add_within(found, name, value)
    if model is not None:
        for path, module in model.named_modules(prefix="model"):
            own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
            _add_entries(found, f"{path}.{{}}", own, vars(module))
    return found


def _add_within(found: dict[str, _Count], name: str, value: Any) -> None:
    if isinstance(value, dict):
        _add_entries(found, f"{name}[{{!r}}]", value, value)
    elif not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
        _add_entries(found, f"{name}.{{}}", vars(value), vars(value))


def _add_entries(found: dict[str, _Count], form: str, entries: Mapping[Any, Any], holder: dict[Any, Any]) -> None:
    for key, value in entries.items():
        _add(found, form.format(key), value, functools.partial(holder.__setitem__, key))


def _add(found: dict[str, _Count], name: str, value: Any, put: Callable[[Any], object]) -> None:
    # Not booleans, which say that something was made at the first call and need not be made again.
    if type(value) in (int, float):
        found[name] = _Count("", value, lambda: functools.partial(put, value))
    elif isinstance(value, _COLLECTIONS):
        found[name] = _Count(type(value).__name__, len(value), lambda: _refilling(value))


def _refilling(collection: Any) -> Callable[[], object]:
    """What gives a collection the entries that it has now."""
    entries = list(collection.items() if isinstance(collection, dict) else collection)
    return lambda: _refill(collection, entries)


def _refill(collection: Any, entries: list[Any]) -> None:
    collection.clear()
    (collection.extend if isinstance(collection, list | deque) else collection.update)(entries)
