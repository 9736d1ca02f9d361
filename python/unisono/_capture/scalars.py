"""Numbers that a step computes tensors with: those that are there before it are inputs of it, as learning rates are, and those that it has
read from tensors are these tensors.

PyTorch takes none of what stands for numbers, so its functions are called with tensors without dimensions in their place. Where one takes
no tensor, a number that is there before the step is taken for granted, and one that is read is refused.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.expressions import Expression
from unisono._capture.named import standing
from unisono._capture.number import Number

#: Functions of two operands, which may be tensors without dimensions as well as numbers.
_OF_TWO = (
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder", "fmod", "pow",
    "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip
#: Python would call an operator of the number's where one of these takes none, which makes another tensor.
_IN_PLACE = (
    "add_", "sub_", "subtract_", "mul_", "multiply_", "div_", "divide_", "true_divide_", "floor_divide_", "remainder_", "fmod_", "pow_",
    "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__", "__ipow__",
)  # fmt: skip
#: Those whose factor may be a tensor (:class:`unisono._capture.rewrites.LiveScalars`).
_WITH_FACTOR = ("add", "sub", "add_", "sub_", "addcmul", "addcmul_", "addcdiv", "addcdiv_")
_FACTORS = ("alpha", "value")
_LERP = ("lerp", "lerp_")
_CLAMP = ("clamp", "clamp_", "clip", "clip_")
_BOUND = ("clamp_min", "clamp_min_", "clamp_max", "clamp_max_")
#: Those in which a number stands at some places.
_CHOOSING = ("where", "masked_fill", "masked_fill_")
_FILLING = ("fill_", "full", "full_like", "tensor")
#: Functions of PyTorch's in Python that do no more with a number than to compute with it beside tensors.
_OF_FUNCTIONS = ("gumbel_softmax",)
#: Functions that take numbers only.
_SETTLED = (
    "view", "reshape", "expand", "repeat", "narrow", "select", "split", "chunk", "roll", "topk", "repeat_interleave", "unsqueeze",
    "zeros", "ones", "empty", "arange", "linspace", "rand", "randn", "randint", "randperm", "eye", "new_zeros", "new_ones", "new_full",
    "sum", "mean", "cumsum", "softmax", "uniform_", "normal_",
)  # fmt: skip
_NAMES = dict.fromkeys(
    (*_OF_TWO, *_IN_PLACE, *_WITH_FACTOR, *_LERP, *_CLAMP, *_BOUND, *_CHOOSING, *_FILLING, *_SETTLED)
)
#: The same of many tensors at once.
_EACH = tuple(
    f"_foreach_{name}{how}"
    for name in (
        "add", "sub", "mul", "div", "pow", "lerp", "addcmul", "addcdiv", "maximum", "minimum", "clamp_min", "clamp_max",
    )
    for how in ("", "_")
)  # fmt: skip
#: What is of one tensor by another name.
_OF_ONE = {"maximum": "clamp_min", "minimum": "clamp_max"}
_HALF = (torch.float16, torch.bfloat16)


class Scalars(Protocol):
    """Who gives what stands for numbers in tensor operations."""

    def scalar(self, expression: Expression) -> torch.Tensor | None:
        """The tensor without dimensions that stands for a number; ``None`` where it can only be taken for granted."""
        ...


def beside(scalars: Scalars, name: str, real: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch's, by its name, gives of operands among which are stand-ins for numbers."""
    name = name if name in _IN_PLACE else name.removeprefix("__").removesuffix("__")
    if name in _EACH:
        return _of_each(name, args, kwargs)
    if name in _OF_FUNCTIONS:
        return real(*args, **kwargs)
    among = args[1:] if name == "where" else args
    first = next((one for one in among if isinstance(one, torch.Tensor)), None)
    with contextlib.suppress(_Settled):
        if name in _FILLING:
            return _filled(scalars, name, real, [*args], kwargs)
        if first is not None and name == "roll":
            return _rolled(scalars, *args, **kwargs)
        if first is not None and name in _CLAMP:
            return _clamped(scalars, name, first, args, kwargs)
        if first is not None and name in (*_OF_TWO, *_IN_PLACE, *_LERP, *_BOUND, *_CHOOSING, *_WITH_FACTOR):
            if name in _LERP and first.dtype in _HALF:
                raise _Settled  # its weight would be rounded
            same_type = name in (*_LERP, *_BOUND, "masked_fill", "masked_fill_")
            like = functools.partial(_like, scalars, first, same_type=same_type)
            factors = {key: one for key, one in kwargs.items() if type(one) is Number and key in _FACTORS}
            made = {key: _tensor(scalars, one) for key, one in factors.items()}
            named = {key: like(one) if type(one) is Number else one for key, one in kwargs.items() if key not in made}
            return real(*(like(one) if type(one) is Number else one for one in args), **named, **made)
    return real(*settled(args), **{key: settled(one) for key, one in kwargs.items()})


def settled(given: Any) -> Any:
    """The same with numbers in the place of those that stand for some, in lists and tuples too."""
    if type(given) is Number:
        return given.settled()
    if type(given) in (list, tuple) and is_among(given):
        return type(given)([settled(one) for one in given])
    return given


def is_among(given: Any) -> bool:
    """Whether something stands for a number, or is a list or tuple with what does."""
    return type(given) is Number or (type(given) in (list, tuple) and any(map(is_among, given)))


@contextlib.contextmanager
def standing_in(scalars: Scalars, functions: Iterable[Any]) -> Iterator[None]:
    """Lets PyTorch's functions take stand-ins for numbers, also where the user's functions among these name them."""
    with contextlib.ExitStack() as stack:
        taking = stack.enter_context(_Taking.by(scalars))
        instead: dict[int, tuple[Any, Any]] = {}
        for holder in (torch.Tensor, torch):
            own = dict(vars(holder))
            for name in (*_NAMES, *_EACH):
                real = getattr(holder, name, None)
                if real is not None:
                    function = taking.of(holder, name, real)
                    instead[id(real)] = real, function
                    put_back = functools.partial(setattr, holder, name, own[name]) if name in own else None
                    stack.callback(put_back or functools.partial(delattr, holder, name))
                    setattr(holder, name, function)
        stack.enter_context(standing(functions, instead))
        yield


class _Taking:
    """Functions that take stand-ins for numbers in the place of PyTorch's. They are made once, and used by one trace after the other."""

    #: Those that no trace uses.
    _idle: ClassVar[list[_Taking]] = []

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._scalars: Scalars | None = None

    @classmethod
    @contextlib.contextmanager
    def by(cls, scalars: Scalars) -> Iterator[_Taking]:
        """Functions that ask ``scalars``."""
        taking = cls._idle.pop() if cls._idle else cls()
        taking._scalars = scalars
        try:
            yield taking
        finally:
            taking._scalars = None
            cls._idle.append(taking)

    def of(self, holder: Any, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """What is to be in the place of a function."""
        before, function = self._made.get((id(holder), name), (None, None))
        if before is not real:
            function = self._taking(name, real)
            self._made[id(holder), name] = real, function
        assert function is not None
        return function

    def _taking(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real, updated=())
        def taking(*args: Any, **kwargs: Any) -> Any:
            stands = is_among(args) or (kwargs and is_among((*kwargs.values(),)))
            if stands or (name == "tensor" and _is_of_tensors((*args, *kwargs.values()))):
                assert self._scalars is not None
                return beside(self._scalars, name, real, args, kwargs)
            return real(*args, **kwargs)

        return taking


class _Settled(Exception):  # noqa: N818
    """What stands for a number cannot be a tensor here."""


def _tensor(scalars: Scalars, number: Number) -> torch.Tensor:
    found = scalars.scalar(number.expression)
    if found is None or number.kind not in (int, float):
        raise _Settled
    return found.to(torch.int64 if number.kind is int else torch.float64)


def _like(scalars: Scalars, operand: torch.Tensor, number: Number, *, same_type: bool = False) -> torch.Tensor:
    """A tensor for a number, beside which an operand gives a result of the type that it gives beside the number.

    With `same_type` it is one of the operand's type, and on its device, as functions need that take no other.
    """
    common = torch.result_type(operand, number.kind(1))
    found = _tensor(scalars, number)
    if not same_type and operand.dim() and common == operand.dtype:
        return found  # it does not take part in the choice of a type, and is rounded as a number is
    if same_type:
        return found.to(operand.device, common)
    if common in _HALF:
        raise _Settled
    return found.to(common)


def _rolled(scalars: Scalars, x: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """A tensor that is rolled by a number along one dimension: its entries are looked up."""
    dims = dims[0] if isinstance(dims, list | tuple) and len(dims) == 1 else dims
    if type(shifts) is not Number or type(dims) is not int or not x.dim():
        raise _Settled
    size = x.shape[dims]
    places = (torch.arange(size, device=x.device) - _tensor(scalars, shifts).to(x.device)).remainder(max(size, 1))
    return x.index_select(dims, places)


def _clamped(scalars: Scalars, name: str, x: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """One bound after the other: PyTorch takes two tensors or two numbers."""
    bounds = dict(zip(("min", "max"), args[1:], strict=False)) | kwargs
    _note(scalars, bounds.values())
    tensors = {key: _like(scalars, x, one, same_type=True) for key, one in bounds.items() if type(one) is Number}
    for key, one in bounds.items():
        if one is not None:
            x = getattr(x, name)(**{key: tensors.get(key, one)})
    return x


def _filled(scalars: Scalars, name: str, real: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A tensor with a number in it everywhere."""
    at = {"fill_": 1, "full": 1, "full_like": 1, "tensor": 0}[name]
    given = args[at] if at < len(args) else kwargs.get("fill_value", kwargs.get("value", kwargs.get("data")))
    if name == "tensor" and isinstance(given, list | tuple):
        return _listed(scalars, given, args[1:], kwargs)
    if type(given) is not Number or kwargs.get("requires_grad"):
        raise _Settled
    value = _tensor(scalars, given)
    if name == "fill_":
        return args[0].copy_(value)
    if at < len(args):
        args[at] = given.kind(0)
    named = {key: given.kind(0) if one is given else settled(one) for key, one in kwargs.items()}
    return real(*settled(args), **named).copy_(value)


def _listed(scalars: Scalars, given: Sequence[Any], more: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """A tensor with numbers, and with values of tensors without dimensions, in it one after the other."""
    if more or kwargs.keys() - {"dtype", "device"} or not all(map(_is_entry, given)):
        raise _Settled
    common = kwargs.get("dtype") or functools.reduce(torch.promote_types, map(_type_of, given))
    device = kwargs.get("device") or torch.get_default_device()
    _note(scalars, given)
    made = [_tensor(scalars, one) if type(one) is Number else torch.as_tensor(one) for one in given]
    return torch.stack([one.detach().to(device, common) for one in made])


def _note(scalars: Scalars, given: Iterable[Any]) -> None:
    """Lets all numbers become inputs: the first that is none ends what is done with them, and others would be taken for granted."""
    for one in given:
        if type(one) is Number:
            scalars.scalar(one.expression)


def _is_entry(one: Any) -> bool:
    return type(one) in (Number, int, float) or (type(one) is FakeTensor and not one.dim())


def _is_of_tensors(given: Sequence[Any]) -> bool:
    """Whether the first argument is a list with tensors without data."""
    return bool(given) and type(given[0]) in (list, tuple) and any(type(one) is FakeTensor for one in given[0])


def _type_of(one: Any) -> torch.dtype:
    """The element type of a tensor of one entry."""
    if isinstance(one, torch.Tensor):
        return one.dtype
    return torch.get_default_dtype() if (one.kind if type(one) is Number else type(one)) is float else torch.int64


def _of_each(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One tensor after the other."""
    plain, in_place = name.removeprefix("_foreach_").removesuffix("_"), "_" if name.endswith("_") else ""
    own = f"{_OF_ONE.get(plain, plain)}{in_place}"
    args = (*args, *(one for key, one in kwargs.items() if key == "scalar"))
    kwargs = {key: one for key, one in kwargs.items() if key != "scalar"}
    each = [[one[at] if type(one) in (list, tuple) else one for one in args] for at in range(len(args[0]))]
    # Factors stand in the order of a list operation's arguments, and have a name in those of one tensor.
    named = [({"value": one[3]} if plain in ("addcmul", "addcdiv") and len(one) > 3 else {}) for one in each]
    pairs = zip(each, named, strict=True)
    made = tuple(getattr(torch.Tensor, own)(*one[: 3 if factor else None], **kwargs, **factor) for one, factor in pairs)
    return None if own.endswith("_") else made


def of_operator(scalars: Scalars, name: str, operands: Sequence[Any]) -> Any:
    """What an operator of Python's gives of a tensor and what stands for a number."""
    one, other = operands
    if type(one) is Number and name == "truediv":  # as PyTorch does
        return of_operator(scalars, "mul", (other.reciprocal(), one))
    if type(one) is Number and name == "mul":  # only a second operand is not rounded to half precision
        one, other = other, one
    known = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}.get(name, name)
    return beside(scalars, known, getattr(operator, name), (one, other), {})
