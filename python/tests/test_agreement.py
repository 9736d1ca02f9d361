"""Ranks that are given different batches, settings or random numbers are told so, all of them, before anything is computed."""

from __future__ import annotations

import json

import launch
import pytest
import torch

from unisono import _agreement

RANKS = 3


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each case said, the same on every rank."""
    folder = tmp_path_factory.mktemp("agreement")
    for rank, one in enumerate(launch.run("agreement_ranks:run_all", RANKS, folder, 120)):
        assert one.status == 0, f"rank {rank}: {one.err[-2000:]}"
    said = [json.loads((folder / f"told{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(other == said[0] for other in said)
    return said[0] | {"stopped at": [(folder / f"step{rank}").read_text() for rank in range(RANKS)]}


@pytest.mark.parametrize(
    ("case", "message", "hint"),
    [
        ("own_batch", "`batch.y` on ranks 1, 2 is not that of rank 0", "same seed and the same sampler"),
        ("own_batch_later", "`batch.x` on ranks 1, 2 is not that of rank 0", "same seed and the same sampler"),
        ("own_rate", "`hyper.0.lr` on ranks 1, 2 is not that of rank 0", "on every rank"),
        ("own_numbers", "random number generator is in another state on rank 1", "torch.Generator"),
        ("own_generator", "generator `generator` is in another state on ranks 1, 2", "seed it alike"),
        ("own_shard", "`batch.x` is torch.float32 of shape [4, 4] on rank 2", "the example is the global batch"),
        ("own_constant", "`batch.scale` is 3.0 on rank 1", "alike on every rank"),
    ],
)
def test_what_is_not_the_same_is_named_with_the_ranks(told, case, message, hint):
    assert told[case]["code"] == "U0123"
    assert message in told[case]["message"]
    assert told[case]["cause"]
    assert hint in told[case]["hint"]


def test_the_number_of_steps_between_comparisons_is_kept(told):
    assert told["stopped at"] == ["4"] * RANKS


def test_nothing_is_compared_where_the_user_says_so_or_nothing_depends_on_it(told):
    assert told["never_compared"]["message"] == "nobody noticed"
    assert told["own_numbers_that_nobody_needs"]["message"] == "all well"


def test_an_example_that_fits_on_some_ranks_only_is_refused_on_all(told):
    assert told["own_misfit"]["code"] == "U0120"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_a_fingerprint_depends_on_bytes_and_not_on_strides(dtype):
    tensor = torch.randint(0, 2, (6, 10)).to(dtype)
    assert _agreement.fingerprint(tensor) == _agreement.fingerprint(tensor.t().contiguous().t())
    other = tensor.clone()
    other[5, 9] = tensor[5, 9] == 0
    assert _agreement.fingerprint(tensor) != _agreement.fingerprint(other)
    assert _agreement.fingerprint(tensor[:0]) == _agreement.fingerprint(other[:0])


@pytest.mark.parametrize("at", [0, -1])
def test_of_a_large_tensor_the_sample_reaches_from_the_first_to_the_last_byte(at):
    tensor = torch.zeros(3 * _agreement.SAMPLED_BYTES + 5, dtype=torch.uint8)
    before = _agreement.fingerprint(tensor)
    tensor[at] = 1
    assert _agreement.fingerprint(tensor) != before


def test_without_a_sample_every_byte_counts():
    tensor = torch.zeros(3 * _agreement.SAMPLED_BYTES, dtype=torch.uint8)
    other = tensor.clone()
    other[6000] = 1  # between the first two blocks of a sample
    assert _agreement.fingerprint(tensor) == _agreement.fingerprint(other)
    assert _agreement.fingerprint(tensor, sampled=False) != _agreement.fingerprint(other, sampled=False)
