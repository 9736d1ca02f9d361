"""Packed sequences of different lengths, as padded ones with a mask: how much a packed sequence holds depends on data.

While a step is traced, packing keeps the padded tensor and the lengths, and recurrent layers run over all time steps. A sequence's state
stays as it is where the sequence has not begun or is over, so that what each layer gives is what it gives for packed sequences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import rnn

from unisono._capture.named import standing
from unisono._capture.places import user_line
from unisono._capture.selection import Selection
from unisono.errors import StepError

_State = tuple[torch.Tensor, ...]


class Values(Protocol):
    """Who knows values of tensors before the step."""

    def array(self, tensor: torch.Tensor) -> Any:
        """The values of a tensor as an array, where these are taken for granted; a :class:`StepError` where they cannot be."""
        ...

    def whole_number(self, tensor: torch.Tensor) -> int:
        """The same of a tensor without dimensions, as a number."""
        ...


class Packed(rnn.PackedSequence):
    """Stands for a packed sequence; its ``data`` is what the mask selects.

    Attributes:
        padded: all time steps, ``[time, batch, ..]``, zeros behind the end of each sequence.
        lengths: how long each sequence is, ``[batch]``.
        mask: what belongs to the sequences, ``[time, batch]``.
    """

    padded: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, padded: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor) -> Packed:
        """The packed sequences of a padded tensor."""
        padded = torch.where(_over(mask, padded), padded, 0)
        made = tuple.__new__(cls, (Selection.of(padded, mask), mask.sum(1), None, None))
        made.padded, made.lengths, made.mask = padded, lengths, mask
        return made


def _over(mask: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    return mask.reshape(*mask.shape, *(1,) * (padded.dim() - mask.dim()))


@contextlib.contextmanager
def standing_in(functions: Iterable[Any], values: Values) -> Iterator[None]:
    """Lets sequences be packed so, and unpacked, and recurrent layers take them.

    Args:
        functions: those that the step can reach.
        values: knows lengths of sequences where sizes depend on them.
    """
    pack, pad = rnn.pack_padded_sequence, rnn.pad_packed_sequence

    def packing(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
        return (
            _packed(input, lengths, batch_first)
            if type(input) is FakeTensor
            else pack(input, lengths, batch_first, enforce_sorted)
        )

    def padding(
        sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
    ) -> Any:
        if type(sequence) is not Packed:
            return pad(sequence, batch_first, padding_value, total_length)
        return _unpacked(sequence, batch_first, padding_value, total_length, values)

    instead = {id(pack): (pack, packing), id(pad): (pad, padding)}
    with contextlib.ExitStack() as stack:
        for module in (rnn, nn.utils.rnn):
            stack.enter_context(mock.patch.object(module, pack.__name__, packing))
            stack.enter_context(mock.patch.object(module, pad.__name__, padding))
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(mock.patch.object(kind, "forward", _taking(kind.forward, values)))
        stack.enter_context(standing(functions, instead))
        yield


def _packed(input: torch.Tensor, lengths: Any, batch_first: bool) -> Packed:
    padded = input.transpose(0, 1) if batch_first else input
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.tensor(lengths, dtype=torch.int64)
    lengths = lengths.to(torch.int64)
    here = lengths.to(padded.device)
    mask = torch.arange(padded.shape[0], device=padded.device)[:, None] < here
    return Packed.of(padded, lengths, mask)


def _unpacked(
    sequence: Packed, batch_first: bool, padding_value: float, total_length: int | None, values: Values
) -> tuple[torch.Tensor, torch.Tensor]:
    padded, time = sequence.padded, sequence.padded.shape[0]
    wanted = time if total_length is None else total_length
    if total_length is None or total_length < time:  # as much as the longest sequence has
        longest = _known(values.whole_number, sequence.lengths.max(), _SAY_HOW_MUCH)
        wanted = longest if total_length is None else total_length
        if wanted < longest:
            raise ValueError(f"total_length={wanted} is less than the length of the longest sequence, {longest}")
    padded, mask = padded[:wanted], sequence.mask[:wanted]
    if wanted > time:
        padded = torch.cat([padded, padded.new_zeros(wanted - time, *padded.shape[1:])])
        mask = torch.cat([mask, mask.new_zeros(wanted - time, mask.shape[1])])
    if padding_value != 0:
        padded = torch.where(_over(mask, padded), padded, padding_value)
    return (padded.transpose(0, 1) if batch_first else padded), sequence.lengths


_SAY_HOW_MUCH = "say how much you want, `pad_packed_sequence(.., total_length=x.size(1))`"
_DROP_OUT_BEHIND = (
    "drop out behind the layers, or between layers of their own: how much is drawn between them depends on the lengths"
)


def _known(ask: Callable[[torch.Tensor], Any], tensor: torch.Tensor, hint: str) -> Any:
    """Values of lengths, where a size or the order of random numbers depends on them."""
    try:
        return ask(tensor)
    except StepError as error:
        raise StepError(
            "how much packed sequences hold depends on data",
            code=error.code,
            place=user_line(),
            cause="one graph must serve every batch, so all shapes must be known beforehand",
            hint=hint,
        ) from error


def _taking(real: Callable[..., Any], values: Values) -> Callable[..., Any]:
    def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        return _run(self, input, hx, values) if type(input) is Packed else real(self, input, hx)

    return forward


def _run(layers: nn.RNNBase, packed: Packed, hx: Any, values: Values) -> tuple[Packed, Any]:
    """What recurrent layers give for packed sequences."""
    is_lstm, directions = isinstance(layers, nn.LSTM), 2 if layers.bidirectional else 1
    padded, mask = packed.padded, packed.mask
    sizes = (layers.proj_size or layers.hidden_size, layers.hidden_size) if is_lstm else (layers.hidden_size,)
    if hx is None:
        given: _State = tuple(padded.new_zeros(layers.num_layers * directions, padded.shape[1], size) for size in sizes)
    else:
        given = tuple(hx) if is_lstm else (hx,)
    ends: list[_State] = []
    for layer in range(layers.num_layers):
        made = []
        for direction in range(directions):
            state = tuple(one[layer * directions + direction] for one in given)
            suffix = f"l{layer}{'_reverse' if direction else ''}"
            outputs, end = _one_way(layers, suffix, padded, mask, state, backwards=bool(direction))
            made.append(outputs)
            ends.append(end)
        padded = torch.cat(made, -1) if directions > 1 else made[0]
        if layers.dropout and layers.training and layer < layers.num_layers - 1:
            padded = _dropped_out(padded, packed.lengths, layers.dropout, values)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return Packed.of(padded, packed.lengths, mask), last if is_lstm else last[0]


def _one_way(
    layers: nn.RNNBase, suffix: str, padded: torch.Tensor, mask: torch.Tensor, state: _State, *, backwards: bool
) -> tuple[torch.Tensor, _State]:
    """What one layer gives in one direction at each time step, and its last state."""
    names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if layers.bias else ())]
    weight, recurrent, *biases = (getattr(layers, f"{name}_{suffix}") for name in names)
    bias, recurrent_bias = biases or (None, None)
    projection = getattr(layers, f"weight_hr_{suffix}", None)
    inputs, cell = F.linear(padded, weight, bias), _CELLS[layers.mode]
    outputs: list[torch.Tensor] = []
    times = range(padded.shape[0])
    for time in reversed(times) if backwards else times:
        new = cell(inputs[time], F.linear(state[0], recurrent, recurrent_bias), state, projection)
        inside = mask[time][:, None]
        state = tuple(torch.where(inside, one, was) for one, was in zip(new, state, strict=True))
        outputs.append(torch.where(inside, new[0], 0))
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _lstm(inputs: torch.Tensor, hidden: torch.Tensor, state: _State, projection: torch.Tensor | None) -> _State:
    entry, forget, value, exit_ = (inputs + hidden).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + entry.sigmoid() * value.tanh()
    out = exit_.sigmoid() * cell.tanh()
    return (out if projection is None else F.linear(out, projection)), cell


def _gru(inputs: torch.Tensor, hidden: torch.Tensor, state: _State, _projection: torch.Tensor | None) -> _State:
    (reset, update, new), (reset_h, update_h, new_h) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    made = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return (made + (update + update_h).sigmoid() * (state[0] - made),)


_CELLS: dict[str, Callable[..., _State]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda inputs, hidden, *_: ((inputs + hidden).tanh(),),
    "RNN_RELU": lambda inputs, hidden, *_: ((inputs + hidden).relu(),),
}


def _dropped_out(padded: torch.Tensor, lengths: torch.Tensor, probability: float, values: Values) -> torch.Tensor:
    """Dropout between layers, whose numbers are drawn for what is packed, in its order: longest sequences first at each time step."""
    known = torch.from_numpy(_known(values.array, lengths, _DROP_OUT_BEHIND))
    lengths_now, order = torch.sort(known, descending=True)
    time, place = (torch.arange(int(lengths_now[0]))[:, None] < lengths_now).nonzero(as_tuple=True)
    index = time, order[place]
    return torch.zeros_like(padded).index_put(index, F.dropout(padded[index], probability))
