"""What users give to ``parallelize``, checked, in the forms that sessions have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unisono import _native
from unisono.errors import ConfigurationError
from unisono.plans import Plan

if TYPE_CHECKING:
    import torch

#: The mesh that the planner chooses.
SEARCHED = "auto"


def mesh_of(mesh: Mapping[str, int] | Any | None, count: int) -> dict[str, int]:
    """The axes of the mesh with their sizes, the outer one first, checked against the number of ranks.

    Where the planner is to choose (none, or ``"auto"``), one axis until it has.
    """
    if mesh is None or mesh == SEARCHED:
        return {"ranks": count}
    names = getattr(mesh, "mesh_dim_names", None)
    axes = dict(zip(names, mesh.shape, strict=True)) if names else mesh  # type: ignore[union-attr]
    if (
        not isinstance(axes, Mapping)
        or not axes
        or not all(isinstance(size, int) and size > 0 for size in axes.values())
    ):
        hint = f"name axes with their sizes, such as mesh={{'a': {count}}}, or {SEARCHED!r}; a DeviceMesh needs `mesh_dim_names`"
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


def planned_mesh(
    mesh: Mapping[str, int] | str | None, ranks: int | None, stages: int | None, held: int | None
) -> dict[str, Any]:
    """The planner's settings for a mesh that need not be there: its axes, or how many ranks and pipeline stages one is to have that is
    searched for; by default all the ranks that a cluster holds.

    Raises:
        ConfigurationError: it is no mesh, or neither it nor the cluster says how many ranks there are.
    """
    if mesh is not None and mesh != SEARCHED:
        if not isinstance(mesh, Mapping):
            hint = f'name axes with their sizes, such as mesh={{"data": 2, "tensor": 4}}, or {SEARCHED!r}'
            raise ConfigurationError(f"`mesh` is {mesh!r}", code="U0205", hint=hint)
        return {"mesh": dict(mesh), "ranks": ranks, "stages": stages}
    ranks = held if ranks is None else ranks
    if ranks is None:
        hint = 'say it: `ranks=8`, or `mesh={"data": 2, "tensor": 4}`'
        raise ConfigurationError("the cluster does not say how many ranks there are", code="U0205", hint=hint)
    return {"mesh": {}, "ranks": ranks, "stages": stages}


def plain_pins(pins: Any) -> dict[str, dict[str, str]]:
    """Pins as plain data; refuses what is no placement by axis by pattern."""
    if pins is not None and not isinstance(pins, Mapping):
        raise _bad_pins(f"`pins` is {pins!r}")
    for pattern, axes in (pins or {}).items():
        if not isinstance(axes, Mapping) or not axes:
            raise _bad_pins(f"the pin of `{pattern}` is {axes!r}")
        for axis, placement in axes.items():
            if not isinstance(placement, str):
                raise _bad_pins(f"the pin of `{pattern}` along `{axis}` is {placement!r}")
    return {str(pattern): {str(axis): p for axis, p in axes.items()} for pattern, axes in (pins or {}).items()}


def plain_forbid(forbid: Any) -> dict[str, list[str]]:
    """Kinds of collectives to do without as plain data, by axis; ``*`` is every axis."""
    if isinstance(forbid, str) or not isinstance(forbid, Mapping):
        forbid = {} if forbid is None else {"*": forbid}
    plain = {str(axis): [kinds] if isinstance(kinds, str) else kinds for axis, kinds in forbid.items()}
    for axis, kinds in plain.items():
        if not isinstance(kinds, Sequence) or not all(isinstance(kind, str) for kind in kinds):
            hint = 'name kinds of collectives, for all axes or by axis: ["all_to_all"], {"data": ["all_gather"]}'
            raise ConfigurationError(f"what is forbidden along `{axis}` is {kinds!r}", code="U0202", hint=hint)
    return {axis: list(kinds) for axis, kinds in plain.items()}


def _bad_pins(what: str) -> ConfigurationError:
    hint = 'pins map name patterns to placements per axis: {"params.*": {"ranks": "shard(0)"}}'
    return ConfigurationError(what, code="U0202", hint=hint)


def require_recompute(recompute: str | None) -> None:
    """Refuses what does not say what of forward is computed again."""
    if recompute not in (None, "none", "full"):
        hint = '"none" for nothing, "full" for all that can be, or leave it out for what the memory limit asks for'
        raise ConfigurationError(f"`recompute` is {recompute!r}", code="U0012", hint=hint)


def reduce_dtype_of(dtype: torch.dtype | str | None) -> str | None:
    """The element type in which gradients are summed between ranks, by its short name.

    Raises:
        ConfigurationError: it is none, or no real one of two bytes and more.
    """
    if dtype is None:
        return None
    # Not from the beginning: whoever reads and plans a graph does without PyTorch.
    from unisono._capture.wire import TORCH_DTYPES

    real = {short: one for short, one in TORCH_DTYPES.items() if one.is_floating_point and one.itemsize > 1}
    for short, one in real.items():
        if dtype in (one, short, str(one), str(one).removeprefix("torch.")):
            return short
    hint = f"one of {', '.join(map(str, real.values()))}, or leave it out for the types of the gradients"
    raise ConfigurationError(f"`reduce_dtype` is {dtype!r}", code="U0012", hint=hint)


def require_offload(offload: str | None) -> None:
    """Refuses what does not say what is on the host."""
    if offload not in (None, "none", "activations", "optimizer", "full"):
        hint = (
            '"none" for nothing, "activations" for what the memory limit asks for of what forward leaves, "optimizer" for the state '
            'that only the update reads, "full" for all of both'
        )
        raise ConfigurationError(f"`offload` is {offload!r}", code="U0012", hint=hint)


def require_rng(rng: str) -> None:
    """Refuses what does not say how random operations draw."""
    if rng not in ("torch", "counter"):
        hint = '"torch" for the numbers of eager PyTorch, "counter" for ones that each rank draws its own part of'
        raise ConfigurationError(f"`rng` is {rng!r}", code="U0012", hint=hint)


def require_graphs(graphs: str) -> None:
    """Refuses what does not say whether steps are graphs of a device."""
    if graphs not in ("auto", "off"):
        hint = '"auto" for graphs where a step can be one, "off" for none'
        raise ConfigurationError(f"`graphs` is {graphs!r}", code="U0012", hint=hint)


def require_fuse(fuse: object) -> None:
    """Refuses what does not say which groups are kernels."""
    if fuse is not True and fuse is not False and fuse != "auto":
        hint = 'True for all groups that move less, "auto" for those of them that take no longer here, or False'
        raise ConfigurationError(f"`fuse` is {fuse!r}", code="U0012", hint=hint)


def require_match_eager(match_eager: object) -> None:
    """Refuses what does not say whether kernels round as eager code does."""
    if match_eager is not True and match_eager is not False:
        hint = "True for kernels with the bits of eager PyTorch, or False"
        raise ConfigurationError(f"`match_eager` is {match_eager!r}", code="U0012", hint=hint)


def require_timeout(timeout: float) -> None:
    """Refuses what is no number of seconds."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 <= timeout < math.inf:
        hint = "a number of seconds, or 0 to wait for other ranks as long as the process group does"
        raise ConfigurationError(f"`timeout` is {timeout!r}", code="U0012", hint=hint)


#: Which groups of operations are kernels.
Fuse = bool | Literal["auto"]

#: Schedules of pipeline stages by name; ``searched`` is none of them, but made for the step.
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "searched")


@dataclass(frozen=True)
class Pipeline:
    """What a user says of pipeline stages."""

    schedule: str | None = None
    chunks: int | None = None
    cuts: Sequence[int | str] | None = None
    #: How many there are, where the mesh is searched for.
    stages: int | None = None

    def __post_init__(self) -> None:
        """Refuses what is no schedule or no number of chunks or stages, or does not say where they begin."""
        if self.schedule not in (None, *SCHEDULES) and not self._file:
            names = ", ".join(f'"{name}"' for name in SCHEDULES)
            hint = f'{names}, a file "*.csv" of actions, or leave it out for the one that takes less time'
            raise ConfigurationError(f"`schedule` is {self.schedule!r}", code="U0012", hint=hint)
        if not _is_count(self.chunks):
            hint = "a number of parts of the program for each stage, or leave it out"
            raise ConfigurationError(f"`chunks` is {self.chunks!r}", code="U0012", hint=hint)
        if not _is_count(self.stages):
            hint = "a number of pipeline stages, or leave it out for as many as are fastest"
            raise ConfigurationError(f"`stages` is {self.stages!r}", code="U0012", hint=hint)
        is_list = isinstance(self.cuts, Sequence) and not isinstance(self.cuts, str)
        if self.cuts is not None and not (
            is_list and all(isinstance(cut, str) or (isinstance(cut, int) and cut > 0) for cut in self.cuts)
        ):
            hint = 'one name of a module or number of an operation for each chunk but the first, such as ["layers.4"]'
            raise ConfigurationError(f"`cuts` is {self.cuts!r}", code="U0012", hint=hint)

    @property
    def _file(self) -> str | None:
        is_file = isinstance(self.schedule, str | Path) and str(self.schedule).endswith(".csv")
        return str(self.schedule) if is_file else None

    def said(self) -> bool:
        """Whether the user says anything of what stages there are."""
        return (self.schedule, self.chunks, self.cuts) != (None, None, None)

    def settings(self) -> dict[str, Any]:
        """The planner's settings, a file of actions with what is in it.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        schedule: Any = self.schedule
        if self._file:
            try:
                schedule = {"file": self._file, "text": Path(self._file).read_text()}
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"cannot read the schedule `{self._file}`: {error}", code="U0010") from None
        cuts = None if self.cuts is None else list(self.cuts)
        return {"schedule": schedule, "chunks": self.chunks, "cuts": cuts}


def _is_count(number: object) -> bool:
    """Whether it is a number of something that there is, or is not said."""
    return number is None or (type(number) is int and number >= 1)


def require_no_stages(mesh: Mapping[str, int] | str | None, stages: int | None) -> None:
    """Refuses a number of pipeline stages beside a mesh, which says it itself."""
    if stages is not None and mesh is not None and mesh != SEARCHED:
        hint = 'leave one of both out, or give the mesh an axis of them, as in mesh={"stages": 2, "data": 4}'
        raise ConfigurationError(f"`stages` is {stages}, beside a mesh", code="U0205", hint=hint)


def require_settings(
    compare_every: int, on_change: str, captures: int, batch: str, micro_batches: int | None, recompute: str | None
) -> None:
    """Refuses settings of a step that have no meaning."""
    if micro_batches is not None and (not isinstance(micro_batches, int) or micro_batches < 1):
        hint = "a number of slices, or 1 for the whole batch at once"
        raise ConfigurationError(f"`micro_batches` is {micro_batches!r}", code="U0012", hint=hint)
    require_recompute(recompute)
    if compare_every < 0:
        message = f"`compare_every` is {compare_every}"
        raise ConfigurationError(message, code="U0012", hint="a number of steps, or 0 to compare never")
    if on_change not in ("capture", "refuse"):
        hint = '"capture" captures the step again when something changes, "refuse" raises an error'
        raise ConfigurationError(f"`on_change` is {on_change!r}", code="U0012", hint=hint)
    if batch not in ("global", "local"):
        hint = '"global" where every rank is given the global batch, "local" where each is given its shard'
        raise ConfigurationError(f"`batch` is {batch!r}", code="U0012", hint=hint)
    if captures < 1:
        raise ConfigurationError(f"`captures` is {captures}", code="U0012", hint="at least one captured step is kept")


def text_of(source: str | Path) -> str:
    """A text, or the content of the file that it is the path of."""
    if isinstance(source, str) and "\n" in source:
        return source
    try:
        return Path(source).read_text()
    except OSError as error:
        raise ConfigurationError(f"cannot read `{source}`: {error.strerror}", code="U0010") from None


def cluster_text(source: str | Path) -> str:
    """A cluster description: a text, the content of a file, or that of a preset such as ``h100:8x8``.

    Raises:
        ConfigurationError: the file cannot be read or is no description, or there is no such preset.
    """
    if isinstance(source, str) and names_preset(source, Path()):
        return _native.preset_text(source)
    text = text_of(source)
    if text is not source:
        _native.cluster_ranks(text, str(source))  # an error names the file
    return text


def names_preset(source: str, folder: Path) -> bool:
    """Whether a text is the name of a preset rather than a description or the path of one, relative to a folder."""
    is_other = "\n" in source or "/" in source or Path(source).suffix
    return not is_other and not (folder / source).exists()


def given_plan(
    plan: Plan | str | Path | None, graph: _native.Graph, mesh: dict[str, int], *, any_mesh: bool
) -> Plan | None:
    """The plan that the user gave, checked against the graph and the ranks."""
    if plan is None:
        return None
    given = Plan(plan.native if isinstance(plan, Plan) else text_of(plan), graph)
    as_many = math.prod(given.mesh.values()) == math.prod(mesh.values())
    if not (any_mesh and as_many) and list(given.mesh.items()) != list(mesh.items()):
        raise ConfigurationError(
            f"the plan is for mesh {given.mesh}, this run has {mesh}",
            code="U0203",
            hint="start as many ranks as the plan has, or plan again",
        )
    graph.rank_graph(given.native, 0)
    return given
