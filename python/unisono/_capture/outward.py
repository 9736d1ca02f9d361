"""What a step must not do while it is captured: save tensors without values, write files in a way it may never take, end the process."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from unisono._capture.named import standing
from unisono._capture.places import is_pythons_own, is_the_users, user_line
from unisono.errors import StepError

_WRITING = frozenset("wax+")
_NEVER = ((torch.save, "saves tensors (`torch.save`)"), (os._exit, "ends the process (`os._exit`)"))
_MODULES = (builtins, io, os, torch, torch.serialization)


@contextlib.contextmanager
def refused(functions: Iterable[Any], has_asked: Callable[[], bool]) -> Iterator[None]:
    """Within, such calls of the user's functions are refused; ``has_asked`` says whether the step has asked for what chooses its way."""
    real = io.open

    def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if _WRITING & set(mode) and has_asked() and _calls(sys._getframe(1)):
            raise _refused("writes a file behind a choice by a value", "all ways are tried while it is captured")
        return real(file, mode, *more, **named)

    instead = [(real, opened), *((one, _refusing(one, what)) for one, what in _NEVER)]
    with contextlib.ExitStack() as stack:
        for one, other in instead:
            for module in (module for module in _MODULES if vars(module).get(one.__name__) is one):
                stack.enter_context(mock.patch.object(module, one.__name__, other))
        stack.enter_context(standing(functions, {id(one): (one, other) for one, other in instead}))
        yield


def _refusing(real: Callable[..., Any], what: str) -> Callable[..., Any]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        if _calls(sys._getframe(1)):
            raise _refused(what, "its Python code runs once, while it is captured, where tensors have no values")
        return real(*arguments, **named)

    return refuse


def _calls(frame: types.FrameType | None) -> bool:
    """Whether the user's code has made a call, itself or through Python's library."""
    while frame is not None and is_pythons_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_the_users(frame.f_code.co_filename)


def _refused(what: str, cause: str) -> StepError:
    return StepError(
        f"the step {what}",
        code="U0105",
        place=user_line(),
        cause=cause,
        hint="do it outside of the step: return what decides, and save behind `step.sync()` or by `step.save(..)`",
    )
