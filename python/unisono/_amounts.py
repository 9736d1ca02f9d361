"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from unisono.errors import ConfigurationError

_UNITS = {"": 1, **{f"{p}B": 1000**n for n, p in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{p}IB": 1024**n for n, p in enumerate(("K", "M", "G", "T"), 1)}


def bytes_of(amount: float | str | None) -> int | None:
    """A number of bytes: an integer, a float such as ``1e9``, or as a text such as ``"4GiB"`` or ``"500 MB"``."""
    if amount is None:
        return None
    number, unit = amount, ""
    if isinstance(amount, str):
        found = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", amount)
        number, unit = (float(found[1].replace("_", "")), found[2].upper()) if found else (-1, "")
    good = not isinstance(number, bool) and isinstance(number, int | float) and 0 < number < float("inf")
    if not good or unit not in _UNITS:
        raise ConfigurationError(
            f"`memory_limit` is {amount!r}",
            code="U0012",
            hint='a number of bytes above 0, or a text such as "4GiB" or "500MB"',
        )
    return round(number * _UNITS[unit])
