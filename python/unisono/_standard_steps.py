"""Training steps that `unisono profile` measures operations in where it is given none: transformers and a convolutional network in a few
sizes, so that the tensors of some fit caches and those of others do not. On devices these are larger, and one is in the operations that
language models are written in, where views, casts and rows that are read for many take longer than their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class _Sizes(NamedTuple):
    """How large the steps are.

    Attributes:
        transformers: batch, tokens of each sample, width; heads are 32 wide.
        written_out: the same of transformers written out, with their words; heads are 128 wide.
        convolutions: batch, side of an image, channels.
    """

    transformers: tuple[tuple[int, int, int], ...]
    written_out: tuple[tuple[int, int, int, int], ...]
    convolutions: tuple[tuple[int, int, int], ...]


_OF_HOSTS = _Sizes(((2, 32, 64), (4, 128, 256), (4, 256, 512)), (), ((4, 16, 16), (8, 32, 32), (16, 32, 64)))
_OF_DEVICES = _Sizes(
    ((2, 32, 64), (4, 256, 512), (4, 1024, 2048)),
    ((2, 128, 512, 1024), (4, 512, 1024, 8192), (4, 2048, 2048, 32_000)),
    ((4, 16, 16), (32, 32, 64), (64, 64, 128)),
)
_WORDS, _CLASSES = 1024, 10

#: What `unisono.capture` is given.
Made = tuple[Callable[..., Any], dict[str, Any]]


class _Block(nn.Module):
    """Attention and two layers, as most language models have them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.before, self.between = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * F.gelu(self.up(y)))


class _Norm(nn.Module):
    """Root mean squares, one operation after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class _WrittenOut(nn.Module):
    """A block with rotary positions and a gated layer, one operation after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, inner = width // 128, width * 11 // 4
        self.before, self.between = _Norm(width), _Norm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.gate = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        y = self.before(x)
        q, k, v = (f(y).view(batch, time, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        half = q.shape[-1] // 2
        angles = torch.outer(torch.arange(time, device=x.device), 1e4 ** (-torch.arange(half, device=x.device) / half))
        cos, sin = (one.to(x.dtype)[None, None] for one in (angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)))
        q, k = (t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def written_out(width: int, words: int) -> nn.Module:
    """A language model in single operations, for ids of words."""
    blocks = [_WrittenOut(width) for _ in range(2)]
    return nn.Sequential(nn.Embedding(words, width), *blocks, _Norm(width), nn.Linear(width, words, bias=False))


def transformer(width: int) -> nn.Module:
    """A small language model for ids of words."""
    blocks = [_Block(width) for _ in range(2)]
    return nn.Sequential(nn.Embedding(_WORDS, width), *blocks, nn.LayerNorm(width), nn.Linear(width, _WORDS))


def convolutional(channels: int, side: int) -> nn.Module:
    """A small network with batch norm for images of a side."""

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    body = [*layer(3, channels), *layer(channels, channels), nn.MaxPool2d(2), *layer(channels, 2 * channels)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(2 * channels * (side // 2) ** 2, _CLASSES))


def _step(model: nn.Module, example: tuple[torch.Tensor, torch.Tensor]) -> Made:
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2).float(), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return train_step, {"model": model, "optimizer": optimizer, "example": example}


def steps(device: torch.device, dtypes: list[torch.dtype]) -> Iterator[tuple[str, Made]]:
    """Names and steps, small ones first, with state of each element type."""
    sizes = _OF_HOSTS if device.type == "cpu" else _OF_DEVICES
    with torch.device(device):
        for dtype in dtypes:
            kind = str(dtype).removeprefix("torch.")
            for batch, time, width in sizes.transformers:
                ids = torch.randint(0, _WORDS, (batch, time))
                yield f"a transformer {width} wide in {kind}", _step(transformer(width).to(dtype), (ids, ids))
            for batch, time, width, words in sizes.written_out:
                ids = torch.randint(0, words, (batch, time))
                model = written_out(width, words).to(dtype)
                yield f"a transformer {width} wide in {kind}, written out", _step(model, (ids, ids))
            for batch, side, channels in sizes.convolutions:
                images, classes = torch.randn(batch, 3, side, side).to(dtype), torch.randint(0, _CLASSES, (batch,))
                model = convolutional(channels, side).to(dtype)
                yield f"{channels} channels of convolutions in {kind}", _step(model, (images, classes))
