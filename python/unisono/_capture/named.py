"""What the user's modules name (``from math import isfinite``), with something else in its place for a while."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unisono._capture.places import is_the_users

#: Values by their ``id``, each with what is to be in its place.
Instead = Mapping[int, tuple[Any, Any]]


@contextlib.contextmanager
def standing(functions: Iterable[Any], instead: Instead) -> Iterator[None]:
    """Lets the code of the user's functions among these find something else in the place of values that its modules name."""
    plain = (one for one in functions if isinstance(one, types.FunctionType))
    modules = {id(one.__globals__): one.__globals__ for one in plain if is_the_users(one.__code__.co_filename)}
    with contextlib.ExitStack() as stack:
        for names in modules.values():
            for name, value in [*names.items()]:
                if id(value) in instead and instead[id(value)][0] is value:
                    names[name] = instead[id(value)][1]
                    stack.callback(names.__setitem__, name, value)
        yield
