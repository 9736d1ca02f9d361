"""Settings and problems as JSON, with a message that names what has no place in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from unisono.errors import ConfigurationError


def to_json(value: Mapping[str, Any]) -> str:
    """Numbers of NumPy are numbers, its arrays lists.

    Raises:
        ConfigurationError: a value is no JSON; the message says which and where.
    """
    try:
        return json.dumps(dict(value), allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        for place, wrong in _wrong(value, ""):
            raise ConfigurationError(f"`{place}` is {wrong!r}: no finite number, list or text", code="U0401") from None
        raise ConfigurationError(f"the problem is no JSON: {error}", code="U0401") from None


def _plain(value: Any) -> Any:
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(type(value).__name__)
    return to_list()


def _wrong(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Where a value or a part of it is no JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _wrong(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _wrong(part, f"{place}[{index}]")
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        yield place, value
