"""Exceptions that a step's own code raises while it is captured: as PyTorch alone would show them, and the same on every rank."""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from unisono._capture.places import is_the_users

Frame = tuple[str, int, str]


class UsersError(Exception):
    """Carries an exception of the user's code to all ranks.

    Attributes:
        kind: the name of its class.
        text: its message.
        frames: file, line and function of the user's code, the outermost first.
        error: the exception itself, on the rank where it was raised.
    """

    def __init__(self, kind: str, text: str, frames: Sequence[Frame], error: BaseException | None = None) -> None:
        """Takes its parts."""
        super().__init__(text)
        self.kind, self.text, self.frames, self.error = kind, text, list(frames), error

    @classmethod
    def of(cls, error: BaseException) -> UsersError:
        """What an exception comes to, without frames that are not the user's."""
        frames, traceback = [], error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if is_the_users(code.co_filename):
                frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
            traceback = traceback.tb_next
        return cls(type(error).__name__, str(error), frames, error)

    def forget_frames(self) -> None:
        """Lets go of what the frames of the exception hold."""
        if self.error is not None:
            self.error.__traceback__ = self.error.__context__ = None

    def plain(self) -> dict[str, Any]:
        """Its parts as plain data."""
        return {"kind": self.kind, "text": self.text, "frames": self.frames}

    def exception(self, arguments: Sequence[Any] | None = None) -> BaseException:
        """The exception that the user sees, with other arguments if there are any."""
        error = self.error or self._made()
        if arguments is not None:
            error.args = tuple(arguments)
        error.__cause__, error.__suppress_context__ = None, True
        return error.with_traceback(_traceback(self.frames))

    def _made(self) -> BaseException:
        kind = getattr(builtins, self.kind, RuntimeError)
        is_plain = (
            isinstance(kind, type) and issubclass(kind, Exception | SystemExit) and not issubclass(kind, UnicodeError)
        )
        return kind(self.text) if is_plain else RuntimeError(self.text)


def as_the_users(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function raise what the user's code has raised, without what lies between."""

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except UsersError as error:
            raised = error.exception()
        raise raised

    return run


def _traceback(frames: Sequence[Frame]) -> types.TracebackType | None:
    """A traceback through lines of source files, of code that does nothing but be there."""
    made: types.TracebackType | None = None
    for file, line, name in reversed(frames):
        frame = _frame(file, line, name)
        made = types.TracebackType(made, frame, -1, line)
    return made


def _frame(file: str, line: int, name: str) -> types.FrameType:
    source = "\n" * (line - 1) + "raise ValueError"
    raised = None
    code = compile(source, file, "exec").replace(co_name=name)
    try:
        exec(code, {"__name__": name})
    except ValueError as error:
        raised = error.__traceback__
    assert raised is not None
    assert raised.tb_next is not None
    return raised.tb_next.tb_frame
