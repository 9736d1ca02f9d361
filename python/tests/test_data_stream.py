import itertools

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from unisono import errors
from unisono.data import BalancedStream, Cost

LENGTHS = np.random.default_rng(3).lognormal(4, 1, 300).astype(int) + 1


class Source(IterableDataset):
    def __iter__(self):
        return iter([int(length) * 1000 + index for index, length in enumerate(LENGTHS)])


def stream(rank=0, ranks=4, **settings):
    settings = {"batch_size": 24, "cost": Cost(50, 1), "window": 3, "delay": 1, "collate": list, **settings}
    length = settings.pop("length", lambda sample: sample // 1000)
    return BalancedStream(Source(), length=length, ranks=ranks, rank=rank, **settings)


def test_all_ranks_together_see_the_stream_once_with_workers_or_without():
    for workers in (0, 2):
        seen, hashes = [], []
        for rank in range(4):
            steps = list(DataLoader(stream(rank), batch_size=None, num_workers=workers))
            assert [step.step for step, _ in steps] == list(range(13))
            hashes.append([step.hash for step, _ in steps])
            seen += [sample for _, batches in steps for _, batch in batches for sample in batch or []]
        assert sorted(seen) == sorted(Source())
        assert all(one == hashes[0] for one in hashes)


def test_a_state_resumes_on_another_number_of_ranks():
    whole = [step.samples for step, _ in stream()]
    for stop in (1, 6):
        first = stream()
        for step, _ in itertools.islice(first, stop):
            state = first.state_after(step)
        assert state == first.state_dict()
        second = stream(ranks=3)
        second.load_state_dict(state)
        assert [step.samples for step, _ in second] == whole[stop:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes(workers):
    def fresh():
        return StatefulDataLoader(stream(1), batch_size=None, num_workers=workers)

    whole = [(step.step, [batch for _, batch in batches]) for step, batches in fresh()]
    for stop in (1, 4, 7):
        loader = fresh()
        list(itertools.islice(loader, stop))
        state = loader.state_dict()
        loader = fresh()
        loader.load_state_dict(state)
        assert [(step.step, [batch for _, batch in batches]) for step, batches in loader] == whole[stop:], stop


def test_bad_lengths_and_foreign_states_are_refused():
    with pytest.raises(errors.ConfigurationError, match=r"lengths\[0\]` is -"):
        list(stream(length=lambda sample: -sample))
    with pytest.raises(errors.ConfigurationError, match="another setting or version"):
        stream().load_state_dict(stream(batch_size=12).state_dict())
    with pytest.raises(errors.ConfigurationError):
        stream(batch_size=0)
