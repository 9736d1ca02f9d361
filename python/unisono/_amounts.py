"""Amounts of memory as people write them."""

from __future__ import annotations

from unisono import _native
from unisono.errors import ConfigurationError


def bytes_of(amount: float | str | None) -> int | None:
    """A number of bytes: an integer, a float such as ``1e9``, or as a text such as ``"4GiB"`` or ``"500 MB"``."""
    if amount is None:
        return None
    if isinstance(amount, str):
        return _native.parse_bytes(amount)
    good = not isinstance(amount, bool) and isinstance(amount, int | float) and 0 < amount < float("inf")
    if not good:
        raise ConfigurationError(
            f"`memory_limit` is {amount!r}",
            code="U0012",
            hint='a number of bytes above 0, or a text such as "4GiB" or "500MB"',
        )
    return round(amount)
