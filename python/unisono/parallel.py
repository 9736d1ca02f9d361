"""Parallel steps as users have them: one function for calls of every kind, each kind captured once."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono import _devices, _measure, _state_dict
from unisono._amounts import bytes_of
from unisono._arguments import (
    SEARCHED,
    Fuse,
    Pipeline,
    mesh_of,
    plain_forbid,
    plain_pins,
    reduce_dtype_of,
    require_fuse,
    require_graphs,
    require_match_eager,
    require_no_stages,
    require_offload,
    require_rng,
    require_settings,
    require_timeout,
)
from unisono._call import Call, Caller
from unisono._capture.beginnings import changed_numbers
from unisono._capture.optimizer import together
from unisono._capture.places import warn_user
from unisono._capture.settings import cycled
from unisono._captured_step import CapturedStep
from unisono._captures import Captures
from unisono._counter import key_of
from unisono._deferred.models import Deferred, home_of
from unisono._native import Graph
from unisono._ranks import Ranks
from unisono._refit import Refit, gathered, of_texts, replanned
from unisono._state import State
from unisono._unchanged import has_ended
from unisono._user_tensors import require_values
from unisono._users_errors import as_the_users
from unisono._watch import Watch
from unisono.errors import CaptureNotice, StepError, UnisonoError, UnsupportedError
from unisono.plans import Plan
from unisono.session import Seconds, Session


class ParallelStep:
    """A training step that runs on all ranks; see :func:`unisono.parallelize`.

    Attributes:
        ranks: the ranks that run it.
    """

    @as_the_users
    def __init__(
        self,
        train_step: Callable[..., Any],
        *,
        model: nn.Module | None,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        example: Any,
        mesh: Mapping[str, int] | str | None,
        micro_batches: int | None,
        recompute: str | None,
        reduce_dtype: torch.dtype | str | None,
        offload: str | None,
        stages: int | None,
        schedule: str | None,
        chunks: int | None,
        cuts: Sequence[int | str] | None,
        memory_limit: float | str | None,
        pins: Mapping[str, Mapping[str, str]] | None,
        forbid: Mapping[str, str | Sequence[str]] | Sequence[str] | str | None,
        plan: Plan | str | Path | None,
        cluster: str | Path | None,
        seed: int | None,
        compare_every: int,
        keep_grads: bool = False,
        on_change: str = "capture",
        captures: int = 8,
        batch: str = "global",
        cache: str | Path | None = None,
        fuse: Fuse = False,
        match_eager: bool = False,
        rng: str = "torch",
        graphs: str = "off",
        timeout: float = 1200.0,
    ) -> None:
        """Captures and plans on rank 0, and prepares this rank's part."""
        require_settings(compare_every, on_change, captures, batch, micro_batches, recompute)
        require_offload(offload)
        pipeline = Pipeline(schedule, chunks, cuts, stages)
        require_no_stages(mesh, stages)
        require_timeout(timeout)
        require_rng(rng)
        require_graphs(graphs)
        require_fuse(fuse)
        require_match_eager(match_eager)
        limit = bytes_of(memory_limit)
        optimizers = together(optimizer)
        require_values(model, optimizers)
        self.ranks = Ranks()
        axes = mesh_of(mesh, self.ranks.count)
        state = State(self.ranks, axes, model, optimizers)
        self._session = Session(
            self.ranks, axes, model, optimizers, state, limit, cluster, plain_pins(pins), compare_every, keep_grads
        )
        self._session.home = home_of(model, optimizers)
        self._train_step, self._caller, self._steps = train_step, Caller(train_step, self._session.home), 0
        self._on_change, self._captures, self._micro_batches = on_change, captures, micro_batches
        self._session.searches_mesh = mesh is None or mesh == SEARCHED
        self._session.deferred = Deferred.of(model, optimizers)
        self._session.recompute, self._session.forbid = recompute, plain_forbid(forbid)
        self._session.reduce_dtype = reduce_dtype_of(reduce_dtype)
        self._session.offload = offload
        self._session.pipeline = pipeline
        self._session.live, self._session.batch = cycled(optimizers), batch
        self._session.fuse, self._session.match_eager, self._session.graphs = fuse, match_eager, graphs
        self._session.key = key_of(seed or 0) if rng == "counter" else None
        self._session.watch = Watch(self.ranks, timeout)
        self._session.captures = None if cache is None else Captures(cache)
        self._start()
        deferred = self._session.deferred
        # A capture or a measurement draws numbers, and not on every rank.
        with _same_random_numbers(self._session.home):
            self._session.counted = changed_numbers(optimizers)
            self._capture(self._call_of(example), plan)
        if deferred is not None:
            deferred.go_on()
        if seed is not None:
            torch.manual_seed(seed)
        elif self.ranks.count > 1:
            self.ranks.share_generators(self._session.home)

    def _start(self) -> None:
        #: The captured steps, the one that has run last first.
        self._captured: list[CapturedStep] = []
        self._last: CapturedStep | None = None
        #: The numbers among the arguments that have been others from call to call, and of those the ones that a capture cannot be without.
        self._varying, self._fixed = set[str](), set[str]()
        self._session.steps.append(self._captured)

    @as_the_users
    def share(self, step: Callable[..., Any], *, example: Any, plan: Plan | str | Path | None = None) -> ParallelStep:
        """Makes a further step on the same model, such as an evaluation, that runs on its state as it is placed, without ``sync``.

        Args:
            step: a function that uses the same model, and perhaps the same optimizers.
            example: the arguments that it is called with, as for :func:`unisono.parallelize`. It is captured in the mode that the model
                has now, so call ``model.eval()`` first where it is called in that mode.
            plan: a plan to run instead of searching.
        """
        other = object.__new__(ParallelStep)
        other.ranks, other._session = self.ranks, self._session
        other._on_change, other._captures, other._micro_batches = self._on_change, self._captures, None
        other._train_step, other._caller, other._steps = step, Caller(step, self._session.home), 0
        other._start()
        self._pause()
        with _same_random_numbers(self._device), self._session.state.lent():
            other._capture(other._call_of(example), plan)
        return other

    @property
    def _device(self) -> torch.device:
        steps = [step for steps in self._session.steps for step in steps]
        return steps[0].device if steps else _devices.HOST

    def _pause(self) -> None:
        """Gives the user what the last step puts anew at each step, so that another one can be captured."""
        if self._session.active is not None:
            self._session.active.flush()
            self._session.active = None

    def _call_of(self, example: Any) -> Call:
        """The call of an example; what is wrong with it on one rank is raised on all."""
        error: UnisonoError | None = None
        call = None
        try:
            call = self._caller.of_example(example)
        except UnisonoError as met:
            error = met
        self.ranks.raise_together(error)
        assert call is not None
        return call

    @property
    def plan(self) -> Plan:
        """The plan of the calls that were made last."""
        return self._captured[0].plan

    @property
    def passes(self) -> Any:
        """What the passes did to its graph."""
        return self._captured[0].passes

    @property
    def seconds(self) -> Seconds:
        """What it took to capture and plan them."""
        return self._captured[0].seconds

    @property
    def rank_graph(self) -> Graph:
        """The graph that this rank runs for them."""
        return self._captured[0].rank_graph

    @as_the_users
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs one step on the global batch and returns what the user's step returns."""
        if self._session.ended is not None:
            raise has_ended(self._session.ended)
        call = self._caller(arguments, named)
        step = self._step_for(call)
        meeting = self.ranks.meeting
        if meeting is None:
            returned = step.run(call, self._steps)
        else:
            meeting.inside = meeting.done
            with self._session.watch.over(step):
                returned = step.run(call, self._steps)
            meeting.inside, meeting.done = None, meeting.done + 1
        self._steps += 1
        return returned

    def _step_for(self, call: Call) -> CapturedStep:
        """The captured step that can serve a call, captured now if there is none."""
        index = next((index for index, step in enumerate(self._captured) if step.serves(call)), None)
        if index is None:
            reason = self._captured[0].why_not(call)
            assert reason is not None
            if reason.code != "U0122" or self._on_change == "refuse":
                raise reason
            self._capture_again(call, reason)
        else:
            self._captured.insert(0, self._captured.pop(index))
            if self._session.active is not self._captured[0]:
                self.ranks.come_together(f"run capture {self._captured[0].number}, for {call.described()}")
        self._captured[0].activate()
        return self._captured[0]

    def _capture_again(self, call: Call, reason: StepError) -> None:
        session, start = self._session, time.perf_counter()
        self._varying |= {name for step in self._captured for name in step.other_numbers(call)}
        self.ranks.come_together("capture the step again", reason.message)
        self._pause()
        for captured in session.steps:
            captured[:] = [step for step in captured if step.has_its_tensors()]
        with self._with_gradients():
            self._capture_with_live_settings(call)
        too_many = max(0, len(self._captured) - self._captures)
        for _ in range(too_many):
            self._captured.pop()
        session.state.keep_only([item for steps in session.steps for step in steps for item in step.shared()])
        if self.ranks.rank == 0:
            seconds = time.perf_counter() - start
            told = f"the step was captured and planned again in {seconds:.1f} s: {reason.message}"
            hint = f"; {self._captures} captures are kept, and the oldest is gone: give as a tensor what is another at each call"
            warn_user(told + (hint if too_many else ""), CaptureNotice)
        still = self._captured[0].why_not(call)
        if still is not None:
            raise still

    def _capture_with_live_settings(self, call: Call) -> None:
        """Captures the step; a setting that has changed, and so may change again, is an input of it if the optimizer allows it."""
        session, before = self._session, self._session.live
        session.live = tuple(dict.fromkeys([*before, *(self._last.changed_numbers() if self._last else ())]))
        with _same_random_numbers(self._device), session.state.lent():
            try:
                self._capture(call, None)
            except (StepError, UnsupportedError):
                if session.live == before:
                    raise
                session.live = before
                self._capture(call, None)

    @contextlib.contextmanager
    def _with_gradients(self) -> Iterator[None]:
        """Within, gradients are there that the last step goes on with in place; afterwards too, if they are state of the new one."""
        given = self._last.give_gradients() if self._last is not None else []
        are_state = False
        try:
            yield
            are_state = self._captured[0].accumulates
        finally:
            for parameter in given if not are_state else ():
                parameter.grad = None

    def _capture(self, call: Call, plan: Plan | str | Path | None) -> None:
        accumulates = any(step.accumulates for step in self._captured)
        # Of a later batch, which may be smaller, fewer slices are made where it has no so many.
        count = self._micro_batches
        counts = range(count, 0, -1) if self._captured and count is not None else [count]
        varying = self._varying - self._fixed
        self._last = CapturedStep(
            self._session,
            self._train_step,
            call,
            plan,
            accumulates=accumulates,
            micro_batches=counts,
            varying=varying,
        )
        if not self._last.varying:
            self._fixed |= varying
        self._captured.insert(0, self._last)

    def sync(self) -> None:
        """Writes the current values of parameters, buffers and optimizer state into the user's model and optimizer, on every rank.

        Until then, from the first step on, those of them that the plan shards hold NaN: the rank has the memory of its shards only.
        The next step takes them away again, with what was written into them until then.
        """
        self._settle("sync")
        self._session.state.sync()

    def _settle(self, call: str) -> None:
        """Once all ranks make a call, takes over what the user has changed, and gives the user what the step puts anew at each step."""
        self.ranks.come_together(f"call `{call}`")
        if self._session.active is not None:
            self._session.active.look()
            self._session.active.take_over()
            self._session.active.flush()
        self._session.state.take_written()

    def _state(self, call: str, *, for_files: bool = False) -> dict[str, Any]:
        """The state, in a call that all ranks make."""
        self._settle(call)
        return _state_dict.state_dict(self._session, for_files=for_files)

    @as_the_users
    def state_dict(self) -> dict[str, Any]:
        """The state under fully qualified names, each rank's shards where they are: what a checkpoint is made of. Called on every rank.

        Returns:
            ``model``: parameters, persistent buffers and extra state by their names in the model. ``optimizer``: ``state`` by the
            parameter's name and the key, and ``param_groups``, with names instead of parameters, as
            ``torch.distributed.checkpoint.state_dict`` gives them. ``kept``, where there is any: tensors that the step keeps elsewhere.
            On several ranks state is a :class:`torch.distributed.tensor.DTensor` on the mesh of the step, on one rank a tensor. They share
            memory with the state: the next step changes them. What is sharded in several blocks is a copy in plain shards.
        """
        return self._state("state_dict")

    @as_the_users
    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Takes over a state that :meth:`state_dict` gave, of this or another mesh and plan. Called on every rank.

        Args:
            state: ``model``, ``optimizer`` and ``kept``; tensors are ``DTensor`` of any placement, or whole, the same on every rank.
            strict: whether names have to be the same here and there.

        Raises:
            ConfigurationError: names or shapes differ. Nothing is changed then.
        """
        self._settle("load_state_dict")
        _state_dict.load_state_dict(self._session, state, strict=strict)
        self._session.ended = None

    @as_the_users
    def save(self, folder: str | Path, **more: Any) -> None:
        """Writes a checkpoint that :meth:`load` reads on any mesh, under any plan. Called on every rank.

        It is written beside the folder and renamed when it is complete; until then the folder has the checkpoint that was there before.
        Its format is that of ``torch.distributed.checkpoint``.

        Args:
            folder: a folder that all ranks see; a checkpoint in it is replaced.
            more: objects with ``state_dict`` and ``load_state_dict``, such as a scheduler or a sampler, the same on every rank.

        Raises:
            ConfigurationError: the folder cannot be written.
        """
        from unisono import _checkpoint  # takes PyTorch's checkpoints with it, which are slow to import

        _checkpoint.save(self._session, self._state("save", for_files=True), Path(folder), more)

    @as_the_users
    def load(self, folder: str | Path, *, strict: bool = True, **more: Any) -> None:
        """Goes on from a checkpoint that :meth:`save` has written. Called on every rank.

        Args:
            folder: the folder.
            strict: whether names have to be the same here and there.
            more: objects with ``load_state_dict`` that were saved with it.

        Raises:
            ConfigurationError: there is no complete checkpoint, or it is damaged, or it is of another model, optimizer or step.
        """
        from unisono import _checkpoint  # takes PyTorch's checkpoints with it, which are slow to import

        _checkpoint.load(self._session, self._state("load", for_files=True), Path(folder), more, strict=strict)
        self._session.ended = None

    def kernels(self) -> str:
        """Which operations become kernels where ``fuse`` is set, what that saves, and why all others stay as they are."""
        return self.rank_graph.kernels(self._captured[0].slower, match_eager=self._session.match_eager)

    def graphs(self) -> str:
        """Whether the steps of the calls that were made last are graphs of the device, and why not, if so."""
        step = self._captured[0]
        if step.replayed is None:
            return f"not a graph: {step.not_replayed}"
        if step.replayed.failed is not None:
            return f"not a graph: {step.replayed.failed}"
        return f"a graph, captured {step.replayed.captures} times"

    def synchronous(self, yes: bool = True) -> None:
        """Has each instruction of further steps waited for, so that what fails on a device is named with its line; with ``False`` no more.

        Steps take longer then. On processors operations are done when they return, and nothing changes.
        """
        self._session.synchronous = yes

    def timeline(self, *arguments: Any) -> list[tuple[str, str | None, int, int]]:
        """Runs one step and returns for each instruction what it is, its place, its start and its duration in nanoseconds."""
        returned, records = self._record(arguments)
        step = self._captured[0]
        step.finish(returned)
        instructions = step.executor.program.instructions()
        return [(*instructions[index], start, duration) for index, start, duration in records]

    def write_timelines(self, folder: str | Path, *arguments: Any) -> None:
        """Runs one step on every rank and writes this rank's as it was predicted and as it was measured.

        The files are ``predicted/rank0.json`` and ``measured/rank0.json``, one of each for every rank, for trace viewers and for
        ``unisono trace``: ``unisono trace diff FOLDER/predicted FOLDER/measured`` puts them side by side.
        """
        measured = self._measured_json(arguments)
        texts = {"predicted": self._captured[0].simulated_json(), "measured": measured}
        for name, text in texts.items():
            file = Path(folder, name, f"rank{self.ranks.rank}.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def refit(self, *arguments: Any, repeats: int = 3) -> Refit:
        """Runs ``repeats`` steps on every rank and says what of the cluster description is wrong by what they took.

        Operations, collectives and copies are held against what the cost model says of each. The fewest coefficients with which it tells
        them are mended, what single operations took is put into the description, and the step is planned again by it
        (``docs/clusters.md``). Nothing changes for this step: start again with the new description to run the new plan.

        Args:
            arguments: those of a step.
            repeats: how many steps run.

        Returns:
            What is wrong and what is planned by what is right, the same on every rank: ``print`` shows it,
            ``refit.save("cluster.toml")`` keeps the description for ``cluster="cluster.toml"``.
        """
        runs = [gathered(self._measured_json(arguments), self.ranks) for _ in range(repeats)]
        step = self._captured[0]
        found: Any = None
        if self.ranks.rank == 0:
            try:
                found = vars(replanned(of_texts(step.cluster, runs), step.plan))
            except UnisonoError as error:
                found = error
        return Refit(**self.ranks.tell(found))

    def _measured_json(self, arguments: tuple[Any, ...]) -> str:
        """Runs one step: this rank's timeline as the text of a trace."""
        returned, records = self._record(arguments)
        step = self._captured[0]
        step.finish(returned)
        mesh = list(self._session.mesh.items())
        return step.executor.program.trace_json(records, self.ranks.rank, step.rank_graph, mesh)

    def report(self, path: str | Path, *arguments: Any) -> None:
        """Writes one HTML page that shows the plan and needs no other file (``docs/clusters.md``). Called on every rank; rank 0 writes it.

        Args:
            path: the page.
            arguments: those of a step, which is then run on every rank, and shown as it was measured under the prediction.
        """
        records = self._record(arguments)[1] if arguments else None
        step = self._captured[0]
        if self.ranks.rank == 0:
            measured = None if records is None else (step.executor.program, records)
            Path(path).write_text(step.plan.page(step.rank_graph, measured), encoding="utf-8")

    def measure(self, *arguments: Any, repeats: int = 5) -> dict[str, list[int]]:
        """Runs ``repeats`` + 1 steps on every rank and returns what they took, beside which ``plan.prediction`` can be put.

        Each entry is a list over ranks: ``step_ns``, the median wall time of a step; ``state_bytes``, the parameters, buffers and
        optimizer state that the rank keeps; ``buffer_bytes``, what stays from step to step for small results (at most 16 MiB, and no
        more than a ``memory_limit`` leaves); ``peak_bytes``, the most that the rank held during a step: all that, what is the same at every
        step, the step's inputs, and what PyTorch's allocator gave out on top of them, as its profiler saw it. Memory that no tensor owns
        (code, buffers of the network, what large results have left between steps) is not in it.
        """
        times = [_measure.nanoseconds(lambda: self(*arguments), self._device) for _ in range(repeats)]
        step = self._captured[0]
        tensors = step.tensors(self._caller(arguments, {}))
        # What is on the host of it is in none of a device's memory.
        own = [tensor for tensor in step.state_tensors() if tensor.device.type == step.device.type]
        state = _measure.tensor_bytes(own)
        buffers = step.executor.program.buffer_bytes()
        growth = _measure.peak_growth(lambda: step.executor(tensors), step.device)
        constants = step.executor.program.constant_bytes()
        peak = state + _measure.tensor_bytes(tensors) + buffers + constants + growth
        mine = torch.tensor([statistics.median_low(times), state, buffers, peak])
        found = self.ranks.gathered(mine) if self.ranks.count > 1 else [mine]
        names = ("step_ns", "state_bytes", "buffer_bytes", "peak_bytes")
        return dict(zip(names, torch.stack(found, dim=1).tolist(), strict=True))

    def _record(self, arguments: tuple[Any, ...]) -> tuple[list[torch.Tensor], Any]:
        call = self._caller(arguments, {})
        return self._step_for(call).record(call)


@contextlib.contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Leaves PyTorch's generators as they are: a capture draws numbers, and not on every rank."""
    states = _devices.generator_states(device)
    try:
        yield
    finally:
        _devices.set_generator_states(device, states)
