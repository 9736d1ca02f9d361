"""Where in the user's code, in which module and in which part of the program each operation was made."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from unisono._capture.known import value_of
from unisono.errors import StepError, UnisonoError, UnsupportedError

#: Makes a tensor of the code's own one that is traced.
_LIFT = torch.ops.aten.lift_fresh.default

_NOT_THE_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<",
)
#: Of what is typed in, or given to `exec` and `python -c`; other names like these are of code that libraries make.
_TYPED = ("<stdin>", "<string>", "<console>", "<ipython-input-", "<python-input-", "<doctest ")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
#: Where PyTorch starts its engine.
_ENGINE = os.path.join("torch", "autograd", "graph.py")


@dataclass(frozen=True)
class Origin:
    """What is known of an operation's making; ``by`` is what ran it: the autograd engine, an optimizer or (empty) the step's own code."""

    file: str
    line: int
    module: str
    by: str

    @property
    def place(self) -> str | None:
        """``file:line``, if it is known."""
        return f"{self.file}:{self.line}" if self.file else None


_NOWHERE = Origin("", 0, "", "")
ENGINE, OPTIMIZER = "engine", "optimizer"


def part_kinds(origins: Sequence[Origin | None]) -> list[str]:
    """The kind of part that each operation of a step stands in, in program order.

    What the step's own code does is forward where gradients are computed of it afterwards, and update between the last backward and an
    optimizer (clipping) or behind one. A second micro-batch or a second network so begins a forward part of its own.
    """
    kinds = [_KINDS[origin.by] if origin is not None else None for origin in origins]
    behind: list[str | None] = []
    following = None
    for kind in reversed(kinds):
        following = kind or following
        behind.append(following)
    before: str | None = None
    found: list[str] = []
    for origin, kind, following in zip(origins, kinds, reversed(behind), strict=True):
        if origin is None:  # made by the capture itself: part of what stands before it
            found.append(found[-1] if found else "forward")
            continue
        found.append(kind or ("forward" if following == "backward" or before is None else "update"))
        before = kind or before
    return found


_KINDS = {ENGINE: "backward", OPTIMIZER: "update", "": None}


@functools.lru_cache(maxsize=4096)
def is_pythons_own(file: str) -> bool:
    """Whether a source file is of Python's own library."""
    return file.startswith(_LIBRARY) and "-packages" + os.sep not in file


@functools.lru_cache(maxsize=4096)
def is_the_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor Unisono's nor of Python's own library."""
    return not is_pythons_own(file) and (file.startswith(_TYPED) or not file.startswith(_NOT_THE_USERS))


def user_place(frame: FrameType | None) -> tuple[str, int]:
    """The file and line of the innermost frame outside PyTorch and Unisono."""
    return _user_place(frame)[:2]


def _user_place(frame: FrameType | None) -> tuple[str, int, bool]:
    """The same, and whether it is there that PyTorch's own code makes the first gradient of a backward pass."""
    begins_backward = False
    while frame is not None:
        code = frame.f_code
        if is_the_users(code.co_filename):
            return code.co_filename, frame.f_lineno, begins_backward
        begins_backward = begins_backward or code.co_name == "_make_grads"
        frame = frame.f_back
    return "", 0, False


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside PyTorch and Unisono, from one on."""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line() -> str | None:
    """``file:line`` of the user's code that is running; ``None`` where none is."""
    file, line = user_place(sys._getframe(1))
    return f"{file}:{line}" if file else None


def user_lines(frame: FrameType | None) -> tuple[tuple[str, int], ...]:
    """The files and lines of the user's code that is running, the innermost first."""
    found = []
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def place_in(error: BaseException) -> str | None:
    """``file:line`` of the innermost code of the user's that an exception has come through."""
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        places.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return next((f"{file}:{line}" for file, line in reversed(places) if is_the_users(file)), None)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warns at the line of the user's code that is running."""
    file, line = user_place(sys._getframe(1))
    warnings.warn_explicit(message, category, file or "unisono", line)


def _place_in_backward(frame: FrameType | None) -> tuple[str, int] | None:
    """The line of the user's own code that the backward pass runs: of a hook, or of a function's own gradient."""
    while frame is not None and not frame.f_code.co_filename.endswith(_ENGINE):
        if is_the_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def place_of(node: torch.fx.Node) -> str | None:
    """``file:line`` of the user's code that a traced node comes from."""
    origin = (node.meta.get("custom") or {}).get("origin")
    return origin.place if origin else None


class OriginTracker:
    """Knows the origin of the operation that is made now.

    Backward operations get the origin of the forward operation whose autograd node runs them.
    """

    def __init__(self, model: nn.Module | None, by_values: Callable[..., list[Any] | None] = lambda *_: None) -> None:
        """Takes the model whose modules' names are to be noted, and what gives results that depend on values, where these are known."""
        self._by_values = by_values
        self._names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
        self._modules: list[str] = []
        self._by_sequence: dict[int, Origin] = {}
        self._optimizers = 0
        self._default = torch.get_default_dtype()

    def current(self) -> Origin:
        """The origin of an operation that is made now."""
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._by_sequence.get(node._sequence_nr(), _NOWHERE)
            file, line = _place_in_backward(sys._getframe(1)) or (made.file, made.line)
            return Origin(file, line, made.module, ENGINE)
        file, line, begins_backward = _user_place(sys._getframe(1))
        module = self._modules[-1] if self._modules else ""
        by = OPTIMIZER if self._optimizers else ENGINE if begins_backward else ""
        origin = Origin(file, line, module, by)
        self._by_sequence[torch.autograd._get_sequence_nr() - 1] = origin  # type: ignore[attr-defined]
        return origin

    def run(self, record: Callable[..., Any], func: Any, args: Any, kwargs: Any) -> Any:
        """Records one operation with its origin, or raises an error that names it."""
        origin = self.current()
        try:
            made = record(func, args, kwargs, {"origin": origin})
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            known = value_of(func, args, kwargs)
            by_values = self._by_values(func, args, kwargs, {"origin": origin}) if known is None else None
            if by_values is not None:
                return by_values[0]
            if known is None:
                raise data_dependence(func, origin, error) from None
            return pytree.tree_map_only(torch.Tensor, lambda one: record(_LIFT, (one,), {}, {"origin": origin}), known)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise _as_eager(error, func, args, kwargs) from None
        if isinstance(made, torch.Tensor) and made.layout != torch.strided:
            raise _sparse(func, origin)
        if torch.get_default_dtype() is not self._default and _dtypes(made) != self._as_at_first(func, args, kwargs):
            raise _by_default(func, origin)
        return made

    def _as_at_first(self, func: Any, args: Any, kwargs: Any) -> list[torch.dtype]:
        """The element types that an operation would give had the step not set another default."""
        now = torch.get_default_dtype()
        torch.set_default_dtype(self._default)
        try:
            with _disable_current_modes(), torch.no_grad():
                return _dtypes(func(*pytree.tree_map(_like, args), **pytree.tree_map(_like, kwargs)))
        finally:
            torch.set_default_dtype(now)

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Tracks modules and optimizers until it is left."""
        entered = nn.modules.module.register_module_forward_pre_hook(self._enter)
        left = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        stepping = register_optimizer_step_pre_hook(lambda *_: self._step(1))
        stepped = register_optimizer_step_post_hook(lambda *_: self._step(-1))
        try:
            yield
        finally:
            for hook in (entered, left, stepping, stepped):
                hook.remove()

    def _step(self, change: int) -> None:
        self._optimizers += change

    def _enter(self, module: nn.Module, _arguments: Any) -> None:
        self._modules.append(self._names.get(id(module), ""))

    def _leave(self, _module: nn.Module, _arguments: Any, _result: Any) -> None:
        if self._modules:
            self._modules.pop()


def _as_eager(error: Exception, func: Any, args: Any, kwargs: Any) -> Exception:
    """The error that an operation raises on tensors with data; what is raised without data may have other words."""
    if isinstance(error, UnisonoError | DynamicOutputShapeException) or not isinstance(func, torch._ops.OpOverload):
        return error

    def real(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor)
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device) if is_tensor else leaf

    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        try:
            func(*pytree.tree_map(real, args), **pytree.tree_map(real, kwargs))
        except type(error) as wanted:
            return type(error)(str(wanted))
        except Exception:
            return error
    return error


def _like(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf


def _dtypes(made: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _by_default(func: Any, origin: Origin) -> UnsupportedError:
    """The error for a step that sets another default of element types, which decides what an operation gives."""
    return UnsupportedError(
        f"the step sets the default of element types to {torch.get_default_dtype()}, which decides what `{func}` gives",
        code="U0105",
        place=origin.place,
        cause="the captured step runs under the default that there is when it is called",
        hint="give the operation its `dtype`, or set the default before the step is captured",
    )


def _sparse(func: Any, origin: Origin) -> UnsupportedError:
    """The error for a step that makes a tensor whose size in memory depends on data."""
    return UnsupportedError(
        f"the step makes a sparse tensor (`{func}`)",
        code="U0113",
        place=origin.place,
        cause="how much a sparse tensor holds depends on data, and all sizes of a captured step are known beforehand",
        hint="use dense tensors; for gradients of an embedding, `nn.Embedding(.., sparse=False)`",
    )


#: What users can write instead of what is as large as values say.
INSTEAD_OF_SELECTING = (
    "use `torch.where`, a mask that is multiplied, or padding instead of selecting by a mask or by `nonzero`"
)
#: What users can write instead of an operation, by its name.
_INSTEAD = {
    "bincount": "say how many numbers there are (`minlength=classes`), or use `F.one_hot(x, classes).sum(0)`",
    "_pack_padded_sequence": "run the layer on the padded batch, and leave out what is padding with a mask",
    "_unique2": "use `torch.zeros(classes).index_fill(0, x, 1.0)` for which values there are",
    "unique_dim": "use a mask of which rows are the first of their kind: `torch.tril(x[:, None] == x, -1).any(1)`",
    "repeat_interleave": "give `output_size=`, or numbers instead of a tensor of repeats",
}


def data_dependence(func: Any, origin: Origin, error: Exception) -> StepError:
    """The error for a step whose control flow or shapes depend on the data of tensors."""
    name = str(func)
    if isinstance(error, DynamicOutputShapeException):
        message = f"the shape of a result of `{name}` depends on data"
        cause = "one graph must serve every batch, so all shapes must be known beforehand"
        hint = _INSTEAD.get(name.split(".")[1], INSTEAD_OF_SELECTING)
    else:
        return read_back(origin.place)
    return StepError(message, code="U0101", place=origin.place, cause=cause, hint=hint)


def _is_within(folder: str) -> bool:
    """Whether code of a folder is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and folder not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def too_many_choices(place: str | None) -> StepError:
    """The error for a step that chooses by values more often in a row than can be captured."""
    hint = (
        "compute both and use `torch.where`, or multiply by what decides: `x + f(x) * (torch.rand(()) < p)` instead of "
        "`if random.random() < p: x = x + f(x)`"
    )
    return StepError(
        "the step chooses by the value of a tensor, or by a number that it draws, more than three times in a row",
        code="U0101",
        place=place,
        cause="the step is captured once, before there is any data, with all ways that it may take; each choice doubles these",
        hint=_of_distributions() or hint,
    )


def drawn_by_choice(place: str | None) -> StepError:
    """The error for a step that chooses by a value how many random numbers it draws."""
    return StepError(
        "the step chooses by the value of a tensor which random numbers it draws (dropout, `torch.rand`, ..)",
        code="U0101",
        place=place,
        cause="all ways that the step may take are computed, and the generator would be left as all of them leave it",
        hint="draw before the choice, in the same way whatever it is, and use `torch.where`; or choose outside of the step",
    )


def drawn_number(name: str, place: str | None) -> StepError:
    """The error for a step that does with a number that a function draws what a graph cannot say."""
    return StepError(
        f"the step goes on with a number that `{name}` draws as a graph cannot",
        code="U0119",
        place=place,
        cause="the step is captured once, and the number is another one at each call: it can be computed with, beside tensors too, and "
        "chosen by a few times; it cannot be a size",
        hint="multiply by what is drawn instead of choosing (`x + f(x) * (torch.rand(()) < p)`), use a mask instead of a slice, or draw "
        "outside of the step and pass a number",
    )


def read_back(place: str | None) -> StepError:
    """The error for a step that does with the value of a tensor what a graph cannot say."""
    hint = "keep the value as a tensor: use `torch.where` for a choice, `index_select` for an index, and return it to use it outside"
    return StepError(
        "the step reads the value of a tensor (`.item()`, `float(t)`, `if t:`, ...) and goes on with it",
        code="U0101",
        place=place,
        cause="the step is captured once as a graph, before there is any data; what is read can be shown, returned and computed with",
        hint=_of_distributions() or hint,
    )


def _of_distributions() -> str | None:
    """What to do where a distribution of PyTorch's reads values."""
    if not _is_within(os.path.join("torch", "distributions")):
        return None
    return "make the distribution with `validate_args=False`: it reads its parameters to check them"
