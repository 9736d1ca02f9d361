"""Operations for functions that are made at random: each takes tensors and numbers that were drawn for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Operation = Callable[..., Any]


@dataclass(frozen=True)
class Numbers:
    """What is drawn for a call on a tensor: dimensions of it, positions along the first of them, and what else operations ask."""

    dim: int
    other: int
    dims: tuple[int, ...] | None
    order: tuple[int, ...]
    start: int
    end: int
    count: int
    keep: bool
    rows: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def drawn(cls, rng: random.Random, x: Tensor) -> Numbers:
        dims = range(max(x.dim(), 1))
        dim, other = rng.choice(dims), rng.choice(dims)
        length = x.shape[dim] if x.dim() else 1
        start = rng.randrange(length) if length else 0
        first = x.shape[0] if x.dim() else 1
        return cls(
            dim=dim,
            other=other,
            dims=tuple(sorted(rng.sample(dims, rng.randint(1, len(dims))))) if rng.random() < 0.7 else None,
            order=tuple(rng.sample(dims, len(dims))),
            start=start,
            end=rng.randint(start, length),
            count=rng.choice([2, 3]),
            keep=rng.random() < 0.4,
            rows=tuple(rng.randrange(first) for _ in range(rng.randint(1, 4))) if first else (),
            dtype=rng.choice(CAST_TO),
        )

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())


class Family(NamedTuple):
    """Operations that take tensors alike: how often one is drawn, which tensors go with the first, and the operations by name."""

    weight: int
    operands: Callable[[random.Random, Sequence[Tensor], int], list[int] | None]
    operations: Mapping[str, Operation]


# Which tensors go with the one at a position: positions of all that a call takes, or `None` where there are none.


def alone(_rng: random.Random, _pool: Sequence[Tensor], at: int) -> list[int] | None:
    return [at]


def broadcast(rng: random.Random, pool: Sequence[Tensor], at: int) -> list[int] | None:
    return [at, rng.choice([i for i, one in enumerate(pool) if _fit(one.shape, pool[at].shape)])]


def into(rng: random.Random, pool: Sequence[Tensor], at: int) -> list[int] | None:
    """A tensor that PyTorch may write into, and one that has no more elements."""
    x = pool[at]
    if _overlaps(x) or (x.requires_grad and x.is_leaf):
        return None
    fit = [i for i, one in enumerate(pool) if _fit(one.shape, x.shape)]
    return [at, rng.choice([i for i in fit if torch.broadcast_shapes(pool[i].shape, x.shape) == x.shape])]


def _overlaps(x: Tensor) -> bool:
    """Whether elements of a tensor may share memory."""
    extent = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride < extent:
                return True
            extent += stride * (size - 1)
    return False


def alike(rng: random.Random, pool: Sequence[Tensor], at: int) -> list[int] | None:
    others = [i for i, one in enumerate(pool) if one.shape == pool[at].shape]
    return [at, *rng.choices(others, k=rng.randint(1, 2))]


def inner(rng: random.Random, pool: Sequence[Tensor], at: int) -> list[int] | None:
    x = pool[at]
    fit = [i for i, one in enumerate(pool) if one.dim() and x.dim() and one.shape[-min(one.dim(), 2)] == x.shape[-1]]
    fit = [i for i in fit if pool[i].dtype == x.dtype]
    return [at, rng.choice(fit)] if fit else None


def _fit(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


CAST_TO = [*[torch.float32, torch.bfloat16] * 3, torch.float64, torch.float16]
CAST_TO += [torch.int64, torch.int32, torch.uint8, torch.bool]

METHODS = """
    relu sigmoid tanh exp abs neg sin cos sign floor ceil round trunc sqrt rsqrt log reciprocal square erf erfc expm1 log1p atan isnan isinf
    isfinite logical_not frac detach clone contiguous
"""
FUNCTIONS = """
    silu softplus elu hardswish mish selu logsigmoid hardtanh tanhshrink softsign hardsigmoid leaky_relu relu6 celu
"""
POINTWISE: dict[str, Operation] = {
    **{name: lambda x, _, name=name: getattr(x, name)() for name in METHODS.split()},
    **{name: lambda x, _, name=name: getattr(F, name)(x) for name in FUNCTIONS.split()},
    "gelu": lambda x, _: F.gelu(x),
    "gelu of tanh": lambda x, _: F.gelu(x, approximate="tanh"),
    "threshold": lambda x, _: F.threshold(x, 0.1, 2),
    "no less": lambda x, _: x.clamp(min=0.1),
    "no more": lambda x, _: x.clamp(max=1),
    "between": lambda x, _: x.clamp(-0.5, 0.5),
    "no less than a tensor": lambda x, _: torch.clamp(x, min=torch.tensor(-0.3)),
    "power 2": lambda x, _: x**2,
    "power 3": lambda x, _: x**3,
    "power 1/2": lambda x, _: x.abs() ** 0.5,
    "power -1": lambda x, _: (x.abs() + 1) ** -1,
    "power of 2": lambda x, _: 2 ** x.clamp(-3, 3),
    "plus 1": lambda x, _: x + 1,
    "plus 0": lambda x, _: x + 0,
    "1 minus": lambda x, _: 1 - x,
    "times 0.3": lambda x, _: x * 0.3,
    "times 3": lambda x, _: x * 3,
    "times 1": lambda x, _: x * 1,
    "over 3": lambda x, _: x / 3,
    "1 over": lambda x, _: 1 / (x.abs() + 1),
    "remainder of 3": lambda x, _: x % 3,
    "over 2, whole": lambda x, _: x // 2,
    "without nan": lambda x, _: torch.nan_to_num(x),
    "more than 0": lambda x, _: x > 0,
    "equals 1": lambda x, _: x == 1,
    "is not 0": lambda x, _: x != 0,
    "itself or 0": lambda x, _: torch.where(x > 0, x, 0),
    "1 or itself": lambda x, _: torch.where(x > 0, 1.0, x),
    "1 or 2": lambda x, _: torch.where(x > 0, 1, 2),
    "masked": lambda x, _: x.masked_fill(x > 0, 2),
    "logit": lambda x, _: x.sigmoid().logit(),
}
OF_TWO: dict[str, Operation] = {
    "add": lambda x, y, _: x + y,
    "add 2 of": lambda x, y, _: torch.add(x, y, alpha=2),
    "subtract": lambda x, y, _: x - y,
    "from": lambda x, y, _: torch.rsub(x, y),
    "multiply": lambda x, y, _: x * y,
    "divide": lambda x, y, _: x / (y.abs() + 1),
    "maximum": lambda x, y, _: torch.maximum(x, y),
    "minimum": lambda x, y, _: torch.minimum(x, y),
    "less": lambda x, y, _: x < y,
    "at least": lambda x, y, _: x >= y,
    "equal": lambda x, y, _: x == y,
    "the larger": lambda x, y, _: torch.where(x > y, x, y),
    "both": lambda x, y, _: torch.logical_and(x, y),
    "either": lambda x, y, _: torch.logical_xor(x, y),
    "masked by": lambda x, y, _: x.masked_fill(y > 0, 0),
    "fmod": lambda x, y, _: torch.fmod(x, y.abs() + 1),
    "remainder": lambda x, y, _: torch.remainder(x, y.abs() + 1),
    "divide, whole": lambda x, y, _: torch.div(x, y.abs() + 1, rounding_mode="floor"),
    "atan2": lambda x, y, _: torch.atan2(x, y),
    "hypot": lambda x, y, _: torch.hypot(x, y),
    "copysign": lambda x, y, _: torch.copysign(x, y),
    "lerp": lambda x, y, _: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y, _: torch.addcmul(x, y, y, value=0.5),
    "addcdiv": lambda x, y, _: torch.addcdiv(x, y, y.abs() + 1),
    "power": lambda x, y, _: (x.abs() + 0.5) ** y.clamp(-2, 2),
    "distance": lambda x, y, _: F.mse_loss(x, y, reduction="none"),
}
REDUCED: dict[str, Operation] = {
    "sum": lambda x, n: x.sum(n.dims, keepdim=n.keep),
    "sum of all": lambda x, _: x.sum(),
    "sum as f64": lambda x, n: x.sum(n.dims, dtype=torch.float64),
    "mean": lambda x, n: x.mean(n.dims, keepdim=n.keep),
    "amax": lambda x, n: x.amax(n.dims or (), keepdim=n.keep),
    "amin": lambda x, n: x.amin(n.dims or (), keepdim=n.keep),
    "max": lambda x, n: x.max(n.dim),
    "min": lambda x, _: x.min(),
    "aminmax": lambda x, _: torch.aminmax(x),
    "prod": lambda x, n: x.prod(n.dim, keepdim=n.keep),
    "var": lambda x, n: x.var(n.dims, keepdim=n.keep, unbiased=False),
    "std": lambda x, n: x.std(n.dims, keepdim=n.keep, correction=0) + 1,
    "var_mean": lambda x, n: torch.var_mean(x, n.dims, correction=0, keepdim=n.keep),
    "logsumexp": lambda x, n: x.logsumexp(n.dims or (), keepdim=n.keep),
    "any": lambda x, n: x.any(n.dim, keepdim=n.keep),
    "all": lambda x, _: x.all(),
    "norm": lambda x, n: torch.linalg.vector_norm(x, dim=n.dims, keepdim=n.keep),
    "argmax": lambda x, n: x.argmax(n.dim),
    "how many": lambda x, n: (x > 0).sum(n.dim),
    "nanmean": lambda x, _: torch.nanmean(x, -1),
    "mean, repeated": lambda x, _: x.mean().expand(3),
}
VIEWS: dict[str, Operation] = {
    "mT": lambda x, _: x.mT,
    "permute": lambda x, n: x.permute(n.order),
    "transpose": lambda x, n: x.transpose(n.dim, n.other),
    "movedim": lambda x, n: x.movedim(n.dim, n.other),
    "reshape": lambda x, _: x.reshape(-1),
    "other shape": lambda x, _: x.reshape(x.shape[::-1]),
    "flatten": lambda x, n: x.flatten(0, n.dim),
    "unflatten": lambda x, n: x.unflatten(n.dim, (n.count, -1)),
    "unsqueeze": lambda x, n: x.unsqueeze(n.dim),
    "squeeze": lambda x, _: x.squeeze(),
    "view": lambda x, _: x.view(1, *x.shape),
    "narrow": lambda x, n: x.narrow(n.dim, n.start, n.end - n.start),
    "select": lambda x, n: x.select(n.dim, n.start),
    "from": lambda x, n: x[..., n.start :],
    "every other": lambda x, _: x[..., ::2],
    "None": lambda x, _: x[:, None],
    "expand": lambda x, n: x.unsqueeze(n.dim).expand(*x.shape[: n.dim], n.count, *x.shape[n.dim :]),
    "broadcast_to": lambda x, n: torch.broadcast_to(x, [n.count, *x.shape]),
    "diagonal": lambda x, _: x.diagonal(),
    "unfold": lambda x, _: x.unfold(-1, 2, 1),
    "flip": lambda x, n: x.flip(n.dim),
    "roll": lambda x, n: x.roll(1, n.dim),
    "repeat": lambda x, n: x.repeat(n.count, *[1] * (x.dim() - 1)),
    "repeat_interleave": lambda x, n: x.repeat_interleave(2, n.dim),
}
APART: dict[str, Operation] = {
    "chunk": lambda x, n: x.chunk(2, n.dim),
    "split": lambda x, n: x.split(2, n.dim),
    "unbind": lambda x, n: x.unbind(n.dim) if x.shape[n.dim] < 7 else None,
}
JOINED: dict[str, Operation] = {
    "cat": lambda *given: torch.cat(given[:-1], given[-1].dim),
    "stack": lambda *given: torch.stack(given[:-1], given[-1].dim),
}


def set_items(x: Tensor, y: Tensor, numbers: Numbers) -> Tensor:
    x[numbers.rows[0]] = 2
    x[..., ::2] *= 2
    x[:, -1:] += y.sum().to(x.dtype)
    return x


WRITTEN: dict[str, Operation] = {
    "add_": lambda x, y, _: x.add_(y),
    "add 1_": lambda x, y, _: x.add_(1),
    "sub_": lambda x, y, _: x.sub_(y, alpha=2),
    "mul_": lambda x, y, _: x.mul_(y),
    "div_": lambda x, y, _: x.div_(2),
    "copy_": lambda x, y, _: x.copy_(y),
    "zero_": lambda x, y, _: x.zero_(),
    "fill_": lambda x, y, _: x.fill_(3),
    "masked_fill_": lambda x, y, _: x.masked_fill_(y > 0, 1),
    "relu_": lambda x, y, _: x.relu_(),
    "exp_": lambda x, y, _: x.exp_(),
    "neg_": lambda x, y, _: x.neg_(),
    "sigmoid_": lambda x, y, _: x.sigmoid_(),
    "clamp_": lambda x, y, _: x.clamp_(-1, 1),
    "addcmul_": lambda x, y, _: x.addcmul_(y, y),
    "set items": set_items,
    "set twice": set_items,
}
CAST: dict[str, Operation] = {"to": lambda x, n: x.to(n.dtype)}
PRODUCTS: dict[str, Operation] = {
    "matmul": lambda x, y, _: x @ y,
    "matmul of a transpose": lambda x, y, _: x @ y.mT.contiguous().mT,
    "linear": lambda x, y, _: F.linear(x, y.mT),
    "with itself": lambda x, y, _: x @ x.mT,
    "with itself, other way": lambda x, y, _: x.mT @ x,
    "baddbmm": lambda x, y, _: torch.baddbmm(x, x, x.mT @ x),
    "addmm": lambda x, y, _: torch.addmm(x[0], x, x.mT),
    "outer": lambda x, y, _: torch.outer(x.reshape(-1)[:5], x.reshape(-1)[:3]),
    "einsum": lambda x, y, _: torch.einsum("...i,...j->...ij", x, x),
    "attention": lambda x, y, _: F.scaled_dot_product_attention(*[x.reshape(1, 1, -1, x.shape[-1])] * 3),
}


def no_words(x: Tensor) -> Tensor:
    return torch.zeros(x.numel() // max(1, x.shape[-1]), dtype=torch.long)


ROWS: dict[str, Operation] = {
    "softmax": lambda x, n: x.softmax(n.dim),
    "softmax as f32": lambda x, n: x.softmax(n.dim, dtype=torch.float32),
    "log_softmax": lambda x, n: x.log_softmax(n.dim),
    "layer norm": lambda x, _: F.layer_norm(x, x.shape[-1:], eps=0.1),
    "rms norm": lambda x, _: F.rms_norm(x, x.shape[-1:], eps=0.1),
    "normalize": lambda x, n: F.normalize(x, dim=n.dim, eps=0.1),
    "group norm": lambda x, _: F.group_norm(x, 1, eps=0.1),
    "glu": lambda x, _: F.glu(x, -1),
    "cross entropy": lambda x, _: F.cross_entropy(x.reshape(-1, x.shape[-1]), no_words(x)),
    "divergence": lambda x, _: F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="sum"),
    "huber": lambda x, _: F.huber_loss(x, x.detach() + 1),
    "logistic": lambda x, _: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).to(x.dtype)),
    "cumsum": lambda x, n: x.cumsum(n.dim),
    "cumprod": lambda x, n: x.cumprod(n.dim),
    "spread": lambda x, n: x.amax(n.dim, keepdim=True) - x.amin(n.dim, keepdim=True),
}
PICKED: dict[str, Operation] = {
    "rows": lambda x, n: x[torch.tensor(n.rows)],
    "index_select": lambda x, n: x.index_select(0, torch.tensor(n.rows)),
    "two indices": lambda x, n: x[torch.tensor(n.rows)[:, None], torch.tensor([0])],
    "embedding": lambda x, n: F.embedding(torch.tensor([n.rows, n.rows]), x),
    "take": lambda x, n: torch.take(x, torch.tensor(n.rows)),
    "gather": lambda x, n: x.gather(n.dim, torch.zeros_like(x, dtype=torch.long)),
    "scatter": lambda x, n: x.scatter(0, torch.zeros_like(x[:1], dtype=torch.long), x[:1]),
    "scatter_reduce": lambda x, n: torch.zeros_like(x).scatter_reduce(
        0, torch.zeros_like(x, dtype=torch.long), x, "amax"
    ),
    "index_add": lambda x, n: x.index_add(0, torch.tensor(n.rows), x[:1].expand(len(n.rows), *x.shape[1:])),
    "index_put": lambda x, n: x.index_put((torch.tensor(n.rows),), x[0], accumulate=True),
    "masked_select": lambda x, _: x[x > 0].sum(),
    "nonzero": lambda x, _: (x > 0).nonzero().sum(),
    "topk": lambda x, n: x.topk(1, n.dim)[0],
    "sort": lambda x, n: x.sort(n.dim)[0],
    "bucketize": lambda x, _: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
}
OTHERS: dict[str, Operation] = {
    "pad": lambda x, _: F.pad(x, (1, 0)),
    "cut and pad": lambda x, _: F.pad(x, (-1, 2), value=3.0),
    "tril": lambda x, _: x.tril(),
    "triu": lambda x, _: x.triu(1),
    "diff": lambda x, n: x.diff(dim=n.dim),
    "average of two": lambda x, _: F.avg_pool1d(x.reshape(1, 1, -1), 2),
    "upsampled": lambda x, _: F.interpolate(x.reshape(1, 1, -1), scale_factor=2.0),
    "vmap": lambda x, _: torch.func.vmap(lambda row: (row * 2).sin() + row.sum())(x),
    "grad": lambda x, _: torch.func.grad(lambda y: (y.sin() * y).sum())(x),
    "jvp": lambda x, _: torch.func.jvp(lambda y: y.tanh() * 2, (x,), (torch.ones_like(x),))[1],
    "spectrum": lambda x, _: torch.fft.rfft(x).abs(),
    "complex": lambda x, _: torch.complex(x.float(), x.float()),
    "conjugate": lambda x, _: x.conj() * 2,
    "as real": lambda x, _: torch.view_as_real(torch.complex(x.float(), x.float())),
}
MADE: dict[str, Operation] = {
    "zeros_like": lambda x, _: torch.zeros_like(x),
    "ones_like": lambda x, _: torch.ones_like(x),
    "full_like": lambda x, _: torch.full_like(x, 2),
    "empty, filled": lambda x, _: torch.empty_like(x).fill_(2),
    "new_zeros": lambda x, _: x.new_zeros(3) + 1,
    "full": lambda x, n: torch.full((n.count, x.shape[-1]), 1.5),
    "arange": lambda x, _: torch.arange(x.shape[-1]),
    "tensor": lambda x, _: torch.tensor([1.0, 2.0, 3.0]),
    "mask": lambda x, _: torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril(),
    "one_hot": lambda x, _: F.one_hot(torch.tensor([0, 1]), 3),
    "rand_like": lambda x, _: torch.rand_like(x, dtype=torch.float32),
    "randn": lambda x, n: torch.randn(n.count, x.shape[-1]),
    "bernoulli": lambda x, _: torch.bernoulli(x.sigmoid()),
    "dropout": lambda x, _: F.dropout(x, 0.4),
    "dropout in place": lambda x, _: F.dropout(x + 0, 0.4, inplace=True),
}
IMAGES: dict[str, Operation] = {
    "conv2d": lambda x, _: F.conv2d(x, torch.ones(3, x.shape[1], 1, 1, dtype=x.dtype)),
    "conv_transpose2d": lambda x, _: F.conv_transpose2d(x, torch.ones(x.shape[1], 2, 2, 2, dtype=x.dtype)),
    "batch norm": lambda x, _: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), training=True, eps=0.1),
    "group norm": lambda x, _: F.group_norm(x, 2, eps=0.1),
    "instance norm": lambda x, _: F.instance_norm(x, eps=0.1),
    "max_pool2d": lambda x, _: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x, _: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x, _: F.adaptive_avg_pool2d(x, 1),
    "upsampled": lambda x, _: F.interpolate(x, scale_factor=2.0),
    "channels last": lambda x, _: x.contiguous(memory_format=torch.channels_last),
}
FAMILIES = [
    Family(5, alone, POINTWISE),
    Family(5, broadcast, OF_TWO),
    Family(3, alone, REDUCED),
    Family(5, alone, VIEWS),
    Family(4, into, WRITTEN),
    Family(1, alone, APART),
    Family(1, alike, JOINED),
    Family(1, alone, CAST),
    Family(1, inner, PRODUCTS),
    Family(2, alone, ROWS),
    Family(1, alone, PICKED),
    Family(1, alone, OTHERS),
    Family(1, alone, MADE),
    Family(1, alone, IMAGES),
]
