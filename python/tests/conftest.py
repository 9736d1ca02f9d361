"""The order of the tests: files that take longest begin first, so that no core is left alone with one of them at the end."""

from __future__ import annotations

import pytest

#: About how many CPU seconds files take, their ranks included; others take less than any of these.
SECONDS = {
    "test_step_programs.py": 350,
    "test_step_programs_b.py": 330,
    "test_step_programs_c.py": 330,
    "test_step_programs_d.py": 330,
    "test_scripts.py": 130,
    "test_stages.py": 130,
    "test_plans.py": 130,
    "test_uneven.py": 130,
    "test_checkpoints.py": 130,
    "test_rules.py": 90,
    "test_session.py": 80,
    "test_experts.py": 80,
    "test_sequences.py": 80,
    "test_memory.py": 80,
    "test_examples.py": 80,
    "test_models.py": 80,
    "test_clocked_device.py": 80,
    "test_meta_tier.py": 70,
    "test_doctor_device.py": 60,
    "test_capture_cache.py": 60,
    "test_counter.py": 50,
    "test_watch.py": 40,
    "test_kept_tensors.py": 40,
    "test_counts.py": 25,
    "test_devices.py": 25,
    "test_data_sampler.py": 20,
    "test_accelerators.py": 20,
    "test_deferred.py": 20,
    "test_optimizers.py": 20,
    "test_executor.py": 20,
    "test_session_errors.py": 15,
    "test_kernels.py": 15,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: -SECONDS.get(item.path.name, 0))
