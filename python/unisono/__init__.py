"""Write a PyTorch training step for one device; it runs on many."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from unisono import errors
from unisono._native import __version__

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from unisono._deferred.making import deferred_init
    from unisono._deferred.models import materialize
    from unisono._patterns import forget_pattern, register_pattern
    from unisono._rules import register_rule
    from unisono.graph import StepGraph
    from unisono.parallel import ParallelStep
    from unisono.plans import Plan

__all__ = [
    "__version__",
    "capture",
    "cluster",
    "deferred_init",
    "errors",
    "forget_pattern",
    "materialize",
    "parallelize",
    "register_pattern",
    "register_rule",
]

#: What needs PyTorch is imported when it is first asked for.
_LATER = {
    "deferred_init": "unisono._deferred.making",
    "materialize": "unisono._deferred.models",
    "forget_pattern": "unisono._patterns",
    "register_pattern": "unisono._patterns",
    "register_rule": "unisono._rules",
}


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'unisono' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)


def capture(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    example: Any,
    device: str | None = None,
    cache: str | Path | None = None,
    rng: str = "torch",
) -> StepGraph:
    """Captures one training step (forward, loss, backward, clipping, optimizer) as a flat, functional graph.

    The step's Python code runs once, on tensors without data; model and optimizer are left as they are, except that the optimizer gets
    the state that its first step would create.

    Inputs of the graph are named ``params.<name>``, ``buffers.<name>``, ``optimizer.<parameter>.<key>``, ``hyper.<group>.lr``,
    ``batch.<argument path>`` and ``constants.<number>``; the groups of several optimizers are numbered on.

    Args:
        train_step: a function that does one step with ``model`` and ``optimizer``; it may close over them.
        model: the module that the step trains.
        optimizer: any optimizer of ``torch.optim`` that needs no closure, or several, each for parameters of its own.
        example: the tuple of arguments that the step is called with; only shapes, types and devices of its tensors matter.
        device: the kind of device to capture the step for, ``"cpu"`` or ``"cuda"``, whose kernels become operations of the graph, or a GPU
            by the name of its preset, such as ``"h100"``, by which PyTorch chooses kernels of attention: the kind of the parameters by
            default, and ``"cpu"`` where they are on ``meta``.
        cache: a folder in which captures are kept: one of a step that is the same in all that it reaches (code, objects, settings) is read
            from there. What cannot be known so is captured anew.
        rng: how random operations draw, ``"torch"`` or ``"counter"``, as for :func:`parallelize`; the last input of a graph that draws by
            a counter is ``rng.key``, the seed and the number of the step.

    Returns:
        The graph.

    Raises:
        StepError: the step's control flow or shapes depend on data, or it changes something that cannot be an update of state.
        UnsupportedError: the step contains something that cannot be captured yet.
    """
    from unisono._arguments import require_rng
    from unisono._call import Caller
    from unisono._capture import capture_step
    from unisono._capture.optimizer import together
    from unisono._captures import Captures, found_or_captured
    from unisono._counter import drawing
    from unisono._deferred.models import home_of
    from unisono._patterns import applied
    from unisono.graph import StepGraph

    require_rng(rng)
    optimizers = together(optimizer)
    call = Caller(train_step).of_example(example).on(home_of(model, optimizers))
    if cache is None:
        captured = capture_step(train_step, model=model, optimizers=optimizers, call=call, device=device)
        return drawing(StepGraph(applied(captured.message), captured), rng)
    message, found = found_or_captured(
        Captures(cache), train_step, model=model, optimizers=optimizers, call=call, device=device
    )
    return drawing(StepGraph(applied(message["graph"]), found), rng)


def cluster(name: str, nodes: int = 1, ranks: int | None = None) -> str:
    """The description of a cluster that need not be there, from published figures.

    Args:
        name: the kind of device: ``"h100"``, ``"mi300x"``, ...; ``unisono cluster`` lists them with their sources.
        nodes: how many nodes there are.
        ranks: how many devices of a node take part; all of them by default.

    Returns:
        The description (TOML), in which every value may be changed; ``cluster=`` of :func:`parallelize` and of
        :meth:`StepGraph.plan <unisono.graph.StepGraph.plan>` take it.

    Raises:
        ConfigurationError: there is no such kind of device, or a node has fewer of them.
    """
    from unisono import _native

    return _native.preset_text(f"{name}:{nodes}x{'' if ranks is None else ranks}")


def parallelize(
    train_step: Callable[..., Any],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    example: Any,
    mesh: Mapping[str, int] | str | None = None,
    micro_batches: int | None = None,
    recompute: str | None = None,
    reduce_dtype: torch.dtype | str | None = None,
    offload: str | None = None,
    stages: int | None = None,
    schedule: str | None = None,
    chunks: int | None = None,
    cuts: Sequence[int | str] | None = None,
    memory_limit: float | str | None = None,
    pins: Mapping[str, Mapping[str, str]] | None = None,
    forbid: Mapping[str, str | Sequence[str]] | Sequence[str] | str | None = None,
    plan: Plan | str | Path | None = None,
    cluster: str | Path | None = None,
    seed: int | None = None,
    compare_every: int = 100,
    keep_grads: bool = False,
    on_change: str = "capture",
    captures: int = 8,
    batch: str = "global",
    cache: str | Path | None = None,
    fuse: bool | Literal["auto"] = False,
    match_eager: bool = False,
    rng: str = "torch",
    graphs: str = "off",
    timeout: float = 1200.0,
    config: str | Path | None = None,
) -> ParallelStep:
    """Makes a distributed training step of an ordinary one.

    Start the script with ``torchrun`` to run on several ranks; without it there is one. Rank 0 captures and plans, the others receive the
    result; parameters, buffers and optimizer state start from rank 0's values.

    Args:
        train_step: a function that does one training step with ``model`` and ``optimizer``.
        model: the module that it trains.
        optimizer: any optimizer of ``torch.optim`` that needs no closure, or several, each for parameters of its own.
        example: the tuple of arguments that the step is called with, of the global batch, or a list, as a
            ``DataLoader`` gives it, or a dictionary of them by their names. Where the model is on a device, tensors may be on the host,
            here and at each call: each rank's shard is copied there, through pinned memory, and nobody waits for that.
        mesh: axes with their sizes, the outer one first, such as ``{"data": 2, "tensor": 4}``, or a ``DeviceMesh`` with named dimensions;
            by default, or with ``"auto"``, the planner chooses among all ways to make one or two axes, ``ranks``, or ``outer`` and
            ``inner``, and ``stages`` where these are faster; pins that name an axis have it choose among those with that axis. An
            axis called ``stages`` takes the program itself apart: each of its ranks runs a part of it, in micro-batches, and holds
            the state that this part uses.
        micro_batches: how many slices of its batch each rank computes one after the other, adding up their gradients: what forward keeps
            for backward takes that much less memory, and the step gives what it gives at once. Where something needs the whole batch in
            the middle, as batch norm does in training, all slices come that far first. Of a later batch that has no so many equal
            slices, fewer are made. By default the whole batch is computed at once, unless only slices keep the memory limit, or are
            faster under it.
        recompute: what of forward is computed again in backward instead of being held until then. By default what the step's own code
            checkpoints, and what the memory limit asks for besides, where that is faster than other ways to keep it. ``"none"`` computes
            nothing again, whatever the code says; ``"full"`` everything but numbers of PyTorch's generator, collectives, and what goes from
            one segment of forward into the next. The values are the same.
        reduce_dtype: the element type in which gradients are summed between ranks, such as ``torch.float32`` for gradients in bfloat16, or
            ``torch.bfloat16`` for half of what gradients in single precision send; also by name. Behind the sum a gradient has its own
            type again. By default sums are in the type of the gradient. Micro-batches of a rank are added up in that type in any case.
        offload: what is in memory of the host while the device does not need it: what forward leaves, until backward, and state that only
            the update reads, between steps. By default what the memory limit asks for, where the cluster description has a link to the host
            and that is faster than other ways to keep the limit. ``"none"`` for nothing; ``"activations"`` for what forward leaves, on a
            host alone too, where it saves nothing; ``"optimizer"`` for all of that state, and nothing else; ``"full"`` for everything but
            results of collectives. The values are the same. In pipeline stages each has on its host what it needs there
            by itself.
        stages: how many pipeline stages there are, where the mesh is not given; by default as many as are fastest.
        schedule: in which order each pipeline stage runs its micro-batches: ``"gpipe"``, ``"1f1b"``, ``"interleaved"``, ``"zb-h1"``,
            ``"zb-h2"``, ``"zb-v"`` or ``"dualpipe-v"``, or the path of a CSV file of actions, as ``torch.distributed.pipelining`` writes
            it, with a line for each stage, or ``"searched"`` for one that is made for what the parts of this step cost. By default the
            one that is expected to take least time within the memory limit, a searched one included.
        chunks: how many chunks of the program each stage has. By default one, or two where the schedule has several; a file says so itself.
        cuts: where the chunks begin, one for each but the first: the name of a module, such as ``"layers.4"``, whose first operation the
            chunk begins with, or the number of an operation of forward. By default where the slowest chunk takes least.
        memory_limit: most bytes of one rank: a number, or a text such as ``"4GiB"`` or ``"500 MB"``.
        pins: placements per axis by name pattern of inputs, such as ``{"batch.*": {"a": "shard(0)"}}``, or of modules: with
            ``{"outputs.layers.*": {"a": "shard(1)"}}`` whatever reads what such a module gives reads a shard of its second dimension.
            In a name of inputs ``*`` stands for any text, in a path of modules for any text between two dots.
        forbid: kinds of collectives that the plan does without, of ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``,
            ``"all_to_all"`` and ``"permute"``: along every axis, or by axis, as in ``{"data": ["all_gather"]}``. ``{"data": "*"}`` has
            nothing sent along an axis.
        plan: a plan to run instead of searching: a :class:`Plan`, its text, or a path.
        cluster: a cluster description, a path to one, or a preset such as ``h100:8x8``; by default this machine is measured once.
        seed: the seed of random operations, on every rank. By default numbers go on from the state that PyTorch's generators have when
            this is called, that of rank 0 on all ranks; with ``rng="counter"`` the seed is 0 then.
        compare_every: at the first step, and then every this many steps, the ranks compare hashes of the batch, the learning
            rates and, where the step draws random numbers, of PyTorch's generator; 0 to compare never. Of tensors beyond 1 MiB a sample of
            the bytes is hashed.
        keep_grads: whether each parameter has its gradient, replicated, as ``.grad`` when a step is over, as far as the step leaves it
            there. Without it ``.grad`` stays as it was.
        on_change: what happens at a call that no captured step can serve, because shapes, arguments that are no tensors, modes of the
            model, settings of the optimizer or what the step's code reads from outside have changed: ``"capture"`` captures and plans the
            step again, with a :class:`~unisono.errors.CaptureNotice`; ``"refuse"`` raises an error.
        batch: whether every rank is called with the ``"global"`` batch, or each with its shard of it (``"local"``), as a
            ``DistributedSampler`` gives it: shards of one size, concatenated along the first dimension in the order of the ranks. What the
            step computes and returns is of the global batch all the same.
        cache: a folder in which rank 0 keeps the capture, as for :func:`unisono.capture`, for the next start of the same program.
        fuse: whether groups of pointwise operations, norms and sums run as one loop each, compiled for this processor, or for CUDA where
            its compiler is there (not in steps that are graphs of a device), which moves less memory and rounds differently than PyTorch;
            :meth:`ParallelStep.kernels` lists them. With ``"auto"`` each group of operations is tried on a processor, as a loop and as
            PyTorch's operations, a hundredth of a second each, and runs as what takes less time; all ranks take what the first of them
            measured, and what was measured is kept for later starts. Steps then round as the machine's clock decides: ``True`` gives the
            same bits at every start.
        match_eager: whether those loops give the bits of eager PyTorch: each result is rounded to its type, and operations that would have
            other bits (sums, most exponentials) stay PyTorch's. That holds on processors with AVX2; on CUDA loops round between operations
            as PyTorch does, and single operations may differ in their last bit. Plans are predicted as without ``fuse``.
        rng: how random operations draw. ``"torch"``: as PyTorch does, so that masks are those of eager code; every rank draws them
            whole. ``"counter"``: by Philox from the seed, the number of the step and the place of an element in the global tensor. Each
            rank draws its own part, and masks are the same on any mesh, in any number of micro-batches and whatever is computed again,
            but not those of PyTorch. ``state_dict`` and checkpoints have the seed and the number of the step.
        graphs: ``"auto"``: on a device, steps without collectives and without random numbers of PyTorch's are captured as a graph of the
            device at the second step, and replayed; captured again when state has moved. :meth:`ParallelStep.graphs` says whether, and why
            not. ``"off"``: each operation is launched at each step.
        timeout: after how many seconds of waiting for other ranks in a step the run ends, on all ranks, with one error that says who has
            not come, where each rank stands and since when; 0 to wait as long as the process group does. Give more than what
            one rank may do alone between steps, such as an evaluation.
        captures: how many captured steps are kept, at most; the one that has not run for the longest time goes first.
        config: a TOML file with any of the settings from ``mesh`` on, under the same names; a setting that is given here and is not the
            default goes before it. Paths in it are relative to its folder.

    Returns:
        The step: called with the global batch on every rank, it returns what ``train_step`` returns.

    Raises:
        StepError: the step cannot be captured; when it is called, that it is given another batch on another rank.
        ConfigurationError: the mesh, a pin, the plan, the cluster description or the file of settings cannot be used.
        ResourceError: no plan fits the memory limit.
    """
    from unisono import _config
    from unisono.parallel import ParallelStep

    settings: dict[str, Any] = {
        "mesh": mesh,
        "micro_batches": micro_batches,
        "recompute": recompute,
        "reduce_dtype": reduce_dtype,
        "offload": offload,
        "stages": stages,
        "schedule": schedule,
        "chunks": chunks,
        "cuts": cuts,
        "memory_limit": memory_limit,
        "pins": pins,
        "forbid": forbid,
        "plan": plan,
        "cluster": cluster,
        "seed": seed,
        "compare_every": compare_every,
        "keep_grads": keep_grads,
        "on_change": on_change,
        "captures": captures,
        "batch": batch,
        "cache": cache,
        "fuse": fuse,
        "match_eager": match_eager,
        "rng": rng,
        "graphs": graphs,
        "timeout": timeout,
    }
    if config is not None:
        settings = _config.with_file(settings, config, parallelize.__kwdefaults__ or {})
    return ParallelStep(train_step, model=model, optimizer=optimizer, example=example, **settings)
