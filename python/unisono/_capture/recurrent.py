"""Recurrent layers as CUDA does them without cuDNN, which is off while a step is captured: of each time step one kernel.

As PyTorch writes them in its ``native/RNN.cpp``, where tensors of the processor stand for those of CUDA. Shapes: input ``[time, batch,
features]``, hidden states ``[layers * directions, batch, features]``. Packed sequences stay as on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

_aten = torch.ops.aten
_Tensors = Sequence[torch.Tensor]


def lstm_cell(
    input: torch.Tensor,
    hx: _Tensors,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One time step of an LSTM."""
    hidden, cell = hx
    gates = input @ w_ih.t(), hidden @ w_hh.t()
    return _aten._thnn_fused_lstm_cell(*gates, cell, b_ih, b_hh)[:2]


def gru_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """One time step of a GRU."""
    return _aten._thnn_fused_gru_cell(input @ w_ih.t(), hx @ w_hh.t(), hx, b_ih, b_hh)[0]


def lstm(
    input: torch.Tensor,
    hx: _Tensors,
    params: _Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """All layers of an LSTM, with projections of its output where there are weights of such."""
    projects = hx[0].shape[2] != hx[1].shape[2]

    def step(x: torch.Tensor, hidden: _Tensors, weights: _Tensors) -> _Tensors:
        output, cell = lstm_cell(x, hidden, *(weights[:-1] if projects else weights))
        return output @ weights[-1].t() if projects else output, cell

    return _layers(step, input, hx, params, num_layers, dropout if train else 0.0, bidirectional, batch_first)


def gru(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: _Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """All layers of a GRU."""

    def step(x: torch.Tensor, hidden: _Tensors, weights: _Tensors) -> _Tensors:
        return (gru_cell(x, hidden[0], *weights),)

    return _layers(step, input, [hx], params, num_layers, dropout if train else 0.0, bidirectional, batch_first)


def _layers(
    step: Callable[[torch.Tensor, _Tensors, _Tensors], _Tensors],
    x: torch.Tensor,
    hidden: _Tensors,
    params: _Tensors,
    count: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """The output of the last layer, and the last hidden states of all; the first of those that a step gives is its output."""
    directions = (1, -1) if bidirectional else (1,)
    each = len(params) // (count * len(directions))
    x = x.transpose(0, 1) if batch_first else x
    left = zip(*(one.unbind(0) for one in hidden), strict=True)
    weights = (params[at : at + each] for at in range(0, len(params), each))
    last = []
    for layer in range(count):
        inputs, outputs = x.unbind(0), []
        for direction in directions:
            states, own, made = next(left), next(weights), []
            for one in inputs[::direction]:
                states = step(one, states, own)
                made.append(states[0])
            outputs.append(torch.stack(made[::direction]))
            last.append(states)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and layer < count - 1:
            x = F.dropout(x, dropout)
    finals = [torch.stack(states) for states in zip(*last, strict=True)]
    return x.transpose(0, 1) if batch_first else x, *finals


def lstm_cell_shapes(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """What ``_thnn_fused_lstm_cell`` returns, without data: both hidden states, and what backward needs."""
    return (*(torch.empty_like(one, memory_format=torch.contiguous_format) for one in (cx, cx, input_gates)),)


def gru_cell_shapes(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``_thnn_fused_gru_cell`` returns, without data: the hidden state, and what backward needs."""
    batch, features = hx.shape
    return hx.new_empty(batch, features), hx.new_empty(batch, 5 * features)


def gru_cell_backward_shapes(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """What ``_thnn_fused_gru_cell_backward`` returns, without data: gradients of gates, of the hidden state and of biases."""
    batch, features = grad_hy.shape
    gates = [workspace.new_empty(batch, 3 * features) for _ in range(2)]
    biases = [workspace.new_empty(3 * features) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad_hy, memory_format=torch.contiguous_format), *biases
