"""Stand-ins for classes of Python's own in the user's code, while a step is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.followed import class_of


class Kind(type):
    """Lets a class of ours answer as the number class that it stands for."""

    real: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.real

    def __hash__(cls) -> int:
        return hash(cls.real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


class TypeOf:
    """Stands for ``type``, which gives the class of what something stands for, as the user's code names it."""

    def __init__(self, named: Mapping[type, type]) -> None:
        """Takes what stands for classes in the user's code."""
        self._named = named

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The class of one argument, or a new class."""
        if len(arguments) != 1 or named:
            return type(*arguments, **named)
        (value,) = arguments
        if type(value) is FakeTensor:
            return nn.Parameter if isinstance(value, nn.Parameter) else torch.Tensor
        own = class_of(value)
        return self._named.get(own, own)

    def __mro_entries__(self, _bases: Any) -> tuple[type]:
        """Lets classes be derived from it."""
        return (type,)

    def __instancecheck__(self, instance: Any) -> bool:
        """Lets it say what is a class."""
        return isinstance(instance, type)

    def __subclasscheck__(self, subclass: type) -> bool:
        """Lets it say what is a class of classes."""
        return issubclass(subclass, type)

    def __eq__(self, other: object) -> bool:
        """It is ``type``."""
        return other is type or other is self

    def __hash__(self) -> int:
        """The same as that of ``type``."""
        return hash(type)

    def __getitem__(self, kind: Any) -> Any:
        """``type[kind]``."""
        return type[kind]

    def __getattr__(self, name: str) -> Any:
        """What ``type`` has."""
        return getattr(type, name)
