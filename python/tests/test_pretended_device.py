"""Steps on an accelerator that is not there, under a name of its own: what they compute is what processors compute."""

from __future__ import annotations

import functools
import json

import launch
import pretended
import pytest


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """For a number of ranks, what each of them found; the processes start once."""

    @functools.cache
    def run(ranks):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        ended = launch.run("pretended:compare_all", ranks, folder, 200)
        assert all(one.status == 0 for one in ended), ended[0].err[-3000:] + ended[-1].err[-3000:]
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]

    return run


@pytest.mark.parametrize("model", [make.__name__ for make in pretended.MODELS])
@pytest.mark.parametrize("ranks", [1, 2])
def test_three_steps_are_as_on_processors(compared, ranks, model):
    for rank, found in enumerate(one[model] for one in compared(ranks)):
        assert "error" not in found, found["error"]
        assert found["device"] == f"{pretended.NAME}:{rank}"
        assert found["worst"] < 1e-5


def test_a_tensor_of_the_host_and_another_s_device_are_found_out(tmp_path):
    (ended,) = launch.run("pretended:faults", 1, tmp_path, 60)
    assert ended.status == 0, ended.err
    scaled, host, other = ended.out.splitlines()
    assert scaled == "[2.0, 2.0]"
    assert "a tensor of the host of shape [2] in a kernel of mychip:0" in host
    assert "mychip:1 in a kernel of mychip:0" in other
