"""Recurrent layers over packed sequences give what eager gives, in one capture for sequences of any length."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare, compare_shards
from machines import DEAR_COMPUTING
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import unisono
from unisono.errors import CaptureNotice, StepError

BATCH, TIME = 4, 6
LENGTHS = ([5, 4, 4, 2], [6, 4, 3, 1], [5, 5, 2, 2])


class Reader(nn.Module):
    """Reads sequences, and says something of each by what the layers give and by their last states."""

    def __init__(self, layers: nn.RNNBase, sorted_: bool, begins: bool, total: int | None) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(9, layers.input_size), layers
        self.sorted, self.begins, self.total = sorted_, begins, total
        self.start = nn.Parameter(torch.randn(layers.num_layers * (1 + layers.bidirectional), 1, layers.hidden_size))
        self.head = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        first = self.layers.batch_first
        words = self.words(x if first else x.T)
        packed = pack_padded_sequence(words, lengths, batch_first=first, enforce_sorted=self.sorted)
        out, state = self.layers(packed, self.start.expand(-1, len(x), -1).contiguous() if self.begins else None)
        out, counts = pad_packed_sequence(out, batch_first=True, total_length=self.total, padding_value=0.25)
        state = state if isinstance(state, tuple) else (state,)
        ends = [part for one in state for part in one.unbind()]
        return self.head(torch.cat([out.sum(1) / counts[:, None], out.amax(1), *ends], -1))


def reading(layers: Any, sorted_: bool = True, begins: bool = False, total: int | None = TIME, **settings: Any) -> Any:
    def make() -> Training:
        model = Reader(layers(), sorted_, begins, total)
        lengths = [torch.tensor(one if sorted_ else one[::-1]) for one in LENGTHS]
        batches = [(torch.randint(0, 9, (BATCH, TIME)), one, torch.randint(0, 3, (BATCH,))) for one in lengths]
        model(*batches[0][:2])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-4)

        def step(x: torch.Tensor, lengths: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, lengths), wanted)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, optimizer, step, batches, settings=settings)

    return make


LAYERS = {
    "lstm": reading(lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True), on_change="refuse"),
    "projected lstm": reading(lambda: nn.LSTM(4, 5, proj_size=3), sorted_=False, on_change="refuse"),
    "gru": reading(lambda: nn.GRU(4, 5, bidirectional=True), sorted_=False, begins=True, on_change="refuse"),
    "without biases": reading(lambda: nn.GRU(4, 5, bias=False, batch_first=True), total=TIME + 2, on_change="refuse"),
    "rectified": reading(
        lambda: nn.RNN(4, 5, nonlinearity="relu", bidirectional=True), begins=True, on_change="refuse"
    ),
    "as long as the longest": reading(lambda: nn.LSTM(4, 5, batch_first=True), sorted_=False, total=None),
    "dropout between": reading(lambda: nn.LSTM(4, 5, 3, dropout=0.5, bidirectional=True), sorted_=False, total=None),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_packed_sequences_give_what_eager_gives(make):
    compare(make)


def test_steps_that_unpack_as_much_as_the_longest_has_are_captured_once_for_each_longest():
    given = LAYERS["as long as the longest"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = unisono.parallelize(
            given.step,
            model=given.model,
            optimizer=given.optimizer,
            example=given.batches[0],
            cluster=DEAR_COMPUTING,
        )
        for batch in given.batches:
            step(*batch)
    assert sum(issubclass(one.category, CaptureNotice) for one in caught) == 1  # 5, 6, 5


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_have_shards_of_the_batch_read_as_one_does(ranks):
    torch.manual_seed(3)
    given = LAYERS["lstm"]()
    compare_shards(given, ranks)


def test_losses_of_what_is_packed_against_packed_targets_are_those_of_eager():
    def make() -> Training:
        model = nn.ModuleDict(
            {"words": nn.Embedding(9, 4), "layers": nn.GRU(4, 5, batch_first=True), "head": nn.Linear(5, 9)}
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            targets = pack_padded_sequence(x.flip(1), lengths, batch_first=True)
            hidden, _ = model["layers"](pack_padded_sequence(model["words"](x), lengths, batch_first=True))
            loss = F.cross_entropy(model["head"](hidden.data), targets[0])
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(
            model, optimizer, step, [(torch.randint(0, 9, (BATCH, TIME)), torch.tensor(one)) for one in LENGTHS]
        )

    compare(make)


@pytest.mark.parametrize(
    ("name", "says"), [("as long as the longest", "total_length"), ("dropout between", "drop out behind the layers")]
)
def test_a_graph_for_all_calls_is_refused_where_sizes_or_random_numbers_depend_on_lengths(name, says):
    given = LAYERS[name]()
    with pytest.raises(StepError) as caught:
        unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    assert caught.value.code == "U0101"
    assert says in str(caught.value.hint)
    assert "test_packed.py" in str(caught.value.place)
