"""What a step tells people and files: noted while it is traced, and told when each step is over, on the rank that has captured it."""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import io
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

from unisono._capture.named import standing
from unisono._capture.paths import Walk, put
from unisono._capture.places import is_the_users

#: Takes a call that is to be made when each step is over: a function, its arguments and its named arguments.
Note = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]

_SCALARS = ("add_scalar", "add_scalars", "add_text", "add_histogram", "add_image", "add_images", "flush")
#: Methods that only tell, by module and class; functions of modules, where no class is named.
TELLING: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "logging": {"Logger": ("debug", "info", "warning", "error", "critical", "exception", "log")},
    "tqdm.std": {"tqdm": ("set_postfix", "set_postfix_str", "set_description", "set_description_str", "update")},
    "csv": {"DictWriter": ("writeheader", "writerow", "writerows")},
    "torch.utils.tensorboard.writer": {"SummaryWriter": _SCALARS},
    "tensorboardX.writer": {"SummaryWriter": _SCALARS},
    "wandb": {"": ("log",)},
    "wandb.sdk.wandb_run": {"Run": ("log",)},
    "mlflow": {"": ("log_metric", "log_metrics")},
    "swanlab": {"": ("log",)},
    "trackio": {"": ("log",)},
    "aim.sdk.run": {"Run": ("track",)},
    "accelerate.accelerator": {"Accelerator": ("log", "print")},
}
#: What `functools.lru_cache` makes of a function.
_KEEPS_RESULTS = type(functools.lru_cache(len))
_OF_FILES = ("write", "writelines", "flush")
_CSV_WRITER = type(csv.writer(io.StringIO()))


@contextlib.contextmanager
def noted(note: Note, functions: Iterable[Any], walk: Walk) -> Iterator[None]:
    """Notes within, instead of making them, calls that only tell, where the user's code makes them.

    Args:
        note: takes them.
        functions: those that the step can reach.
        walk: a walk over what it can reach, files among that.
    """
    instead: dict[int, tuple[Any, Any]] = {}
    with contextlib.ExitStack() as stack:
        for holder, name in _telling():
            real = getattr(holder, name)
            told = _noting(note, real)
            stack.enter_context(mock.patch.object(holder, name, told))
            if isinstance(holder, types.ModuleType):
                instead[id(real)] = real, told
        for name in ("stdout", "stderr"):
            real = getattr(sys, name)
            if real is None:  # a process without a screen
                continue
            stream = _Stream(real, note)
            instead[id(real)] = real, stream
            stack.callback(stream.end)
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(standing(functions, instead))
        stack.enter_context(_streams_noted(note, walk))
        yield


@contextlib.contextmanager
def _streams_noted(note: Note, walk: Walk) -> Iterator[None]:
    """Lets stand-ins take the place of files and writers of CSV that the step can reach."""
    made: dict[int, _Stream] = {}
    with contextlib.ExitStack() as stack:
        for holder, parts in walk.holders.values():
            for step, part in parts.items():
                if _is_stream(part) and not isinstance(holder, tuple):
                    stand_in = made.setdefault(id(part), _Stream(part, note))
                    put(holder, (step,), stand_in)
                    stack.callback(put, holder, (step,), part)
        stack.callback(lambda: [one.end() for one in made.values()])
        yield


def _is_stream(value: Any) -> bool:
    return isinstance(value, _CSV_WRITER) or (
        isinstance(value, io.TextIOBase) and not value.closed and value.writable()
    )


class _Stream:
    """Stands for a file or a writer of CSV: what is written is written when each step is over."""

    def __init__(self, real: Any, note: Note) -> None:
        """Takes what it stands for, and what takes calls."""
        self._real, self._note = real, note

    def end(self) -> None:
        """Lets it be what it stands for, for whoever has kept it."""
        self._note = lambda function, arguments, named: function(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in (*_OF_FILES, "writerow", "writerows") or not _is_called_by_the_user(sys._getframe(1)):
            return found

        def tell(*arguments: Any) -> None:
            self._note(found, arguments, {})

        return tell

    def __enter__(self) -> _Stream:
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._real.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real)


class Opened:
    """Stands for a text file that a step opens to write into, which is done when each step is over."""

    def __init__(self, open_it: Callable[[], Any], note: Note) -> None:
        """Takes what opens it, and what takes calls."""
        self._open, self._note, self._file = open_it, note, None
        note(self._begin, (), {})

    def _begin(self) -> None:
        self._file = self._open()

    def _do(self, name: str, *arguments: Any) -> None:
        assert self._file is not None
        getattr(self._file, name)(*arguments)
        if name != "close":
            self._file.flush()  # nobody may close it

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def write(self, text: str) -> int:
        """Notes what is written; writes what a noted call of `print` does."""
        if self._file is None:
            self._note(self._do, ("write", text), {})
        else:
            self._do("write", text)
        return str.__len__(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Notes what is written."""
        self._note(self._do, ("writelines", [*lines]), {})

    def flush(self) -> None:
        """Is done anyway."""

    def close(self) -> None:
        """Notes that it is closed."""
        self._note(self._do, ("close",), {})


def _telling() -> Iterator[tuple[Any, str]]:
    """The classes and modules, with derived classes, that have methods and functions that only tell, as far as they are imported."""
    for module_name, kinds in TELLING.items():
        module = sys.modules.get(module_name)
        for kind, names in kinds.items() if module is not None else ():
            holders = [getattr(module, kind, None)] if kind else [module]
            while holders:
                holder = holders.pop()
                yield from ((holder, name) for name in names if name in vars(holder or object))
                holders += holder.__subclasses__() if isinstance(holder, type) else []


def _noting(note: Note, real: Any) -> Callable[..., None]:
    """A method or function that is called after each step where the user's code calls it, and its own file does not."""
    own = getattr(getattr(real, "__code__", None), "co_filename", "")

    @functools.wraps(real)
    def call(*arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code.co_filename != own and _is_called_by_the_user(caller):
            return note(real, arguments, named)
        return real(*arguments, **named)

    return call


def _is_called_by_the_user(frame: types.FrameType) -> bool:
    return is_the_users(frame.f_code.co_filename)


def told_once() -> set[types.CodeType]:
    """The code of the user's functions whose results are kept, as for warnings that are given once; all objects are looked at."""
    wrapped = [getattr(one, "__wrapped__", None) for one in gc.get_objects() if type(one) is _KEEPS_RESULTS]
    codes = (one.__code__ for one in wrapped if isinstance(one, types.FunctionType))
    return {code for code in codes if is_the_users(code.co_filename)}


def is_within(frame: types.FrameType | None, codes: Container[types.CodeType]) -> bool:
    """Whether what is running is called by any of these."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
