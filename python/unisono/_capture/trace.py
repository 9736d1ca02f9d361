"""Tracing a step into a functional FX graph of ATen operations.

The step runs once on tensors without data, with the real autograd engine and the real optimizer, and each operation is recorded
(:mod:`record`). What it records is then written without in-place operations, each input that changes ending in a ``copy_``
(:mod:`functional`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.fx
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import expect_true
from torch.nn.utils import stateless
from torch.optim import Optimizer

from unisono import _users_errors
from unisono._capture import (
    assignment,
    drawn,
    formats,
    helpers,
    hooks,
    iterators,
    kernels,
    outward,
    packed,
    scaling,
    sources,
    telling,
)
from unisono._capture.addresses import Addresses
from unisono._capture.averages import Averages
from unisono._capture.beginnings import first_steps
from unisono._capture.counting import Counts, require_known_keys
from unisono._capture.expressions import Expression
from unisono._capture.followed import note_returned
from unisono._capture.forks import Questions
from unisono._capture.functional import Unknown, functionalised
from unisono._capture.generators import Generators
from unisono._capture.guards import EndedError, Ending, is_the_steps_own
from unisono._capture.inputs import StepInput, StepInputs, is_decay
from unisono._capture.kept import Kept, Writes
from unisono._capture.looked_up import LookedUp
from unisono._capture.masks import Masks
from unisono._capture.number import Number, is_of_numbers
from unisono._capture.optimizer import (
    group_name,
    is_number,
    is_one_kernel,
    rate_changed,
    refusing_others,
    state_of,
    traceable,
)
from unisono._capture.orders import Orders
from unisono._capture.paths import Missing, counted_settings, follow, is_rate, own_attributes, put, shown
from unisono._capture.places import OriginTracker, place_in, read_back, user_line
from unisono._capture.products import GroupedProducts
from unisono._capture.randomness import Draws
from unisono._capture.rates import Rates
from unisono._capture.readbacks import Readbacks, is_a_copy
from unisono._capture.record import Recorder, Watch
from unisono._capture.results import result
from unisono._capture.rewrites import LiveScalars, Rewrites
from unisono._capture.schedules import Schedules
from unisono._capture.selection import Selection, Selections
from unisono._capture.settings import Comparisons, groups_of, is_pytorchs, settings_of_pytorchs
from unisono._capture.sized import Sized
from unisono._capture.sparse import DenseGradients
from unisono._capture.swapped import in_their_place
from unisono._capture.target import Target
from unisono._capture.traced import Traced
from unisono._capture.twins import Twins, conversions_known, keys_of_dictionaries
from unisono._capture.types import type_of
from unisono._capture.written import note_arguments, require_that_it_stays, written_by
from unisono._tree import flatten, unflatten
from unisono.errors import StepError, UnisonoError, UnsupportedError


def trace(
    train_step: Callable[..., Any],
    model: nn.Module | None,
    optimizers: tuple[Optimizer, ...],
    inputs: StepInputs,
    *,
    kept: Kept | None = None,
    gradients_may_be_there: bool,
    answers: tuple[bool, ...] = (),
) -> Traced | None:
    """Traces one step, or finds more that the step keeps, and notes that.

    The user's model and optimizer are as before when it returns or raises.
    """
    kernels.register()
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = _fakes(fake_mode, inputs)
    kept = kept or Kept(train_step, model, optimizers)
    kernels.load_forward_derivatives(kept.functions())
    run = _Run(train_step, model, optimizers, inputs, kept)
    run.questions = Questions(answers, kept.guards)
    if gradients_may_be_there:
        run.stale = [
            position
            for position, (fake, item) in enumerate(zip(fakes, inputs.inputs, strict=True))
            if fake.requires_grad or (item.cls == "parameter" and item.tensor.grad is not None)
        ]
        with fake_mode:
            fakes += [result(fake_mode, torch.ops.aten.empty_like.default, (fakes[p],), {}) for p in run.stale]
    # oneDNN's recurrent layers keep what backward needs only where gradients are recorded, which they are not when the graph runs; cuDNN's
    # batch norm writes statistics that its schema does not name. Without them both are traced as operations that say what they do.
    # Convolutions choose when the graph runs.
    quiet = mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", new=True)
    with (
        _without_libraries(),
        quiet,
        kept.compiling.told(),
        mock.patch("torch.fx.experimental.symbolic_shapes.expect_true", _expected),  # what `torch._check` asks
        torch.compiler.set_stance("force_eager"),  # what the user compiles is captured as it was written
        kernels.chosen(inputs.target),
        run.explaining_errors(),
    ):
        leaves = {position: leaf for leaf, position in enumerate(inputs.leaves) if position is not None}
        with run.in_place_of_the_users(fakes) as traced_ones:
            buffers = {
                position: run.with_values[position]
                for position, item in enumerate(inputs.inputs)
                if item.cls == "buffer"
            }
            first = run.recorder.record(run, traced_ones, fake_mode, leaves, buffers)
    assert run.traced is not None
    kept.orders.require()
    written = [*run.writes.found.values(), *written_by(first)]
    kept.note_written(written)
    # Outputs are detached, what is read is copied, and there is more of it in the next trace.
    nodes = (node for node in first.graph.nodes if node.op == "call_function")
    operations = [str(node.target) for node in nodes if not is_a_copy(node.target)]
    operations += [effect.function.__qualname__ for effect in run.reads.effects]
    if not kept.is_settled(operations, run.found_more or bool(written)):
        if written or run.reads.counting.wants_more():
            kept.start_again()  # it ran on copies, or with numbers
        return None
    run.traced.graph = _functionalise(first, fakes)
    if kept.premises.are_looked_at and note_arguments(run.traced.graph, inputs, kept.arguments):
        kept.start_again()
        return None
    require_that_it_stays(run.recorder, [inputs.inputs[position].tensor for position in run.traced.replaced])
    run.traced.known = kept.known(run.recorder.asked.values())
    return run.traced


def _expected(condition: Any, skip: int = 0) -> bool:
    """What a check of PyTorch's own goes on with; whether a number that stands for a value is true, is a question as in ``assert``."""
    return bool(condition) if type(condition) is Number else expect_true(condition, skip + 1)


@contextlib.contextmanager
def _without_libraries() -> Iterator[None]:
    # Not `torch.backends.mkldnn.flags`, which sets other flags too and warns of them.
    before = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before[0])
        torch._C._set_cudnn_enabled(before[1])


def _fakes(mode: FakeTensorMode, inputs: StepInputs) -> list[torch.Tensor]:
    """A tensor without data for each input, a further one where two are one tensor: in the next call they may be two."""
    found: dict[int, torch.Tensor] = {}
    for item in inputs.inputs:
        fake = _fake(mode, item, inputs.target)
        fake = fake.clone() if id(fake) in found else fake
        found[id(fake)] = fake
    return list(found.values())


def _fake(mode: FakeTensorMode, item: StepInput, target: Target) -> torch.Tensor:
    with torch.no_grad():
        fake = target.stand_in(mode, item.tensor)
    wants_gradient = item.cls == "parameter" and item.tensor.requires_grad
    return fake.detach().requires_grad_(wants_gradient) if fake.requires_grad != wants_gradient else fake


def _functionalise(first: torch.fx.GraphModule, fakes: list[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph without in-place operations; by PyTorch's functionalisation, which runs all of it again, where it must be."""
    with contextlib.suppress(Unknown):
        return functionalised(first)

    def again(*arguments: torch.Tensor) -> Any:
        return torch.fx.Interpreter(first).run(*arguments)

    functional = torch.func.functionalize(again, remove="mutations")
    with torch.no_grad(), torch._C._DisableAutocast(), fx_traceback.preserve_node_meta():
        plain = [fake.detach() for fake in fakes]
        graph = make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*plain)
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = type_of(node.meta["val"])
    return graph


class _Run:
    """The function that is traced: the step on twins, returning its result and the state that it replaced."""

    def __init__(
        self,
        train_step: Callable[..., Any],
        model: nn.Module | None,
        optimizers: tuple[Optimizer, ...],
        inputs: StepInputs,
        kept: Kept,
    ) -> None:
        self.train_step, self.model, self.optimizers, self.inputs = train_step, model, optimizers, inputs
        self.kept, self.found_more, self.writes = kept, False, Writes()
        self.sized = Sized(kept.premises)
        self.origins, self.recorder = OriginTracker(model, self.sized.result), Recorder(inputs.target, user_line)
        modules = dict(model.named_modules()) if model is not None else {}
        self._registered = {
            item.name: modules[item.name.removeprefix("params.").rpartition(".")[0]]
            for item in inputs.inputs
            if item.cls == "parameter" and item.name.removeprefix("params.").rpartition(".")[0] in modules
        }
        self.stale: list[int] = []
        self.questions = Questions()
        self.traced: Traced | None = None
        #: What has the values of each input.
        self.with_values = [item.tensor for item in inputs.inputs]

    @contextlib.contextmanager
    def in_place_of_the_users(self, fakes: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """What is traced with, those of ``fakes`` that stand for parameters and buffers being the user's own objects within."""
        items, number = self.inputs.inputs, len(self.inputs.inputs)
        theirs = [
            at for at, one in enumerate(items) if one.cls in ("parameter", "buffer") and not self._is_replaced(one)
        ]
        tensors = [item.tensor for item in items]
        with in_their_place(tensors, fakes[:number], theirs) as (traced, self.with_values):
            yield [*traced, *fakes[number:]]
        # Who has asked for a value has asked the user's tensor.
        of = {id(own): tensor for own, tensor in zip(self.with_values, tensors, strict=True)}
        asked = [(of.get(key, one), place) for key, (one, place) in self.recorder.asked.items()]
        self.recorder.asked = {id(one): (one, place) for one, place in asked}
        self.recorder.buffers = {node: of.get(id(one), one) for node, one in self.recorder.buffers.items()}
        self.with_values = tensors

    def __call__(self, *arguments: torch.Tensor) -> list[torch.Tensor]:
        fakes, stale = arguments[: len(self.inputs.inputs)], arguments[len(self.inputs.inputs) :]
        items = list(zip(self.inputs.inputs, fakes, strict=True))
        twins = {
            id(item.tensor): fake
            for item, fake in items
            if item.cls in ("parameter", "buffer")
            if not self._is_replaced(item)
        }
        attributes = [
            {} if item.cls == "batch" else dict(own_attributes(own))
            for (item, _), own in zip(items, self.with_values, strict=True)
        ]
        for fake, given in zip(fakes, attributes, strict=False):
            vars(fake).update(given)
        self._stale_gradients = stale
        for fake in (fake for fake in fakes if fake.is_leaf):
            fake.grad = None  # that of the user's tensor, which is none of the trace's
        for position, gradient in zip(self.stale, stale, strict=True):
            fakes[position].grad = gradient
        accumulated: set[int] = set()
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                keys_of_dictionaries(twins, [item.tensor for item, _ in items if id(item.tensor) in twins])
            )
            for position in self.stale:
                if fakes[position].requires_grad:
                    note = fakes[position].register_post_accumulate_grad_hook(lambda _, p=position: accumulated.add(p))
                    stack.callback(note.remove)
            if self.model is not None:
                named = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
                swapped = {name: twins[id(tensor)] for name, tensor in named.items()}
                stack.enter_context(stateless._reparametrize_module(self.model, swapped, tie_weights=True))
            live = {item.owner: fake for item, fake in items if item.cls == "hyper" and item.owner}
            counted = counted_settings(self.kept.root, self.optimizers, self.kept.counts)
            of_the_step = {*live, *settings_of_pytorchs(self.optimizers, counted)}
            state = self._optimizer_state(items, of_the_step)
            groups = groups_of(self.optimizers)
            numbers_of = ((fake, groups[at].get(key)) for (at, key), fake in live.items())
            self._settings = {id(fake) for fake, value in numbers_of if not isinstance(value, torch.Tensor)}
            self.comparisons = Comparisons(live, groups_of(self.optimizers))
            followed = self.kept.walk.holders
            by_number = self.kept.premises.are_looked_at
            twins_of = traceable(
                self.optimizers,
                twins,
                state,
                live,
                self.inputs.target,
                followed,
                of_the_step=of_the_step,
                rates_by_number=by_number,
            )
            stack.enter_context(twins_of)
            stack.enter_context(first_steps(self.optimizers))
            stack.enter_context(scaling.traceable(self.optimizers))
            stack.enter_context(refusing_others(self.optimizers, twins.values()))
            for item, fake in items:
                if self._is_replaced(item):
                    put(self.kept.root, item.paths[0], fake)
            result = self._call(fakes, twins)
            self.reads.settle_clocks(self.recorder.graph)
            rates = self._rates_left()
            self._keep_attributes(items, attributes)
            replaced = self._replaced(items, twins, state)
            self.found_more = self.kept.look(
                {id(fake): item.tensor for item, fake in items if not self._is_replaced(item)},
                {id(fake) for item, fake in items if item.cls == "batch"},
            )
            self.found_more = self.reads.counting.wants_more() or bool(self.generators.new()) or self.found_more
            self.kept.generators += self.generators.new()
            left = [] if self.found_more else self.kept.left_tensors()
            had = {id(follow(self.kept.root, path[:-1])) for path in self.kept.replaced if path[-1] == ("attr", "grad")}
            self.kept.gradients = [
                item.name
                for item, fake in items
                if self.kept.keep_gradients and fake.grad is not None and id(fake) not in had
            ]
            left += [fake.grad for item, fake in items if item.name in self.kept.gradients]
            left += self.generators.after()
            given_back = [self.inputs.leaves[leaf] for leaf in self.kept.arguments]
            left += [fakes[position] for position in given_back if position is not None]
            self._require_same_shapes(items)
        leaves, structure = flatten(result)
        require_known_keys(structure, None)
        for leaf in leaves:
            if isinstance(leaf, Selection):
                raise leaf.refused("returning")
            note_returned(leaf)
        leaves = [self.reads.number_of(leaf) for leaf in leaves]
        numbers = {
            i: self.reads.expression_of(leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)
        }
        counts = Counts()
        if not self.found_more:
            counts = self.kept.counted(self.reads)
            if self.schedules.calls and (path := next((one.path for one in counts.left if is_rate(one.path)), None)):
                raise rate_changed(f"`{shown(path)}`, and calls a scheduler")
            left_anew = [*counts.expressions(), *(expression for _, expression in rates)]
            self.kept.read_too_early([*numbers.values(), *self.reads.shown(), *left_anew])
            self.reads.require_all_used()
            self.reads.looked_up.require_put_back()
        held = [p for p, gradient in zip(self.stale, stale, strict=True) if fakes[p].grad is gradient]
        self.traced = Traced(
            graph=torch.fx.GraphModule({}, torch.fx.Graph()),
            returns=structure,
            leaves=len(leaves),
            return_constants={i: leaves[i] for i, expression in numbers.items() if expression is None},
            numbers={i: expression for i, expression in numbers.items() if expression is not None},
            reads=len(self.reads.tensors),
            effects=self.reads.effects,
            answers=self.comparisons.answers,
            schedules=self.schedules.calls,
            rates=rates,
            counted=self.averages.counted,
            places=[place for _, place in self.questions.asked],
            choices=tuple(self.questions.given),
            replaced=list(replaced),
            stale_gradients=len(stale),
            untouched={n for n, p in enumerate(self.stale) if p in held and p not in accumulated},
            held=held,
            left=len(left),
            asked=self.own.asked,
            counts=counts,
            clocks=sorted({expression[1] for expression, _ in self.reads.clocks}),
        )
        for fake in fakes:
            fake.grad = None
        own = [leaf.detach() for leaf in [*leaves, *left] if isinstance(leaf, torch.Tensor)]
        self.traced.tensors = len(own)
        returned = [*own, *self.reads.tensors, *(value for value, _ in self.questions.asked)]
        return returned + [
            tensor.detach().to(self.inputs.inputs[position].tensor.dtype) for position, tensor in replaced.items()
        ]

    def _call(self, fakes: tuple[torch.Tensor, ...], twins: dict[int, torch.Tensor]) -> Any:
        call = self.inputs.call
        assert call is not None
        items = list(zip(self.inputs.inputs, fakes, strict=True))
        scalars = {repr(item.expression): fake for item, fake in items if item.expression is not None}
        counting = self.kept.counting(self._settings, call.leaves, scalars)
        self.reads = Readbacks(self.questions, counting, self._settings, twins, self.kept.choosing)
        leaves = [
            fakes[position] if position is not None else self._number_or_constant(number, self.inputs.constants[path])
            for number, (position, path) in enumerate(zip(self.inputs.leaves, self.inputs.paths, strict=True))
        ]
        arguments, named = unflatten(call.structure, iter(leaves), call.arguments)
        self.schedules = Schedules(self.kept.walk, self.optimizers, self.reads)
        read = [(item.paths, fake) for item, fake in items if item.cls == "hyper" and item.paths]
        self.rates = Rates(self.optimizers, self.reads)
        self.generators = Generators(self.kept.walk, {p[0]: fake for p, fake in read if not is_decay(p)})
        self.averages = Averages(self.kept.walk, {p[0]: fake for p, fake in read if is_decay(p)})
        draws = Draws(self.generators, self.kept.orders)
        dense = DenseGradients(self.optimizers, self.kept.told)
        live = LiveScalars(self.comparisons)
        addresses = Addresses(zip(fakes, self.with_values, strict=True))
        self.own = Twins(twins, self.kept.marks, {id(gradient) for gradient in self._stale_gradients}, addresses)
        modes = functools.partial(_modes, Selections(self.sized), GroupedProducts(), Masks(), dense, live, self.own)
        parameters = [
            (item.name, own, fake, item.tensor)
            for (item, fake), own in zip(items, self.with_values, strict=True)
            if item.cls == "parameter" and fake.requires_grad
        ]
        with (
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),
            self.origins.tracking(),
            hooks.on_twins(parameters, modes),
            conversions_known(twins),
            outward.refused(self.kept.functions(), self.reads.note),
            formats.asking(self.kept.functions()),
            telling.noted(self.reads.note, self.kept.functions(), self.kept.walk),
            modes(),
            draws.drawing(),
            self.generators.standing_in(),
            self.averages.noting(),
            self.recorder.watched(_Watch(self.origins, draws, self.writes, self.reads.looked_up, self.kept.orders)),
            self.schedules.noting(),
            self.rates.standing_in(),
            drawn.standing_in(self.kept.functions(), self.model, self.generators, self.kept.premises.given, self.reads),
            self.reads.around(self.kept.functions()),
            iterators.refused(self.kept.functions(), self.kept.walk.holders),
            _modes(
                assignment.standing_in(),
                packed.standing_in(self.kept.functions(), self.reads),
                helpers.standing_in(self.optimizers, self.reads, self.kept.choosing),
            ),
            self._clocks(),
        ):
            self.kept.count(self.reads)
            result = self._step(arguments, named)
            self.rates.settle()
            return result

    def _number_or_constant(self, number: int, value: Any) -> Any:
        """What stands for a leaf of the arguments that is no tensor, by its number."""
        return Number(self.reads, ["argument", number], type(value)) if number in self.inputs.varying else value

    def _clocks(self) -> contextlib.AbstractContextManager[None]:
        if not self.kept.reads_clocks:
            return contextlib.nullcontext()
        return sources.read_anew(self.reads, self.kept.functions(), self.recorder.graph)

    def _step(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the step returns; one that ends behind a question says how."""
        try:
            return self.train_step(*arguments, **named)
        except (Exception, SystemExit) as error:
            self.reads.counting.require_unused()
            if self.questions.asked and not isinstance(error, UnisonoError) and is_the_steps_own(error):
                told = _users_errors.UsersError.of(error), *self.reads.at_the_end(error), self.reads.effects
                ending = Ending(*told, self.kept.counted(self.reads))
                raise EndedError(self.questions.choices(), ending) from None
            stands = bool(self.reads.tensors or self.kept.counts or self.inputs.varying)
            if isinstance(error, TypeError) and stands and is_of_numbers(error):
                raise read_back(place_in(error)) from None  # what takes Python's own numbers only
            raise

    def _optimizer_state(
        self, items: list[tuple[StepInput, torch.Tensor]], of_the_step: set[tuple[int, str]]
    ) -> dict[int, dict[str, Any]]:
        """The state of the optimizers with traced tensors, by the ``id`` of the parameter.

        Numbers of groups of PyTorch's optimizers without a fused kernel (step counts) are traced in double precision, because these compute
        with them as Python numbers when they are not traced.
        """
        states = [pair for o in self.optimizers for pair in o.state.items() if isinstance(pair[1], dict)]
        state = {id(parameter): dict(values) for parameter, values in states}
        target = self.inputs.target
        groups = enumerate((one, group) for one in self.optimizers for group in one.param_groups)
        widened = {
            id(p)
            for number, (one, group) in groups
            if is_pytorchs(one) and not is_one_kernel(group, number, of_the_step, target)
            for p in group["params"]
        }
        for item, fake in items:
            if item.cls == "optimizer" and item.owner is not None:
                parameter, key = item.owner
                number = id(parameter) in widened and is_number(parameter, key, fake)
                state[id(parameter)][key] = fake.to(torch.float64) if number else fake
        return state

    def _replaced(
        self,
        items: list[tuple[StepInput, torch.Tensor]],
        twins: dict[int, torch.Tensor],
        state: dict[int, dict[str, Any]],
    ) -> dict[int, torch.Tensor]:
        """What the step put in the place of state, instead of changing it in place, by the input's position."""
        replaced: dict[int, torch.Tensor] = {}
        self.kept.dropped = []
        for position, (item, fake) in enumerate(items):
            now: Any = fake
            if self._is_replaced(item):
                now = follow(self.kept.root, item.paths[0])
            elif item.cls == "buffer" and not item.paths and self.model is not None:
                now = self.model.get_buffer(item.name.removeprefix("buffers."))
            elif item.cls == "parameter" and item.name in self._registered:
                now = self._registered[item.name]._parameters.get(item.name.rpartition(".")[2])
            elif item.cls == "optimizer" and item.owner is not None:
                now = state_of(self.optimizers, twins[id(item.owner[0])]).get(item.owner[1])
            if now is fake:
                continue
            if item.cls == "optimizer" and not fake.dim() and (item.number or not isinstance(now, torch.Tensor)):
                now = self._as_tensor(now, fake)
            is_gradient = bool(item.paths) and item.paths[0][-1] == ("attr", "grad")
            if now is None and is_gradient:
                self.kept.dropped.append(item.paths[0])
                continue
            if not _is_new_value(now, item, fake):
                what = shown(item.paths[0]) if item.paths else item.name
                raise StepError(
                    f"the step replaces `{what}` by something of another kind or shape",
                    code="U0102",
                    cause="state must keep its type and shape from step to step",
                    hint="let it be there from the beginning as the step leaves it, or write into it (`t.copy_(..)`)",
                )
            replaced[position] = now  # pyright: ignore[reportArgumentType]
        return replaced

    def _as_tensor(self, now: Any, before: torch.Tensor) -> Any:
        """What a step puts in the place of a number of an optimizer's state, as the tensor that it is in the graph, if it can be."""
        if type(now) is Number:
            now = self.reads.scalar(now.expression)
            if now is None and self.reads.counting.wants_more():
                return before.clone()  # it is an input of the next trace
        elif isinstance(now, int | float) and now.__class__ is not bool:
            now = before.new_full((), now)
        return now.to(before.dtype) if isinstance(now, torch.Tensor) and not now.dim() else now

    def _is_replaced(self, item: StepInput) -> bool:
        return bool(item.paths) and item.paths[0] in self.kept.replaced

    def _keep_attributes(self, items: list[tuple[StepInput, torch.Tensor]], given: list[dict[str, Any]]) -> None:
        """Gives tensors of the user's what the step has put onto their twins, and refuses a step that freezes or thaws them."""
        for (item, fake), own, before in zip(items, self.with_values, given, strict=True):
            for name, value in own_attributes(fake).items() if item.cls != "batch" else ():
                if value is not before.get(name, Missing) and not isinstance(value, torch.Tensor):
                    setattr(own, name, value)
            if item.cls == "parameter" and fake.requires_grad != own.requires_grad:
                raise StepError(
                    f"the step leaves `{item.name}` {'to be trained' if fake.requires_grad else 'frozen'}, and it was not before",
                    code="U0103",
                    cause="the step's Python code runs once, when it is captured: the next step would find it as it was",
                    hint="call `requires_grad_` between steps: the step is captured once for each",
                )

    def _require_same_shapes(self, items: list[tuple[StepInput, torch.Tensor]]) -> None:
        """Refuses a step that gives an argument another shape in place."""
        for item, fake in items:
            if item.cls == "batch" and fake.shape != item.tensor.shape:
                raise StepError(
                    f"the step gives its argument `{item.name}` another shape in place",
                    code="U0107",
                    cause="it would have that shape for the caller, too, and at the next call",
                    hint="assign the result: `x = x.unsqueeze(0)`",
                )

    def _rates_left(self) -> list[tuple[int, Expression]]:
        """The learning rates that the step leaves; refuses a step that also calls a scheduler."""
        left = self.rates.left()
        if left and self.schedules.calls:
            raise rate_changed(f"of {group_name(self.optimizers, left[0][0])}, and calls a scheduler")
        return left

    @contextlib.contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Turns what PyTorch raises during the trace into errors that name the user's line."""
        try:
            yield
        except UnisonoError:
            raise
        except NotImplementedError as error:
            raise UnsupportedError(
                f"an operation of the step cannot be traced: {_first_line(error)}",
                code="U0104",
                place=place_in(error),
                hint="register a fake implementation for a custom operation with `torch.library.register_fake`",
            ) from error


class _Watch(Watch):
    """Lets operations of the step run with their origins, and under the modes that want them."""

    def __init__(
        self, origins: OriginTracker, draws: Draws, writes: Writes, looked_up: LookedUp, orders: Orders
    ) -> None:
        self._draws, self._writes, self._rewrites, self._looked_up = draws, writes, Rewrites(orders), looked_up
        self.run = origins.run

    def wants(self, func: Any, args: Any, kwargs: Any, written: tuple[int, ...]) -> bool:
        self._looked_up.note_written(args, written)
        return Rewrites.wants(func) or Writes.wants(args, written) or self._draws.wants(func, (args, kwargs))

    def instead(self) -> contextlib.AbstractContextManager[None]:
        return _modes(self._rewrites, self._draws, self._writes)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def _modes(*modes: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield


def _is_new_value(now: Any, item: StepInput, before: torch.Tensor) -> bool:
    """Whether what stands in the place of state can be its new value."""
    if not isinstance(now, torch.Tensor) or now.shape != before.shape or item.cls == "parameter":
        return False
    return not item.paths or now.dtype == before.dtype
