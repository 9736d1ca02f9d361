"""Automatic casts (``torch.autocast``) of a kind of device that is not there, on the tensors of the processor that stand for its own."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

_PROCESSOR = "cpu"


class _Stopped(BaseException):  # so that no code between takes it for an error
    """The call that PyTorch makes of one."""


class Casts:
    """Casts as they are done for a kind of device.

    PyTorch decides what is cast to what in C++, by the device of a tensor and by lists of operations, one for each kind of device. It is
    asked, not copied: each call is tried on tensors without data that say that they are on the device, and stopped where the operation
    itself would begin. What arrives there is the call with its casts.

    Args:
        kind: the kind of device, as PyTorch calls it.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._mode = FakeTensorMode()
        self._examples: dict[torch.dtype, torch.Tensor] = {}
        self._cast: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._libraries: dict[tuple[str, str], torch.library.Library] = {}
        self._asked: set[torch._ops.OpOverloadPacket[Any, Any]] = set()
        self._until_end = contextlib.ExitStack()

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Lets ``torch.autocast``, whatever kind of device it names, cast as it would for this kind of device."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._until_end)
            stack.enter_context(_unchanged(_PROCESSOR))
            stack.enter_context(_unchanged(self._kind))
            for name in ("__init__", "__enter__", "__exit__"):
                stack.enter_context(mock.patch.object(torch.autocast, name, getattr(self, name.strip("_"))()))
            stack.enter_context(mock.patch.object(torch, "clear_autocast_cache", self._cast.clear))
            yield

    def init(self) -> Callable[..., None]:
        """``torch.autocast.__init__``, for a device that is not there."""
        made = torch.autocast.__init__

        def init(
            autocast: Any,
            device_type: str,
            dtype: torch.dtype | None = None,
            enabled: bool = True,
            cache_enabled: bool | None = None,
        ) -> None:
            # PyTorch switches casts for a device that is not there off, with a warning.
            made(autocast, self._kind, dtype, False, cache_enabled)
            autocast._enabled = enabled
            if enabled:
                self._register()

        return init

    def enter(self) -> Callable[..., Any]:
        """``torch.autocast.__enter__``: the processor's casts are on and off as the device's are."""
        made = torch.autocast.__enter__

        def enter(autocast: Any) -> Any:
            entered = made(autocast)
            self._mirror()
            return entered

        return enter

    def exit(self) -> Callable[..., Any]:
        """``torch.autocast.__exit__``."""
        made = torch.autocast.__exit__

        def exit(autocast: Any, *error: Any) -> Any:
            left = made(autocast, *error)
            self._mirror()
            return left

        return exit

    def _mirror(self) -> None:
        torch.set_autocast_enabled(_PROCESSOR, torch.is_autocast_enabled(self._kind))
        torch.set_autocast_dtype(_PROCESSOR, torch.get_autocast_dtype(self._kind))

    def _register(self) -> None:
        """Puts the device's casts in place of the processor's, once."""
        if self._libraries:
            return
        device, processor = (
            set(torch._C._dispatch_get_registrations_for_dispatch_key(_key(kind))) for kind in (self._kind, _PROCESSOR)
        )
        for name in sorted(device | processor):
            operation = _overload(name)
            if name not in device:
                kernel: Any = torch.library.fallthrough_kernel
            elif operation is None:
                continue
            else:
                kernel = self._kernel(operation)
            self._library(name, _key(_PROCESSOR)).impl(name.partition("::")[2], kernel, _key(_PROCESSOR))

    def _library(self, name: str, key: str) -> torch.library.Library:
        namespace = name.partition("::")[0]
        if (namespace, key) not in self._libraries:
            library = self._until_end.enter_context(torch.library._scoped_library(namespace, "IMPL"))
            self._libraries[namespace, key] = library
        return self._libraries[namespace, key]

    def _kernel(self, operation: torch._ops.OpOverload[Any, Any]) -> Callable[..., Any]:
        casts = weakref.proxy(self)  # PyTorch never lets go of a function that was registered, nor of what that holds

        def kernel(*args: Any, **kwargs: Any) -> Any:
            told, (args, kwargs) = casts._told(operation, args, kwargs)
            with _without(_key(_PROCESSOR)):
                return told(*args, **kwargs)

        return kernel

    def _told(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The operation that PyTorch makes of such a call, and its arguments."""
        self._ask(operation)
        leaves, form = pytree.tree_flatten((args, kwargs))
        examples = [self._example(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(examples, form)
        try:
            with _disable_current_modes():
                operation(*args, **kwargs)
        except _Stopped as told:
            operation, args, kwargs = told.args
        else:
            raise AssertionError(f"{operation} was not stopped")
        given = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        leaves, form = pytree.tree_flatten((args, kwargs))
        with _without(_key(_PROCESSOR)):
            leaves = [
                self._cast_to(leaf.dtype, next(given)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
            ]
        return operation, pytree.tree_unflatten(leaves, form)

    def _ask(self, operation: Any) -> None:
        """Has all forms of an operation stopped where they would begin on the device."""
        packet = operation._overloadpacket
        if packet in self._asked:
            return
        self._asked.add(packet)
        for form in packet.overloads():
            overload = getattr(packet, form)

            def stop(*args: Any, _overload: Any = overload, **kwargs: Any) -> NoReturn:
                raise _Stopped(_overload, args, kwargs)

            key = f"Autograd{self._kind.upper()}"
            name = overload._schema.name + (
                f".{overload._schema.overload_name}" if overload._schema.overload_name else ""
            )
            self._library(name, key).impl(name.partition("::")[2], stop, key)

    def _example(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that says that it is on the device."""
        if tensor.dtype not in self._examples:
            with _disable_current_modes(), self._mode:
                self._examples[tensor.dtype] = torch.empty(1, dtype=tensor.dtype, device=self._kind)
        return self._examples[tensor.dtype]

    def _cast_to(self, dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in another type; parameters are cast once, as PyTorch does (``cached_cast`` in ``aten/src/ATen/autocast_mode.cpp``)."""
        if tensor.dtype == dtype:
            return tensor
        kept = (
            torch.is_autocast_cache_enabled()
            and dtype == torch.get_autocast_dtype(self._kind)
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        )
        if not kept:
            return tensor.to(dtype)
        if id(tensor) not in self._cast:
            self._cast[id(tensor)] = tensor, tensor.to(dtype)
        return self._cast[id(tensor)][1]


def _key(kind: str) -> str:
    return f"Autocast{kind.upper()}"


def _without(key: str) -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def _overload(name: str) -> torch._ops.OpOverload[Any, Any] | None:
    """The operation of that name, as the dispatcher writes it; none where it has no Python form."""
    namespace, _, rest = name.partition("::")
    packet, _, form = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet, None), form or "default", None)


@contextlib.contextmanager
def _unchanged(kind: str) -> Iterator[None]:
    """Leaves the casts of a kind of device as they were."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
