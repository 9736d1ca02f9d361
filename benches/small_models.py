"""The models of `small_models.toml`: unmodified ones of transformers and diffusers, small enough for a processor."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def _known() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("small_models.toml").read_text())


def names(part: str = "") -> Iterator[str]:
    """The models whose name has this in it."""
    return (name for name in _known() if part in name)


def settings(name: str) -> dict[str, Any]:
    """A model's own settings."""
    return _known()[name]["config"]


def build(name: str, seed: int = 0, **others: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model that is trained, with settings beside its own, and what its loss is computed of."""
    import diffusers
    import transformers

    torch.manual_seed(seed)
    config = {key: None if value == "none" else value for key, value in {**settings(name), **others}.items()}
    if hasattr(transformers, name):
        kind = getattr(transformers, name)
        model = kind(kind.config_class(**config))
    else:
        model = getattr(diffusers, name)(**config)
    return model.train(), {key: _value(key, value) for key, value in _known()[name]["inputs"].items()}


def _value(key: str, given: Any) -> Any:
    if not isinstance(given, list):
        return given
    if key in ("input_ids", "labels"):
        return torch.randint(0, 2 if len(given) == 1 else 100, given)
    if key == "timestep":
        return torch.full(given, 500)
    if key.endswith("mask"):
        return torch.ones(given, dtype=torch.int64)
    return torch.randn(given)


def loss(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """The model's own loss, or the squared distance of what it gives from a target."""
    given = {key: value for key, value in inputs.items() if key != "target"}
    if "target" not in inputs:
        return model(**given).loss
    return F.mse_loss(model(**given, return_dict=False)[0], inputs["target"])
