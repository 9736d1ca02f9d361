"""One captured step of a session: planned, partitioned and run on every rank."""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unisono import _agreement, _choice, _devices, _graphs, _native, _patterns, _profile
from unisono._arguments import cluster_text
from unisono._between import Between
from unisono._call import Call, Caller
from unisono._capture import Capture, averages, rates, scaling, schedules
from unisono._capture.effects import perform
from unisono._capture.expressions import Read, evaluate, evaluated
from unisono._capture.generators import generator_at
from unisono._capture.guards import Ending
from unisono._capture.inputs import StepInput, StepInputs, collect, constant, is_decay, read_at, scalar_of
from unisono._capture.optimizer import create_state
from unisono._capture.outside import Outside, classes_at
from unisono._capture.paths import Walk, counted_settings, follow, paths_of, place_at, shown, tuples_of_tensors
from unisono._capture.premises import Looked, before
from unisono._capture.settings import Answer, groups_of, tensor_of
from unisono._captures import found_or_captured
from unisono._counter import KEY, key_input
from unisono._deferred.models import intended_device
from unisono._executor import Executor, draws_numbers, has_kernels, lower_graph
from unisono._graphs import Replayed
from unisono._holders import Holders
from unisono._issue_order import same_order
from unisono._memory_errors import without_memory
from unisono._placements import STAGES, Layout, coordinates, own_local, to_local
from unisono._planning import Planning
from unisono._told import Way
from unisono._tree import from_plain, unflatten
from unisono._unchanged import Unchanged, other_call, other_choice
from unisono._users_errors import UsersError
from unisono.errors import HardwareError, InternalError, StepError, UnisonoError
from unisono.plans import Plan
from unisono.session import STATE, Seconds, Session


class CapturedStep:
    """One captured, planned step of a session, for calls of one kind."""

    def __init__(
        self,
        session: Session,
        train_step: Callable[..., Any],
        call: Call,
        plan: Plan | str | Path | None,
        *,
        accumulates: bool = False,
        micro_batches: Sequence[int | None] = (None,),
        varying: Collection[str] = (),
    ) -> None:
        """Captures and plans on rank 0, and prepares this rank's program.

        With `accumulates` gradients that are there are state if the step goes on with them. The first number of ``micro_batches`` that the
        step can be sliced into is taken. Arguments, or leaves of these, that are ``varying`` are numbers which may be others at each call.
        """
        session.made += 1
        #: The same on every rank.
        self.number = session.made
        self._session, self.ranks, self._mesh = session, session.ranks, session.mesh
        self._model, self._optimizers, self._call = session.model, session.optimizers, call
        self._live, outside = session.live, Outside(train_step, self._model)
        start = time.perf_counter()
        everyone = call.together(self.ranks.count) if session.batch == "local" else call
        self._inputs, message = self._capture(train_step, everyone.on(session.home), outside, accumulates, varying)
        captured = time.perf_counter()
        self.device = _device_of(self._inputs)
        #: Whether the program is made for kernels and predicted with them. What that rewrites rounds otherwise than eager code does.
        self._is_fused = bool(session.fuse) and not session.match_eager and has_kernels(self.device)
        given = session.cluster
        if given is None:
            self.cluster = _profile.description(self.ranks, self.device)
        else:
            self.cluster = _profile.given(cluster_text(given), self.ranks, self.device)
        graph = self._drawing(_native.Graph(message))
        if given is None and plan is None:
            mesh = {} if session.searches_mesh else self._mesh
            self.cluster = _profile.completed(self.cluster, graph, mesh, self.ranks, self.device)
        described = time.perf_counter()
        self._narrow = list(_devices.narrow_types()) if self._is_fused and self.device == _devices.HOST else []
        settings = self._is_fused, self._narrow, micro_batches
        planning = Planning(session, self._inputs.inputs, self.cluster, *settings)
        self.plan = planning.plan(graph, plan)
        self._prepare(graph)
        self.seconds = Seconds(captured - start, described - captured, time.perf_counter() - described)

    # What rank 0 decides and tells.

    def _capture(
        self, train_step: Callable[..., Any], call: Call, outside: Outside, accumulates: bool, varying: Collection[str]
    ) -> tuple[StepInputs, bytes]:
        """The inputs of the step, with this rank's tensors, and its graph."""
        captured: Capture | None = None
        message: Any = None
        if self.ranks.rank == 0:
            try:
                self._create_deferred_states()
                message, captured = found_or_captured(
                    self._session.captures,
                    train_step,
                    model=self._model,
                    optimizers=self._optimizers,
                    call=call,
                    outside=outside,
                    keep_gradients=self._session.keep_grads,
                    accumulates=accumulates,
                    live=self._live,
                    counted=tuple(sorted(self._session.counted)),
                    varying=frozenset(
                        n for n, (name, _) in enumerate(Caller(train_step).names(call)) if name in varying
                    ),
                    looks_first=True,
                )
                message["graph"] = _patterns.applied(message["graph"])
            except UnisonoError as error:
                message = error
            except Exception as error:
                message = UsersError.of(error)
        message = self.ranks.tell(message)
        self._root = {"step": train_step, "model": self._model}
        self._left, self._gradients, self._held = paths_of(message["left"]), message["gradients"], message["held"]
        #: The leaves of its arguments that it changes in place.
        self._given_back: list[int] = message["arguments"]
        #: Whether gradients that are there when it begins are its state.
        self.accumulates = message["accumulates"]
        self._replaced, self._dropped = set(paths_of(message["replaced"])), paths_of(message["dropped"])
        inputs = captured.inputs if captured is not None else StepInputs()
        met: UnisonoError | None = None
        if captured is None:
            try:
                self._create_deferred_states()
                inputs = self._collect(train_step, call, message)
            except UnisonoError as error:
                met = error
        self.ranks.raise_together(met)
        classes = {f"{c.__module__}:{c.__qualname__}": c for c in classes_at(train_step, captured and captured.returns)}
        #: The positions of the leaves of its arguments that may be other numbers.
        self.varying = frozenset(message["varying"])
        scalars = [(one.expression, type(one.tensor.item())) for one in inputs.inputs if one.expression is not None]
        premises = [(expression, value) for expression, value in message["premises"]]
        self._counted = paths_of(message["counted"])
        self._session.counted |= counted_settings(self._root, self._optimizers, self._counted)
        self._premises = Looked(premises, scalars, self._counted, inputs.paths, message["given"])
        self._arguments: Sequence[Any] = call.leaves
        self._returns, self._leaves = from_plain(message["returns"], classes), message["leaves"]
        self._ways = [Way.from_plain(way, classes) for way in message["ways"]]
        #: What clocks that the step reads said when it began.
        self._began: dict[str, float] = {}
        for way, traced in zip(self._ways, captured.ways if captured is not None else (), strict=False):
            way.effects, way.at_first, way.endings = traced.effects, traced.at_first, traced.endings
        counts = [(*path, step) for way in self._ways for path in way.counted for step in averages.CHANGES]
        outside.settle(message["settled"])
        anew = [path for way in self._ways for path in way.counts.watched_by_itself(self._root)]
        made = [path for way in self._ways for path in way.counts.made(self._root)]
        tuples = tuples_of_tensors(self._root, self._replaced)
        counts += [path for way in self._ways for call in way.schedules for path in call.unasked()]
        outside.leave_out(
            message["volatile"],
            {place_at(self._root, path) for path in (*self._left, *counts, *anew, *tuples)},
            {place_at(self._root, path) for path in made},
            [follow(self._root, path) for way in self._ways for path in way.counts.lists()],
        )
        asked = [path for way in self._ways for call in way.schedules for path in call.watched()]
        outside.watch_too({shown(path): (vars(follow(self._root, path[:-1])), path[-1][1]) for path in asked})
        new = [item for item in inputs.inputs if item.cls in STATE and item not in self._session.state]
        known = [(shown(path), functools.partial(follow, self._root, path)) for path in paths_of(message["known"])]
        given = [*(item.tensor.detach() for item in new), *(now() for _, now in known)]
        self.ranks.same_everywhere([tensor for tensor in given if not tensor.is_meta])
        self._unchanged = Unchanged(
            self._model,
            self._optimizers,
            live=self._live,
            counted=self._session.counted,
            answers=[Answer(*answer) for answer in message["answers"]],
            accumulated=[item for item in inputs.inputs if item.cls == "parameter" and self.accumulates],
            outside=outside,
            known=known,
            counts=[functools.partial(way.counts.changed, self._root) for way in self._ways if way.counts],
        )
        if self._session.deferred is not None:
            self._session.deferred.agree(self.ranks)
        return inputs, message["graph"]

    def _drawing(self, graph: _native.Graph) -> _native.Graph:
        """The graph with random operations that draw as the session says."""
        key = self._session.key
        by_counter = None if key is None else graph.drawing_by_counter()
        self._draws_by_counter = by_counter is not None
        if key is None or by_counter is None:
            return graph
        self._inputs.add(key_input(key))
        return by_counter

    def _create_deferred_states(self) -> None:
        if self._session.deferred is not None:
            self._session.deferred.create_states()

    def _collect(self, train_step: Callable[..., Any], call: Call, message: dict[str, Any]) -> StepInputs:
        """The inputs of the step on a rank that has not captured it."""
        for optimizer in self._optimizers:
            create_state(optimizer)
        walk = Walk(train_step, self._model, self._optimizers)
        scaling.prepare(walk)
        read = [paths_of(paths) for paths in message["read"]]
        kept = paths_of(message["kept"])
        scalars = message["scalars"], paths_of(message["counted"])
        followed = [id(one) for one in self._optimizers if id(one) in walk.holders]
        inputs = collect(train_step, self._model, self._optimizers, call, kept, self._live, read, *scalars, followed)
        own = _device_of(inputs)
        for name, dtype, shape, kind, paths in message["constants"]:
            device = own if own.type == kind else torch.device(kind)
            inputs.add(constant(self._root, name, getattr(torch, dtype), shape, device, paths_of(paths)))
        _agreement.require_alike(_agreement.described(inputs), self.ranks.rank, message["inputs"])
        return inputs

    # This rank's program.

    def _prepare(self, graph: _native.Graph) -> None:
        optimised, self.passes = graph.program(self.plan.native, self.ranks.rank)
        if not same_order(self.ranks, optimised.issue_order(), self._mesh):
            warnings.warn(
                "the ranks' programs issue their collectives in different orders after the passes; they run without the passes, "
                "which costs time: please report this step",
                RuntimeWarning,
                stacklevel=4,
            )
            local = graph.rank_graph(self.plan.native, self.ranks.rank)
            optimised, self.passes = graph.without_empty_parts(local), []
        if self._is_fused:
            optimised = optimised.for_kernels(cuda=self.device != _devices.HOST)
            optimised = optimised.with_wide_products(self._narrow)
        # All ranks of a pipeline draw what the whole step does.
        self._draws = draws_numbers(optimised if self.plan.stages is None else graph)
        self._require_devices_alike()
        groups = {f"axis:{axis}": name for axis, name in self.ranks.groups(self._mesh, self.device.type).items()}
        groups |= self.ranks.transfers(self._mesh, optimised.routes(), self.device.type)
        #: The process groups of its collectives.
        self.groups = sorted({name for name in groups.values() if name})
        self.rank_graph = optimised
        if self.device != _devices.HOST:
            self.ranks.raise_together(_devices.lacking_type(graph.element_types(), self.device))
        # The predicted peak counts what stays for small results, and with a limit it is not to be more.
        left = None if self._session.memory_limit is None else self._predicted()["buffer_bytes"]
        program, self.not_replayed = self._lowered(optimised, groups, left)
        self.executor = Executor(program)
        #: What runs its steps as a graph of the device, if they can be one.
        self.replayed: Replayed | None = None
        if self.not_replayed is None:
            self.replayed = Replayed(self.executor, self.device, self.state_tensors)
        #: The names of the state that is on the host between steps.
        self._on_host = frozenset(optimised.on_host())
        layouts = self.plan.layouts
        self._placed = [layouts.get(item.name, {}) for item in self._inputs.inputs]
        self._make_deferred()
        self._state = [
            (item, layout, self._shard(item, layout))
            for item, layout in zip(self._inputs.inputs, self._placed, strict=True)
            if item.cls in STATE
        ]
        self.between = Between(self._root, self._state, self._replaced, self._left, self._gradients, self._dropped)
        read = [item for item in self._inputs.inputs if item.cls == "hyper" and item.paths]
        self._generators = [item for item in read if not is_decay(item.paths)]
        self._holders = Holders(self._model, self._optimizers, self._state)
        self._version = self._session.state.version
        self._read_only = [p for p, (item, *_) in enumerate(self._state) if item.cls == "constant"]
        self._bind()

    def _lowered(self, graph: _native.Graph, groups: Mapping[str, str], left: int | None) -> tuple[Any, str | None]:
        """This rank's program, and why it cannot be a graph of the device, if so."""
        #: The groups of operations that are no kernels because they would take longer, by name, and why.
        self.slower: dict[str, str] = {}
        fuse, match_eager = bool(self._session.fuse), self._session.match_eager
        if self._session.fuse == "auto":
            self.slower = _choice.slower(graph, self.device, self.ranks, match_eager=match_eager)
        settings: dict[str, Any] = {"fuse": fuse, "match_eager": match_eager}
        program = lower_graph(graph, groups, self.device, buffer_bytes=left, slower=self.slower, **settings)
        if self._session.graphs == "off":
            return program, 'it was not asked to be: `graphs="auto"`'
        copies = self.plan.prediction.get("offloaded_bytes", 0) > 0
        network = self.ranks.network(self.device.type) if self.ranks.count > 1 else None
        state = {one.name: one.tensor for one in self._inputs.inputs if one.cls in STATE and one.cls != "constant"}
        reason = _graphs.why_not(program, self.device, state, network=network, draws=self._draws, copies=copies)
        if reason is not None:
            return program, reason
        settings["fuse"] = fuse and _graphs.take_kernels(self.device)
        return lower_graph(graph, groups, self.device, live=True, **settings), None

    def simulated_json(self) -> str:
        """The timeline of this rank's step as the simulator expects it, for trace viewers."""
        if self.plan.graph is None:
            raise InternalError("a step runs without the graph of its plan")
        return self.plan.graph.simulated_json(self.plan.native, self.cluster, self.ranks.rank)

    def _predicted(self) -> dict[str, int]:
        """What this rank is predicted to take: what its pipeline stage is, if there are stages."""
        if self.plan.stages is None:
            return self.plan.prediction
        return self.plan.stages["predicted"][coordinates(self._mesh, self.ranks.rank)[STAGES]]

    def _require_devices_alike(self) -> None:
        """Refuses to draw random numbers on devices of several models: each draws others from the same seed."""
        if not self._draws or self.device == _devices.HOST:
            return
        mine = _devices.model_of(self.device)
        if self.ranks.agree(hashlib.blake2b(mine.encode(), digest_size=8).hexdigest()):
            return
        raise HardwareError(
            f"the step draws random numbers on {mine}, and other ranks run on other models",
            code="U0324",
            cause="how many numbers a thread draws depends on the model, so that the same seed gives other masks",
            hint="use ranks with the same devices, or a step without random numbers",
        )

    def _make_deferred(self) -> None:
        """Makes tensors that have no memory yet, one after another, and keeps this rank's shards of them."""
        deferred, self._session.deferred = self._session.deferred, None
        if deferred is None:
            return
        placed = zip(self._inputs.inputs, self._placed, strict=True)
        items = {id(item.tensor): (item, layout) for item, layout in placed if item.cls in STATE}
        state = self._session.state
        state.give_up()

        def keep_shard(tensor: torch.Tensor) -> None:
            item, layout = items.get(id(tensor), (None, {}))
            if item is not None and self._shares(item):
                state.place(item, layout, on_host=item.name in self._on_host)

        deferred.make(keep_shard, [item.tensor for item, _ in items.values() if item.tensor.is_meta])

    def _renewed(self, item: StepInput) -> bool:
        """Whether the step puts another tensor in the place of one that the user has, instead of writing into it."""
        return item.cls == "buffer" and bool(item.paths) and item.paths[0] in self._replaced

    def _shares(self, item: StepInput) -> bool:
        """Whether a tensor is among the session's state."""
        return item.cls != "constant" and not self._renewed(item)

    def _shard(self, item: StepInput, layout: Mapping[str, str]) -> torch.Tensor:
        if self._shares(item):
            return self._session.state.place(item, layout, on_host=item.name in self._on_host)
        if item in self._session.state:
            return self._session.state.shard(item, layout)
        shard = own_local(item.tensor.detach(), layout, self._mesh, self.ranks.rank)
        return shard.clone() if self._renewed(item) else shard

    def _bind(self) -> None:
        self.executor.bind([tensor for _, _, tensor in self._state])

    def shared(self) -> list[StepInput]:
        """The tensors that are the session's state while this step is kept."""
        return [item for item, _, _ in self._state if self._shares(item)]

    def activate(self) -> None:
        """Goes on with the state as the step that has run last has left it; a collective where placements differ."""
        session, last = self._session, self._session.active
        if last is self:
            return
        fresh: dict[int, torch.Tensor] = {} if last is None else self.between.adopt(last.between, session.full)
        if session.state.version != self._version:
            fresh |= self._moved_shards(
                [position for position, (item, *_) in enumerate(self._state) if self._shares(item)]
            )
        # What this step only reads may be what another one writes.
        read = [p for p in self._read_only if self._state[p][0] in session.state]
        session.active = self
        self._rebind(fresh | self._moved_shards(read))

    def _moved_shards(self, positions: Sequence[int]) -> dict[int, torch.Tensor]:
        shards = {position: self._shard(*self._state[position][:2]) for position in positions}
        return {position: shard for position, shard in shards.items() if shard is not self._state[position][2]}

    def _rebind(self, fresh: Mapping[int, torch.Tensor]) -> None:
        for position, shard in fresh.items():
            self._state[position] = (*self._state[position][:2], shard)
        if fresh:
            self._bind()
        self._version = self._session.state.version

    def why_not(self, call: Call) -> StepError | None:
        """Why this step cannot serve a call as everything is now; ``None`` if it can."""
        if not call.is_like(self._call, self.varying):
            return other_call(call, self._call, self._inputs.paths, self.varying)
        otherwise = self._premises.otherwise(self._root, call.leaves)
        return self._why_not_now() if otherwise is None else other_choice(*otherwise)

    def serves(self, call: Call) -> bool:
        """Whether this step can serve a call as everything is now."""
        is_like = call.is_like(self._call, self.varying) and self._premises.hold(self._root, call.leaves)
        return is_like and self._why_not_now() is None

    def other_numbers(self, call: Call) -> set[str]:
        """The names of the numbers by which alone a call differs from that which it was captured for."""
        return {self._inputs.paths[position] for position in call.other_numbers(self._call)}

    def _why_not_now(self) -> StepError | None:
        """What has changed since the step was captured, and keeps it from serving any call."""
        try:
            self._unchanged.require()
            self._holders.require()
            self.look()
        except StepError as error:
            return error
        return None

    def changed_numbers(self) -> tuple[str, ...]:
        """The settings of optimizers, numbers all of them, that are not as they were."""
        return self._unchanged.changed_numbers()

    def give_gradients(self) -> list[torch.Tensor]:
        """Gives parameters the gradients that the step goes on with in place, as the zeros that it makes of them.

        Returns:
            Those that had none.
        """
        held = [item.tensor for item, *_ in self._state if item.name in self._held]
        given = [parameter for parameter in held if parameter.grad is None]
        with torch._C.DisableTorchFunctionSubclass():
            for one in given:
                one.grad = torch.zeros(one.shape, dtype=one.dtype, device=one.device)
        return given

    def has_its_tensors(self) -> bool:
        """Whether the user's model and optimizers still have the tensors that it was captured with."""
        return self._unchanged.has_its_states() and self._holders.all_there()

    def flush(self) -> None:
        """Gives the user the values of what this step puts anew at each step."""
        self.between.sync(self._session.full)

    def run(self, call: Call, steps: int) -> Any:
        """Runs one step for a call that it can serve, and returns what the user's step returns."""
        schedules.run(self._root, self._ways[0].schedules, Read(), first=True)
        self._began = {name: getattr(time, name)() for way in self._ways for name in way.clocks}
        tensors = self.tensors(call, steps)
        self._session.state.give_up()
        try:
            returned = self._issued(tensors)
        except UnisonoError as error:
            raise self._blamed(error) from None
        return self.finish(returned)

    def _issued(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if not self._session.synchronous:
            return self.executor(tensors) if self.replayed is None else self.replayed(tensors)
        return self.executor.watch(tensors, lambda _: _devices.synchronise(self.device))

    def record(self, call: Call) -> tuple[list[torch.Tensor], Any]:
        """Runs one step and returns what its program returns, and when each instruction ran."""
        return self.executor.record(self.tensors(call), self.device)

    def finish(self, returned: list[torch.Tensor]) -> Any:
        """What the user's step returns, when a step is over."""
        for optimizer in self._optimizers:
            # schedulers ask whether the optimizer has taken a step
            optimizer._opt_called = True  # type: ignore[attr-defined]
        way, count, tensors, ending = self._way_taken(returned)
        clocks = {name: (began, getattr(time, name)()) for name, began in self._began.items()}
        settings = schedules.reading(
            self._root, groups_of(self._optimizers), schedules.rates(self._root, way.schedules)
        )
        read = Read(tensors, way.counts.read(self._root), clocks, settings, self._arguments)
        count -= len(self._generators) + len(self._given_back)
        states, changed = returned[count:], returned[count + len(self._generators) :]
        for item, state in zip(self._generators, states, strict=False):
            generator_at(self._root, item.paths).set_state(state)
        for leaf, value in zip(self._given_back, changed, strict=False):
            self._give_back(self._arguments[leaf], value)
        values = iter(self.between.after_step(returned[:count], self.ranks.count))
        if ending is not None:
            raise self._ended(ending, replace(read, tensors=tensors[: ending.reads]))
        rates.leave(groups_of(self._optimizers), [(at, evaluate(rate, read)) for at, rate in way.rates])
        schedules.run(self._root, way.schedules, read, first=False)
        leaves = [way.leaf(position, read) if way.has(position) else next(values) for position in range(self._leaves)]
        perform(way.effects if way.at_first is None else way.at_first, read)
        for one in self._ways:
            one.at_first = None
        way.counts.leave(self._root, read)
        for path in way.counted:
            averages.count(follow(self._root, path))
        return unflatten(self._returns, iter(leaves))

    @torch.no_grad()
    def _give_back(self, argument: torch.Tensor, value: torch.Tensor) -> None:
        """Leaves in the caller's tensor what the step has made of it in place."""
        if self._session.batch == "local" and argument.dim():
            value = value.narrow(0, self.ranks.rank * len(argument), len(argument))
        argument.copy_(value)

    def _require_own_memory(self, call: Call) -> None:
        """Refuses arguments that share memory with one that the step changes in place."""
        tensors = {n: leaf for n, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor) and leaf.numel()}
        for leaf in self._given_back:
            memory = {n for n, one in tensors.items() if n != leaf and _share_memory(one, tensors.get(leaf, one))}
            if memory:
                raise StepError(
                    f"the step changes its argument `{self._inputs.paths[leaf]}` in place, which shares memory with "
                    f"`{self._inputs.paths[min(memory)]}`",
                    code="U0107",
                    cause="arguments of a captured step are tensors of their own",
                    hint="pass a copy: `x.clone()`",
                )

    def _ended(self, ending: Ending, read: Read) -> BaseException:
        """The exception that the user's step has ended with, behind what it has printed and logged."""
        perform(ending.effects, read, whole=False)
        ending.counts.leave(self._root, read)
        error = ending.error.exception([evaluated(one, read) for one in ending.arguments])
        self._session.ended = f"{type(error).__name__}: {error}"
        return error

    def _way_taken(self, returned: list[torch.Tensor]) -> tuple[Way, int, list[torch.Tensor], Ending | None]:
        """The way that a step has taken, how many results are its own, what it has read, and how it has ended if it has."""
        start = count = len(returned) - sum(way.reads + len(way.answers) for way in self._ways)
        for way in self._ways:
            behind = start + way.reads
            decided = returned[behind : behind + len(way.answers)]
            others = (
                at for at, (one, answer) in enumerate(zip(decided, way.answers, strict=True)) if bool(one) != answer
            )
            other = next(others, None) if len(self._ways) > 1 or way.endings else None
            if other is None or other in way.endings:
                return way, count, returned[start:behind], None if other is None else way.endings[other]
            start = behind + len(way.answers)
        raise InternalError("a step took none of its ways")

    def tensors(self, call: Call, steps: int = 0) -> list[torch.Tensor]:
        """The tensors of one step that are no state, in the order of the graph's inputs."""
        self.take_over()
        self._require_own_memory(call)
        self._arguments = call.leaves
        batch = {
            position: leaf.detach()
            for leaf, position in zip(call.leaves, self._inputs.leaves, strict=True)
            if position is not None
        }
        every = self._session.compare_every
        if every and steps % every == 0:
            self._require_agreement(batch)
        groups = groups_of(self._optimizers)
        tensors = []
        for position, item in enumerate(self._inputs.inputs):
            if item.cls == "batch":
                tensors.append(self._shard_of_batch(batch[position], self._placed[position]))
            elif item.cls == "hyper":
                tensors.append(self._read(item, groups))
        if self._draws_by_counter and self._session.key is not None:
            self._session.key[1] += 1
        return tensors

    def _read(self, item: StepInput, groups: Sequence[dict[str, Any]]) -> torch.Tensor:
        """A setting of an optimizer, a number, the state of a generator, the decay of an average or the key of random numbers."""
        if item.name == KEY:
            return _devices.whole_numbers(item.tensor.tolist(), self.device)
        if item.expression is not None:
            return scalar_of(evaluate(item.expression, before(self._root, self._counted, self._arguments)))
        if item.owner is None:
            return read_at(self._root, item.paths)
        return tensor_of(groups[item.owner[0]], item.owner[1])

    def _shard_of_batch(self, given: torch.Tensor, layout: Layout) -> torch.Tensor:
        """This rank's shard of a tensor of the batch."""
        if self._session.batch == "local" and given.dim() and self.ranks.count > 1:
            if all(layout.get(axis) == "shard(0)" for axis in self._mesh):
                return self._on_device(given)
            given = torch.cat(self._session.state.gathered("the batch", self._on_device(given).contiguous()))
        return self._on_device(to_local(given, layout, self._mesh, self.ranks.rank))

    def _on_device(self, given: torch.Tensor) -> torch.Tensor:
        return _devices.given_to(given, self._session.home)

    def look(self) -> None:
        """Looks at tensors that may have become others; refuses what the step is not made for."""
        self._constants = self.between.look()
        for item in self._generators:
            generator_at(self._root, item.paths)
        self._moved = self._holders.moved()

    def take_over(self) -> None:
        """Takes over what has become of tensors that the step has from outside of the model, as :meth:`look` has found them."""
        found = self.between.before_step(self._constants, self._mesh, self.ranks.rank)
        for position, shard in self._moved.items():
            if self._shares(self._state[position][0]):
                self._session.state.renew(self._state[position][0], shard)
        self._rebind(found | self._moved)

    def state_tensors(self) -> list[torch.Tensor]:
        """This rank's shards of all that the step has as state."""
        return [tensor for _, _, tensor in self._state]

    def _require_agreement(self, batch: dict[int, torch.Tensor]) -> None:
        """Refuses a step whose inputs, or whose random numbers, are not the same on every rank."""
        groups = groups_of(self._optimizers)
        if self._session.batch == "local":
            _agreement.warn_of_the_same(self.ranks, [one for one in batch.values() if one.dim()])
            batch = {position: one for position, one in batch.items() if not one.dim()}
        given = {item.name: batch[position] for position, item in enumerate(self._inputs.inputs) if position in batch}
        given |= {item.name: self._read(item, groups) for item in self._inputs.inputs if item.cls == "hyper"}
        if self._draws:
            states = _devices.generator_states(self.device)
            given |= {_agreement.generator(kind): state for kind, state in states.items()}
        _agreement.require(self.ranks, list(given), list(given.values()))

    def _blamed(self, error: UnisonoError) -> UnisonoError:
        """The error of a failed step; for a failed collective, it names the collective and the ranks that are gone."""
        if error.code == "U0315":
            return without_memory(error, self.plan, self.device, self._session.memory_limit)
        exchanges = any(name in error.message for name in ("_c10d_functional", "unisono::exchange_rows"))
        if self.ranks.count == 1 or not exchanges:
            return error if self._session.synchronous else _devices.at_or_before(error, self.device)
        stuck = self._session.watch.verdict_on(error.cause)
        if stuck is not None:
            return stuck
        collective, issued = self.rank_graph.collective_at(error.place) or (error.message.split("`")[1], None)
        return self.ranks.blamed(f"{collective} failed", error.place or issued, error.cause)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0


def _device_of(inputs: StepInputs) -> torch.device:
    """The device that the state of a step is on, or is to be on."""
    state = [item for item in inputs.inputs if item.cls in STATE]
    return _devices.device_of((item.name, intended_device(item.name, item.tensor)) for item in state)
