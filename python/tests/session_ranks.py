"""What the ranks of the session's tests run; see ``test_session.py``."""

from __future__ import annotations

import copy
import io
import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import steps
import torch
import torch.utils._pytree as pytree
from torch.multiprocessing.reductions import StorageWeakRef

import unisono
from unisono.plans import Plan

DATA, STATE = ("batch.*",), ("params.*", "optimizer.*")

#: Pins of each family of plans, for an axis `a`.
FAMILIES: dict[str, dict[str, str]] = {
    "free": {},
    "batch cut": {"batch.*": "shard(0)", "params.*": "replicate", "optimizer.*": "replicate"},
    "state cut": {"batch.*": "shard(0)", "params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "tensors cut": {"batch.*": "replicate"},
    "memory limited": {"batch.*": "shard(0)"},
    "experts cut": {"params.*experts*": "shard(0)", "optimizer.*experts*": "shard(0)"},
    "layer cut": dict.fromkeys(("params.up", "params.down", "optimizer.*up*", "optimizer.*down*"), "shard(0)"),
    "sequence cut": {"batch.*": "shard(1)", "params.*": "replicate"},
    "frames cut": {"batch.noisy": "shard(2)", "batch.clean": "shard(2)", "params.*": "replicate"},
}

#: Machines of families that are not planned for one that is eager to cut.
CLUSTERS = {"memory limited": steps.SLOW_LINKS, "experts cut": steps.SCARCE_LINKS, "layer cut": steps.SCARCE_LINKS}

#: Ends the name of a family whose collectives are exchanges.
DIRECTLY = ", directly"

#: Ends the name of a family whose operations run as kernels where they can.
FUSED = ", fused"

#: Ends the name of a family in which each rank computes its batch in two slices.
SLICED = ", sliced"

#: Ends the name of a family in which each slice gathers the state that it needs, because a memory limit leaves no room to hold it.
GATHERED = ", gathered in each slice"

#: Ends the name of a family in which backward computes again what it can of forward.
RECOMPUTED = ", recomputed"

#: Ends the name of a family in which what it can of forward is on the host until backward.
OFFLOADED = ", offloaded"

#: The part of the memory that the best plan takes of which a limited one must make do.
MEMORY_SHARE = 0.65

#: The same where nothing but gathers in each slice keeps it.
GATHERED_SHARE = 0.55


def cases(ranks: int) -> Iterator[tuple[str, str]]:
    """The models and families that a number of ranks runs."""
    if ranks == 1:
        yield from ((model, "free") for model in ("gpt", "gpt_adamw", "mlp", "llama"))
        yield from ((model, f"free{FUSED}") for model in ("gpt", "gpt_adamw", "llama"))
        yield from ((model, f"free{SLICED}") for model in ("gpt_adamw", "mlp", "llama"))
        yield from ((model, f"free{RECOMPUTED}") for model in ("gpt_adamw", "mlp", "llama"))
        return
    for model in ("gpt", "mlp", "llama"):
        pinned = ("batch cut", "state cut", "tensors cut") if ranks == 2 or model == "mlp" else ("state cut",)
        yield from ((model, family) for family in ("free", *pinned))
    if ranks == 2:
        for model in ("gpt_adamw", "mlp", "llama"):
            yield from ((model, f"{family}{SLICED}") for family in ("batch cut", "state cut", "tensors cut"))
        yield "llama", f"state cut{GATHERED}"
        yield from (("gpt_adamw", f"{family}{RECOMPUTED}") for family in ("state cut", "tensors cut"))
        yield from (("gpt_adamw", f"{family}{OFFLOADED}") for family in ("batch cut", "state cut", "tensors cut"))
        yield "gpt_adamw", "state cut"
        yield "gpt_adamw", "memory limited"
        yield from (
            (model, f"{family}{FUSED}") for model in ("gpt_adamw", "llama") for family in ("batch cut", "state cut")
        )
        yield from (("gpt_adamw", f"{family}{DIRECTLY}") for family in ("batch cut", "state cut", "tensors cut"))


def compare_all() -> None:
    """Compares all cases."""
    write_compared(cases)


def write_compared(cases: Callable[[int], Iterator[tuple[str, str]]]) -> None:
    """Runs the cases of this number of ranks and writes for each the largest differences from one device, and the plan, as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    found: dict[str, Any] = {}
    for model, family in cases(ranks):
        try:
            found[f"{model}, {family}"] = compare(model, family, ranks)
        except Exception:
            found[f"{model}, {family}"] = {"error": traceback.format_exc()}
    Path(f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


def compare(model: str, family: str, ranks: int) -> dict[str, Any]:
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family.split(", ")[0]].items()}
    alone, together = getattr(steps, model)(), getattr(steps, model)()
    settings: dict[str, Any] = {
        "model": together.model,
        "optimizer": together.optimizer,
        "example": together.batches[0],
        "mesh": {"a": ranks},
        "pins": pins,
        "cluster": CLUSTERS.get(family, steps.EAGER_TO_CUT),
    }
    settings["fuse"], settings["micro_batches"] = family.endswith(FUSED), 2 if family.endswith(SLICED) else 1
    settings["recompute"] = "full" if family.endswith(RECOMPUTED) else None
    settings["offload"] = "full" if family.endswith(OFFLOADED) else None
    free, limit = None, None
    if family == "memory limited":
        free = unisono.parallelize(together.step, **settings).plan
        limit = int(MEMORY_SHARE * free.prediction["peak_bytes"])
    if family.endswith(GATHERED):
        settings |= {"micro_batches": 2, "recompute": "none", "offload": "none"}
        limit = int(GATHERED_SHARE * unisono.parallelize(together.step, **settings).plan.prediction["peak_bytes"])
    if family.endswith(DIRECTLY):
        settings["plan"] = _made_direct(unisono.parallelize(together.step, **settings).plan, ranks)
    step = unisono.parallelize(together.step, memory_limit=limit, **settings)
    returned = 0.0
    for batch in alone.batches:
        expected, found = alone.step(*batch), step(*batch)
        leaves = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
        returned = max([returned, *(difference(a, b) for a, b in leaves)])
    step.sync()
    now, wanted = together.model.state_dict(), alone.model.state_dict()
    state = {name: difference(now[name], wanted[name]) for name in wanted}
    worst = max(state, key=lambda name: state[name])
    kept = optimizer_difference(together, alone)
    return {
        "returned": returned,
        "state": state[worst],
        "worst": worst,
        "optimizer": kept,
        "plan": step.plan.layouts,
        "micro-batches": step.plan.micro_batches,
        "gathers in each": 'gathers = "each"' in step.plan.text,
        "collectives": step.plan.prediction["collectives"],
        "exchanges": step.rank_graph.text().count("= _c10d_functional::all_to_all_single"),
        "explained": step.plan.explain(),
        "kernels": str(step._captured[0].executor.program).count("= kernel "),
        "peak": step.plan.prediction["peak_bytes"],
        "free peak": free and free.prediction["peak_bytes"],
        "free plan": free and free.layouts,
    }


def _made_direct(plan: Plan, ranks: int) -> Path:
    """A file with the plan in which collectives of up to 64 KiB are exchanges."""
    assert "direct" not in plan.passes
    limits = ", ".join(f"{kind} = {1 << 16}" for kind in ("all_reduce", "all_gather", "reduce_scatter"))
    (axis,) = plan.mesh
    file = Path(f"direct{torch.distributed.get_rank()}.toml")
    file.write_text(plan.text.replace("[passes]", f"[passes]\ndirect = {{ {axis} = {{ ranks = {ranks}, {limits} }} }}"))
    return file


def optimizer_difference(one: steps.Training, other: steps.Training) -> float:
    """The largest difference of the optimizers' states."""
    worst = 0.0
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        for key, value in other.optimizer.state[b].items():
            worst = max(worst, difference(torch.as_tensor(one.optimizer.state[a][key]), torch.as_tensor(value)))
    return worst


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected number."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = expected.abs().max().double().clamp(min=1e-30)
    return float((found.double() - expected.double()).abs().max() / scale)


def give_up_and_take_back() -> None:
    """State is cut; what the user's own tensors hold before, between and after steps is written as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES["state cut"].items()}
    alone, together = steps.gpt(count=4, batch=4 * ranks), steps.gpt(count=4, batch=4 * ranks)
    batches = alone.batches
    halves = [pytree.tree_map(lambda part: part[: 2 * ranks], batch) for batch in batches]

    def parallel(example: Any) -> Any:
        return steps.parallelize(together, {"a": ranks}, pins, example)

    def kept() -> int:
        states = [value for state in together.optimizer.state.values() for value in state.values()]
        tensors = [*together.model.parameters(), *(value for value in states if isinstance(value, torch.Tensor))]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def off() -> float:
        wanted = alone.model.state_dict()
        return max(difference(value, wanted[name]) for name, value in together.model.state_dict().items())

    name, parameter = max(together.model.named_parameters(), key=lambda item: item[1].numel())
    strides, elsewhere = parameter.stride(), parameter.detach()
    storages = {key: StorageWeakRef(value.untyped_storage()) for key, value in together.model.named_parameters()}
    found: dict[str, Any] = {"bytes": [kept()]}
    parallel(batches[0])  # for its plan alone
    found["untouched"] = bool(parameter.isfinite().all())
    step = parallel(batches[0])
    loaded = {key: value * 1.25 for key, value in alone.model.state_dict().items()}
    alone.model.load_state_dict(loaded)
    together.model.load_state_dict(loaded)
    for batch in batches[:2]:
        alone.step(*batch)
        step(*batch)
    found["bytes"].append(kept())
    found["nan"] = bool(_values_of(parameter).isnan().all())
    cut = [key for key in storages if key != name and f"params.{key}" in step.plan.layouts]
    found["freed"] = bool(cut) and all(storages[key].expired() for key in cut)
    found["refused"] = []
    for use in (lambda: parallel(halves[2]), lambda: together.model(batches[2][0])):
        try:
            use()
        except unisono.errors.StepError as error:
            found["refused"].append([error.code, error.hint])
    step.sync()
    found["called"] = difference(together.model(batches[2][0]), alone.model(batches[2][0]))
    found["bytes"].append(kept())
    found["synced"] = off()
    found["in place"] = bool(torch.equal(elsewhere, parameter)) and elsewhere.data_ptr() == parameter.data_ptr()
    found["strides"] = parameter.stride() == strides
    for model in (alone.model, together.model):
        with torch.no_grad():
            torch._foreach_mul_(list(model.parameters()), 0.75)
    alone.step(*batches[2])
    step(*batches[2])
    found["nan again"] = bool(_values_of(parameter).isnan().all())
    step.sync()
    found["written"] = off()
    step = parallel(halves[3])
    alone.step(*halves[3])
    step(*halves[3])
    step.sync()
    found["other batch"] = off()
    found["cut"] = f"params.{name}" in step.plan.layouts
    Path(f"given{os.environ['RANK']}.json").write_text(json.dumps(found))


def _values_of(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().clone()


def _doors(model: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str, module: str) -> dict[str, Any]:
    """Ways to read or write a parameter that a step keeps sharded."""
    parameter, part = model.get_parameter(name), model.get_submodule(module)
    loaded = {key: torch.zeros(value.shape) for key, value in model.named_parameters()}
    averaged = copy.deepcopy(torch.nn.Linear(2, 2))
    state = next(v for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor) and v.dim())
    return {
        "state_dict": model.state_dict,
        "save": lambda: torch.save(dict(model.named_parameters()), io.BytesIO()),
        "save state": lambda: torch.save(optimizer.state_dict(), io.BytesIO()),
        "deepcopy": lambda: copy.deepcopy(model),
        "data": lambda: parameter.data,
        "detach": parameter.detach,
        "numpy": lambda: parameter.detach().numpy(),
        "item": lambda: parameter.sum().item(),
        "average": lambda: averaged.weight.data.lerp_(parameter, 0.1),
        "average list": lambda: torch._foreach_lerp_([averaged.weight], [parameter], 0.1),
        "clamp_": lambda: parameter.clamp_(-1, 1),
        "fill": lambda: torch.nn.init.zeros_(parameter),
        "data =": lambda: setattr(parameter, "data", loaded[name]),
        "submodule": lambda: part(torch.zeros(2, parameter.shape[-1])),
        "functional": lambda: torch.nn.functional.linear(torch.zeros(2, parameter.shape[-1]), parameter),
        "load": lambda: model.load_state_dict(loaded, strict=False),
        "load part": lambda: part.load_state_dict({"weight": loaded[name]}, strict=False),
        "half": model.half,
        "norm": lambda: torch.nn.utils.parameters_to_vector([parameter]),
        "state": lambda: state.abs().max(),
        "compare": lambda: parameter == 0,
        "index": lambda: parameter[0],
        "iterate": lambda: list(parameter),
        "float": lambda: float(parameter.max()),
        "data_ptr": parameter.data_ptr,
    }


def doors() -> None:
    """Every way to read what is kept sharded is tried between steps; what each came to is written as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES["state cut"].items()}
    training = steps.gpt(count=2, batch=4 * ranks)
    step = steps.parallelize(training, {"a": ranks}, pins)
    step(*training.batches[0])
    name = next(
        key
        for key, value in training.model.named_parameters()
        if value.dim() == 2 and f"params.{key}" in step.plan.layouts and "up" in key
    )
    parameter = training.model.get_parameter(name)
    found: dict[str, Any] = {}
    for door, use in _doors(training.model, training.optimizer, name, name.rpartition(".")[0]).items():
        try:
            use()
            found[door] = "open"
        except unisono.errors.StepError as error:
            found[door] = [error.code, error.hint, error.place]
        except Exception as error:
            found[door] = repr(error)
    known = [
        parameter.shape,
        parameter.numel(),
        parameter.requires_grad,
        parameter.grad,
        str(parameter),
        parameter.dtype,
    ]
    training.optimizer.zero_grad()
    step(*training.batches[1])
    step.sync()
    open_again = bool(parameter.isfinite().all()) and type(parameter) is torch.nn.Parameter
    training.model.load_state_dict(training.model.state_dict())
    Path(f"doors{os.environ['RANK']}.json").write_text(
        json.dumps({"doors": found, "shown": known[4], "open again": open_again})
    )


def several_optimizers() -> None:
    """Two networks learn in turn, each by its own optimizer; the differences from one device are written as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES["state cut"].items()}
    alone, together = steps.adversaries(), steps.adversaries()
    step = steps.parallelize(together, {"a": ranks}, pins)
    returned = [difference(step(*batch), alone.step(*batch)) for batch in alone.batches]
    step.sync()
    pairs = zip(together.model.state_dict().values(), alone.model.state_dict().values(), strict=True)
    kept = [difference(found, wanted) for found, wanted in pairs]
    for one, other in zip(together.optimizer, alone.optimizer, strict=True):
        for found, wanted in zip(one.state.values(), other.state.values(), strict=True):
            kept += [difference(torch.as_tensor(found[key]), torch.as_tensor(wanted[key])) for key in wanted]
    cut = [name for name in step.plan.layouts if name.startswith("optimizer.")]
    Path(f"several{os.environ['RANK']}.json").write_text(json.dumps({"off": max(returned + kept), "cut": cut}))
