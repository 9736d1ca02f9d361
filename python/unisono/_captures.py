"""Captures of earlier runs, kept as files in a folder that the user names."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono import _native
from unisono._call import Call
from unisono._capture import Capture, capture_step, digest
from unisono._capture.optimizer import create_state
from unisono._capture.outside import Outside
from unisono._capture.paths import place_at
from unisono._capture.places import user_line
from unisono._capture.surroundings import surroundings
from unisono._message import pack, unpack
from unisono._told import told
from unisono.errors import UnisonoError

_LOG = logging.getLogger("unisono")


@dataclass(frozen=True)
class Roots:
    """What a capture is made of; the optimizers have their states."""

    train_step: Callable[..., Any]
    model: nn.Module | None
    optimizers: tuple[Optimizer, ...]
    call: Call
    settings: dict[str, Any]
    place: str | None

    def reached(self) -> str:
        """The number of all that they reach; see :func:`unisono._capture.digest.reached`."""
        inputs = [leaf for leaf in self.call.leaves if isinstance(leaf, torch.Tensor)]
        if self.model is not None:
            inputs += [*self.model.parameters(), *self.model.buffers()]
        for optimizer in self.optimizers:
            inputs += [parameter for group in optimizer.param_groups for parameter in group["params"]]
            states = (state for state in optimizer.state.values() if isinstance(state, dict))
            held = (value for state in states for value in state.values())
            inputs += [value for value in held if isinstance(value, torch.Tensor)]
        called = (self.call.arguments, self.call.leaves, self.call.structure, self.place)
        return digest.reached([self.train_step, self.model, self.optimizers, self.settings, called], inputs)


class Captures:
    """The captures of one folder.

    A capture is kept where another process can use it in place of its own: of a step without choices by values, prints, schedulers and
    tensors kept outside of the model, whose code has changed nothing of what it reaches, and that warns of nothing.
    """

    def __init__(self, folder: str | Path) -> None:
        """Takes a folder, which is made when something is kept."""
        self._folder = Path(folder)

    def key(self, roots: Roots) -> str | None:
        """What identifies the capture of a call, or ``None``, with a message to the log ``unisono``, where that is not known."""
        try:
            return f"{roots.reached()}-{surroundings()}"
        except digest.Unknowable as error:
            _LOG.debug("the step is captured anew at each start: it reaches %s", error)
            return None

    def find(self, key: str) -> dict[str, Any] | None:
        """What was told of the capture with this key, if there is one as it was written."""
        message = _native.kept_capture(self._folder, key)
        return None if message is None else unpack(message)

    def keep(self, key: str, roots: Roots, message: dict[str, Any]) -> None:
        """Keeps what was told of a capture, if that is all that the capture did; a folder that cannot be written keeps nothing."""
        with contextlib.suppress(digest.Unknowable):
            if _is_plain(message) and key.startswith(roots.reached()):
                _native.keep_capture(self._folder, key, pack(message))


def found_or_captured(
    captures: Captures | None,
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    call: Call,
    outside: Outside | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], Capture | None]:
    """What is to be told of a capture, and the capture itself where it is none that was kept.

    Args:
        captures: where captures are kept, if anywhere.
        train_step: the step; the further arguments are those of :func:`unisono._capture.capture_step`.
        model: the module that it trains.
        optimizers: its optimizers.
        call: the call to capture.
        outside: what the step reads from outside, looked at before and afterwards.
        settings: the further arguments.
    """
    key, roots = None, Roots(train_step, model, optimizers, call, settings, user_line())
    if captures is not None:
        with contextlib.suppress(UnisonoError):  # which capturing will say with its place
            for optimizer in optimizers:
                create_state(optimizer)
        key = captures.key(roots)
        found = captures.find(key) if key is not None else None
        if found is not None:
            return found, None
    captured = _captured(train_step, model=model, optimizers=optimizers, call=call, **settings)
    at = {place_at(captured.kept.root, path) for path in captured.settled}
    changed = outside.changed_by_itself() if outside is not None else {}
    settled = outside.values(name for name, place in changed.items() if place in at) if outside is not None else {}
    message = told(captured) | {
        "volatile": [name for name in changed if name not in settled],
        "settled": settled,
        "effects": any(way.effects or way.at_first for way in captured.ways),
    }
    # What warns is captured anew at each start, and warns again.
    if captures is not None and key is not None and captured.kept.compiling.warning() is None:
        captures.keep(key, roots, message)
    return message, captured


def _captured(train_step: Callable[..., Any], *, varying: frozenset[int] = frozenset(), **settings: Any) -> Capture:
    """A capture that serves whatever the numbers at ``varying`` positions are, or one for those that are there if there is none."""
    if varying:
        # Whatever the user's code makes of the stand-ins: without them it says what is wrong.
        with contextlib.suppress(Exception):
            return capture_step(train_step, varying=varying, **settings)
    return capture_step(train_step, **settings)


def _is_plain(message: dict[str, Any]) -> bool:
    """Whether no more than the graph is needed, with tensors that other processes find where this one has."""
    nothing = (
        "kept",
        "read",
        "replaced",
        "left",
        "gradients",
        "dropped",
        "accumulates",
        "volatile",
        "settled",
        "effects",
        "premises",
        "scalars",
        "varying",
        "arguments",
    )
    return (
        not any(message[key] for key in nothing)
        and len(message["ways"]) == 1
        and not message["ways"][0]["schedules"]
        and not message["ways"][0]["counted"]
        and not any(message["ways"][0]["counts"])
        and not message["ways"][0]["clocks"]
        and not message["ways"][0]["endings"]
        and all(paths for *_, paths in message["constants"])
    )
