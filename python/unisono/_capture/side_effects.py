"""What a step does beside tensors: numbers and collections that its Python code would change at every call, and random numbers that it
would draw at every call. A captured step does so once, while it is captured; one that is another step behind its own effects is refused.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono._capture.beside import Snapshot
from unisono._capture.compared import is_generator
from unisono._capture.paths import Path, Walk, shown
from unisono._capture.places import warn_user
from unisono.errors import StepError

#: So many names stand in a message.
_MOST_NAMES = 5
#: What clocks are called in messages.
A_CLOCK = "a clock"


@dataclass(frozen=True)
class Happened:
    """What a trace has done.

    Attributes:
        changed: the numbers and collections that are others, by paths to them, as a message says it.
        drawn: the generators that something was drawn from.
        other: whether anything else is another or new.
        texts: the texts that are others, by paths to them.
    """

    changed: dict[Path, str]
    drawn: list[str]
    other: bool
    texts: list[Path]

    def __bool__(self) -> bool:
        return bool(self.changed or self.drawn or self.other or self.texts)

    def once(self, changes: Mapping[Path, str], changing: Container[Path] | None, left: Container[Path]) -> Happened:
        """What happens once, and would happen at each call.

        Args:
            changes: more that has changed.
            changing: paths to what goes on changing, if that is known.
            left: paths to what is left anew behind each step.
        """
        every = {**self.changed, **changes}.items()
        changed = {p: how for p, how in every if p not in left and (changing is None or p in changing)}
        return Happened(changed, self.drawn, self.other, self.texts)


class SideEffects:
    """What happens beside tensors to what a step can reach, and to generators: Python's, NumPy's, and those that a walk has found.

    Attributes:
        before: what the step can reach, as it was at the beginning.
        root: what paths to it start from.
    """

    def __init__(self, walk: Walk) -> None:
        """Begins with all as it is now."""
        self._walk, self.before, self.root = walk, Snapshot(walk), walk.root
        self._drawn = _generators(walk)

    def so_far(self, now: Walk) -> Happened:
        """What is no longer as it was at the beginning, by a walk of now."""
        drawn, changed = _generators(self._walk), [*self.before.changed()]
        return Happened(
            {place.path: place.change(value) for place, value in changed if not isinstance(place.was, str)},
            [f"`{name}`" for name, (state, _) in drawn.items() if self._drawn.get(name, (state,))[0] != state],
            self.before.has_new_hooks(now) or bool(self.before.others() or self.before.made(now)),
            [place.path for place, _ in changed if isinstance(place.was, str)],
        )

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Puts back, at its end, what happens within."""
        self.before.with_entries()
        try:
            yield
        finally:
            self._undo()

    @contextlib.contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Puts back what happens within if that ends in an error."""
        self.before.with_entries()
        try:
            yield
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        self.before.put_back()
        for _, put_back in self._drawn.values():
            put_back()


def warn_of(happened: Happened) -> None:
    """Warns of what a trace has done once and for all."""
    if happened.changed:
        changed = _listed([*happened.changed.values()])
        warn(
            f"what it changed will not change again: {changed}. Count outside of the step, return tensors instead of "
            "storing them, and keep numbers that it computes with as buffers of the model."
        )
    for name in happened.drawn:
        if name == A_CLOCK:
            warn("what it read from a clock is what that said then, at every step. Take the time around the step.")
            continue
        warn(
            f"what it drew from {name} is a constant from then on. Draw tensors with torch (`torch.rand`), or draw outside of the "
            "step and pass tensors as arguments."
        )


def depends_on(
    changed: Sequence[str], drawn: Sequence[str], place: str | None, doubts: Sequence[str] = ()
) -> StepError:
    """The error of a step that is another one behind its own side effects.

    Args:
        changed: what it changes, in words.
        drawn: what it draws from or reads, in words.
        place: where it computes with that.
        doubts: the names of what it reaches and cannot be followed, one of which makes it another one if nothing else does.
    """
    what = f"computes with what it changes at each call: {_listed(changed)}" if changed else ""
    drew = f"computes with what it draws from {', '.join(drawn)} at each call" if drawn else ""
    other = "" if changed or drawn else "is another one at each call"
    because = f"; it reaches {_listed([f'`{name}`' for name in doubts])}" if doubts and other else ""
    return StepError(
        f"the step {' and '.join(part for part in (what, drew, other) if part)}",
        code="U0119",
        place=place,
        cause=f"its Python code runs once, while the step is captured, and would be another one the next time{because}",
        hint=_hint(changed, drawn),
    )


def only_at_first(changed: Sequence[str], place: str | None) -> StepError:
    """The error of a step whose first call is another one than all those behind it; ``changed`` is what it changes, in words."""
    sets = f": it changes {_listed(changed)}" if changed else ""
    return StepError(
        f"the first call of the step is another one than those behind it{sets}",
        code="U0119",
        place=place,
        cause="its Python code runs once, while the step is captured; one graph is captured for all calls",
        hint="call the step, or what of the model sets itself up, once before (`model(..)`), so that all calls are alike",
    )


def _hint(changed: Sequence[str], drawn: Sequence[str]) -> str:
    count = "count outside of the step and pass a tensor, or keep numbers as buffers of the model"
    clock = "take the time outside of the step, around it" if A_CLOCK in drawn else ""
    draw = "draw with torch (`torch.rand`)" if [name for name in drawn if name != A_CLOCK] else ""
    ways = [way for way in (count if changed else "", clock, draw) if way] or [count, "draw with torch (`torch.rand`)"]
    return f"{'; '.join(ways)}; what happens at some steps only, such as logging, belongs behind the step"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def warn(what: str) -> None:
    """Warns, at the user's line, of what follows from this: the step's Python code runs once."""
    warn_user(f"the step's Python code runs once, while the step is captured; {what}", RuntimeWarning)


#: The state of a generator, and what puts it back.
_Drawn = tuple[Any, Callable[[], object]]


def _generators(walk: Walk) -> dict[str, _Drawn]:
    """Generators that are not torch's, by what users call them."""
    state = random.getstate()
    found: dict[str, _Drawn] = {"random": (state, lambda: random.setstate(state))}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        whole = numpy.random.get_state()
        kind, keys, *position = whole
        found["numpy.random"] = (kind, keys.tobytes(), position), lambda: numpy.random.set_state(whole)
    known = (random._inst, numpy.random.mtrand._rand if numpy is not None else None)  # type: ignore[attr-defined]
    own = [one for one, _ in walk.holders.values() if is_generator(one) and one not in known]
    own = [one for one in own if not isinstance(one, random.SystemRandom)]
    return found | {shown(walk.paths[id(one)]): _of_generator(one) for one in own}


def _of_generator(generator: Any) -> _Drawn:
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return state, lambda: generator.setstate(state)
    bits = getattr(generator, "bit_generator", None)
    if bits is not None:
        state = copy.deepcopy(bits.state)
        return repr(state), lambda: setattr(bits, "state", state)
    state = generator.get_state(legacy=False)
    return repr(state), lambda: generator.set_state(state)
