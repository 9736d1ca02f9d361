"""The order of the tests: files that take longest begin first, so that no core is left alone with one of them at the end."""

from __future__ import annotations

import pytest

#: About how many CPU seconds files take, their ranks included; others take less than any of these.
SECONDS = {
    "test_step_programs.py": 300,
    "test_step_programs_b.py": 290,
    "test_step_programs_c.py": 290,
    "test_step_programs_d.py": 290,
    "test_random_graphs.py": 280,
    "test_random_graphs_b.py": 280,
    "test_scripts.py": 130,
    "test_checkpoints.py": 100,
    "test_examples.py": 100,
    "test_plans.py": 100,
    "test_experts.py": 90,
    "test_stages.py": 90,
    "test_rules.py": 70,
    "test_clocked_device.py": 60,
    "test_commands.py": 60,
    "test_memory.py": 60,
    "test_session.py": 60,
    "test_steps.py": 50,
    "test_meta_tier.py": 45,
    "test_sequences.py": 45,
    "test_capture_cache.py": 40,
    "test_modules.py": 40,
    "test_kept_tensors.py": 40,
    "test_compile.py": 35,
    "test_compiled_functions.py": 35,
    "test_odd_functions.py": 35,
    "test_models.py": 35,
    "test_scalars.py": 30,
    "test_counter.py": 25,
    "test_doctor.py": 25,
    "test_example.py": 20,
    "test_links.py": 20,
    "test_refit.py": 20,
    "test_uneven.py": 20,
    "test_data_sampler.py": 15,
    "test_deferred.py": 15,
    "test_devices.py": 15,
    "test_doctor_device.py": 15,
    "test_executor.py": 15,
    "test_kernels.py": 15,
    "test_micro_batches.py": 15,
    "test_recompute.py": 15,
    "test_session_errors.py": 15,
    "test_trace.py": 15,
    "test_accelerators.py": 10,
    "test_command.py": 10,
    "test_memory_orders.py": 10,
    "test_optimizers.py": 10,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: -SECONDS.get(item.path.name, 0))
