"""The session: one captured step, planned, partitioned and run on every rank."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unisono import _agreement, _measure, _native, _profile
from unisono._amounts import bytes_of
from unisono._between import Between
from unisono._capture import Capture, capture_step
from unisono._capture.inputs import StepInput, StepInputs, collect, constant, learning_rate
from unisono._capture.optimizer import create_state, group_name, groups_of, guarded_settings, state_of, together
from unisono._capture.outside import Outside
from unisono._capture.paths import paths_of
from unisono._capture.side_effects import warn
from unisono._executor import Executor, draws_numbers, lower_graph
from unisono._holders import Holders
from unisono._message import pack
from unisono._modes import Modes
from unisono._placements import own_part, part_of, whole_of
from unisono._ranks import Ranks
from unisono._user_tensors import UserTensor, close_doors, require_values
from unisono.errors import ConfigurationError, StepError, UnisonoError
from unisono.plans import Plan

_STATE = ("parameter", "buffer", "optimizer", "constant")


class Seconds(NamedTuple):
    """What it took to make a step, in seconds.

    Attributes:
        capture: to capture it, and to give every rank its state and graph.
        measurement: to measure the machine, or to read what was measured before.
        plan: to plan, and to prepare this rank's program.
    """

    capture: float
    measurement: float
    plan: float


class ParallelStep:
    """A training step that runs on all ranks; see :func:`unisono.parallelize`.

    Attributes:
        plan: the plan that it runs.
        ranks: the ranks that run it.
        seconds: what it took to make it.
    """

    def __init__(
        self,
        train_step: Callable[..., Any],
        *,
        model: nn.Module | None,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        example: Any,
        mesh: Mapping[str, int] | None,
        memory_limit: float | str | None,
        pins: Mapping[str, Mapping[str, str]] | None,
        plan: Plan | str | Path | None,
        cluster: str | Path | None,
        seed: int,
        compare_every: int,
        keep_grads: bool = False,
    ) -> None:
        """Captures and plans on rank 0, and prepares this rank's part."""
        if compare_every < 0:
            message = f"`compare_every` is {compare_every}"
            raise ConfigurationError(message, code="U0012", hint="a number of steps, or 0 to compare never")
        limit = bytes_of(memory_limit)
        optimizers = together(optimizer)
        require_values(model, optimizers)
        self.ranks = Ranks()
        self._mesh = _mesh(mesh, self.ranks.count)
        self._model, self._optimizers, self._seed = model, optimizers, seed
        self._compare_every, self._steps, self._keep_grads = compare_every, 0, keep_grads
        start = time.perf_counter()
        self._inputs, message = self._capture(train_step, example)
        captured = time.perf_counter()
        self._outside = Outside(train_step, model)
        self._memory_limit = limit
        self._cluster = _text_of(cluster) if cluster is not None else _profile.description(self.ranks)
        described = time.perf_counter()
        graph = _native.Graph(message)
        self.plan = self._planned(graph, limit, pins, plan)
        self._prepare(graph)
        self.seconds = Seconds(captured - start, described - captured, time.perf_counter() - described)
        # Last, because a capture or a measurement draws numbers, and not on every rank.
        torch.manual_seed(seed)

    # What rank 0 decides and tells.

    def _capture(self, train_step: Callable[..., Any], example: Any) -> tuple[StepInputs, bytes]:
        """The inputs of the step, with this rank's tensors, and its graph."""
        captured: Capture | None = None
        message: Any = None
        if self.ranks.rank == 0:
            try:
                captured = capture_step(
                    train_step,
                    model=self._model,
                    optimizers=self._optimizers,
                    example=example,
                    keep_gradients=self._keep_grads,
                )
                message = _shared(captured)
            except UnisonoError as error:
                message = error
        message = self.ranks.tell(message)
        self._root = {"step": train_step, "model": self._model}
        self._left, self._gradients = paths_of(message["left"]), message["gradients"]
        self._replaced = set(paths_of(message["replaced"]))
        inputs = captured.inputs if captured is not None else StepInputs()
        met: UnisonoError | None = None
        if captured is None:
            try:
                inputs = self._collect(train_step, example, message)
            except UnisonoError as error:
                met = error
        self.ranks.raise_together(met)
        self._returns = pytree.treespec_loads(message["returns"])
        self._return_constants = dict(message["return_constants"])
        self._settings = guarded_settings(self._optimizers)
        self._modes, self._optimizer_states = Modes(self._model), [optimizer.state for optimizer in self._optimizers]
        self.ranks.same_everywhere([item.tensor.detach() for item in inputs.inputs if item.cls in _STATE])
        return inputs, message["graph"]

    def _collect(self, train_step: Callable[..., Any], example: Any, message: dict[str, Any]) -> StepInputs:
        """The inputs of the step on a rank that has not captured it."""
        for optimizer in self._optimizers:
            create_state(optimizer)
        inputs = collect(train_step, self._model, self._optimizers, example, paths_of(message["kept"]))
        for name, dtype, shape, paths in message["constants"]:
            inputs.add(constant(self._root, name, getattr(torch, dtype), shape, paths_of(paths)))
        _agreement.require_alike(_agreement.described(inputs), self.ranks.rank, message["inputs"])
        return inputs

    def _planned(
        self,
        graph: _native.Graph,
        memory_limit: int | None,
        pins: Mapping[str, Mapping[str, str]] | None,
        plan: Plan | str | Path | None,
    ) -> Plan:
        """The plan that rank 0 finds, or was given."""
        found: Plan | None = None
        answer: Any = None
        if self.ranks.rank == 0:
            settings = {"mesh": self._mesh, "memory_limit": memory_limit, "pins": _plain_pins(pins)}
            try:
                found = _given_plan(plan, graph, self._mesh)
                if found is None:
                    found = Plan(graph.plan(self._cluster, pack(settings), _profile.cache_folder()), graph)
                answer = found.text
            except UnisonoError as error:
                answer = error
        text = self.ranks.tell(answer)
        return found or Plan(text, graph)

    # This rank's part.

    def _prepare(self, graph: _native.Graph) -> None:
        optimised, self.passes = graph.program(self.plan.native, self.ranks.rank)
        if not self.ranks.agree(optimised.issue_order()):
            warnings.warn(
                "the ranks' programs issue their collectives in different orders after the passes; they run without the passes, "
                "which costs time: please report this step",
                RuntimeWarning,
                stacklevel=3,
            )
            optimised, self.passes = graph.rank_graph(self.plan.native, self.ranks.rank), []
        self._draws = draws_numbers(optimised)
        groups = {f"axis:{axis}": name for axis, name in self.ranks.groups(self._mesh).items()}
        self.rank_graph = optimised
        # The predicted peak counts what stays for small results, and with a limit it is not to be more.
        left = None if self._memory_limit is None else self.plan.prediction["buffer_bytes"]
        self._executor = Executor(lower_graph(optimised, groups, buffer_bytes=left))
        layouts = self.plan.layouts
        self._placed = [layouts.get(item.name, {}) for item in self._inputs.inputs]
        self._state = [
            (item, layout, self._part(item, layout))
            for item, layout in zip(self._inputs.inputs, self._placed, strict=True)
            if item.cls in _STATE
        ]
        self._between = Between(self._root, self._state, self._replaced, self._left, self._gradients)
        self._holders = Holders(self._model, self._optimizers, self._state)
        self._executor.bind([tensor for _, _, tensor in self._state])
        self._in_parts = {
            item.name: UserTensor(item.tensor, item.name)
            for item, layout, _ in self._state
            if layout and self.ranks.count > 1 and item.cls != "constant" and not self._renewed(item)
        }
        self._whole = True
        self._doors: list[RemovableHandle] = []

    def _renewed(self, item: StepInput) -> bool:
        """Whether the step puts another tensor in the place of one that the user has, instead of writing into it."""
        return item.cls == "buffer" and bool(item.paths) and item.paths[0] in self._replaced

    def _part(self, item: StepInput, layout: Mapping[str, str]) -> torch.Tensor:
        part = own_part(item.tensor.detach(), layout, self._mesh, self.ranks.rank)
        return part.clone() if self._renewed(item) else part

    def __call__(self, *arguments: Any) -> Any:
        """Runs one step on the global batch and returns what the user's step returns."""
        tensors = self._arguments(arguments)
        self._steps += 1
        if self._whole:
            self._give_up()
        try:
            returned = self._executor(tensors)
        except UnisonoError as error:
            raise self._blamed(error) from None
        for optimizer in self._optimizers:
            # schedulers ask whether the optimizer has taken a step
            optimizer._opt_called = True  # type: ignore[attr-defined]
        returned = self._between.after_step(returned, self.ranks.count)
        leaves, values = [], iter(returned)
        for position in range(self._returns.num_leaves):
            constant = position in self._return_constants
            leaves.append(self._return_constants[position] if constant else next(values))
        return pytree.tree_unflatten(leaves, self._returns)

    def _give_up(self) -> None:
        """Lets go of what the user's tensors hold; not before the first step, since a step may be made for its plan alone.

        What was written into them since then, or since `sync`, is taken over.
        """
        for item, layout, part in self._state:
            whole = self._in_parts.get(item.name)
            if whole is not None:
                if whole.was_written:
                    part.copy_(part_of(item.tensor.detach(), layout, self._mesh, self.ranks.rank))
                whole.give_up()
        if self._in_parts and self._model is not None:
            self._doors = close_doors(self._model)
        self._whole = False

    def _arguments(self, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
        """The tensors of one step that are no state, in the order of the graph's inputs, checked against the captured ones."""
        leaves, spec = pytree.tree_flatten(arguments)
        if spec != self._inputs.arguments and pytree.tree_structure(arguments) != self._inputs.arguments:
            raise _changed("the arguments are put together differently", f"{self._inputs.arguments} before, {spec} now")
        batch: dict[int, torch.Tensor] = {}
        for leaf, position, path in zip(leaves, self._inputs.leaves, self._inputs.paths, strict=True):
            if position is None:
                if leaf != self._inputs.constants[path]:
                    before = self._inputs.constants[path]
                    raise _changed(f"argument `{path}` is {leaf!r}", f"it was {before!r} when the step was captured")
                continue
            batch[position] = self._checked(leaf, self._inputs.inputs[position])
        self._check_settings()
        self._holders.require()
        self._take_over()
        if self._compare_every and self._steps % self._compare_every == 0:
            self._require_agreement(batch)
        groups = groups_of(self._optimizers)
        tensors = []
        for position, item in enumerate(self._inputs.inputs):
            if item.cls == "batch":
                tensors.append(part_of(batch[position], self._placed[position], self._mesh, self.ranks.rank))
            elif item.cls == "hyper" and item.owner is not None:
                tensors.append(learning_rate(groups[item.owner[0]]))
        return tensors

    def _take_over(self) -> None:
        """Takes over what has become of tensors that the step has from outside of the model."""
        fresh = self._between.before_step(self._mesh, self.ranks.rank) | self._holders.moved()
        for position, part in fresh.items():
            self._state[position] = (*self._state[position][:2], part)
        if fresh:
            self._executor.bind([tensor for _, _, tensor in self._state])

    def _require_agreement(self, batch: dict[int, torch.Tensor]) -> None:
        """Refuses a step whose inputs, or whose random numbers, are not the same on every rank."""
        groups = groups_of(self._optimizers)
        given = {item.name: batch[position] for position, item in enumerate(self._inputs.inputs) if item.cls == "batch"}
        given |= {f"hyper.{index}.lr": learning_rate(group) for index, group in enumerate(groups) if "lr" in group}
        if self._draws:
            given[_agreement.GENERATOR] = torch.get_rng_state()
        _agreement.require(self.ranks, list(given), list(given.values()))

    @staticmethod
    def _checked(leaf: Any, item: StepInput) -> torch.Tensor:
        expected = item.tensor
        if not isinstance(leaf, torch.Tensor):
            raise _changed(f"`{item.name}` is a {type(leaf).__name__}", "it was a tensor when the step was captured")
        if (leaf.shape, leaf.dtype, leaf.device) != (expected.shape, expected.dtype, expected.device):
            now = f"{leaf.dtype} of shape {list(leaf.shape)} on {leaf.device}"
            before = f"{expected.dtype} of shape {list(expected.shape)} on {expected.device}"
            raise _changed(f"`{item.name}` is {now}", f"it was {before} when the step was captured")
        return leaf.detach()

    def _check_settings(self) -> None:
        for optimizer, state in zip(self._optimizers, self._optimizer_states, strict=True):
            if optimizer.state is not state:
                what = f"{type(optimizer).__name__} has another state, which `load_state_dict` makes"
                was = "the step goes on with the tensors that it had when the step was captured"
                raise _changed(
                    what,
                    was,
                    hint="load its state before `parallelize`, or call `sync`, load it, and call `parallelize` again",
                )
        now = guarded_settings(self._optimizers)
        if now != self._settings:
            for index, (group, before) in enumerate(zip(now, self._settings, strict=False)):
                for key in group:
                    if group[key] != before.get(key):
                        what = f"`{key}` of {group_name(self._optimizers, index)} is {group[key]}"
                        was = f"it was {before.get(key)} when the step was captured; only `lr` may change"
                        raise _changed(what, was, hint=_OTHER_MODE)
            what = "the optimizer's parameter groups changed"
            raise _changed(what, "they are constants of the captured step", hint=_OTHER_MODE)
        for name, was, is_now in self._outside.changed():
            warn(
                f"it goes on with `{name}` of {was}, which is {is_now} now. Make it an argument of the step, as a tensor."
            )
        otherwise = self._modes.changed()
        if otherwise is not None:
            raise _changed(*otherwise, hint=_OTHER_MODE)

    def _blamed(self, error: UnisonoError) -> UnisonoError:
        """The error of a failed step; for a failed collective, it names the collective and the ranks that are gone."""
        if self.ranks.count == 1 or "_c10d_functional" not in error.message:
            return error
        collective, issued = self.rank_graph.collective_at(error.place) or (error.message.split("`")[1], None)
        return self.ranks.blamed(f"{collective} failed", error.place or issued, error.cause)

    def sync(self) -> None:
        """Writes the current values of parameters, buffers and optimizer state into the user's model and optimizer, on every rank.

        Until then, from the first step on, those of them that the plan cuts hold NaN: the rank has the memory of its parts only. The next
        step takes them away again, with what was written into them until then.
        """
        self._take_over()
        with torch.no_grad():
            for item, layout, tensor in self._state:
                if item.cls == "constant" or self._renewed(item):
                    continue
                in_parts = self._in_parts.get(item.name)
                if in_parts is not None:
                    in_parts.restore(whole_of(self._gathered(item.name, tensor), layout, self._mesh))
                elif tensor.data_ptr() != item.tensor.data_ptr():
                    item.tensor.copy_(tensor)
                self._write_number(item)
            self._between.sync(
                lambda i, p, part: (
                    whole_of(self._gathered(i.name, part), p, self._mesh) if self.ranks.count > 1 else part.clone()
                )
            )
        for door in self._doors:
            door.remove()
        self._doors = []
        self._whole = True

    def _gathered(self, name: str, part: torch.Tensor) -> list[torch.Tensor]:
        try:
            return self.ranks.gathered(part)
        except RuntimeError as error:
            raise self.ranks.blamed(f"all_gather of `{name}` for `sync` failed", None, str(error)) from None

    def _write_number(self, item: StepInput) -> None:
        """State that the optimizer keeps as a Python number is written as one."""
        if item.cls == "optimizer" and item.owner is not None:
            parameter, key = item.owner
            state = state_of(self._optimizers, parameter)
            if not isinstance(state[key], torch.Tensor):
                state[key] = item.tensor.item()

    def timeline(self, *arguments: Any) -> list[tuple[str, str | None, int, int]]:
        """Runs one step and returns for each instruction what it is, its place, its start and its duration in nanoseconds."""
        returned, records = self._executor.record(self._arguments(arguments))
        self._between.after_step(returned, self.ranks.count)
        instructions = self._executor.program.instructions()
        return [(*instructions[index], start, duration) for index, start, duration in records]

    def write_timelines(self, folder: str | Path, *arguments: Any) -> None:
        """Runs one step on every rank and writes this rank's as it was predicted and as it was measured.

        The files are ``predicted/rank0.json`` and ``measured/rank0.json``, one of each for every rank, for trace viewers and for
        ``unisono trace``: ``unisono trace diff FOLDER/predicted FOLDER/measured`` puts them side by side.
        """
        rank = self.ranks.rank
        _, records = self._executor.record(self._arguments(arguments))
        texts = {
            "predicted": self.rank_graph.simulated_json(self.plan.native, self._cluster, rank),
            "measured": self._executor.program.trace_json(records, rank, self.rank_graph),
        }
        for name, text in texts.items():
            file = Path(folder, name, f"rank{rank}.json")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def measure(self, *arguments: Any, repeats: int = 5) -> dict[str, list[int]]:
        """Runs ``repeats`` + 1 steps on every rank and returns what they took, beside which ``plan.prediction`` can be put.

        Each entry is a list over ranks: ``step_ns``, the median wall time of a step; ``state_bytes``, the parameters, buffers and
        optimizer state that the rank keeps; ``buffer_bytes``, what stays from step to step for small results (at most 16 MiB, and no
        more than a ``memory_limit`` leaves); ``peak_bytes``, the most that the rank held during a step: all that, what is the same at every
        step, the step's inputs, and what PyTorch's allocator gave out on top of them, as its profiler saw it. Memory that no tensor owns
        (code, buffers of the network) is not in it.
        """
        times = [_measure.nanoseconds(lambda: self(*arguments)) for _ in range(repeats)]
        tensors = self._arguments(arguments)
        state = _measure.tensor_bytes([tensor for _, _, tensor in self._state])
        buffers = self._executor.program.buffer_bytes()
        # What a thread of the network frees last is not always seen to be freed: more than once, and the least counts.
        growth = min(_measure.peak_growth(lambda: self._executor(tensors)) for _ in range(5))
        constants = self._executor.program.constant_bytes()
        peak = state + _measure.tensor_bytes(tensors) + buffers + constants + growth
        mine = torch.tensor([statistics.median_low(times), state, buffers, peak])
        found = self.ranks.gathered(mine) if self.ranks.count > 1 else [mine]
        names = ("step_ns", "state_bytes", "buffer_bytes", "peak_bytes")
        return dict(zip(names, torch.stack(found, dim=1).tolist(), strict=True))


def _mesh(mesh: Mapping[str, int] | Any | None, count: int) -> dict[str, int]:
    """The axes of the mesh with their sizes, the outer one first, checked against the number of ranks."""
    if mesh is None:
        return {"ranks": count}
    names = getattr(mesh, "mesh_dim_names", None)
    axes = dict(zip(names, mesh.shape, strict=True)) if names else mesh  # type: ignore[union-attr]
    if (
        not isinstance(axes, Mapping)
        or not axes
        or not all(isinstance(size, int) and size > 0 for size in axes.values())
    ):
        hint = f"name axes with their sizes, such as mesh={{'a': {count}}}; a DeviceMesh needs `mesh_dim_names`"
        raise ConfigurationError(f"`mesh` is {mesh!r}", code="U0205", hint=hint)
    ranks = math.prod(axes.values())
    if ranks != count:
        what = ", ".join(f"`{name}` of {size}" for name, size in axes.items())
        raise ConfigurationError(
            f"the mesh ({what}) has {ranks} ranks, but {count} {'process runs' if count == 1 else 'processes run'}",
            code="U0205",
            hint=f"start with `torchrun --nproc-per-node {ranks}`, or leave the mesh out",
        )
    return {str(name): int(size) for name, size in axes.items()}


def _shared(captured: Capture) -> dict[str, Any]:
    """What other ranks must know of a capture."""
    constants = [i for i in captured.inputs.inputs if i.cls == "constant"]
    for position, value in captured.return_constants.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise StepError(f"the step returns a {type(value).__name__} (leaf {position})", code="U0121")
    return {
        "graph": captured.message,
        "inputs": _agreement.described(captured.inputs),
        "returns": pytree.treespec_dumps(captured.returns),
        "return_constants": list(captured.return_constants.items()),
        "constants": [
            [i.name, str(i.tensor.dtype).removeprefix("torch."), list(i.tensor.shape), i.paths] for i in constants
        ],
        "kept": [*captured.kept.replaced, *captured.kept.written],
        "replaced": captured.kept.replaced,
        "left": captured.kept.left,
        "gradients": captured.kept.gradients,
    }


def _plain_pins(pins: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, str]]:
    return {pattern: {axis: str(p) for axis, p in axes.items()} for pattern, axes in (pins or {}).items()}


def _text_of(source: str | Path) -> str:
    """A text, or the content of the file that it is the path of."""
    if isinstance(source, str) and "\n" in source:
        return source
    try:
        return Path(source).read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read `{source}`: {error.strerror}", code="U0010") from None


def _given_plan(plan: Plan | str | Path | None, graph: _native.Graph, mesh: dict[str, int]) -> Plan | None:
    """The plan that the user gave, checked against the graph and the ranks."""
    if plan is None:
        return None
    given = Plan(plan.native if isinstance(plan, Plan) else _text_of(plan), graph)
    if list(given.mesh.items()) != list(mesh.items()):
        raise ConfigurationError(
            f"the plan is for mesh {given.mesh}, this run has {mesh}",
            code="U0203",
            hint="start as many ranks as the plan has, or plan again",
        )
    graph.rank_graph(given.native, 0)
    return given


_OTHER_MODE = "change it back, or call `sync` and then `parallelize` again"
_OTHER_BATCH = "a captured step is for one shape of batch: pad to it, or call `sync` and then `parallelize` for another"


def _changed(what: str, before: str, hint: str = _OTHER_BATCH) -> StepError:
    return StepError(what, code="U0122", cause=before, hint=hint)
