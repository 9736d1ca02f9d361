"""What is refused while a step is captured: to save tensors without values, to change files and processes once for all steps."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from unisono._capture.named import standing
from unisono._capture.paths import is_library
from unisono._capture.places import is_pythons_own, is_the_users, user_line
from unisono._capture.telling import Note, Opened
from unisono.errors import StepError

_WRITING = frozenset("wax+")
_OF_FILES = ("remove", "unlink", "rename", "replace", "rmdir", "removedirs", "symlink", "link", "truncate")
_OF_PROCESSES = ("_exit", "system", "kill", "popen", "fork", "putenv")
_OF_TREES = ("rmtree", "move", "copy", "copy2", "copyfile", "copytree")


def _never() -> Iterator[tuple[Any, Any, str, str]]:
    """What is refused: where it is, what it is, its name, and what the step does by it."""
    yield torch, torch.save, "save", "saves tensors (`torch.save`)"
    yield torch.serialization, torch.save, "save", "saves tensors (`torch.save`)"
    for module, names, what in (
        (os, _OF_FILES, "changes files"),
        (os, _OF_PROCESSES, "acts upon processes"),
        (shutil, _OF_TREES, "changes files"),
        (subprocess, ("Popen",), "starts a process"),
        (socket.socket, ("connect",), "opens a connection"),
    ):
        for name in names:
            if hasattr(module, name):
                ends = "ends the process" if name == "_exit" else what
                yield module, getattr(module, name), name, f"{ends} (`{module.__name__}.{name}`)"


@contextlib.contextmanager
def refused(functions: Iterable[Any], note: Note) -> Iterator[None]:
    """Within, such calls of the user's functions are refused; text files that they open to write are written by calls that are noted."""
    functions, real, thread = [*functions], io.open, threading.get_ident()

    def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if not _WRITING & set(mode) or thread != threading.get_ident() or not _calls(sys._getframe(1)):
            return real(file, mode, *more, **named)
        if isinstance(file, int) or set(mode) & set("b+"):
            raise _refused("writes a file that is none of text", "its Python code runs once, while it is captured")
        return Opened(lambda: real(file, mode, *more, **named), note)

    with contextlib.ExitStack() as stack:
        instead = {id(real): (real, opened)}
        for module in (builtins, io, os):
            if vars(module).get("open") is real:
                stack.enter_context(mock.patch.object(module, "open", opened))
        for holder, one, name, what in _never():
            instead[id(one)] = one, _refusing(one, what, thread)
            if vars(holder).get(name) is one or isinstance(holder, type):
                stack.enter_context(mock.patch.object(holder, name, instead[id(one)][1]))
        stack.enter_context(standing(functions, instead))
        yield


def _refusing(real: Callable[..., Any], what: str, thread: int) -> Callable[..., Any]:
    def refuse(*arguments: Any, **named: Any) -> Any:
        if thread == threading.get_ident() and _calls(sys._getframe(1)):
            raise _refused(what, "its Python code runs once, while it is captured, where tensors have no values")
        return real(*arguments, **named)

    return refuse


def _calls(frame: types.FrameType | None) -> bool:
    """Whether code that the user has written makes a call, itself or through Python's library."""
    while frame is not None and is_pythons_own(frame.f_code.co_filename):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    return is_the_users(file) and not is_library(file)


def _refused(what: str, cause: str) -> StepError:
    return StepError(
        f"the step {what}",
        code="U0105",
        place=user_line(),
        cause=cause,
        hint="do it outside of the step: return what decides, and save behind `step.sync()` or by `step.save(..)`",
    )
