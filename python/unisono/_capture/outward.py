"""What a step must not do while it is captured: save tensors without values, write files in a way it may never take, end the process."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from unisono._capture.places import is_pythons_own, is_the_users, user_line
from unisono.errors import StepError

_WRITING = frozenset("wax+")


@contextlib.contextmanager
def refused(has_asked: Callable[[], bool]) -> Iterator[None]:
    """Within, such calls of the user's code are refused; ``has_asked`` says whether the step has asked for a value that chooses its way."""
    real = io.open

    def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if _WRITING & set(mode) and has_asked() and _calls(sys._getframe(1)):
            raise _refused("writes a file behind a choice by a value", "all ways are tried while it is captured")
        return real(file, mode, *more, **named)

    with contextlib.ExitStack() as stack:
        for module in (torch, torch.serialization):
            stack.enter_context(
                mock.patch.object(module, "save", _refusing(torch.save, "saves tensors (`torch.save`)"))
            )
        stack.enter_context(mock.patch.object(os, "_exit", _refusing(os._exit, "ends the process (`os._exit`)")))
        for holder in (builtins, io):
            stack.enter_context(mock.patch.object(holder, "open", opened))
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
