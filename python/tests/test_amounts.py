"""Amounts of memory are understood as people write them, and refused where they make no sense."""

from __future__ import annotations

import pytest

from unisono._amounts import bytes_of
from unisono.errors import ConfigurationError


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (None, None),
        (1, 1),
        (1e9, 1_000_000_000),
        ("1000", 1000),
        ("1e9", 1_000_000_000),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("1.5MiB", 3 << 19),
        ("500MB", 500_000_000),
        ("2 kB", 2000),
        ("1_000 B", 1000),
        ("1TiB", 1 << 40),
    ],
)
def test_amounts_are_numbers_of_bytes(amount, expected):
    assert bytes_of(amount) == expected


@pytest.mark.parametrize(
    "amount", [0, -1, -1e9, float("nan"), float("inf"), True, "", "4 GiBi", "GiB", "-4GiB", "4 4", [4], "80%"]
)
def test_what_is_no_amount_is_refused_with_the_forms_that_are(amount):
    with pytest.raises(ConfigurationError) as caught:
        bytes_of(amount)
    assert caught.value.code == "U0012"
    assert "4GiB" in caught.value.hint
