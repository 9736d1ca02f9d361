"""The exceptions that Unisono raises, one class for each audience that can act on them."""

from __future__ import annotations


class UnisonoError(Exception):
    """What went wrong: a stable code, what happened, where in the user's own code, why, and a hint.

    Attributes:
        code: the stable code, such as ``"U0012"``.
        message: what happened, in one sentence.
        place: ``file:line`` or ``file:line:column`` in the user's code or file, or ``None``.
        cause: why it is so, or ``None``.
        hint: what to do about it, or ``None``.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "U0001",
        place: str | None = None,
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Takes the parts of a diagnostic."""
        super().__init__(message)
        self.message, self.code, self.place, self.cause, self.hint = message, code, place, cause, hint

    def __str__(self) -> str:
        """The parts on lines of their own, as the command line prints them."""
        page = f"docs/errors.md#{self.code.lower()}"
        labelled = (("at ", self.place), ("because ", self.cause), ("hint: ", self.hint), ("see ", page))
        rest = "".join(f"\n  {label}{text}" for label, text in labelled if text)
        return f"[{self.code}] {self.message}{rest}"


class StepError(UnisonoError):
    """The training step or its data cannot be used as they are."""


class ConfigurationError(UnisonoError, ValueError):
    """An argument, a setting or a file is wrong."""


class HardwareError(UnisonoError):
    """The machine, its devices or its PyTorch do not offer what is needed."""


class ResourceError(UnisonoError):
    """Memory, disk or time ran out, or another rank is gone."""


class UnsupportedError(UnisonoError, NotImplementedError):
    """Legal, but not supported yet."""


class InternalError(UnisonoError):
    """A bug of Unisono's own."""


class CaptureNotice(UserWarning):
    """A step was captured and planned again, because something is not as it was; it says how long that took."""


class RuleNotice(UserWarning):
    """An operation of the user's is sharded by a rule that was found by trying, or that could not be examined here; it says which."""


class CompileNotice(UserWarning):
    """A graph that ``torch.compile(.., backend="unisono")`` was given runs as in eager PyTorch; it says why."""
