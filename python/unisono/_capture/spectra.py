"""Short-time Fourier transforms in a step: of windows that operations can be sharded around, where PyTorch takes a view by strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def of_windows(
    real: Callable[..., Any],
    signal: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    **others: Any,
) -> torch.Tensor:
    """What ``torch.stft`` gives of real ``[samples]`` or ``[batch, samples]``; ``real`` is called for all else, and for what it refuses."""
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    padded = signal.shape[-1] + 2 * (n_fft // 2) * center
    fits = (
        signal.dim() in (1, 2)
        and signal.is_floating_point()
        and return_complex
        and not any(others.values())
        and 0 < length <= n_fft <= padded
        and hop > 0
        and (window is None or (tuple(window.shape) == (length,) and window.is_floating_point()))
    )
    if not fits:
        given = (n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex)
        return real(signal, *given, **others)
    x = signal.unsqueeze(0) if signal.dim() == 1 else signal
    if center:
        x = F.pad(x.unsqueeze(0), (n_fft // 2, n_fft // 2), pad_mode).squeeze(0)
    frames = x.unfold(1, n_fft, hop)
    if window is None and length < n_fft:
        window = x.new_ones(length)
    if window is not None:
        left = (n_fft - length) // 2
        frames = frames * F.pad(window, (left, n_fft - length - left))
    transform = torch.fft.fft if onesided is False else torch.fft.rfft
    spectrum = transform(frames, norm="ortho" if normalized else "backward").transpose(1, 2)
    return spectrum.squeeze(0) if signal.dim() == 1 else spectrum


#: PyTorch's functions that this stands for.
FUNCTIONS = (torch.stft, torch.Tensor.stft)
