"""Functions whose operations, with those of their backward, are asked for every strategy."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from rule_exam import integers, message, odd, rand, with_gradients

BACKWARD = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [rand(4, 6, 8), rand(12, 8), rand(12)]),
    "a fused projection, split into heads": (
        lambda x, w: torch.cat([p.view(2, 4, 6, 2).transpose(1, 2) for p in F.linear(x, w).split(12, 2)], 3),
        [rand(2, 4, 6), rand(36, 6)],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), [rand(4, 6, 8), rand(8), rand(8)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (8,), w), [rand(4, 6, 8), rand(8)]),
    "gelu": (lambda x: F.gelu(x), [rand(4, 6)]),
    "silu": (lambda x: F.silu(x), [rand(4, 6)]),
    "tanh and sigmoid": (lambda x: torch.tanh(x) * torch.sigmoid(x), [rand(4, 6)]),
    "relu": (lambda x: F.relu(x), [rand(4, 6)]),
    "softmax": (lambda x: F.softmax(x, -1) * x, [rand(4, 12)]),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), [rand(6, 12), integers(12, 6)]),
    "cross entropy with ignored targets": (
        lambda x, y: F.cross_entropy(x, torch.where(y < 6, y, -100)),
        [rand(6, 12), integers(12, 6)],
    ),
    "cross entropy that ignores a class": (
        lambda x, y: F.cross_entropy(x, y, ignore_index=3),
        [rand(12, 12), integers(12, 12)],
    ),
    "mean square error": (lambda x, y: F.mse_loss(x, y), [rand(4, 6), rand(4, 6)]),
    "rows at numbers": (lambda w, i: w[i], [rand(12, 4), integers(12, 6)]),
    "rows at numbers from the end": (lambda w, i: w[i - 6], [rand(12, 4), integers(12, 6, 2)]),
    "rows put at numbers": (lambda w, i, v: w.index_put((i,), v), [rand(12, 4), torch.randperm(12)[:6], rand(6, 4)]),
    "embedding": (lambda w, i: F.embedding(i, w), [rand(12, 4), integers(12, 6, 2)]),
    "embedding with padding": (lambda w, i: F.embedding(i, w, padding_idx=3), [rand(12, 4), integers(12, 6, 4)]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [rand(6, 4), rand(4), rand(4)],
    ),
    "batch norm of images": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [rand(4, 6, 2, 2), rand(6), rand(6)],
    ),
    "batch norm by running statistics": (
        lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach().square() + 0.5, w, b),
        [rand(6, 12, 3), rand(12), rand(12), rand(12), rand(12)],
    ),
    "instance norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [rand(6, 12, 5), rand(12), rand(12)]),
    "bilinear forms": (lambda x, y, w, b: F.bilinear(x, y, w, b), [rand(12, 4), rand(12, 5), rand(6, 4, 5), rand(6)]),
    "linear systems": (
        lambda a, b: torch.linalg.solve_ex(a.tanh() + 3 * torch.eye(4, dtype=torch.float64), b)[0],
        [rand(6, 4, 4), rand(6, 4, 12)],
    ),
    "losses by margins": (
        lambda x, y: F.multi_margin_loss(x, y[:, 0]) + F.multilabel_margin_loss(x, y, reduction="sum"),
        [rand(12, 4), integers(4, 12, 4)],
    ),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [rand(4, 3, 5, 5), rand(6, 3, 3, 3), rand(6)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), [rand(12, 6, 4), rand(6), rand(6)]),
    "pooling": (
        lambda x: F.max_pool2d(x, 2) * F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 2).mean(),
        [rand(12, 6, 4, 4)],
    ),
    "pooling of volumes": (lambda x: F.max_pool3d(x, 2) + F.avg_pool3d(x, 2), [rand(6, 12, 4, 4, 2)]),
    "resizing": (
        lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(8, 6), mode="bilinear"),
        [rand(6, 12, 4, 3)],
    ),
    "resizing of signals": (
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="linear") * F.interpolate(x, scale_factor=2, mode="nearest-exact")
        ),
        [rand(6, 12, 4)],
    ),
    "resizing of volumes": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [rand(6, 12, 2, 2, 2)]),
    "borders": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect") * F.pad(x, (1, 1, 1, 1), "replicate"), [rand(6, 12, 3, 3)]),
    "sampling by a grid": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        [rand(12, 2, 4, 4), rand(12, 3, 3, 2)],
    ),
    "sampling of volumes by a grid": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        [rand(12, 2, 4, 4, 4), rand(12, 3, 3, 2, 3)],
    ),
    "further activations": (
        lambda x: F.elu(x) + F.softplus(x) + F.hardtanh(x) + F.hardswish(x) + F.hardsigmoid(x) + F.mish(x),
        [rand(12, 6)],
    ),
    "cross entropy of images": (
        lambda x, y: F.cross_entropy(x, torch.where(y < 5, y, -100)),
        [rand(6, 7, 4, 12), integers(7, 6, 4, 12)],
    ),
    "binary cross entropy": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach()),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of each": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach(), reduction="none").sum(),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of logits with weights": (
        lambda x, w: F.binary_cross_entropy_with_logits(
            x, x.detach().sigmoid(), w.detach().abs(), pos_weight=w.detach().square(), reduction="sum"
        ),
        [rand(6, 12), rand(12)],
    ),
    "logarithms of sigmoids": (lambda x: F.logsigmoid(x), [rand(6, 12)]),
    "further shrinking": (
        lambda x: F.softshrink(x, 0.3) + F.hardshrink(x, 0.3) + x.sigmoid().logit(1e-6),
        [rand(6, 12)],
    ),
    "products with vectors": (lambda x, y: (x @ y) * torch.dot(y, y), [rand(6, 12), rand(12)]),
    "resizing without aliasing": (
        lambda x: (
            F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True)
            + F.interpolate(x, size=(3, 2), mode="bicubic", antialias=True)
        ),
        [rand(6, 12, 5, 4)],
    ),
    "triangular systems": (
        lambda a, b: torch.linalg.solve_triangular(a.tanh() + 3 * torch.eye(4, dtype=torch.float64), b, upper=False),
        [rand(6, 4, 4), rand(6, 4, 12)],
    ),
    "triangular systems from the right": (
        lambda a, b: torch.linalg.solve_triangular(
            a.tanh() + 3 * torch.eye(4, dtype=torch.float64), b, upper=True, left=False
        ),
        [rand(6, 4, 4), rand(6, 12, 4)],
    ),
    "division that rounds": (
        lambda x, y: x * torch.div(x, y, rounding_mode="floor") + torch.div(x, 0.3, rounding_mode="trunc"),
        [rand(6, 12), rand(12)],
    ),
    "distances": (lambda x, y: torch.cdist(x, y, 1.0) + torch.cdist(x, y), [rand(2, 6, 4), rand(2, 12, 4)]),
    "windows": (lambda x: x.unfold(1, 3, 2).tanh(), [rand(6, 8, 12)]),
    "diagonals": (lambda x: x.diagonal(0, 1, 3) * 2, [rand(6, 5, 12, 5)]),
    "columns of windows": (
        lambda x: F.fold(F.unfold(x, 3, padding=1).tanh(), (4, 4), 3, padding=1),
        [rand(6, 12, 4, 4)],
    ),
    "frequencies": (
        lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.complex(w, w + 1).conj(), n=8, dim=1),
        [rand(6, 8, 12), rand(5, 12)],
    ),
    "gated linear units": (lambda x: F.glu(x, 1), [rand(12, 8)]),
    "turning by complex factors": (
        lambda x, a: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(a)),
        [rand(12, 6, 2), rand(6, 2)],
    ),
    "parametric relu": (lambda x, w: F.prelu(x, w), [rand(12, 6, 4), rand(6)]),
    "robust losses": (lambda x, y: F.smooth_l1_loss(x, y) + F.huber_loss(x, y), [rand(12, 6), rand(12, 6)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1],
    ),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1],
    ),
    "attention with a mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1, rand(2, 1, 6, 6)],
    ),
    "attention over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [rand(2, 2, 12, 8), rand(2, 2, 12, 8) + 1, rand(2, 2, 12, 8) - 1],
    ),
    "causal attention over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        [rand(2, 2, 24, 8), rand(2, 2, 24, 8) + 1, rand(2, 2, 24, 8) - 1],
    ),
    "causal attention of grouped queries over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        [rand(1, 6, 40, 8), rand(1, 3, 40, 8) + 1, rand(1, 3, 40, 8) - 1],
    ),
    "flash attention over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(2, 2, 12, 8).float(), rand(2, 2, 12, 8).float() + 1, rand(2, 2, 12, 8).float() - 1],
    ),
    "causal flash attention of grouped queries over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0],
        [rand(2, 4, 24, 8).float(), rand(2, 2, 24, 8).float() + 1, rand(2, 2, 24, 8).float() - 1],
    ),
    "flash attention": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0],
        [rand(12, 4, 6, 8), rand(12, 4, 6, 8) + 1, rand(12, 4, 6, 8) - 1],
    ),
    "flash attention of grouped queries": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(4, 12, 6, 8), rand(4, 6, 5, 8) + 1, rand(4, 6, 5, 8) - 1],
    ),
    "flash attention of an odd number of groups of queries": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(3, 10, 6, 8), rand(3, 5, 5, 8) + 1, rand(3, 5, 5, 8) - 1],
    ),
    "group norm of an odd batch": (lambda x, w, b: F.group_norm(x, 3, w, b), [rand(11, 6, 4), rand(6), rand(6)]),
    "memory-efficient attention": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, m, compute_log_sumexp=True)[
            0
        ],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 12, 6, 5)],
    ),
    "memory-efficient attention without a mask": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, compute_log_sumexp=True, is_causal=True
        )[0],
        [rand(12, 4, 6, 8), rand(12, 4, 6, 8) + 1, rand(12, 4, 6, 8) - 1],
    ),
    "cuDNN's attention": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, m.detach(), compute_log_sumexp=True
        )[0],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 1, 6, 5)],
    ),
    "cuDNN's attention over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, compute_log_sumexp=True, scale=0.3
        )[0],
        [rand(2, 2, 12, 8).float(), rand(2, 2, 12, 8).float() + 1, rand(2, 2, 12, 8).float() - 1],
    ),
    "causal cuDNN's attention of grouped queries over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, compute_log_sumexp=True, is_causal=True
        )[0],
        [rand(2, 4, 24, 8).float(), rand(2, 2, 24, 8).float() + 1, rand(2, 2, 24, 8).float() - 1],
    ),
    "attention of another backend": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v, m)[0],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 12, 6, 5)],
    ),
    "a time step of an LSTM": (
        lambda x, h, c, *biases: sum(one.sin() for one in torch.ops.aten._thnn_fused_lstm_cell(x, h, c, *biases)[:2]),
        [rand(6, 20), rand(6, 20) + 1, rand(6, 5), rand(20), rand(20) - 1],
    ),
    "a time step of an LSTM without biases": (
        lambda x, h, c: torch.ops.aten._thnn_fused_lstm_cell(x, h, c)[0],
        [rand(12, 20), rand(12, 20) + 1, rand(12, 5)],
    ),
    "a time step of a GRU": (
        lambda x, h, c, *biases: torch.ops.aten._thnn_fused_gru_cell(x, h, c, *biases)[0],
        [rand(6, 15), rand(6, 15) + 1, rand(6, 5), rand(15), rand(15) - 1],
    ),
    "a time step of a GRU without biases": (
        lambda x, h, c: torch.ops.aten._thnn_fused_gru_cell(x, h, c)[0],
        [rand(12, 15), rand(12, 15) + 1, rand(12, 5)],
    ),
    "slices, selects, stacks": (
        lambda x: torch.stack([x[:, 1:3].sum(), x[:, 0].sum(), x.cumsum(1).select(0, 1).sum()]),
        [rand(4, 6)],
    ),
    "norms": (lambda x, y: torch.stack([x.norm(), y.norm()]).norm() * x.sum(), [rand(4, 6), rand(6)]),
    "expand and mean": (lambda x, y: (x + y.expand(4, 6)).mean(1, keepdim=True) * x, [rand(4, 6), rand(1, 6)]),
    "choice": (lambda x, y: torch.where(x > 0, x, y) / (1 + y * y), [rand(4, 6), rand(4, 6)]),
    "look-up by an index": (lambda x, i: x[i] * 2, [rand(12, 4), integers(12, 6)]),
}


#: Programs of fixed sizes.
FIXED = {
    "a fused projection, split into heads",
    "expand and mean",
    "group norm",
    "group norm of an odd batch",
    "causal attention of grouped queries over a sequence",
    "flash attention of grouped queries",
}


@functools.cache
def backward(name, is_odd=False):
    """The graph of an operation and its backward, with its tensors, at odd sizes or not."""
    function, tensors = BACKWARD[name]
    return message(*with_gradients(function, odd(tensors) if is_odd else tensors))
