"""What ``unisono doctor --device`` tries on a device: operators by themselves, and five small training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from unisono import _standard_steps

_WIDTH, _HEADS, _EXPERTS = 64, 4, 4
_BATCH, _TIME, _WORDS = 4, 32, 1024

#: What an operator is called with: numbers and, without gradients, whole numbers.
Operands = tuple[torch.Tensor, ...]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


#: Each operator with its operands on the processor.
OPERATORS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], Operands]]] = {
    "linear": (
        lambda x, weight, bias: F.linear(x, weight, bias),
        lambda: (torch.randn(32, 64), torch.randn(48, 64), torch.randn(48)),
    ),
    "layer norm": (_layer_norm, lambda: (torch.randn(32, 64), torch.randn(64), torch.randn(64))),
    "softmax": (lambda x: F.softmax(x, -1), lambda: (torch.randn(32, 64),)),
    "attention": (
        _attention,
        lambda: (torch.randn(2, 4, 32, 16), torch.randn(2, 4, 32, 16), torch.randn(2, 4, 32, 16)),
    ),
    "embedding": (
        lambda ids, weight: F.embedding(ids, weight),
        lambda: (torch.randint(0, 100, (4, 32)), torch.randn(100, 16)),
    ),
    "convolution": (
        lambda x, weight, bias: F.conv2d(x, weight, bias, padding=1),
        lambda: (torch.randn(2, 3, 16, 16), torch.randn(8, 3, 3, 3), torch.randn(8)),
    ),
    "cross entropy": (
        lambda x, classes: F.cross_entropy(x, classes),
        lambda: (torch.randn(32, 10), torch.randint(0, 10, (32,))),
    ),
}


def _layer_norm_backward(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    grad, x, mean, rstd, weight, bias = operands
    return torch.ops.aten.native_layer_norm_backward(
        grad * 0.5, x, [x.shape[-1]], mean, rstd, weight, bias, [True, True, True]
    )


def _gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh") * torch.sigmoid(gate) + x


#: Functions that become one kernel each, with their operands on the processor.
FUSED: dict[str, tuple[Callable[..., Any], Callable[[], Operands]]] = {
    "softmax of long rows": (lambda x: F.softmax(x * 2, -1), lambda: (torch.randn(64, 1000),)),
    "softmax of many rows": (lambda x: F.softmax(x * 2, -1), lambda: (torch.randn(4096, 64),)),
    "layer norm backward": (
        _layer_norm_backward,
        lambda: (
            *(torch.randn(300, 128) for _ in range(2)),
            *(torch.rand(300, 1) for _ in range(2)),
            *torch.randn(2, 128),
        ),
    ),
    "gate": (_gated, lambda: (torch.randn(33, 1001), torch.randn(33, 1001))),
    "gate in bf16": (_gated, lambda: tuple(torch.randn(2, 64, 256, dtype=torch.bfloat16))),
}


@dataclass
class Training:
    """A training step with its model, optimizer and batch on one device."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[..., torch.Tensor]
    batch: tuple[torch.Tensor, torch.Tensor]


def training(name: str, device: torch.device) -> Training:
    """A step of :data:`STEPS` on a device, from the same numbers each time."""
    torch.manual_seed(0)
    model, batch, loss_of = STEPS[name]()
    # The optimizer comes after, because a module may get new parameters on a device that PyTorch does not know.
    model.to(device)
    # An epsilon far above the rounding of gradients, which would otherwise decide the sign of an update where a gradient is nothing else.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    x, y = batch
    return Training(model, optimizer, step, (x.to(device), y.to(device)))


def _of_classes(made: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(made.flatten(0, -2), classes.flatten())


Made = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]


def _mlp() -> Made:
    model = nn.Sequential(nn.Linear(16, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 16))
    return model, (torch.randn(8, 16), torch.randn(8, 16)), F.mse_loss


def _gpt() -> Made:
    return _standard_steps.transformer(_WIDTH), (_tokens(), _tokens()), _of_classes


def _llama() -> Made:
    model = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), _Llama(), nn.RMSNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS))
    return model, (_tokens(), _tokens()), _of_classes


def _convnet() -> Made:
    return _standard_steps.convolutional(8, 16), (torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))), _of_classes


def _experts() -> Made:
    return Experts(_WIDTH), (torch.randn(8, _WIDTH), torch.randn(8, _WIDTH)), F.mse_loss


#: Model, batch and loss of each step, on the processor.
STEPS: dict[str, Callable[[], Made]] = {
    "mlp": _mlp,
    "gpt": _gpt,
    "llama": _llama,
    "convnet": _convnet,
    "experts": _experts,
}


def _tokens() -> torch.Tensor:
    return torch.randint(0, _WORDS, (_BATCH, _TIME))


class _Llama(nn.Module):
    """A block with RMSNorm, rotary positions and SwiGLU."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(_WIDTH), nn.RMSNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(_WIDTH, 2 * _WIDTH, bias=False),
            nn.Linear(_WIDTH, 2 * _WIDTH, bias=False),
            nn.Linear(2 * _WIDTH, _WIDTH, bias=False),
        )
        pairs = _WIDTH // _HEADS // 2
        angles = torch.outer(torch.arange(_TIME).float(), 10_000.0 ** (-torch.arange(pairs) / pairs))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, -1)
        return x * self.cos + torch.cat((-other, one), -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, _HEADS, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        mixed = _attention(self._rotated(q), self._rotated(k), v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """Experts of which each row takes two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, _EXPERTS)
        self.up = nn.Parameter(torch.randn(_EXPERTS, width, 2 * width) * 0.1)
        self.down = nn.Parameter(torch.randn(_EXPERTS, 2 * width, width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        best, chosen = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best)
        made = torch.bmm(torch.bmm(x.expand(_EXPERTS, -1, -1), self.up).relu(), self.down)
        return torch.einsum("be,ebd->bd", weights, made)
