"""Generators of the user's that a step draws from: their states are inputs of its graph, and what it leaves them in are results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from unisono import _drawing, _host_draws
from unisono._capture.paths import SOURCE, Path, Walk, follow, put, shown
from unisono._capture.places import user_line
from unisono.errors import StepError, UnsupportedError


def generator_at(root: Any, paths: Sequence[Path]) -> torch.Generator | _host_draws.Source:
    """The one generator that all these paths lead to."""
    (kind, name), *_ = paths[0]
    if kind == SOURCE:
        return _host_draws.SOURCES[name]
    found = [follow(root, path) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if not isinstance(one, torch.Generator) or one is not found[0]:
            now = "another generator" if isinstance(one, torch.Generator) else f"a {type(one).__name__}"
            raise StepError(
                f"`{shown(path)}` is {now}",
                code="U0122",
                cause=f"it was the generator `{shown(paths[0])}` when the step was captured",
                hint="let the step draw from the generator that it had",
            )
    return found[0]


class _StandIn(torch.Generator):
    """Stands for a generator while a step is traced.

    Attributes:
        state: its state at this point of the trace.
        path: where the user has it.
        used: whether the step has asked anything of it.
    """

    state: torch.Tensor
    path: Path
    used: bool

    def get_state(self) -> torch.Tensor:
        self.used = True
        return self.state.clone()

    def set_state(self, new_state: torch.Tensor) -> Any:
        self.used = True
        if new_state.shape != self.state.shape:
            raise RuntimeError(f"RNG state is wrong size: {list(new_state.shape)}")
        self.state = new_state.clone()
        return self

    def manual_seed(self, seed: int) -> Any:
        return self.set_state(torch.Generator(self.device).manual_seed(seed).get_state())

    def seed(self) -> NoReturn:
        raise self._refused("seed")

    def initial_seed(self) -> NoReturn:
        raise self._refused("initial_seed")

    def _refused(self, method: str) -> StepError:
        return StepError(
            f"the step calls `{shown(self.path)}.{method}()`",
            code="U0114",
            place=user_line(),
            cause="the step's Python code runs once, when it is captured, and the number would be the same at every step",
            hint="call it outside of the step",
        )

    def draw(self, func: Any, args: Any, kwargs: Any, fills: torch.Tensor | None) -> torch.Tensor:
        """What a random operation gives; :attr:`state` is then the one after it."""
        self.used = True
        call, operands = _drawing.described(func, args, kwargs, fills)
        made, self.state = torch.ops.unisono.draw.default(self.state, call, operands)
        return made


def memory_of(generator: torch.Generator) -> int:
    """Where PyTorch keeps a generator: the same for all Python objects of it."""
    return generator._cdata  # type: ignore[attr-defined]


class Generators:
    """The generators that a step can reach, while it is traced."""

    def __init__(self, walk: Walk, states: Mapping[Path, torch.Tensor]) -> None:
        """Takes the generators that there are, and the traced states of those whose states are inputs."""
        self._root, self._walk, self._states = walk.root, walk, states
        self._stand_ins: dict[int, _StandIn] = {}
        for path, generator in walk.generators.items():
            self._stand_ins.setdefault(memory_of(generator), _stand_in(generator, path, states.get(path)))
        self._by_memory = {memory_of(one): one for one in self._stand_ins.values()}
        #: The states of generators of the process, by paths that name them, at this point of the trace.
        self._of_process = {path: state for path, state in states.items() if path[0][0] == SOURCE}

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Lets stand-ins be where the user has the generators."""
        places = {path: self._stand_ins[memory_of(generator)] for path, generator in self._walk.generators.items()}
        for path, stand_in in places.items():
            put(self._root, path, stand_in)
        try:
            yield
        finally:
            for path, stand_in in places.items():
                if follow(self._root, path) is stand_in:
                    put(self._root, path, self._walk.generators[path])

    def of(self, given: torch.Generator) -> _StandIn:
        """What stands for a generator that an operation is given; refuses one that no path leads to."""
        found = self._by_memory.get(memory_of(given))
        if found is None:
            raise UnsupportedError(
                "the step draws from a `torch.Generator` that nothing outside of the step holds",
                code="U0108",
                place=user_line(),
                cause="the state of a generator is state of the step, and no variable, attribute or container was found that has it",
                hint="make the generator outside of the step, and let a variable of the step or an attribute of the model hold it",
            )
        return found

    def new(self) -> list[Path]:
        """The generators that the step uses, and whose states are no inputs yet."""
        used = [one.path for one in self._by_memory.values() if one.used]
        return [path for path in [*used, *self._of_process] if path not in self._states]

    def after(self) -> list[torch.Tensor]:
        """The states that the step leaves, of the generators whose states are inputs, in their order."""
        states = {one.path: one.state for one in self._by_memory.values()} | self._of_process
        return [states[path] for path in self._states]

    def draw_on_host(self, source: str, call: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """What a function gives that draws from a generator of the process; see :mod:`unisono._host_draws`."""
        made, after = torch.ops.unisono.draw_on_host.default(self.state_on_host(source), call, operands)
        self.go_on_from(source, after)
        return made

    def draws_on_host(self, source: str) -> bool:
        """Whether the step draws from a generator of the process by operations."""
        return ((SOURCE, source),) in self._of_process

    def state_on_host(self, source: str) -> torch.Tensor:
        """The state of a generator of the process at this point of the trace."""
        path = ((SOURCE, source),)
        if path not in self._of_process:
            self._of_process[path] = _host_draws.SOURCES[source].get_state()
        return self._of_process[path]

    def go_on_from(self, source: str, state: torch.Tensor) -> None:
        """Takes another state for the one at this point of the trace."""
        self._of_process[(SOURCE, source),] = state


def _stand_in(generator: torch.Generator, path: Path, state: torch.Tensor | None) -> _StandIn:
    made = _StandIn(generator.device)
    made.path, made.used = path, False
    made.state = generator.get_state() if state is None else state
    return made
