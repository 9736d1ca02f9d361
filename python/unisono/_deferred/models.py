"""The tensors of a model and its optimizers that have no memory yet, and how they get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.optim import Optimizer

from unisono import _devices
from unisono._capture.optimizer import create_state
from unisono._deferred.making import are_any, forget, record_of, recording
from unisono._deferred.record import Record
from unisono._deferred.replay import replay, values_of
from unisono._ranks import Ranks
from unisono.errors import StepError


def materialize(model: nn.Module) -> nn.Module:
    """Makes all tensors of a model that was built in :func:`unisono.deferred_init`, where they are to be, and returns the model.

    Raises:
        StepError: a tensor was changed outside of :func:`unisono.deferred_init`, or is on ``meta`` for another reason.
    """
    deferred = Deferred.of(model, ())
    if deferred is not None:
        deferred.make(lambda _: None)
        deferred.go_on()
    return model


class Deferred:
    """Tensors on ``meta`` of which it is recorded how they are initialised."""

    def __init__(self, records: Sequence[Record], model: nn.Module | None, optimizers: Sequence[Optimizer]) -> None:
        """Takes a model and optimizers that have tensors of some records."""
        self._records, self._model, self._optimizers = records, model, optimizers

    @classmethod
    def of(cls, model: nn.Module | None, optimizers: Sequence[Optimizer]) -> Deferred | None:
        """Those of a model and optimizers, if there are any."""
        if model is not None and are_any():
            _make_attributes(model)
        found = [known(name, tensor) for name, tensor in _on_meta(model, optimizers)]
        records = {id(record): record for record in found}
        return cls(list(records.values()), model, optimizers) if records else None

    def create_states(self) -> None:
        """Makes the optimizers create the state that they lack, without memory."""
        with recording(self._records[-1]):
            for optimizer in self._optimizers:
                create_state(optimizer)

    def agree(self, ranks: Ranks) -> None:
        """Takes the random numbers of rank 0; an error on every rank if the models are not built alike on all."""
        if ranks.count == 1:
            return
        mine = [record.fingerprint() for record in self._records]
        told = [mine, [{kind: state.tolist() for kind, state in record.start.items()} for record in self._records]]
        theirs, starts = ranks.tell(told)
        error = None
        if mine != theirs:
            error = StepError(
                "the model is not built as on rank 0",
                code="U0123",
                cause="the operations that initialise it in `unisono.deferred_init`, or their arguments, are not the same",
                hint="build the same model on every rank, after the same `torch.manual_seed` where its code looks at random values",
            )
        ranks.raise_together(error)
        for record, start in zip(self._records, starts, strict=True):
            record.start = {kind: torch.tensor(state, dtype=torch.uint8) for kind, state in start.items()}

    def make(self, made: Callable[[torch.Tensor], None], others: Sequence[torch.Tensor] = ()) -> None:
        """Makes them, and other recorded ones, one after another; `made` hears of each, which is then where it is to be."""
        held: dict[int, list[torch.Tensor]] = {}
        for tensor in (*(tensor for _, tensor in _on_meta(self._model, self._optimizers)), *others):
            held.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        for record in self._records:
            mine = {record.view(some[0]).memory: some for some in held.values() if some[0] in record}

            def deliver(memory: int, storage: torch.UntypedStorage, record: Record = record, mine=mine) -> None:
                tensors = list({id(tensor): tensor for tensor in mine[memory]}.values())
                for tensor in tensors:
                    put(tensor, record.view(tensor).of(storage))
                for tensor in tensors:
                    made(tensor)

            replay(record, mine, deliver)
            forget(record)

    def go_on(self) -> None:
        """Lets PyTorch's generators go on behind what was drawn for the tensors, if nothing has drawn from them or seeded them since."""
        device = _devices.current()
        states = _devices.generator_states(device)
        for record in self._records:
            is_left = record.left is not None and _devices.are_same_states(record.left, states)
            if is_left and record.end is not None:
                _devices.set_generator_states(device, record.end)


def known(name: str, tensor: torch.Tensor) -> Record:
    """The record of a tensor on `meta`; an error where its values are nowhere."""
    record = record_of(tensor)
    if record is None:
        raise _unknown(f"`{name}` is on `meta`, and nothing says what is in it")
    if record.was_written(tensor):
        raise _unknown(f"`{name}` was written outside of `unisono.deferred_init`")
    return record


def intended_device(name: str, tensor: torch.Tensor) -> torch.device:
    """Where a tensor is, or is to be; an error where its values are nowhere."""
    if not tensor.is_meta:
        return tensor.device
    record = known(name, tensor)
    return record.device(record.view(tensor).memory)


def home_of(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> torch.device:
    """The device that state is on, or is to be; the host where it is on several or nowhere, which is refused later."""
    named = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
    trained = [("", one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    try:
        return _devices.device_of((name, intended_device(name, tensor)) for name, tensor in (*named, *trained))
    except StepError:
        return _devices.HOST


def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Puts a value in the place of a tensor, which stays the object that it is."""
    hooks, after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks if tensor.is_leaf else None
    torch._C._swap_tensor_impl(tensor, value.detach().requires_grad_(tensor.requires_grad))
    if hooks:
        tensor._backward_hooks = hooks
    if after:
        tensor._post_accumulate_grad_hooks = after


def _make_attributes(model: nn.Module) -> None:
    """Makes tensors that modules have beside parameters and buffers: a step reads them as constants."""
    state = {id(one) for one in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for one in pytree.tree_leaves(dict(vars(module))):
            if isinstance(one, torch.Tensor) and one.is_meta and id(one) not in state:
                record = record_of(one)
                if record is not None:
                    put(one, values_of(record, one))


def _on_meta(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors without memory, with their names."""
    tensors = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
    for optimizer in optimizers:
        groups = optimizer.param_groups
        tensors += [(f"group{i}.{j}", one) for i, group in enumerate(groups) for j, one in enumerate(group["params"])]
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        tensors += [(f"the optimizer's {key}", one) for state in states for key, one in state.items()]
    return ((name, one) for name, one in tensors if isinstance(one, torch.Tensor) and one.is_meta)


def _unknown(what: str) -> StepError:
    return StepError(
        what,
        code="U0130",
        cause="a model without memory gets its values by what was recorded in `unisono.deferred_init`, done again",
        hint="build and change the model within one `with unisono.deferred_init():`, or make its values first "
        "(`unisono.materialize(model)`, or `model.to_empty(device=..)`, then initialise or load); `unisono.capture` needs none",
    )
