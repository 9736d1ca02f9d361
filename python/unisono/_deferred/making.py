"""A context in which tensors are made without memory, and what is done to them is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from unisono import _devices
from unisono._capture.places import user_line
from unisono._deferred.record import Given, Operation, Record, View
from unisono._deferred.replay import values_of
from unisono.errors import UnsupportedError

_aten = torch.ops.aten
_META = torch.device("meta")

#: What makes tensors that may become parameters. Others are made at once, as the numbers that a model's code looks at are, unless random.
_MAKERS = {
    _aten.empty.memory_format,
    *(
        getattr(_aten, name).default
        for name in ("empty_strided", "empty_permuted", "empty_like", "new_empty", "new_empty_strided")
    ),
    *(getattr(_aten, name).default for name in ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")),
    *(getattr(_aten, name).default for name in ("full", "full_like", "new_full")),
}

#: What writes all of its first argument, whatever was there.
_FILLS = {
    *("uniform_", "normal_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_"),
    *("zero_", "fill_", "copy_"),
}

#: How many numbers are drawn behind a model, so that generators are in a state that tells that nothing has drawn or seeded since.
_LEFT_BY = 7919

#: The records of tensors that may be there still.
_RECORDS: list[Record] = []


@contextmanager
def deferred_init() -> Iterator[None]:
    """Builds models without memory: tensors that are made within are on ``meta``, and what initialises them is recorded.

    Within, they say that they are on the device where they are to be, so that what is left out on ``meta`` is done.
    :func:`unisono.parallelize` then makes on each rank the shards that it has, one tensor at a time, with the values that the model would
    have had on one device if PyTorch's generator was as it is here, on rank 0; :func:`unisono.materialize` makes a whole model. Both leave
    the generator as a model that is built at once does, unless something has drawn from it or seeded it in between: what is drawn there is
    not what it is on one device, nor is a second model that is built in a ``with`` of its own. Optimizers can be made within or afterwards.

    Code that looks at values gets them: what they depend on is done at once, and once more when the model is made.

    Raises:
        UnsupportedError: the model's code draws random numbers from a generator of its own, or by an operation that cannot be done later,
            such as one that writes into a tensor made of data; or it uses a tensor on ``meta`` that was made outside.
    """
    _RECORDS[:] = [record for record in _RECORDS if record.is_in_use()]
    record = Record(_devices.generator_states(_devices.current()))
    _RECORDS.append(record)
    with recording(record):
        yield
    if any(one.is_random for one in record.operations):
        _devices.draw(_devices.current(), _LEFT_BY)
        record.left = _devices.generator_states(_devices.current())


@contextmanager
def recording(record: Record) -> Iterator[None]:
    """Goes on with a record."""
    try:
        with _AsOnDevice(record), _Recording(record):
            yield
    finally:
        record.close()


def are_any() -> bool:
    """Whether there may be tensors that have a record."""
    return bool(_RECORDS)


def record_of(tensor: torch.Tensor) -> Record | None:
    """The record of a tensor that was made in :func:`deferred_init`, if it was."""
    return next((record for record in _RECORDS if tensor in record), None)


def forget(record: Record) -> None:
    """Forgets a record, of which the tensors have been made."""
    _RECORDS[:] = [one for one in _RECORDS if one is not record]


class _Recording(TorchDispatchMode):
    """Records what is done to tensors without memory."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation at once, or on `meta` if it makes or takes tensors without values."""
        kwargs = kwargs or {}
        if not (_is_random(func) or func in _MAKERS or any(one in self._record for one in _tensors((args, kwargs)))):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise _unsupported(
                "a generator of the user's draws",
                cause="random numbers are drawn when the model is made, and only PyTorch's own generator is then as it is here",
                hint="let it draw from PyTorch's own generator, which `torch.manual_seed` seeds",
            )
        written = _written(func, args, kwargs)
        if not all(self._is_recorded(one) for one in written):
            return self._at_once(func, args, kwargs, "it writes into a tensor that has values already")
        if _needs_values(func):
            return self._at_once(func, args, kwargs, "what it gives cannot be known without values")
        return self._recorded(func, args, kwargs, written)

    def _is_recorded(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is recorded, and has no values; an error if it has neither."""
        if tensor in self._record:
            return True
        if tensor.is_meta:
            raise _unsupported(
                "a tensor on `meta` from outside is used",
                cause="neither its values nor what initialises it is known within",
                hint="make it within the same `with unisono.deferred_init():`",
            )
        return False

    def _at_once(self, func: Any, args: Any, kwargs: Any, why: str) -> Any:
        """Runs an operation on values, for a reason that is told where it cannot be done."""

        def value(tensor: torch.Tensor) -> torch.Tensor:
            return values_of(self._record, tensor) if self._is_recorded(tensor) else tensor

        if _is_random(func):
            raise _unsupported(
                f"`{func}` draws random numbers at once",
                cause=f"{why}, and random numbers are drawn later, in the order of one device",
                hint="draw into a tensor that is made within, with `torch.empty` or `torch.zeros`, by `normal_` or `uniform_`",
            )
        args, kwargs = pytree.tree_map_only(torch.Tensor, value, (args, kwargs))
        return func(*args, **kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
        record = self._record
        for one in _tensors((args, kwargs)):
            if one in record:
                record.see(one)
        device = self._device(args, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": device}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        on_meta = pytree.tree_map_only(torch.Tensor, _without_values, (args, kwargs))
        named = {**on_meta[1], "device": _META} if _takes_device(func) else on_meta[1]
        said_args, said_kwargs = pytree.tree_map_only(torch.Tensor, self._named, (args, kwargs))
        try:
            made = func(*on_meta[0], **named)
        except NotImplementedError:  # there is none for `meta`
            return self._at_once(func, args, kwargs, "PyTorch has no kernel of it for `meta`")
        new = {record.add(one, device) for one in _tensors(made) if one not in record}
        changed = {record.view(one).memory for one in written}
        if not new and not changed and not _is_random(func):
            return made  # a view, which is known by its memory
        filled = new | (changed if _fills(func, args) else set())
        read = [*_tensors(args[1:] if _fills(func, args) else args), *_tensors(kwargs)]
        reads = {record.view(one).memory for one in read if one in record}
        views = tuple(record.view(one) for one in _tensors(made))
        written_to = frozenset(new | changed)
        said = (func, said_args, said_kwargs, views)
        record.operations.append(
            Operation(*said, frozenset(reads), written_to, frozenset(filled), _is_random(func), user_line())
        )
        return made

    def _named(self, tensor: torch.Tensor) -> View | Given:
        return self._record.view(tensor) if self._is_recorded(tensor) else Given(tensor, tensor._version)

    def _device(self, args: Any, kwargs: Any) -> torch.device:
        """Where what an operation makes is to be."""
        said = kwargs.get("device")
        if said is not None and torch.device(said).type != "meta":
            return torch.device(said)
        for one in _tensors((args, kwargs)):
            number = self._record.number(one)
            return one.device if number is None else self._record.device(number)
        return torch.get_default_device()


class _AsOnDevice(TorchFunctionMode):
    """Lets recorded tensors say of themselves what they would say on the device where they are to be."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__setitem__ and isinstance(args[2], int | float | complex):
            # PyTorch would make a tensor of the number on `meta`, unseen.
            args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype))
        if func is torch.Tensor.__deepcopy__ and type(args[0]) is torch.Tensor:
            return _copied(*args)
        answer = _ANSWERS.get(func)
        number = self._record.number(args[0]) if answer is not None else None
        if answer is None or number is None:
            return func(*args, **kwargs)
        return answer(self._record.device(number))


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A deep copy, which PyTorch makes by way of the memory."""
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


#: What is asked of a tensor about its device.
_ANSWERS: dict[Any, Callable[[torch.device], Any]] = {
    torch.Tensor.device.__get__: lambda device: device,  # type: ignore[attr-defined]
    torch.Tensor.is_meta.__get__: lambda device: False,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda device: device.type == "cpu",  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: lambda device: device.type == "cuda",  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda device: -1 if device.index is None else device.index,
}


def _tensors(of: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(of) if isinstance(one, torch.Tensor)]


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor
        if tensor.is_meta
        else torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
    )


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operation writes into, by its schema."""
    arguments = func._schema.arguments
    given = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
    return [one for argument, value in given if _is_written(argument) for one in _tensors(value)]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _fills(func: Any, args: Any) -> bool:
    """Whether an operation writes every byte of the memory of its first argument without reading any."""
    if func._schema.name.removeprefix("aten::") not in _FILLS or not isinstance(args[0], torch.Tensor):
        return False
    filled = args[0].numel() * args[0].element_size()
    return filled == args[0].untyped_storage().nbytes() and _is_dense(args[0])


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements are at one place in memory, and none is between them that is not the tensor's."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _needs_values(func: Any) -> bool:
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _unsupported(what: str, *, cause: str, hint: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} in `unisono.deferred_init`",
        code="U0130",
        place=user_line(),
        cause=cause,
        hint=hint,
    )
