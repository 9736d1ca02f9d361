import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from unisono import errors
from unisono.data import BatchSampler, Cost, check_agreement, hash_tensor, skip_empty, verify_hash_tensor

LENGTHS = np.random.default_rng(5).lognormal(4, 1, 500).astype(np.int64) + 1
COST = Cost(linear=100, quadratic=1)


class Indices(Dataset):
    """A dataset whose samples are their own indices."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        return index


def sampler(rank=0, ranks=4, **settings):
    settings = {"batch_size": 40, "cost": COST, "window": 3, "delay": 1, "seed": 9, **settings}
    return BatchSampler(settings.pop("lengths", LENGTHS), ranks=ranks, rank=rank, **settings)


def test_all_ranks_together_load_every_sample_once_with_workers_or_without():
    for workers in (0, 2):
        seen = []
        for rank in range(4):
            loader = DataLoader(Indices(), batch_sampler=sampler(rank), num_workers=workers)
            seen += [int(index) for batch in loader for index in batch]
        assert sorted(seen) == list(range(len(LENGTHS)))


def test_ranks_agree_on_every_plan_and_loads_are_even():
    plans = [list(sampler(rank).plans()) for rank in range(4)]
    assert len(plans[0]) == sampler().steps_per_epoch == len(sampler()) == 13
    for steps in zip(*plans, strict=True):
        assert len({step.hash for step in steps}) == 1
    assert all(step.makespan <= 1.01 * step.lower_bound for step in plans[0])


def test_every_pass_is_another_epoch_and_set_epoch_repeats_one():
    ours = sampler()
    first, second = list(ours), list(ours)
    assert first != second
    ours.set_epoch(0)
    assert list(ours) == first


def test_steps_pair_plans_with_batches_under_a_token_cap():
    for workers in (0, 2):
        ours = sampler(1, tokens_per_rank=900)
        loader = DataLoader(Indices(), batch_sampler=ours, num_workers=workers)
        steps = 0
        for plan, batches in ours.steps(loader):
            pairs = list(batches)
            assert len(pairs) == len(plan.micro_batches)
            for micro_batch, batch in pairs:
                assert tuple(batch.tolist()) == micro_batch.samples
                assert micro_batch.tokens == LENGTHS[batch].sum() <= 900
            steps += 1
        assert steps == ours.steps_per_epoch


def run(ours, loader, stop=None):
    done = []
    for number, (plan, batches) in enumerate(ours.steps(loader)):
        done.append((plan.hash, [batch.tolist() for _, batch in batches]))
        if number + 1 == stop:
            break
    return done


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_resumes_after_any_step_though_workers_run_ahead(workers):
    def fresh():
        ours = sampler(2, tokens_per_rank=900)
        return ours, DataLoader(Indices(), batch_sampler=ours, num_workers=workers)

    whole = run(*fresh())
    for stop in (1, 5, 12):
        ours, loader = fresh()
        states = []
        for plan, batches in ours.steps(loader):
            list(batches)
            states.append(json.dumps(ours.state_dict()))
            if plan.step + 1 == stop:
                break
        ours, loader = fresh()
        ours.load_state_dict(json.loads(states[-1]))
        assert run(ours, loader) == whole[stop:], stop


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes_at_any_batch(workers):
    def fresh():
        ours = sampler(3, tokens_per_rank=900)
        return StatefulDataLoader(Indices(), batch_sampler=ours, num_workers=workers)

    whole = [batch.tolist() for batch in fresh()]
    for stop in (1, 4, 11):
        loader = fresh()
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = loader.state_dict()
        loader = fresh()
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == whole[stop:]


def test_the_global_order_stays_from_four_to_three_to_eight_ranks():
    whole = [plan.samples for plan in sampler().plans()]
    seen, state, at = [], None, 0
    for ranks, stop in ((4, 3), (3, 8), (8, 13)):
        union = [[] for _ in whole]
        for rank in range(ranks):
            ours = sampler(rank, ranks)
            if state is not None:
                ours.load_state_dict(state)
            loader = DataLoader(Indices(), batch_sampler=ours, collate_fn=list)
            for plan, batches in ours.steps(loader):
                union[plan.step] += [index for _, batch in batches for index in batch]
                state_after = ours.state_dict()
                if plan.step + 1 == stop:
                    break
        state, seen = state_after, seen + [tuple(sorted(union[step])) for step in range(at, stop)]
        at = stop
    assert seen == whole


CHILD = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from test_data_sampler import *
ours = sampler(1, tokens_per_rank=900)
if os.path.exists("state.json"):
    ours.load_state_dict(json.load(open("state.json")))
for plan, batches in ours.steps(DataLoader(Indices(), batch_sampler=ours, num_workers=int(sys.argv[2]))):
    line = json.dumps([plan.step, plan.hash, [batch.tolist() for _, batch in batches]])
    with open("next.json", "w") as file:
        json.dump(ours.state_dict(), file)
    os.replace("next.json", "state.json")
    print(line, flush=True)
    time.sleep(0.02)
"""


def child(folder, workers=0):
    command = [sys.executable, "-c", CHILD, os.path.dirname(__file__), str(workers)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_killed_at_any_step_the_same_samples_and_plans_follow(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = child(tmp_path / "whole").communicate()[0].splitlines()
    assert len(whole) == 13
    for kill_after in (1, 7):
        folder = tmp_path / str(kill_after)
        folder.mkdir()
        process = child(folder)
        before = [process.stdout.readline().rstrip() for _ in range(kill_after)]
        time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        before += process.communicate()[0].splitlines()
        after = child(folder).communicate()[0].splitlines()
        # Whatever the moment: what was not reported before, and was not saved either, comes again.
        assert before == whole[: len(before)]
        assert after == whole[-len(after) :]
        assert len(before) + len(after) >= len(whole)


def test_subsets_sources_and_columns():
    indices = list(range(0, 500, 2))
    seen = [index for rank in range(4) for batch in sampler(rank, indices=indices) for index in batch]
    assert sorted(seen) == indices

    sources = np.arange(500) % 5 == 0
    steps = [plan.samples for plan in sampler(sources=sources.astype(int), delay=1).plans()]
    # The first window fills the reserve and gives out one step less.
    for plans in (steps[:2], steps[2:5], steps[5:8], steps[8:11]):
        share = np.mean(sources[np.concatenate(plans)])
        assert abs(share - 0.2) <= 0.01

    rows = [{"tokens": int(length)} for length in LENGTHS]
    by_column = sampler(lengths="tokens", dataset=rows)
    by_function = sampler(lengths=lambda row: row["tokens"], dataset=rows)
    assert list(by_column) == list(by_function) == list(sampler())


def test_fewer_samples_than_ranks_leave_ranks_empty_and_a_collate_function_can_take_it():
    seen = []
    for rank in range(8):
        ours = BatchSampler([5, 9, 7], batch_size=8, cost=COST, ranks=8, rank=rank)
        loader = DataLoader(Indices(), batch_sampler=ours, collate_fn=skip_empty(torch.tensor))
        for _, batches in ours.steps(loader):
            seen += [batch.tolist() if batch is not None else [] for _, batch in batches]
    assert sorted(seen) == [[], [], [], [], [], [0], [1], [2]]


def test_hashes_are_compared_with_one_reduction():
    here, there = (next(sampler(seed=seed).plans()) for seed in (1, 2))
    check_agreement(here)
    verify_hash_tensor(hash_tensor(here), here)
    with pytest.raises(errors.ConfigurationError, match="different plans"):
        verify_hash_tensor(torch.maximum(hash_tensor(here), hash_tensor(there)), here)


def resumed(state):
    there = sampler()
    there.load_state_dict(state)
    return there


def test_states_of_other_data_settings_versions_or_forms_are_refused():
    state = sampler().state_dict()
    with pytest.raises(errors.ConfigurationError, match="another data set or setting"):
        sampler(lengths=LENGTHS + 1).load_state_dict(state)
    with pytest.raises(errors.ConfigurationError, match="another data set or setting"):
        sampler(batch_size=20).load_state_dict(state)
    with pytest.raises(errors.ConfigurationError, match="version 7"):
        sampler().load_state_dict({**state, "window": {**state["window"], "version": 7}})
    for nonsense in ({}, {"steps": 1}, {**state, "window": {"position": -1}}):
        with pytest.raises(errors.ConfigurationError):
            sampler().load_state_dict(nonsense)
    with pytest.raises(errors.ConfigurationError, match="within a step of 4 ranks"):
        sampler(ranks=3).load_state_dict({**state, "batches": 1})
    for damage in ({"steps": 99}, {"steps": -1}, {"steps": "1"}, {"steps": True}, {"batches": 7}):
        with pytest.raises(errors.ConfigurationError, match="damaged"):
            list(resumed({**state, **damage}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [3, -1]}, r"lengths\[1\]` is -1"),
        ({"lengths": [3, 0]}, r"lengths\[1\]` is 0"),
        ({"lengths": [3.0, float("nan")]}, r"lengths\[1\]` is nan"),
        ({"lengths": [3.5]}, r"lengths\[0\]` is 3.5"),
        ({"lengths": []}, "0 samples|float64 of shape"),
        ({"lengths": [2**40], "cost": Cost(quadratic=2**60)}, "overflow"),
        ({"lengths": [5, 900], "tokens_per_rank": 100}, "sample 1 of length 900 .* 100"),
        ({"indices": [1, 4, 1]}, "sample 1 twice"),
        ({"indices": [1, 500]}, "sample 500 of 500"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"window": 0}, "`window` is 0"),
        ({"delay": -1}, "`delay` is -1"),
        ({"seed": 1.5}, "`seed` is 1.5"),
        ({"cost": Cost(linear=float("nan"))}, r"`cost\.linear` is nan"),  # type: ignore[arg-type]
        ({"ranks": 0}, "`ranks` is 0"),
        ({"rank": 4}, "`rank` is 4"),
        ({"objective": "lockstp"}, "lockstp"),
        ({"objective": "grouped", "shard_group": 3}, "`shard_group` 3 does not divide the 4 ranks"),
        ({"sources": [1, 2]}, "`sources` must be 500"),
        ({"lengths": "tokens"}, "need `dataset`"),
        ({"batch_size": 501, "drop_last": True}, "501"),
    ],
)
def test_bad_settings_name_the_number_at_fault(settings, message):
    with pytest.raises(errors.UnisonoError, match=message):
        list(sampler(**{"rank": 0, "ranks": 4, **settings}))
