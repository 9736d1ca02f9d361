"""Questions of which one answer ends the step with an exception: ``assert not torch.isnan(loss)``, ``if loss > limit: raise ...``.

The captured step goes on with the other answer, and what was asked is looked at behind each step: where the answer is the one that ends
the step, the exception is raised then.
"""

from __future__ import annotations

import dis
import os
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono._capture.places import is_the_users, read_back
from unisono._users_errors import UsersError

#: A step that asks more questions of this kind is refused.
MOST_GUARDS = 32
_RAISES = dis.opmap["RAISE_VARARGS"]
#: Code of PyTorch's that looks at values and raises what the user's would.
CHECKS = tuple(
    os.path.join("torch", *parts)
    for parts in (("__init__.py",), ("distributions", "distribution.py"), ("nn", "utils", "clip_grad.py"))
)


@dataclass
class Ending:
    """How a step ends where a question has the other answer.

    Attributes:
        error: what is raised.
        arguments: how its arguments are computed from what the step has read.
        reads: how many of the tensors that the step reads have been read until then.
        effects: what has been printed and logged until then.
    """

    error: UsersError
    arguments: list[Any]
    reads: int
    effects: list[Any]

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Ending:
        """The ending that :meth:`plain` tells of, on another rank, which prints and logs nothing."""
        return cls(UsersError(**data["error"]), data["arguments"], data["reads"], [])

    def plain(self) -> dict[str, Any]:
        """What other ranks are told."""
        shown = [one if is_plain(one[-1]) else ["constant", repr(one[-1])] for one in self.arguments]
        return {"error": self.error.plain(), "arguments": shown, "reads": self.reads}


class EndedError(Exception):
    """The step has raised an exception of its own behind a question.

    Attributes:
        given: the answers to all questions until then.
        place: where the last one was asked.
        ending: what has happened.
    """

    def __init__(self, given: Sequence[bool], place: str | None, ending: Ending) -> None:
        """Takes its parts."""
        super().__init__(ending.error.text)
        self.given, self.place, self.ending = tuple(given), place, ending


def is_plain(value: Any) -> bool:
    """Whether a value is a text, a number, or a list of these."""
    return value is None or isinstance(value, bool | int | float | str | list)


@dataclass
class Guards:
    """The guards that are known, by the answers to all questions before them: the answer that goes on, and what happens with the other."""

    known: dict[tuple[bool, ...], tuple[bool, Ending]] = field(default_factory=dict)
    _first: Ending | None = None

    def note(self, ended: EndedError) -> None:
        """Takes the last question for a guard; where neither answer goes on, the one before it.

        Raises:
            the first exception of the step's, where no answer to any question goes on.
        """
        self._first = self._first or ended.ending
        path = ended.given
        while path:
            *before, answer = path
            path = tuple(before)
            if path not in self.known:
                if len(self.known) >= MOST_GUARDS:
                    raise read_back(ended.place)
                self.known[path] = not answer, ended.ending
                return
            del self.known[path]
        raise self._first.error.exception()

    def goes_on(self, answers: Sequence[bool]) -> bool:
        """Whether a step goes on behind some answers."""
        given = tuple(answers)
        return all(self.known.get(given[:number], (one,))[0] == one for number, one in enumerate(given))

    def among(self, answers: Sequence[bool]) -> dict[int, Ending]:
        """Which of the questions with these answers are guards."""
        given = tuple(answers)
        return {n: self.known[given[:n]][1] for n in range(len(given)) if given[:n] in self.known}


def is_the_steps_own(error: BaseException) -> bool:
    """Whether an exception was raised by a statement of the user's code, or by a check of PyTorch's, and not by what it has run."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or isinstance(error, SystemExit):
        return traceback is not None
    code: types.CodeType = traceback.tb_frame.f_code
    is_raised = code.co_code[traceback.tb_lasti] == _RAISES
    return is_raised and (is_the_users(code.co_filename) or code.co_filename.endswith(CHECKS))
