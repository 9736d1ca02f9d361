"""Short-time Fourier transforms in a step: those of eager PyTorch, and sharded by samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager import Training, compare, compare_shards
from machines import DEAR_COMPUTING
from torch import nn

import unisono

BATCH, SAMPLES = 6, 40
WINDOW = torch.hann_window(16)
CALLS: dict[str, Any] = {
    "centred": lambda x: torch.stft(x, 16, 4, window=WINDOW, return_complex=True),
    "as a method": lambda x: x.stft(16, 4, window=WINDOW, return_complex=True),
    "not centred, normalised": lambda x: torch.stft(
        x, n_fft=16, window=WINDOW, center=False, normalized=True, return_complex=True
    ),
    "a shorter window": lambda x: torch.stft(
        x, 16, 5, 11, torch.hamming_window(11), pad_mode="constant", return_complex=True
    ),
    "no window": lambda x: torch.stft(x, 15, 4, 9, return_complex=True),
    "both sides": lambda x: torch.stft(x, 16, 4, window=WINDOW, onesided=False, return_complex=True),
    "one signal": lambda x: torch.stft(x.flatten(), 16, 8, window=WINDOW, return_complex=True),
}


def training(name: str) -> Training:
    model = nn.Conv1d(1, 2, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        spectrum = CALLS[name](model(x).mean(1))
        loss = spectrum.abs().square().mean() + torch.view_as_real(spectrum).sin().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randn(BATCH, 1, SAMPLES),) for _ in range(3)])


@pytest.mark.parametrize("name", CALLS)
def test_a_spectrum_is_that_of_eager(name):
    compare(lambda: training(name))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_spectra_of_their_samples(ranks):
    given = training("centred")
    compare_shards(given, ranks)
    graph = unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    plan = graph.plan(DEAR_COMPUTING, mesh={"a": ranks}, pins={"batch.*": {"a": "shard(0)"}})
    assert "runs replicated" not in plan.explain()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.stft(x, 16, 4, window=torch.ones(5), return_complex=True),
        lambda x: torch.stft(x, 16, 4, center=False),
    ],
)
def test_what_pytorch_refuses_is_refused_in_its_words(call):
    with pytest.raises(RuntimeError) as expected:
        call(torch.ones(2, 40))
    with pytest.raises(RuntimeError) as caught:
        unisono.capture(lambda x: call(x).abs().sum(), example=(torch.ones(2, 40),))
    assert str(caught.value).partition("\n")[0][:40] == str(expected.value).partition("\n")[0][:40]
