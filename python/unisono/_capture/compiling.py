"""What the user's code is told that asks whether it is compiled, or whether a tensor has data.

Eager PyTorch tells it no, and a library may take another way where it is told yes, to other values. So it is told no while the step is
traced, and yes only where it cannot be traced otherwise, with a warning. PyTorch's own code is told yes: its optimizers read fewer values
then. A tensor has data where that is known before the step: what follows from constants, and what follows from the arguments of a call as
long as the step does no more with it than to choose. Of others it is told that they have none, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.given import Given
from unisono._capture.known import follows_from_constants
from unisono._capture.places import is_the_users, user_line, warn_user


class Compiling:
    """Tells it one or the other.

    Attributes:
        is_told: what the user's code is told.
        asked: the user's line that was the first to ask.
        told_of_none: the first that was told that a tensor has no data, though in eager PyTorch it has.
    """

    def __init__(self, given: Given | None = None) -> None:
        """Tells no; ``given`` is what follows from the tensors of the call."""
        self.is_told, self.given = False, given or Given()
        self.asked: str | None = None
        self.told_of_none: str | None = None

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Within, whoever asks is told."""
        asking = mock.patch("torch.compiler.is_compiling", functools.partial(_answer, self))
        with asking, mock.patch.object(torch._subclasses, "FakeTensor", _seen(self)):
            yield

    def retells(self) -> bool:
        """Whether the user's code has asked and can be told otherwise, which it is from now on."""
        if self.asked is None or self.is_told:
            return False
        self.is_told = True
        return True

    def warning(self) -> str | None:
        """What there is to say where the user's code was told that it is compiled, or that tensors have no data."""
        if self.is_told and self.asked is not None:
            asked = f"{self.asked} asks whether a compiler runs it and is told yes, because the step cannot be captured otherwise"
        elif self.told_of_none is not None:
            asked = (
                f"{self.told_of_none} asks whether a tensor has data and is told that it has none, because its values are not "
                "known before the step"
            )
        else:
            return None
        return f"{asked}: where it gives other values then, so does the captured step"

    def warn(self) -> None:
        """Says so."""
        warning = self.warning()
        if warning is not None:
            warn_user(warning, RuntimeWarning)


def _answer(compiling: Compiling) -> bool:
    if not is_the_users(sys._getframe(1).f_code.co_filename):
        return True
    compiling.asked = compiling.asked or user_line()
    return compiling.is_told


def _seen(compiling: Compiling) -> type:
    """What stands for the class of tensors without data: one whose values are known is none of it for the user's code."""

    class Seen(type):
        def __instancecheck__(cls, one: Any) -> bool:
            if not isinstance(one, FakeTensor) or not is_the_users(sys._getframe(1).f_code.co_filename):
                return isinstance(one, FakeTensor)
            if not compiling.is_told and (follows_from_constants(one, outside=True) or compiling.given.ask(one)):
                return False
            compiling.told_of_none = compiling.told_of_none or user_line()
            return True

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, FakeTensor)

    return Seen(FakeTensor.__name__, (), {})
