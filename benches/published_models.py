"""The decoders of published training runs, as `published.py` captures them.

    python benches/published_models.py MODEL FILE [SEQUENCES [LENGTH]]

writes the step of a model of `published.toml`, 64 sequences of 4,096 tokens where no others are said, to a file that `unisono plan` reads.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import real_sizes
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import unisono
from unisono.graph import StepGraph

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default
#: What part of values GPT drops: the paper's, and NeMo's and Megatron's default.
DROPOUT = 0.1


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder, and how its framework computes it.

    Attributes:
        gated: whether blocks are LLaMA's. GPT's have norms of layers, biases, dropout and a perceptron without a gate.
        positions: how many positions have a learned vector; 0: queries and keys are rotated.
        head_norms: whether each head's queries and keys go through a norm.
        recompute: what of a block runs again in backward: "none", "full", or "selective" (all but attention and every second product).
        narrow: whether products are of 8 bits, but for the head.
        repeats_keys: whether keys and values are repeated for each query's head before attention.
        one_norm: whether a norm is one operation, and not written out.
        written_attention: whether attention is written out, and what "selective" runs again.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    gated: bool = True
    positions: int = 0
    tied: bool = False
    head_norms: bool = False
    recompute: str = "none"
    narrow: bool = False
    repeats_keys: bool = False
    one_norm: bool = False
    written_attention: bool = False

    @property
    def keeps_blocks(self) -> bool:
        """Whether of a block nothing but attention runs again."""
        return self.written_attention and self.recompute == "selective"

    @property
    def block(self) -> int:
        """Elements of the matrices of a block."""
        heads = 2 * (self.heads + self.key_heads) * self.head
        return self.width * (heads + (3 if self.gated else 2) * self.hidden)


def narrow(x: torch.Tensor) -> torch.Tensor:
    """In 8 bits, as one pass makes it."""
    return x.to(torch.float8_e4m3fn)


def columns(x8: torch.Tensor) -> torch.Tensor:
    """The same matrix with its columns in memory one behind the other, as 8-bit products of Hopper need their second operand."""
    return x8.t().contiguous().t()


class NarrowProduct(torch.autograd.Function):
    """`x @ w.T` in 8 bits, forward and backward, with results in bf16."""

    @staticmethod
    def forward(ctx: Any, x_TI: torch.Tensor, w_OI: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x8, w8 = narrow(x_TI), narrow(w_OI)
        ctx.save_for_backward(x8, w8, scale)
        return torch.ops.aten._scaled_mm.default(x8, w8.t(), scale, scale, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x8, w8, scale = ctx.saved_tensors
        g8 = narrow(gradients[0])
        product = functools.partial(
            torch.ops.aten._scaled_mm.default, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )
        return product(g8, columns(w8)), product(g8.t().contiguous(), columns(x8)), None


class Linear(nn.Linear):
    """A product in bf16, or in 8 bits, with weights in f32."""

    def __init__(self, inputs: int, outputs: int, *, narrow: bool = False, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.narrow = narrow
        if narrow:
            self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(torch.bfloat16)
        bias = None if self.bias is None else self.bias.to(torch.bfloat16)
        if not self.narrow:
            return F.linear(x, weight, bias)
        made: Any = NarrowProduct.apply(x.flatten(0, -2), weight, self.scale)
        made = made.unflatten(0, x.shape[:-1])
        return made if bias is None else made + bias


class Norm(nn.RMSNorm):
    """A norm in bf16 with weights in f32."""

    def __init__(self, width: int, *, is_one: bool = False) -> None:
        super().__init__(width)
        self.is_one = is_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(torch.bfloat16)
        if self.is_one:
            return F.rms_norm(x, tuple(self.normalized_shape), weight, 1e-5)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return wide.to(torch.bfloat16) * weight


class LayerNorm(nn.LayerNorm):
    """A norm of layers in bf16 with weights in f32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.to(torch.bfloat16), self.bias.to(torch.bfloat16)
        return F.layer_norm(input, self.normalized_shape, weight, bias)


def written_attention(q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor) -> torch.Tensor:
    """Causal attention as PyTorch's operations, with a softmax in f32 between products in bf16."""
    length = q_BHTK.shape[2]
    scores = q_BHTK @ k_BHTK.transpose(2, 3) * q_BHTK.shape[3] ** -0.5
    later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1, dtype=torch.float32)
    return F.dropout(weights.to(torch.bfloat16), DROPOUT) @ v_BHTK


class GptBlock(nn.Module):
    """GPT's block: biases, dropout, and a perceptron of two products."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        product = functools.partial(Linear, narrow=shape.narrow, bias=True)
        self.norm_in, self.norm_mlp = LayerNorm(width), LayerNorm(width)
        self.q, self.k, self.v = (product(width, shape.heads * shape.head) for _ in range(3))
        self.o = product(shape.heads * shape.head, width)
        self.up, self.down = product(width, shape.hidden), product(shape.hidden, width)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not self.shape.written_attention:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.shape.recompute == "selective":
            mixed: Any = checkpoint(written_attention, q, k, v, use_reentrant=False)
            return mixed
        return written_attention(q, k, v)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        y, head = self.norm_in(x_BTD), self.shape.head
        q, k, v = (product(y).unflatten(-1, (-1, head)).transpose(1, 2) for product in (self.q, self.k, self.v))
        mixed = self.attention(q, k, v).transpose(1, 2).flatten(2)
        x_BTD = x_BTD + F.dropout(self.o(mixed), DROPOUT)
        hidden = F.gelu(self.up(self.norm_mlp(x_BTD)), approximate="tanh")
        return x_BTD + F.dropout(self.down(hidden), DROPOUT)


class Block(nn.Module):
    """LLaMA's block: attention with grouped queries and rotated positions, and a perceptron with a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        product = functools.partial(Linear, narrow=shape.narrow)
        self.norm_in, self.norm_mlp = (Norm(width, is_one=shape.one_norm) for _ in range(2))
        self.q = product(width, shape.heads * shape.head)
        self.k, self.v = (product(width, shape.key_heads * shape.head) for _ in range(2))
        self.o = product(shape.heads * shape.head, width)
        self.gate, self.up = product(width, shape.hidden), product(width, shape.hidden)
        self.down = product(shape.hidden, width)
        if shape.head_norms:
            self.norm_q, self.norm_k = (Norm(shape.head, is_one=shape.one_norm) for _ in range(2))

    def forward(self, x_BTD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y, shape = self.norm_in(x_BTD), self.shape
        q, k, v = (product(y).unflatten(-1, (-1, shape.head)) for product in (self.q, self.k, self.v))
        if shape.head_norms:
            q, k = self.norm_q(q), self.norm_k(k)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        q, k = (one * cos + torch.cat((-one.chunk(2, -1)[1], one.chunk(2, -1)[0]), -1) * sin for one in (q, k))
        grouped = shape.heads != shape.key_heads
        if grouped and shape.repeats_keys:
            k, v = (one.repeat_interleave(shape.heads // shape.key_heads, 1) for one in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped and not shape.repeats_keys)
        x_BTD = x_BTD + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm_mlp(x_BTD)
        gate, up = self.gate(y), self.up(y)
        return x_BTD + self.down(F.silu(gate) * up)


def selective() -> Any:
    """Keeps attention and every second product of a block."""
    products = 0

    def policy(_context: Any, operation: Any, *_arguments: Any, **_settings: Any) -> CheckpointPolicy:
        nonlocal products
        products += operation in PRODUCTS
        keeps = products % 2 == 1 if operation in PRODUCTS else "attention" in str(operation)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Decoder(nn.Module):
    """A language model of such blocks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width) if shape.positions else None
        self.blocks = nn.ModuleList((Block if shape.gated else GptBlock)(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, is_one=shape.one_norm) if shape.gated else LayerNorm(shape.width)
        self.head = Linear(shape.width, shape.vocabulary)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD, extra = self.placed(tokens_BT)
        run: Callable[..., torch.Tensor] = nn.Module.__call__
        if self.shape.recompute != "none" and not self.shape.keeps_blocks:
            contexts = {"context_fn": selective} if self.shape.recompute == "selective" else {}
            run = functools.partial(checkpoint, use_reentrant=False, **contexts)
        for block in self.blocks:
            x_BTD = run(block, x_BTD, *extra)
        return self.head(self.norm(x_BTD))

    def placed(self, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Vectors of the tokens, and what blocks rotate queries and keys by, if they do."""
        x_BTD = self.embedding(tokens_BT)
        place = torch.arange(tokens_BT.shape[1], device=x_BTD.device)
        if self.positions is not None:
            return F.dropout((x_BTD + self.positions(place)).to(torch.bfloat16), DROPOUT), ()
        rates = 5e5 ** (-torch.arange(0, self.shape.head, 2, device=x_BTD.device).float() / self.shape.head)
        angles = torch.outer(place.float(), rates).repeat(1, 2)
        return x_BTD.to(torch.bfloat16), (angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16))


@functools.cache
def captured(shape: Shape, sequences: int, length: int, device: str) -> StepGraph:
    """One step of such a model on so many sequences, with the kernels of attention that a device has."""
    with torch.device("meta"):
        model, tokens = Decoder(shape), torch.zeros(sequences, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step = real_sizes.make_step(model, optimizer)
    example = (tokens, tokens)
    return unisono.capture(step, model=model, optimizer=optimizer, example=example, device=device, rng="counter")


def main() -> None:
    name, file, *sizes = sys.argv[1:]
    sequences, length = [*map(int, sizes), *(64, 4096)[len(sizes) :]]
    models = tomllib.loads(Path(__file__).with_name("published.toml").read_text())["models"]
    graph = captured(Shape(**models[name]), sequences, length, "cuda")
    Path(file).write_bytes(graph.message)


if __name__ == "__main__":
    main()
