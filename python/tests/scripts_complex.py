"""Scripts that compute with complex numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from script_parts import ended
from torch import nn
from user_scripts import script


class Rotary(nn.Module):
    """Attention whose positions are complex factors, as Llama's own code has them."""

    def __init__(self, size: int = 16, heads: int = 2, length: int = 8) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(11, size)
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        half = size // heads // 2
        angles = torch.outer(torch.arange(length).float(), 1.0 / 100 ** (torch.arange(half) / half))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))
        self.head = nn.Linear(size, 11)

    def turned(self, x_BSHD: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x_BSHD.float().reshape(*x_BSHD.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs_cis[:, None]).flatten(3).type_as(x_BSHD)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens_BS)
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)) for one in (self.q, self.k, self.v))
        q, k, v = (one.transpose(1, 2) for one in (self.turned(q), self.turned(k), v))
        return self.head(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)))


@script
def positions_are_complex_factors(parallelize):
    model = Rotary()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    def step(tokens):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = torch.randint(0, 11, (4, 8))
    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    return ended(step, [step(batch) for _ in range(3)], model, optimizer)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights between transforms."""

    def __init__(self, size: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.modes, self.lift, self.head = modes, nn.Linear(2, size), nn.Linear(size, 1)
        self.weight = nn.Parameter(torch.randn(size, size, modes, dtype=torch.cfloat) / size)
        self.shift = nn.Parameter(torch.zeros(size, modes, dtype=torch.cfloat))

    def forward(self, x_BLC: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.lift(x_BLC)).transpose(1, 2)
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight) + self.shift
        mixed = torch.zeros_like(spectrum)
        mixed[..., : self.modes] = low
        y = torch.fft.irfft(mixed, n=x.shape[-1]) + x + 0.1 * torch.fft.fft(x).abs()
        return self.head(y.transpose(1, 2))


def _trained(parallelize, model, optimizer, batch):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = parallelize(step, model=model, optimizer=optimizer, example=batch)
    return ended(step, [step(*batch) for _ in range(3)], model, optimizer)


@script
def a_fourier_neural_operator_has_complex_weights(parallelize):
    model = Spectral()
    batch = torch.randn(4, 16, 2), torch.randn(4, 16, 1)
    return _trained(parallelize, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), batch)


class Phases(nn.Module):
    """Complex layers, scaled by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16, dtype=torch.cfloat), nn.Linear(16, 4, dtype=torch.cfloat)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x * (1 + 0.5j))
        hidden = hidden * torch.sigmoid(hidden.abs()) + 1j
        out = self.last(hidden)
        return out.real + out.imag.square() - (out * out.conj()).real


@script
def complex_layers_are_trained_by_adam(parallelize):
    model = Phases()
    batch = torch.randn(8, 8, dtype=torch.cfloat), torch.randn(8, 4)
    return _trained(parallelize, model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), batch)


class DiagonalStates(nn.Module):
    """A state space model by its kernel: real parameters times the imaginary unit."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.turn = nn.Parameter(torch.rand(4, 3)), nn.Parameter(torch.randn(4, 3))
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = -torch.exp(self.decay) + 1j * self.turn
        kernel = 2 * torch.exp(rates.unsqueeze(-1) * torch.arange(x.shape[1])).sum(1).real
        spectrum = torch.fft.rfft(x.transpose(1, 2), n=2 * x.shape[1]) * torch.fft.rfft(kernel, n=2 * x.shape[1])
        return self.out(torch.fft.irfft(spectrum, n=2 * x.shape[1])[..., : x.shape[1]].transpose(1, 2))


@script
def a_real_parameter_is_turned_by_the_imaginary_unit(parallelize):
    model = DiagonalStates()
    batch = torch.randn(4, 8, 4), torch.randn(4, 8, 1)
    return _trained(parallelize, model, torch.optim.SGD(model.parameters(), lr=0.01), batch)
