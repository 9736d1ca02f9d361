"""What a captured step takes for granted beside values: the modes of modules, which parameters are trained, automatic casts."""

from __future__ import annotations

import torch
from torch import nn

from unisono import _devices, _native


class Modes:
    """The modes under which a step was captured."""

    def __init__(self, model: nn.Module | None) -> None:
        """Takes those of this moment."""
        self._modules = [] if model is None else list(model.named_modules())
        self._parameters = [] if model is None else list(model.named_parameters())
        self._training = [module.training for _, module in self._modules]
        modes = [
            (vars(module), "training", module.training) for _, module in self._modules if "training" in vars(module)
        ]
        # Where all have theirs as an attribute of their own, it is asked no module.
        self._watched = _native.Entries(modes) if len(modes) == len(self._modules) else None
        self._trained = [parameter.requires_grad for _, parameter in self._parameters]
        self._casts = _casts()

    def changed(self) -> tuple[str, str] | None:
        """What is otherwise now, and how it was; none where all is as it was."""
        is_same = self._watched is not None and self._watched.first_other() is None
        training = self._training if is_same else [module.training for _, module in self._modules]
        if training != self._training:
            at = next(i for i, was in enumerate(self._training) if was != training[i])
            name = f"`{self._modules[at][0]}`" if self._modules[at][0] else "the model"
            return f"{name} was switched between training and evaluation", "it was in the other mode"
        trained = [parameter.requires_grad for _, parameter in self._parameters]
        if trained != self._trained:
            at = next(i for i, was in enumerate(self._trained) if was != trained[i])
            now, before = ("trained", "frozen") if trained[at] else ("frozen", "trained")
            return f"`params.{self._parameters[at][0]}` is {now}", f"it was {before}"
        casts = _casts()
        for device, now in casts.items():
            was = self._casts.get(device)
            if was != now:
                return f"autocast for {device} is {now or 'off'}", f"it was {was or 'off'}"
        return None


def _casts() -> dict[str, torch.dtype | None]:
    """The element type that each kind of device casts to automatically."""
    kinds = _devices.casting()
    return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}
