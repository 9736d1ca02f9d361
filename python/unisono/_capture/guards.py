"""Questions of which one answer ends the step with an exception: ``assert not torch.isnan(loss)``, ``if loss > limit: raise ...``.

The captured step goes on with the other answer, and what was asked is looked at behind each step: where the answer is the one that ends
the step, the exception is raised then.
"""

from __future__ import annotations

import dis
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono import _users_errors
from unisono._capture.counting import Counts
from unisono._capture.effects import Effect
from unisono._capture.places import is_the_users, read_back

#: A step that asks more questions of this kind is refused.
MOST_GUARDS = 32
#: What a step was asked and answered until somewhere: where, and how, for each question.
Choices = tuple[tuple[str | None, bool], ...]
_RAISES = dis.opmap["RAISE_VARARGS"]
_NOTHING_TRAINED = "does not require grad and does not have a grad_fn"
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
        counts: what it has left beside tensors until then.
    """

    error: _users_errors.UsersError
    arguments: list[Any]
    reads: int
    effects: list[Effect]
    counts: Counts

    @classmethod
    def from_plain(cls, data: dict[str, Any], classes: Mapping[str, type]) -> Ending:
        """The ending that :meth:`plain` tells of, on another rank, which prints and logs nothing."""
        counts = Counts.from_plain(data["counts"], classes)
        return cls(_users_errors.UsersError(**data["error"]), data["arguments"], data["reads"], [], counts)

    def plain(self) -> dict[str, Any]:
        """What other ranks are told."""
        shown = [one if _is_plain(one[-1]) else ["constant", repr(one[-1])] for one in self.arguments]
        counts = self.counts.plain()
        return {"error": self.error.plain(), "arguments": shown, "reads": self.reads, "counts": counts}


class EndedError(Exception):
    """The step has raised an exception of its own behind a question.

    Attributes:
        choices: the questions until then, and their answers.
        ending: what has happened.
    """

    def __init__(self, choices: Choices, ending: Ending) -> None:
        """Takes its parts."""
        super().__init__(ending.error.text)
        self.choices, self.ending = choices, ending


def _is_plain(value: Any) -> bool:
    """Whether a value is a text, a number, or a list of these."""
    return value is None or isinstance(value, bool | int | float | str | list)


@dataclass
class Guards:
    """The guards that are known: which answer goes on, and what happens with the other."""

    #: By the questions before them, with their answers, and by where they are asked.
    _known: dict[tuple[Choices, str | None], tuple[bool, Ending]] = field(default_factory=dict)
    _first: Ending | None = None

    def note(self, ended: EndedError) -> None:
        """Takes the last question for a guard; where neither answer goes on, the one before it.

        Raises:
            the first exception of the step's, where no answer to any question goes on.
        """
        self._first = self._first or ended.ending
        ended.ending.error.forget_frames()
        before = ended.choices
        while before:
            *others, (place, answer) = before
            before = tuple(others)
            if (before, place) not in self._known:
                if len(self._known) >= MOST_GUARDS:
                    raise read_back(place)
                self._known[before, place] = not answer, ended.ending
                return
            del self._known[before, place]
        raise self._first.error.exception()

    def answer(self, before: Choices, place: str | None) -> bool:
        """The answer to a question that goes on; yes, where none is known to end the step."""
        return self._known.get((before, place), (True, None))[0]

    def goes_on(self, choices: Choices) -> bool:
        """Whether a step goes on behind some answers."""
        known = (self._known.get((choices[:number], place)) for number, (place, _) in enumerate(choices))
        return all(one is None or one[0] == answer for one, (_, answer) in zip(known, choices, strict=True))

    def among(self, choices: Choices) -> dict[int, Ending]:
        """Which of the questions are guards."""
        places = enumerate(place for place, _ in choices)
        return {n: self._known[choices[:n], place][1] for n, place in places if (choices[:n], place) in self._known}


def is_the_steps_own(error: BaseException) -> bool:
    """Whether an exception was raised by a statement of the user's code, or by a check of PyTorch's, and not by what it has run.

    That nothing of what a loss follows from is trained is found by PyTorch's engine, and depends on no data.
    """
    if type(error) is RuntimeError and _NOTHING_TRAINED in str(error):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or isinstance(error, SystemExit):
        return traceback is not None
    code: types.CodeType = traceback.tb_frame.f_code
    is_raised = code.co_code[traceback.tb_lasti] == _RAISES
    return is_raised and (is_the_users(code.co_filename) or code.co_filename.endswith(CHECKS))
