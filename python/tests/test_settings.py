"""What is planned under settings drawn at random gives what one device gives."""

from __future__ import annotations

import any_settings
import pytest

#: Draws of the tests, and those of one.
DRAWS, TOGETHER = 60, 15


@pytest.mark.parametrize("first", range(0, DRAWS, TOGETHER))
def test_steps_under_random_settings_give_what_one_device_gives(first):
    refused = [any_settings.ask(seed) for seed in range(first, first + TOGETHER)]
    assert sum(one is None for one in refused) > TOGETHER / 3, refused
