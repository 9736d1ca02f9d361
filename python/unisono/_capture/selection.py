"""What a mask selects (``x[mask]``), whose size depends on data, as the dense tensor and the mask.

Functions that treat each selected row for itself run on all rows; where rows that are not selected would count, they are left out: in sums,
means and losses. They hold a number at which no function of a list below is singular, so that no gradient of theirs is other than zero.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.fx
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from unisono._capture.alignments import to_the_left
from unisono._capture.looked_up import is_a_place, looked_up, put
from unisono._capture.places import INSTEAD_OF_SELECTING, user_line
from unisono._capture.record import Recorder
from unisono._capture.scattered import SCATTERS, scattered
from unisono._capture.sized import Sized, positions
from unisono.errors import StepError

_FILL = 0.5
_POINTWISE = frozenset(
    """add sub rsub mul div true_divide neg pow square sqrt rsqrt exp log log1p expm1 sin cos tanh sigmoid abs sign relu gelu silu
    leaky_relu elu softplus logsigmoid erf clamp clamp_min clamp_max minimum maximum eq ne lt le gt ge logical_not logical_and logical_or
    float double half bfloat16 int long bool to type type_as detach clone contiguous reciprocal isnan isinf isfinite""".split()  # noqa: SIM905
)
_DUNDERS = {
    f"__{name}__": name for name in ("add", "sub", "mul", "neg", "pow", "abs", "eq", "ne", "lt", "le", "gt", "ge")
}
_DUNDERS |= {"__truediv__": "div", "__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__and__": "logical_and"}
_DUNDERS |= {"__matmul__": "matmul", "__or__": "logical_or", "__invert__": "logical_not"}
#: Functions of rows, along dimensions behind the first.
_ALONG = frozenset(("softmax", "log_softmax", "argmax", "amax", "amin", "logsumexp"))
_NORMS = frozenset(("layer_norm", "rms_norm"))
_OF_ROWS = _NORMS | {"normalize", "embedding"}
_SHAPING = frozenset(("view", "reshape", "unsqueeze", "squeeze", "flatten"))
_PRODUCTS = frozenset(("matmul", "mm"))
_CLASSES = frozenset(("cross_entropy", "nll_loss"))
_LOSSES = frozenset(
    """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits""".split()  # noqa: SIM905
)


class Selection:
    """The rows of a tensor that a mask selects.

    Attributes:
        rows: all rows, ``[all, ...]``.
        mask: which of them are selected, ``[all]``; ``mask_now`` is what it was then.
        given: the mask as the step has it, over the first dimensions of a tensor.
        place: the line that selects.
    """

    def __init__(self, rows: torch.Tensor, given: torch.Tensor, place: str | None) -> None:
        """Selects."""
        mask = given.flatten()
        self.mask, self.given, self.place = mask, given, place
        self.mask_now = mask.clone()
        self._identity = _identity(mask)
        self._set(rows)

    def _set(self, rows: torch.Tensor) -> None:
        fill = False if rows.dtype == torch.bool else _FILL if rows.is_floating_point() or rows.is_complex() else 0
        self.rows = torch.where(self._over(rows), rows, fill)

    @classmethod
    def of(cls, tensor: torch.Tensor, mask: torch.Tensor) -> Selection:
        """What a mask over the first dimensions of a tensor selects."""
        return cls(tensor.flatten(0, mask.dim() - 1), mask, user_line())

    def _over(self, rows: torch.Tensor) -> torch.Tensor:
        """The mask, in as many dimensions as some rows have."""
        return self.mask_now.reshape(-1, *(1,) * (rows.dim() - 1))

    def is_by(self, mask: torch.Tensor) -> bool:
        """Whether a mask is the one that has selected."""
        flat = mask.flatten()
        return _identity(flat) == self._identity or _are_alike(flat, self.mask)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def requires_grad(self) -> bool:
        return self.rows.requires_grad

    def dim(self) -> int:
        return self.rows.dim()

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name, None)
        if name.startswith("__") or not callable(method):
            raise self.refused(name)
        return lambda *args, **kwargs: self._do(name, (self, *args), kwargs)

    def __rtruediv__(self, other: Any) -> Any:
        return self._do("mul", (self.reciprocal(), other), {})

    def __getitem__(self, index: Any) -> Selection:
        plain = isinstance(index, tuple) and all(isinstance(one, int | slice) for one in index)
        if not plain or not isinstance(index[0], slice) or index[0] != slice(None):
            raise self.refused("__getitem__")
        return self._made(self.rows[index])

    def _value(self, *_arguments: Any) -> Any:
        raise self.refused("reading")

    __len__ = __bool__ = __float__ = __int__ = __index__ = __repr__ = __str__ = __format__ = _value
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function."""
        kwargs = kwargs or {}
        found = next((one for one in (*args, *kwargs.values()) if isinstance(one, Selection)), None)
        name = getattr(func, "__name__", str(func))
        if found is None:
            raise _refused(name, user_line())
        return found._do(_DUNDERS.get(name, name), args, kwargs, func)

    def _do(self, name: str, args: Any, kwargs: Any, func: Any = None) -> Any:
        """What a function, given by its name, gives."""
        if name in _CLASSES or name in _LOSSES:
            return self._loss(name, inspect.signature(getattr(F, name)).bind(*args, **kwargs))
        if name == "ctc_loss":
            return self._aligned(inspect.signature(F.ctc_loss).bind(*args, **kwargs))
        if name.rstrip("_") == "masked_scatter":
            return self._scattered(*args, **kwargs)
        if name in ("sum", "mean") and args[0] is self:
            return self._reduced(name, *args[1:], **kwargs)
        if (
            name in _ALONG
            and args[0] is self
            and self._is_behind(kwargs.get("dim", args[1] if len(args) > 1 else None))
        ):
            return self._made((func or getattr(torch.Tensor, name))(self.rows, *args[1:], **kwargs))
        if name == "linear" and not any(isinstance(one, Selection) for one in args[1:]) and self.dim() > 1:
            return self._made(F.linear(self.rows, *args[1:], **kwargs))
        if name in _SHAPING and args[0] is self:
            return self._shaped(name, *args[1:], **kwargs)
        if name in _OF_ROWS:
            return self._of_rows(name, inspect.signature(getattr(F, name)).bind(*args, **kwargs))
        if name in _PRODUCTS and args[0] is self and self.dim() == 2 and _is_matrix(args[1]) and not kwargs:
            return self._made(self.rows @ args[1])
        base = name.rstrip("_")
        if base not in _POINTWISE or "out" in kwargs or kwargs.get("inplace"):
            raise self.refused(name)
        plain = [self._operand(one, name) for one in args]
        named = {key: self._operand(one, name) for key, one in kwargs.items()}
        made = self._made((func or getattr(torch.Tensor, base, None) or getattr(torch, base))(*plain, **named))
        if not name.endswith("_"):
            return made
        self.rows = made.rows.to(self.dtype)
        return self

    def _shaped(self, name: str, *how: Any, **named: Any) -> Selection:
        """The same rows in another shape, where their number need not be known."""
        first = how[0] if how else None
        match name:
            case "view" | "reshape":
                shape = first if isinstance(first, list | tuple) else how
                if [*shape] == [-1, *self.rows.shape[1:]] and not named:
                    return self
                fits = False
            case "unsqueeze":
                fits = isinstance(first, int) and first % (self.dim() + 1) > 0
            case "squeeze":
                fits = first is not None and self._is_behind(first)
            case _:
                fits = isinstance(first, int) and self.dim() > 1 and self._is_behind(first)
        if not fits or named:
            raise self.refused(name)
        return self._made(getattr(torch.Tensor, name)(self.rows, *how))

    def _of_rows(self, name: str, bound: inspect.BoundArguments) -> Selection:
        """A function of each row, with tensors that all rows share."""
        bound.apply_defaults()
        given = bound.arguments
        shared = [one for key, one in given.items() if key != "input"]
        fits = given["input"] is self and not any(isinstance(one, Selection) for one in shared)
        if name in _NORMS:  # what is not selected is the same everywhere in a row
            fits = fits and len(given["normalized_shape"]) < self.dim() and (given["eps"] is None or given["eps"] > 0)
        elif name == "normalize":
            fits = fits and self._is_behind(given["dim"]) and given["out"] is None
        else:
            fits = fits and given["max_norm"] is None and not given["scale_grad_by_freq"]
        if not fits:
            raise self.refused(name)
        given["input"] = self.rows
        return self._made(getattr(F, name)(*bound.args, **bound.kwargs))

    def _operand(self, one: Any, name: str) -> Any:
        """An operand with all rows."""
        if self._is_alike(one) and one.dim() == self.dim():
            return one.rows
        rows = isinstance(one, torch.Tensor) and one.dim() >= self.dim() and one.dim() > 0
        if isinstance(one, Selection) or (rows and not (one.dim() == self.dim() and one.shape[0] == 1)):
            raise self.refused(name)
        return one

    def _is_alike(self, other: Any) -> bool:
        """Whether something is selected by the same mask."""
        if not isinstance(other, Selection):
            return False
        return other._identity == self._identity or _are_alike(other.mask, self.mask)

    def _made(self, rows: torch.Tensor) -> Selection:
        made = object.__new__(Selection)
        made.__dict__.update(self.__dict__)
        made._set(rows)
        return made

    def _is_behind(self, dim: Any) -> bool:
        dims = dim if isinstance(dim, list | tuple) else [dim]
        return all(isinstance(one, int) and one % self.dim() > 0 for one in dims)

    def _reduced(self, name: str, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        """A sum or a mean: over rows too, or of each."""
        if dim is not None and self._is_behind(dim):
            return self._made(getattr(self.rows, name)(dim, keepdim=keepdim, **kwargs))
        if isinstance(dim, int) and dim == -self.dim():
            dim = 0
        if kwargs or keepdim or dim not in (None, 0):
            raise self.refused(name)
        if name == "mean" and not (self.dtype.is_floating_point or self.dtype.is_complex):
            return self.rows.mean()  # which PyTorch refuses
        kept = torch.where(self._over(self.rows), self.rows, 0)
        half = self.dtype in (torch.float16, torch.bfloat16)
        total = kept.sum(dim, dtype=torch.float32 if half else None)
        if name == "mean":
            total = total / (self.mask_now.sum() * (self.rows[0].numel() if dim is None else 1))
        return total.to(self.dtype) if half else total

    def _loss(self, name: str, bound: inspect.BoundArguments) -> Any:
        """A loss of selected rows against selected targets."""
        bound.apply_defaults()
        given = bound.arguments
        reduction, target = given["reduction"], given["target"]
        first, weight = next(iter(given)), cast("torch.Tensor | None", given.get("weight"))
        both = self._is_alike(given[first]) and self._is_alike(target)
        legacy = given.get("size_average") is not None or given.get("reduce") is not None
        given_dims = given[first].dim() if both else 0
        fits = both and given_dims == target.dim() + (name in _CLASSES and not target.dtype.is_floating_point)
        if not fits or legacy or reduction not in ("none", "mean", "sum"):
            raise self.refused(name)
        given[first] = given[first].rows
        if name in _CLASSES and not target.dtype.is_floating_point:
            ignored = torch.where(self._over(target.rows), target.rows, given["ignore_index"])
            given["target"] = ignored
            made = getattr(F, name)(*bound.args, **bound.kwargs)
            return made if reduction != "none" else self._made(made)
        if name in _CLASSES or (weight is not None and weight.dim() >= given_dims):
            raise self.refused(name)
        given["target"], given["reduction"] = target.rows, "none"
        rows = self._made(getattr(F, name)(*bound.args, **bound.kwargs))
        return rows if reduction == "none" else rows._reduced(reduction)

    def _aligned(self, bound: inspect.BoundArguments) -> torch.Tensor:
        """CTC loss against what is selected of each row, as targets that are padded."""
        given = bound.arguments
        rows = given["targets"] is self and self.given.dim() == 2 and self.dim() == 1
        counted = [self.given.sum(dim) for dim in (-1, 1)] if rows else []
        if not any(_are_alike(given["target_lengths"], count) for count in counted):
            raise self.refused("ctc_loss")
        shape = self.given.shape
        given["targets"] = to_the_left(self.rows.reshape(shape), self.mask_now.reshape(shape))
        return F.ctc_loss(*bound.args, **bound.kwargs)

    def _scattered(self, tensor: torch.Tensor, mask: torch.Tensor, source: Any) -> torch.Tensor:
        """A tensor with these rows in the place of its own that the same mask selects."""
        fits = source is self and tensor.shape == (*self.given.shape, *self.rows.shape[1:])
        if not fits or not _compared(mask, self.given, _is_of_rows):
            raise self.refused("masked_scatter")
        return torch.where(
            _over(self.mask_now.reshape(self.given.shape), tensor), self.rows.reshape(tensor.shape), tensor
        )

    def refused(self, name: str) -> StepError:
        """The error for a step that does with it what needs to know how much is selected."""
        return _refused(name, user_line() or self.place)


def _refused(name: str, place: str | None) -> StepError:
    return StepError(
        f"`{name}` of what a mask selects: its shape depends on data",
        code="U0101",
        place=place,
        cause="one graph must serve every batch, so all shapes must be known beforehand; functions of each row, sums, means and losses "
        "can be captured",
        hint=_instead_of(name),
    )


def _instead_of(name: str) -> str:
    """What users can write instead of a function of what a mask selects."""
    name = name.strip("_")
    if name in ("max", "min", "amax", "amin", "argmax", "argmin", "sort", "topk", "median"):
        least = "inf" if name in ("min", "amin", "argmin") else "-inf"
        return f"keep the shape: `torch.where(mask, x, float('{least}')).{name}(..)`"
    if name in ("cumsum", "prod", "any", "all", "norm"):
        neutral = {"prod": "1", "all": "True", "any": "False"}.get(name, "0")
        return f"keep the shape: `torch.where(mask, x, {neutral}).{name}(..)`, and select afterwards"
    if name in ("shape", "size", "numel", "len", "reading"):
        return "count by the mask: `mask.sum()` is a tensor; choose by `torch.where`"
    if name == "dropout":
        return "drop out before selecting, `F.dropout(x)[mask]`, or keep the shape with `torch.where`"
    if name == "ctc_loss":
        return "give padded targets, or the lengths as `mask.sum(-1)` of the mask over rows that selects the targets"
    return INSTEAD_OF_SELECTING


def _is_matrix(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dim() == 2


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two masks were computed in the same way from the same, which nothing has changed since the first of them began."""
    return _compared(one, other, _is_same)


def _compared(one: Any, other: Any, is_same: Callable[[Any, Any, set[torch.fx.Node]], bool]) -> bool:
    recorder = Recorder.current
    nodes = [recorder.node_of(mask) if recorder is not None else None for mask in (one, other)]
    if nodes[0] is None or nodes[1] is None:
        return False
    sources: set[torch.fx.Node] = set()
    return is_same(nodes[0], nodes[1], sources) and not _is_changed(sources)


def _is_of_rows(one: torch.fx.Node, other: torch.fx.Node, sources: set[torch.fx.Node]) -> bool:
    """Whether a mask is another one with further dimensions behind its own."""
    while one.target in (torch.ops.aten.unsqueeze.default, torch.ops.aten.expand.default):
        inner = cast("torch.fx.Node", one.args[0])
        if one.target is torch.ops.aten.unsqueeze.default and one.args[1] not in (-1, len(inner.meta["val"].shape)):
            break
        sources.add(one)
        one = inner
    if one.target is other.target and one.target in (
        torch.ops.aten.bitwise_not.default,
        torch.ops.aten.logical_not.default,
    ):
        sources |= {one, other}
        return _is_of_rows(cast("torch.fx.Node", one.args[0]), cast("torch.fx.Node", other.args[0]), sources)
    return _is_same(one, other, sources)


def _is_same(one: Any, other: Any, sources: set[torch.fx.Node]) -> bool:
    """Whether two recorded values are computed alike; ``sources`` gets all that they are computed from."""
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
        if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
            return all(_is_same(a, b, sources) for a, b in zip(one, other, strict=True))
        return type(one) is type(other) and one == other
    sources |= {one, other}
    if one is other or (one.op == other.op == "get_attr" and one.target == other.target):
        return True
    random = torch.Tag.nondeterministic_seeded in getattr(one.target, "tags", ())
    if one.op != "call_function" or one.target is not other.target or random or one.kwargs != other.kwargs:
        return False
    return _is_same(one.args, other.args, sources)


def _is_changed(sources: set[torch.fx.Node]) -> bool:
    """Whether an operation of the trace writes into one of these, or into what has the same memory."""
    roots = {_root(node) for node in sources}
    for node in next(iter(sources)).graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and any(_root(one) in roots for one in node.all_input_nodes):
            return True
    return False


def _root(node: torch.fx.Node) -> Any:
    """What a recorded value is a view of."""
    while node.op == "call_function":
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        if node.target is not operator.getitem and (len(returns) != 1 or returns[0].alias_info is None):
            break
        node = node.args[0]  # type: ignore[assignment]
    return node.target if node.op == "get_attr" else node


def _identity(tensor: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride(), tensor.shape, tensor._version


def _operators() -> None:
    for dunder, name in _DUNDERS.items():
        setattr(Selection, dunder, lambda self, *others, n=name: self._do(n, (self, *others), {}))
    for name in ("add", "sub", "mul", "truediv"):
        inner = {"truediv": "div"}.get(name, name)
        setattr(Selection, f"__i{name}__", lambda self, other, n=inner: self._do(f"{n}_", (self, other), {}))


_operators()


_BY_INDEX = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_BY_MASK = (torch.masked_select, torch.Tensor.masked_select)


class Selections(TorchFunctionMode):
    """Lets what masks select be :class:`Selection`, where it is not known how much that is."""

    def __init__(self, sized: Sized) -> None:
        """Takes who knows how much masks select."""
        super().__init__()
        self._sized = sized

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function."""
        kwargs = kwargs or {}
        if func in _BY_INDEX and isinstance(args[0], torch.Tensor) and is_a_place(args[1]):
            return looked_up(*args) if func is torch.Tensor.__getitem__ else put(*args)
        if func in _BY_INDEX and isinstance(args[1], tuple):
            args = (args[0], _without_whole_dims(args[1], args[0]), *args[2:])
        if func in _BY_INDEX and self._sized.selects(args[1]):
            return func(args[0], positions(args[1]), *args[2:])
        if func in _BY_MASK and len(args) == 2 and not kwargs and self._sized.selects(args[1]):
            tensor, mask = torch.broadcast_tensors(*args)
            return tensor[positions(mask)]
        if func is torch.Tensor.__getitem__ and _is_mask(args[1], args[0]):
            return Selection.of(args[0], args[1])
        if func in _BY_MASK and len(args) == 2 and not kwargs:
            return Selection.of(*torch.broadcast_tensors(*args))
        if func in SCATTERS and len(args) == 3 and all(isinstance(one, torch.Tensor) for one in args):
            made = scattered(*args)
            if made is not None:
                return args[0].copy_(made) if SCATTERS[func] else made
        if func is torch.Tensor.__setitem__ and isinstance(args[2], Selection):
            return self._put(*args)
        if func is torch.Tensor.__setitem__ and _is_mask(args[1], args[0]):
            tensor, mask, value = args
            if type(value) in (int, float) and tensor.is_floating_point():
                return tensor.masked_fill_(_over(mask, tensor), value)
            if isinstance(value, torch.Tensor) and _is_one_row(value, tensor, mask):
                return tensor.copy_(torch.where(_over(mask, tensor), value, tensor))
        return func(*args, **kwargs)

    @staticmethod
    def _put(tensor: torch.Tensor, mask: Any, selected: Selection) -> None:
        if not _is_mask(mask, tensor) or not selected.is_by(mask):
            raise selected.refused("__setitem__")
        rows = selected.rows
        if rows.dim() != 1 + tensor.dim() - mask.dim():
            raise selected.refused("__setitem__")
        new = rows.reshape(*mask.shape, *rows.shape[1:]).to(tensor.dtype)
        tensor.copy_(torch.where(_over(mask, tensor), new, tensor))


def _over(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return mask.reshape(*mask.shape, *(1,) * (tensor.dim() - mask.dim()))


def _is_one_row(value: torch.Tensor, tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether a value is the same for all rows of a tensor that a mask selects."""
    dims = tensor.dim() - mask.dim()
    fits = value.dim() <= dims or (value.dim() == dims + 1 and value.shape[0] == 1 and mask.dim() > 0)
    return fits and value.dtype == tensor.dtype and value.device == tensor.device


def _without_whole_dims(index: tuple[Any, ...], tensor: Any) -> Any:
    """The mask of an index that takes all of the dimensions behind it (`x[mask, :]`, `x[mask, ...]`); any other index as it is."""
    mask, *others = index or (None,)
    whole = [one for one in others if isinstance(one, slice) and one == slice(None)]
    rest = [one for one in others if not isinstance(one, slice)]
    is_whole = len(whole) + len(rest) == len(others) and (not rest or rest == [...])
    is_over = isinstance(mask, torch.Tensor) and _is_mask(mask, tensor) and mask.dim() + len(whole) <= tensor.dim()
    return mask if is_whole and is_over else index


def _is_mask(index: Any, tensor: Any) -> bool:
    """Whether an index is a mask over the first dimensions of a tensor."""
    if not isinstance(index, torch.Tensor) or index.dtype != torch.bool or not isinstance(tensor, torch.Tensor):
        return False
    return index.dim() > 0 and index.shape == tensor.shape[: index.dim()]
