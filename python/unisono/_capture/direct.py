"""What a step draws itself from NumPy's generator and Python's: ``lam = np.random.beta(a, a)``, ``random.random() < 0.5``.

A call is an operation, as one of a function that draws is (:mod:`drawn`). What stands for a number that it gives is computed with as
a value that is read from a tensor is; an array is an index, or what the step makes a tensor of.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol
from unittest import mock

import torch

from unisono import _host_draws
from unisono._capture.generators import Generators
from unisono._capture.given import plainly
from unisono._capture.named import standing
from unisono._capture.places import is_the_users, user_line
from unisono.errors import StepError

#: What begins anew, and what reads and sets the state.
_SEEDS, _READS, _SETS = ("seed",), ("getstate", "get_state"), ("setstate", "set_state")


class Calls(Protocol):
    """Who makes operations of calls that draw."""

    def call(self, real: Callable[..., Any], name: str, source: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether a call can be an operation, and what stands for what that gives."""
        ...


class _KeptState:
    """Stands for a state of a generator that the step has read."""

    def __init__(self, state: Any, name: str) -> None:
        self.state, self._name = state, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused(self._name, "and looks into it", "set the generator to it, and do nothing else with it")


@contextlib.contextmanager
def standing_in(functions: Iterable[Any], generators: Generators, calls: Calls) -> Iterator[None]:
    """Lets functions of the generators be operations where the user's code calls them.

    Args:
        functions: those that the step and the model can reach.
        generators: has the states.
        calls: makes the operations.

    Raises:
        StepError: at the end, where the step has drawn from one generator by operations and otherwise.
    """
    instead: dict[int, tuple[Any, Any]] = {}
    with contextlib.ExitStack() as stack:
        for source, module in _modules():
            own = _Direct(source, generators, calls)
            stack.enter_context(own.alone())
            for name, there, real in _methods(module):
                function = own.of(name, real, getattr(there, "follow", None))
                instead[id(there)] = there, function
                stack.enter_context(mock.patch.object(module, name, function))
        stack.enter_context(standing(functions, instead))
        yield


def _modules() -> Iterator[tuple[str, Any]]:
    numpy = sys.modules.get("numpy")
    for source, module in (("random", random), ("numpy.random", numpy and numpy.random)):
        if module is not None and _host_draws.is_known(source):
            yield source, module


def _methods(module: Any) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The functions of a module that are methods of its one generator: their names, what is there now, and the functions."""
    owner = module._inst if module is random else module.mtrand._rand
    for name, value in [*vars(module).items()]:
        real = getattr(value, "__wrapped__", value)  # what it gives may be followed (:mod:`sources`)
        if getattr(real, "__self__", None) is owner or name in (*_SEEDS, *_READS, *_SETS):
            yield name, value, real


class _Direct:
    """The functions of one generator.

    Attributes:
        otherwise: the name and the user's line of the first call that cannot be an operation.
    """

    def __init__(self, source: str, generators: Generators, calls: Calls) -> None:
        self._source, self._generators, self._calls = source, generators, calls
        self.otherwise: tuple[str, str | None] | None = None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Refuses, at its end, a step that has drawn beside the operations what the next of these would have."""
        before = self._state()
        yield
        with plainly():
            is_drawn = not before.equal(self._state())
        if is_drawn and self._generators.draws_on_host(self._source):
            name, place = self.otherwise or (self._source, user_line())
            raise StepError(
                f"the step draws by `{name}`, and by other functions of the same generator",
                code="U0119",
                place=place,
                cause="this one would be called once, while the step is captured, and the others at each step, so that they would draw "
                "other numbers than in eager PyTorch",
                hint=f"call `{name}` outside of the step, or draw with torch (`torch.rand`, `torch.randperm`)",
            )

    def _state(self) -> torch.Tensor:
        with plainly():
            return _host_draws.SOURCES[self._source].get_state()

    def of(self, name: str, real: Callable[..., Any], follow: Callable[[Any], Any] | None) -> Callable[..., Any]:
        """What is to be in the place of one; ``follow`` makes what it gives something that is followed, where that is done."""
        full = f"{self._source}.{name}"

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not torch._C._len_torch_dispatch_stack() or not is_the_users(sys._getframe(1).f_code.co_filename):
                return real(*args, **kwargs)
            if name in _READS:
                return _KeptState(self._generators.state_on_host(self._source), full)
            if name in _SETS and args and type(args[0]) is _KeptState:
                return self._generators.go_on_from(self._source, args[0].state)
            if name in _SEEDS and not args and not kwargs:
                raise _refused(full, "without a number", "seed outside of the step")
            if name in (*_SEEDS, *_SETS):
                return self._set(real, args, kwargs)
            is_known, made = self._calls.call(real, full, self._source, args, kwargs)
            if is_known:
                return made
            self.otherwise = self.otherwise or (full, user_line())
            made = real(*args, **kwargs)
            return made if follow is None else follow(made)

        return called

    def _set(self, real: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Goes on from the state in which a call leaves the generator."""
        with plainly(), _host_draws.left_alone(self._source):
            real(*args, **kwargs)
            state = self._state()
        self._generators.go_on_from(self._source, state)


def _refused(name: str, how: str, hint: str) -> StepError:
    return StepError(
        f"the step calls `{name}` {how}",
        code="U0119",
        place=user_line(),
        cause="the step's Python code runs once, while the step is captured, and the state would be the same at every step",
        hint=hint,
    )
