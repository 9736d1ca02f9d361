"""What a step does beside tensors: numbers and collections that its Python code would change at every call, and random numbers that it
would draw at every call. A captured step does so once, while it is captured.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from unisono._capture.outside import NOT_LOOKED_INTO, function_of, variables
from unisono._capture.paths import Walk, shown
from unisono._capture.places import warn_user

#: A number, or how many entries a collection has, by the name that the user's code has for it.
_Counts = dict[str, tuple[str, float]]
_COLLECTIONS = (list, dict, set, deque)
#: So many names stand in a warning.
_MOST_NAMES = 5


@contextlib.contextmanager
def warned_of(train_step: Callable[..., Any], model: nn.Module | None, walk: Walk) -> Iterator[None]:
    """Warns of what happens meanwhile to variables that the step reads, to their attributes and those of the model's modules, and to
    the generators of Python and NumPy, those included that ``walk`` has found.
    """
    before, drawn, others = _counts(train_step, model), _generators(), _others(walk)
    yield
    after = _counts(train_step, model)
    changed = [name for name in before if name in after and before[name] != after[name]]
    if changed:
        shown = [_shown(name, before[name], after[name]) for name in changed[:_MOST_NAMES]]
        others = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
        warn(
            f"what it changed will not change again: {', '.join(shown)}{others}. Count outside of the step, return tensors instead of "
            "storing them, and keep numbers that it computes with as buffers of the model."
        )
    for name, state in [*_generators().items(), *((name, _state_of(one)) for name, one, _ in others)]:
        if ({name: was for name, _, was in others} | drawn).get(name, state) != state:
            warn(
                f"what it drew from `{name}` is a constant from then on. Draw tensors with torch (`torch.rand`), or draw outside of the "
                "step and pass tensors as arguments."
            )


def warn(what: str) -> None:
    """Warns, at the user's line, of what follows from this: the step's Python code runs once."""
    warn_user(f"the step's Python code runs once, while the step is captured; {what}", RuntimeWarning)


def _generators() -> dict[str, Any]:
    """The states of generators that are not torch's, by what users call them."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *position = numpy.random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), position)
    return states


def _others(walk: Walk) -> list[tuple[str, Any, Any]]:
    """Generators of the user's own that are not torch's: how the user's code says them, they themselves, and their states."""
    numpy = sys.modules.get("numpy")
    kinds = (random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()))
    known = (random._inst, numpy.random.mtrand._rand if numpy is not None else None)  # type: ignore[attr-defined]
    found = [one for one, _ in walk.holders.values() if isinstance(one, kinds) and one not in known]
    return [(shown(walk.paths[id(one)]), one, _state_of(one)) for one in found]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(
        generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state(legacy=False)
    )


def _shown(name: str, before: tuple[str, float], after: tuple[str, float]) -> str:
    kind, now = after
    return f"`{name}` ({before[1]} to {now}{f' entries of a {kind}' if kind else ''})"


def _counts(train_step: Callable[..., Any], model: nn.Module | None) -> _Counts:
    found: _Counts = {}
    function, owner = function_of(train_step)
    for name, value in variables(function, owner) if function is not None else ():
        _add(found, name, value)
        if isinstance(value, dict):
            _add_entries(found, {f"{name}[{key!r}]": entry for key, entry in value.items()})
        elif not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
            _add_entries(found, {f"{name}.{key}": entry for key, entry in vars(value).items()})
    if model is not None:
        for path, module in model.named_modules(prefix="model"):
            own = {f"{path}.{key}": value for key, value in vars(module).items() if not key.startswith("_")}
            _add_entries(found, own)
    return found


def _add_entries(found: _Counts, entries: Mapping[str, Any]) -> None:
    for name, value in entries.items():
        _add(found, name, value)


def _add(found: _Counts, name: str, value: Any) -> None:
    # Not booleans, which say that something was made at the first call and need not be made again.
    if type(value) in (int, float):
        found[name] = ("", value)
    elif isinstance(value, _COLLECTIONS):
        found[name] = (type(value).__name__, len(value))
