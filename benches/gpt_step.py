"""A whole training step of a tiny GPT, eager and as one graph, for the executor's benchmark and tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(self.ln1(x_BTD)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a_BHTd = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(a_BHTd.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.ln2(x_BTD))))


class GPT(nn.Module):
    """A decoder: B batch, T time, D width, H heads, V vocabulary."""

    def __init__(
        self, width: int = 64, layers: int = 8, heads: int = 4, vocabulary: int = 256, length: int = 32
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.tokens(x_BT) + self.positions(torch.arange(x_BT.shape[1]))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


LR, BETA1, BETA2, EPS, DECAY, NORM = 1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0


def step(model: nn.Module, optimizer: torch.optim.Optimizer):
    """The step as a user writes it."""

    def train(x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train


def eager_step(model: nn.Module, *, fused: bool | None = None):
    """The step, ready to run eagerly."""
    return step(model, torch.optim.AdamW(model.parameters(), lr=LR, fused=fused))


class FlatStep:
    """The same step as a function of flat lists: parameters, both moments, step counters, then the batch."""

    def __init__(self, model: nn.Module, *, fused: bool) -> None:
        self.model, self.fused = model, fused
        self.names = [name for name, _ in model.named_parameters()]

    def state(self) -> list[torch.Tensor]:
        parameters = [p.detach().clone() for p in self.model.parameters()]
        moments = [torch.zeros_like(p) for p in parameters + parameters]
        return [*parameters, *moments, *(torch.zeros(()) for _ in parameters)]

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        n = len(self.names)
        state, x_BT, y_BT = tensors[:-2], *tensors[-2:]
        parameters, firsts, seconds, counts = (list(state[i * n : (i + 1) * n]) for i in range(4))
        leaves = [p.detach().requires_grad_() for p in parameters]
        logits_BTV = functional_call(self.model, dict(zip(self.names, leaves, strict=True)), (x_BT,))
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), y_BT.flatten())
        grads = list(torch.autograd.grad(loss, leaves))
        with torch.no_grad():
            # as torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW do it
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, (NORM / (norm + 1e-6)).clamp(max=1.0))
            update = self._fused if self.fused else self._elementwise
            update(parameters, grads, firsts, seconds, counts)
        return loss.detach()

    @staticmethod
    def _fused(parameters, grads, firsts, seconds, counts) -> None:
        torch._foreach_add_(counts, torch.ones(()), alpha=1.0)
        torch._fused_adamw_(
            parameters, grads, firsts, seconds, [], counts,
            lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=DECAY, eps=EPS, amsgrad=False, maximize=False,
        )  # fmt: skip

    @staticmethod
    def _elementwise(parameters, grads, firsts, seconds, counts) -> None:
        for p, g, m, v, t in zip(parameters, grads, firsts, seconds, counts, strict=True):
            t.add_(1)
            m.lerp_(g, 1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            denominator = (v / (1 - BETA2**t)).sqrt() + EPS
            p.mul_(1 - LR * DECAY).sub_(LR / (1 - BETA1**t) * m / denominator)


def batch(size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_BT = torch.randint(0, 256, (size, length + 1), generator=generator)
    return x_BT[:, :-1].contiguous(), x_BT[:, 1:].contiguous()
