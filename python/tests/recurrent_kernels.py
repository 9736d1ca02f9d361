"""Time steps of recurrent layers as CUDA's kernels do them, on processors: what they return, by the formulas of `torch.nn.LSTM` and `GRU`.

Shapes: gates ``[batch, gates * features]``, in the order of the weights; hidden states ``[batch, features]``. What a kernel keeps for its
backward is its own affair: here it is the gates.
"""

from __future__ import annotations

import torch


def _sum(gates, bias):
    return gates if bias is None else gates + bias


def _lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    i, f, g, o = (_sum(input_gates, input_bias) + _sum(hidden_gates, hidden_bias)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy, grad_cy = (torch.zeros_like(cx) if one is None else one for one in (grad_hy, grad_cy))
    of_cell = grad_cy + grad_hy * o * (1 - cy.tanh().square())
    of_gates = of_cell * g * i * (1 - i), of_cell * cx * f * (1 - f), of_cell * i * (1 - g * g)
    gates = torch.cat([*of_gates, grad_hy * cy.tanh() * o * (1 - o)], 1)
    return gates, of_cell * f, gates.sum(0) if has_bias else None


def _gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    r, z, n = _sum(input_gates, input_bias).chunk(3, 1)
    of_hidden = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (r + of_hidden[0]).sigmoid(), (z + of_hidden[1]).sigmoid()
    n = (n + r * of_hidden[2]).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, of_hidden[2]], 1)


def _gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, hx, of_hidden = workspace.chunk(5, 1)
    of_n = grad_hy * (1 - z) * (1 - n * n)
    of_r, of_z = of_n * of_hidden * r * (1 - r), grad_hy * (hx - n) * z * (1 - z)
    gates = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    return *gates, grad_hy * z, *(one.sum(0) if has_bias else None for one in gates)


def register() -> torch.library.Library:
    """Registers them for processors; the result keeps them."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_thnn_fused_lstm_cell", _lstm_cell, "CPU")
    library.impl("_thnn_fused_lstm_cell_backward_impl", _lstm_cell_backward, "CPU")
    library.impl("_thnn_fused_gru_cell", _gru_cell, "CPU")
    library.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward, "CPU")
    return library
