"""What is planned under settings drawn at random gives what one device gives."""

from __future__ import annotations

import any_settings
import pytest

#: Draws of the tests, those under which something was wrong once behind the others, and those of one test.
DRAWS, TOGETHER = [*range(41), 64, 116, 133, 372], 15


@pytest.mark.parametrize("first", range(0, len(DRAWS), TOGETHER))
def test_steps_under_random_settings_give_what_one_device_gives(first):
    refused = [any_settings.ask(seed) for seed in DRAWS[first : first + TOGETHER]]
    assert sum(one is None for one in refused) > TOGETHER / 3, refused
