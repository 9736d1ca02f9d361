"""The capture of a step as a whole: its graph and how to talk to it."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.optim import Optimizer

from unisono._call import Call
from unisono._capture import doubts, scaling
from unisono._capture.again import Again, is_the_same
from unisono._capture.beginnings import FIRST, require_alike
from unisono._capture.beside import Snapshot
from unisono._capture.calls import call_of
from unisono._capture.compiling import Compiling
from unisono._capture.custom import proved_rules
from unisono._capture.effects import told_at_first
from unisono._capture.expressions import Expression
from unisono._capture.followed import plain
from unisono._capture.forks import MOST_QUESTIONS, Way, merged
from unisono._capture.given import Given
from unisono._capture.guards import Choices, EndedError
from unisono._capture.helpers import AskedWithin, Choosing
from unisono._capture.inputs import StepInputs, collect
from unisono._capture.kept import Kept
from unisono._capture.kernels import target_of
from unisono._capture.optimizer import create_state
from unisono._capture.orders import Orders, Reordered
from unisono._capture.outside import begins_at
from unisono._capture.paths import Path, Walk, counted_settings, counts_in_state, settings_at
from unisono._capture.places import read_back, too_many_choices, user_line
from unisono._capture.premises import Premises
from unisono._capture.settings import groups_of, guarded_settings, has_number_for_rate, settings_of_pytorchs
from unisono._capture.side_effects import A_CLOCK, Happened, SideEffects, depends_on, warn_of
from unisono._capture.trace import trace
from unisono._capture.traced import Traced
from unisono._capture.wire import Encoder
from unisono._tree import Structure
from unisono.errors import StepError, UnisonoError

#: A step keeps in one trace what the trace before it has not kept; more often than this it does not end.
_MOST_TRACES = 12


@dataclass
class Capture:
    """A captured step.

    Attributes:
        message: the graph as MessagePack, as crate ``ir`` reads it.
        inputs: the inputs, in the order of the graph's inputs.
        returns: how the step's return value is put together.
        leaves: how many leaves it has.
        return_constants: leaves of the return value that are no tensors, by position.
        settings: the optimizer's settings that became constants of the graph.
        kept: what the step keeps outside of the model; what it leaves there is returned behind what it returns itself.
        traced: what the trace has found; its graph is the message.
        ways: all ways through the step, where it chooses by values; else the one.
        settled: paths to numbers and texts that the capture has changed, that later calls do not change, and that the step computes with.
    """

    message: bytes
    inputs: StepInputs
    returns: Structure
    leaves: int
    return_constants: dict[int, Any]
    settings: list[dict[str, Any]]
    kept: Kept
    traced: Traced
    ways: list[Traced]
    settled: set[Path]


def capture_step(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    call: Call,
    keep_gradients: bool = False,
    live: Sequence[str] = (),
    device: str | None = None,
    accumulates: bool = False,
    varying: frozenset[int] = frozenset(),
    looks_first: bool = False,
    counted: Collection[tuple[int, str]] = (),
) -> Capture:
    """Captures one call of ``train_step``; see :func:`unisono.capture`.

    With `accumulates` gradients that are there are state where the step goes on with them, even if it sets them to zero first. The leaves
    of the arguments at ``varying`` positions are numbers that may be others at each call. Who ``looks_first`` sees before each call
    whether the premises of the capture hold, so that there may be some. Settings that are ``counted``, by group and key, are numbers that
    another step changes: this one looks at them before each call, as far as it reads them.
    """
    for optimizer in optimizers:
        try:
            create_state(optimizer)
            if not looks_first:
                require_alike(optimizer)
        except UnisonoError as error:
            _find_call(error, optimizer, train_step, model, optimizers, call)
            raise
    asked = _Asked(
        train_step, model, optimizers, call, keep_gradients, live, device, accumulates, varying, looks_first, counted
    )
    try:
        return _capture(asked)
    except _OfKernelsError as error:
        return _capture(asked._replace(counted={*counted, *error.settings}))


class _OfKernelsError(Exception):
    """A step changes settings of optimizers whose update is one kernel, which takes no numbers of the step.

    Attributes:
        settings: these, by group and key.
    """

    def __init__(self, settings: set[tuple[int, str]]) -> None:
        super().__init__()
        self.settings = settings


def _capture(asked: _Asked) -> Capture:
    train_step, model, optimizers, _, _, live, _, _, varying, looks_first, counted = asked
    settings = guarded_settings(optimizers, live, counted)
    walk = Walk(train_step, model, optimizers)
    scaling.prepare(walk)
    effects = SideEffects(walk)
    if varying:
        _require_the_same_of_stand_ins(asked)
    with _without_collection(), effects.undone_if_refused():
        changed: dict[Path, str] = {}
        found = _traced(asked, changed=changed)
        walked, settled = functools.partial(Walk, train_step, model, optimizers), set[Path]()
        now = walked()
        happened, in_doubt = effects.so_far(now), doubts.reached(now)
        plain = [*happened.changed, *happened.texts]
        of_kernels = settings_of_pytorchs(optimizers, counted_settings(effects.root, optimizers, plain)) - {*counted}
        if of_kernels:
            raise _OfKernelsError(of_kernels)
        elsewhere = {path: how for path, how in changed.items() if path not in plain}
        anew = _Leaving(asked, effects.before, found, elsewhere)
        if plain and not (in_doubt or happened.drawn or happened.other) and anew.find(plain):
            found, happened = anew.found, Happened({}, [], False, [])
        elif happened or in_doubt or elsewhere:
            begins = begins_at(train_step)
            first, last = found, found

            def once_more() -> Encoder:
                nonlocal last
                last = _traced(asked, anew=anew.how)
                return last.encoder

            def again_behind(found: _Found) -> Again:
                return Again(found.encoder, effects.before, walked, once_more, begins, in_doubt)

            again = again_behind(found)
            try:
                settled = again.require_the_same()
            except StepError as error:
                # It may be one step all the same, where all is left anew that it chooses and computes by.
                if not (looks_first and plain and anew.find(plain, reads_clocks=True)):
                    raise
                again = again_behind(anew.found)
                try:
                    settled = again.require_the_same()
                except StepError:
                    raise error from None
            else:
                once = [path for path in plain if again.changing is not None and path not in again.changing]
                for paths in ([*again.anew, *once], again.anew) if once else (again.anew,):
                    if anew.find(paths, again.anew, reads_clocks=again.reads_clocks):
                        break
            found, left = anew.found, anew.left
            _note_what_is_told_at_first(first, last, found)
            settled -= left
            reads_once = again.reads_clocks and not found.kept.reads_clocks
            again.require_left(left, clocks=not reads_once)
            if not elsewhere.keys() <= left:
                raise depends_on([how for path, how in elsewhere.items() if path not in left], [], begins)
            happened = happened.once(again.counted, again.changing, left)
            happened.drawn.extend([A_CLOCK] if reads_once else [])
    warn_of(happened)
    found.kept.compiling.warn()
    traced, encoder, inputs, kept, ways = found.traced, found.encoder, found.inputs, found.kept, found.ways
    kept.require_unread(item.tensor for item in inputs.inputs if item.cls == "constant")
    for item in inputs.inputs:
        if item.cls == "constant":
            item.paths = tuple(kept.paths_to(item.tensor))
    encoder.rules = proved_rules([call_of(node, inputs.target.elsewhere) for node in encoder.custom])
    return Capture(
        encoder.bytes(),
        inputs,
        traced.returns,
        traced.leaves,
        traced.return_constants,
        settings,
        kept,
        traced,
        ways,
        settled,
    )


def _require_the_same_of_stand_ins(asked: _Asked) -> None:
    """Refuses a step that does with what stands for its arguments what it does not do with numbers."""
    train_step, model, optimizers, *_ = asked
    found, plainly = [], _Anew([], [], clocks=False, most=-1)
    with _without_collection():
        for one in (asked, asked._replace(varying=frozenset[int]())):
            with SideEffects(Walk(train_step, model, optimizers)).undone():
                found.append(_traced(one, anew=plainly).encoder)
    if not is_the_same(*found):
        raise read_back(None)


def _note_what_is_told_at_first(first: _Found, last: _Found, found: _Found) -> None:
    """Lets the ways of a step tell first what its first trace told, where what was traced behind it tells something else."""
    firsts, lasts = ({way.choices: way.effects for way in one.ways} for one in (first, last))
    for way in found.ways:
        if way.choices in firsts and way.choices in lasts:
            # A step that is traced again for what it leaves anew is traced behind its first trace.
            plainly = [effect.with_leaves(plain) for effect in lasts[way.choices]] if found is first else way.effects
            at_first = told_at_first(firsts[way.choices], plainly)
            if at_first is not None:
                way.effects, way.at_first = plainly, at_first


class _Asked(NamedTuple):
    """What :func:`_traced` is asked; the arguments of :func:`capture` are explained there."""

    train_step: Callable[..., Any]
    model: nn.Module | None
    optimizers: tuple[Optimizer, ...]
    call: Call
    keep_gradients: bool
    live: Sequence[str]
    device: str | None
    accumulates: bool
    varying: frozenset[int]
    looks_first: bool
    counted: Collection[tuple[int, str]]


@dataclass(frozen=True)
class _Anew:
    """What is computed anew behind each step: what is at places and in lists, by paths to them, and whether what clocks say is.

    Tensors are computed with ``scalars``, and with more that is found while it is traced: those of the first places, at ``most`` so many,
    are inputs, and in the place of others are the numbers that are there.
    """

    counts: list[Path]
    lists: list[Path]
    clocks: bool
    scalars: Sequence[Expression] = ()
    most: int | None = None


@dataclass(frozen=True)
class _Found:
    """A step that is traced until all that it keeps is known."""

    traced: Traced
    encoder: Encoder
    inputs: StepInputs
    kept: Kept
    ways: list[Traced]


@dataclass
class _Leaving:
    """Traces a step so that what changes at each call is computed anew behind each step.

    Attributes:
        asked: what :func:`_traced` is asked.
        before: what the step can reach, as it was before its first trace.
        found: the first trace; behind :meth:`find`, the one that was found.
        elsewhere: what changes on other ways through the step than the last that was traced.
        left: paths to what is left anew.
        how: how what was found is traced.
    """

    asked: _Asked
    before: Snapshot
    found: _Found
    elsewhere: Mapping[Path, str]
    left: set[Path] = field(default_factory=set)
    how: _Anew | None = None

    def find(self, changing: Sequence[Path], may_be_lost: Container[Path] = (), *, reads_clocks: bool = False) -> bool:
        """Traces it, with stand-ins at what is changing; whether it is the same program.

        It is not where the step does with them what is known only while its Python code runs. If it is, what is left anew is as it was
        before, and all else as the first trace has left it. Of what ``may_be_lost`` it is known that it changes: a constant there is not
        what it would be.
        """
        paths = [*dict.fromkeys([*changing, *self.elsewhere])]
        were = {place.path: place.was for place in self.before.places}
        lists = [path for path in paths if isinstance(were.get(path), list | deque)]
        counts = [path for path in paths if path not in lists]
        made = [path for path in paths if path not in were]
        if not (paths or reads_clocks) or any(isinstance(were.get(path), dict | set) for path in paths):
            return False
        train_step, model, optimizers, *_ = self.asked
        after, found = SideEffects(Walk(train_step, model, optimizers)), None
        # The same places have the same numbers, and what is an input is one again, so that the traces can be compared.
        known, scalars = self.found.kept.counts, self.found.kept.premises.scalars
        how = _Anew([*known, *(path for path in counts if path not in known)], lists, False, scalars, len(known))
        for clocks in (True, False) if reads_clocks else (False,):
            how = replace(how, clocks=clocks)
            found = self._through(after, how, paths, made)
            if found is not None:
                break
        if found is None or not is_the_same(self.found.encoder, found.encoder):
            return False
        premises = found.kept.premises
        if len(premises.inputs()) < len(premises.scalars):
            how = replace(how, scalars=premises.scalars, most=None)
            found = self._through(after, how, paths, made)
            if found is None:
                return False
        self.before.put_back_at(after.root, {*paths}, made)
        left = [one for way in found.ways for one in way.counts.left]
        constant = {one.path for one in left if all(leaf[0] == "constant" for leaf in one.leaves)}
        self.found, self.how, self.left = found, how, {*paths} - {path for path in constant if path in may_be_lost}
        return True

    def _through(self, after: SideEffects, anew: _Anew, paths: Sequence[Path], made: Sequence[Path]) -> _Found | None:
        """A trace with stand-ins; ``None`` where the user's code makes something of these that it does not make of what they stand for."""
        with after.undone(), contextlib.suppress(Exception):
            self.before.put_back_at(after.root, {*paths}, made)
            return _traced(self.asked, anew=anew)
        return None


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Leaves cycles alone: nearly all that a trace makes lives as long as itself, and would be looked at again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _traced(asked: _Asked, *, anew: _Anew | None = None, changed: dict[Path, str] | None = None) -> _Found:
    """Traces the step until all that it keeps is known; what it counts at places and in lists is left ``anew`` behind each step.

    Takes into ``changed`` what is another one behind any of the ways through the step, by paths to it, in words. Code that asks whether a
    compiler runs it is told no, as in eager PyTorch, and yes where it cannot be captured so. Values that follow from the tensors of the
    call are known where it cannot be captured otherwise.
    """
    given = Given(asked.call.values if asked.looks_first else None)
    compiling, orders, choosing = Compiling(given), Orders(), Choosing()
    first: Exception | None = None
    while True:
        seen = None if changed is None else dict[Path, str]()
        compiling.told_of_none = None
        try:
            found = _traced_as_told(asked, anew, compiling, given, orders, choosing, seen)
        except (Reordered, AskedWithin):
            continue
        except Exception as error:
            by_values = isinstance(error, StepError) and error.code == "U0101"
            if by_values and given.asked:
                given.asked = None  # it does more with what has data than to choose by it
                continue
            if by_values and given.constants:
                given.constants = None  # a buffer that one followed from may be written later in the step
                continue
            # What is said of values that are known is said of those that cannot be.
            first = error if first is None or (given.is_known and not compiling.is_told and by_values) else first
            if by_values and given.may_be_known():
                given.is_known = True
            elif not compiling.retells():
                raise _with_hint(first, asked) from None
            continue
        if changed is not None:
            changed |= seen or {}
        return found


def _with_hint(error: Exception, asked: _Asked) -> Exception:
    """An error; where no rank has all of the batch, it says that its values would be known if one had."""
    if isinstance(error, StepError) and error.code == "U0101" and asked.looks_first and asked.call.values is None:
        error.hint = f'{error.hint}; what follows from the batch alone is known where each rank is given all of it (`batch="global"`)'
    return error


def _traced_as_told(
    asked: _Asked,
    anew: _Anew | None,
    compiling: Compiling,
    given: Given,
    orders: Orders,
    choosing: Choosing,
    changed: dict[Path, str] | None,
) -> _Found:
    train_step, model, optimizers, call, keep_gradients, live, device, accumulates, varying, looks_first, counted = (
        asked
    )
    premises = Premises(looks_first, given=given)
    if anew is not None:
        premises.scalars, premises.most = [*anew.scalars], anew.most
    kept = Kept(train_step, model, optimizers, keep_gradients=keep_gradients, premises=premises, compiling=compiling)
    kept.orders, kept.choosing = orders, choosing
    first = {(at, FIRST) for at, group in enumerate(groups_of(optimizers)) if looks_first and FIRST in group}
    if looks_first:
        owned = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
        first |= {(at, "lr") for at, (optimizer, group) in enumerate(owned) if has_number_for_rate(optimizer, group)}
    kept.counts = settings_at(kept.walk, optimizers, first.union(counted))
    followed = frozenset(id(one) for one in optimizers if looks_first and id(one) in kept.walk.holders)
    if followed:
        kept.counts += counts_in_state(kept.walk, optimizers)
    if anew is not None:
        kept.counts, kept.lists, kept.reads_clocks = [*anew.counts], [*anew.lists], anew.clocks
    start, may_be_there = Snapshot(kept.walk).with_entries(), True
    with _numbers_put_back(start), kept.put_back():
        for _ in range(_MOST_TRACES):
            start.put_numbers_back()
            state = [*kept.replaced, *kept.written]
            there = premises.inputs(), kept.counts
            inputs = collect(train_step, model, optimizers, call, state, live, kept.read(), *there, followed)
            inputs.target, inputs.varying = target_of(device, _placed(inputs)), varying
            tracing = functools.partial(trace, train_step, model, optimizers, inputs, kept=kept)
            there = functools.partial(tracing, gradients_may_be_there=may_be_there)
            traced = _past_guards(kept, start, there)
            kept.mark()
            if traced is None:
                continue
            _note_changed(start, changed)
            ways = _ways(kept, start, there, traced, changed)
            if ways is None:
                continue
            encoder = Encoder(traced, inputs, given_back=kept.arguments)
            if not encoder.reads_stale_gradients and not (accumulates and may_be_there and traced.held):
                if may_be_there and traced.asked is not None and len(ways) == 1:
                    without = functools.partial(tracing, gradients_may_be_there=False)
                    _require_alike_without_gradients(traced, _another_way(kept, start, without))
                return _Found(traced, encoder, inputs, kept, ways)
            parameters = [item.tensor for item in inputs.inputs if item.cls == "parameter"]
            if not kept.note_gradients(parameters):
                raise _stale_gradients()
            may_be_there = False
    raise StepError(
        "what the step keeps in variables, attributes or containers is another at every step",
        code="U0115",
        cause=f"it was traced {_MOST_TRACES} times, and each time it replaced a tensor that it had not replaced before",
        hint="keep tensors that live from step to step as buffers of the model (`register_buffer`)",
    )


@contextlib.contextmanager
def _numbers_put_back(start: Snapshot) -> Iterator[None]:
    """Leaves numbers as they were where traces end with an exception."""
    try:
        yield
    except BaseException:
        start.put_numbers_back()
        raise


def _past_guards(
    kept: Kept, start: Snapshot, trace_again: Callable[[], Traced | None], choices: Choices = ()
) -> Traced | None:
    """What a trace gives that answers questions behind the first ones so that the step goes on; ``None`` if it never does."""
    while kept.guards.goes_on(choices):
        try:
            return trace_again()
        except EndedError as ended:
            _undo(kept, start)
            kept.guards.note(ended)
    return None


def _undo(kept: Kept, start: Snapshot) -> None:
    """Leaves everything as it was before a trace that has ended early."""
    kept.undo()
    start.put_numbers_back()


def _another_way(
    kept: Kept, start: Snapshot, trace_again: Callable[..., Traced | None], choices: Choices = ()
) -> Traced | None:
    """What a trace with some answers gives; ``None`` if it finds more to be kept, or if the step ends there."""
    kept.start_again()
    trace_there = functools.partial(trace_again, answers=tuple(answer for _, answer in choices))
    for _ in range(2):
        start.put_numbers_back()
        way = _past_guards(kept, start, trace_there, choices)
        if not kept.guards.goes_on(choices):
            return None
        kept.mark()
        if way is not None:
            return way
    return None


def _require_alike_without_gradients(traced: Traced, other: Traced | None) -> None:
    """Refuses a step that asks whether there are gradients, and does more for the answer than to set them to zero; ``other`` has none."""
    if other is None or _operations(traced) != _operations(other):
        raise StepError(
            "the step asks whether there are gradients when it begins, and is another one where there are none",
            code="U0109",
            place=traced.asked,
            cause="one graph is captured, for steps that find gradients and for the first, which finds none",
            hint="call `optimizer.zero_grad()` at the beginning of the step, and ask for gradients behind `backward`",
        )


def _operations(traced: Traced) -> Counter[str]:
    """The operations of a step with the numbers that they are given; no views, and none that may only add to gradients or zero them."""
    nodes = (node for node in traced.graph.graph.nodes if node.op == "call_function")
    counted = (node for node in nodes if str(node.target) not in _OF_GRADIENTS and not _is_view(node.target))
    return Counter(f"{node.target} {[one for one in node.args if isinstance(one, int | float)]}" for node in counted)


def _is_view(target: Any) -> bool:
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


_OF_GRADIENTS = frozenset(
    f"aten.{name}"
    for name in (
        "zeros_like.default", "zero.default", "zero_.default", "zeros.default", "add.Tensor", "add_.Tensor",
        "detach.default", "detach_.default", "clone.default", "fill.Scalar", "copy.default",
        "copy_.default", "empty_like.default",
    )
)  # fmt: skip


def _placed(inputs: StepInputs) -> Iterator[torch.Tensor]:
    """The tensors of a step that say which device it is on."""
    return (item.tensor for item in inputs.inputs if item.cls in ("parameter", "buffer", "batch"))


def _note_changed(start: Snapshot, changed: dict[Path, str] | None) -> None:
    """Notes which numbers and lists are others than they were."""
    if changed is not None:
        found = ((place, now) for place, now in start.changed() if not isinstance(place.was, dict | set))
        changed |= {place.path: place.change(now) for place, now in found}


def _ways(
    kept: Kept,
    start: Snapshot,
    trace_again: Callable[..., Traced | None],
    traced: Traced,
    changed: dict[Path, str] | None,
) -> list[Traced] | None:
    """All ways through a step that chooses by values, merged into the graph of the first; ``None`` if more was found to be kept.

    Takes into ``changed`` what they change.
    """
    ways, todo, forks = [traced], deque(_turns(traced, 0)), set[Choices]()
    while todo:
        choices = todo.popleft()
        way = _another_way(kept, start, trace_again, choices)
        if not kept.guards.goes_on(choices):
            continue
        if way is None:
            return None
        _note_changed(start, changed)
        forks.add(choices[:-1])
        if sum(choices[:number] in forks for number in range(len(choices))) > MOST_QUESTIONS:
            raise too_many_choices(way.places[len(choices) - 1])
        todo += _turns(way, len(choices))
        ways.append(way)
    for way in ways:
        way.endings = kept.guards.among(_choices_of(way))
    if len(ways) > 1:
        _require_alike(ways)
        plain = [Way(w.graph, w.tensors, w.reads, w.places, w.replaced, w.choices) for w in ways]
        traced.graph, traced.replaced = merged(plain)
        traced.untouched = set().union(*(way.untouched for way in ways))
    return ways


def _choices_of(way: Traced) -> Choices:
    return tuple(zip(way.places, way.choices, strict=True))


def _turns(way: Traced, first: int) -> list[Choices]:
    """What leads where one of another way's questions, from a number on, is answered otherwise."""
    found = _choices_of(way)
    return [(*found[:number], (place, not answer)) for number, (place, answer) in enumerate(found) if number >= first]


def _require_alike(ways: list[Traced]) -> None:
    """Refuses ways that return results of other kinds."""
    for way in ways[1:]:
        same = way.returns == ways[0].returns and way.tensors == ways[0].tensors
        if not same or {*way.numbers, *way.return_constants} != {*ways[0].numbers, *ways[0].return_constants}:
            raise read_back(ways[0].places[0])


def _find_call(
    error: UnisonoError,
    optimizer: Optimizer,
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    call: Call,
) -> None:
    """Gives an error of one of the optimizers the place where the step calls it, if it does."""

    def called(*_arguments: Any, **_settings: Any) -> None:
        error.place = user_line()
        raise error

    # Gradients are not asked for: they may be what cannot be traced.
    quick = mock.patch.object(optimizer, "step", called), mock.patch("torch.Tensor.backward")
    with quick[0], quick[1], contextlib.suppress(Exception):
        inputs = collect(train_step, model, optimizers, call)
        trace(train_step, model, optimizers, inputs, gradients_may_be_there=True)
    error.place = error.place or begins_at(train_step)


def _stale_gradients() -> StepError:
    """The error for a step that adds to the gradients of parameters that neither the model nor the step holds."""
    return StepError(
        "the step adds to gradients that an earlier step left",
        code="U0109",
        cause="the parameters are the optimizer's alone, so that their gradients cannot be state of the captured step",
        hint="call `optimizer.zero_grad()` at the beginning of the step, or let the model have the parameters",
    )
