"""State under its fully qualified names, wherever it is placed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unisono._capture.optimizer import state_of
from unisono._capture.paths import holds_tensors
from unisono._counter import KEY
from unisono._placements import Layout, is_plain, own_local, pieces, plain, to_local
from unisono._state import Held, State
from unisono.errors import ConfigurationError, UnisonoError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from unisono.session import Session

#: Between the key of a parameter's state and those of what is in a container there.
_INTO = "/"
_HINT = "load it into the model, optimizers and step that it was saved from; `strict=False` passes over names that are not in both"


@dataclass
class Entry:
    """One value of a state dict: state of the session, another tensor of the user's, or something that is no tensor."""

    #: The keys that lead to it.
    path: tuple[str, ...]
    held: Held | None = None
    tensor: torch.Tensor | None = None
    value: Any = None
    #: What takes another value, where it is no tensor.
    put: Callable[[Any], object] | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def shape(self) -> torch.Size | None:
        """The shape of the whole tensor, if it is one."""
        if self.held is not None:
            return None if self.held.item.number else self.held.item.tensor.shape
        return None if self.tensor is None else self.tensor.shape


def state_dict(session: Session, *, for_files: bool = False) -> dict[str, Any]:
    """See :meth:`unisono.parallel.ParallelStep.state_dict`; `for_files`, what is sharded in several blocks is no copy but ``Pieces``."""
    found: dict[str, Any] = {"model": {}}
    for entry in entries(session):
        place = found
        for key in entry.path[:-1]:
            place = place.setdefault(key, {})
        place[entry.path[-1]] = _value(session, entry, for_files)
    if session.optimizers:
        names = _names(session)
        groups = [
            {key: value for key, value in group.items() if not _is_kept(session.state, value)}
            | {"params": [names[id(parameter)] for parameter in group["params"]]}
            for group in _groups(session)
        ]
        found.setdefault("optimizer", {}).setdefault("state", {})
        found["optimizer"]["param_groups"] = groups
    return found


@torch.no_grad()
def load_state_dict(session: Session, given: Mapping[str, Any], *, strict: bool) -> None:
    """See :meth:`unisono.parallel.ParallelStep.load_state_dict`."""
    pairs: list[tuple[Entry, Any]] = []
    error: UnisonoError | None = None
    try:
        pairs = _paired(list(entries(session)), given, strict=strict)
        _require_groups(session, given)
    except UnisonoError as met:
        error = met
    session.ranks.raise_together(error)
    for entry, value in pairs:
        if entry.held is not None:
            _write(session, entry.held, value)
        elif entry.tensor is not None:
            entry.tensor.copy_(_full(value))
        elif entry.put is not None:
            entry.put(value)
    for group, other in zip(_groups(session), groups_in(given), strict=False):
        for key, value in other.items():
            if isinstance(group.get(key), torch.Tensor):
                group[key].copy_(_full(torch.as_tensor(value)))
            elif key != "params":
                group[key] = value


# What there is, and under which names.


def entries(session: Session) -> Iterator[Entry]:
    """Every value of the state dict, in the order that PyTorch has. Gradients are in none, as in PyTorch's own."""
    met: set[int] = set()
    for entry in (*_of_model(session), *_of_optimizers(session)):
        if entry.held is not None:
            met.add(id(entry.held))
        yield entry
    not_saved = {id(buffer) for buffer in session.model.buffers()} if session.model is not None else set[int]()
    for held in session.state.held():
        if id(held) not in met and id(held.item.tensor) not in not_saved and not held.item.is_gradient:
            yield Entry(("kept", held.item.name), held)
    if session.key is not None:
        yield Entry(("kept", KEY), tensor=session.key)
    replaced = {name: tensor for steps in session.steps for step in steps for name, tensor in step.between.replaced()}
    for name, tensor in replaced.items():
        yield Entry(("kept", name), tensor=tensor)


def _of_model(session: Session) -> Iterator[Entry]:
    modules = session.model.named_modules(remove_duplicate=False) if session.model is not None else ()
    for prefix, module in modules:
        tensors = {
            **module._parameters,
            **{k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set},
        }
        for key, tensor in tensors.items():
            if tensor is not None:
                yield _of_tensor(session.state, ("model", f"{prefix}.{key}" if prefix else key), tensor)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            key = f"{prefix}._extra_state" if prefix else "_extra_state"
            yield Entry(("model", key), value=module.get_extra_state(), put=module.set_extra_state)


def _of_optimizers(session: Session) -> Iterator[Entry]:
    names = _names(session)
    for group in _groups(session):
        for parameter in group["params"]:
            state = state_of(session.optimizers, parameter)
            for key, value in state.items():
                path = ("optimizer", "state", names[id(parameter)], key)
                held = session.state.number(parameter, key)
                if held is not None:
                    yield Entry(path, held)
                else:
                    yield from _within(session.state, path, state, key, value)


def _within(state: State, path: tuple[str, ...], holder: Any, key: Any, value: Any) -> Iterator[Entry]:
    """What is at a key of a container; of containers and objects with tensors in them, each tensor and number by itself."""
    if isinstance(value, torch.Tensor):
        # In containers those that the step changes are among what it keeps.
        if len(path[-1].split(_INTO)) == 1 or state.find(value) is None:
            yield _of_tensor(state, path, value)
    elif holds_tensors(value):
        parts = value if isinstance(value, dict | list | deque | tuple) else vars(value)
        for step, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            yield from _within(state, (*path[:-1], f"{path[-1]}{_INTO}{step}"), parts, step, part)
    elif not isinstance(holder, tuple):
        yield Entry(path, value=value, put=lambda new: holder.__setitem__(key, new))


def _is_kept(state: State, value: Any) -> bool:
    """Whether an entry of a group is a tensor that is among what the step keeps."""
    return isinstance(value, torch.Tensor) and state.find(value) is not None


def _of_tensor(state: State, path: tuple[str, ...], tensor: torch.Tensor) -> Entry:
    held = state.find(tensor)
    return Entry(path, held) if held is not None else Entry(path, tensor=tensor)


def _names(session: Session) -> dict[int, str]:
    """Fully qualified names of parameters by ``id``; of those that the model does not have, where the optimizer has them."""
    names = {
        id(parameter): f"group{index}.{position}"
        for index, group in enumerate(_groups(session))
        for position, parameter in enumerate(group["params"])
    }
    if session.model is not None:
        names |= {id(parameter): name for name, parameter in session.model.named_parameters()}
    return names


def _groups(session: Session) -> list[dict[str, Any]]:
    return [group for optimizer in session.optimizers for group in optimizer.param_groups]


# Values, whole and of this rank.


def _value(session: Session, entry: Entry, for_files: bool) -> Any:
    held = entry.held
    if held is None:
        return entry.value if entry.tensor is None else entry.tensor.detach()
    if held.item.number:
        return session.state.value(held).item()
    if session.ranks.count == 1:
        return session.state.local(held)
    from torch.distributed.tensor import DTensor

    local, layout = session.state.local(held), plain(held.layout)
    shape, stride = held.shape_and_stride()
    # A tensor of PyTorch's mesh is on its devices; files take what is on the host from there.
    if not is_plain(held.layout) or (held.on_host and for_files):
        if for_files:
            from unisono._pieces import Pieces  # takes PyTorch's checkpoints with it, which are slow to import

            return Pieces(shape, local, pieces(shape, held.layout, session.mesh, session.ranks.rank))
        local = own_local(session.state.value(held), layout, session.mesh, session.ranks.rank)
    placements = _placements(session, layout)
    return DTensor.from_local(local, _device_mesh(session), placements, run_check=False, shape=shape, stride=stride)


def _placements(session: Session, layout: Layout) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    found = []
    for axis in session.mesh:
        placement = layout.get(axis, "replicate")
        found.append(
            Replicate() if placement == "replicate" else Shard(int(placement.removeprefix("shard(").rstrip(")")))
        )
    return found


def _device_mesh(session: Session) -> DeviceMesh:
    if session.device_mesh is None:
        from torch.distributed.device_mesh import init_device_mesh

        device = next((held.item.tensor.device.type for held in session.state.held()), "cpu")
        session.device_mesh = init_device_mesh(device, tuple(session.mesh.values()), mesh_dim_names=tuple(session.mesh))
    return session.device_mesh


def _full(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor; a collective for one that is sharded."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[attr-defined]


def _write(session: Session, held: Held, value: Any) -> None:
    if held.item.number:
        session.state.write(held, torch.as_tensor(value))
    elif hasattr(value, "_pieces"):  # read into the shard already
        whole = session.state.needs_all(held)
        session.state.write_all(held, session.state.value(held)) if whole else session.state.write(held, held.shard)
    elif session.state.needs_all(held):
        session.state.write_all(held, _full(value))
    elif _is_placed_so(session, held.layout, value):
        session.state.write(held, value.to_local())
    else:
        session.state.write(held, to_local(_full(value), held.layout, session.mesh, session.ranks.rank))


def _is_placed_so(session: Session, layout: Layout, value: Any) -> bool:
    return (
        hasattr(value, "device_mesh")
        and is_plain(layout)
        and value.device_mesh == session.device_mesh
        and list(value.placements) == _placements(session, layout)
    )


# Checks.


def _paired(mine: list[Entry], given: Mapping[str, Any], *, strict: bool) -> list[tuple[Entry, Any]]:
    """What there is with what is given for it."""
    values = dict(leaves(given))
    missing = [entry.name for entry in mine if entry.path not in values]
    known = {entry.path for entry in mine}
    unknown = [".".join(path) for path in values if path not in known]
    if strict:
        require_names_alike("the state that is loaded", missing, unknown)
    pairs = [(entry, values[entry.path]) for entry in mine if entry.path in values]
    for entry, value in pairs:
        require_shape("the state that is loaded", entry, value.shape if isinstance(value, torch.Tensor) else None)
    return pairs


def leaves(given: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a state dict but for settings, with the keys that lead to them."""
    for section in ("model", "kept"):
        yield from (((section, name), value) for name, value in given.get(section, {}).items())
    for name, values in given.get("optimizer", {}).get("state", {}).items():
        yield from ((("optimizer", "state", str(name), key), value) for key, value in values.items())


def groups_in(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of optimizers in a state dict."""
    return given.get("optimizer", {}).get("param_groups", [])


def _require_groups(session: Session, given: Mapping[str, Any]) -> None:
    groups, names = groups_in(given), _names(session)
    mine = [[names[id(parameter)] for parameter in group["params"]] for group in _groups(session)]
    theirs = [list(group["params"]) for group in groups]
    if groups and mine != theirs:
        raise ConfigurationError(
            "the optimizer whose state is loaded has other groups of parameters",
            code="U0206",
            cause=f"it has {len(theirs)} of {[len(group) for group in theirs]} parameters, this one "
            f"{len(mine)} of {[len(group) for group in mine]}, or parameters of other names or in another order",
            hint="names are fully qualified ones, as `state_dict` of a step gives them; an optimizer's own `state_dict` numbers them",
        )


def require_names_alike(what: str, missing: list[str], unknown: list[str]) -> None:
    if missing or unknown:
        told = [f"{_listed(missing)} missing"] if missing else []
        told += [f"{_listed(unknown)} unknown here"] if unknown else []
        raise ConfigurationError(
            f"{what} is of another model, optimizer or step: {', '.join(told)}", code="U0206", hint=_HINT
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return (
        f"{shown} and {len(names) - 3} more are" if len(names) > 3 else f"{shown} {'is' if len(names) == 1 else 'are'}"
    )


def require_shape(what: str, entry: Entry, shape: Iterable[int] | None) -> None:
    mine = entry.shape()
    if mine is not None and (shape is None or list(shape) != list(mine)):
        theirs = "no tensor" if shape is None else f"of shape {list(shape)}"
        raise ConfigurationError(
            f"`{entry.name}` in {what} is {theirs}, here it is of shape {list(mine)}", code="U0206", hint=_HINT
        )
