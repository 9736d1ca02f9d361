"""Scripts as people write them, each run by eager PyTorch and by Unisono, on one rank and on two.

A script is a function that is given what stands for ``unisono.parallelize``; it makes a model, trains it, and returns what one can see.
"""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from machines import DEAR_COMPUTING
from steps import EAGER_TO_CUT

import unisono

Script = Callable[[Callable[..., Any]], Any]
SCRIPTS: dict[str, Script] = {}

#: Pins under which two ranks run each script.
FAMILIES = {
    "free": {},
    "cut": {"params.*": {"ranks": "shard(0)"}, "optimizer.*": {"ranks": "shard(0)"}},
}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def ranks() -> tuple[int, int]:
    """The number of this rank, and how many there are."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Eager:
    """Stands for a parallel step where PyTorch alone runs."""

    def __init__(self, step: Callable[..., Any], **settings: Any) -> None:
        self.step = step
        if "example" in settings:
            torch.manual_seed(0)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.step(*arguments, **named)

    def sync(self) -> None:
        pass

    def share(self, step: Callable[..., Any], example: Any) -> Eager:
        return Eager(step)


def run(name: str, parallelize: Callable[..., Any]) -> list[Any]:
    """What a script gives: the values of tensors, and numbers and texts as they are."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unisono.errors.CaptureNotice)
        found = SCRIPTS[name](parallelize)
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(found)]


def parallelized(**settings: Any) -> Callable[..., Any]:
    def parallelize(step: Callable[..., Any], **own: Any) -> Any:
        return unisono.parallelize(step, **{"seed": 0, "cluster": DEAR_COMPUTING, **settings, **own})

    return parallelize


def differences(found: list[Any], expected: list[Any]) -> Iterator[str]:
    """What differs, in words."""
    if len(found) != len(expected):
        yield f"{len(found)} results where eager PyTorch has {len(expected)}"
    for number, (one, wanted) in enumerate(zip(found, expected, strict=False)):
        if not isinstance(wanted, torch.Tensor | float):
            if type(one) is not type(wanted) or one != wanted:
                yield f"result {number} is {one!r}, not {wanted!r}"
            continue
        try:
            assert type(one) is type(wanted), f"{type(one)} instead of {type(wanted)}"
            torch.testing.assert_close(one, wanted, rtol=2e-4, atol=2e-5, equal_nan=True)
        except AssertionError as error:
            yield f"result {number}: {error}"


def compare_all(names: list[str]) -> None:
    """Runs scripts on the ranks of a run, in each family, and writes what differs as JSON."""
    found: dict[str, list[str]] = {}
    for name in names:
        expected = run(name, Eager)
        for family, pins in FAMILIES.items():
            try:
                seen = run(name, parallelized(pins=pins, cluster=EAGER_TO_CUT))
                found[f"{name}, {family}"] = list(differences(seen, expected))
            except Exception:
                found[f"{name}, {family}"] = [traceback.format_exc()]
                if "U0202" in found[f"{name}, {family}"][0]:  # nothing to cut
                    found[f"{name}, {family}"] = []
    Path(f"scripts{os.environ['RANK']}.json").write_text(json.dumps(found))


import scripts_averages  # noqa: E402, F401 - registers its scripts
import scripts_changes  # noqa: E402, F401 - registers its scripts
import scripts_choices  # noqa: E402, F401
import scripts_complex  # noqa: E402, F401
import scripts_conditions  # noqa: E402, F401
import scripts_generators  # noqa: E402, F401
import scripts_gradients  # noqa: E402, F401
import scripts_methods  # noqa: E402, F401
import scripts_overrides  # noqa: E402, F401
import scripts_phases  # noqa: E402, F401
import scripts_selections  # noqa: E402, F401
import scripts_settings  # noqa: E402, F401
import scripts_values  # noqa: E402, F401
